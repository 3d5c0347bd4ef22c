//! Prints the result, as text of at most 80 columns or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::figures::{Alternative, Row, Verdict};
use super::measurement::{Figure, Kind};
use super::run::{Field, Measured};
use super::verdict;
use crate::report::{System, wrapped};

/// The columns of a label, of a value and of the ratio: 80 with four values.
const LABEL: usize = 18;
const VALUE: usize = 9;
const RATIO: usize = 26;
/// A contender that completes a smaller part of the due messages cannot keep up.
const KEEPS_UP: f64 = 0.99;

#[derive(Serialize)]
pub(super) struct Report {
    version: &'static str,
    kernel: String,
    machine: String,
    user: u32,
    /// The cores of the relay and of the load, if each has its own.
    cores: Option<[usize; 2]>,
    congestion_control: String,
    rounds: u32,
    seconds_each: f64,
    contenders: Vec<Named>,
    /// The contender whose ratio to `reference` is in the rows.
    subject: String,
    reference: String,
    rows: Vec<Row>,
    /// What a reader must know about single contenders, such as a failure.
    notes: Vec<String>,
    #[serde(skip)]
    is_paced: bool,
    /// The cores of the load, if the relays terminate TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_cores: Option<usize>,
}

#[derive(Serialize)]
struct Named {
    name: String,
    is: String,
}

impl Report {
    pub(super) fn new(field: &Field, (rounds, time): (u32, Duration), measured: &[Measured], rows: Vec<Row>) -> Self {
        let System { kernel, machine, user } = System::here();
        let shown = &field.contenders[..field.control()];
        Self {
            version: env!("CARGO_PKG_VERSION"),
            kernel,
            machine,
            user,
            cores: field.conditions.cores,
            congestion_control: field.conditions.congestion_control.clone(),
            rounds,
            seconds_each: time.as_secs_f64(),
            contenders: shown
                .iter()
                .map(|one| Named {
                    name: one.name.clone(),
                    is: one.description(),
                })
                .collect(),
            subject: field.contenders[field.subject()].name.clone(),
            reference: field.contenders[field.reference].name.clone(),
            rows,
            notes: measured.iter().flat_map(|one| notes(field, one)).collect(),
            is_paced: field.conditions.is_paced(),
            load_cores: field.is_tls.then_some(field.conditions.load_cores.len()),
        }
    }

    pub(super) fn print_json(&self) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        io::stdout().write_all(text.as_bytes())
    }

    /// Styles appear on a terminal only, and not if NO_COLOR is set.
    pub(super) fn print_text(&self) -> io::Result<()> {
        let bold = Style::new().bold();
        let mut text = self.head();
        let mut table = ("", "");
        for row in &self.rows {
            let title = &*row.title;
            if (title, &*row.subject) != table {
                table = (title, &row.subject);
                let _ = write!(text, "\n{bold}{title}{bold:#}\n{:LABEL$}", "");
                for value in &row.values {
                    let _ = write!(text, "{:>VALUE$}", value.contender);
                }
                let _ = writeln!(text, "{:>RATIO$}", format!("{} / {}", row.subject, row.reference));
            }
            text += &shown(row);
        }
        let _ = writeln!(text, "\n{bold}Result{bold:#}");
        for sentence in self.sentences() {
            let _ = writeln!(text, "{}", wrapped(&sentence, 0));
        }
        for named in &self.contenders {
            let _ = write!(text, "\n{:<VALUE$}{}", named.name, wrapped(&named.is, VALUE));
        }
        text += "\n";
        anstream::stdout().write_all(text.as_bytes())
    }

    fn head(&self) -> String {
        let Self {
            version,
            kernel,
            machine,
            user,
            rounds,
            seconds_each,
            congestion_control,
            ..
        } = self;
        let cores = match self.cores {
            Some([relay, load]) => match self.load_cores {
                Some(count @ 2..) => format!("relays on core {relay}, load on {count} other cores"),
                _ => format!("relays on core {relay}, load on core {load}"),
            },
            None => "relays and load share a core".to_owned(),
        };
        format!(
            "spliceway {version}, Linux {kernel} {machine}, user {user}\n\
             {rounds} rounds of {seconds_each} s; {cores}; congestion control {congestion_control}\n"
        )
    }

    /// Returns what follows from the rows, in sentences.
    fn sentences(&self) -> Vec<String> {
        let decisive = |row: &&Row| match row.measurement {
            Kind::Sweep => false,
            Kind::Pool => row.label.starts_with('1'),
            _ => row.figure == self.decisive_figure(row.measurement),
        };
        let mut all: Vec<String> = match self.load_cores {
            Some(_) => verdict::sentences(&self.rows, &self.subject),
            None => self
                .rows
                .iter()
                .filter(decisive)
                .map(|row| self.sentence(row))
                .collect(),
        };
        let noisy = self.rows.iter().filter(|row| row.verdict == Verdict::TooNoisy).count();
        if noisy > 0 {
            all.push(format!(
                "This machine was too noisy to tell in {noisy} of {} rows: two runs of the same relay differed too much \
                 (the number behind \"too noisy\"). Stop other programs, or use more rounds and more time.",
                self.rows.len()
            ));
        }
        if self.is_paced {
            all.push(format!(
                "This user may not choose another congestion control than {}. If it paces, the pacing costs more \
                 than any relay over loopback.",
                self.congestion_control
            ));
        }
        all.extend(self.notes.iter().cloned());
        if self.load_cores.is_some() {
            all.push(
                "The clients speak TLS 1.3 with AES-256-GCM by rustls in user space, and the server speaks none. CPU time \
                 is that of the relay's process. It does not include the kernel's own threads, or the kernel's work when \
                 packets of the clients arrive. `--ktls` applies to both directions. The relays are small ones, and not \
                 this program."
                    .to_owned(),
            );
        }
        all.push(
            "Brackets are 95 % intervals, widened for the few rounds and by the difference of two runs of the same \
             relay. A bulk rate that is equal for all is the limit of the load: then only CPU time tells."
                .to_owned(),
        );
        all
    }

    /// CPU time, or what can be known about a relay that runs elsewhere.
    fn decisive_figure(&self, kind: Kind) -> &'static str {
        let has_cpu = |row: &Row| row.measurement == kind && row.figure == "cpu" && row.ratio.is_some();
        match kind {
            _ if self.rows.iter().any(has_cpu) => Figure::CpuEach.name(),
            Kind::Bulk | Kind::Many => Figure::Rate.name(),
            _ => Figure::Latency(0.5).name(),
        }
    }

    fn sentence(&self, row: &Row) -> String {
        let Row { subject, reference, .. } = row;
        let what = match row.figure {
            "cpu" => "CPU time",
            "rate" => "rate",
            "time" => "time",
            _ => "latency (p50)",
        };
        let title = row.title.split(':').next().unwrap_or_default();
        let sentence = match (row.verdict, row.ratio) {
            (Verdict::Better | Verdict::Worse, Some(ratio)) => {
                format!(
                    "{title}: {subject} has {} times the {what} of {reference}.",
                    number(ratio.value)
                )
            }
            (Verdict::NoDifference, _) => format!("{title}: no difference in {what} to {reference} was found."),
            (Verdict::TooNoisy, _) => return format!("{title}: too noisy to tell the {what}."),
            _ => return format!("{title}: the {what} could not be measured."),
        };
        let best = row.best_alternative.as_ref();
        sentence + &best.map(|best| self.best(best, subject)).unwrap_or_default()
    }

    /// Returns what the best other relay is, and how the subject compares with it.
    fn best(&self, best: &Alternative, subject: &str) -> String {
        let Alternative {
            contender,
            ratio,
            verdict,
        } = best;
        let is = self.contenders.iter().find(|named| named.name == *contender);
        let is = is.map_or("", |named| &*named.is);
        let found = match verdict {
            Verdict::Better | Verdict::Worse => format!("{subject} has {} times its figure", number(ratio.value)),
            _ => "no difference was found".to_owned(),
        };
        format!(" The best alternative is {contender} ({is}): {found}.")
    }
}

/// Returns a line of a table.
fn shown(row: &Row) -> String {
    let mut text = format!("{:<LABEL$}", format!("  {}", row.label));
    for value in &row.values {
        let shown = value.estimate.map_or("–".to_owned(), |estimate| number(estimate.value));
        let _ = write!(text, "{shown:>VALUE$}");
    }
    let (ratio, style) = match (row.verdict, row.ratio, row.control) {
        (Verdict::TooNoisy, _, Some(control)) => (
            format!("too noisy ({})", number(control)),
            AnsiColor::Yellow.on_default(),
        ),
        (verdict, Some(ratio), _) => {
            let style = match verdict {
                Verdict::Better => AnsiColor::Green.on_default(),
                Verdict::Worse => AnsiColor::Red.on_default(),
                _ => Style::new(),
            };
            let decimals = match ratio.value {
                0.1.. => 2,
                0.01.. => 3,
                _ => 4,
            };
            (ratio.show(decimals), style)
        }
        _ => ("–".to_owned(), Style::new()),
    };
    let _ = writeln!(text, "{style}{ratio:>RATIO$}{style:#}");
    text
}

/// Shows three digits.
fn number(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Returns failures, and contenders that cannot keep up.
fn notes(field: &Field, measured: &Measured) -> Vec<String> {
    let kind = measured.measurement.kind.name();
    let mut notes = Vec::new();
    for (contender, failure) in measured.failures.iter().enumerate() {
        let name = &field.contenders[contender].name;
        let completed = measured.completed(contender);
        if let Some(failure) = failure {
            notes.push(format!("{kind}: {name} failed: {failure}."));
        } else if !measured.measurement.offer.is_closed && completed < KEEPS_UP {
            notes.push(format!(
                "{kind}: {name} does not keep up: {:.0} % done.",
                100.0 * completed
            ));
        }
    }
    notes
}
