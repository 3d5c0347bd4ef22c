//! Shows every rule a fault, which it must find, and the same thing done right, which it must not.

use super::source::Repository;
use super::{Finding, documents};

/// The rule finds exactly this many faults in a repository of this one file.
#[track_caller]
fn finds(count: usize, rule: fn(&Repository) -> Vec<Finding>, path: &str, text: &str) {
    let findings = rule(&Repository::of(&[(path, text)]));
    assert_eq!(findings.len(), count, "{findings:#?}");
}

#[test]
fn unsafe_is_found_outside_comments_and_strings() {
    finds(
        1,
        super::unsafe_code,
        "crates/x/src/a.rs",
        "fn f() {\n    unsafe { g() }\n}\n",
    );
    finds(1, super::unsafe_code, "crates/x/src/a.rs", "#![allow(unsafe_code)]\n");
    finds(
        0,
        super::unsafe_code,
        "crates/x/src/a.rs",
        "#![forbid(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";\n",
    );
    finds(
        0,
        super::unsafe_code,
        "crates/spliceway-core/src/sys.rs",
        "unsafe { g() }\n",
    );
}

#[test]
fn a_file_listed_for_unsafe_that_needs_none_is_found() {
    finds(1, super::unsafe_code, "crates/spliceway/src/lib.rs", "mod stream;\n");
    finds(1, super::unsafe_code, "testing/faults/src/lib.rs", "mod sys;\n");
    finds(0, super::unsafe_code, "testing/faults/src/sys.rs", "unsafe { g() }\n");
    finds(1, super::unsafe_code, "testing/faults/src/call.rs", "unsafe { g() }\n");
}

#[test]
fn a_dependency_that_points_up_is_found() {
    let core = "crates/spliceway-core/src/a.rs";
    finds(1, super::dependency_direction, core, "use tokio::net::TcpStream;\n");
    finds(1, super::dependency_direction, core, "use futures_util::ready;\n");
    finds(
        0,
        super::dependency_direction,
        core,
        "// like tokio\nuse spliceway_core::Pipe;\n",
    );
    let manifest = "crates/spliceway/Cargo.toml";
    finds(
        1,
        super::dependency_direction,
        manifest,
        "[dependencies]\ntracing-core = \"0.1\"\n",
    );
    finds(1, super::dependency_direction, manifest, "[dev-dependencies.clap]\n");
    finds(
        0,
        super::dependency_direction,
        manifest,
        "description = \"without clap\"\ntokio.workspace = true # not tracing\n",
    );
    let for_tests = "[target.'cfg(unix)'.dev-dependencies]\nrustix.workspace = true\n";
    finds(
        1,
        super::dependency_direction,
        manifest,
        &format!("{for_tests}[dependencies]\nrustix.workspace = true\n"),
    );
    finds(
        0,
        super::dependency_direction,
        "crates/spliceway/tests/a.rs",
        "use rustix::process::getrlimit;\n",
    );
    finds(
        1,
        super::dependency_direction,
        "crates/spliceway/src/a.rs",
        "use rustix::process::getrlimit;\n",
    );
    for product in ["spliceway-core", "spliceway", "spliceway-proxy"] {
        let manifest = format!("crates/{product}/Cargo.toml");
        let faults = "spliceway-faults.workspace = true\n";
        finds(
            1,
            super::dependency_direction,
            &manifest,
            &format!("[dependencies]\n{faults}"),
        );
        finds(
            0,
            super::dependency_direction,
            &manifest,
            &format!("[dev-dependencies]\n{faults}"),
        );
    }
}

#[test]
fn a_crate_is_found_outside_the_file_that_is_its_feature() {
    let hyper = "use hyper::upgrade::Upgraded;\n";
    for (path, count) in [
        ("src/relay.rs", 1),
        ("src/upgraded.rs", 0),
        ("tests/it/a.rs", 0),
        ("examples/a.rs", 0),
    ] {
        finds(
            count,
            super::dependency_direction,
            &format!("crates/spliceway/{path}"),
            hyper,
        );
    }
}

#[test]
fn a_second_msrv_is_found() {
    let findings = |path: &str, text: &str| {
        super::msrv(&Repository::of(&[
            ("Cargo.toml", "[workspace.package]\nrust-version = \"9.87\"\n"),
            (path, text),
        ]))
        .len()
    };
    assert_eq!(
        findings("crates/x/Cargo.toml", "[package]\nrust-version = \"9.88\"\n"),
        1
    );
    assert_eq!(
        findings("crates/x/Cargo.toml", "[package]\nrust-version.workspace = true\n"),
        0
    );
    assert_eq!(findings("README.md", "Needs Rust 9.87 or later.\n"), 1);
    assert_eq!(findings("README.md", "Moves 9.87 GB/s.\n"), 0);
}

#[test]
fn a_crate_with_lints_of_its_own_is_found() {
    finds(
        1,
        super::inherited_lints,
        "crates/x/Cargo.toml",
        "[lints.rust]\nworkspace = true\n",
    );
    finds(
        0,
        super::inherited_lints,
        "crates/x/Cargo.toml",
        "[lints]\nworkspace = true\n",
    );
}

#[test]
fn a_sleep_is_found_in_tests_only() {
    let test = "crates/x/tests/it/main.rs";
    finds(1, super::sleeps, test, "fn f() {\n    thread::sleep(TICK);\n}\n");
    finds(1, super::sleeps, test, "// Sleeps because \ntime::sleep(TICK).await;\n");
    finds(
        0,
        super::sleeps,
        test,
        "// Sleeps because silence is what is tested.\ntime::sleep(TICK).await;\n",
    );
    finds(
        0,
        super::sleeps,
        "crates/x/src/a.rs",
        "fn f() {\n    thread::sleep(TICK);\n}\n",
    );
    finds(
        1,
        super::sleeps,
        "crates/x/src/a.rs",
        "#[cfg(test)]\nmod tests {\n    fn f() {\n        sleep(TICK);\n    }\n}\nfn g() {}\n",
    );
    finds(
        0,
        super::sleeps,
        "crates/x/src/a.rs",
        "#[cfg(not(test))]\nmod real {\n    fn f() {\n        sleep(TICK);\n    }\n}\n",
    );
}

#[test]
fn a_fixed_port_is_found() {
    let test = "crates/x/tests/a.rs";
    finds(1, super::fixed_ports, test, "TcpListener::bind(\"127.0.0.1:8080\")\n");
    finds(
        1,
        super::fixed_ports,
        test,
        "TcpListener::bind((\"127.0.0.1\", 8_080))\n",
    );
    finds(1, super::fixed_ports, test, "bind((Ipv6Addr::LOCALHOST, 1080))\n");
    finds(1, super::fixed_ports, test, "bind(\"[::1]:1080\")\n");
    finds(
        0,
        super::fixed_ports,
        test,
        "bind(\"127.0.0.1:0\"); bind((Ipv4Addr::LOCALHOST, 0)); bind(format!(\"[::1]:{port}\"))\n",
    );
    finds(
        0,
        super::fixed_ports,
        test,
        "parse(\"127.0.0.1\"); parse(\"192.0.2.1:443\") // 127.0.0.1:80\n",
    );
    finds(
        0,
        super::fixed_ports,
        test,
        "parse(\"[::1]:80\") // port because nothing is bound\n",
    );
    finds(0, super::fixed_ports, "crates/x/src/tests.rs", "parse(\"[::1]:80\")\n");
    finds(1, super::fixed_ports, "crates/x/src/tests.rs", "bind(\"[::1]:80\")\n");
}

#[test]
fn unfinished_work_is_found() {
    finds(1, super::unfinished, "a.rs", "#[ignore = \"slow\"]\n");
    finds(2, super::unfinished, "a.rs", "todo!()\nunimplemented!()\n");
    finds(0, super::unfinished, "a.rs", "// todo!()\n");
}

#[test]
fn long_files_and_functions_are_found() {
    let function = |lines: usize| {
        format!(
            "fn f(a: [u8; 4]) {{\n{}}}\n",
            "    g('{', \"{\", r#\"\"{\"#); // {\n".repeat(lines - 2)
        )
    };
    finds(0, super::lengths, "a.rs", &function(70));
    finds(1, super::lengths, "a.rs", &function(71));
    finds(
        0,
        super::lengths,
        "a.rs",
        &format!(
            "trait T {{\n    fn f<'a>(&'a self);\n{}}}\n",
            "    const A: u8;\n".repeat(100)
        ),
    );
    finds(0, super::lengths, "a.rs", &"const A: u8;\n".repeat(600));
    finds(1, super::lengths, "a.rs", &"const A: u8;\n".repeat(601));
}

#[test]
fn a_dead_link_is_found() {
    let findings =
        |text: &str| documents::links(&Repository::of(&[("docs/a.md", text), ("docs/b.md", ""), ("c.md", "")])).len();
    assert_eq!(findings("[x](none.md) [y](../../c.md) ![z](d.svg)\n[w]: e.md\n"), 4);
    assert_eq!(
        findings("[x](b.md#part) [y](../c.md) [z](#here) [w](https://example.org/a) [docs](../docs/)\n"),
        0
    );
    assert_eq!(findings("```rust\nlet a = b[0](none);\n```\n"), 0);
}

#[test]
fn a_code_map_that_rots_is_found() {
    let findings = |map: &str| {
        let files = [
            ("ARCHITECTURE.md", map),
            ("crates/x/src/lib.rs", ""),
            ("crates/x/src/pool/budget.rs", ""),
        ];
        documents::code_map(&Repository::of(&files)).len()
    };
    assert_eq!(findings("## crates/x\n`lib.rs`, `pool/budget.rs`: what they are.\n"), 0);
    assert_eq!(
        findings("`crates/x/src/lib.rs` and `crates/x/src/pool/budget.rs`.\n"),
        0
    );
    assert_eq!(
        findings("## crates/x\n`lib.rs`, `pool/budget.rs`, crates/*/src/lib.rs\n"),
        0
    );
    assert_eq!(
        findings("## crates/x\n`lib.rs`, `pool/budget.rs`, `gone.rs`, `docs/gone.md`\n"),
        2
    );
}

#[test]
fn a_readme_without_its_commands_is_found() {
    let ours = [
        (".ci/run", "cargo xtask ci"),
        ("xtask/src/main.rs", "step(\"cargo test --workspace\")"),
    ];
    assert_eq!(documents::commands(&Repository::of(&ours)).len(), 0);
    let with_readme = |text| documents::commands(&Repository::of(&[ours[0], ours[1], ("README.md", text)])).len();
    assert_eq!(
        with_readme("cargo run --release -- socks5\ncargo test --workspace\n"),
        0
    );
    assert_eq!(with_readme("cargo test --workspace\n"), 1);
}

/// A catalogue of all faults but those not yet in it, each by the same test, and what `change` makes of its rows.
fn catalogue(change: impl Fn(&mut Vec<String>)) -> Vec<Finding> {
    let mut rows: Vec<String> = (1..=77)
        .filter(|number| !super::catalogue::NOT_YET.contains(number))
        .map(|number| format!("| {number} | it stalls | `x: pitfalls::stuck::it_goes_on` |"))
        .collect();
    change(&mut rows);
    let text = format!(
        "# Faults\n\n| number | fault | test |\n|---|---|---|\n{}\n",
        rows.join("\n")
    );
    let tests =
        "#[tokio::test(start_paused = true)]\nasync fn it_goes_on() {}\n#[test]\nfn it_ends() {}\nfn no_test() {}\n";
    super::catalogue::faults(&Repository::of(&[
        ("docs/faults.md", &text),
        ("crates/x/tests/it/pitfalls/stuck.rs", tests),
        (
            "crates/x/src/watch.rs",
            "mod tests {\n    #[test]\n    fn it_waits() {}\n}\n",
        ),
        (
            "crates/x/src/copy.rs",
            "fn it_goes_on() {}\n// #[test]\nfn it_ends() {}\n",
        ),
    ]))
}

#[test]
fn a_catalogue_of_faults_that_lost_one_or_names_what_is_not_there_is_found() {
    #[track_caller]
    fn finds(count: usize, change: impl Fn(&mut Vec<String>)) {
        let findings = catalogue(change);
        assert_eq!(findings.len(), count, "{findings:#?}");
    }
    let cell = |cell: &str| {
        let row = format!("| 1 | it stalls | {cell} |");
        move |rows: &mut Vec<String>| rows[0].clone_from(&row)
    };
    finds(0, |_| ());
    finds(1, |rows| drop(rows.remove(0)));
    finds(1, |rows| rows.push(rows[0].clone()));
    finds(1, |rows| rows.push(rows[0].replace("| 1 |", "| 41 |")));
    finds(0, |rows| {
        rows.push("| a fault without a number | `x: watch::tests::it_waits` |".into());
    });
    finds(0, cell("`x: pitfalls::stuck::it_ends`, `x: watch::tests::it_waits`"));
    finds(0, cell("`x: pitfalls::stuck::it_ends`, `cargo xtask soak --gib 100`"));
    finds(1, cell("`cargo xtask soak --gib 100`"));
    finds(1, cell("in prose: it_goes_on"));
    finds(1, cell("`x: pitfalls::stuck::no_test`"));
    finds(1, cell("`x: pitfalls::stuck::gone`, `x: pitfalls::stuck::it_ends`"));
    finds(1, cell("`x: pitfalls::gone::it_ends`"));
    finds(1, cell("`pitfalls::stuck::it_ends`"));
    finds(1, cell("`x: copy::tests::it_ends`"));
}
