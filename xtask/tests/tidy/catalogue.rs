//! The rule about docs/faults.md: every fault has a row, and every test that a row names exists.

use std::collections::{HashMap, HashSet};

use super::repository::Repository;
use super::{Finding, regex, tests};

const CATALOGUE: &str = "docs/faults.md";

/// The numbers of the faults. A number without a row is a fault without a test.
const NUMBERS: std::ops::RangeInclusive<u8> = 1..=140;

pub(crate) fn faults(repository: &Repository) -> Vec<Finding> {
    let Some(file) = repository.file(CATALOGUE) else {
        return vec![format!("{CATALOGUE}: does not exist")];
    };
    let existing: HashSet<String> = tests(repository)
        .filter_map(|(line, name)| id(line.path, name))
        .collect();
    let code = regex("`([^`]*)`");
    let (mut findings, mut rows) = (Vec::new(), HashMap::<u8, usize>::new());
    for line in file.lines() {
        let Some(cells) = line.text.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let last = cells[cells.len() - 1];
        if last == "test" || last.starts_with("---") {
            continue;
        }
        if let Ok(number) = cells[0].parse() {
            *rows.entry(number).or_default() += 1;
        }
        let named: Vec<&str> = code
            .captures_iter(last)
            .map(|found| found.extract::<1>().1[0])
            .collect();
        if named.is_empty() {
            findings.push(line.finding("expected a test"));
        }
        // A row may also name a command whose run is too long for the daily tests.
        let missing = named
            .iter()
            .filter(|test| !test.starts_with("cargo ") && !existing.contains(**test));
        findings.extend(missing.map(|test| line.finding(&format!("there is no test `{test}`"))));
    }
    let wrong = NUMBERS.filter(|number| rows.get(number) != Some(&1));
    findings.extend(wrong.map(|number| format!("{CATALOGUE}: expected one row of fault {number}")));
    let unknown = rows.keys().filter(|number| !NUMBERS.contains(number));
    findings.extend(unknown.map(|number| format!("{CATALOGUE}: expected numbers of {NUMBERS:?}, found {number}")));
    findings
}

/// Returns `crate: module::test`, the form in which the catalogue names tests.
fn id(path: &str, test: &str) -> Option<String> {
    let (folder, rest) = path.strip_suffix(".rs")?.split_once('/')?;
    let (package, module) = rest.split_once('/')?;
    let package = match folder {
        "crates" => package.to_owned(),
        "testing" => format!("spliceway-{package}"),
        _ => return None,
    };
    let module = match module.strip_prefix("tests/it/") {
        Some(module) => module.to_owned(),
        None => format!("{}/tests", module.strip_prefix("src/")?.trim_end_matches("/tests")),
    };
    Some(format!("{package}: {}::{test}", module.replace('/', "::")))
}
