//! Values in words, and text from other processes and from clients, made harmless for terminals and
//! logs.

use std::borrow::Cow;
use std::time::Duration;

/// Returns a time with at most two units.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Returns a number of things in words: `1 session`, `2 sessions`.
pub fn count(count: impl TryInto<u64>, one: &str) -> String {
    // A number that does not fit is not 1.
    let count = count.try_into().unwrap_or(u64::MAX);
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// Returns a number of bytes with three digits and a unit.
pub(crate) fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = bytes;
    for unit in &UNITS[..5] {
        if scaled < 999.5 {
            let digits = if scaled < 9.995 && *unit != "B" { 1 } else { 0 };
            return format!("{scaled:.digits$} {unit}");
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.0} {}", UNITS[5])
}

/// Returns a number of bytes in the kind of unit in which `quota` was given. Its last digits tell:
/// 1,000,000 bytes were given as `1MB`, and 1,048,576 as `1MiB`.
pub(crate) fn bytes_like(bytes: u64, quota: u64) -> String {
    const DECIMAL: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    const BINARY: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    // The largest unit of which the quota is a whole multiple.
    let largest = |base: u64| {
        let powers = (0..6).map(|power| base.pow(power));
        powers
            .take_while(|unit| quota.is_multiple_of(*unit))
            .last()
            .unwrap_or(1)
    };
    let (decimal, binary) = (largest(1000), largest(1024));
    let (unit, base, units) = if decimal > binary {
        (decimal, 1000_u64, DECIMAL)
    } else {
        (binary, 1024, BINARY)
    };
    if bytes > 0 && bytes.is_multiple_of(unit) {
        return format!("{} {}", bytes / unit, units[unit.ilog(base) as usize]);
    }
    let (mut scaled, mut power) = (bytes as f64, 0);
    while scaled >= 999.5 && power < 5 {
        scaled /= base as f64;
        power += 1;
    }
    let digits = if scaled < 9.995 && power > 0 { 1 } else { 0 };
    format!("{scaled:.digits$} {}", units[power])
}

/// Returns a share in per cent, or `-` of nothing.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 && part < whole {
        // A share that is not whole is never shown as 100 %.
        format!("{:.0} %", (100.0 * part / whole).min(99.0))
    } else if whole > 0.0 {
        "100 %".to_owned()
    } else {
        "-".to_owned()
    }
}

/// Returns whether a terminal obeys this character instead of showing it: a control character, or
/// one that changes the direction of the text around it.
pub(crate) fn is_harmful(char: char) -> bool {
    const DIRECTIONS: [char; 12] = [
        '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}',
        '\u{2067}', '\u{2068}', '\u{2069}',
    ];
    char.is_control() || DIRECTIONS.contains(&char)
}

/// Returns the text with a replacement for each harmful character.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if text.contains(is_harmful) {
        text.replace(is_harmful, "\u{fffd}").into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(
            [0, 1, 2].map(|number| count(number, "session")),
            ["0 sessions", "1 session", "2 sessions"]
        );
    }

    #[test]
    fn a_quota_is_shown_in_the_unit_in_which_it_was_given() {
        const MIB: u64 = 1 << 20;
        for (bytes, quota, expected) in [
            (1_000_000, 1_000_000, "1 MB"),
            (730_000, 1_000_000, "730 kB"),
            (1_234_567, 2_000_000, "1.2 MB"),
            (0, 1_000_000, "0 B"),
            (MIB, MIB, "1 MiB"),
            (1536 * MIB, 1536 * MIB, "1536 MiB"),
            (1_500_000_000, 1_500_000_000, "1500 MB"),
            (1000 << 10, 1000 << 10, "1000 KiB"),
            (10_000_000_000_000, 10_000_000_000_000, "10 TB"),
            (12_345, 12_345, "12345 B"),
            (5_000, 10 << 30, "4.9 KiB"),
        ] {
            assert_eq!(bytes_like(bytes, quota), expected, "{bytes} of {quota}");
        }
    }

    #[test]
    fn numbers_are_rounded_for_people() {
        for (count, expected) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 KiB"),
            (1536.0, "1.5 KiB"),
            (10e6, "9.5 MiB"),
            (5e12, "4.5 TiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        assert_eq!(
            (percent(0.0, 0.0), percent(999.0, 1000.0), percent(1.0, 1.0)),
            ("-".into(), "99 %".into(), "100 %".into())
        );
        assert_eq!(time(Duration::from_secs(3_725)), "1h02m");
    }
}
