//! Days and months in UTC, and the bytes that a user has used in the current ones.

use std::time::{Duration, SystemTime};

use super::limits::{Period, Quotas};

/// A day and its month, as numbers that grow by 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Date {
    /// Days since 1970.
    pub(super) day: u32,
    /// Months since the year 0.
    pub(super) month: u32,
}

/// The bytes of a user in the current day and month, in both directions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) date: Date,
    pub(super) day: u64,
    pub(super) month: u64,
}

const DAY: u64 = 24 * 60 * 60;
/// The last second of the year 9999, after which a year has five digits.
const LAST: u64 = 253_402_300_799;

impl Date {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::of(since.map_or(0, |since| since.as_secs()))
    }

    fn of(seconds: u64) -> Self {
        let seconds = seconds.min(LAST);
        let text = rfc3339(seconds);
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
            Period::Day => rfc3339((u64::from(self.day) + 1) * DAY),
            Period::Month => {
                let next = self.month + 1;
                format!("{:04}-{:02}-01T00:00:00Z", next / 12, next % 12 + 1)
            }
        }
    }
}

fn rfc3339(seconds: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

impl Usage {
    pub(super) fn new(date: Date) -> Self {
        Self {
            date,
            ..Self::default()
        }
    }

    /// Moves on to this date: what was used before counts no more. An earlier date changes nothing,
    /// because a clock that is set back must not free a quota.
    pub(super) fn advance(&mut self, to: Date) {
        if to.day > self.date.day {
            self.day = 0;
            self.month = if to.month > self.date.month { 0 } else { self.month };
            self.date = to;
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.day = self.day.saturating_add(bytes);
        self.month = self.month.saturating_add(bytes);
    }

    pub(super) fn of(&self, period: Period) -> u64 {
        match period {
            Period::Day => self.day,
            Period::Month => self.month,
        }
    }

    /// Returns the bytes that the quotas still allow. `None` means that there is no quota.
    pub(super) fn left(&self, quotas: &Quotas) -> Option<u64> {
        let left = quotas
            .iter()
            .map(|(period, quota)| quota.get().saturating_sub(self.of(period)));
        left.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_begin_at_midnight_in_utc() {
        // 2024-02-29T23:59:59Z, a leap day.
        const LEAP: u64 = 1_709_251_199;
        let (before, after) = (Date::of(LEAP), Date::of(LEAP + 1));
        assert_eq!((after.day, after.month), (before.day + 1, before.month + 1));
        assert_eq!(before.month, 2024 * 12 + 1);
        assert_eq!(before.end_of(Period::Day), "2024-03-01T00:00:00Z");
        assert_eq!(before.end_of(Period::Month), "2024-03-01T00:00:00Z");
        let december = Date::of(1_735_689_599);
        assert_eq!(december.end_of(Period::Month), "2025-01-01T00:00:00Z");
        assert_eq!(Date::of(0).end_of(Period::Day), "1970-01-02T00:00:00Z");
        let last = Date::of(u64::MAX);
        assert!(last.end_of(Period::Day).starts_with("9999-12-31"));
    }

    #[test]
    fn a_period_that_is_over_counts_no_more_and_no_clock_goes_back() {
        let mut usage = Usage::new(Date { day: 10, month: 3 });
        usage.add(7);
        usage.advance(Date { day: 9, month: 2 });
        assert_eq!((usage.day, usage.month), (7, 7));
        usage.advance(Date { day: 11, month: 3 });
        usage.add(1);
        assert_eq!((usage.day, usage.month), (1, 8));
        usage.advance(Date { day: 12, month: 4 });
        assert_eq!((usage.day, usage.month), (0, 0));
        usage.add(u64::MAX);
        usage.add(1);
        assert_eq!(usage.day, u64::MAX);
    }

    #[test]
    fn the_quota_that_is_used_up_first_counts() {
        let quota = std::num::NonZeroU64::new;
        let usage = Usage {
            day: 30,
            month: 40,
            ..Usage::default()
        };
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
