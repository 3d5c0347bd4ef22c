//! Rules about documents: everything that they name must exist.

use super::repository::{File, Line, Repository};
use super::{Finding, regex};

/// Every relative link in every Markdown file leads to a file.
pub(crate) fn links(repository: &Repository) -> Vec<Finding> {
    let link = regex(r#"(?:\]\(|\]: |src="|href=")([^)"\s#]+)"#);
    let mut findings = Vec::new();
    for line in repository.markdown().flat_map(prose_lines) {
        let targets = link.captures_iter(line.text).map(|found| found.extract::<1>().1[0]);
        let relative = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
        findings.extend(
            relative
                .filter(|target| !resolve(line.path, target).is_some_and(|path| repository.has(&path)))
                .map(|target| line.finding(&format!("the link `{target}` leads nowhere"))),
        );
    }
    findings
}

/// Returns the lines outside fenced code blocks.
pub(crate) fn prose_lines(file: &File) -> impl Iterator<Item = Line<'_>> {
    let mut in_code = false;
    file.lines().filter(move |line| {
        let is_fence = line.text.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the target as a path from the root, or `None` if the path leaves the repository.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Every path that ARCHITECTURE.md names exists.
pub(crate) fn code_map(repository: &Repository) -> Vec<Finding> {
    let path = regex(r"`((?:crates|docs|xtask|bench|testing|fuzz)/[\w./-]+|[\w./-]+\.rs)`");
    let Some(map) = repository.file("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: does not exist".into()];
    };
    let named = map.lines().flat_map(|line| {
        let paths = path.captures_iter(line.text).map(|found| found.extract::<1>().1[0]);
        paths.map(move |path| (line, path)).collect::<Vec<_>>()
    });
    let exists = |path: &str| {
        repository.has(path.trim_end_matches('/'))
            || repository.rust().any(|file| file.path.ends_with(&format!("/{path}")))
    };
    named
        .filter(|(_, path)| !exists(path))
        .map(|(line, path)| line.finding(&format!("`{path}` does not exist")))
        .collect()
}

/// The README shows the commands that CI runs.
pub(crate) fn commands(repository: &Repository) -> Vec<Finding> {
    let expected = [
        ("README.md", "cargo test --workspace"),
        (".ci/run", "cargo xtask ci"),
        ("xtask/src/main.rs", "\"cargo test --workspace\""),
    ];
    expected
        .iter()
        .filter(|(path, command)| !repository.file(path).is_some_and(|file| file.text.contains(command)))
        .map(|(path, command)| format!("{path}: expected `{command}`"))
        .collect()
}
