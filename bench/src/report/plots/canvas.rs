//! What plots are drawn with: logarithmic axes, lines, markers, names.

use std::io;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels, from the top left.
pub(super) type Point = (i32, i32);

/// A logarithmic axis, as what is compared are ratios.
pub(super) struct Axis {
    low: f64,
    high: f64,
    pixels: (i32, i32),
}

impl Axis {
    /// From the least to the greatest of these, and a little more.
    pub(super) fn over(values: impl Iterator<Item = f64>, pixels: (i32, i32)) -> Self {
        let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
        let low = values.iter().copied().fold(f64::MAX, f64::min);
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        Self::from(low.min(high) / 1.1, high * 1.1, pixels)
    }

    pub(super) fn from(low: f64, high: f64, pixels: (i32, i32)) -> Self {
        Self { low, high, pixels }
    }

    pub(super) fn at(&self, value: f64) -> i32 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        let (from, to) = (f64::from(self.pixels.0), f64::from(self.pixels.1));
        (from + part * (to - from)).round() as i32
    }

    /// Round numbers on it, no closer to each other than their names are long.
    pub(super) fn ticks(&self) -> Vec<f64> {
        const STEPS: [&[f64]; 3] = [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0]];
        let decades = (self.high / self.low).log10();
        let steps = match decades {
            ..1.2 => STEPS[0],
            ..3.5 => STEPS[1],
            _ => STEPS[2],
        };
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick))
            .collect()
    }
}

/// Which side of a point its text is on.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Left,
    Middle,
    Right,
}

#[derive(Clone, Copy)]
pub(super) enum Marker {
    Circle,
    Triangle,
    Square,
    Cross,
}

/// How something is drawn.
#[derive(Clone, Copy)]
pub(super) struct Look {
    color: RGBColor,
    width: u32,
    pub(super) marker: Marker,
    /// What the plot is about.
    pub(super) is_main: bool,
}

const OURS: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
/// Without the yellow, which is hard to see on white.
const PEERS: [RGBColor; 5] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xB5, 0x7A, 0x00),
    RGBColor(0xB8, 0x57, 0x8F),
    RGBColor(0x3A, 0x9B, 0xD6),
];
const TEXT: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);
const GRID: RGBColor = RGBColor(0xE0, 0xE0, 0xE0);

impl Look {
    /// The first of ours is the one that plots are about.
    pub(super) fn ours(place: usize) -> Self {
        Self {
            color: OURS,
            width: if place == 0 { 4 } else { 1 },
            marker: [Marker::Circle, Marker::Triangle, Marker::Square][place % 3],
            is_main: place == 0,
        }
    }

    /// Colours come again with other markers.
    pub(super) fn peer(place: usize) -> Self {
        Self {
            color: PEERS[place % PEERS.len()],
            width: 2,
            marker: [Marker::Circle, Marker::Triangle, Marker::Square][place / PEERS.len() % 3],
            is_main: false,
        }
    }

    pub(super) fn direct() -> Self {
        Self {
            color: GREY,
            width: 1,
            marker: Marker::Cross,
            is_main: false,
        }
    }

    pub(super) fn axis() -> Self {
        Self {
            color: TEXT,
            ..Self::direct()
        }
    }

    /// For what is said beside it.
    pub(super) fn said(self) -> Self {
        Self { color: TEXT, ..self }
    }

    pub(super) fn thin(self) -> Self {
        Self { width: 1, ..self }
    }
}

/// A white page, so that it reads on a dark one too.
pub(super) struct Canvas<'p> {
    area: DrawingArea<SVGBackend<'p>, Shift>,
}

impl<'p> Canvas<'p> {
    pub(super) fn new(path: &'p Path, (width, height): (i32, i32)) -> io::Result<Self> {
        let area = SVGBackend::new(path, (width as u32, height as u32)).into_drawing_area();
        area.fill(&WHITE).map_err(io::Error::other)?;
        Ok(Self { area })
    }

    pub(super) fn title(&self, title: &str) -> io::Result<()> {
        let font = FontDesc::new(FontFamily::SansSerif, 21.0, FontStyle::Bold);
        let style = font.color(&TEXT).pos(Pos::new(HPos::Left, VPos::Center));
        self.draw(&Text::new(title, (20, 24), style))
    }

    pub(super) fn text(&self, at: Point, side: Side, text: &str, look: &Look) -> io::Result<()> {
        let weight = if look.is_main {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        let side = match side {
            Side::Left => HPos::Right,
            Side::Middle => HPos::Center,
            Side::Right => HPos::Left,
        };
        let font = FontDesc::new(FontFamily::SansSerif, 17.0, weight);
        let style = font.color(&look.color).pos(Pos::new(side, VPos::Center));
        self.draw(&Text::new(text, at, style))
    }

    pub(super) fn grid(&self, from: Point, to: Point) -> io::Result<()> {
        self.draw(&PathElement::new([from, to], GRID))
    }

    pub(super) fn path(&self, points: &[Point], look: &Look) -> io::Result<()> {
        self.draw(&PathElement::new(points, look.color.stroke_width(look.width)))
    }

    pub(super) fn marker(&self, at: Point, marker: Marker, look: &Look) -> io::Result<()> {
        let size = if look.is_main { 6 } else { 4 };
        let filled = look.color.filled();
        match marker {
            Marker::Circle => self.draw(&Circle::new(at, size, filled)),
            Marker::Triangle => self.draw(&TriangleMarker::new(at, size + 2, filled)),
            Marker::Square => self.draw(&Rectangle::new(
                [(at.0 - size, at.1 - size), (at.0 + size, at.1 + size)],
                filled,
            )),
            Marker::Cross => self.draw(&Cross::new(at, size, look.color.stroke_width(2))),
        }
    }

    pub(super) fn bar(&self, from: Point, to: Point, look: &Look) -> io::Result<()> {
        self.draw(&Rectangle::new([from, to], look.color.filled()))
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        self.area.present().map_err(io::Error::other)
    }

    fn draw<'e, E>(&self, element: &'e E) -> io::Result<()>
    where
        &'e E: plotters::element::PointCollection<'e, Point>,
        E: plotters::element::Drawable<SVGBackend<'p>>,
    {
        self.area.draw(element).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        let ticks = Axis::over([0.13, 1.0].into_iter(), (0, 100)).ticks();
        assert_eq!(ticks.len(), 7, "{ticks:?}");
        let axis = Axis::from(1.0, 40.0, (200, 600));
        assert_eq!(axis.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!((axis.at(1.0), axis.at(40.0)), (200, 600));
    }
}
