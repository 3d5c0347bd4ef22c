//! `spliceway doctor`: tries the kernel behaviour that zero copy relies on, and says what is in its
//! way. It uses loopback only and leaves nothing behind.

mod finding;
mod loopback;
mod machine;
mod more;
mod notes;
mod pipes;
mod report;
mod sockets;
mod transparent;

use std::io;
use std::process::ExitCode;

use finding::{Check, Finding, Section, Verdict};
use report::Report;

pub use notes::{Mark, Note, report_notes};
pub use report::{Form, Subject};
pub use transparent::Way;

/// What the command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoctorCommand {
    /// How to print the report.
    pub form: Form,
    /// Also use up the pipe pages of this user for a moment.
    pub exhaust: bool,
    /// Check what transparent proxying needs, instead of zero copy.
    pub transparent: Option<Way>,
}

/// Runs every check and prints what it found. The code is 0 if zero copy works, and 1 if a relay
/// would copy, or if the checks cannot tell. For transparent proxying, the code is 0 if nothing is
/// missing. `sessions` is the number of sessions that a service could have at the same time.
///
/// # Errors
/// Returns an error if the report cannot be printed.
pub fn run(command: DoctorCommand, sessions: usize) -> io::Result<ExitCode> {
    let (subject, sections) = match command.transparent {
        Some(way) => {
            let title = "Transparent proxying";
            let checks = transparent::checks(way);
            (Subject::Transparent, vec![Section { title, checks }])
        }
        None => (Subject::ZeroCopy, sections(command.exhaust, sessions).into()),
    };
    let mut report = Report::new(subject);
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
    Ok(match report.print(command.form)? {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::CannotTell | Verdict::Differs => ExitCode::FAILURE,
    })
}

fn sections(exhaust: bool, sessions: usize) -> [Section; 4] {
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
            checks: machine::checks(sessions),
        },
    ]
}
