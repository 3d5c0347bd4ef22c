//! Prints findings, as text of at most 80 columns or as JSON. The verdict comes first.

use std::borrow::Cow;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::finding::{Finding, Verdict};
use crate::report::{System, wrapped};

/// The column where the details of a check begin.
const INDENT: usize = 13;

/// What the checks are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Whether splice moves bytes on this machine.
    ZeroCopy,
    /// Whether a firewall can send connections to a proxy on this machine.
    Transparent,
    /// The certificates of a configuration.
    Tls,
    /// What a configuration needs of this machine.
    Configuration,
}

/// How to print a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The verdict, what is wrong, and a line for each section.
    Short,
    /// The verdict, and every check with its details.
    Long,
    /// Every check, for programs.
    Json,
}

/// The checks so far.
pub(super) struct Report {
    subject: Subject,
    section: Cow<'static, str>,
    entries: Vec<Entry>,
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
    /// Whether the configuration will work here.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<Option<bool>>,
    checks: &'a [Entry],
}

impl Report {
    pub(super) fn new(subject: Subject) -> Self {
        Self {
            subject,
            section: "".into(),
            entries: Vec::new(),
        }
    }

    /// Begins a section.
    pub(super) fn section(&mut self, title: impl Into<Cow<'static, str>>) {
        self.section = title.into();
    }

    pub(super) fn add(&mut self, check: (&'static str, impl Into<Cow<'static, str>>, bool), finding: Finding) {
        let (check, title, decides) = check;
        self.entries.push(Entry {
            section: self.section.clone(),
            check,
            title: title.into(),
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

    /// Prints the report, and returns the verdict on the subject.
    ///
    /// # Errors
    /// Returns the first error of standard output.
    pub(super) fn print(&self, form: Form) -> io::Result<Verdict> {
        let decisive = self.entries.iter().filter(|entry| entry.decides);
        let verdict = decisive.map(|entry| entry.finding.verdict).max().unwrap_or(Verdict::Ok);
        match form {
            Form::Json => io::stdout().write_all(self.json(verdict)?.as_bytes())?,
            // Styles appear on a terminal only, and not if NO_COLOR is set.
            Form::Short => anstream::stdout().write_all((self.head(verdict) + &self.short()).as_bytes())?,
            Form::Long => anstream::stdout().write_all((self.head(verdict) + &self.long()).as_bytes())?,
        }
        Ok(verdict)
    }

    fn json(&self, verdict: Verdict) -> io::Result<String> {
        let System { kernel, machine, user } = System::here();
        let answer = match verdict {
            Verdict::Ok => Some(true),
            Verdict::CannotTell => None,
            Verdict::Differs => Some(false),
        };
        let answer_to = |subject| (self.subject == subject).then_some(answer);
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            kernel: &kernel,
            machine: &machine,
            user,
            zero_copy: answer_to(Subject::ZeroCopy),
            transparent: answer_to(Subject::Transparent),
            tls: answer_to(Subject::Tls),
            configuration: answer_to(Subject::Configuration),
            checks: &self.entries,
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// Returns the verdict, and the system that it is about.
    fn head(&self, verdict: Verdict) -> String {
        let colour = colour(verdict).bold();
        let text = wrapped(&self.verdict(verdict), 0);
        let System { kernel, machine, user } = System::here();
        let version = env!("CARGO_PKG_VERSION");
        format!("{colour}{text}{colour:#}\nspliceway {version}, Linux {kernel} {machine}, user {user}\n")
    }

    /// Returns what needs attention, and the number of checks of each section.
    fn short(&self) -> String {
        let mut text = "\n".to_owned();
        for entry in self.entries.iter().filter(|entry| entry.finding.needs_attention()) {
            text += &shown_in_short(self.subject.word(entry), entry);
        }
        for (title, entries) in self.sections() {
            let fine = entries.iter().filter(|entry| !entry.finding.needs_attention()).count();
            if fine > 0 {
                let style = colour(Verdict::Ok);
                text += &format!("{style}{:<INDENT$}{style:#}{title}: ", "ok");
                text += &match entries.len() {
                    1 => "1 of 1 check".to_owned(),
                    all if all == fine => format!("{all} of {all} checks"),
                    _ => self.counts(entries),
                };
                text.push('\n');
            }
        }
        text + "\n`-v` shows every check, and `--json` is for programs.\n"
    }

    /// Returns how many checks have each word, in the order in which the words appear.
    fn counts(&self, entries: &[Entry]) -> String {
        let mut counts = vec![("ok", 0)];
        for entry in entries {
            let word = self.subject.word(entry);
            match counts.iter_mut().find(|(counted, _)| *counted == word) {
                Some((_, count)) => *count += 1,
                None => counts.push((word, 1)),
            }
        }
        let counts = counts.iter().map(|(word, count)| match *word {
            "remark" | "warning" | "fault" if *count > 1 => format!("{count} {word}s"),
            "differs" if *count > 1 => format!("{count} differ"),
            _ => format!("{count} {word}"),
        });
        counts.collect::<Vec<_>>().join(", ")
    }

    fn long(&self) -> String {
        let mut text = String::new();
        for (title, entries) in self.sections() {
            let bold = Style::new().bold();
            text += &format!("\n{bold}{title}{bold:#}\n");
            for entry in entries {
                text += &shown(self.subject.word(entry), entry);
            }
        }
        text
    }

    /// Returns the checks of each section.
    fn sections(&self) -> impl Iterator<Item = (&str, &[Entry])> {
        let chunks = self.entries.chunk_by(|one, next| one.section == next.section);
        chunks.map(|entries| (&*entries[0].section, entries))
    }

    /// Returns the verdict as text.
    fn verdict(&self, verdict: Verdict) -> String {
        let names = |is_named: &dyn Fn(&Entry) -> bool| {
            let named = self.entries.iter().filter(|entry| is_named(entry));
            let mut names: Vec<_> = named.map(|entry| entry.check).collect();
            names.dedup();
            names.join(", ")
        };
        let decided = names(&|entry| entry.decides && entry.finding.verdict == verdict);
        let has_warnings = self
            .entries
            .iter()
            .any(|entry| entry.finding.verdict == Verdict::Differs);
        let with_warnings = |text: &str| format!("{text}{}", if has_warnings { " See the warnings." } else { "" });
        match (self.subject, verdict) {
            (Subject::Transparent, Verdict::Ok) => "Nothing is missing here for transparent proxying.".to_owned(),
            (Subject::Transparent, Verdict::CannotTell) => {
                format!("The checks cannot tell whether something is missing here. See {decided}.")
            }
            (Subject::Transparent, Verdict::Differs) => {
                format!("Something is missing here for transparent proxying. See {decided}.")
            }
            (Subject::Tls, Verdict::Ok) if self.entries.is_empty() => "No service uses TLS.".to_owned(),
            (Subject::Tls, Verdict::Ok) => with_warnings("The files of TLS have no fault."),
            (Subject::Tls, _) => {
                "There is a fault, because of which the program or its peers refuse something.".to_owned()
            }
            (Subject::Configuration, Verdict::Ok) => with_warnings("This configuration works here."),
            (Subject::Configuration, _) => format!("This configuration does not work here. See {decided}."),
            (Subject::ZeroCopy, Verdict::Ok) => {
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
            (Subject::ZeroCopy, Verdict::CannotTell) => {
                format!("The checks cannot tell whether zero copy works here. See {decided}.")
            }
            (Subject::ZeroCopy, Verdict::Differs) => {
                format!("Zero copy does not work here, so relays copy. See {decided}.")
            }
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
    /// Returns the word for the verdict of a check.
    fn word(self, entry: &Entry) -> &'static str {
        let has_faults = matches!(self, Self::Tls | Self::Configuration);
        match entry.finding.verdict {
            Verdict::Ok if entry.finding.is_remark => "remark",
            Verdict::Ok => "ok",
            Verdict::Differs if has_faults && entry.decides => "fault",
            Verdict::Differs if has_faults => "warning",
            Verdict::Differs => "differs",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

/// Returns a check as one paragraph, with what helps.
fn shown_in_short(word: &str, entry: &Entry) -> String {
    let Entry {
        check, title, finding, ..
    } = entry;
    let style = colour(finding.verdict);
    let help = match &finding.advice {
        Some(advice) => format!(" → {advice}"),
        None if finding.consequence.is_empty() => String::new(),
        None => format!(" ({})", finding.consequence.trim_end_matches('.')),
    };
    let line = format!("{title}: {}{help} [{check}]", finding.observed);
    format!("{style}{word:<INDENT$}{style:#}{}\n", wrapped(&line, INDENT))
}

fn shown(word: &str, entry: &Entry) -> String {
    let Entry {
        check, title, finding, ..
    } = entry;
    let style = colour(finding.verdict);
    let mut text = format!("{style}{word:<INDENT$}{style:#}{title} [{check}]\n");
    let mut line = |line: &str| {
        text.push_str(&" ".repeat(INDENT));
        text.push_str(&wrapped(line, INDENT));
        text.push('\n');
    };
    match finding.verdict {
        Verdict::CannotTell => line(&format!("because {}", finding.observed)),
        Verdict::Ok | Verdict::Differs if finding.expected.is_empty() => line(&finding.observed),
        Verdict::Ok if finding.expected == finding.observed => line(&finding.observed),
        _ => {
            line(&format!("expected {}", finding.expected));
            line(&format!("observed {}", finding.observed));
        }
    }
    if !finding.consequence.is_empty() {
        line(&finding.consequence);
    }
    if let Some(advice) = &finding.advice {
        line(&format!("→ {advice}"));
    }
    text
}
