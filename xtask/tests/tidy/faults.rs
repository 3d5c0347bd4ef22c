//! Every rule finds its fault.

use super::repository::Repository;
use super::{
    catalogue, circles, documents, file_lengths, fixed_ports, folders, inherited_lints, manifests, prose, sleeps,
    test_names, unsafe_code,
};

/// Asserts that the rule has these findings in a repository of one file. Each finding must contain
/// its item of `expected`.
#[track_caller]
fn finds(rule: fn(&Repository) -> Vec<String>, path: &str, text: &str, expected: &[&str]) {
    let findings = rule(&Repository::of(&[(path, text)]));
    let findings: Vec<_> = findings.iter().filter(|finding| finding.starts_with(path)).collect();
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    for (finding, expected) in findings.iter().zip(expected) {
        assert!(finding.contains(expected), "expected {expected}: {finding}");
    }
}

#[test]
fn unsafe_code_outside_its_files_is_found() {
    finds(
        unsafe_code,
        "crates/a/src/lib.rs",
        "\n#![allow(unsafe_code)]\n",
        &["lib.rs:2"],
    );
    finds(unsafe_code, "crates/a/src/lib.rs", "#![forbid(unsafe_code)]\n", &[]);
    finds(
        unsafe_code,
        "crates/spliceway-core/src/sys.rs",
        "#![allow(unsafe_code)]\n",
        &[],
    );
    finds(
        unsafe_code,
        "crates/spliceway-core/src/sys.rs",
        "fn f() {}\n",
        &["remove it"],
    );
}

#[test]
fn a_crate_without_the_lints_is_found() {
    finds(inherited_lints, "crates/a/Cargo.toml", "[package]\n", &["[lints]"]);
    finds(
        inherited_lints,
        "crates/a/Cargo.toml",
        "[lints]\nworkspace = true\n",
        &[],
    );
}

#[test]
fn a_crate_without_a_page_or_a_key_is_found() {
    let manifest =
        "description = \"\"\nlicense.workspace = true\nreadme = \"README.md\"\nkeywords = []\ncategories = []\n";
    let path = "crates/a/Cargo.toml";
    finds(manifests, path, manifest, &["https://docs.rs/a", "crates/a/README.md"]);
    finds(
        manifests,
        path,
        &format!("{manifest}[[bin]]\n"),
        &["crates/a/README.md"],
    );
    finds(
        manifests,
        path,
        "[[bin]]\n",
        &[
            "description",
            "license",
            "readme",
            "keywords",
            "categories",
            "README.md",
        ],
    );
    finds(manifests, "testing/a/Cargo.toml", "", &[]);
}

#[test]
fn a_test_that_sleeps_is_found() {
    let path = "crates/a/tests/it/main.rs";
    finds(sleeps, path, "fn f() {\n    sleep(TIME);\n}\n", &["main.rs:2"]);
    finds(
        sleeps,
        path,
        "    // Sleeps because nothing\n    // happens.\n    sleep(TIME);\n",
        &[],
    );
    finds(
        sleeps,
        path,
        "    // Sleeps because so.\n    sleep(A);\n    sleep(B);\n",
        &["main.rs:3"],
    );
    let code = "fn f() { sleep(A); }\n#[cfg(test)]\nmod tests {\n    sleep(B);\n}\n";
    finds(sleeps, "crates/a/src/lib.rs", code, &["lib.rs:4"]);
}

#[test]
fn a_fixed_port_is_found() {
    let path = "crates/a/tests/it/main.rs";
    for line in [
        r#"bind("127.0.0.1:8080")"#,
        r#"f("[::1]:1")"#,
        "(Ipv4Addr::LOCALHOST, 80)",
        r#"connect(("localhost", 8_080))"#,
    ] {
        finds(fixed_ports, path, line, &["fixed port"]);
    }
    for line in [
        r#"bind("127.0.0.1:0")"#,
        "192.0.2.1:80",
        "(LOCALHOST, 0)",
        "(LOCALHOST, port)",
    ] {
        finds(fixed_ports, path, line, &[]);
    }
    finds(fixed_ports, "crates/a/src/tests.rs", r#"parse("127.0.0.1:80")"#, &[]);
    finds(
        fixed_ports,
        path,
        "// Port because it is parsed.\n\"127.0.0.1:80\"",
        &[],
    );
}

#[test]
fn long_files_and_names_are_found() {
    finds(file_lengths, "a.rs", &"\n".repeat(601), &["601 lines"]);
    finds(file_lengths, "a.rs", &"\n".repeat(600), &[]);
    let name = "a".repeat(71);
    finds(test_names, "a.rs", &format!("#[test]\nfn {name}() {{\n"), &[&name]);
    finds(
        test_names,
        "a.rs",
        &format!("#[tokio::test]\n#[x]\nasync fn {name}() {{\n"),
        &[&name],
    );
    finds(test_names, "a.rs", &format!("fn {name}() {{\n"), &[]);
}

#[test]
fn broken_links_and_paths_are_found() {
    finds(
        documents::links,
        "docs/a.md",
        "[a](b.md) [b](../docs/a.md#x) [c](https://x.y)",
        &["`b.md`"],
    );
    finds(documents::links, "docs/a.md", "```\n[a](b.md)\n```\n", &[]);
    finds(
        documents::code_map,
        "ARCHITECTURE.md",
        "`crates/a` and `b.rs`",
        &["`crates/a`", "`b.rs`"],
    );
    finds(documents::commands, "README.md", "cargo test", &["--workspace"]);
}

#[test]
fn rows_without_tests_and_unknown_tests_are_found() {
    let rows: String = (1..=139)
        .map(|n| format!("| {n} | a | `cargo xtask soak` |\n"))
        .collect();
    let catalogue = format!("| n | fault | test |\n|---|---|---|\n{rows}| 140 | a | `a: b::c` |\n| | b | |\n");
    finds(
        catalogue::faults,
        "docs/faults.md",
        &catalogue,
        &["no test `a: b::c`", "expected a test"],
    );
    let both = [
        ("docs/faults.md", catalogue.as_str()),
        ("crates/a/tests/it/b.rs", "#[test]\nfn c() {\n"),
    ];
    let findings = catalogue::faults(&Repository::of(&both));
    assert_eq!(findings.len(), 1, "{findings:?}");
    let missing = rows.replace("| 5 |", "| 6 |");
    finds(
        catalogue::faults,
        "docs/faults.md",
        &missing,
        &["fault 5", "fault 6", "fault 140"],
    );
}

#[test]
fn wide_lines_long_sentences_and_banned_words_are_found() {
    let wide = "a ".repeat(51);
    finds(prose::wrapping, "a.md", &wide, &["100 columns"]);
    finds(prose::wrapping, "a.md", &format!("| {wide}|\n"), &[]);
    finds(
        prose::wrapping,
        "a.rs",
        &format!("/// {wide}\nlet a = \"{wide}\";\n"),
        &["a.rs:1"],
    );
    let long = "word ".repeat(36);
    finds(
        prose::long_sentences,
        "a.md",
        &format!("A sentence.\n\n{long}.\n"),
        &["a.md:3"],
    );
    finds(
        prose::long_sentences,
        "a.md",
        &format!("{}. {}.", "a ".repeat(35), "b ".repeat(35)),
        &[],
    );
    finds(prose::banned_words, "a.md", "To whom it belongs.\n", &["whom"]);
    finds(
        prose::banned_words,
        "a.rs",
        "    /// Of the client.\n    let whom = 1;\n",
        &["Of t"],
    );
    finds(prose::old_names, "a.rs", "struct Mover;\n", &["Mover"]);
}

#[test]
fn an_edge_against_the_direction_of_the_folders_is_found() {
    let path = "crates/spliceway-proxy/src/access/admission.rs";
    let rule = folders::direction;
    finds(rule, path, "use crate::kit::errno;\nuse crate::access::auth;\n", &[]);
    finds(rule, path, "\nuse crate::session::record;\n", &["admission.rs:2"]);
    finds(
        rule,
        path,
        "fn f() {\n    crate::run::serve::f();\n}\n",
        &["admission.rs:2"],
    );
    finds(
        rule,
        path,
        "use crate::{kit, log};\nuse super::super::run;\n",
        &["admission.rs:1", ":2"],
    );
    finds(rule, path, "use crate::elsewhere::f;\n", &["no folder elsewhere"]);
    finds(
        rule,
        path,
        "#[cfg(test)]\nmod tests {\n    use crate::run::serve;\n}\n",
        &[],
    );
    finds(rule, "crates/spliceway-proxy/src/other.rs", "", &["no folder"]);
    finds(
        rule,
        "crates/spliceway-proxy/src/main.rs",
        "use crate::run::serve;\n",
        &[],
    );
}

/// Asserts that the crate `a` of these files has one circle, whose description has these parts, or
/// no circle if there are none.
#[track_caller]
fn has_circle(files: &[(&str, &str)], parts: &[&str]) {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (format!("crates/a/src/{path}"), *text))
        .collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let circles = circles::circles(&Repository::of(&files));
    assert_eq!(circles.len(), usize::from(!parts.is_empty()), "{circles:?}");
    for part in parts {
        assert!(circles[0].contains(part), "expected {part}: {}", circles[0]);
    }
}

#[test]
fn a_circle_of_files_is_found() {
    let root = ("lib.rs", "mod b;\nmod c;\nmod d;\n");
    let b = ("b.rs", "use crate::c::C;\npub struct B(C);\n");
    let c = (
        "c.rs",
        "pub struct C;\nimpl C {\n    fn f() { crate::d::D::new(); }\n}\n",
    );
    let d = ("d.rs", "//! Not crate::b::B.\npub struct D;\n");
    has_circle(&[root, b, c, d], &[]);
    let d = ("d.rs", "use super::{b::{B, self}, d};\npub struct D(B);\n");
    has_circle(
        &[root, b, c, d],
        &[
            "crates/a: a circle of 3 files: b, c, d",
            "crates/a/src/b.rs:1: uses c: crate::c::C",
            "crates/a/src/c.rs:3: uses d: crate::d::D::new",
            "crates/a/src/d.rs:1: uses b: super::b::B",
        ],
    );
    // A macro, and a module that only groups names.
    let d = ("d.rs", "pub struct D;\nfn f() { g!(x => super::b::B) }\n");
    has_circle(&[root, b, c, d], &["d.rs:2: uses b"]);
    let d = (
        "d.rs",
        "pub struct D;\nmod inner {\n    use super::super::b;\n    fn f(b: b::B, d: super::D) {}\n}\n",
    );
    has_circle(&[root, b, c, d], &["d.rs:4: uses b: b::B"]);
}

#[test]
fn a_circle_of_files_leads_through_reexports() {
    let root = ("main.rs", "mod b;\nmod c;\nfn main() { c::f(b::B) }\n");
    let front = "mod d;\nmod e;\npub(crate) use d::D as B;\npub use e::*;\n";
    let d = ("b/d.rs", "use crate::c::f;\npub struct D;\n");
    let e = ("b/e.rs", "use super::B;\npub struct E(B);\n");
    let of_d = ("c.rs", "use crate::b::B;\npub fn f(b: B) {}\n");
    let of_e = ("c.rs", "use crate::b::*;\npub fn f(e: E) {}\n");
    has_circle(
        &[root, ("b.rs", front), d, e, of_d],
        &["of 2 files: b::d, c", "c.rs:1: uses b::d: crate::b::B"],
    );
    has_circle(
        &[root, ("b.rs", front), d, e, of_e],
        &["of 3 files: b::d, b::e, c", "c.rs:2: uses b::e: E"],
    );
    // A function that has the name of its module.
    let e = ("b/e.rs", "pub fn e() { crate::c::f() }\n");
    let of_e = ("c.rs", "pub fn f() { crate::b::e() }\n");
    has_circle(
        &[root, ("b.rs", "mod e;\npub use e::e;\n"), e, of_e],
        &["of 2 files: b::e, c"],
    );
    // A front with code of its own.
    let front = format!("{front}pub struct Own(E);\n");
    has_circle(&[root, ("b.rs", &front), d, e], &[]);
    let e = ("b/e.rs", "pub struct E(super::Own);\n");
    has_circle(
        &[root, ("b.rs", &front), e],
        &["of 2 files: b, b::e", "b.rs:5: uses b::e: E"],
    );
}

#[test]
fn test_code_may_depend_in_a_circle() {
    let root = ("lib.rs", "mod b;\nmod c;\n#[cfg(test)]\nmod tests;\npub fn f() {}\n");
    let b = ("b.rs", "use crate::c::C;\npub struct B(C);\n");
    let tests = ("tests.rs", "use super::f;\nuse crate::b::B;\n");
    for test in [
        "#[cfg(test)]\nuse crate::b::B;\npub struct C;\n",
        "#[cfg(all(test, loom))]\n#[x]\nmod tests {\n    use crate::b::B;\n}\npub struct C;\n",
        "pub struct C {\n    #[cfg(test)]\n    b: crate::b::B,\n}\n",
        "pub struct C;\n#[cfg(test)]\nfn f<A, B>(b: crate::b::B) -> [u8; 1] {}\n",
    ] {
        has_circle(&[root, b, tests, ("c.rs", test)], &[]);
        let code = test.replace("test", "unix");
        has_circle(&[root, b, tests, ("c.rs", &code)], &["of 2 files: b, c"]);
    }
}
