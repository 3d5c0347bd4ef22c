//! The last 10 minutes, second by second, so that a status page is not empty when it is opened.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The points that are kept: those of 10 minutes. With 56 bytes each, they take 34 KB.
const POINTS: usize = 600;

/// The last points, the oldest first.
#[derive(Default)]
pub(super) struct History(VecDeque<Point>);

/// What happened in one second, over all services. A value that is not a number is `null` in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Point {
    /// The end of the second, in seconds since 1970.
    pub(super) at: f64,
    /// Bytes per second.
    pub(super) up: f32,
    pub(super) down: f32,
    /// The open sessions.
    pub(super) open: u32,
    /// Sessions per second that began, that failed, and that were refused.
    pub(super) new: f32,
    pub(super) failed: f32,
    pub(super) refused: f32,
    /// The time to reach a target in milliseconds: the mean, and the most that 99 % took.
    pub(super) connect: f32,
    pub(super) connect_most: f32,
    /// The share of the bytes that were spliced, in per cent.
    pub(super) spliced: f32,
    pub(super) lent: u32,
    pub(super) idle: u32,
}

impl History {
    pub(super) fn push(&mut self, point: Point) {
        if self.0.capacity() == 0 {
            self.0.reserve_exact(POINTS);
        }
        // After the clock was set back, the points behind it have times that come again.
        while self.0.back().is_some_and(|last| last.at >= point.at) {
            self.0.pop_back();
        }
        if self.0.len() == POINTS {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    pub(super) fn last(&self) -> Option<Point> {
        self.0.back().copied()
    }

    pub(super) fn points(&self) -> Vec<Point> {
        self.0.iter().copied().collect()
    }
}

/// Returns this time in seconds since 1970.
pub(super) fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_has_the_last_ten_minutes_and_a_fixed_size() {
        let mut history = History::default();
        let point = |second: i32| Point {
            at: f64::from(second),
            up: 1.0,
            down: 0.0,
            open: 1,
            new: 0.0,
            failed: 0.0,
            refused: 0.0,
            connect: f32::NAN,
            connect_most: 0.5,
            spliced: f32::NAN,
            lent: 0,
            idle: 0,
        };
        (0..2000).for_each(|second| history.push(point(second)));
        let points = history.points();
        assert_eq!(
            (points.len(), points[0].at, history.last().unwrap().at),
            (600, 1400.0, 1999.0)
        );
        assert_eq!(history.0.capacity() * size_of::<Point>(), 33_600);
        let json = serde_json::to_value(points[0]).unwrap();
        assert!(json["connect"].is_null() && json["connect_most"] == 0.5, "{json}");
        // The clock is set back by 100 s.
        (1900..1910).for_each(|second| history.push(point(second)));
        let times: Vec<_> = history.points().iter().map(|point| point.at).collect();
        assert_eq!(times, (1400..1910).map(f64::from).collect::<Vec<_>>());
    }
}
