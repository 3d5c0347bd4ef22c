//! Plots of the results. Ours is the thick line; colours are those of Okabe and Ito, which differ for the colour-blind too, and every
//! line says its name at its end.

mod canvas;

use std::fs;
use std::io;
use std::path::Path;

use super::json::{Measured, Results};
use super::median;
use super::regret::{self, Kind};
use crate::arms::Role;
use canvas::{Axis, Canvas, Look, Marker, Side};

/// The scenario whose latencies are drawn: the smallest that keeps a relay busy.
const LATENCY: &str = "rr-64-64";

/// How a value on an axis is written.
type Write = fn(f64) -> String;

/// Kinds of scenarios that are drawn as lines: what their last part stands for, and how to write it.
const LINES: [(&str, &str, Write); 2] = [
    ("bulk", "connections at once", |count| format!("{count}")),
    ("sweep", "bytes per write of the peer", bytes),
];

const WIDTH: i32 = 900;
const LEFT: i32 = 76;
/// Beyond it are the names of the lines.
const RIGHT: i32 = 730;
const TOP: i32 = 56;
const BOTTOM: i32 = 440;
/// A name and the space around it.
const ROW: i32 = 24;

/// Draws what there are results for.
pub(super) fn draw_all(results: &Results, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (kind, over, write) in LINES {
        let mut scenarios: Vec<(f64, &Measured)> = results
            .scenarios
            .iter()
            .filter(|one| one.kind() == kind)
            .filter_map(|one| Some((one.id.rsplit_once('-')?.1.parse().ok()?, one)))
            .collect();
        scenarios.sort_by(|a, b| a.0.total_cmp(&b.0));
        if scenarios.len() < 2 {
            continue;
        }
        for figure in [Kind::Cpu, Kind::Rate] {
            let path = folder.join(format!("{kind}-{}.svg", figure.name().to_lowercase()));
            lines(results, &scenarios, figure, (over, write), &path)?;
        }
    }
    if let Some(scenario) = results.scenarios.iter().find(|one| one.id == LATENCY) {
        latency(results, scenario, &folder.join("rr-latency.svg"))?;
    }
    regrets(results, &folder.join("regret.svg"))
}

/// How an arm is drawn, in every plot the same.
fn look(results: &Results, arm: &str) -> Look {
    let mut peers: Vec<&str> = Vec::new();
    let mut ours: Vec<&str> = Vec::new();
    for row in results.scenarios.iter().flat_map(|one| &one.rows) {
        let arms = match row.role {
            Role::Direct => continue,
            Role::Peer => &mut peers,
            Role::Ours => &mut ours,
        };
        if !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    let place = |arms: &[&str]| arms.iter().position(|other| *other == arm);
    match (place(&ours), place(&peers)) {
        (Some(place), _) => Look::ours(place),
        (None, Some(place)) => Look::peer(place),
        (None, None) => Look::direct(),
    }
}

/// One figure of every arm over the last part of the scenarios' names.
fn lines(
    results: &Results,
    scenarios: &[(f64, &Measured)],
    kind: Kind,
    (over, write): (&str, Write),
    path: &Path,
) -> io::Result<()> {
    let first = scenarios[0].1;
    let Some(index) = first.figures.iter().position(|figure| Kind::of(figure) == Some(kind)) else {
        return Ok(());
    };
    let mut arms: Vec<&str> = Vec::new();
    for row in scenarios.iter().flat_map(|(_, one)| &one.rows) {
        // No relay takes no CPU time.
        let is_shown = kind != Kind::Cpu || row.role != Role::Direct;
        if is_shown && !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    let of = |arm: &str| -> Vec<(f64, f64)> {
        let at = |(x, one): &(f64, &Measured)| {
            let row = one.rows.iter().find(|row| row.arm == arm)?;
            Some((*x, median(row.samples.get(index)?.clone())))
        };
        scenarios.iter().filter_map(at).filter(|(_, y)| *y > 0.0).collect()
    };
    let all: Vec<(&str, Vec<(f64, f64)>)> = arms.into_iter().map(|arm| (arm, of(arm))).collect();
    let values = || all.iter().flat_map(|(_, points)| points.iter().map(|(_, y)| *y));
    let x = Axis::over(scenarios.iter().map(|(x, _)| *x), (LEFT + 16, RIGHT - 16));
    let y = Axis::over(values(), (BOTTOM, TOP));
    let figure = &first.figures[index];
    let what = match kind {
        Kind::Cpu => "CPU time of the relay",
        _ => figure.name.as_str(),
    };
    let title = format!("{}: {what}, {} ({} is better)", first.kind(), figure.unit, better(kind));
    let canvas = Canvas::new(path, (WIDTH, BOTTOM + 60))?;
    canvas.title(&title)?;
    for tick in y.ticks() {
        canvas.grid((LEFT, y.at(tick)), (RIGHT, y.at(tick)))?;
        canvas.text((LEFT - 8, y.at(tick)), Side::Left, &number(tick), &Look::axis())?;
    }
    for (value, _) in scenarios {
        canvas.grid((x.at(*value), TOP), (x.at(*value), BOTTOM))?;
        canvas.text((x.at(*value), BOTTOM + 16), Side::Middle, &write(*value), &Look::axis())?;
    }
    canvas.text(((LEFT + RIGHT) / 2, BOTTOM + 42), Side::Middle, over, &Look::axis())?;
    draw_lines(&canvas, results, &all, (&x, &y))?;
    canvas.finish()
}

fn draw_lines(
    canvas: &Canvas<'_>,
    results: &Results,
    all: &[(&str, Vec<(f64, f64)>)],
    (x, y): (&Axis, &Axis),
) -> io::Result<()> {
    let mut ends = Vec::new();
    // Ours last, so that it lies above the others.
    let mut all: Vec<_> = all
        .iter()
        .map(|(arm, points)| (*arm, points, look(results, arm)))
        .collect();
    all.sort_by_key(|(_, _, look)| look.is_main);
    for (arm, points, look) in &all {
        let at: Vec<(i32, i32)> = points.iter().map(|point| (x.at(point.0), y.at(point.1))).collect();
        canvas.path(&at, look)?;
        for point in &at {
            canvas.marker(*point, look.marker, look)?;
        }
        ends.extend(at.last().map(|end| (*arm, *end, *look)));
    }
    ends.sort_by_key(|(_, end, _)| end.1);
    let wanted: Vec<i32> = ends.iter().map(|(_, end, _)| end.1).collect();
    for ((arm, end, look), place) in ends.iter().zip(apart(&wanted, ROW - 6, (TOP, BOTTOM))) {
        canvas.path(&[(end.0 + 8, end.1), (RIGHT + 14, place)], &look.thin())?;
        canvas.text((RIGHT + 20, place), Side::Right, arm, look)?;
    }
    Ok(())
}

/// The places next to those wanted, from low to high, that are so far apart.
fn apart(wanted: &[i32], distance: i32, (low, high): (i32, i32)) -> Vec<i32> {
    let mut places: Vec<i32> = Vec::with_capacity(wanted.len());
    for place in wanted {
        let least = places.last().map_or(low, |last| last + distance);
        places.push(least.max(*place));
    }
    let mut most = high;
    for place in places.iter_mut().rev() {
        *place = most.min(*place);
        most = *place - distance;
    }
    places
}

/// p50, p99 and p99.9 of every arm, a row each.
fn latency(results: &Results, scenario: &Measured, path: &Path) -> io::Result<()> {
    const SHOWN: [(&str, Marker); 3] = [
        ("p50", Marker::Circle),
        ("p99", Marker::Triangle),
        ("p99.9", Marker::Cross),
    ];
    const NAMES: i32 = 210;
    const END: i32 = WIDTH - 40;
    let index_of = |name: &str| scenario.figures.iter().position(|figure| figure.name == name);
    let shown: Vec<(usize, Marker)> = SHOWN
        .iter()
        .filter_map(|(name, marker)| Some((index_of(name)?, *marker)))
        .collect();
    let of =
        |samples: &[Vec<f64>]| -> Vec<f64> { shown.iter().map(|(index, _)| median(samples[*index].clone())).collect() };
    let x = Axis::over(scenario.rows.iter().flat_map(|row| of(&row.samples)), (NAMES, END));
    let top = TOP + ROW;
    let bottom = top + ROW * scenario.rows.len() as i32;
    let canvas = Canvas::new(path, (WIDTH, bottom + 60))?;
    canvas.title(&format!("Round trip, µs: {}", scenario.title))?;
    for ((name, marker), place) in SHOWN.iter().zip([0, 90, 180]) {
        canvas.marker((NAMES + place, TOP + 4), *marker, &Look::axis())?;
        canvas.text((NAMES + place + 12, TOP + 4), Side::Right, name, &Look::axis())?;
    }
    for tick in x.ticks() {
        canvas.grid((x.at(tick), top), (x.at(tick), bottom))?;
        canvas.text((x.at(tick), bottom + 16), Side::Middle, &number(tick), &Look::axis())?;
    }
    canvas.text(
        ((NAMES + END) / 2, bottom + 42),
        Side::Middle,
        "µs (fewer are better)",
        &Look::axis(),
    )?;
    for (row, samples) in scenario.rows.iter().enumerate() {
        let (y, look) = (top + ROW * row as i32 + ROW / 2, look(results, &samples.arm));
        let at: Vec<(i32, i32)> = of(&samples.samples).iter().map(|value| (x.at(*value), y)).collect();
        canvas.text((NAMES - 16, y), Side::Left, &samples.arm, &look)?;
        canvas.path(&at, &look)?;
        for (point, (_, marker)) in at.iter().zip(&shown) {
            canvas.marker(*point, *marker, &look)?;
        }
    }
    canvas.finish()
}

/// A bar for each arm, and where it is beaten.
fn regrets(results: &Results, path: &Path) -> io::Result<()> {
    const NAMES: i32 = 210;
    const END: i32 = 620;
    let all = regret::of_all(results);
    if all.is_empty() {
        return Ok(());
    }
    let x = Axis::from(
        1.0,
        all.iter().map(regret::Regret::factor).fold(2.0, f64::max),
        (NAMES, END),
    );
    let bottom = TOP + ROW * all.len() as i32;
    let canvas = Canvas::new(path, (WIDTH, bottom + 60))?;
    canvas.title("Regret: how many times better the best other relay is, where it is worst")?;
    for tick in x.ticks() {
        canvas.grid((x.at(tick), TOP), (x.at(tick), bottom))?;
        canvas.text((x.at(tick), bottom + 16), Side::Middle, &number(tick), &Look::axis())?;
    }
    canvas.text(
        ((NAMES + END) / 2, bottom + 42),
        Side::Middle,
        "times (1: nobody is better)",
        &Look::axis(),
    )?;
    for (row, regret) in all.iter().enumerate() {
        let (y, look) = (TOP + ROW * row as i32 + ROW / 2, look(results, &regret.arm));
        let end = x.at(regret.factor()).max(NAMES + 2);
        canvas.text((NAMES - 10, y), Side::Left, &regret.arm, &look)?;
        canvas.bar((NAMES, y - 8), (end, y + 8), &look)?;
        let said = match regret.whole() {
            Some(worst) => format!("{:.2}: {}, {}", worst.factor, worst.kind.name(), worst.scenario),
            None => "1: nobody is better".into(),
        };
        canvas.text((end + 8, y), Side::Right, &said, &look.said())?;
    }
    canvas.finish()
}

fn better(kind: Kind) -> &'static str {
    match kind {
        Kind::Rate => "more",
        _ => "less",
    }
}

/// As short as it is.
fn number(value: f64) -> String {
    // Ticks are 1, 2 or 5 times a power of ten, give or take a rounding.
    let rounded: f64 = format!("{value:.1e}").parse().expect("as it was printed");
    rounded.to_string()
}

fn bytes(count: f64) -> String {
    const KIB: f64 = 1024.0;
    match count {
        ..KIB => format!("{count} B"),
        _ if count < KIB * KIB => format!("{} KiB", count / KIB),
        _ => format!("{} MiB", count / KIB / KIB),
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::Environment;
    use super::super::tests::scenario;
    use super::*;
    use crate::scenario::Better;

    #[test]
    fn names_of_lines_that_end_together_are_moved_apart_and_stay_inside() {
        assert_eq!(apart(&[10, 50, 90], 10, (0, 100)), [10, 50, 90]);
        assert_eq!(apart(&[50, 51, 52], 10, (0, 100)), [50, 60, 70]);
        assert_eq!(apart(&[80, 95, 99], 10, (0, 100)), [80, 90, 100]);
        assert_eq!(apart(&[-5, 0], 10, (0, 100)), [0, 10]);
    }

    #[test]
    fn numbers_and_sizes_are_short() {
        assert_eq!([0.1 + 0.2, 5.0, 2000.0].map(number), ["0.3", "5", "2000"]);
        assert_eq!([512.0, 65536.0, 1048576.0].map(bytes), ["512 B", "64 KiB", "1 MiB"]);
    }

    #[test]
    fn every_plot_there_are_results_for_is_drawn_with_every_arm_named() {
        let figures = [("CPU", Better::Lower), ("rate", Better::Higher)];
        let bulk: &[(&str, Role, &[&[f64]])] = &[
            ("direct", Role::Direct, &[&[0.0], &[9.0]]),
            ("tokio <8 KiB>", Role::Peer, &[&[1.0], &[1.0]]),
            ("spliceway", Role::Ours, &[&[0.1], &[7.0]]),
        ];
        let percentiles = ["p50", "p99", "p99.9"].map(|name| (name, Better::Lower));
        let mut results = Results::new(Environment::default());
        results.put(scenario("bulk-1", &figures, bulk));
        results.put(scenario("bulk-64", &figures, bulk));
        results.put(scenario(
            "rr-64-64",
            &percentiles,
            &[("spliceway", Role::Ours, &[&[90.0], &[100.0], &[900.0]])],
        ));
        let folder = std::env::temp_dir().join(format!("spliceway-plots-{}", std::process::id()));
        let drawn = draw_all(&results, &folder);
        let svg = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let drawings = [
            "bulk-cpu.svg",
            "bulk-rate.svg",
            "rr-latency.svg",
            "regret.svg",
            "sweep-cpu.svg",
        ]
        .map(svg);
        fs::remove_dir_all(&folder).expect("ours to remove");
        drawn.expect("drawn");
        for svg in &drawings[..4] {
            assert!(svg.contains("spliceway") && svg.trim_end().ends_with("</svg>"), "{svg}");
        }
        assert!(drawings[0].contains("tokio &lt;8 KiB&gt;") && !drawings[0].contains("direct"));
        assert!(drawings[1].contains("direct"));
        assert_eq!(drawings[4], "", "nothing was swept");
    }
}
