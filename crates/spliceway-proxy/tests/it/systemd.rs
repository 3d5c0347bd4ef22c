use std::fs;
use std::process::Command;

use spliceway_net::has_tool;

use crate::harness::{Folder, contrib};

const PROGRAM: &str = env!("CARGO_BIN_EXE_spliceway");
const UNITS: [&str; 3] = ["spliceway.service", "spliceway@.service", "spliceway-web.socket"];

/// Writes the units into `folder`, for the program that is tested instead of the one in `/usr/bin`.
fn units(folder: &Folder) {
    for unit in UNITS {
        let text = fs::read_to_string(contrib(&format!("systemd/{unit}"))).unwrap();
        folder.file(unit, &text.replace("/usr/bin/spliceway", PROGRAM));
    }
}

#[test]
fn systemd_finds_no_fault_in_the_units() {
    if !has_tool("systemd-analyze", "systemd") {
        return;
    }
    let folder = Folder::new("units");
    units(&folder);
    // Without `--man=no`, the pages in the unit must be installed.
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(UNITS.map(|unit| folder.0.join(unit)))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // A fault elsewhere on this machine is not a fault of the units.
    let own: Vec<_> = said.lines().filter(|line| line.contains("spliceway")).collect();
    assert!(output.status.success() && own.is_empty(), "{said}");
}

#[test]
fn the_units_expose_little_of_the_machine() {
    if !has_tool("systemd-analyze", "systemd") {
        return;
    }
    let folder = Folder::new("exposure");
    units(&folder);
    // The threshold is the exposure that docs/packages.md states, times ten.
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=17"])
        .arg(folder.0.join("spliceway.service"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_template_differs_from_the_service_only_in_its_names() {
    let settings = |unit: &str| {
        let text = fs::read_to_string(contrib(&format!("systemd/{unit}"))).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let template = settings("spliceway@.service");
    let named = |line: &String| {
        line.replace("/etc/spliceway/%i.toml", "/etc/spliceway/spliceway.toml")
            .replace("spliceway-%i", "spliceway")
            .replace(" (%i)", "")
    };
    assert!(template.iter().any(|line| line.contains("%i")));
    assert_eq!(
        template.iter().map(named).collect::<Vec<_>>(),
        settings("spliceway.service")
    );
}

#[test]
fn the_packaged_configuration_is_valid_and_private() {
    let path = contrib("debian/spliceway.toml");
    let check = Command::new(PROGRAM).args(["check", "-c"]).arg(&path).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    let said = String::from_utf8(check.stdout).unwrap();
    // Port because nothing listens on it here.
    let expected = "valid, 1 service\n  socks: socks5 on 127.0.0.1:1080, no users: every client\n";
    assert!(said.contains(expected), "{said}");
}

/// Runs the program with a resource limit, and returns its stderr. The program must refuse to
/// start.
fn refusal(limit: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("prlimit");
    command.env("RUST_MIN_STACK", "1000000000");
    let output = command.args([limit, PROGRAM]).args(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn a_limit_of_a_service_manager_is_an_error_with_a_remedy() {
    if !has_tool("prlimit", "util-linux") {
        return;
    }
    let refused = refusal("--stack=65536", &["--version"]);
    assert!(refused.contains("the limit on the stack is 64 KiB: expected at least 256 KiB (LimitSTACK="));
    // Port because nothing connects to it.
    let forward = ["forward", "-l", "127.0.0.1:0", "-r", "127.0.0.1:1", "--workers"];
    // The stack of the first thread is larger than the limit. With many small threads, the memory
    // of a thread that runs could be what is missing.
    let refused = refusal("--as=500000000", &[&forward[..], &["2"]].concat());
    let expected = "cannot start thread 1 of 4: Resource temporarily unavailable";
    assert!(refused.contains(expected), "{refused}");
    assert!(refused.contains("(TasksMax=, LimitNPROC=,"), "{refused}");
    let refused = refusal("--nofile=8", &[&forward[..], &["1"]].concat());
    assert!(
        refused.contains("raise the limit on descriptors (LimitNOFILE="),
        "{refused}"
    );
}
