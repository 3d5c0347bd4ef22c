//! System calls and instructions of a relay for each unit of work. They are counts, so they show
//! differences that times do not. `strace` counts system calls, and valgrind counts instructions in
//! user space.
//!
//! Each count is the difference between two runs of different length. So it leaves out work that is
//! done only once.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use spliceway_load::{Generator, Offer, Requests, Schedule, Streams, What};

use crate::contender::{self, Contender};
use crate::figures::Figures;
use crate::kind;
use crate::relay::Relay;
use crate::servers::{Folder, unless_installed};
use crate::site::{CLIENT, RELAY, SERVER, Site};

/// A unit of work that a relay repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A request of this size and its response, on an open connection.
    Request(usize),
    /// A connection with one exchange of 1 KiB.
    Connection,
    /// A MiB in one direction, in writes of 64 KiB.
    Mebibyte,
}

const UNITS: [(Unit, &str); 4] = [
    (Unit::Request(64), "counts, request of 64 B"),
    (Unit::Request(16 << 10), "counts, request of 16 KiB"),
    (Unit::Connection, "counts, connection"),
    (Unit::Mebibyte, "counts, MiB of bulk"),
];

const WRITE: usize = 64 << 10;
const WRITES_PER_UNIT: usize = (1 << 20) / WRITE;
/// Units of the shorter run.
const SHORT: usize = 20;

impl Unit {
    /// Returns the units of the longer run, and the time for one. A relay under an instrument needs
    /// up to some ms for a message.
    fn pace(self) -> (usize, Duration) {
        let (units, millis) = match self {
            Self::Mebibyte => (100, 48),
            _ => (220, 8),
        };
        (units, Duration::from_millis(millis))
    }
}

/// An instrument that counts the work of a process and of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instrument {
    Strace,
    Valgrind,
}

impl Instrument {
    const ALL: [(Self, &'static str, &'static str); 2] = [
        (Self::Strace, "strace", "system calls each"),
        (Self::Valgrind, "valgrind", "instructions in user space each"),
    ];

    /// Returns the words before the command line of the process. With `-D`, the process is the
    /// child, and not strace.
    fn words(self, folder: &Path) -> Vec<String> {
        let folder = folder.display();
        let words = match self {
            Self::Strace => format!("strace -D -f -q -c -U name,calls -o {folder}/count"),
            Self::Valgrind => format!(
                "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \
                 --trace-children=yes --log-file={folder}/count.%p"
            ),
        };
        words.split_whitespace().map(str::to_owned).collect()
    }

    /// Finds the count in a file that the instrument has completed.
    fn parse(self, said: &str) -> Option<u64> {
        match self {
            Self::Strace => said
                .lines()
                .find_map(|line| line.strip_prefix("total ")?.trim().parse().ok()),
            Self::Valgrind => {
                let (_, count) = said.split_once("refs:")?;
                count.lines().next()?.trim().replace(',', "").parse().ok()
            }
        }
    }

    /// Waits until the instrument has written its count. It does that after the relay has ended.
    fn count(self, folder: &Path) -> io::Result<u64> {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let mut counts = Vec::new();
            for file in fs::read_dir(folder)? {
                let file = file?;
                if file.file_name().as_encoded_bytes().starts_with(b"count") {
                    counts.push(self.parse(&fs::read_to_string(file.path())?));
                }
            }
            let complete: Option<Vec<u64>> = counts.into_iter().collect();
            match complete.filter(|counts| !counts.is_empty()) {
                Some(counts) => return Ok(counts.iter().sum()),
                None if Instant::now() > patience => return Err(io::Error::other("the instrument reported no count")),
                None => thread::yield_now(),
            }
        }
    }
}

/// Returns the titles that a run can ask for.
pub(crate) fn titles() -> impl Iterator<Item = &'static str> {
    UNITS.iter().map(|(_, title)| *title)
}

/// Returns the title of the table of one instrument.
pub(crate) fn calls_of(title: &str) -> String {
    format!("{title}: {}", Instrument::ALL[0].2)
}

/// Returns about how long the counts of one title take.
pub(crate) fn seconds(contenders: &[String]) -> f64 {
    /// Two runs with all their messages, and the start of two relays.
    const EACH: f64 = 6.0;
    let contenders = contender::asked(contender::for_counts(), contenders).len();
    (contenders * Instrument::ALL.len()) as f64 * EACH
}

/// Counts for the unit of a title.
pub(crate) fn measure(site: &Site, title: &str, contenders: &[String]) -> io::Result<Vec<Figures>> {
    let named = UNITS.iter().find(|(_, name)| *name == title);
    let (unit, _) = named.expect("it is one of the titles");
    let mut all = Vec::new();
    for (instrument, program, counted) in Instrument::ALL {
        if let Some(why) = unless_installed(program) {
            eprintln!("{title}: {why} (Debian package {program})");
            continue;
        }
        let decimals = if instrument == Instrument::Strace { 1 } else { 0 };
        let mut figures = Figures::new(format!("{title}: {counted}"), counted, decimals);
        for contender in contender::asked(contender::for_counts(), contenders) {
            match difference(site, &contender, *unit, instrument) {
                Ok(count) => figures.add(&contender.name, count),
                Err(error) => figures.skip(&contender.name, error.to_string()),
            }
        }
        all.push(figures);
    }
    Ok(all)
}

fn difference(site: &Site, contender: &Contender, unit: Unit, instrument: Instrument) -> io::Result<f64> {
    let (most, _) = unit.pace();
    let [short, long] = [SHORT, most].map(|units| counted(site, contender, unit, units, instrument));
    Ok((long? as f64 - short? as f64) / (most - SHORT) as f64)
}

/// Counts a relay's whole life, with this many units of work.
fn counted(site: &Site, contender: &Contender, unit: Unit, units: usize, instrument: Instrument) -> io::Result<u64> {
    let folder = Folder::new()?;
    let (listen, server) = site.addresses();
    let listener = site.node(SERVER).inside(|| kind::listener((server, 0).into(), false))?;
    let targets = [listener.local_addr()?];
    let words = instrument.words(folder.path());
    let relay = site
        .node(RELAY)
        .inside(|| Relay::start_under(&words, contender.kind, listen, &targets))?;
    let (offer, schedule) = work(unit, units);
    let end = schedule.last().map_or(Duration::ZERO, |(at, _)| *at) + Duration::from_millis(1);
    let done = thread::scope(|scope| {
        let generating = scope.spawn(|| {
            site.node(CLIENT).enter()?;
            let generator = Generator::connect(offer, listener, relay.address)?;
            let patience = Duration::from_secs(5);
            generator.run(&schedule, (Duration::ZERO, end), patience, |_| Ok(()))
        });
        generating.join().expect("it does not panic")
    })?;
    drop(relay);
    if done.completed != schedule.len() as u64 {
        return Err(io::Error::other(format!(
            "{} of {} messages arrived",
            done.completed,
            schedule.len()
        )));
    }
    instrument.count(folder.path())
}

/// Returns the connections, and the times of the messages: one after the other.
fn work(unit: Unit, units: usize) -> (Offer, Schedule) {
    let (_, pace) = unit.pace();
    let (offer, what, messages, gap) = match unit {
        Unit::Request(size) => {
            let requests = Some(Requests {
                connections: 1,
                size,
                rate: 0.0,
            });
            let offer = Offer {
                requests,
                ..Offer::default()
            };
            (offer, What::Request(0), units, pace)
        }
        Unit::Connection => {
            let offer = Offer {
                connects: Some(0.0),
                ..Offer::default()
            };
            (offer, What::Connect, units, pace)
        }
        Unit::Mebibyte => {
            let streams = Some(Streams {
                flows: 1,
                size: WRITE,
                rate: 0.0,
                up: true,
            });
            let offer = Offer {
                streams,
                ..Offer::default()
            };
            let writes = WRITES_PER_UNIT as u32;
            (offer, What::Write(0), units * WRITES_PER_UNIT, pace / writes)
        }
    };
    (offer, (0..messages as u32).map(|at| (gap * at, what)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_the_output_of_the_instruments() {
        let said =
            "syscall       calls\n------- ---------\nread              3\n------- ---------\ntotal             29\n";
        assert_eq!(Instrument::Strace.parse(said), Some(29));
        assert_eq!(Instrument::Strace.parse("syscall  calls\n"), None);
        let said = "==7== Cachegrind\n==7== I   refs:      22,853,406\n==7== \n";
        assert_eq!(Instrument::Valgrind.parse(said), Some(22_853_406));
        assert_eq!(Instrument::Valgrind.parse("==7== Cachegrind\n"), None);
    }

    #[test]
    fn the_messages_of_a_unit_follow_each_other() {
        for (unit, _) in UNITS {
            let (_, schedule) = work(unit, 3);
            let per_unit = if unit == Unit::Mebibyte { WRITES_PER_UNIT } else { 1 };
            assert_eq!(schedule.len(), 3 * per_unit);
            assert!(schedule.windows(2).all(|two| two[0].0 < two[1].0));
        }
    }
}
