use std::fs;
use std::process::Command;

use spliceway_net::has_tool;

use crate::harness::{Folder, TextFile, contrib};

const EXAMPLES: [&str; 3] = [
    "kubernetes/deployment.yaml",
    "kubernetes/daemonset.yaml",
    "egress/sidecar.yaml",
];

/// The version of Kubernetes for Helm, which knows none if it was built by Go alone.
const KUBERNETES: [&str; 2] = ["--kube-version", "1.37.0"];

/// Values of the Helm chart.
const VALUES: [&[&str]; 3] = [
    &["drainSeconds=7"],
    &["usersSecret=users", "image.tag=1"],
    &["kind=DaemonSet", "usersSecret=users"],
];

fn can_validate() -> bool {
    has_tool(
        "kubernetes-validate",
        "python3-pip, for `pip install kubernetes-validate`",
    )
}

fn can_render() -> bool {
    has_tool("helm", "golang, for `go install helm.sh/helm/v3/cmd/helm@v3.22.0`")
}

/// Returns what a successful command prints.
fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Renders the Helm chart with these values.
fn render(values: &[&str]) -> String {
    let mut helm = Command::new("helm");
    helm.args(["template", "a-name"])
        .args(KUBERNETES)
        .arg(contrib("helm/spliceway"));
    stdout(helm.args(values.iter().flat_map(|value| ["--set", value])))
}

/// Returns the text of a file in a ConfigMap.
pub(crate) fn file_in(config_map: &str, name: &str) -> String {
    let (_, text) = config_map.split_once(&format!("  {name}: |\n")).unwrap();
    let indented = text
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    indented.map(|line| format!("{}\n", line.trim())).collect()
}

#[test]
fn the_examples_fit_the_schema_of_kubernetes() {
    if can_validate() {
        let mut validate = Command::new("kubernetes-validate");
        stdout(validate.arg("--strict").args(EXAMPLES.map(contrib)));
    }
}

#[test]
fn the_helm_chart_fits_the_schema_of_kubernetes() {
    if !can_render() || !can_validate() {
        return;
    }
    let folder = Folder::new("helm");
    for (index, values) in VALUES.iter().enumerate() {
        folder.file(&index.to_string(), &render(values));
        let mut validate = Command::new("kubernetes-validate");
        stdout(validate.arg("--strict").arg(folder.0.join(index.to_string())));
    }
    stdout(
        Command::new("helm")
            .args(["lint", "--strict"])
            .arg(contrib("helm/spliceway")),
    );
}

#[test]
fn the_helm_chart_has_a_valid_configuration_and_time_to_drain() {
    if !can_render() {
        return;
    }
    for values in VALUES {
        let rendered = render(values);
        let folder = Folder::new("chart");
        let main = file_in(&rendered, "spliceway.toml");
        folder.file("spliceway.toml", &main);
        folder.file("services.toml", &file_in(&rendered, "services.toml"));
        let mut check = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let check = check.arg("check").arg(&folder.0).env("NODE_ADDRESS", "192.0.2.1");
        assert!(stdout(check).contains("valid, 1 service"));
        let drain = number(&main, "drain = \"").unwrap();
        let hook = number(&rendered, "sleep: {seconds: ").unwrap_or(0);
        let grace = number(&rendered, "terminationGracePeriodSeconds: ").unwrap();
        assert!(grace >= hook + drain + 5, "{values:?}: {grace}, {hook}, {drain}");
        assert_eq!(hook > 0, rendered.contains("kind: Service\n"), "{values:?}");
    }
}

#[test]
fn the_helm_chart_refuses_other_kinds() {
    if can_render() {
        let mut helm = Command::new("helm");
        helm.args(["template", "a-name", "--set", "kind=Job"]).args(KUBERNETES);
        let output = helm.arg(contrib("helm/spliceway")).output().unwrap();
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.contains("kind is \"Job\": expected Deployment or DaemonSet"),
            "{stderr}"
        );
    }
}

#[test]
fn the_configurations_in_the_examples_are_valid() {
    for path in EXAMPLES {
        let example = fs::read_to_string(contrib(path)).unwrap();
        let file = TextFile::new(&file_in(&example, "spliceway.toml"));
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
