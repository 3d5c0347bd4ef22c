//! The results of a run, in a file: written after each scenario, read again to go on and to write the documents from.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;

use super::apart::Apart;
use super::environment::Environment;
use crate::arms::Role;
use crate::scenario::{Better, Figure, Table};

/// All that was measured under the same conditions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) environment: Environment,
    /// What was run, in order: a run that was cut short, or that measured some scenarios anew, adds its own.
    pub(crate) commands: Vec<String>,
    pub(crate) scenarios: Vec<Measured>,
    /// What is not of relays. Older files have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) apart: Vec<Apart>,
}

/// What came of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Names it in files: `bulk-64`.
    pub(crate) id: String,
    /// Names it for readers, in parts: "bulk, 64 flows, 2 GiB".
    pub(crate) title: String,
    pub(crate) rounds: usize,
    pub(crate) figures: Vec<Quantity>,
    pub(crate) rows: Vec<Samples>,
    pub(crate) skipped: Vec<Skipped>,
}

/// A [`Figure`], read from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantity {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) decimals: usize,
    pub(crate) better: Better,
}

/// What one relay showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) arm: String,
    pub(crate) role: Role,
    /// By figure, then by round.
    pub(crate) samples: Vec<Vec<f64>>,
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) arm: String,
    pub(crate) why: String,
}

impl Results {
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            environment,
            commands: Vec::new(),
            scenarios: Vec::new(),
            apart: Vec::new(),
        }
    }

    /// `None` where there is no such file.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let failed = |error| io::Error::other(format!("{}: {error}", path.display()));
        serde_json::from_str(&text).map(Some).map_err(failed)
    }

    /// Writes all of it to a new file and moves that over the old one, so that there is a whole file at any time.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut text = Vec::new();
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Lines::default()))?;
        text.push(b'\n');
        let new = path.with_extension("json.new");
        fs::write(&new, text)?;
        fs::rename(&new, path)
    }

    /// Replaces what there is of the same scenario.
    pub(crate) fn put(&mut self, measured: Measured) {
        match self.scenarios.iter_mut().find(|old| old.id == measured.id) {
            Some(old) => *old = measured,
            None => self.scenarios.push(measured),
        }
    }

    /// The same for what is apart.
    pub(crate) fn put_apart(&mut self, measured: Apart) {
        match self.apart.iter_mut().find(|old| old.id == measured.id) {
            Some(old) => *old = measured,
            None => self.apart.push(measured),
        }
    }
}

impl From<&Figure> for Quantity {
    fn from(figure: &Figure) -> Self {
        Self {
            name: figure.name.into(),
            unit: figure.unit.into(),
            decimals: figure.decimals,
            better: figure.better,
        }
    }
}

impl Measured {
    /// Whether the scenario is named by `name`, or one of those whose names begin with it: `rr-64` has `rr-64-8`, and not `rr-640-8`.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        is_of(&self.id, name)
    }

    /// The name without its last part, which tells it from those of its kind: `rr-64` of `rr-64-8`.
    pub(crate) fn kind(&self) -> &str {
        self.id.rsplit_once('-').map_or(&self.id, |(kind, _)| kind)
    }
}

pub(crate) fn is_of(id: &str, name: &str) -> bool {
    id.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

impl From<Table> for Measured {
    fn from(table: Table) -> Self {
        let samples = |row: crate::scenario::Row| Samples {
            arm: row.arm.name().into(),
            role: row.arm.role(),
            samples: row
                .samples
                .into_iter()
                .map(|samples| samples.into_iter().map(six_digits).collect())
                .collect(),
        };
        let skipped = |(arm, why): (crate::arms::Arm, String)| Skipped {
            arm: arm.name().into(),
            why,
        };
        Self {
            id: table.id,
            title: table.title,
            rounds: table.rounds,
            figures: table.figures.iter().map(Quantity::from).collect(),
            rows: table.rows.into_iter().map(samples).collect(),
            skipped: table.skipped.into_iter().map(skipped).collect(),
        }
    }
}

/// What a figure is fine to, and more than any is repeatable to.
pub(super) fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().expect("a number as it was printed")
}

/// Lines down to the rows of a scenario, each of which is one line: a file that people and `git diff` can read.
#[derive(Default)]
struct Lines {
    depth: usize,
}

/// The results, their scenarios, one of these, its rows.
const DEEPEST: usize = 4;

impl Lines {
    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        if self.depth <= DEEPEST {
            write!(writer, "\n{:width$}", "", width = self.depth)?;
        }
        Ok(())
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, sign: &[u8]) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(sign)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, sign: &[u8]) -> io::Result<()> {
        let is_line = self.depth <= DEEPEST;
        self.depth -= 1;
        if is_line {
            self.new_line(writer)?;
        }
        writer.write_all(sign)
    }

    fn separate<W: ?Sized + Write>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        self.new_line(writer)
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.separate(writer, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_a_row_is_a_line() {
        let mut results = Results::new(Environment::default());
        results.put(super::super::tests::scenario(
            "bulk-1",
            &[("CPU", Better::Lower)],
            &[
                ("ours", Role::Ours, &[&[0.1, 0.2]]),
                ("tokio", Role::Peer, &[&[0.3, 0.4]]),
            ],
        ));
        results.put_apart(super::super::apart::tests::apart());
        let folder = std::env::temp_dir().join(format!("spliceway-results-{}", std::process::id()));
        let path = folder.join("deeper/results.json");
        results.write(&path).expect("written");
        let text = fs::read_to_string(&path).expect("there");
        let read = Results::read(&path).expect("readable").expect("there");
        fs::remove_dir_all(&folder).expect("ours to remove");
        assert_eq!(read.scenarios, results.scenarios);
        assert_eq!(read.environment, results.environment);
        assert_eq!(read.apart, results.apart);
        assert!(
            text.contains("\n    {\"arm\":\"ours\",\"role\":\"ours\",\"samples\":[[0.1,0.2]]}"),
            "{text}"
        );
        assert!(Results::read(&path).expect("no error").is_none(), "removed");
    }

    #[test]
    fn a_file_from_before_there_was_anything_apart_is_read() {
        let text =
            r#"{"environment":{"machine":"","conditions":"","sysctls":{},"peers":{}},"commands":[],"scenarios":[]}"#;
        let read: Results = serde_json::from_str(text).expect("readable");
        assert!(read.apart.is_empty());
    }

    #[test]
    fn a_scenario_measured_again_replaces_itself_and_no_other() {
        let of = |id| super::super::tests::scenario(id, &[("CPU", Better::Lower)], &[]);
        let mut results = Results::new(Environment::default());
        results.put(of("rr-64-1"));
        results.put(of("rr-64-8"));
        let mut again = of("rr-64-1");
        again.rounds = 9;
        results.put(again);
        let rounds: Vec<_> = results
            .scenarios
            .iter()
            .map(|one| (one.id.as_str(), one.rounds))
            .collect();
        assert_eq!(rounds, [("rr-64-1", 9), ("rr-64-8", 1)]);
    }

    #[test]
    fn a_name_stands_for_itself_and_for_those_that_go_on_with_a_dash() {
        for (name, expected) in [
            ("rr", true),
            ("rr-64", true),
            ("rr-64-8", true),
            ("rr-6", false),
            ("r", false),
        ] {
            assert_eq!(is_of("rr-64-8", name), expected, "{name}");
        }
    }
}
