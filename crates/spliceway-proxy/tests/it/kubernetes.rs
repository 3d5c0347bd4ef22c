use std::fs;
use std::process::Command;

use spliceway_net::has_tool;

use crate::harness::{TextFile, contrib};

const EXAMPLES: [&str; 2] = ["kubernetes/deployment.yaml", "kubernetes/daemonset.yaml"];

#[test]
fn the_examples_fit_the_schema_of_kubernetes() {
    if !has_tool(
        "kubernetes-validate",
        "python3-pip, for `pip install kubernetes-validate`",
    ) {
        return;
    }
    let mut validate = Command::new("kubernetes-validate");
    let output = validate.arg("--strict").args(EXAMPLES.map(contrib)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_configurations_in_the_examples_are_valid() {
    for path in EXAMPLES {
        let example = fs::read_to_string(contrib(path)).unwrap();
        let (_, text) = example.split_once("  spliceway.toml: |\n").unwrap();
        let indented = text
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with("    "));
        let file = TextFile::new(&indented.map(|line| format!("{}\n", line.trim())).collect::<String>());
        let mut check = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let check = check
            .args(["check", "-c", file.path()])
            .env("NODE_ADDRESS", "192.0.2.1");
        let output = check.output().unwrap();
        assert!(output.status.success(), "{path}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("valid, 1 service"));
    }
}

/// Returns the number behind `key` in its only line.
fn number(text: &str, key: &str) -> Option<u64> {
    let (_, value) = text.split_once(key)?;
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[test]
fn the_grace_period_is_longer_than_the_drain_and_the_hook() {
    for path in EXAMPLES {
        let text = fs::read_to_string(contrib(path)).unwrap();
        let grace = number(&text, "terminationGracePeriodSeconds: ").unwrap();
        let hook = number(&text, "sleep: {seconds: ").unwrap_or(0);
        let (_, drain) = text.split_once("drain = \"").unwrap();
        let drain = humantime::parse_duration(drain.split_once('"').unwrap().0)
            .unwrap()
            .as_secs();
        // Cut sessions and the log need time, too.
        assert!(grace >= hook + drain + 5, "{path}: {grace}, {hook}, {drain}");
    }
}
