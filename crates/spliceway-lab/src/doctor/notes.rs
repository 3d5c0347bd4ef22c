//! Prints what the caller has found out, in the form of the other checks.

use std::io;
use std::process::ExitCode;

use super::finding::{Finding, Verdict};
use super::report::{Form, Report, Subject};

/// How good something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nothing is wrong.
    Ok,
    /// Nothing is wrong, and the operator should know it.
    Remark,
    /// It works, and may fail for some clients or later.
    Warning,
    /// The program or every client refuses it.
    Fault,
}

/// What the caller has found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// How good it is.
    pub mark: Mark,
    /// Identifies the kind of check in the output.
    pub check: &'static str,
    /// What the note is about.
    pub title: String,
    /// What was found.
    pub text: String,
    /// What helps, unless the text says it.
    pub advice: Option<String>,
}

impl Note {
    /// Returns a note without advice.
    pub fn new(mark: Mark, check: &'static str, title: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            mark,
            check,
            title: title.into(),
            text: text.into(),
            advice: None,
        }
    }

    /// Adds what helps.
    #[must_use]
    pub fn advise(self, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Self { advice, ..self }
    }
}

/// Prints sections of notes. The code is 0 without a fault.
///
/// # Errors
/// Returns an error if the report cannot be printed.
pub fn report_notes(subject: Subject, form: Form, sections: Vec<(String, Vec<Note>)>) -> io::Result<ExitCode> {
    let mut report = Report::new(subject);
    for (title, notes) in sections {
        report.section(title);
        for note in notes {
            let is_fine = matches!(note.mark, Mark::Ok | Mark::Remark);
            let mut finding = Finding::judged(is_fine, "", note.text);
            finding.is_remark = note.mark == Mark::Remark;
            finding.advice = note.advice;
            report.add((note.check, note.title, note.mark == Mark::Fault), finding);
        }
    }
    Ok(match report.print(form)? {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::CannotTell | Verdict::Differs => ExitCode::FAILURE,
    })
}
