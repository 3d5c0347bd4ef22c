//! The rule about docs/faults.md: every fault of the field has a row, and every test that a row names exists.

use super::Finding;
use super::source::{File, Repository, words};

const CATALOGUE: &str = "docs/faults.md";

/// The faults are numbered, and a number that is missing is a fault nobody tests.
const NUMBERS: std::ops::RangeInclusive<u8> = 1..=77;

/// Numbers whose tests are being written. Empty when the catalogue is complete.
pub(crate) const NOT_YET: &[u8] = &[];

/// Each number once, each row with a test, each test named a test of the file that its path says.
pub(crate) fn faults(repository: &Repository) -> Vec<Finding> {
    let Some(file) = repository.file(CATALOGUE) else {
        return vec![format!("{CATALOGUE}: does not exist")];
    };
    let rows: Vec<Row<'_>> = file.text.lines().enumerate().filter_map(Row::parse).collect();
    let mut findings = Vec::new();
    for row in &rows {
        if row.tests.is_empty() {
            findings.push(format!("{}: names no test", file.at(row.index)));
        }
        for test in row.tests.iter().filter(|test| !exists(repository, test)) {
            findings.push(format!("{}: there is no test `{test}`", file.at(row.index)));
        }
    }
    let times = |number| rows.iter().filter(|row| row.number == Some(number)).count();
    for number in NUMBERS {
        match (times(number), NOT_YET.contains(&number)) {
            (1, false) | (0, true) => {}
            (1, true) => findings.push(format!("{CATALOGUE}: has fault {number}; take it off NOT_YET")),
            (times, _) => findings.push(format!(
                "{CATALOGUE}: expected one row of fault {number}, there are {times}"
            )),
        }
    }
    for row in &rows {
        if row.number.is_some_and(|number| !NUMBERS.contains(&number)) {
            findings.push(format!("{}: expected a number of {NUMBERS:?}", file.at(row.index)));
        }
    }
    findings
}

/// A row of one of the tables: `| number | fault | test |`, or without a number.
struct Row<'a> {
    index: usize,
    number: Option<u8>,
    /// `crate: module::test`
    tests: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// `None` for what is no row, or the head of a table, or the rule under it.
    fn parse((index, line): (usize, &'a str)) -> Option<Self> {
        let cells: Vec<&str> = line
            .strip_prefix('|')?
            .strip_suffix('|')?
            .split('|')
            .map(str::trim)
            .collect();
        let last = *cells.last()?;
        let is_head = last == "test" || last.chars().all(|c| c == '-');
        (!is_head).then(|| Self {
            index,
            number: cells[0].parse().ok(),
            // A command (of a run too long for every day) may stand beside tests, and is none.
            tests: last
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|code| !code.starts_with("cargo "))
                .collect(),
        })
    }
}

/// Whether `crate: module::test` is a test function of `tests/it/module.rs` of that crate, or, where the module ends in
/// `tests`, of the file in `src` that the module is part of.
fn exists(repository: &Repository, test: &str) -> bool {
    let Some((package, path)) = test.split_once(": ") else {
        return false;
    };
    let mut path: Vec<&str> = path.split("::").collect();
    let Some(name) = path.pop() else { return false };
    let folder = if path.last() == Some(&"tests") {
        path.pop();
        "src"
    } else {
        "tests/it"
    };
    let tested = package.strip_prefix("spliceway-").unwrap_or(package);
    [format!("crates/{package}"), format!("testing/{tested}")]
        .iter()
        .map(|root| format!("{root}/{folder}/{}", path.join("/")))
        .flat_map(|module| [".rs", "/mod.rs", "/tests.rs"].map(|end| module.clone() + end))
        .filter_map(|path| repository.file(&path))
        .any(|file| is_test(file, name))
}

/// Whether the file has a function of that name under a test attribute, tokio's or another's included.
fn is_test(file: &File, name: &str) -> bool {
    let code = &file.code;
    let named: Vec<(usize, &str)> = words(code).collect();
    named
        .windows(2)
        .filter(|pair| pair[0].1 == "fn" && pair[1].1 == name)
        .any(|pair| {
            let before = &code[..pair[0].0];
            let attributes = &before[before.rfind(['{', '}', ';']).map_or(0, |end| end + 1)..];
            attributes.contains("#[test]") || attributes.contains("::test]") || attributes.contains("::test(")
        })
}
