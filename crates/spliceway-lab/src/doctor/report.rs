//! Prints findings, as text of at most 80 columns or as JSON.

use std::borrow::Cow;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::finding::{Finding, Verdict};
use crate::report::{System, wrapped};

/// The column where the details of a check begin.
const INDENT: usize = 13;

/// What the checks are about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    ZeroCopy,
    Transparent,
    Tls,
}

/// The checks so far.
pub(super) struct Report {
    is_json: bool,
    subject: Subject,
    section: Cow<'static, str>,
    entries: Vec<Entry>,
    /// The first error of standard output.
    failed: Option<io::Error>,
}

#[derive(Serialize)]
struct Entry {
    section: Cow<'static, str>,
    check: &'static str,
    title: Cow<'static, str>,
    /// Whether the answer is no if this check differs.
    decides: bool,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    kernel: &'a str,
    machine: &'a str,
    user: u32,
    /// `None` if the checks cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    zero_copy: Option<Option<bool>>,
    /// Whether nothing is missing for transparent proxying.
    #[serde(skip_serializing_if = "Option::is_none")]
    transparent: Option<Option<bool>>,
    /// Whether the certificates have no fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Option<bool>>,
    checks: &'a [Entry],
}

impl Report {
    pub(super) fn begin(is_json: bool, subject: Subject) -> Self {
        let mut report = Self {
            is_json,
            subject,
            section: "".into(),
            entries: Vec::new(),
            failed: None,
        };
        let System { kernel, machine, user } = System::here();
        let version = env!("CARGO_PKG_VERSION");
        report.print(&format!("spliceway {version}, Linux {kernel} {machine}, user {user}\n"));
        report
    }

    /// Begins a section.
    pub(super) fn section(&mut self, title: impl Into<Cow<'static, str>>) {
        self.section = title.into();
        let bold = Style::new().bold();
        self.print(&format!("\n{bold}{}{bold:#}\n", self.section));
    }

    pub(super) fn add(&mut self, check: (&'static str, impl Into<Cow<'static, str>>, bool), finding: Finding) {
        let (name, title, decides) = check;
        let title = title.into();
        let word = self.subject.word(finding.verdict, decides);
        self.print(&shown(word, name, &title, &finding));
        self.entries.push(Entry {
            section: self.section.clone(),
            check: name,
            title,
            decides,
            finding,
        });
    }

    /// Returns whether the check with this name has succeeded.
    pub(super) fn is_ok(&self, check: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.check == check && entry.finding.verdict == Verdict::Ok)
    }

    /// Prints and returns the verdict on the subject.
    ///
    /// # Errors
    /// Returns the first error of standard output.
    pub(super) fn end(mut self) -> io::Result<Verdict> {
        let decisive = self.entries.iter().filter(|entry| entry.decides);
        let verdict = decisive.map(|entry| entry.finding.verdict).max().unwrap_or(Verdict::Ok);
        let names = |is_named: &dyn Fn(&Entry) -> bool| {
            let named = self.entries.iter().filter(|entry| is_named(entry));
            named.map(|entry| entry.check).collect::<Vec<_>>().join(", ")
        };
        let decided = names(&|entry| entry.decides && entry.finding.verdict == verdict);
        let text = match verdict {
            Verdict::Ok if self.subject == Subject::Transparent => {
                "Nothing is missing here for transparent proxying.".to_owned()
            }
            Verdict::CannotTell if self.subject == Subject::Transparent => {
                format!("The checks cannot tell whether something is missing here. See {decided}.")
            }
            Verdict::Differs if self.subject == Subject::Transparent => {
                format!("Something is missing here for transparent proxying. See {decided}.")
            }
            Verdict::Ok if self.subject == Subject::Tls => {
                let warned = names(&|entry| entry.finding.verdict == Verdict::Differs);
                let has = if self.entries.is_empty() {
                    "No service uses TLS."
                } else {
                    "The files of TLS have no fault."
                };
                let see = if warned.is_empty() { "" } else { " See the warnings." };
                format!("{has}{see}")
            }
            Verdict::CannotTell | Verdict::Differs if self.subject == Subject::Tls => {
                "There is a fault, because of which the program or its peers refuse something.".to_owned()
            }
            Verdict::Ok => {
                let differ = names(&|entry| entry.finding.verdict == Verdict::Differs);
                let undecided = names(&|entry| entry.finding.verdict == Verdict::CannotTell);
                let mut text = "Zero copy works here.".to_owned();
                if !differ.is_empty() {
                    text += &format!(" These results differ from what is expected: {differ}.");
                }
                if !undecided.is_empty() {
                    text += &format!(" These checks cannot tell: {undecided}.");
                }
                text
            }
            Verdict::CannotTell => format!("The checks cannot tell whether zero copy works here. See {decided}."),
            Verdict::Differs => format!("Zero copy does not work here, so relays copy. See {decided}."),
        };
        let colour = colour(verdict).bold();
        self.print(&format!("\n{colour}{}{colour:#}\n", wrapped(&text, 0)));
        if self.is_json {
            let System { kernel, machine, user } = System::here();
            let answer = match verdict {
                Verdict::Ok => Some(true),
                Verdict::CannotTell => None,
                Verdict::Differs => Some(false),
            };
            let document = Document {
                version: env!("CARGO_PKG_VERSION"),
                kernel: &kernel,
                machine: &machine,
                user,
                zero_copy: (self.subject == Subject::ZeroCopy).then_some(answer),
                transparent: (self.subject == Subject::Transparent).then_some(answer),
                tls: (self.subject == Subject::Tls).then_some(answer),
                checks: &self.entries,
            };
            let mut text = serde_json::to_string_pretty(&document)?;
            text.push('\n');
            io::stdout().write_all(text.as_bytes())?;
        }
        self.failed.map_or(Ok(verdict), Err)
    }

    /// Prints text for people. Styles appear on a terminal only, and not if NO_COLOR is set.
    fn print(&mut self, text: &str) {
        if !self.is_json && self.failed.is_none() {
            self.failed = anstream::stdout().write_all(text.as_bytes()).err();
        }
    }
}

fn colour(verdict: Verdict) -> Style {
    let colour = match verdict {
        Verdict::Ok => AnsiColor::Green,
        Verdict::Differs => AnsiColor::Red,
        Verdict::CannotTell => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(colour.into()))
}

impl Subject {
    /// Returns the word for a verdict.
    fn word(self, verdict: Verdict, decides: bool) -> &'static str {
        match verdict {
            Verdict::Ok => "ok",
            Verdict::Differs if self == Self::Tls && decides => "fault",
            Verdict::Differs if self == Self::Tls => "warning",
            Verdict::Differs => "differs",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

fn shown(verdict: &str, name: &str, title: &str, finding: &Finding) -> String {
    let style = colour(finding.verdict);
    let mut text = format!("{style}{verdict:<INDENT$}{style:#}{title} [{name}]\n");
    let mut line = |line: String| {
        text.push_str(&" ".repeat(INDENT));
        text.push_str(&wrapped(&line, INDENT));
        text.push('\n');
    };
    match finding.verdict {
        Verdict::CannotTell => line(format!("because {}", finding.observed)),
        Verdict::Ok | Verdict::Differs if finding.expected.is_empty() => line(finding.observed.clone()),
        Verdict::Ok if finding.expected == finding.observed => {
            line(finding.observed.clone());
        }
        _ => {
            line(format!("expected {}", finding.expected));
            line(format!("observed {}", finding.observed));
        }
    }
    if !finding.consequence.is_empty() {
        line(finding.consequence.clone());
    }
    if let Some(advice) = &finding.advice {
        line(format!("→ {advice}"));
    }
    text
}
