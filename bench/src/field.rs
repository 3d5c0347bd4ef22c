//! `field`: the cost of a relay under users' conditions, with a network between the hosts and rates
//! below saturation.
//!
//! ```text
//!   client ── link ── relay ── veth ── server      a namespace each
//!   core 1            core 0           core 1      so each host's packets are received on its own core
//! ```

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use spliceway_machine as machine;

use crate::contender::{self, AGAIN, OURS, REFERENCE};
use crate::environment::{Environment, Origin};
use crate::figures::Figures;
use crate::load::{self, Load, Profile};
use crate::meter::undisturbed;
use crate::page::Results;
use crate::results::{self, Figure, Measured};
use crate::site::Site;
use crate::stop::{ATTEMPTS, LATENCY_FACTOR, Rule};
use crate::{counts, idle, programs, summary};

/// The measurements to make, and where to write them.
#[derive(Args)]
pub(crate) struct Options {
    /// The fewest interleaved rounds, with all contenders.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// The most rounds of a row whose intervals stay wide.
    #[arg(long, default_value_t = 60)]
    most: usize,
    /// A row ends when its intervals are narrower than this many percent above and below the ratio.
    #[arg(long, default_value_t = 3.0, value_name = "PERCENT")]
    target: f64,
    /// Keep the results in the folder, and measure only rows that they do not have.
    #[arg(long = "continue", conflicts_with = "quick")]
    resume: bool,
    /// One round of a few small loads, to check that they work, not to measure their speed.
    #[arg(long)]
    quick: bool,
    /// Only these rows, by name or by a prefix of it (`F2`, `F10`, `pgbench`, `idle`). `idle, 100`
    /// has 100,000 idle sessions, which no other run has.
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    only: Vec<String>,
    /// Only these contenders, by name or by a prefix of it (`tokio`).
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    contenders: Vec<String>,
    /// The folder for the results.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    machine::raise_descriptor_limit(0)?;
    let mut run = Run {
        options,
        started: Instant::now(),
        before: 0.0,
        rule: options.rule(),
        results: options.results()?,
    };
    run.before = run.results.seconds;
    run.loads()?;
    run.others()?;
    let failed: Vec<&str> = run
        .results
        .loads
        .iter()
        .filter(|measured| measured.failed.len() > measured.contenders().len())
        .map(|measured| measured.load.as_str())
        .collect();
    match failed.is_empty() || options.quick {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "more than half of the contenders failed in {}",
            failed.join(", ")
        ))),
    }
}

/// A run, and what it has measured so far.
struct Run<'a> {
    options: &'a Options,
    started: Instant,
    /// Seconds of the run that this one continues.
    before: f64,
    rule: Rule,
    results: Results,
}

impl Run<'_> {
    /// Measures the loads that the results do not have yet.
    fn loads(&mut self) -> io::Result<()> {
        let rows = self.missing([1e9; 3]);
        self.announce(&rows);
        let has_capacities = !self.results.capacities.contains(&0.0);
        if !has_capacities && rows.iter().any(Load::depends_on_capacity) {
            self.results.capacities = capacities()?;
        }
        let missing = self.missing(self.results.capacities);
        for profile in Profile::ALL {
            let of_profile: Vec<&Load> = missing.iter().filter(|load| load.profile == profile).collect();
            if of_profile.is_empty() {
                continue;
            }
            let Some(site) = site(profile)? else { continue };
            for load in of_profile {
                let began = Instant::now();
                let mut measured = measure(&site, load, &self.options.contenders, self.rule);
                eprintln!(
                    "{} ({}): {} contenders, {} rounds, {:.0} s",
                    load.name,
                    profile.name(),
                    measured.contenders().len(),
                    measured.rounds(),
                    began.elapsed().as_secs_f64()
                );
                measured.origin = Origin::now();
                self.results.loads.push(measured);
                self.write()?;
            }
        }
        Ok(())
    }

    /// Returns the loads that are asked for and not measured.
    fn missing(&self, capacities: [f64; 3]) -> Vec<Load> {
        let mut all = match self.options.quick {
            true => load::quick(),
            false => load::all(capacities),
        };
        let is_measured = |load: &Load| self.results.load(&load.name, load.profile.name()).is_some();
        all.retain(|load| self.options.asks_for(&load.name) && !is_measured(load));
        all
    }

    /// Measures real programs, idle sessions and counts that the results do not have yet.
    fn others(&mut self) -> io::Result<()> {
        let (options, quick) = (self.options, self.options.quick);
        if quick {
            let contenders = ["tokio".into(), "spliceway forward".into()];
            if let Some(site) = site(Profile::Loopback)? {
                self.results.idle = idle::of(&site, 200, "idle, 200 sessions", &contenders, 1)?.into();
            }
            return self.write();
        }
        for title in programs::titles() {
            let is_asked = options.asks_for(title) || options.asks_for("F10");
            if !is_asked || self.results.table(title).is_some() {
                continue;
            }
            let Some(site) = site(Profile::Rack)? else { break };
            let figures = programs::measure(&site, self.rule, &[title.into()], &options.contenders)?;
            self.add(figures, |results| &mut results.programs)?;
        }
        for title in counts::titles() {
            let is_counted = self.results.table(&counts::calls_of(title)).is_some();
            if !options.asks_for(title) || is_counted {
                continue;
            }
            let Some(site) = site(Profile::Loopback)? else { break };
            let figures = counts::measure(&site, title, &options.contenders)?;
            self.add(figures, |results| &mut results.counts)?;
        }
        for title in idle::titles(&options.only) {
            if self.results.table(&idle::memory_of(title)).is_some() {
                continue;
            }
            let Some(site) = site(Profile::Loopback)? else { break };
            let figures = idle::measure(&site, title, &options.contenders, self.rule.least)?;
            self.add(figures, |results| &mut results.idle)?;
        }
        Ok(())
    }

    /// Adds tables to the results.
    fn add(&mut self, figures: Vec<Figures>, to: fn(&mut Results) -> &mut Vec<Figures>) -> io::Result<()> {
        let origin = Origin::now();
        let of_now = figures.into_iter().map(|one| Figures {
            origin: origin.clone(),
            ..one
        });
        to(&mut self.results).extend(of_now);
        self.write()
    }

    /// Writes the results so far, so that an interrupted run can be continued.
    fn write(&mut self) -> io::Result<()> {
        self.results.seconds = self.before + self.started.elapsed().as_secs_f64();
        self.results.write(&self.options.out)
    }

    /// Prints how long the run takes: if every row ends after the fewest rounds, and after the
    /// most.
    fn announce(&self, missing: &[Load]) {
        /// Seconds of a run of a real program.
        const PROGRAM: f64 = 1.7;
        let Rule { least, most, .. } = self.rule;
        let extra = (most - least) as f64;
        let (mut shortest, mut longest) = (0.0, 0.0);
        for load in missing {
            let contenders = contender::asked(contender::of(load), &self.options.contenders).len();
            let seconds = load.run_seconds();
            let first = seconds * (contenders * least) as f64;
            let compares = contenders.min(COMPARED) * usize::from(!summary::compared(load).is_empty());
            shortest += first;
            longest += first + seconds * compares as f64 * extra;
        }
        if !self.options.quick {
            let titles = programs::titles().into_iter();
            for title in titles.filter(|title| self.options.asks_for(title) || self.options.asks_for("F10")) {
                let contenders = contender::asked(contender::of_programs(), &self.options.contenders).len();
                let first = PROGRAM * (contenders * least) as f64;
                let compares = COMPARED * usize::from(summary::compares(title));
                shortest += first;
                longest += first + PROGRAM * compares as f64 * extra;
            }
            let idle = idle::seconds(&self.options.only, &self.options.contenders, least);
            let counted = counts::titles().filter(|title| self.options.asks_for(title)).count();
            let others = idle + counted as f64 * counts::seconds(&self.options.contenders);
            shortest += others;
            longest += others;
        }
        eprintln!(
            "about {:.0} minutes on an idle machine, and up to {:.0} if intervals stay wide",
            (shortest / 60.0).ceil(),
            (longest / 60.0).ceil()
        );
    }
}

/// The contenders of the rounds beyond the fewest: spliceway, its control, tokio, the best peer,
/// and one more subject.
const COMPARED: usize = 5;

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
    /// Returns whether a row is to be measured.
    fn asks_for(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| name.starts_with(prefix))
    }

    fn rule(&self) -> Rule {
        match self.quick {
            true => Rule {
                attempts: 1,
                ..Rule::fixed(1)
            },
            false => Rule {
                least: self.rounds.max(1),
                most: self.most.max(self.rounds).max(1),
                target: self.target / 100.0,
                attempts: ATTEMPTS,
            },
        }
    }

    /// Returns the results to add to: empty ones, or those of an earlier run on this machine.
    fn results(&self) -> io::Result<Results> {
        let environment = Environment::of_this_machine();
        if !self.resume {
            let Origin { commit, date, .. } = Origin::now();
            return Ok(Results {
                environment,
                commit,
                date,
                command: self.command(),
                rounds: self.rule().least,
                target: self.rule().target,
                ..Results::default()
            });
        }
        let results = Results::read(&self.out)?;
        if results.environment.machine != environment.machine {
            return Err(io::Error::other(format!(
                "{} has results of another machine ({}); use another --out",
                self.out.display(),
                results.environment.machine
            )));
        }
        Ok(results)
    }

    /// Returns the command line, so that readers can repeat the run.
    fn command(&self) -> String {
        let mut command = String::from("cargo xtask bench field");
        match self.quick {
            true => command += " --quick",
            false => {
                let Self {
                    rounds, most, target, ..
                } = self;
                command += &format!(" --rounds {rounds} --most {most} --target {target}");
            }
        }
        for (option, names) in [("only", &self.only), ("contenders", &self.contenders)] {
            names
                .iter()
                .for_each(|name| command += &format!(" --{option} '{name}'"));
        }
        command
    }
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

/// Measures every contender once per round, until the rule ends. Every other round runs in reverse
/// order, so that drift affects all contenders.
pub(crate) fn measure(site: &Site, load: &Load, only: &[String], rule: Rule) -> Measured {
    let rule = if load.is_long() { rule.halved() } else { rule };
    let mut measured = Measured {
        load: load.name.clone(),
        profile: load.profile.name().into(),
        is_bulk: load.is_bulk(),
        is_overload: load.overload.is_some(),
        full_rounds: rule.least,
        ..Measured::default()
    };
    let figures = summary::compared(load);
    let mut contenders = contender::asked(contender::of(load), only);
    for round in 0..rule.most {
        if round >= rule.least {
            if is_enough(&measured, &figures, &rule) {
                break;
            }
            let compared = names_compared(&measured, &figures);
            contenders.retain(|contender| compared.contains(&contender.name));
        }
        let mut failed = Vec::new();
        for contender in &contenders {
            match undisturbed(rule.attempts, || site.run(load, contender, round)) {
                Ok((run, disturbed)) => measured.runs.push(results::Run { disturbed, ..run }),
                Err(error) => failed.push((contender.name.clone(), error.to_string())),
            }
        }
        contenders.retain(|contender| failed.iter().all(|(name, _)| *name != contender.name));
        measured.failed.append(&mut failed);
        contenders.reverse();
    }
    measured
}

/// Returns whether every figure that the page compares has narrow intervals.
fn is_enough(measured: &Measured, figures: &[(Figure, &str)], rule: &Rule) -> bool {
    figures.iter().all(|(figure, subject)| {
        let others = [Some(REFERENCE), measured.best_peer(*figure)];
        let ratios: Vec<_> = others
            .into_iter()
            .flatten()
            .filter_map(|to| measured.sampled(*figure, subject, to))
            .collect();
        let factor = match figure {
            Figure::Latency(_) => LATENCY_FACTOR,
            Figure::Cpu | Figure::Rate => 1.0,
        };
        rule.is_narrow(&ratios, measured.control(*figure), factor)
    })
}

/// Returns the contenders that the page compares.
fn names_compared(measured: &Measured, figures: &[(Figure, &str)]) -> Vec<String> {
    let of_figure = |(figure, subject): &(Figure, &str)| {
        let best = measured.best_peer(*figure).unwrap_or(REFERENCE);
        [subject, OURS, AGAIN, REFERENCE, best].map(str::to_owned)
    };
    figures.iter().flat_map(of_figure).collect()
}
