//! Where a configuration comes from, and how a fault in it is shown.

use std::borrow::Cow;
use std::path::PathBuf;

use crate::config::AUTH_VARIABLE;
use crate::config::source::Sources;

/// The command line, or files.
#[derive(Debug)]
pub(crate) enum Origin {
    CommandLine,
    Files(Sources),
}

/// What is wrong with a value, or with the absence of one.
#[derive(Debug)]
pub(crate) struct Fault {
    /// The offset in the files.
    at: Option<usize>,
    /// The key of the value. It is empty if the fault is not in one value.
    key: &'static str,
    problem: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(at: Option<usize>, key: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self {
            at,
            key,
            problem: problem.into(),
        }
    }
}

impl Origin {
    /// Returns the text for the operator, which names the flag or the place in a file.
    pub(crate) fn show(&self, fault: &Fault) -> String {
        let Fault { at, key, problem } = fault;
        match self {
            Self::CommandLine => match *key {
                "" => problem.to_string(),
                "auth" => format!("--auth or {AUTH_VARIABLE}: {problem}"),
                "to" => format!("--remote: {problem}"),
                key => format!("--{}: {problem}", key.replace('_', "-")),
            },
            Self::Files(sources) => {
                let place = sources.place(*at);
                match *key {
                    "" => format!("{place}: {problem}"),
                    key => format!("{place}: {key}: {problem}"),
                }
            }
        }
    }

    /// Returns the folder in which relative paths at this place begin. `None` means the working
    /// directory.
    pub(crate) fn folder_of(&self, at: Option<usize>) -> Option<PathBuf> {
        match self {
            Self::CommandLine => None,
            Self::Files(sources) => sources.folder_of(at?),
        }
    }
}
