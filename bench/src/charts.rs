//! The charts of `docs/benchmarks.md`.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::prelude::*;

use crate::contender::{OURS, REFERENCE, is_peer};
use crate::page::Results;
use crate::results::Figure;

const SIZE: (u32, u32) = (860, 420);
const FONT: (&str, u32) = ("sans-serif", 15);
/// Contenders in the line charts: the reference, the peers that people name, and spliceway.
const LINES: [&str; 5] = [REFERENCE, "HAProxy", "nginx", "tokio-splice2", OURS];

pub(crate) fn write(results: &Results, folder: &Path) -> io::Result<()> {
    cpu_by_contender(results, &folder.join("cpu-per-gib.svg")).map_err(failed)?;
    latency_by_load(results, &folder.join("latency-by-load.svg")).map_err(failed)?;
    cpu_by_size(results, &folder.join("cpu-by-size.svg")).map_err(failed)
}

fn failed(error: Box<dyn Error>) -> io::Error {
    io::Error::other(error.to_string())
}

/// Draws bars: one bulk flow at half of the slowest contender's capacity.
fn cpu_by_contender(results: &Results, path: &Path) -> Result<(), Box<dyn Error>> {
    let Some(measured) = results.load("F1 bulk at 50 %", "rack") else {
        return Ok(());
    };
    let mut bars: Vec<(&str, f64)> = measured
        .contenders()
        .into_iter()
        .filter(|name| is_peer(name) || *name == OURS)
        .filter_map(|name| Some((name, measured.cpu(name)?.value)))
        .collect();
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = bars.first().map_or(1.0, |bar| bar.1) * 1.1;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "CPU time of the relay's core, seconds per GiB: one bulk flow at a fixed rate (less is better)",
            FONT,
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(110)
        .build_cartesian_2d(0.0..most, (0..bars.len()).into_segmented())?;
    let label = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(at) => bars.get(*at).map_or(String::new(), |bar| bar.0.to_owned()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(bars.len())
        .y_label_formatter(&label)
        .label_style(FONT)
        .draw()?;
    chart.draw_series(bars.iter().enumerate().map(|(at, (name, value))| {
        let color = if *name == OURS {
            RED.filled()
        } else {
            BLUE.mix(0.4).filled()
        };
        let mut bar = Rectangle::new(
            [(0.0, SegmentValue::Exact(at)), (*value, SegmentValue::Exact(at + 1))],
            color,
        );
        bar.set_margin(3, 3, 0, 0);
        bar
    }))?;
    Ok(root.present()?)
}

/// Draws lines: the latency added to the direct connection, at 25, 50 and 75 % of the slowest
/// contender's capacity.
fn latency_by_load(results: &Results, path: &Path) -> Result<(), Box<dyn Error>> {
    let points = |name: &'static str| -> Vec<(f64, f64)> {
        let of = |percent: u32| {
            let measured = results.load(&format!("F1 bulk at {percent} %"), "rack")?;
            let fault = measured.added_fault(name, 0.9);
            Some((
                f64::from(percent),
                measured.added(name, 0.9).filter(|_| fault.is_none())?.value,
            ))
        };
        [25, 50, 75].into_iter().filter_map(of).collect()
    };
    lines(
        path,
        "Latency added at p90, µs, against the offered load, % of what the slowest contender can carry",
        |percent| format!("{percent:.0}"),
        &LINES.map(|name| (name, points(name))),
    )
}

/// Draws lines: log shipping at 50 MB/s by write size, relative to tokio.
fn cpu_by_size(results: &Results, path: &Path) -> Result<(), Box<dyn Error>> {
    let points = |name: &'static str| -> Vec<(f64, f64)> {
        let of = |kib: u32| {
            let measured = results.load(&format!("F4 {kib} KiB at 50 MB/s"), "rack")?;
            let ratio = measured.ratio(Figure::Cpu, name, REFERENCE)?;
            Some((f64::from(kib).log2(), ratio.value))
        };
        [2, 8, 16, 64, 256].into_iter().filter_map(of).collect()
    };
    lines(
        path,
        "CPU time relative to tokio, by the size of a write in KiB (one stream of 50 MB/s; 1.0 is tokio)",
        |log| format!("{:.0}", log.exp2()),
        &LINES.map(|name| (name, points(name))),
    )
}

fn lines(
    path: &Path,
    caption: &str,
    x_label: impl Fn(&f64) -> String,
    series: &[(&str, Vec<(f64, f64)>)],
) -> Result<(), Box<dyn Error>> {
    let all = || series.iter().flat_map(|(_, points)| points);
    let widest = all().map(|point| point.0).fold(1.0, f64::max);
    let first = all().map(|point| point.0).fold(widest, f64::min);
    let highest = all().map(|point| point.1).fold(0.0, f64::max).max(1e-3) * 1.1;
    let lowest = all().map(|point| point.1).fold(0.0, f64::min);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(caption, FONT)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(first..widest, lowest..highest)?;
    chart
        .configure_mesh()
        .label_style(FONT)
        .x_label_formatter(&x_label)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (at, (name, points)) in series.iter().enumerate() {
        let color = if *name == OURS {
            RED.to_rgba()
        } else {
            Palette99::pick(at + 1).to_rgba()
        };
        let style = color.stroke_width(if *name == OURS { 3 } else { 2 });
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .label_font(FONT)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(root.present()?)
}
