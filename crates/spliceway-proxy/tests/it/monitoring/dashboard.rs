//! The dashboard and the rules as files, and as a Prometheus reads them in a test.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::prometheus::Series;
use crate::harness::contrib;

/// A query of a panel.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) panel: String,
    pub(super) unit: String,
    pub(super) legend: String,
    pub(super) expression: String,
}

pub(super) fn panels() -> Vec<Value> {
    let text = fs::read_to_string(contrib("grafana/spliceway.json")).unwrap();
    let mut dashboard: Value = serde_json::from_str(&text).unwrap();
    match dashboard["panels"].take() {
        Value::Array(panels) => panels,
        other => panic!("{other}"),
    }
}

/// Returns the queries of all panels. They have values for the variables, as Grafana sets them if
/// all jobs, instances and services are chosen.
pub(super) fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for panel in panels() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = text(&target["expr"]);
            let expression = ["$job", "$instance", "$service"]
                .iter()
                .fold(expression, |expression, variable| expression.replace(variable, ".*"));
            queries.push(Query {
                panel: text(&panel["title"]),
                unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
                legend: text(&target["legendFormat"]),
                expression: shortened(&expression.replace("$__rate_interval", "5m")),
            });
        }
    }
    queries
}

/// Returns the rules with short windows, and without the times for which a fault must last.
pub(super) fn rules() -> String {
    let text = fs::read_to_string(contrib("prometheus/spliceway.rules.yml")).unwrap();
    let lines = text.lines().filter(|line| !line.trim().starts_with("for: "));
    lines.map(|line| format!("{}\n", shortened(line))).collect()
}

pub(super) fn alerts(rules: &str) -> Vec<&str> {
    let lines = rules.lines();
    lines.filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

/// Returns the text with a short time in place of each range such as `[5m]`. Half an hour is for
/// events that repeat.
fn shortened(text: &str) -> String {
    let ranges = ["5m", "10m", "15m", "6h", "1d"].map(|range| (range, "5s"));
    let ranges = ranges.into_iter().chain([("30m", "20s")]);
    let short = ranges.fold(text.to_owned(), |text, (range, short)| {
        text.replace(&format!("[{range}]"), &format!("[{short}]"))
    });
    let is_long = |part: &str| {
        part.split(']')
            .next()
            .is_some_and(|range| range.ends_with(['m', 'h', 'd']))
    };
    assert!(!short.split('[').skip(1).any(is_long), "an unknown range: {short}");
    short
}

impl Query {
    /// Returns the legend of a series. Every label of the legend must have a value.
    pub(super) fn legend_of(&self, labels: &BTreeMap<String, String>) -> String {
        let mut parts = self.legend.split("{{");
        let mut legend = parts.next().unwrap().to_owned();
        for part in parts {
            let (label, rest) = part.split_once("}}").unwrap();
            let value = labels.get(label).filter(|value| !value.is_empty());
            legend += value.unwrap_or_else(|| panic!("{self:?}: no {label} in {labels:?}"));
            legend += rest;
        }
        legend
    }

    /// Returns whether a series rises, or `falls`, after the time `rested`.
    pub(super) fn has_moved(&self, series: &[Series], rested: f64, falls: bool) -> bool {
        series.iter().any(|series| {
            let is_before = |time: f64| time <= rested;
            let part = |wanted: bool| {
                let samples = series
                    .samples
                    .iter()
                    .filter(move |(time, _)| is_before(*time) == wanted);
                samples.map(|(_, value)| *value).filter(|value| value.is_finite())
            };
            if falls {
                let last = part(true).next_back();
                last.is_some_and(|last| part(false).any(|value| value < last - 0.1 * last.abs()))
            } else {
                let highest = part(true).fold(0.0, f64::max);
                part(false).any(|value| value > 1.1 * highest)
            }
        })
    }
}
