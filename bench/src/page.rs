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
use crate::contender::{DIRECT, REFERENCE};
use crate::environment::{Environment, Origin};
use crate::figures::Figures;
use crate::meter::CALM;
use crate::results::{DIRECT_OMITTED, Figure, Measured, PERCENTILES, Run};
use crate::summary::{self, Summary};
use crate::verdict::contains_one;

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
    #[serde(default)]
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// The half-width at which a row ended, as a fraction of its ratio.
    #[serde(default)]
    pub(crate) target: f64,
    /// The slowest contender's capacity in one flow, in bytes per second, for each rack profile.
    #[serde(default)]
    pub(crate) capacities: [f64; 3],
    pub(crate) loads: Vec<Measured>,
    pub(crate) programs: Vec<Figures>,
    /// The memory of idle sessions.
    #[serde(default)]
    pub(crate) idle: Vec<Figures>,
    /// System calls and instructions.
    #[serde(default)]
    pub(crate) counts: Vec<Figures>,
    /// Contenders that a later run added to tables, in words, each with its origin.
    #[serde(default)]
    pub(crate) added: Vec<(String, Origin)>,
}

const RESULTS: &str = "field.json.gz";

impl Results {
    /// Writes the results and the tables of all results.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        // A run that is stopped in the middle of a write keeps the results before it.
        let incomplete = folder.join("incomplete.json.gz");
        let mut file = GzEncoder::new(File::create(&incomplete)?, Compression::best());
        serde_json::to_writer(&mut file, self)?;
        file.finish()?;
        fs::rename(incomplete, folder.join(RESULTS))?;
        fs::write(folder.join("field.md"), self.tables())
    }

    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(RESULTS);
        let file =
            File::open(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(serde_json::from_reader(GzDecoder::new(file))?)
    }

    pub(crate) fn load(&self, name: &str, profile: &str) -> Option<&Measured> {
        self.loads.iter().find(|one| one.load == name && one.profile == profile)
    }

    /// Returns the table of a real program, of idle sessions or of counts.
    pub(crate) fn table(&self, title: &str) -> Option<&Figures> {
        let mut all = self.programs.iter().chain(&self.idle).chain(&self.counts);
        all.find(|one| one.title == title)
    }

    /// Returns how many rounds there were, and why.
    pub(crate) fn sampling(&self) -> String {
        let most = self.loads.iter().map(Measured::rounds).max().unwrap_or(self.rounds);
        let rounds = match most > self.rounds {
            true => format!(
                "{} to {most} interleaved rounds, until the intervals are within ±{:.0} %",
                self.rounds,
                self.target * 100.0
            ),
            false => format!("{} interleaved rounds", self.rounds),
        };
        format!(
            "Hosts in network namespaces, at fixed rates below saturation: {rounds}, {:.0} minutes.",
            self.seconds / 60.0
        )
    }

    fn tables(&self) -> String {
        let mut page = String::from(
            "# All numbers of the field benchmark

For readers of [benchmarks.md](../benchmarks.md) who want every number. `cargo xtask bench report`
writes this page.

- **Rows** are loads, named as `--only` takes them, and the network. rack: no delay. no offloads:
  each packet has 1,500 bytes. GRO only: the receiver merges packets. city, continent, ocean: the
  client is 1, 10 or 50 ms away.
- **Percentages of bulk** are parts of what the slowest relay carries in one flow. The rate in MB/s
  is below the table.
- **direct** has no relay: the relay's host forwards packets. **tokio 8 KiB** is
  `copy_bidirectional`, and **copy 64 KiB** and **copy 256 KiB** are it with larger buffers.
- **spliceway** is the library's `copy_bidirectional`. **again** is its second run in each round,
  the A/A control. **spliceway forward** is the program with its access log, and **no log** without
  it. **before** is an older build, for maintainers.
- **spinner**: a thread keeps the relay's core awake. **2 workers**: a runtime with two threads, on
  both cores, which the load shares. **2 × 1 worker**: two runtimes with a thread each.
- **CPU time** is that of the relay's core. **CPU ratio** is relative to tokio 8 KiB.
- **p50 + µs** is what a contender adds to the direct connection's median, which has its own in
  parentheses. A percentile is left out if its own or the direct connection's measures the load.
- **Brackets** have the 95 % interval. That of a ratio allows for the number of rounds and for the
  difference of the A/A control. An **invalid** control has an interval without 1.00. Then no ratio
  of that figure decides which relay is better.
",
        );
        let _ = writeln!(
            page,
            "\n## Origin\n\n{}\n{}",
            self.origins(),
            wrapped(&self.command_and_peers())
        );
        page.extend(self.loads.iter().map(table));
        page += "\n## F10 Real programs, rack\n";
        page.extend(self.programs.iter().map(Figures::table));
        for (title, tables) in [("Idle sessions", &self.idle), ("Counts", &self.counts)] {
            if !tables.is_empty() {
                let _ = writeln!(page, "\n## {title}");
                page.extend(tables.iter().map(Figures::table));
            }
        }
        page
    }

    /// Returns the command that measures as this run did.
    pub(crate) fn repeated(&self) -> String {
        match self.target > 0.0 {
            true => self.command.clone(),
            // This run had a fixed number of rounds.
            false => format!("cargo xtask bench field --rounds {0} --most {0}", self.rounds),
        }
    }

    /// Returns the origin of the run itself.
    fn first_origin(&self) -> Origin {
        Origin {
            commit: self.commit.clone(),
            date: self.date.clone(),
            machine: self.environment.machine.clone(),
        }
    }

    /// Returns a table of the origins of all rows.
    fn origins(&self) -> String {
        let first = self.first_origin();
        let loads = self.loads.iter().map(|one| (one.load.as_str(), &one.origin));
        let tables = self.programs.iter().chain(&self.idle).chain(&self.counts);
        // Tables of one row have the row's name before the colon.
        let tables = tables.map(|one| (one.title.split(": ").next().unwrap_or_default(), &one.origin));
        let added = self.added.iter().map(|(rows, origin)| (rows.as_str(), origin));
        let mut origins = vec![(vec!["all other rows"], &first)];
        for (row, origin) in loads.chain(tables).chain(added) {
            if origin.commit.is_empty() || (&origin.commit, &origin.machine) == (&first.commit, &first.machine) {
                continue;
            }
            match origins.iter_mut().find(|(_, one)| *one == origin) {
                Some((rows, _)) if rows.contains(&row) => {}
                Some((rows, _)) => rows.push(row),
                None => origins.push((vec![row], origin)),
            }
        }
        let mut table = String::from("| rows | commit | date | machine |\n|---|---|---|---|\n");
        for (rows, Origin { commit, date, machine }) in origins {
            let _ = writeln!(table, "| {} | {commit} | {date} | {machine} |", rows.join("; "));
        }
        table
    }

    /// Returns the command and the peers.
    fn command_and_peers(&self) -> String {
        let peers = self.environment.peers.iter();
        let peers: Vec<String> = peers.map(|(name, version)| format!("{name} {version}")).collect();
        format!(
            "`{}`: {} rounds, {:.0} minutes. Peers: {}.",
            self.command,
            self.rounds,
            self.seconds / 60.0,
            peers.join(", "),
        )
    }

    /// Returns the origin of most rows.
    fn origin(&self) -> String {
        let Origin { commit, date, machine } = self.first_origin();
        let of_run = self.command_and_peers();
        wrapped(&format!(
            "Machine: {machine}. Commit {commit}, {date}. {of_run} Some rows are from other runs: see the \
             [origin of each row](benchmarks/field.md#origin)."
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
    let page = filled(&fs::read_to_string(&path)?, &results)?;
    fs::write(path, page)
}

/// Fills the parts of the page that come from the results.
pub(crate) fn filled(page: &str, results: &Results) -> io::Result<String> {
    let summary = Summary::new(results);
    let page = replace(page, "answers", &summary::answers(&summary))?;
    let page = replace(&page, "advice", &summary::advice(&summary))?;
    let page = replace(&page, "counts", &summary::counts(results))?;
    replace(&page, "origin", &format!("{}\n", results.origin()))
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
        let cpu = measured.cpu(name);
        let ratio = measured.ratio(Figure::Cpu, name, REFERENCE);
        let decimals = if measured.is_bulk { 3 } else { 1 };
        let cells = [cpu.map(|cpu| cpu.show(decimals)), ratio.map(|ratio| ratio.show(2))].map(or_dash);
        let _ = write!(page, "| {name} | {} |", cells.join(" | "));
        let mut faults: Vec<(String, Vec<&str>)> = Vec::new();
        for (part, percentile) in PERCENTILES {
            let (added, fault) = match name == DIRECT {
                true => {
                    let own = measured.quantile(name, part).map(|micros| format!("({micros:.0})"));
                    (own, measured.unreliable(Figure::Latency(part), name))
                }
                false => {
                    let added = measured.added(name, part).map(|added| added.show(0));
                    (added, measured.added_fault(name, part))
                }
            };
            let _ = write!(page, " {} |", or_dash(added.filter(|_| fault.is_none())));
            // The row of the direct connection says why its own percentile is left out.
            let Some(why) = fault.filter(|why| why != DIRECT_OMITTED) else {
                continue;
            };
            match faults.iter_mut().find(|(one, _)| *one == why) {
                Some((_, percentiles)) => percentiles.push(percentile),
                None => faults.push((why, vec![percentile])),
            }
        }
        remarks.extend(
            faults
                .iter()
                .map(|(why, percentiles)| format!("{}: {why}", percentiles.join(", "))),
        );
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

/// Shows an A/A control, and whether it is invalid.
pub(crate) fn control(control: Estimate) -> String {
    let invalid = if contains_one(control) { "" } else { " (invalid)" };
    format!("{}{invalid}", control.show(2))
}

/// Returns the A/A control, the rate of a bulk load, and the worst values of the set-up.
fn under_the_table(measured: &Measured) -> String {
    let mut page = String::from("\n");
    let figures = PERCENTILES.map(|(part, name)| (Figure::Latency(part), name));
    let controls: Vec<String> = [(Figure::Cpu, "CPU time")]
        .into_iter()
        .chain(figures)
        .filter_map(|(figure, name)| Some(format!("{name} {}", control(measured.control(figure)?))))
        .collect();
    if !controls.is_empty() {
        let _ = writeln!(page, "{}", wrapped(&format!("A/A control: {}.", controls.join(", "))));
    }
    let carried = measured.runs_of(DIRECT).map(|run| run.bytes as f64 / run.wall);
    if let Some(rate) = carried.reduce(f64::max).filter(|_| measured.is_bulk) {
        let _ = writeln!(page, "The direct connection carried {:.0} MB/s.", rate / 1e6);
    }
    let most = |of: &dyn Fn(&Run) -> f64| measured.runs.iter().map(of).fold(0.0, f64::max);
    let _ = writeln!(
        page,
        "The generator's p99 lateness was at most {:.0} µs in any run.\n\
         The load generator's core was at most {:.0} % busy.",
        most(&|run| run.lateness.quantile(0.99).unwrap_or(0.0)),
        most(&|run| run.load_busy) * 100.0
    );
    let disturbed = measured.runs.iter().filter(|run| run.disturbed > CALM).count();
    if disturbed > 0 {
        let _ = writeln!(page, "Others disturbed {disturbed} of {} runs.", measured.runs.len());
    }
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
}
