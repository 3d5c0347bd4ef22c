//! `spliceway doctor`: tries the kernel behaviour that zero copy relies on, and says what is in its
//! way. It uses loopback only and leaves nothing behind.

mod finding;
mod loopback;
mod machine;
mod more;
mod pipes;
mod report;
mod sockets;
mod transparent;

use std::process::ExitCode;

use finding::{Check, Finding, Section, Verdict};
use report::{Report, Subject};

pub(crate) use transparent::Way;

/// What the command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoctorCommand {
    /// Print JSON.
    pub(crate) json: bool,
    /// Also use up the pipe pages of this user for a moment.
    pub(crate) exhaust: bool,
    /// Check what transparent proxying needs, instead of zero copy.
    pub(crate) transparent: Option<Way>,
}

/// Runs every check and prints what it found. The code is 0 if zero copy works, and 1 if a relay
/// would copy, or if the checks cannot tell. For transparent proxying, the code is 0 if nothing is
/// missing.
pub(crate) fn run(command: DoctorCommand) -> ExitCode {
    // A service also raises its soft limit, so only the hard limit matters.
    let descriptors = crate::limits::raise_descriptors(None).unwrap_or(0);
    let (subject, sections) = match command.transparent {
        Some(way) => {
            let title = "Transparent proxying";
            let checks = transparent::checks(way);
            (Subject::Transparent, vec![Section { title, checks }])
        }
        None => (Subject::ZeroCopy, sections(command.exhaust, descriptors).into()),
    };
    let mut report = Report::begin(command.json, subject);
    for section in sections {
        report.section(section.title);
        for check in section.checks {
            let finding = if check.needs_splice && !report.is_ok("splice") {
                Finding::unknown("the check [splice] did not succeed")
            } else {
                (check.run)().unwrap_or_else(|error| Finding::unknown(error.to_string()))
            };
            report.add((check.name, check.title, check.decides), finding);
        }
    }
    match report.end() {
        Ok(Verdict::Ok) => ExitCode::SUCCESS,
        Ok(Verdict::CannotTell | Verdict::Differs) => ExitCode::FAILURE,
        Err(error) => {
            crate::log::announce(&format_args!("spliceway: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn sections(exhaust: bool, descriptors: usize) -> [Section; 4] {
    [
        Section {
            title: "Zero copy",
            checks: sockets::zero_copy(),
        },
        Section {
            title: "Pipes",
            checks: pipes::checks(exhaust),
        },
        Section {
            title: "What splice does",
            checks: [sockets::behaviour(), more::checks()]
                .into_iter()
                .flatten()
                .map(Check::after_splice)
                .collect(),
        },
        Section {
            title: "This machine",
            checks: machine::checks(descriptors),
        },
    ]
}
