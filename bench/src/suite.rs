//! `all`: every scenario through every relay, and the documents of what came of it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::arms::Arm;
use crate::machine;
use crate::pool;
use crate::report::apart::Apart;
use crate::report::environment::Environment;
use crate::report::json::{self, Results};
use crate::report::{self, RESULTS};
use crate::scenario::{self, Scenario};
use crate::scenarios::bulk::Bulk;
use crate::scenarios::churn::Churn;
use crate::scenarios::duplex::Duplex;
use crate::scenarios::fair::Fair;
use crate::scenarios::idle::Idle;
use crate::scenarios::k6::K6;
use crate::scenarios::mixed::Mixed;
use crate::scenarios::more;
use crate::scenarios::rr::RequestResponse;
use crate::scenarios::sweep::Sweep;
use crate::scenarios::veth::Veth;

/// What to measure, and where to write it.
#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved rounds; of writes of 2 to 128 KiB four times as many.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// One round of a few small scenarios through a few relays: that it works, and not how fast.
    #[arg(long)]
    quick: bool,
    /// Keeps the results of scenarios that are in the file already, and measures those that are not.
    #[arg(long)]
    resume: bool,
    /// Measures these anew, by their names or beginnings of them (`rr-64`), and keeps the results of all others.
    #[arg(long, num_args = 1.., conflicts_with = "resume", value_name = "ID-PREFIX")]
    only: Vec<String>,
    /// The folder of `benchmarks.md`; results and plots go to `benchmarks` in it.
    #[arg(long, default_value = "docs")]
    out: PathBuf,
}

/// The relays of a quick run.
const FEW: &[Arm] = &[Arm::Direct, Arm::Tokio, Arm::Copy256k, Arm::Spliceway];

/// Everything that is measured, in the order of the documents. Each run takes a second or so: long against what starts with it, short
/// enough that a round through all arms sees one state of the machine.
pub(crate) fn scenarios() -> Vec<Box<dyn Scenario>> {
    let mut all: Vec<Box<dyn Scenario>> = Vec::new();
    for flows in [1, 8, 64, 512] {
        all.push(Box::new(Bulk { flows, bytes: 2 << 30 }));
    }
    for (size, trips) in [
        (1, 40_000),
        (64, 40_000),
        (1024, 40_000),
        (4096, 40_000),
        (16 << 10, 25_000),
        (32 << 10, 15_000),
        (64 << 10, 8_000),
    ] {
        for connections in [1, 8, 64, 512] {
            all.push(Box::new(RequestResponse {
                connections,
                size,
                // One at a time leaves both cores idle in between.
                trips: if connections == 1 { trips / 6 } else { trips },
            }));
        }
    }
    all.extend(Sweep::all(1 << 17, 2 << 30).map(|one| Box::new(one) as Box<dyn Scenario>));
    for flows in [1, 64] {
        all.push(Box::new(Duplex { flows, bytes: 2 << 30 }));
    }
    all.extend(Veth::variants(1 << 30).map(|one| Box::new(one) as Box<dyn Scenario>));
    all.push(Box::new(Churn {
        connections: 32,
        count: 10_000,
    }));
    // As fast as it goes, and 0.75 GiB/s, which every relay has time for.
    for pace in [None, Some(3 << 28)] {
        all.push(Box::new(Fair {
            flows: 1,
            pace,
            connections: 1_000,
            trips_per_second: 2_000,
            seconds: 2.0,
        }));
    }
    all.push(Box::new(Mixed {
        connections: 64,
        transfers: 3_000,
        seed: 1,
    }));
    all.push(Box::new(Idle { connections: 3_000 }));
    // As many as 20,000 descriptors are enough for, two of the relay's each.
    all.push(Box::new(Idle { connections: 9_900 }));
    all.push(Box::new(K6 { seconds: 3 }));
    all
}

/// Some of each kind, small.
fn quick_scenarios() -> Vec<Box<dyn Scenario>> {
    let mut all: Vec<Box<dyn Scenario>> = Vec::new();
    for flows in [1, 8] {
        all.push(Box::new(Bulk { flows, bytes: 64 << 20 }));
    }
    for (size, connections) in [(64, 8), (64, 64), (64 << 10, 8)] {
        all.push(Box::new(RequestResponse {
            connections,
            size,
            trips: 1_000,
        }));
    }
    all.push(Box::new(Churn {
        connections: 8,
        count: 200,
    }));
    all.push(Box::new(Idle { connections: 50 }));
    all
}

/// What is no relay's: its name, and how it is measured, in so many rounds.
type Beside = (&'static str, fn(usize) -> io::Result<Apart>);

const BESIDE: [Beside; 2] = [
    ("pool", |rounds| Ok(pool::measure(pool::Operations::ALL, rounds))),
    // Three rounds at most: an answer that waits for a timer of 200 ms does so in every one.
    ("more", |rounds| more::measure(100_000_000, 10, rounds.min(3))),
];

const QUICK_BESIDE: [Beside; 2] = [
    ("pool", |rounds| Ok(pool::measure(pool::Operations::FEW, rounds))),
    ("more", |rounds| more::measure(1_000_000, 2, rounds)),
];

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    let (all, arms, beside, rounds) = match options.quick {
        true => (quick_scenarios(), FEW, QUICK_BESIDE, 1),
        false => (scenarios(), Arm::RELAYS, BESIDE, options.rounds),
    };
    machine::raise_descriptor_limit(0)?;
    let path = options.out.join(RESULTS);
    let mut results = begin(options, &path, Environment::of_this_machine(conditions))?;
    let command = options.command();
    if !results.commands.contains(&command) {
        results.commands.push(command);
    }
    let due: Vec<_> = all
        .iter()
        .filter(|one| options.is_due(one.as_ref(), rounds, &results))
        .collect();
    let beside: Vec<_> = beside
        .iter()
        .filter(|(id, _)| options.is_due_beside(id, &results))
        .collect();
    if due.is_empty() && beside.is_empty() {
        eprintln!("spliceway-bench: nothing to measure");
    }
    let started = Instant::now();
    for (index, due_now) in due.iter().enumerate() {
        let begun = Instant::now();
        let measured: json::Measured = scenario::run(due_now.as_ref(), arms, rounds)?.into();
        eprintln!(
            "{}/{} {}: {} relays, {} skipped, {:.1} s",
            index + 1,
            due.len(),
            measured.id,
            measured.rows.len(),
            measured.skipped.len(),
            begun.elapsed().as_secs_f64()
        );
        results.put(measured);
        let place = |id: &str| all.iter().position(|one| one.id() == id);
        results
            .scenarios
            .sort_by_key(|one| place(&one.id).unwrap_or(usize::MAX));
        results.write(&path)?;
    }
    for (id, measure) in beside {
        results.put_apart(measure(rounds)?);
        results.write(&path)?;
        eprintln!("{id}");
    }
    eprintln!("{} scenarios in {:.0} s", due.len(), started.elapsed().as_secs_f64());
    report::write_documents(&results, &options.out)
}

/// The documents again, from the results.
pub(crate) fn report(out: &Path) -> io::Result<()> {
    let path = out.join(RESULTS);
    match Results::read(&path)? {
        Some(results) => report::write_documents(&results, out),
        None => Err(io::Error::other(format!(
            "{}: no results; `all` makes them",
            path.display()
        ))),
    }
}

/// The results to add to.
fn begin(options: &Options, path: &Path, environment: Environment) -> io::Result<Results> {
    let before = match options.resume || !options.only.is_empty() {
        true => Results::read(path)?,
        false => None,
    };
    match before {
        None => Ok(Results::new(environment)),
        // Ratios hold within one machine and its settings.
        Some(before) if before.environment != environment => Err(io::Error::other(format!(
            "{}: its results are from {:?}, and this is {environment:?}; they do not go into one file",
            path.display(),
            before.environment
        ))),
        Some(before) => Ok(before),
    }
}

impl Options {
    fn is_due(&self, scenario: &dyn Scenario, rounds: usize, results: &Results) -> bool {
        let (id, title) = (scenario.id(), scenario.title());
        if !self.only.is_empty() {
            return self.names(&id);
        }
        // The same name with other amounts, or fewer rounds, is not the same.
        let is_there =
            |one: &json::Measured| one.id == id && one.title == title && one.rounds >= scenario.rounds(rounds);
        !(self.resume && results.scenarios.iter().any(is_there))
    }

    fn is_due_beside(&self, id: &str, results: &Results) -> bool {
        if !self.only.is_empty() {
            return self.names(id);
        }
        !(self.resume && results.apart.iter().any(|one| one.id == id))
    }

    fn names(&self, id: &str) -> bool {
        self.only.iter().any(|name| json::is_of(id, name))
    }

    /// For readers to repeat. Where it wrote to is nobody's business.
    fn command(&self) -> String {
        let features = if cfg!(feature = "peers") {
            " --features peers"
        } else {
            ""
        };
        let mut command = format!("cargo run --release -p spliceway-bench{features} -- all");
        match self.quick {
            true => command += " --quick",
            false => command += &format!(" --rounds {}", self.rounds),
        }
        if !self.only.is_empty() {
            command += &format!(" --only {}", self.only.join(" "));
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        let words = ["all"].iter().chain(words);
        Cli::try_parse_from(words).expect("valid").options
    }

    fn due(words: &[&str], results: &Results) -> usize {
        let options = options(words);
        let all = scenarios();
        let due = all
            .iter()
            .filter(|one| options.is_due(one.as_ref(), options.rounds, results));
        due.count()
    }

    #[test]
    fn names_of_scenarios_differ() {
        for all in [scenarios(), quick_scenarios()] {
            let mut ids: Vec<_> = all.iter().map(|one| one.id()).collect();
            ids.sort();
            let count = ids.len();
            ids.dedup();
            assert_eq!(ids.len(), count);
        }
    }

    #[test]
    fn resuming_measures_what_is_missing_or_has_fewer_rounds_and_only_measures_what_is_named() {
        let first = &scenarios()[0];
        let mut results = Results::new(Environment::default());
        results.put(json::Measured {
            id: first.id(),
            title: first.title(),
            rounds: 5,
            figures: Vec::new(),
            rows: Vec::new(),
            skipped: Vec::new(),
        });
        let all = scenarios().len();
        assert_eq!(due(&[], &results), all);
        assert_eq!(due(&["--resume"], &results), all - 1);
        assert_eq!(due(&["--resume", "--rounds", "6"], &results), all);
        assert_eq!(due(&["--only", "bulk-1", "rr-1"], &results), 1 + 4);
        assert_eq!(due(&["--only", "pool"], &results), 0);
    }

    #[test]
    fn what_is_no_relays_is_due_unless_it_is_there_or_others_are_named() {
        let mut results = Results::new(Environment::default());
        results.put_apart(Apart::new("pool", String::new(), 5, &[], ["", ""]));
        let due = |words: &[&str]| BESIDE.map(|(id, _)| options(words).is_due_beside(id, &results));
        assert_eq!(due(&[]), [true, true]);
        assert_eq!(due(&["--resume"]), [false, true]);
        assert_eq!(due(&["--only", "pool", "bulk"]), [true, false]);
    }

    #[test]
    fn results_of_another_machine_are_not_added_to() {
        let folder = std::env::temp_dir().join(format!("spliceway-suite-{}", std::process::id()));
        let path = folder.join(RESULTS);
        Results::new(Environment::default()).write(&path).expect("written");
        let other = Environment {
            machine: "another".into(),
            ..Environment::default()
        };
        let begun =
            |words: &[&str], environment: &Environment| begin(&options(words), &path, environment.clone()).is_ok();
        let outcomes = [
            begun(&["--resume"], &other),
            begun(&["--resume"], &Environment::default()),
            begun(&[], &other),
        ];
        std::fs::remove_dir_all(&folder).expect("ours to remove");
        assert_eq!(outcomes, [false, true, true]);
    }
}
