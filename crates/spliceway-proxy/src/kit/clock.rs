//! The clock of the system, with times that can be written as a date. A clock is wrong when it is
//! outside of them.

use std::time::{Duration, SystemTime};

use humantime::Rfc3339Timestamp;

/// The first second of the year 10000, which has five digits.
const END: Duration = Duration::from_secs(253_402_300_800);

/// Returns the nearest time that has a date, which is 1970 to 9999.
pub(crate) fn dated(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + since.min(END - Duration::from_millis(1))
}

/// Returns whether this time has a date.
pub(crate) fn has_date(time: SystemTime) -> bool {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.is_ok_and(|since| since < END)
}

/// Returns a time as RFC 3339, in UTC.
pub(crate) fn rfc3339_millis(time: SystemTime) -> Rfc3339Timestamp {
    humantime::format_rfc3339_millis(dated(time))
}

/// Returns a time as RFC 3339, in UTC and without a fraction.
pub(crate) fn rfc3339_seconds(time: SystemTime) -> Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(dated(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_text_without_a_panic() {
        let (epoch, day) = (SystemTime::UNIX_EPOCH, Duration::from_secs(86_400));
        let last = epoch + END;
        for (time, text, is_dated) in [
            (epoch - day, "1970-01-01T00:00:00.000Z", false),
            (epoch, "1970-01-01T00:00:00.000Z", true),
            (epoch + day, "1970-01-02T00:00:00.000Z", true),
            (last - day, "9999-12-31T00:00:00.000Z", true),
            (last, "9999-12-31T23:59:59.999Z", false),
            (last + 1_000_000 * day, "9999-12-31T23:59:59.999Z", false),
        ] {
            assert_eq!(rfc3339_millis(time).to_string(), text);
            assert_eq!(rfc3339_seconds(time).to_string()[..19], text[..19]);
            assert_eq!(has_date(time), is_dated, "{text}");
        }
    }
}
