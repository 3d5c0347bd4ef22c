//! Metrics as Prometheus sees them, the dashboard and the alerts.

mod dashboard;
mod live;
mod prometheus;
mod scene;
mod targets;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use spliceway_net::has_tool;

use crate::accept::exhausted;
use crate::harness::{Folder, Program, TextFile, contrib, refusing};
use crate::tls::client::Pair;
use crate::tls::client_cert::Authority;
use crate::user_limits::{file, users};

/// Returns the answer of a program that has served and refused clients, so that it exports every
/// metric that needs no file.
fn exposition() -> String {
    let pair = Pair::new(&["a.test"]);
    let arguments = [&["--handshake-timeout", "1h"], &pair.arguments()[..]].concat();
    let mut program = Program::socks5(&arguments);
    let clients = exhausted(&mut program);
    program.limit_descriptors(1000);
    program.await_sum("spliceway_accept_errors_total", &[], 1);
    drop(clients);
    program.await_sum("spliceway_connections_total", &[], 1);
    let answer = program.get("/metrics");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Returns the answer of a program with backends, users, quotas, a CRL and ACME.
fn exposition_of_files() -> String {
    let (folder, users, pair) = (Folder::new("exposition"), users(), Pair::new(&["a.test"]));
    let (authority, target) = (Authority::new("CA"), refusing());
    folder.file("ca.pem", &authority.pem);
    folder.file("crl.pem", &authority.revoke(&[], 2900));
    let tables = format!(
        "[limits]\nquota_file = \"quotas\"\n[[user]]\nname = \"ann\"\nquota = \"1MB/day\"\n\
         [[service]]\nname = \"web\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n\
         check = \"connect\"\ntls_cert = \"{}\"\ntls_key = \"{}\"\n\
         tls_client_ca = \"ca.pem\"\ntls_client_crl = \"crl.pem\"\n\
         [[service]]\nname = \"acme\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n\
         acme = [\"b.test\"]\n[acme]\nstate = \"acme\"\naccept_terms = true\ndirectory = \"https://{target}/\"\n",
        pair.certificate.path(),
        pair.key.path()
    );
    folder.file("main.toml", &file("socks5", &users, &tables));
    let program = Program::run(&TextFile(folder.0.join("main.toml")));
    program.await_sum("spliceway_backend_checks_total", &["failed"], 1);
    let answer = program.get("/metrics");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Returns the type of each metric family.
fn types(exposition: &str) -> HashMap<&str, &str> {
    let types = exposition.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split_once(' ')).collect()
}

/// Returns the names of the series.
fn series(exposition: &str) -> HashSet<String> {
    let suffixes = |kind| match kind {
        "histogram" => &["_bucket", "_count", "_sum"][..],
        _ => &[""],
    };
    let types = types(exposition);
    let names = types.into_iter().flat_map(|(name, kind)| {
        let suffixes = suffixes(kind).iter();
        suffixes.map(move |suffix| format!("{name}{suffix}"))
    });
    names.collect()
}

/// Returns the words of `text` that begin like the names of this program's metrics.
fn metrics_in(text: &str) -> HashSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let is_name = |word: &&str| word.starts_with("spliceway_") || word.starts_with("process_");
    words.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_alerts_use_only_metrics_that_exist() {
    let (exposition, of_files) = (exposition(), exposition_of_files());
    let exported = &series(&exposition) | &series(&of_files);
    for path in [
        "grafana/spliceway.json",
        "prometheus/spliceway.rules.yml",
        "prometheus/spliceway.test.yml",
    ] {
        let used = metrics_in(&fs::read_to_string(contrib(path)).unwrap());
        assert!(used.len() >= 10, "{path}: {used:?}");
        let unknown: Vec<_> = used.difference(&exported).collect();
        assert!(unknown.is_empty(), "{path}: {unknown:?}\n{exposition}{of_files}");
    }
}

#[test]
fn promtool_accepts_names_and_help_texts() {
    if !has_tool("promtool", "prometheus") {
        return;
    }
    // promtool reads the text format, which the program serves unless a scraper prefers another.
    for text in [exposition(), exposition_of_files()] {
        let mut promtool = Command::new("promtool");
        let mut promtool = promtool
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}\n{text}");
    }
}

#[test]
fn alerts_fire_for_their_faults_and_not_for_a_healthy_instance() {
    if !has_tool("promtool", "prometheus") {
        return;
    }
    for arguments in [
        ["check", "rules", "spliceway.rules.yml"],
        ["test", "rules", "spliceway.test.yml"],
    ] {
        let mut promtool = Command::new("promtool");
        let output = promtool
            .args(arguments)
            .current_dir(contrib("prometheus"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    // An alert without a test of its fault would pass as well.
    let tests = fs::read_to_string(contrib("prometheus/spliceway.test.yml")).unwrap();
    let rules = fs::read_to_string(contrib("prometheus/spliceway.rules.yml")).unwrap();
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n        exp_alerts:");
        assert!(tests.contains(&fires), "{alert} has no test");
    }
}

fn value(exposition: &str, series: &str) -> f64 {
    let line = exposition.lines().find(|line| line.starts_with(&format!("{series} ")));
    let line = line.unwrap_or_else(|| panic!("{series} is not in\n{exposition}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn metrics_of_the_process_agree_with_the_kernel() {
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let program = Program::socks5(&["--nofile", "900"]);
    let answer = program.get("/metrics");
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let started = value(&answer, "process_start_time_seconds");
    assert!((before..=after).contains(&started), "{before} {started} {after}");
    assert_eq!(value(&answer, "process_max_fds"), 900.0);
    // The connection that asks is open as well.
    let descriptors = program.descriptors() as f64;
    let open = value(&answer, "process_open_fds");
    assert!(
        (descriptors..=descriptors + 1.0).contains(&open),
        "{descriptors} {open}"
    );
    let resident = value(&answer, "process_resident_memory_bytes");
    let ratio = resident / program.resident_bytes() as f64;
    assert!((0.5..2.0).contains(&ratio), "{resident}");
    assert!(value(&answer, "process_virtual_memory_bytes") > resident);
    let cpu = value(&answer, "process_cpu_seconds_total");
    assert!(cpu > 0.0 && cpu <= (program.ticks() + 2) as f64 / 100.0, "{cpu}");
    let version = format!("spliceway_build_info{{version=\"{}\",", env!("CARGO_PKG_VERSION"));
    assert!(answer.contains(&version), "{answer}");
}
