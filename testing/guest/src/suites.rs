//! Which tests run in a guest: whole test programs, or parts of them.

use std::time::Duration;

/// Tests of one test program.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    /// The main file of the test program.
    pub(crate) source: &'static str,
    /// Tests whose names contain one of these texts run. Empty means all tests.
    pub(crate) filters: &'static [&'static str],
    /// Tests whose names contain a text do not run, for a reason.
    pub(crate) omitted: &'static [(&'static str, &'static str)],
    /// Whether `--quick` runs this suite.
    pub(crate) quick: bool,
    /// The longest time. An emulated processor is 10 to 30 times slower than a real one.
    pub(crate) limit_seconds: u64,
}

const CORE: &str = "crates/spliceway-core/tests/it/main.rs";
const LIBRARY: &str = "crates/spliceway/tests/it/main.rs";
const KTLS: &str = "testing/ktls/tests/it/main.rs";
const PROGRAM: &str = "crates/spliceway-proxy/tests/it/main.rs";

/// The suite whose tests start programs with the libraries of Go and of Java.
pub(crate) const PEERS: &str = "peers-ktls";

pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "kernel",
        purpose: "what the engine relies on: docs/kernel.md",
        source: CORE,
        filters: &["kernel_"],
        omitted: &[],
        quick: true,
        limit_seconds: 120,
    },
    Suite {
        name: "core",
        purpose: "pipes, pools and transfers",
        source: CORE,
        filters: &[],
        omitted: &[
            ("kernel_", "the suite `kernel` has these tests"),
            ("transfer::", "its tests make no system calls, and would take minutes"),
        ],
        quick: false,
        limit_seconds: 300,
    },
    Suite {
        name: "library",
        purpose: "relays: ends, resets, urgent marks, options, faults, segments",
        source: LIBRARY,
        filters: &[],
        omitted: &[
            ("pitfalls::urgent", "the suite `urgent` has these tests"),
            ("pitfalls::ended", "the suite `urgent` has these tests"),
            (
                "unprivileged::three_hundred",
                "300 relays at once took more than ten minutes",
            ),
        ],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: "urgent",
        purpose: "relays: urgent marks, and ends in the middle of a stream",
        source: LIBRARY,
        filters: &["pitfalls::urgent", "pitfalls::ended"],
        omitted: &[],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: "forward",
        purpose: "the program forwards TCP and Unix sockets",
        source: PROGRAM,
        filters: &["forward::"],
        omitted: &[],
        quick: false,
        limit_seconds: 300,
    },
    Suite {
        name: "handover",
        purpose: "upgrades of the program",
        source: PROGRAM,
        filters: &["handover::"],
        omitted: &[],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: "transparent",
        purpose: "connections that a firewall redirects",
        source: PROGRAM,
        filters: &["transparent::"],
        omitted: &[],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: "udp",
        purpose: "datagrams, also with segmentation offload",
        source: PROGRAM,
        filters: &["udp"],
        omitted: &[],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: "program-ktls",
        purpose: "sessions of the program that switch to kernel TLS, and their benchmark",
        source: PROGRAM,
        filters: &["tls::kernel", "tls::plans::drawn_sessions_in", "bench::kernel_tls"],
        omitted: &[],
        quick: false,
        limit_seconds: 600,
    },
    Suite {
        name: PEERS,
        purpose: "sessions with other libraries of TLS that switch to kernel TLS",
        source: PROGRAM,
        filters: &["tls::peers"],
        omitted: &[],
        quick: false,
        limit_seconds: 1_200,
    },
    Suite {
        name: "ktls",
        purpose: "relays with kernel TLS, and sessions generated at random",
        source: KTLS,
        filters: &[],
        omitted: &[],
        quick: false,
        limit_seconds: 1_800,
    },
];

impl Suite {
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_seconds)
    }

    /// Returns the arguments of the test program. `only` further selects tests by their names.
    pub(crate) fn arguments(&self, only: Option<&str>) -> Vec<String> {
        let mut arguments = vec!["--show-output".to_owned()];
        match only {
            Some(only) => arguments.push(only.to_owned()),
            None => arguments.extend(self.filters.iter().map(ToString::to_string)),
        }
        for (test, _) in self.omitted {
            arguments.extend(["--skip".to_owned(), (*test).to_owned()]);
        }
        arguments
    }

    /// Returns the folder of the package, from the root of the repository. Tests run there.
    pub(crate) fn package(&self) -> &'static str {
        let end = self.source.find("/tests/").or_else(|| self.source.find("/src/"));
        &self.source[..end.unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_suites_differ() {
        let mut names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITES.len());
    }

    #[test]
    fn omitted_tests_become_arguments() {
        let core = &SUITES[1];
        assert_eq!(core.arguments(None)[..3], ["--show-output", "--skip", "kernel_"]);
        assert_eq!(core.package(), "crates/spliceway-core");
    }
}
