//! Days and months in UTC, and the bytes that a user has used in the latest ones.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::limits::{Period, Quotas};
use crate::access::rates::bytes_in_words;
use crate::kit::clock;

/// A day and its month, as numbers that grow by 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Date {
    /// Days since 1970.
    pub(super) day: u32,
    /// Months since the year 0.
    pub(super) month: u32,
}

/// The bytes of a user by day and month, in both directions together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Usage {
    #[serde(skip)]
    date: Date,
    day: Counters,
    month: Counters,
}

/// The bytes of a few days or months, the one with the last byte first. After a clock was wrong,
/// the counters of the right date are still here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Counters(Vec<Counter>);

/// The number of a day or a month, and its bytes. The last number is the part of them that an
/// earlier day or month has, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Counter(u32, u64, u64);

/// The days and months that have counters: the current one, a wrong one, and one more for a wrong
/// clock that passes midnight.
pub(super) const KEPT: usize = 3;

const DAY: u64 = 24 * 60 * 60;

impl Date {
    pub(super) fn now() -> Self {
        Self::at(SystemTime::now())
    }

    /// Returns the date of this time. A time before 1970 or after 9999 has the nearest date.
    fn at(time: SystemTime) -> Self {
        let time = clock::dated(time);
        let seconds = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let text = clock::rfc3339_seconds(time).to_string();
        let number = |from, to| text.get(from..to).and_then(|digits| digits.parse::<u32>().ok());
        let (year, month) = (number(0, 4).unwrap_or(0), number(5, 7).unwrap_or(1));
        Self {
            day: u32::try_from(seconds / DAY).unwrap_or(u32::MAX),
            month: year * 12 + month - 1,
        }
    }

    /// Returns the end of the current period, when its quota is full again.
    pub(super) fn end_of(self, period: Period) -> String {
        match period {
            Period::Day => {
                let end = Duration::from_secs((u64::from(self.day) + 1) * DAY);
                clock::rfc3339_seconds(SystemTime::UNIX_EPOCH + end).to_string()
            }
            Period::Month => {
                let next = self.month + 1;
                format!("{:04}-{:02}-01T00:00:00Z", next / 12, next % 12 + 1)
            }
        }
    }
}

impl Usage {
    pub(super) fn new(date: Date) -> Self {
        Self {
            date,
            ..Self::default()
        }
    }

    pub(super) fn date(&self) -> Date {
        self.date
    }

    /// Changes the date. Each day and month has its own counter. If the date is an earlier one,
    /// what was counted for later ones counts for it, too, because it was used before now.
    pub(super) fn advance(&mut self, to: Date) {
        self.date = to;
        self.day.begin(to.day);
        self.month.begin(to.month);
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.day.add(self.date.day, bytes);
        self.month.add(self.date.month, bytes);
    }

    pub(super) fn in_period(&self, period: Period) -> u64 {
        match period {
            Period::Day => self.day.counted(self.date.day),
            Period::Month => self.month.counted(self.date.month),
        }
    }

    /// Returns the bytes in the period of each quota, such as `1.7 MB today`. Without a quota, the
    /// period is the month.
    pub(super) fn in_words(&self, quotas: &Quotas) -> String {
        let mut periods: Vec<_> = quotas.iter().map(|(period, _)| period).collect();
        if periods.is_empty() {
            periods.push(Period::Month);
        }
        let used = periods.into_iter().map(|period| {
            let time = match period {
                Period::Day => "today",
                Period::Month => "this month",
            };
            format!("{} {time}", bytes_in_words(self.in_period(period)))
        });
        used.collect::<Vec<_>>().join(", ")
    }

    /// Returns the bytes that the quotas still allow. `None` means that there is no quota.
    pub(super) fn left(&self, quotas: &Quotas) -> Option<u64> {
        let left = quotas
            .iter()
            .map(|(period, quota)| quota.get().saturating_sub(self.in_period(period)));
        left.min()
    }

    /// Returns whether one of these months has bytes.
    pub(super) fn is_of(&self, months: &[u32]) -> bool {
        self.month.0.iter().any(|counter| months.contains(&counter.0))
    }
}

impl Counters {
    /// Begins or continues a period. Bytes of later periods count for it once.
    fn begin(&mut self, now: u32) {
        let mut carried: u64 = 0;
        for Counter(period, bytes, known) in &mut self.0 {
            if *period > now {
                carried = carried.saturating_add(bytes.saturating_sub(*known));
                *known = *bytes;
            }
        }
        self.add(now, carried);
    }

    fn add(&mut self, now: u32, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let found = self.0.iter().position(|counter| counter.0 == now);
        let mut counter = found.map_or(Counter(now, 0, 0), |index| self.0.remove(index));
        counter.1 = counter.1.saturating_add(bytes);
        self.0.insert(0, counter);
        self.0.truncate(KEPT);
    }

    fn counted(&self, now: u32) -> u64 {
        let found = self.0.iter().find(|counter| counter.0 == now);
        found.map_or(0, |counter| counter.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_begin_at_midnight_in_utc() {
        // 2024-02-29T23:59:59Z, a leap day.
        const LEAP: u64 = 1_709_251_199;
        let date = |seconds| Date::at(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let (before, after) = (date(LEAP), date(LEAP + 1));
        assert_eq!((after.day, after.month), (before.day + 1, before.month + 1));
        assert_eq!(before.month, 2024 * 12 + 1);
        assert_eq!(before.end_of(Period::Day), "2024-03-01T00:00:00Z");
        assert_eq!(before.end_of(Period::Month), "2024-03-01T00:00:00Z");
        let december = date(1_735_689_599);
        assert_eq!(december.end_of(Period::Month), "2025-01-01T00:00:00Z");
        let before = Date::at(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(
            (before, before.end_of(Period::Day)),
            (date(0), "1970-01-02T00:00:00Z".into())
        );
        let last = date(u64::from(u32::MAX) * 1000);
        assert!(last.end_of(Period::Day).starts_with("9999-12-31"));
    }

    /// The bytes of the day and the month after each step: the date, and the bytes that are then
    /// used.
    fn after(steps: &[(u32, u32, u64)]) -> (u64, u64) {
        let mut usage = Usage::default();
        for (day, month, bytes) in steps {
            usage.advance(Date {
                day: *day,
                month: *month,
            });
            usage.add(*bytes);
        }
        (usage.in_period(Period::Day), usage.in_period(Period::Month))
    }

    #[test]
    fn what_was_used_is_in_the_period_of_each_quota() {
        let mut usage = Usage::default();
        usage.advance(Date { day: 10, month: 3 });
        usage.add(2_000_000);
        usage.advance(Date { day: 11, month: 3 });
        usage.add(1_740_000);
        let quota = std::num::NonZeroU64::new(1);
        for (day, month, expected) in [
            (quota, None, "1.7 MB today"),
            (None, quota, "3.7 MB this month"),
            (quota, quota, "1.7 MB today, 3.7 MB this month"),
            (None, None, "3.7 MB this month"),
        ] {
            assert_eq!(usage.in_words(&Quotas { day, month }), expected);
        }
    }

    #[test]
    fn a_new_day_or_month_begins_with_nothing() {
        assert_eq!(after(&[(10, 3, 7)]), (7, 7));
        assert_eq!(after(&[(10, 3, 7), (11, 3, 1)]), (1, 8));
        assert_eq!(after(&[(10, 3, 7), (11, 3, 1), (12, 4, 0)]), (0, 0));
        assert_eq!(after(&[(10, 3, u64::MAX), (10, 3, 1)]), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_clock_that_was_ahead_loses_no_byte() {
        // The clock is right, 60 days ahead, and right again.
        let wrong = [(10, 3, 60), (70, 5, 30), (10, 3, 0)];
        assert_eq!(after(&wrong), (90, 90));
        let at = |steps: &[_]| after(&[&wrong[..], steps].concat());
        // Time passes as usual afterwards.
        assert_eq!(at(&[(11, 3, 5)]), (5, 95));
        assert_eq!(at(&[(11, 3, 5), (40, 4, 1)]), (1, 1));
        // The clock jumps more often, also while it is ahead. No byte counts twice for one date.
        assert_eq!(at(&[(70, 5, 0), (10, 3, 0), (70, 5, 0), (10, 3, 0)]), (90, 90));
        assert_eq!(at(&[(70, 5, 3), (10, 3, 2)]), (95, 95));
        assert_eq!(after(&[(10, 3, 60), (70, 5, 30), (71, 5, 4), (10, 3, 0)]), (94, 94));
        assert_eq!(
            after(&[(10, 3, 60), (70, 5, 0), (90, 6, 0), (300, 12, 0), (10, 3, 0)]),
            (60, 60)
        );
    }

    #[test]
    fn a_clock_that_is_set_back_frees_nothing() {
        let used = [(9, 3, 20), (10, 4, 100)];
        let at = |steps: &[_]| after(&[&used[..], steps].concat());
        assert_eq!(at(&[(9, 3, 0)]), (120, 120));
        assert_eq!(at(&[(0, 0, 0)]), (120, 120));
        assert_eq!(at(&[(9, 3, 0), (10, 4, 0)]), (100, 100));
        assert_eq!(at(&[(9, 3, 0), (8, 3, 0), (10, 4, 0), (8, 3, 0)]), (120, 120));
        assert_eq!(at(&[(70, 6, 5), (9, 3, 0)]), (125, 125));
        assert_eq!(at(&[(5, 3, 0), (6, 3, 0), (10, 4, 0)]), (100, 100));
    }

    #[test]
    fn random_clocks_show_all_bytes_since_the_last_step_forward() {
        let mut random = 1_u64;
        for _ in 0..200 {
            let (mut usage, mut day, mut used) = (Usage::default(), 50_u32, 0);
            for _ in 0..40 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let [a, b, ..] = (random >> 20).to_le_bytes();
                let next = 40 + u32::from(a % 20);
                if next > day {
                    used = 0;
                }
                day = next;
                usage.advance(Date { day, month: 0 });
                usage.add(b.into());
                used += u64::from(b);
                assert!(usage.in_period(Period::Day) >= used);
                assert!(usage.day.0.len() <= KEPT && usage.month.0.len() == 1);
            }
        }
    }

    #[test]
    fn the_quota_that_is_used_up_first_counts() {
        let quota = std::num::NonZeroU64::new;
        let mut usage = Usage::default();
        usage.advance(Date { day: 1, month: 1 });
        usage.add(10);
        usage.advance(Date { day: 2, month: 1 });
        usage.add(30);
        for (day, month, left) in [
            (0, 0, None),
            (100, 0, Some(70)),
            (100, 50, Some(10)),
            (0, 50, Some(10)),
            (20, 50, Some(0)),
        ] {
            let quotas = Quotas {
                day: quota(day),
                month: quota(month),
            };
            assert_eq!(usage.left(&quotas), left);
        }
    }
}
