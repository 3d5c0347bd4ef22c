//! The folders of the program depend in one direction.

use std::collections::HashSet;

use super::repository::{File, Line, Repository};
use super::{Finding, regex};

/// Where the folders are.
const PROGRAM: &str = "crates/spliceway-proxy/src/";
/// Code in a folder may use its own folder and the ones before it. So a reader who looks for the
/// cause of something knows in which direction to go, and no two folders depend on each other.
pub(crate) const FOLDERS: &[&str] = &[
    "kit", "log", "net", "access", "tls", "reach", "metrics", "settings", "session", "monitor", "run", "cli",
];

/// Finds code that uses a later folder. Test code may use everything.
pub(crate) fn direction(repository: &Repository) -> Vec<Finding> {
    let program = repository.rust().filter(|file| file.path.starts_with(PROGRAM));
    program.flat_map(against_the_direction).collect()
}

fn against_the_direction(file: &File) -> Vec<Finding> {
    let module = file.path.trim_start_matches(PROGRAM).trim_end_matches(".rs");
    let parts: Vec<_> = module.split('/').collect();
    if module == "main" || parts.contains(&"tests") {
        return Vec::new();
    }
    let position = |folder: &str| FOLDERS.iter().position(|known| *known == folder);
    let Some(own) = position(parts[0]) else {
        let order = FOLDERS.join(", ");
        return vec![format!(
            "{}: no folder of the program has this file: expected one of {order} (xtask/tests/tidy/folders.rs)",
            file.path
        )];
    };
    // `crate::{a, b}` would hide the folders, and so would `super` up to the root.
    let (used, hidden) = (regex(r"\bcrate::(\w+)"), regex(r"\bcrate::\{|\bcrate::\*"));
    let root = regex(&format!(r"(^|[^:])\b(super::){{{}}}", parts.len()));
    let tests: HashSet<_> = file.test_lines().map(|line| line.number).collect();
    let is_code = |line: &Line<'_>| !line.is_comment() && !tests.contains(&line.number);
    let mut findings = Vec::new();
    for line in file.lines().filter(is_code) {
        if hidden.is_match(line.text) || root.is_match(line.text) {
            findings.push(line.finding("name the folder: crate::FOLDER::…"));
        }
        for path in used.captures_iter(line.text) {
            let folder = &path[1];
            match position(folder) {
                Some(other) if other <= own => {}
                Some(_) => findings.push(line.finding(&format!(
                    "{} may not use {folder}, which is above it (ARCHITECTURE.md)",
                    parts[0]
                ))),
                None => findings.push(line.finding(&format!("there is no folder {folder}"))),
            }
        }
    }
    findings
}
