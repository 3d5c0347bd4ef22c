//! The rules of this repository that neither the compiler nor clippy nor cargo-deny can check.
//!
//! Each test is one rule. A finding names the file, the line and the expectation. The rules are
//! functions of a [`Repository`], so that `faults.rs` can show that each rule finds its fault.
#![forbid(unsafe_code)]

mod catalogue;
mod circles;
mod documents;
mod faults;
mod folders;
mod prose;
mod repository;

use std::sync::LazyLock;

use regex::Regex;
use repository::{File, Line, Repository};

/// The only files that may contain `unsafe` code, and the reasons.
const UNSAFE_FILES: &[(&str, &str)] = &[
    (
        "crates/spliceway-core/src/sys.rs",
        "TCP_ULP and calls on descriptors that may be closed have no safe wrapper",
    ),
    (
        "crates/spliceway/src/identity.rs",
        "it finds the concrete type of a stream by its type identity",
    ),
    (
        "crates/spliceway-proxy/src/kit/heap.rs",
        "malloc_trim has no safe wrapper",
    ),
    (
        "testing/net/src/tun.rs",
        "TUNSETIFF and TUNSETOFFLOAD have no safe wrapper; no user gets this crate",
    ),
    (
        "testing/faults/src/sys.rs",
        "notifications of seccomp have no safe wrapper; no user gets this crate",
    ),
];

/// The most lines of a file. A longer file has two subjects.
const FILE_LINES_MAX: usize = 600;
/// The most characters of a test name. Nobody can read a longer name at a glance.
const TEST_NAME_MAX: usize = 70;

/// The place where a rule found a fault, and the expectation of the rule.
type Finding = String;

fn check(rule: fn(&Repository) -> Vec<Finding>) {
    let findings = rule(&Repository::open());
    let count = findings.len();
    assert!(findings.is_empty(), "{count} finding(s):\n{}\n", findings.join("\n"));
}

macro_rules! rules {
    ($($test:ident: $rule:path;)+) => {$(
        #[test]
        fn $test() {
            check($rule);
        }
    )+};
}

rules! {
    unsafe_code_has_a_file_with_a_reason: unsafe_code;
    every_crate_inherits_the_lints: inherited_lints;
    every_published_crate_says_what_it_is: manifests;
    tests_wait_for_events_and_not_for_time: sleeps;
    tests_let_the_kernel_choose_ports: fixed_ports;
    files_are_short: file_lengths;
    names_of_tests_are_short: test_names;
    links_resolve: documents::links;
    the_architecture_names_files_that_exist: documents::code_map;
    the_readme_and_ci_run_the_same_commands: documents::commands;
    every_known_fault_names_tests_that_exist: catalogue::faults;
    prose_and_comments_wrap_at_100_columns: prose::wrapping;
    sentences_are_short: prose::long_sentences;
    the_program_depends_in_one_direction: folders::direction;
    no_files_depend_on_each_other: circles::circles;
    words_are_plain: prose::banned_words;
    names_follow_the_vocabulary: prose::old_names;
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant")
}

/// The workspace denies `unsafe`, so a file needs an attribute to use it.
fn unsafe_code(repository: &Repository) -> Vec<Finding> {
    let is_listed = |path: &str| UNSAFE_FILES.iter().any(|(listed, _)| path == *listed);
    let allows = regex(r"^\s*#!?\[(allow|expect)\([^)]*unsafe_code");
    let lines = repository.rust().flat_map(File::lines);
    let found: Vec<Line<'_>> = lines.filter(|line| allows.is_match(line.text)).collect();
    let unlisted = found.iter().filter(|line| !is_listed(line.path));
    let mut findings: Vec<Finding> = unlisted
        .map(|line| {
            line.finding("allows unsafe code; add the file to UNSAFE_FILES in xtask/tests/tidy/main.rs, with a reason")
        })
        .collect();
    let unused = UNSAFE_FILES
        .iter()
        .filter(|(path, _)| !found.iter().any(|line| line.path == *path));
    findings.extend(unused.map(|(path, _)| {
        format!("{path}: does not allow unsafe code; remove it from UNSAFE_FILES in xtask/tests/tidy/main.rs")
    }));
    findings
}

fn inherited_lints(repository: &Repository) -> Vec<Finding> {
    let manifests = repository.files.iter().filter(|file| {
        // The fuzz targets have their own workspace.
        file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/")
    });
    manifests
        .filter(|file| !file.text.contains("[lints]\nworkspace = true"))
        .map(|file| format!("{}: expected [lints] with `workspace = true`", file.path))
        .collect()
}

/// Each crate below `crates` is published, with a page of its own. docs.rs shows libraries only.
fn manifests(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &repository.files {
        let name = file
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.strip_suffix("/Cargo.toml"));
        let Some(name) = name else { continue };
        let documentation = format!("documentation = \"https://docs.rs/{name}\"");
        let keys = [
            "description = ",
            "license.workspace",
            "readme = \"README.md\"",
            "keywords = ",
            "categories = ",
        ];
        let expected = keys
            .into_iter()
            .chain((!file.text.contains("[[bin]]")).then_some(&*documentation));
        let missing = expected.filter(|key| !file.text.lines().any(|line| line.starts_with(key)));
        findings.extend(missing.map(|key| format!("{}: expected `{key}`", file.path)));
        let readme = format!("crates/{name}/README.md");
        if !repository
            .file(&readme)
            .is_some_and(|file| file.text.starts_with(&format!("# {name}\n")))
        {
            findings.push(format!("{}: expected {readme} with the title `{name}`", file.path));
        }
    }
    findings
}

fn sleeps(repository: &Repository) -> Vec<Finding> {
    let call = regex(r"\bsleep\(");
    let message = "a test sleeps; wait for the event, or write `// Sleeps because …`";
    without_reason(repository, "sleeps because ", message, |path, line| {
        !path.starts_with("xtask/") && call.is_match(line)
    })
}

fn fixed_ports(repository: &Repository) -> Vec<Finding> {
    static PORT: LazyLock<Regex> = LazyLock::new(|| {
        regex(r#"(127\.0\.0\.1|0\.0\.0\.0|\[::1?\]|localhost|LOCALHOST|UNSPECIFIED)("?\)?, |:)[1-9][0-9_]*\b"#)
    });
    let opens = regex(r"bind|connect");
    let message = "a fixed port; bind port 0 and ask, or write `// Port because …`";
    without_reason(repository, "port because ", message, |path, line| {
        // Unit tests parse many addresses, but open few sockets.
        let may_open = !path.contains("/src/") || opens.is_match(line);
        may_open && !path.starts_with("xtask/") && PORT.is_match(line)
    })
}

/// Returns a finding for each test line with a fault, unless the line or the comment above it gives
/// the reason.
fn without_reason(
    repository: &Repository,
    words: &str,
    message: &str,
    has_fault: impl Fn(&str, &str) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust() {
        let mut comment_has_reason = false;
        for line in file.test_lines() {
            let has_reason = line.text.to_lowercase().contains(words);
            if line.is_comment() {
                comment_has_reason |= has_reason;
                continue;
            }
            if has_fault(line.path, line.text) && !has_reason && !comment_has_reason {
                findings.push(line.finding(message));
            }
            comment_has_reason = false;
        }
    }
    findings
}

fn file_lengths(repository: &Repository) -> Vec<Finding> {
    let lengths = repository.rust().map(|file| (&file.path, file.text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines; expected at most {FILE_LINES_MAX}"))
        .collect()
}

fn test_names(repository: &Repository) -> Vec<Finding> {
    tests(repository)
        .filter(|(_, name)| name.len() > TEST_NAME_MAX)
        .map(|(line, name)| line.finding(&format!("`{name}` has more than {TEST_NAME_MAX} characters")))
        .collect()
}

/// Returns the line and the name of every test function.
fn tests(repository: &Repository) -> impl Iterator<Item = (Line<'_>, &str)> {
    let attribute = regex(r"^\s*#\[(\w+::)*test(\(.*)?\]?$");
    let function = regex(r"^\s*(async )?fn (\w+)");
    let mut is_test = false;
    repository.rust().flat_map(File::lines).filter_map(move |line| {
        is_test |= attribute.is_match(line.text);
        let name = function.captures(line.text)?.get(2)?;
        std::mem::take(&mut is_test).then(|| (line, &line.text[name.range()]))
    })
}
