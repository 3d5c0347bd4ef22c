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

use crate::charts;
use crate::contender::{DIRECT, REFERENCE};
use crate::environment::Environment;
use crate::figures::Figures;
use crate::meter::CALM;
use crate::results::{Figure, Measured, PERCENTILES, Run};
use crate::summary::{self, Summary};

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

CPU time is the time of the relay's core. Latency is what a contender adds to the direct connection,
in µs. The row of the direct connection has its own latency, in brackets. Ratios are to tokio. The
brackets after a value are its 95 % interval. That of a ratio allows for the number of rounds and
for the difference of the A/A control.
",
        );
        let _ = writeln!(page, "\n{}", self.origin());
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

    /// Returns the machine, the peers, the commit and the command.
    fn origin(&self) -> String {
        let peers: Vec<String> = self
            .environment
            .peers
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let loads = self.loads.iter().map(|one| (&one.commit, &one.load));
        let tables = self.programs.iter().chain(&self.idle).chain(&self.counts);
        let later: Vec<String> = loads
            .chain(tables.map(|one| (&one.commit, &one.title)))
            .filter(|(commit, _)| !commit.is_empty() && **commit != self.commit)
            .map(|(commit, title)| format!("{title} ({commit})"))
            .collect();
        let later = match later.is_empty() {
            true => String::new(),
            false => format!(" Other commits: {}.", later.join(", ")),
        };
        wrapped(&format!(
            "Machine: {}. Peers: {}. Commit {}.{later} `{}`, {} rounds, {:.0} minutes.",
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
        for (part, percentile) in PERCENTILES {
            let fault = measured.unreliable(Figure::Latency(part), name);
            let added = match name == DIRECT {
                true => measured.quantile(name, part).map(|micros| format!("({micros:.0})")),
                false => measured.added(name, part).map(|added| added.show(0)),
            };
            let _ = write!(page, " {} |", or_dash(added.filter(|_| fault.is_none())));
            remarks.extend(fault.map(|why| format!("{percentile}: {why}")));
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

/// Returns the A/A control, and the worst values of the set-up.
fn under_the_table(measured: &Measured) -> String {
    let mut page = String::from("\n");
    let figures = PERCENTILES.map(|(part, name)| (Figure::Latency(part), name));
    let controls: Vec<String> = [(Figure::Cpu, "CPU time")]
        .into_iter()
        .chain(figures)
        .filter_map(|(figure, name)| Some(format!("{name} {}", measured.control(figure)?.show(2))))
        .collect();
    if !controls.is_empty() {
        let _ = writeln!(page, "{}", wrapped(&format!("A/A control: {}.", controls.join(", "))));
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
