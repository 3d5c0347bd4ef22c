//! The environment: everything besides the code that affects the results.

use std::collections::BTreeMap;
use std::process::Command;

use serde::{Deserialize, Serialize};
use spliceway_machine as machine;

/// The machine and the peers of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// Processor, cores, kernel.
    pub(crate) machine: String,
    /// Versions of the installed peers.
    pub(crate) peers: BTreeMap<String, String>,
}

/// Where a row comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The commit that was measured. It is empty if the run's own origin applies.
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) machine: String,
}

impl Origin {
    /// Returns the commit that is checked out, today's date, and this machine. A part that cannot
    /// be found out is empty.
    pub(crate) fn now() -> Self {
        let said = |program: &str, arguments: &[&str]| {
            let said = Command::new(program).args(arguments).output();
            said.map_or_else(
                |_| String::new(),
                |said| String::from_utf8_lossy(&said.stdout).trim().to_owned(),
            )
        };
        Self {
            commit: said("git", &["rev-parse", "--short", "HEAD"]),
            date: said("date", &["-u", "-I"]),
            machine: machine::describe(),
        }
    }
}

const CRATES: [&str; 4] = ["tokio", "realm_io", "tokio-splice", "tokio-splice2"];

/// Each program with the argument that prints its version, on standard output or standard error.
const PROGRAMS: [(&str, &str); 3] = [("haproxy", "-v"), ("nginx", "-v"), ("go", "version")];

/// The crates built into this program.
const LOCK: &str = include_str!("../../Cargo.lock");

impl Environment {
    pub(crate) fn of_this_machine() -> Self {
        let crates = CRATES.iter().filter_map(|name| Some((name.to_string(), locked(name)?)));
        let programs = PROGRAMS
            .iter()
            .filter_map(|(name, argument)| Some((name.to_string(), version(name, argument)?)));
        Self {
            machine: machine::describe(),
            peers: crates.chain(programs).collect(),
        }
    }
}

/// Returns the version of a crate.
fn locked(name: &str) -> Option<String> {
    let package = format!("name = \"{name}\"\nversion = \"");
    let (_, rest) = LOCK.split_once(&package)?;
    Some(rest.split_once('"')?.0.into())
}

/// Returns the first dotted number that a program prints: "nginx/1.22.1", "go1.26.8".
fn version(program: &str, argument: &str) -> Option<String> {
    let said = Command::new(program).arg(argument).output().ok()?;
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let mut words = said.split_whitespace().filter(|word| word.contains('.'));
    words.find_map(|word| Some(word[word.find(|c: char| c.is_ascii_digit())?..].into()))
}
