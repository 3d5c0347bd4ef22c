//! `field`: the cost of a relay under users' conditions, with a network between the hosts and rates
//! below saturation.
//!
//! ```text
//!   client ── link ── relay ── veth ── server      a namespace each
//!   core 1            core 0           core 1      so each host's packets are received on its own core
//! ```

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use clap::Args;

use spliceway_machine as machine;

use crate::contender;
use crate::environment::Environment;
use crate::load::{self, Load, Profile};
use crate::page::Results;
use crate::programs;
use crate::results::Measured;
use crate::site::Site;

/// The measurements to make, and where to write them.
#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved rounds.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// One round of a few small loads, to check that they work, not to measure their speed.
    #[arg(long)]
    quick: bool,
    /// Only these loads, by name or by a prefix of it (`F2`, `F10`, `pgbench`).
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    only: Vec<String>,
    /// Only these contenders, by name or by a prefix of it (`tokio`).
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    contenders: Vec<String>,
    /// The folder for the results.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// The fraction of a load's contenders that must be shown. With fewer, the run fails.
const SURVIVORS: f64 = 0.5;

pub(crate) fn run(options: &Options) -> io::Result<()> {
    machine::raise_descriptor_limit(0)?;
    let started = Instant::now();
    let (loads, rounds) = match options.quick {
        true => (load::quick(), 1),
        false => (load::all(options.capacities()?), options.rounds),
    };
    let is_asked =
        |load: &&Load| options.only.is_empty() || options.only.iter().any(|name| load.name.starts_with(name));
    let loads: Vec<&Load> = loads.iter().filter(is_asked).collect();
    let mut results = Results {
        environment: Environment::of_this_machine(),
        commit: commit(),
        command: options.command(),
        rounds,
        ..Results::default()
    };
    for profile in Profile::ALL {
        if loads.iter().all(|load| load.profile != profile) {
            continue;
        }
        let Some(site) = site(profile)? else { continue };
        for load in loads.iter().filter(|load| load.profile == profile) {
            let began = Instant::now();
            let measured = measure(&site, load, &options.contenders, rounds);
            eprintln!(
                "{} ({}): {} contenders, {:.0} s",
                load.name,
                profile.name(),
                measured.contenders().len(),
                began.elapsed().as_secs_f64()
            );
            results.loads.push(measured);
            results.seconds = started.elapsed().as_secs_f64();
            // If a run is interrupted, the results so far are kept.
            results.write(&options.out)?;
        }
    }
    if !options.quick
        && let Some(site) = site(Profile::Rack)?
    {
        results.programs = programs::measure(&site, rounds, &options.programs(), &options.contenders)?;
        results.seconds = started.elapsed().as_secs_f64();
        results.write(&options.out)?;
    }
    let all = results.loads;
    eprintln!("{} loads in {:.0} s", all.len(), started.elapsed().as_secs_f64());
    let too_few: Vec<&str> = all
        .iter()
        .filter(|measured| (measured.survivors() as f64) < SURVIVORS * measured.contenders().len() as f64)
        .map(|measured| measured.load.as_str())
        .collect();
    match too_few.is_empty() || options.quick {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "less than {:.0} % of the contenders could be shown of {}",
            SURVIVORS * 100.0,
            too_few.join(", ")
        ))),
    }
}

/// Returns the hosts of a profile. If the machine does not permit namespaces or lacks a program,
/// prints the reason and returns `None`.
fn site(profile: Profile) -> io::Result<Option<Site>> {
    match Site::new(profile) {
        Ok(site) => Ok(Some(site)),
        Err(why) if matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
            eprintln!("skipped: {}: {why}", profile.name());
            Ok(None)
        }
        Err(why) => Err(why),
    }
}

impl Options {
    /// Returns the names of the requested real programs. An empty list means all of them.
    fn programs(&self) -> Vec<String> {
        let all = self.only.iter().any(|name| name == "F10");
        if all { Vec::new() } else { self.only.clone() }
    }

    /// Returns the command line, so that readers can repeat the run.
    fn command(&self) -> String {
        let mut command = String::from("cargo xtask bench field");
        match self.quick {
            true => command += " --quick",
            false => command += &format!(" --rounds {}", self.rounds),
        }
        for (option, names) in [("only", &self.only), ("contenders", &self.contenders)] {
            names
                .iter()
                .for_each(|name| command += &format!(" --{option} '{name}'"));
        }
        command
    }

    /// Measures the capacities if a requested load depends on them. Otherwise returns placeholders.
    fn capacities(&self) -> io::Result<[f64; 3]> {
        let matters = |name: &String| {
            ["F1", "F7"]
                .iter()
                .any(|load| name.starts_with(load) || load.starts_with(name))
        };
        match self.only.is_empty() || self.only.iter().any(matters) {
            true => capacities(),
            false => Ok([1e9; 3]),
        }
    }
}

/// Returns the commit that is checked out, or an empty string if there is no repository.
fn commit() -> String {
    let said = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    said.map_or_else(
        |_| String::new(),
        |said| String::from_utf8_lossy(&said.stdout).trim().to_owned(),
    )
}

/// Returns the slowest contender's capacity in one flow, for each rack profile.
fn capacities() -> io::Result<[f64; 3]> {
    let mut least = [f64::INFINITY; 3];
    for (profile, least) in [Profile::Rack, Profile::RackPlain, Profile::RackGro]
        .into_iter()
        .zip(&mut least)
    {
        let Some(site) = site(profile)? else { continue };
        for contender in contender::relays() {
            let capacity = match site.capacity(&contender) {
                Ok(capacity) => capacity,
                // The contender fails again under the loads, and the page reports that failure.
                Err(error) => {
                    eprintln!("{}: {}: {error}", profile.name(), contender.name);
                    continue;
                }
            };
            eprintln!(
                "{}: {} carries {:.0} MB/s",
                profile.name(),
                contender.name,
                capacity / 1e6
            );
            *least = least.min(capacity);
        }
    }
    Ok(least)
}

/// Measures every contender once per round. Every other round runs in reverse order, so that drift
/// affects all contenders.
pub(crate) fn measure(site: &Site, load: &Load, only: &[String], rounds: usize) -> Measured {
    let mut measured = Measured {
        load: load.name.clone(),
        profile: load.profile.name().into(),
        is_bulk: load.is_bulk(),
        is_overload: load.overload.is_some(),
        ..Measured::default()
    };
    let mut contenders = contender::asked(contender::of(load), only);
    let rounds = if load.is_long() { rounds.div_ceil(2) } else { rounds };
    for round in 0..rounds {
        let mut failed = Vec::new();
        for contender in &contenders {
            match site.run(load, contender, round) {
                Ok(run) => measured.runs.push(run),
                Err(error) => failed.push((contender.name.clone(), error.to_string())),
            }
        }
        contenders.retain(|contender| failed.iter().all(|(name, _)| *name != contender.name));
        measured.failed.append(&mut failed);
        contenders.reverse();
    }
    measured
}
