//! Rules about documents: what they point at exists, and what they must say they say.

use super::Finding;
use super::source::{File, Repository};

/// Every relative link of every Markdown file.
pub(crate) fn links(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, target) in relative_links(file) {
            let resolved = resolve(&file.path, target);
            if !resolved.as_deref().is_some_and(|path| repository.has(path)) {
                findings.push(format!("{}: the link `{target}` leads nowhere", file.at(index)));
            }
        }
    }
    findings
}

/// Targets of `[…](…)`, `[…]: …` and HTML attributes outside of code blocks, without what follows `#`.
fn relative_links(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let prose = file.text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    let openers = ["](", "]: ", "src=\"", "srcset=\"", "href=\""];
    let targets = prose.flat_map(move |(index, line)| {
        let ends = openers
            .into_iter()
            .flat_map(|opener| line.match_indices(opener).map(|(at, opener)| at + opener.len()));
        let target = |start: usize| line[start..].split([')', '"', ' ', '#']).next().unwrap_or_default();
        ends.map(move |start| (index, target(start)))
    });
    targets.filter(|(_, target)| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

/// The target from the root of the repository; `None` if it leaves it.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        from.split('/').collect()
    };
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
    let Some(map) = repository.file("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: does not exist".into()];
    };
    let named = map
        .text
        .lines()
        .enumerate()
        .flat_map(|(index, line)| paths(line).map(move |path| (index, path)));
    named
        .filter(|(_, path)| !exists(repository, path))
        .map(|(index, path)| format!("{}: `{path}` does not exist", map.at(index)))
        .collect()
}

/// Words that look like paths of this repository: below one of its folders, or ending in `.rs`. (`*/a.rs` is some `a.rs`.)
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let in_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let words = text
        .split(move |c| !in_path(c))
        .map(|word| word.trim_start_matches('/').trim_end_matches(['.', '/']));
    let folders = ["crates/", "docs/", "xtask/", "bench/", "testing/", "fuzz/", ".ci/"];
    words.filter(move |word| word.ends_with(".rs") || folders.iter().any(|folder| word.starts_with(folder)))
}

/// From the root if it starts there, else the end of some path.
fn exists(repository: &Repository, path: &str) -> bool {
    repository.has(path)
        || (path.ends_with(".rs") && repository.rust().any(|file| file.path.ends_with(&format!("/{path}"))))
}

/// A newcomer's two commands are in the README as they are typed, and CI runs the checks and, within them, the second of those.
pub(crate) fn commands(repository: &Repository) -> Vec<Finding> {
    if repository.file("README.md").is_none() {
        eprintln!("README.md is not written yet: its commands are not checked");
    }
    let expected = [
        ("README.md", "cargo run --release -- socks5"),
        ("README.md", "cargo test --workspace"),
        (".ci/run", "cargo xtask ci"),
        ("xtask/src/main.rs", "\"cargo test --workspace\""),
    ];
    let lacks = |(path, command): &(&str, &str)| match repository.file(path) {
        Some(file) => !file.text.contains(command),
        None => *path != "README.md",
    };
    expected
        .iter()
        .filter(|expected| lacks(expected))
        .map(|(path, command)| format!("{path}: expected to contain `{command}`"))
        .collect()
}
