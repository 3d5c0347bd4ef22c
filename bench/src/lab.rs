//! `lab`: saturation tests on loopback, with one core for the relay and one for the load. They show
//! a relay's highest rate, not its cost for a user.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Args;
use spliceway_machine as machine;

use crate::figures::Figures;
use crate::load::{self, Profile};
use crate::results::Measured;
use crate::site::Site;
use crate::stop::Rule;
use crate::{field, programs};

/// The measurements to make, and where to write them.
#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these tests, by name or by a prefix of it: bulk, "round trips", sweep, churn, k6.
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
        all.extend(tables(&field::measure(&site, load, &[], Rule::fixed(options.rounds))));
    }
    if options.names("k6") {
        all.extend(programs::measure(
            &site,
            Rule::fixed(options.rounds),
            &["k6".into()],
            &[],
        )?);
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
