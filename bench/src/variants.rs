//! This program against itself, built of sources that differ by a number: the curves of `docs/defaults.md`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::arms::Arm;
use crate::machine;
use crate::report;
use crate::report::json::is_of;
use crate::scenario;
use crate::suite;

static PROGRAMS: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();

/// Each of `names` are scenarios of `all`, or beginnings of them. Ratios are to the first program.
pub(crate) fn run(programs: &[PathBuf], names: &[String], rounds: usize) -> io::Result<()> {
    let scenarios = suite::scenarios();
    if let Some(unknown) = names
        .iter()
        .find(|name| !scenarios.iter().any(|one| is_of(&one.id(), name)))
    {
        return Err(io::Error::other(format!("there is no scenario {unknown}")));
    }
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::raise_descriptor_limit(0)?;
    PROGRAMS
        .set(programs.iter().map(|path| (name(path), path.clone())).collect())
        .expect("they are set once");
    let arms: Vec<Arm> = (0..programs.len()).map(Arm::Variant).collect();
    let chosen = scenarios
        .iter()
        .filter(|one| names.iter().any(|name| is_of(&one.id(), name)));
    for scenario in chosen {
        let table = scenario::run(scenario.as_ref(), &arms, rounds)?;
        report::print_table(&table, &conditions);
    }
    Ok(())
}

/// The last part of its path: variants are told apart by it.
fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// The name of one of them, and the program.
pub(crate) fn program(index: usize) -> (&'static str, &'static Path) {
    let (name, path) = &PROGRAMS.get().expect("arms of variants are made of them")[index];
    (name, path)
}
