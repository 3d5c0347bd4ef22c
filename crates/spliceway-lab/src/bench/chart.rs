//! The charts of `--svg`: rate and CPU time by the size of a write, and latency.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use spliceway_load::Histogram;

use super::figures::Row;
use super::measurement::{Figure, Kind};
use super::run::{Field, Measured};

const SIZE: (u32, u32) = (760, 900);
const FONT: (&str, u32) = ("sans-serif", 15);
/// By contender. The last one of four is spliceway.
const COLORS: [RGBColor; 4] = [RGBColor(120, 120, 120), BLUE, RGBColor(0, 140, 90), RED];

/// Opens the file before the measurement, and changes nothing in it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("--svg {}: {error}", path.display())))
}

/// Returns the charts as one SVG document.
pub(super) fn draw(field: &Field, measured: &[Measured], rows: &[Row]) -> io::Result<String> {
    let mut text = String::new();
    drawn(&mut text, field, measured, rows).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(text)
}

/// The lines of one chart, by contender.
struct Chart<'a> {
    caption: &'a str,
    x_label: fn(&f64) -> String,
    x_labels: usize,
    legend: SeriesLabelPosition,
    lines: Vec<(&'a str, Vec<(f64, f64)>)>,
}

fn drawn(text: &mut String, field: &Field, measured: &[Measured], rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let names = || field.contenders[..field.control()].iter().map(|one| one.name.as_str());
    let by_size = |figure: Figure| {
        let of = |name| {
            let rows = rows
                .iter()
                .filter(|row| row.measurement == Kind::Sweep && row.figure == figure.name());
            let points = rows.filter_map(|row| Some(((row.size? as f64).log2(), row.value(name)?)));
            (name, points.collect())
        };
        names().map(of).collect()
    };
    let requests = measured.iter().find(|one| one.measurement.kind == Kind::Requests);
    let latency = |(at, name): (usize, _)| {
        let mut times = Histogram::default();
        let runs = requests.iter().flat_map(|one| &one.runs[at]);
        runs.for_each(|run| times.add(&run.done.exchanges));
        // The part of the requests that is slower, in powers of ten.
        let steps = (0..=30).map(|step| f64::from(step) / 10.0);
        let points = steps.filter_map(|nines| Some((nines, times.quantile(1.0 - 10_f64.powf(-nines))?)));
        (name, points.collect())
    };
    let charts = [
        Chart {
            caption: "Rate of one upload, GiB/s, by the size of a write (more is better)",
            x_label: size,
            x_labels: 11,
            legend: SeriesLabelPosition::LowerRight,
            lines: by_size(Figure::Rate),
        },
        Chart {
            caption: "CPU time of the relay, seconds per GiB, by the size of a write (less is better)",
            x_label: size,
            x_labels: 11,
            legend: SeriesLabelPosition::UpperRight,
            lines: by_size(Figure::CpuPerGib),
        },
        Chart {
            caption: "Latency of a request, µs: this part of the requests is faster (less is better)",
            x_label: part,
            x_labels: 4,
            legend: SeriesLabelPosition::UpperLeft,
            lines: names().enumerate().map(latency).collect(),
        },
    ];
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
        chart.draw(area)?;
    }
    Ok(root.present()?)
}

fn size(log: &f64) -> String {
    match log.exp2() / 1024.0 {
        kib if kib < 1024.0 => format!("{kib:.0} KiB"),
        kib => format!("{:.0} MiB", kib / 1024.0),
    }
}

fn part(nines: &f64) -> String {
    let decimals = (nines - 2.0).max(0.0) as usize;
    format!("{:.decimals$} %", 100.0 - 100.0 * 10_f64.powf(-nines))
}

impl Chart<'_> {
    /// Draws lines on a logarithmic scale. A chart whose measurement was not asked for says so.
    fn draw(self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let least = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
        let (x, y) = (
            least(|point| point.0)..most(|point| point.0),
            least(|point| point.1)..most(|point| point.1),
        );
        if x.start >= x.end || y.start <= 0.0 {
            let middle = (i32::try_from(SIZE.0 / 2)?, 100);
            let style = TextStyle::from(FONT).pos(Pos::new(HPos::Center, VPos::Center));
            return Ok(area.draw_text(&format!("{}: not measured", self.caption), &style, middle)?);
        }
        let mut chart = ChartBuilder::on(area)
            .caption(self.caption, FONT)
            .margin(12)
            .margin_right(30)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d(x, (y.start / 1.5..y.end * 1.5).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(self.x_labels)
            .y_labels(6)
            .x_label_formatter(&self.x_label)
            .y_label_formatter(&|value| value.to_string())
            .label_style(FONT)
            .draw()?;
        for ((name, points), color) in self.lines.into_iter().zip(COLORS) {
            if points.is_empty() {
                continue;
            }
            let style = color.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points, style).point_size(2))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(self.legend)
            .label_font(FONT)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}
