//! The answers in `docs/benchmarks.md`: every row has a ratio, or a bound on it.

use std::fmt::Write as _;

use spliceway_load::Estimate;

use crate::contender::{OURS, PROGRAM, REFERENCE, is_peer};
use crate::figures::Figures;
use crate::idle;
use crate::load::Load;
use crate::page::Results;
use crate::results::Figure::{Cpu, Latency, Rate};
use crate::results::{Figure, Measured};

/// A figure of the results.
#[derive(Clone, Copy)]
enum Source {
    /// A load, by name and profile.
    Load(&'static str, &'static str, Figure),
    /// A real program, or idle sessions, by title.
    Table(&'static str),
}

use Source::{Load as Of, Table};

/// A row of the page.
pub(crate) struct Row {
    source: Source,
    /// The contender that the row compares with tokio and with the best peer.
    subject: &'static str,
    /// The traffic, in words that readers know.
    title: &'static str,
}

const fn row(source: Source, title: &'static str) -> Row {
    Row {
        source,
        subject: OURS,
        title,
    }
}

const fn of_program(source: Source, title: &'static str) -> Row {
    Row {
        source,
        subject: PROGRAM,
        title,
    }
}

const P50: Figure = Latency(0.5);
const P90: Figure = Latency(0.9);
/// Short connections of the program without its log. Only the subject differs.
const NO_LOG: &str = "spliceway forward, no log";

const BULK: Row = row(Of("F1 bulk at 50 %", "rack", Cpu), "one bulk flow, as of a backup");
const FASTEST: Row = row(Table("iperf3, 1 stream"), "one stream at full speed (iperf3)");
const SMALL: Row = row(Of("F2 64 B × 50", "rack", Cpu), "requests of 64 B");
const BESIDE: Row = row(
    Of("F5 64 B × 50 beside bulk", "rack", P90),
    "requests of 64 B beside a bulk flow",
);
const SHORT: Row = row(
    Of("F6 1,500 connections/s", "rack", Cpu),
    "short connections, 1,500 per second",
);
const SHORT_RATE: Row = of_program(
    Of(crate::load::CHURN, "rack", Rate),
    "short connections, as many as possible, log on",
);

/// The rows of the page, in its order.
const ROWS: &[Row] = &[
    BULK,
    row(
        Of("F1 bulk at 25 %", "rack, no offloads", Cpu),
        "bulk, packets of 1,500 bytes at most",
    ),
    row(
        Of("F1 bulk at 25 %", "rack, GRO only", Cpu),
        "bulk, packets that the receiver merges",
    ),
    FASTEST,
    row(
        Of("F3 20 × 35 Mbit/s", "city", Cpu),
        "20 video streams, writes of 256 KiB, 1 ms away",
    ),
    row(
        Of("F3 200 × 3 Mbit/s", "city", Cpu),
        "200 video streams, writes of 16 KiB, 1 ms away",
    ),
    row(Of("F2 64 KiB × 50", "rack", Cpu), "pages or values of 64 KiB"),
    row(Of("F2 16 KiB × 50", "rack", Cpu), "requests of 16 KiB"),
    row(Of("F2 1 KiB × 500", "rack", Cpu), "requests of 1 KiB, 500 connections"),
    SMALL,
    BESIDE,
    row(Of("F4 8 KiB at 50 MB/s", "rack", Cpu), "logs: writes of 8 KiB"),
    row(Of("F4 8 KiB at 50 MB/s", "rack", P50), "logs: writes of 8 KiB"),
    row(Table("pgbench -S, 4 clients"), "queries of PostgreSQL (pgbench)"),
    row(
        Table("redis-benchmark GET, 50 clients"),
        "queries of Redis (redis-benchmark)",
    ),
    SHORT,
    of_program(SHORT.source, "short connections, the program with its log"),
    Row {
        source: SHORT.source,
        subject: NO_LOG,
        title: "short connections, the program without its log",
    },
    SHORT_RATE,
    Row {
        source: SHORT_RATE.source,
        subject: NO_LOG,
        title: "short connections, as many as possible, log off",
    },
    of_program(Table(idle::FEW_MEMORY), "2,000 idle sessions of the program"),
    of_program(Table(idle::MANY_MEMORY), "10,000 idle sessions of the program"),
    row(Of("F8 far sink", "continent", Cpu), "downloads to clients 10 ms away"),
    row(Of("F8 far source", "continent", Cpu), "uploads from clients 10 ms away"),
    row(
        Of("F8 far sink", "ocean", Cpu),
        "downloads to clients 50 ms away, with loss",
    ),
];

/// Returns the figures that the page compares under a load, each with its subject.
pub(crate) fn compared(load: &Load) -> Vec<(Figure, &'static str)> {
    let figure = |row: &Row| match row.source {
        Of(name, profile, figure) if name == load.name && profile == load.profile.name() => Some((figure, row.subject)),
        _ => None,
    };
    ROWS.iter().filter_map(figure).collect()
}

/// Returns whether the page compares a real program.
pub(crate) fn compares(title: &str) -> bool {
    ROWS.iter()
        .any(|row| matches!(row.source, Table(name) if name == title))
}

/// Which of two contenders a ratio shows to be better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Worse,
    /// The interval contains 1, so its outer end is a bound.
    Undecided,
}

/// A subject relative to another contender.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    ratio: Estimate,
    is_more_better: bool,
}

impl Ratio {
    fn verdict(self) -> Verdict {
        let Estimate { low, high, .. } = self.ratio;
        match (low > 1.0, high < 1.0) {
            (false, false) => Verdict::Undecided,
            (is_more, _) if is_more == self.is_more_better => Verdict::Better,
            _ => Verdict::Worse,
        }
    }

    /// Returns the answer, with its ratio and interval.
    fn answer(self) -> String {
        let figures = self.ratio.show(2);
        match self.verdict() {
            Verdict::Better => format!("better: {figures}"),
            Verdict::Worse => format!("worse: {figures}"),
            Verdict::Undecided => format!("at most {} apart: {figures}", self.bound()),
        }
    }

    /// Returns the answer for a sentence about this other contender.
    fn spoken(self, other: &str) -> String {
        let ratio = self.ratio.value;
        match self.verdict() {
            Verdict::Better => format!("{ratio:.2} times that of {other} (better)"),
            Verdict::Worse => format!("{ratio:.2} times that of {other} (worse)"),
            Verdict::Undecided => format!("at most {} apart from {other}", self.bound()),
        }
    }

    /// Returns whether the ratio alone, without its interval, is on the worse side by more than
    /// this fraction.
    fn is_worse_by(self, fraction: f64) -> bool {
        match self.is_more_better {
            true => self.ratio.value < 1.0 / (1.0 + fraction),
            false => self.ratio.value > 1.0 + fraction,
        }
    }

    /// Returns the largest difference that the interval allows. A factor is clearer than a
    /// percentage above 100.
    fn bound(self) -> String {
        let factor = self.ratio.high.max(1.0 / self.ratio.low);
        match factor < 2.0 {
            true => format!("{:.0} %", ((factor - 1.0) * 100.0).ceil()),
            false => format!("a factor of {:.1}", (factor * 10.0).ceil() / 10.0),
        }
    }
}

/// A row's comparisons.
struct Comparison<'a> {
    quantity: String,
    tokio: Option<Ratio>,
    peer: Option<(&'a str, Ratio)>,
    control: Option<f64>,
    /// The reason why the figure measures the load more than the relay, if it does.
    fault: Option<String>,
}

impl Row {
    /// Compares the row's figure. Returns `None` if the run did not measure it.
    fn compare<'a>(&self, results: &'a Results) -> Option<Comparison<'a>> {
        let compared = match self.source {
            Of(name, profile, figure) => Some(of_load(results.load(name, profile)?, figure, self.subject)),
            Table(title) => Some(of_table(results.table(title)?, self.subject)),
        };
        // The contender may be missing.
        compared.filter(|one| one.tokio.is_some() || one.peer.is_some())
    }
}

fn of_load<'a>(measured: &'a Measured, figure: Figure, subject: &str) -> Comparison<'a> {
    let ratio = |to: &str| {
        Some(Ratio {
            ratio: measured.ratio(figure, subject, to)?,
            is_more_better: figure.is_more_better(),
        })
    };
    Comparison {
        quantity: match figure {
            Cpu => "CPU time".into(),
            Rate => "connections/s".into(),
            Latency(part) => format!("latency, p{:.0}", part * 100.0),
        },
        tokio: ratio(REFERENCE),
        peer: measured.best_peer(figure).and_then(|name| Some((name, ratio(name)?))),
        control: measured.control(figure).map(|control| control.value),
        fault: measured.unreliable(figure, subject),
    }
}

fn of_table<'a>(figures: &'a Figures, subject: &str) -> Comparison<'a> {
    let ratio = |to: &str| {
        Some(Ratio {
            ratio: figures.ratio(subject, to)?,
            is_more_better: figures.is_more_better(),
        })
    };
    Comparison {
        quantity: match figures.unit.as_str() {
            "KiB each" => "memory".into(),
            unit => unit.into(),
        },
        tokio: ratio(REFERENCE),
        peer: figures.best_peer().and_then(|name| Some((name, ratio(name)?))),
        control: figures.control().map(|control| control.value),
        fault: None,
    }
}

/// The rows that a run measured, with their comparisons.
pub(crate) struct Summary<'a> {
    results: &'a Results,
    rows: Vec<(&'static Row, Comparison<'a>)>,
}

impl<'a> Summary<'a> {
    pub(crate) fn new(results: &'a Results) -> Self {
        let rows = ROWS.iter().filter_map(|row| Some((row, row.compare(results)?)));
        Self {
            results,
            rows: rows.collect(),
        }
    }
}

/// Returns the table that answers for which traffic spliceway is better.
pub(crate) fn advice(summary: &Summary<'_>) -> String {
    let mut table = String::from(
        "| you relay | quantity | compared with tokio | compared with the best peer | control |\n|---|---|---|---|---|\n",
    );
    for (row, compared) in &summary.rows {
        let tokio = compared.tokio.map_or("–".into(), Ratio::answer);
        let peer = compared
            .peer
            .map_or("–".into(), |(name, ratio)| format!("{name}: {}", ratio.answer()));
        let control = compared.control.map_or("–".into(), |control| format!("{control:.2}"));
        let note = compared.fault.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let _ = writeln!(
            table,
            "| {} | {}{note} | {tokio} | {peer} | {control} |",
            row.title, compared.quantity
        );
    }
    table
}

/// Returns the six questions of a reader who has not used spliceway, with their answers.
pub(crate) fn answers(summary: &Summary<'_>) -> String {
    let sentences = |rows: &[Row]| -> String {
        let all: Vec<String> = rows.iter().filter_map(|row| sentence(summary, row)).collect();
        match all.is_empty() {
            true => "This run did not measure it.".into(),
            false => all.join(" "),
        }
    };
    let all = [
        ("Is it better for bulk?", sentences(&[BULK, FASTEST])),
        ("Is it better for small requests?", sentences(&[SMALL, BESIDE])),
        ("What does an idle session cost?", idle_cost(summary.results)),
        ("Is it better for short connections?", sentences(&[SHORT, SHORT_RATE])),
        ("Where is it worse?", worse(summary)),
        (
            "How was it measured? Can I repeat it?",
            format!(
                "{} Repeat it with `cargo xtask bench field`, or compare on your machine with \
                 [`spliceway bench`](#on-your-machine).",
                summary.results.sampling()
            ),
        ),
    ];
    let mut table = String::from("| question | answer |\n|---|---|\n");
    for (question, answer) in all {
        let _ = writeln!(table, "| {question} | {answer} |");
    }
    table
}

/// Returns the table of counts: a line for each unit of work and each instrument.
pub(crate) fn counts(results: &Results) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in results.counts.iter().flat_map(|figures| &figures.rows) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return "This run did not count. `cargo xtask bench field --only counts` does.\n".into();
    }
    let mut table = format!(
        "| count | {} |\n|---{}|\n",
        names.join(" | "),
        "|---".repeat(names.len())
    );
    for figures in &results.counts {
        let count = |name: &&str| match figures.of(name) {
            Some([count, ..]) => format!("{count:.*}", figures.decimals),
            _ => "–".into(),
        };
        let cells: Vec<String> = names.iter().map(count).collect();
        let title = figures.title.trim_start_matches("counts, ").trim_end_matches(" each");
        let _ = writeln!(table, "| {title} | {} |", cells.join(" | "));
    }
    table
}

/// Returns what a row says, as a sentence. The table has the intervals.
fn sentence(summary: &Summary<'_>, row: &Row) -> Option<String> {
    let (_, compared) = summary.rows.iter().find(|(one, _)| one.title == row.title)?;
    let mut text = format!("{}: {}", capitalized(row.title), compared.quantity);
    let _ = write!(text, " {}", compared.tokio?.spoken("tokio"));
    if let Some((peer, ratio)) = compared.peer {
        let _ = write!(text, "; {}, the best peer", ratio.spoken(peer));
    }
    Some(text + ".")
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn idle_cost(results: &Results) -> String {
    let nothing = "It holds two descriptors, no pipe and no buffer.";
    let Some(figures) = results.table(idle::FEW_MEMORY) else {
        return format!("{nothing} `cargo xtask bench field --only idle` measures its memory.");
    };
    let names = figures.rows.iter().map(|(name, _)| name.as_str());
    let named = names.filter(|name| is_peer(name) || [OURS, PROGRAM].contains(name));
    let mut all: Vec<(&str, f64)> = named
        .filter_map(|name| Some((name, figures.estimate(name)?.value)))
        .collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    let all: Vec<String> = all.iter().map(|(name, value)| format!("{name} {value:.1}")).collect();
    format!("{nothing} Resident memory, KiB for each session: {}.", all.join(", "))
}

/// Returns the rows in which another contender is better, and those in which it may be.
fn worse(summary: &Summary<'_>) -> String {
    /// A smaller difference of an undecided row is not listed.
    const VISIBLE: f64 = 0.05;
    let [proven, possible] = [Verdict::Worse, Verdict::Undecided].map(|verdict| {
        let is_listed = |(_, ratio): &(&str, Ratio)| ratio.verdict() == verdict && ratio.is_worse_by(VISIBLE);
        let of_row = |(row, compared): &(&Row, Comparison<'_>)| {
            let tokio = compared.tokio.map(|ratio| ("tokio", ratio)).filter(is_listed);
            // A row is named once, with the best peer if that is better.
            let (name, ratio) = compared.peer.filter(is_listed).or(tokio)?;
            Some(format!("{} ({:.2} times {name})", row.title, ratio.ratio.value))
        };
        summary
            .rows
            .iter()
            .filter_map(of_row)
            .collect::<Vec<String>>()
            .join("; ")
    });
    let list = |title: &str, rows: String| match rows.is_empty() {
        true => format!("{title}: no row."),
        false => format!("{title}: {rows}."),
    };
    format!(
        "{} {}",
        list("Proven", proven),
        list("Possible, but the interval contains 1", possible)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::AGAIN;
    use crate::page;
    use crate::results::Run;

    fn ratio(value: f64, low: f64, high: f64) -> Ratio {
        Ratio {
            ratio: Estimate { value, low, high },
            is_more_better: false,
        }
    }

    fn of_rate(ratio: Ratio) -> Ratio {
        Ratio {
            is_more_better: true,
            ..ratio
        }
    }

    #[test]
    fn a_row_has_an_answer_or_a_bound() {
        let less = ratio(0.5, 0.4, 0.6);
        assert_eq!(less.answer(), "better: 0.50 [0.40, 0.60]");
        assert_eq!(of_rate(less).answer(), "worse: 0.50 [0.40, 0.60]");
        let more = ratio(1.5, 1.4, 1.6);
        assert_eq!(more.answer(), "worse: 1.50 [1.40, 1.60]");
        assert_eq!(of_rate(more).answer(), "better: 1.50 [1.40, 1.60]");
        let equal = ratio(1.0, 0.96, 1.079);
        assert_eq!(equal.answer(), "at most 8 % apart: 1.00 [0.96, 1.08]");
        assert_eq!(of_rate(equal).answer(), equal.answer());
        // 0.5 is as far from 1 as 2 is.
        assert_eq!(
            ratio(0.8, 0.5, 1.1).answer(),
            "at most a factor of 2.0 apart: 0.80 [0.50, 1.10]"
        );
    }

    /// Rounds of a bulk load with these seconds of CPU time per GiB.
    fn results(costs: &[(&str, f64)]) -> Results {
        let (name, profile) = ("F1 bulk at 50 %", "rack");
        let run = |round: usize, (name, cpu): &(&str, f64)| Run {
            contender: (*name).into(),
            round,
            wall: 1.0,
            cpu: *cpu,
            bytes: 1 << 30,
            offered: 1,
            completed: 1,
            ..Run::default()
        };
        let measured = Measured {
            load: name.into(),
            profile: profile.into(),
            is_bulk: true,
            runs: (0..6)
                .flat_map(|round| costs.iter().map(move |cost| run(round, cost)))
                .collect(),
            ..Measured::default()
        };
        Results {
            loads: vec![measured],
            ..Results::default()
        }
    }

    #[test]
    fn a_control_that_differs_turns_an_answer_into_a_bound() {
        let row = |again: f64| {
            let costs = [(REFERENCE, 1.0), ("nginx", 0.8), (OURS, 0.9), (AGAIN, again)];
            advice(&Summary::new(&results(&costs)))
                .lines()
                .nth(2)
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            row(0.9),
            "| one bulk flow, as of a backup | CPU time | better: 0.90 [0.90, 0.90] | nginx: worse: 1.12 [1.12, 1.12] | 1.00 |"
        );
        assert_eq!(
            row(1.125),
            "| one bulk flow, as of a backup | CPU time | at most 39 % apart: 0.90 [0.72, 1.12] \
             | nginx: at most 41 % apart: 1.12 [0.90, 1.41] | 1.25 |"
        );
        let all = answers(&Summary::new(&results(&[
            (REFERENCE, 1.0),
            ("nginx", 0.8),
            (OURS, 0.9),
            (AGAIN, 0.9),
        ])));
        assert!(all.contains("0.90 times that of tokio (better); 1.12 times that of nginx (worse), the best peer."));
        assert!(
            all.contains("Proven: one bulk flow, as of a backup (1.12 times nginx)."),
            "{all}"
        );
    }

    #[test]
    fn every_row_of_the_page_is_measured_by_a_run() {
        let loads = crate::load::all([1e9; 3]);
        let tables = crate::programs::titles();
        for row in ROWS {
            let is_measured = match row.source {
                Of(name, profile, _) => loads
                    .iter()
                    .any(|load| load.name == name && load.profile.name() == profile),
                Table(title) => tables.contains(&title) || [idle::FEW_MEMORY, idle::MANY_MEMORY].contains(&title),
            };
            assert!(is_measured, "{}", row.title);
        }
        let titles = idle::titles(&[]);
        assert_eq!(
            titles.iter().map(|title| idle::memory_of(title)).collect::<Vec<_>>(),
            [idle::FEW_MEMORY, idle::MANY_MEMORY]
        );
    }

    #[test]
    fn the_page_has_what_its_results_say_and_no_gap() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let results = Results::read(&docs.join("benchmarks")).unwrap();
        let text = std::fs::read_to_string(docs.join("benchmarks.md")).unwrap();
        assert!(
            page::filled(&text, &results).unwrap() == text,
            "run `cargo xtask bench report --from docs/benchmarks`"
        );
        let rows = text
            .lines()
            .filter(|line| line.contains(" apart: ") || line.contains("better: "));
        for row in rows {
            assert!(!row.contains("| – |"), "{row}");
        }
    }
}
