//! The dashboard and the rules with a Prometheus that scrapes programs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use spliceway_net::has_tool;

use super::dashboard::{Query, alerts, panels, queries, rules};
use super::prometheus::{Prometheus, now};
use super::scene::Scene;
use crate::harness::{PATIENCE, let_pass};

/// The time after which a test fails that waits for all alerts. Each one takes a few seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// The queries that fall when something happens, by the panel and the legend. All others rise.
const FALLING: [(&str, &str); 6] = [
    ("Instances", "{{version}}"),
    ("Sessions", "limit"),
    ("Backends up", "{{service}} up"),
    ("State of backends", "{{service}} {{backend}}"),
    ("Time until certificates expire", "{{instance}} {{service}}"),
    ("Time until certificates expire", "{{instance}} {{service}} CRL"),
];

/// The panels that show nothing, or 0, while all is well.
const QUIET: [&str; 8] = [
    "Failed connects",
    "Refused clients",
    "Lost bytes",
    "Failures of backends",
    "Ejections",
    "Queues",
    "Waits and errors",
    "Reloads, hand-overs and restarts",
];

impl Query {
    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.contains(&(&self.panel, &self.legend))
    }
}

/// Asserts that nothing looks like a fault while all is well.
fn assert_quiet(prometheus: &Prometheus, began: f64) {
    assert_eq!(prometheus.fired(began), BTreeSet::new());
    for query in queries().iter().filter(|query| QUIET.contains(&&*query.panel)) {
        for series in prometheus.range(&query.expression, began) {
            let is_quiet = series.samples.iter().all(|(_, value)| *value == 0.0 || value.is_nan());
            assert!(is_quiet, "{query:?}: {:?} {:?}", series.labels, series.samples);
        }
    }
}

/// Lets everything go wrong, and waits for each alert.
fn let_all_go_wrong(scene: &mut Scene, prometheus: &Prometheus, began: f64) {
    let until = Instant::now() + DEADLINE;
    let fire = |wanted: &[&str], repeat: &mut dyn FnMut()| {
        loop {
            let fired = prometheus.fired(began);
            let missing: Vec<_> = wanted.iter().filter(|alert| !fired.contains(**alert)).collect();
            if missing.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "{missing:?}; firing were {fired:?}");
            repeat();
            let_pass(Duration::from_millis(20));
        }
    };
    scene.surge(prometheus);
    let slow = scene.small.fill_slowly();
    let waiting = scene.fill_queue();
    scene.exhaust_quota();
    scene.change(prometheus);
    fire(&["SplicewayQueue", "SplicewayQueueRefuses"], &mut || {
        scene.overflow_queue();
    });
    drop(waiting);
    scene.stop_backends();
    scene.lose_bytes();
    fire(
        &[
            "SplicewayPasswordGuessing",
            "SplicewayConnectFailures",
            "SplicewayBackendEjected",
        ],
        &mut || scene.fail(),
    );
    scene.shake_hands_slowly();
    fire(&["SplicewaySlowConnects", "SplicewaySessionLimit"], &mut || {});
    drop(slow);
    let mut few = None;
    fire(&["SplicewayCopies"], &mut || {
        few = None;
        few = Some(scene.small.lack_descriptors());
    });
    fire(&["SplicewayDescriptors"], &mut || {});
    drop(few);
    fire(&["SplicewayAcceptErrors"], &mut || scene.small.lack_all_descriptors());
    scene.small.lose_log();
    fire(&["SplicewayLogLinesLost"], &mut || drop(scene.small.program.connect()));
    scene.flapping.upgrade(prometheus);
    fire(&["SplicewayRestarts"], &mut || scene.flapping.crash(prometheus));
    scene.flapping.program.kill();
    let rules = rules();
    fire(&alerts(&rules), &mut || {});
}

#[test]
fn every_panel_and_alert_moves_when_something_happens_and_not_before() {
    if !has_tool("prometheus", "prometheus") {
        return;
    }
    let mut scene = Scene::start();
    let targets = [
        ("main", scene.main.metrics()),
        ("small", scene.small.program.metrics()),
        ("flapping", scene.flapping.metrics),
    ];
    let (began, prometheus) = (now(), Prometheus::start(&targets, &rules()));
    let until = Instant::now() + DEADLINE;
    // Each window of a query fits into this time.
    while prometheus.range("count_over_time(up[1h]) >= 11", began).len() < targets.len() {
        assert!(Instant::now() < until, "no scrapes");
        scene.be_normal();
        let_pass(Duration::from_millis(200));
    }
    assert_quiet(&prometheus, began);
    let rested = now();
    let_all_go_wrong(&mut scene, &prometheus, began);
    let (mut staying, until) = (queries(), Instant::now() + PATIENCE);
    while !staying.is_empty() {
        staying.retain(|query| {
            let series = prometheus.range(&query.expression, began);
            !query.has_moved(&series, rested, query.is_in(&FALLING))
        });
        assert!(Instant::now() < until, "these do not move: {staying:#?}");
        let_pass(Duration::from_millis(100));
    }
    assert_no_nonsense(&prometheus, began);
}

/// Asserts that each series has a legend of its own, and that shares are not above 1.
fn assert_no_nonsense(prometheus: &Prometheus, began: f64) {
    let mut legends = BTreeSet::new();
    for query in queries() {
        for series in prometheus.range(&query.expression, began) {
            let legend = query.legend_of(&series.labels);
            assert!(
                legends.insert((query.panel.clone(), legend.clone())),
                "{query:?}: {legend} twice"
            );
            let most = match &*query.panel {
                // A test inherits descriptors, which may have numbers above its limit.
                "Descriptors" => 1.3,
                // A session may exceed its quota by 2 MiB.
                "Quotas" => 1.1,
                _ => 1.0,
            };
            let is_share = |value: f64| value.is_nan() || (0.0..=most).contains(&value);
            let are_shares = series.samples.iter().all(|(_, value)| is_share(*value));
            assert!(
                query.unit != "percentunit" || are_shares,
                "{query:?}: {:?}",
                series.samples
            );
        }
    }
}

#[test]
fn every_panel_has_a_description_a_unit_and_a_place_of_its_own() {
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels() {
        let place = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        let [x, y, width, height] = place;
        assert!(x + width <= 24, "{panel}");
        for cell in (0..width * height).map(|cell| (x + cell % width, y + cell / width)) {
            assert!(cells.insert(cell), "{panel} covers another one");
        }
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        if panel["type"] != "row" {
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            let is_described = [&panel["title"], &panel["description"], unit]
                .iter()
                .all(|text| text.as_str().is_some_and(|text| !text.is_empty()));
            assert!(is_described, "{panel}");
        }
    }
}
