//! The saved counts in `instructions.toml`, and the comparison of other counts with them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Counts by section and name, and the compiler that produced them. A count depends on the compiler
/// as much as on the code.
#[derive(Debug, PartialEq)]
pub(super) struct Baseline {
    rustc: String,
    counts: BTreeMap<(String, String), f64>,
}

/// Returns the permitted difference between a count and the baseline, as a fraction of the
/// baseline.
///
/// - A pool hit runs the same instructions each time. So do a message and a round of splices
///   without a runtime.
/// - Trips differ by the polls that find no data, when data arrives early or late (observed: 0.4 %
///   between runs on one machine).
/// - Sessions consist almost entirely of such polls, and differ by more (14 %).
/// - A MiB differs by half or more, because the scheduler decides how much each splice moves. Its
///   bound only shows whether bulk is copied.
fn tolerance(name: &str) -> f64 {
    match name {
        "hit" | "message" | "round" => 0.02,
        "trip" => 0.05,
        "session" => 0.5,
        _ => 3.0,
    }
}

impl Baseline {
    pub(super) fn of_this_build() -> Self {
        Self {
            rustc: env!("SPLICEWAY_RUSTC").into(),
            counts: BTreeMap::new(),
        }
    }

    pub(super) fn set(&mut self, section: &str, name: &str, count: f64) {
        self.counts.insert((section.into(), name.into()), count.round());
    }

    /// Compares these counts with the file. Skips the comparison if the file comes from another
    /// compiler.
    ///
    /// # Errors
    /// Returns an error that names the counts that are above the file's counts, and the counts that
    /// the file does not have.
    #[expect(clippy::print_stdout, reason = "this is the program's result")]
    pub(super) fn check(&self) -> io::Result<()> {
        let baseline = Self::parse(&fs::read_to_string(path())?);
        if baseline.rustc != self.rustc {
            println!(
                "not compared: the baseline is of {}, this is {}",
                baseline.rustc, self.rustc
            );
            return Ok(());
        }
        let (above, below) = self.against(&baseline);
        for line in &below {
            println!("{line}: better; keep it with `cargo xtask instructions --bless`");
        }
        if above.is_empty() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{}\nIf this is intended, run `cargo xtask instructions --bless` and give the reason in the commit",
            above.join("\n")
        )))
    }

    /// Returns the counts that are above the baseline by more than the tolerance, and those that
    /// are below it by more than that.
    fn against(&self, baseline: &Self) -> (Vec<String>, Vec<String>) {
        let (mut above, mut below) = (Vec::new(), Vec::new());
        for (key @ (section, name), count) in &self.counts {
            let Some(was) = baseline.counts.get(key) else {
                above.push(format!("{section}.{name}: {count}, and no baseline"));
                continue;
            };
            let line = format!("{section}.{name}: {count}, baseline {was}");
            match count / was - 1.0 {
                by if by > tolerance(name) => above.push(line),
                by if by < -tolerance(name).min(0.5) => below.push(line),
                _ => {}
            }
        }
        (above, below)
    }

    /// Writes the file.
    pub(super) fn bless(&self) -> io::Result<()> {
        fs::write(path(), self.text())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Instructions in user space, as `cargo xtask instructions --bless` wrote them.\nrustc = \"{}\"\n",
            self.rustc
        );
        let mut last = "";
        for ((section, name), count) in &self.counts {
            if section != last {
                let _ = write!(text, "\n[{section}]\n");
                last = section;
            }
            let _ = writeln!(text, "{name} = {count}");
        }
        text
    }

    /// Reads the part of TOML that [`Self::text`] writes.
    fn parse(text: &str) -> Self {
        let (mut rustc, mut counts, mut section) = (String::new(), BTreeMap::new(), "");
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((name, value)) = line.split_once(" = ") {
                match value.parse() {
                    Ok(count) => drop(counts.insert((section.into(), name.into()), count)),
                    Err(_) => rustc = value.trim_matches('"').into(),
                }
            }
        }
        Self { rustc, counts }
    }
}

fn path() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "instructions.toml"].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(hit: f64) -> Baseline {
        let mut baseline = Baseline::of_this_build();
        baseline.set("pool", "hit", hit);
        baseline.set("relay", "mib", 1000.0);
        baseline
    }

    #[test]
    fn a_saved_baseline_is_read_back() {
        assert_eq!(Baseline::parse(&with(1000.0).text()), with(1000.0));
    }

    #[test]
    fn a_count_outside_its_tolerance_is_reported_above_and_below() {
        for (hit, above, below) in [(1019.0, 0, 0), (1021.0, 1, 0), (981.0, 0, 0), (979.0, 0, 1)] {
            let found = with(hit).against(&with(1000.0));
            assert_eq!((found.0.len(), found.1.len()), (above, below), "{hit}");
        }
    }

    #[test]
    fn a_count_without_a_baseline_is_reported() {
        assert_eq!(with(1.0).against(&Baseline::of_this_build()).0.len(), 2);
    }
}
