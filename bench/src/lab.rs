//! `lab`: saturation tests on loopback, with one core for the relay and one for the load. They show
//! a relay's highest rate, not its cost for a user.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use spliceway_load::{Generator, Offer, Requests, Schedule, What};
use spliceway_machine as machine;

use crate::contender::{self, Contender};
use crate::figures::Figures;
use crate::load::{self, Profile};
use crate::results::Measured;
use crate::site::{CLIENT, SERVER, Site};
use crate::{field, kind, programs};

/// The measurements to make, and where to write them.
#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these tests, by name or by a prefix of it: bulk, "round trips", sweep, churn, idle, k6.
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    only: Vec<String>,
    /// The folder for the results.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

impl Options {
    fn names(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }
}

/// Prints the tables, and writes them to `lab.md` and `lab.json`.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
pub(crate) fn run(options: &Options) -> io::Result<()> {
    machine::raise_descriptor_limit(0)?;
    let site = Site::new(Profile::Loopback)?;
    let mut all = Vec::new();
    for load in load::laboratory().iter().filter(|load| options.names(&load.name)) {
        all.extend(tables(&field::measure(&site, load, &[], options.rounds)));
    }
    if options.names("idle") {
        all.extend(idle(&site)?);
    }
    if options.names("k6") {
        all.extend(programs::measure(&site, options.rounds, &["k6".into()], &[])?);
    }
    let page: String = all.iter().map(Figures::table).collect();
    println!("{page}");
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("lab.md"), page)?;
    fs::write(options.out.join("lab.json"), serde_json::to_vec(&all)?)
}

/// Returns the tables for CPU time and for rate.
fn tables(measured: &Measured) -> [Figures; 2] {
    let (cost, rate, decimals) = match measured.is_bulk {
        true => ("s/GiB", "GiB/s", 3),
        false => ("µs each", "each/s", 1),
    };
    let mut cpu = Figures::new(format!("{}, CPU", measured.load), cost, decimals);
    let mut rates = Figures::new(
        format!("{}, rate", measured.load),
        rate,
        if measured.is_bulk { 2 } else { 0 },
    );
    for run in &measured.runs {
        cpu.add(&run.contender, measured.unit_cost(run));
        let done = match measured.is_bulk {
            true => run.bytes as f64 / f64::from(1 << 30),
            false => run.completed as f64,
        };
        rates.add(&run.contender, done / run.wall);
    }
    for (name, why) in &measured.failed {
        cpu.skip(name, why.clone());
    }
    [cpu, rates]
}

/// Connections that carry 256 KiB in each direction and are then idle. A relay that splices with
/// its own pipes needs six descriptors for each connection.
const IDLE: usize = 3_000;

fn idle(site: &Site) -> io::Result<[Figures; 3]> {
    let figures = |what: &str, unit, decimals| Figures::new(format!("{IDLE} idle connections, {what}"), unit, decimals);
    let mut all = [
        figures("descriptors", "each", 2),
        figures("pipes", "each", 2),
        figures("resident memory", "KiB each", 1),
    ];
    for contender in contender::relays() {
        match held(site, &contender) {
            Ok(held) => held
                .iter()
                .zip(&mut all)
                .for_each(|(value, figures)| figures.add(&contender.name, *value)),
            Err(error) => all[0].skip(&contender.name, error.to_string()),
        }
    }
    Ok(all)
}

fn held(site: &Site, contender: &Contender) -> io::Result<[f64; 3]> {
    let offer = Offer {
        requests: Some(Requests {
            connections: IDLE,
            size: 256 << 10,
            rate: 0.0,
        }),
        ..Offer::default()
    };
    let (_, server) = site.addresses();
    let listener = site.node(SERVER).inside(|| kind::listener((server, 0).into(), false))?;
    let relay = site.relay(contender, listener.local_addr()?)?;
    let before = relay.resources()?;
    let mut after = before;
    // One exchange on each connection, and then one second without exchanges.
    let gap = Duration::from_millis(1);
    let schedule: Schedule = (0..IDLE).map(|at| (gap * at as u32, What::Request(at))).collect();
    let window = (Duration::ZERO, gap * IDLE as u32 + Duration::from_secs(1));
    let done = thread::scope(|scope| {
        let generating = scope.spawn(|| {
            site.node(CLIENT).enter()?;
            let generator = Generator::connect(offer, listener, relay.address)?;
            generator.run(&schedule, window, Duration::ZERO, |opens| {
                if !opens {
                    after = relay.resources()?;
                }
                Ok(())
            })
        });
        generating.join().expect("it does not panic")
    })?;
    if done.completed < IDLE as u64 {
        return Err(io::Error::other(format!(
            "{} of {IDLE} connections had their answer",
            done.completed
        )));
    }
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / IDLE as f64;
    Ok([
        each(before.descriptors, after.descriptors),
        each(before.pipes, after.pipes) / 2.0,
        each(before.rss_kib, after.rss_kib),
    ])
}
