//! What results depend on besides the code.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::machine;

/// Results of one file are measured under the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// Processor, cores, kernel.
    pub(crate) machine: String,
    /// Congestion control, and where that is from.
    pub(crate) conditions: String,
    /// Those that change what splices and copies cost.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Versions of what spliceway is compared with, where they are there.
    pub(crate) peers: BTreeMap<String, String>,
}

const SYSCTLS: [&str; 5] = [
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "fs.pipe-max-size",
    "fs.pipe-user-pages-soft",
    "fs.pipe-user-pages-hard",
];

const CRATES: [&str; 4] = ["tokio", "realm_io", "tokio-splice", "tokio-splice2"];

/// Each with what makes it say its version, be it to its errors.
const PROGRAMS: [(&str, &str); 4] = [("haproxy", "-v"), ("nginx", "-v"), ("go", "version"), ("k6", "version")];

/// The crates built into this program.
const LOCK: &str = include_str!("../../../Cargo.lock");

impl Environment {
    pub(crate) fn of_this_machine(conditions: String) -> Self {
        let sysctl = |name: &&str| {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            let value = fs::read_to_string(path).ok()?;
            Some((name.to_string(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        };
        let published = CRATES.iter().filter_map(|name| Some((name.to_string(), locked(name)?)));
        let programs = PROGRAMS
            .iter()
            .filter_map(|(name, argument)| Some((name.to_string(), version(name, argument)?)));
        Self {
            machine: machine::describe(),
            conditions,
            sysctls: SYSCTLS.iter().filter_map(sysctl).collect(),
            peers: published.chain(programs).collect(),
        }
    }
}

/// The version of a crate.
fn locked(name: &str) -> Option<String> {
    let package = format!("name = \"{name}\"\nversion = \"");
    let (_, rest) = LOCK.split_once(&package)?;
    Some(rest.split_once('"')?.0.into())
}

/// The first number with a dot of what a program says of itself: "nginx/1.22.1", "go1.26.8".
fn version(program: &str, argument: &str) -> Option<String> {
    let said = Command::new(program).arg(argument).output().ok()?;
    let said = [said.stdout, said.stderr].concat();
    number_in(&String::from_utf8_lossy(&said))
}

fn number_in(said: &str) -> Option<String> {
    let mut words = said.split_whitespace().filter(|word| word.contains('.'));
    words.find_map(|word| Some(word[word.find(|c: char| c.is_ascii_digit())?..].into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_crate_is_that_of_the_lock_file() {
        assert!(locked("tokio").is_some_and(|version| version.starts_with("1.")));
        assert_eq!(locked("no-such-crate"), None);
    }

    #[test]
    fn a_version_is_found_in_what_programs_say() {
        for (said, expected) in [
            (
                "HAProxy version 2.6.12-1 2023/12/16 - https://haproxy.org/",
                Some("2.6.12-1"),
            ),
            ("nginx version: nginx/1.22.1", Some("1.22.1")),
            ("go version go1.26.8 linux/amd64", Some("1.26.8")),
            ("usage: none", None),
        ] {
            assert_eq!(number_in(said).as_deref(), expected, "{said}");
        }
    }
}
