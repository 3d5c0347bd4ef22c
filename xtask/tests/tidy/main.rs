//! The rules the repository checks itself by: each test is one rule, each failure names file and line and what was expected.
//!
//! The rules are functions of a [`Repository`], so that `faults.rs` can show each of them a fault and see it caught.
#![forbid(unsafe_code)]

mod catalogue;
mod documents;
mod faults;
mod source;

use std::path::Path;
use std::process::Command;

use source::{File, Repository, words};

/// Where `unsafe` may stand, and why nothing safe does the same.
const UNSAFE_FILES: &[(&str, &str)] = &[
    (
        "crates/spliceway-core/src/sys.rs",
        "TCP_ULP, and calls on descriptors that may be closed, have no safe wrapper",
    ),
    (
        "crates/spliceway/src/identity.rs",
        "a stream's concrete type is found by its type identity, at no cost",
    ),
    (
        "testing/net/src/tun.rs",
        "TUNSETIFF and TUNSETOFFLOAD have no safe wrapper; it ships with nothing",
    ),
    (
        "testing/faults/src/sys.rs",
        "seccomp's user notifications and timers at a thread have no safe wrapper; it ships with nothing",
    ),
];

/// What a crate does without: dependencies point one way, and each boundary is an absence.
const ABSENCES: &[Absence] = &[
    Absence {
        folder: "crates/spliceway-core/",
        never: &["tokio", "futures", "tracing", "clap", "spliceway", "spliceway_proxy"],
        not_directly: &["spliceway_faults", "spliceway_net"],
        behind_a_feature: &[],
    },
    Absence {
        folder: "crates/spliceway/",
        never: &["tracing", "clap", "axum", "spliceway_proxy"],
        not_directly: &["libc", "rustix", "spliceway_faults", "spliceway_net"],
        behind_a_feature: &[("hyper", "crates/spliceway/src/upgraded.rs")],
    },
    Absence {
        folder: "crates/spliceway-proxy/",
        never: &[],
        not_directly: &["libc", "spliceway_core", "spliceway_faults", "spliceway_net"],
        behind_a_feature: &[],
    },
];

struct Absence {
    folder: &'static str,
    /// Neither named nor linked through whatever crate it comes.
    never: &'static [&'static str],
    /// Not named by what ships, though it is there below one that is named; tests may.
    not_directly: &'static [&'static str],
    /// Not linked unless a feature asks for it, and named in the sources by one file, which is that feature; tests and examples may.
    behind_a_feature: &'static [(&'static str, &'static str)],
}

impl Absence {
    fn is_behind_a_feature(&self, name: &str) -> bool {
        self.behind_a_feature.iter().any(|(head, _)| forbids(&[head], name))
    }

    fn is_outside_its_feature(&self, name: &str, path: &str) -> bool {
        let in_sources = path.starts_with(&format!("{}src/", self.folder));
        in_sources
            && self
                .behind_a_feature
                .iter()
                .any(|(head, file)| forbids(&[head], name) && path != *file)
    }
}

/// A file that needs more has two subjects. (The longest are read top-down in one sitting.)
const FILE_LINES_MAX: usize = 600;

/// What fits a screen with its signature.
const FUNCTION_LINES_MAX: usize = 70;

/// Words of a comment, on the line or above it, that turn a rule off there. What follows must be the reason.
const SLEEP_REASON: &str = "sleeps because ";
const PORT_REASON: &str = "port because ";

/// One breach: where, and what was expected there.
type Finding = String;

#[test]
fn unsafe_stands_only_in_the_files_with_a_reason() {
    check(unsafe_code);
}

#[test]
fn dependencies_point_one_way_in_sources_and_manifests() {
    check(dependency_direction);
}

#[test]
fn dependencies_point_one_way_in_the_whole_tree() {
    check(dependency_trees);
}

#[test]
fn the_msrv_is_stated_once() {
    check(msrv);
}

#[test]
fn every_crate_inherits_the_workspace_lints() {
    check(inherited_lints);
}

#[test]
fn tests_await_events_instead_of_time() {
    check(sleeps);
}

#[test]
fn tests_let_the_kernel_choose_ports() {
    check(fixed_ports);
}

#[test]
fn nothing_is_ignored_or_left_to_do() {
    check(unfinished);
}

#[test]
fn files_and_functions_are_short() {
    check(lengths);
}

#[test]
fn links_between_documents_resolve() {
    check(documents::links);
}

#[test]
fn the_architecture_names_only_files_that_exist() {
    check(documents::code_map);
}

#[test]
fn the_readme_and_ci_run_the_same_commands() {
    check(documents::commands);
}

#[test]
fn every_fault_of_the_field_names_tests_that_exist() {
    check(catalogue::faults);
}

fn check(rule: fn(&Repository) -> Vec<Finding>) {
    let findings = rule(&Repository::open(root()));
    assert!(
        findings.is_empty(),
        "{} finding(s):\n{}\n",
        findings.len(),
        findings.join("\n")
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the repository")
}

fn unsafe_code(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository
        .rust()
        .filter(|file| !UNSAFE_FILES.iter().any(|(path, _)| file.path == *path))
    {
        for (index, line) in file.code.lines().enumerate() {
            // The lint's name appears where it is forbidden, which is welcome, and where it is allowed, which is not.
            let allows = names(line, "unsafe_code") && (names(line, "allow") || names(line, "expect"));
            if names(line, "unsafe") || allows {
                findings.push(format!(
                    "{}: unsafe code; it may stand in {UNSAFE_FILES:?} alone",
                    file.at(index)
                ));
            }
        }
    }
    for (path, reason) in UNSAFE_FILES {
        let used = repository.file(path).is_some_and(|file| names(&file.code, "unsafe"));
        if !used && repository.has(&crate_sources(path)) {
            findings.push(format!(
                "{path}: holds no unsafe code; take it off UNSAFE_FILES ({reason})"
            ));
        }
    }
    findings
}

/// `crates/x/src/lib.rs` of `crates/x/…`: whether the crate has sources at all.
fn crate_sources(path: &str) -> String {
    let folder: Vec<&str> = path.split('/').take(2).collect();
    format!("{}/src/lib.rs", folder.join("/"))
}

fn dependency_direction(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for absence in ABSENCES {
        for file in repository
            .files
            .iter()
            .filter(|file| file.path.starts_with(absence.folder))
        {
            let ships = shipped_lines(file);
            for (index, name) in named_dependencies(file) {
                if forbids(absence.never, &name)
                    || absence.is_outside_its_feature(&name, &file.path)
                    || (ships[index] && forbids(absence.not_directly, &name))
                {
                    findings.push(format!(
                        "{}: names `{name}`; {} does without",
                        file.at(index),
                        absence.folder
                    ));
                }
            }
        }
    }
    findings
}

/// For each line, whether it ends up with users: not test code, nor under `dev-dependencies`.
fn shipped_lines(file: &File) -> Vec<bool> {
    if file.path.ends_with(".rs") {
        return file.test_lines().into_iter().map(|tests| !tests).collect();
    }
    let mut ships = true;
    let after_header = |line: &str| {
        ships = if line.starts_with('[') {
            !line.contains("dev-dependencies")
        } else {
            ships
        };
        ships
    };
    file.text.lines().map(after_header).collect()
}

/// A family goes with its head: `futures` is `futures_util` too. But the core is not of the family of the tokio layer.
fn forbids(absent: &[&str], name: &str) -> bool {
    let of_family = |head: &str| {
        name.strip_prefix(head)
            .is_some_and(|rest| rest.starts_with('_') && head != "spliceway")
    };
    absent.iter().any(|head| *head == name || of_family(head))
}

/// Names that can mean a crate, with their lines: the words of Rust code, the keys of a manifest and of its table headers.
fn named_dependencies(file: &File) -> Box<dyn Iterator<Item = (usize, String)> + '_> {
    if file.path.ends_with(".rs") {
        return Box::new(
            file.code
                .lines()
                .enumerate()
                .flat_map(|(index, line)| words(line).map(move |(_, word)| (index, word.to_owned()))),
        );
    }
    if !file.path.ends_with("/Cargo.toml") {
        return Box::new(std::iter::empty());
    }
    let own_words = ["name", "description", "keywords", "categories", "documentation"];
    let lines = file
        .text
        .lines()
        .enumerate()
        .filter(move |(_, line)| !own_words.iter().any(|key| line.starts_with(key)));
    Box::new(lines.flat_map(|(index, line)| {
        let line = line.split('#').next().unwrap_or_default().replace('-', "_");
        words(&line)
            .map(|(_, word)| (index, word.to_owned()))
            .collect::<Vec<_>>()
    }))
}

/// The same absences in what cargo would link. Tests of a crate may use more.
fn dependency_trees(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for absence in ABSENCES
        .iter()
        .filter(|absence| repository.has(&crate_sources(absence.folder)))
    {
        let package = absence.folder.trim_start_matches("crates/").trim_end_matches('/');
        for name in linked_crates(package)
            .iter()
            .filter(|name| forbids(absence.never, name) || absence.is_behind_a_feature(name))
        {
            findings.push(format!(
                "{package}: links `{name}`; see `cargo tree --package {package} --edges normal --invert {name}`"
            ));
        }
    }
    findings
}

/// Everything below the package. Frozen: the tests were built a moment ago, so the lock file and the crates are there.
fn linked_crates(package: &str) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "tree",
        "--frozen",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{lib}",
        "--package",
        package,
    ]);
    let listed = cargo.current_dir(root()).output().expect("cargo runs");
    assert!(
        listed.status.success(),
        "cargo tree: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let listed = String::from_utf8(listed.stdout).expect("crate names are text");
    // The first is the package itself.
    listed.lines().skip(1).map(str::to_owned).collect()
}

fn msrv(repository: &Repository) -> Vec<Finding> {
    let stated = repository
        .file("Cargo.toml")
        .and_then(|root| value_of(&root.text, "rust-version"));
    let Some(version) = stated else {
        return vec!["Cargo.toml: states no rust-version".into()];
    };
    let mut findings = Vec::new();
    for manifest in
        members(repository).filter(|manifest| !has_line(manifest, "[package]", "rust-version.workspace = true"))
    {
        findings.push(format!(
            "{}: expected `rust-version.workspace = true` in [package]",
            manifest.path
        ));
    }
    // A changelog tells history; the lock file is not written by hand.
    for file in repository
        .files
        .iter()
        .filter(|file| !["Cargo.toml", "Cargo.lock", "CHANGELOG.md"].contains(&file.path.as_str()))
    {
        for (index, line) in file.text.lines().enumerate() {
            let speaks_of_rust = ["rust", "msrv"].iter().any(|word| line.to_lowercase().contains(word));
            if speaks_of_rust
                && line
                    .split(|c: char| !c.is_ascii_digit() && c != '.')
                    .any(|word| word == version)
            {
                findings.push(format!(
                    "{}: repeats the MSRV {version}; Cargo.toml alone states it",
                    file.at(index)
                ));
            }
        }
    }
    findings
}

fn inherited_lints(repository: &Repository) -> Vec<Finding> {
    let bare = members(repository).filter(|manifest| !has_line(manifest, "[lints]", "workspace = true"));
    bare.map(|manifest| format!("{}: expected `workspace = true` in [lints]", manifest.path))
        .collect()
}

/// Manifests of the workspace's crates. Fuzz targets are built by nightly, outside of it.
fn members(repository: &Repository) -> impl Iterator<Item = &File> {
    repository
        .files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"))
}

/// The text in quotes after `key =`.
fn value_of<'text>(manifest: &'text str, key: &str) -> Option<&'text str> {
    let line = manifest.lines().find(|line| line.starts_with(key))?;
    line.split('"').nth(1)
}

/// Whether the manifest has this line in this table.
fn has_line(manifest: &File, table: &str, wanted: &str) -> bool {
    let in_table = manifest
        .text
        .lines()
        .skip_while(|line| line.trim() != table)
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    in_table.map(str::trim).any(|line| line == wanted)
}

fn sleeps(repository: &Repository) -> Vec<Finding> {
    let calls_sleep =
        |line: &str| words(line).any(|(at, word)| word == "sleep" && line[at + word.len()..].starts_with('('));
    let mut findings = Vec::new();
    for file in repository.rust() {
        for (index, _) in test_lines(file, &file.code).filter(|(_, line)| calls_sleep(line)) {
            if !has_reason(file, index, SLEEP_REASON) {
                findings.push(format!(
                    "{}: a test that sleeps; await the event, or say `// {SLEEP_REASON}…`",
                    file.at(index)
                ));
            }
        }
    }
    findings
}

fn fixed_ports(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Here ports are examples of what is wrong, and nothing is bound.
    for file in repository.rust().filter(|file| !file.path.starts_with("xtask/")) {
        let integration = !file.path.contains("/src/");
        for (index, line) in test_lines(file, &file.code_with_strings) {
            let Some(port) = fixed_port(line).filter(|_| integration || opens_socket(line)) else {
                continue;
            };
            if !has_reason(file, index, PORT_REASON) {
                findings.push(format!(
                    "{}: fixed port {port}; bind port 0 and ask, or say `// {PORT_REASON}…`",
                    file.at(index)
                ));
            }
        }
    }
    findings
}

/// Unit tests parse addresses all day, and open sockets on few lines.
fn opens_socket(line: &str) -> bool {
    ["bind", "connect"].iter().any(|call| line.contains(call))
}

/// A port other than 0 after an address of this machine: `127.0.0.1:80`, `(Ipv6Addr::LOCALHOST, 80)`. Addresses of others are
/// never bound, so they are examples.
fn fixed_port(line: &str) -> Option<u16> {
    let hosts = [
        "127.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "localhost",
        "LOCALHOST",
        "UNSPECIFIED",
    ];
    let port_after = |rest: &str| -> Option<u16> {
        let digits = rest.trim_start_matches(['"', ')', ',', ':', ' ']);
        // Without anything between, they are part of the host; with a dot behind, of an address.
        let end = digits
            .find(|c: char| !c.is_ascii_digit() && c != '_')
            .unwrap_or(digits.len());
        let whole = digits.len() < rest.len() && !digits[end..].starts_with('.');
        digits[..end]
            .replace('_', "")
            .parse()
            .ok()
            .filter(|port| whole && *port != 0)
    };
    hosts
        .iter()
        .flat_map(|host| line.match_indices(host))
        .find_map(|(at, host)| port_after(&line[at + host.len()..]))
}

fn unfinished(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust() {
        for (index, line) in file.code.lines().enumerate() {
            let found = ["#[ignore", "todo!", "unimplemented!"]
                .into_iter()
                .find(|mark| line.contains(mark));
            if let Some(mark) = found {
                findings.push(format!("{}: `{mark}`; finish it or leave it out", file.at(index)));
            }
        }
    }
    findings
}

fn lengths(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust() {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!(
                "{}: {lines} lines, expected at most {FILE_LINES_MAX}; it has two subjects",
                file.path
            ));
        }
        for (index, lines) in file
            .functions()
            .into_iter()
            .filter(|(_, lines)| *lines > FUNCTION_LINES_MAX)
        {
            findings.push(format!(
                "{}: a function of {lines} lines, expected at most {FUNCTION_LINES_MAX}",
                file.at(index)
            ));
        }
    }
    findings
}

/// The lines of a view of the file that are test code, with their indices.
fn test_lines<'view>(file: &File, view: &'view str) -> impl Iterator<Item = (usize, &'view str)> {
    view.lines()
        .enumerate()
        .zip(file.test_lines())
        .filter_map(|(line, tests)| tests.then_some(line))
}

/// Whether the line, or the comment directly above it, says the words and something behind them.
fn has_reason(file: &File, index: usize, words: &str) -> bool {
    let lines: Vec<&str> = file.text.lines().collect();
    let comment_above = lines[..index]
        .iter()
        .rev()
        .take_while(|line| line.trim_start().starts_with("//"));
    let reasoned = |line: &&str| {
        let comment = line
            .split_once("//")
            .map(|(_, comment)| comment.to_lowercase())
            .unwrap_or_default();
        comment
            .split_once(words)
            .is_some_and(|(_, reason)| !reason.trim().is_empty())
    };
    reasoned(&lines[index]) || comment_above.into_iter().any(reasoned)
}

fn names(code: &str, name: &str) -> bool {
    words(code).any(|(_, word)| word == name)
}
