//! The results as a file, the tables of all results, and the summary in `docs/benchmarks.md`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use spliceway_load::Estimate;

use crate::charts;
use crate::contender::{DIRECT, OURS, REFERENCE, is_peer};
use crate::environment::Environment;
use crate::figures::Figures;
use crate::results::{Measured, PERCENTILES, Run};

/// Folders for the results and for the page.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder with `field.json.gz`.
    #[arg(long, default_value = "target/bench")]
    from: PathBuf,
    /// The folder with `benchmarks.md`. Results, charts and the tables of all results go to its
    /// folder `benchmarks`.
    #[arg(long, default_value = "docs")]
    out: PathBuf,
}

/// Everything that one run measured.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) environment: Environment,
    pub(crate) commit: String,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) loads: Vec<Measured>,
    pub(crate) programs: Vec<Figures>,
}

const RESULTS: &str = "field.json.gz";

impl Results {
    /// Writes the results and the tables of all results.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = GzEncoder::new(File::create(folder.join(RESULTS))?, Compression::best());
        serde_json::to_writer(&mut file, self)?;
        file.finish()?;
        fs::write(folder.join("field.md"), self.tables())
    }

    fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(RESULTS);
        let file =
            File::open(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(serde_json::from_reader(GzDecoder::new(file))?)
    }

    pub(crate) fn load(&self, name: &str, profile: &str) -> Option<&Measured> {
        self.loads.iter().find(|one| one.load == name && one.profile == profile)
    }

    fn tables(&self) -> String {
        let mut page = String::from(
            "# All numbers of the field benchmark

For readers of [benchmarks.md](../benchmarks.md) who want every number. `cargo xtask bench report`
writes this page.

CPU time is the time of the relay's core. Latency is what a contender adds to the direct connection,
in µs. The row of the direct connection has its own latency, in brackets. Ratios are to tokio. The
brackets after a value are its 95 % interval.
",
        );
        let _ = writeln!(page, "\n{}", self.origin());
        page.extend(self.loads.iter().map(table));
        page += "\n## F10 Real programs, rack\n";
        page.extend(self.programs.iter().map(Figures::table));
        page
    }

    /// Returns the machine, the peers, the commit and the command.
    fn origin(&self) -> String {
        let peers: Vec<String> = self
            .environment
            .peers
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        wrapped(&format!(
            "Machine: {}. Peers: {}. Commit {}. `{}`, {} rounds, {:.0} minutes.",
            self.environment.machine,
            peers.join(", "),
            self.commit,
            self.command,
            self.rounds,
            self.seconds / 60.0
        ))
    }
}

/// Wraps the text at 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= 100 {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// Writes the page from the results.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    let results = Results::read(&options.from)?;
    let folder = options.out.join("benchmarks");
    results.write(&folder)?;
    charts::write(&results, &folder)?;
    let path = options.out.join("benchmarks.md");
    let page = replace(&fs::read_to_string(&path)?, "table", &summary(&results))?;
    let page = replace(&page, "origin", &format!("{}\n", results.origin()))?;
    fs::write(path, page)
}

/// Replaces the text between the two comments that have this name.
fn replace(page: &str, name: &str, text: &str) -> io::Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let parts = page
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match parts {
        Some((before, after)) => Ok(format!("{before}{begin}{text}{end}{after}")),
        None => Err(io::Error::other(format!("the page has no place for {name}"))),
    }
}

/// The figure that a row of the summary compares.
#[derive(Clone, Copy)]
enum Figure {
    Cpu,
    /// The latency itself, at a percentile.
    Latency(f64, &'static str),
}

use Figure::{Cpu, Latency};

const P90: Figure = Latency(0.9, "p90");

/// Loads in the summary, by name and profile, with the names that readers know.
const ROWS: &[(&str, &str, Figure, &str)] = &[
    ("F1 bulk at 50 %", "rack", Cpu, "One bulk flow at 50 %, offloads on"),
    (
        "F1 bulk at 25 %",
        "rack, no offloads",
        Cpu,
        "One bulk flow at 25 %, no offloads",
    ),
    (
        "F1 bulk at 25 %",
        "rack, GRO only",
        Cpu,
        "One bulk flow at 25 %, GRO only",
    ),
    ("F2 64 B × 50", "rack", Cpu, "Requests of 64 B, 50 connections"),
    ("F2 16 KiB × 50", "rack", Cpu, "Requests of 16 KiB, 50 connections"),
    ("F2 64 KiB × 50", "rack", Cpu, "Requests of 64 KiB, 50 connections"),
    (
        "F3 200 × 3 Mbit/s",
        "city",
        Cpu,
        "200 streams of 3 Mbit/s, writes of 16 KiB",
    ),
    (
        "F3 20 × 35 Mbit/s",
        "city",
        Cpu,
        "20 streams of 35 Mbit/s, writes of 256 KiB",
    ),
    (
        "F4 8 KiB at 50 MB/s",
        "rack",
        Cpu,
        "One stream of 50 MB/s, writes of 8 KiB",
    ),
    (
        "F5 64 B × 50 beside bulk",
        "rack",
        P90,
        "Requests of 64 B beside a bulk flow",
    ),
    (
        "F6 1,500 connections/s",
        "rack",
        Cpu,
        "1,500 new connections per second",
    ),
    ("F8 far sink", "continent", Cpu, "Bulk flows to clients 10 ms away"),
];

/// Real programs in the summary. For these, more is better.
const PROGRAMS: &[&str] = &[
    "pgbench -S, 4 clients",
    "redis-benchmark GET, 50 clients",
    "iperf3, 1 stream",
];

fn summary(results: &Results) -> String {
    let mut table = String::from(
        "| workload | quantity | ratio to tokio | ratio to the best peer | best peer |\n|---|---|---|---|---|\n",
    );
    for (load, profile, figure, title) in ROWS {
        let Some(measured) = results.load(load, profile) else {
            continue;
        };
        let name = match figure {
            Cpu => "CPU time",
            Latency(_, name) => name,
        };
        row(&mut table, title, name, compared(measured, *figure));
    }
    for title in PROGRAMS {
        let Some(figures) = results.programs.iter().find(|one| one.title == *title) else {
            continue;
        };
        let rate = |name: &&str| figures.estimate(name).map_or(0.0, |one| one.value);
        let peers = figures
            .rows
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| is_peer(name));
        let compared = match (figures.noisy(), peers.max_by(|a, b| rate(a).total_cmp(&rate(b)))) {
            (Some(why), _) => Err(why),
            (None, None) => Err("no peer is installed".into()),
            (None, Some(best)) => Ok((figures.ratio(OURS, REFERENCE), figures.ratio(OURS, best), best)),
        };
        row(&mut table, title, &figures.unit, compared);
    }
    table
}

type Compared<'a> = Result<(Option<Estimate>, Option<Estimate>, &'a str), String>;

fn row(table: &mut String, title: &str, figure: &str, compared: Compared<'_>) {
    let cell = |ratio: Option<Estimate>| ratio.map_or("–".into(), |ratio| ratio.show(2));
    let _ = match compared {
        Ok((tokio, peer, best)) => writeln!(
            table,
            "| {title} | {figure} | {} | {} | {best} |",
            cell(tokio),
            cell(peer)
        ),
        Err(why) => writeln!(table, "| {title} | {figure} | omitted: {why} | – | – |"),
    };
}

/// Compares spliceway with tokio, and with the best peer whose figure can be shown.
fn compared(measured: &Measured, figure: Figure) -> Compared<'_> {
    let omitted = |name: &str| match figure {
        Cpu => measured.omitted_cpu(name),
        Latency(part, _) => measured.omitted_latency(name, part),
    };
    let value = |name: &str| match figure {
        Cpu => measured.cpu(name).map_or(f64::INFINITY, |cpu| cpu.value),
        Latency(part, _) => measured.quantile(name, part).unwrap_or(f64::INFINITY),
    };
    let ratio = |to: &str| match figure {
        Cpu => measured.cpu_ratio(OURS, to),
        Latency(part, _) => measured.quantile_ratio(OURS, to, part),
    };
    if let Some(why) = omitted(OURS) {
        return Err(why);
    }
    let shown = |name: &&str| omitted(name).is_none() && measured.not_sustained(name).is_none();
    let peers = measured
        .contenders()
        .into_iter()
        .filter(|name| is_peer(name))
        .filter(shown);
    let best = peers
        .min_by(|a, b| value(a).total_cmp(&value(b)))
        .ok_or("no peer can be shown")?;
    Ok((shown(&REFERENCE).then(|| ratio(REFERENCE)).flatten(), ratio(best), best))
}

/// Returns the table of all contenders under one load.
fn table(measured: &Measured) -> String {
    let unit = if measured.is_bulk { "s/GiB" } else { "µs each" };
    let mut page = format!(
        "\n## {}, {}\n\n| contender | CPU, {unit} | CPU ratio |",
        measured.load, measured.profile
    );
    PERCENTILES
        .iter()
        .for_each(|(_, name)| page += &format!(" {name} + µs |"));
    page += " remarks |\n|---|---|---|---|---|---|---|---|\n";
    let mut names = measured.contenders();
    names.sort_by_key(|name| name.ends_with("spinner"));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    for name in names {
        let mut remarks: Vec<String> = Vec::new();
        if let Some(done) = measured.not_sustained(name) {
            remarks.push(format!("cannot sustain it: {:.0} % done", done * 100.0));
        }
        remarks.extend(measured.omitted(name));
        let shows_cpu = measured.omitted_cpu(name).is_none();
        let cpu = measured.cpu(name).filter(|_| shows_cpu);
        let ratio = measured.cpu_ratio(name, REFERENCE).filter(|_| shows_cpu);
        let decimals = if measured.is_bulk { 3 } else { 1 };
        let cells = [cpu.map(|cpu| cpu.show(decimals)), ratio.map(|ratio| ratio.show(2))].map(or_dash);
        let _ = write!(page, "| {name} | {} |", cells.join(" | "));
        for (part, percentile) in PERCENTILES {
            let shown = measured.omitted_latency(name, part).is_none();
            let added = match name == DIRECT {
                true => measured.quantile(name, part).map(|micros| format!("({micros:.0})")),
                false => measured.added(name, part).map(|added| added.show(0)),
            };
            let _ = write!(page, " {} |", or_dash(added.filter(|_| shown)));
            if let Some(why) = measured.late(name, part) {
                remarks.push(format!("{percentile}: {why}"));
            }
        }
        if measured.is_overload {
            let worst = measured.runs_of(name).map(|run| run.recovery).fold(0.0, f64::max);
            remarks.push(format!("recovered after {worst:.0} ms"));
        }
        let _ = writeln!(page, " {} |", remarks.join("; "));
    }
    for (name, why) in &measured.failed {
        let _ = writeln!(page, "| {name} | – | – | – | – | – | – | failed: {why} |");
    }
    page + &under_the_table(measured)
}

/// Returns the figures that were omitted for every contender, and the worst values of the set-up.
fn under_the_table(measured: &Measured) -> String {
    let mut page = String::from("\n");
    if let Some(why) = measured.noisy_cpu() {
        let _ = writeln!(page, "CPU omitted: {why}.");
    }
    for (part, percentile) in PERCENTILES {
        if let Some(why) = measured.noisy_latency(part) {
            let _ = writeln!(page, "{percentile} omitted: {why}.");
        }
    }
    let most = |of: &dyn Fn(&Run) -> f64| measured.runs.iter().map(of).fold(0.0, f64::max);
    let _ = writeln!(
        page,
        "The generator's p99 lateness was at most {:.0} µs in any run.\n\
         The load generator's core was at most {:.0} % busy.",
        most(&|run| run.lateness.quantile(0.99).unwrap_or(0.0)),
        most(&|run| run.load_busy) * 100.0
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_replaced_and_the_rest_stays() {
        let page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        assert_eq!(replace(page, "x", "new\n").unwrap(), page.replace("old", "new"));
        assert!(replace(page, "y", "").is_err());
    }

    #[test]
    fn every_row_of_the_table_is_a_measured_load() {
        let loads = crate::load::all([1e9; 3]);
        for (name, profile, _, _) in ROWS {
            assert!(
                loads
                    .iter()
                    .any(|load| load.name == *name && load.profile.name() == *profile),
                "{name}, {profile}"
            );
        }
        assert!(ROWS.len() + PROGRAMS.len() <= 15);
    }
}
