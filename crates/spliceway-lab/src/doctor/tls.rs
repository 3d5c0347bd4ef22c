//! Prints what the caller has found out about certificates, in the form of the other checks.

use std::io;
use std::process::ExitCode;

use super::finding::{Finding, Verdict};
use super::report::{Report, Subject};

/// How good something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nothing is wrong.
    Ok,
    /// Some clients may refuse it.
    Warning,
    /// The program or every client refuses it.
    Fault,
}

/// What the caller has found out.
#[derive(Debug)]
pub struct Note {
    /// How good it is.
    pub mark: Mark,
    /// Identifies the kind of check in the output.
    pub check: &'static str,
    /// What the note is about.
    pub title: String,
    /// What was found, and what helps.
    pub text: String,
}

/// Prints a section for each service. The code is 0 without a fault.
///
/// # Errors
/// Returns an error if the report cannot be printed.
pub fn report_tls(json: bool, sections: Vec<(String, Vec<Note>)>) -> io::Result<ExitCode> {
    let mut report = Report::begin(json, Subject::Tls);
    for (title, notes) in sections {
        report.section(title);
        for note in notes {
            let finding = Finding::judged(note.mark == Mark::Ok, "", note.text);
            report.add((note.check, note.title, note.mark == Mark::Fault), finding);
        }
    }
    Ok(match report.end()? {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::CannotTell | Verdict::Differs => ExitCode::FAILURE,
    })
}
