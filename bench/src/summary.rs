//! The answers in `docs/benchmarks.md`: every row has a ratio, or a bound on it.

use std::fmt::Write as _;

use spliceway_load::Estimate;

use crate::contender::{OURS, PROGRAM, REFERENCE, is_peer};
use crate::figures::Figures;
use crate::load::Load;
use crate::page::{self, Results};
use crate::results::Figure::{Cpu, Latency, Rate};
use crate::results::{Figure, Measured, best};
use crate::verdict::{Ratio, contains_one};
use crate::{idle, losses};

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
    pub(crate) subject: &'static str,
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
pub(crate) const NO_LOG: &str = "spliceway forward, no log";

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

/// A subject's comparisons in one figure.
pub(crate) struct Comparison<'a> {
    pub(crate) quantity: String,
    pub(crate) tokio: Option<Ratio>,
    pub(crate) peer: Option<(&'a str, Ratio)>,
    /// The number of peers of which that one is the best.
    peers: usize,
    control: Option<Estimate>,
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

    /// Returns the row's name in the tables of all results.
    pub(crate) fn name(&self) -> String {
        match self.source {
            Of(name, profile, _) => row_name(name, profile),
            Table(title) => format!("`{}`", title.split(": ").next().unwrap_or(title)),
        }
    }
}

/// Returns the name of a load in the tables of all results, with the part that `--only` takes as
/// code.
pub(crate) fn row_name(load: &str, profile: &str) -> String {
    match profile {
        "rack" => format!("`{load}`"),
        _ => format!("`{load}`, {profile}"),
    }
}

pub(crate) fn of_load<'a>(measured: &'a Measured, figure: Figure, subject: &str) -> Comparison<'a> {
    let fault = measured.unreliable(figure, subject);
    let is_reliable = |to: &str| fault.is_none() && measured.unreliable(figure, to).is_none();
    let sampled = |to: &str| measured.sampled(figure, subject, to).filter(|_| is_reliable(to));
    let peers = measured.peers(figure);
    let is_more_better = figure.is_more_better();
    let best = best(&peers, is_more_better);
    let control = measured.control(figure);
    let (tokio, peer) = ratios(sampled, best, control, is_more_better);
    Comparison {
        quantity: match figure {
            Cpu => "CPU time".into(),
            Rate => "connections/s".into(),
            Latency(part) => format!("latency, p{}", part * 100.0),
        },
        tokio,
        peer,
        peers: peers.len(),
        control,
        fault,
    }
}

pub(crate) fn of_table<'a>(figures: &'a Figures, subject: &str) -> Comparison<'a> {
    let peers = figures.peers();
    let is_more_better = figures.is_more_better();
    let best = best(&peers, is_more_better);
    let control = figures.control();
    let (tokio, peer) = ratios(|to| figures.sampled(subject, to), best, control, is_more_better);
    Comparison {
        quantity: match figures.unit.as_str() {
            "KiB each" => "memory".into(),
            "% of the relay's core" => "use of the core".into(),
            unit => unit.into(),
        },
        tokio,
        peer,
        peers: peers.len(),
        control,
        fault: None,
    }
}

/// Returns the ratios to tokio and to the best peer, with intervals that allow for the control.
fn ratios(
    sampled: impl Fn(&str) -> Option<Estimate>,
    best: Option<&str>,
    control: Option<Estimate>,
    is_more_better: bool,
) -> (Option<Ratio>, Option<(&str, Ratio)>) {
    let ratio = |to: &str| {
        let ratio = sampled(to)?.widened_by(control.map_or(1.0, |control| control.value));
        Some(Ratio {
            ratio,
            is_more_better,
            control,
        })
    };
    let tokio = ratio(REFERENCE);
    let peer = best.and_then(|name| Some((name, if name == REFERENCE { tokio? } else { ratio(name)? })));
    (tokio, peer)
}

/// The rows that a run measured, with their comparisons.
pub(crate) struct Summary<'a> {
    pub(crate) results: &'a Results,
    pub(crate) rows: Vec<(&'static Row, Comparison<'a>)>,
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
        "| you relay | row | quantity | compared with tokio | compared with the best peer | control |\n\
         |---|---|---|---|---|---|\n",
    );
    for (row, compared) in &summary.rows {
        let tokio = compared.tokio.map_or("–".into(), Ratio::answer);
        let peer = compared.peer.map_or("–".into(), |(name, ratio)| {
            format!("{name} (of {}): {}", compared.peers, ratio.answer())
        });
        let control = compared
            .control
            .map_or("–".into(), |control| match contains_one(control) {
                true => format!("{:.2}", control.value),
                false => page::control(control),
            });
        let note = compared.fault.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let _ = writeln!(
            table,
            "| {} | {} | {}{note} | {tokio} | {peer} | {control} |",
            row.title,
            row.name(),
            compared.quantity
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
        ("Where is it worse?", losses::worse(summary)),
        (
            "How was it measured? Can I repeat it?",
            format!(
                "{} Repeat it with `{}`, or compare on your machine with \
                 [`spliceway bench`](#on-your-machine).",
                summary.results.sampling(),
                summary.results.repeated()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::AGAIN;
    use crate::results::Run;

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
    fn a_control_that_differs_decides_nothing() {
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
            "| one bulk flow, as of a backup | `F1 bulk at 50 %` | CPU time | better: 0.90 [0.90, 0.90] \
             | nginx (of 2): worse: 1.12 [1.12, 1.12] | 1.00 |"
        );
        assert_eq!(
            row(1.125),
            "| one bulk flow, as of a backup | `F1 bulk at 50 %` | CPU time | not decided (control): 0.90 [0.72, 1.12] \
             | nginx (of 2): not decided (control): 1.12 [0.90, 1.41] | 1.25 [1.25, 1.25] (invalid) |"
        );
        let all = answers(&Summary::new(&results(&[
            (REFERENCE, 1.0),
            ("nginx", 0.8),
            (OURS, 0.9),
            (AGAIN, 0.9),
        ])));
        assert!(all.contains("0.90 times that of tokio (better); 1.12 times that of nginx (worse), the best peer."));
        assert!(
            all.contains(
                "Proven, in 1 of 2 comparisons (better in 1): `F1 bulk at 50 %`: CPU time 1.12 [1.12, 1.12] times nginx."
            ),
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
            .filter(|line| line.contains(" worse: ") || line.contains("better: "));
        for row in rows {
            assert!(!row.contains("| – |"), "{row}");
        }
    }
}
