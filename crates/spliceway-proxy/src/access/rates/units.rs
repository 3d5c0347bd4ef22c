//! Numbers of bytes with units, and rates.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use spliceway::RateLimit;

/// A rate in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteRate(NonZeroU64);

/// The units of rates, and their sizes in bytes. There is no unit for megabits, so `Mb` cannot be
/// misunderstood.
const UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected bytes per second such as 10MB, 500kB or 1.5MiB, in B, kB, MB, GB, KiB, MiB or GiB";
        let none = "expected at least 1 byte per second; omit the rate for no limit";
        let text = text.strip_suffix("/s").unwrap_or(text);
        if text == "0" {
            return Err(none);
        }
        let bytes = bytes(text).ok_or(expected)?;
        NonZeroU64::new(bytes).map(Self).ok_or(none)
    }
}

/// Parses a number of bytes with a unit, such as `1.5MiB`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let mut units = UNITS.iter();
    let (number, unit) = units.find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    decimal(number, unit)
}

/// Returns a number of bytes in the largest decimal unit of which there is at least one, with one
/// digit after the point.
pub(crate) fn bytes_in_words(bytes: u64) -> String {
    const DECIMAL: [&str; 4] = ["TB", "GB", "MB", "kB"];
    let mut units = UNITS.iter().filter(|(name, _)| DECIMAL.contains(name));
    match units.find(|(_, size)| bytes >= *size) {
        Some((name, size)) => format!("{:.1} {name}", bytes as f64 / *size as f64),
        None => format!("{bytes} B"),
    }
}

/// Returns `number` times `unit`, rounded down. `number` may have a decimal point.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    /// Further decimal digits have no meaning. With this limit, no power of ten overflows.
    const DECIMALS_MAX: usize = 9;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > DECIMALS_MAX {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let parts = u128::from(decimals.parse::<u64>().ok()?) * u128::from(unit) / 10_u128.pow(decimals.len() as u32);
    whole.checked_add(u64::try_from(parts).ok()?)
}

impl ByteRate {
    pub(in crate::access) fn bytes_per_second(self) -> u64 {
        self.0.get()
    }

    /// Returns a new bucket for this rate.
    pub(crate) fn bucket(self) -> RateLimit {
        RateLimit::new(self.0.get())
    }
}

/// Shows the rate in the first unit of [`UNITS`] that gives a whole number.
impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, unit): &&(&str, u64)| self.0.get().is_multiple_of(*unit);
        let (name, unit) = UNITS.iter().find(whole).expect("every number is whole in bytes");
        write!(f, "{}{name}", self.0.get() / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_in_decimal_and_binary_units_and_exactly() {
        for (text, bytes) in [
            ("1B", 1),
            ("10MB", 10_000_000),
            ("500kB", 500_000),
            ("500KB/s", 500_000),
            ("1.5MiB", 3 << 19),
            ("0.1GB", 100_000_000),
            ("2KiB", 2048),
            ("18446744073709551615B", u64::MAX),
        ] {
            assert_eq!(text.parse::<ByteRate>().unwrap().0.get(), bytes, "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_in_the_largest_decimal_unit() {
        for (bytes, shown) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (1_740_000, "1.7 MB"),
            (20_000_000_000, "20.0 GB"),
            (3_000_000_000_000, "3.0 TB"),
        ] {
            assert_eq!(bytes_in_words(bytes), shown);
        }
    }

    #[test]
    fn an_invalid_rate_is_refused_with_the_expected_form() {
        for text in [
            "",
            "10",
            "MB",
            "10M",
            "10Mb",
            "10 MB",
            "-1MB",
            "+1MB",
            "1e3B",
            "1.MB",
            ".5MB",
            "1.2.3MB",
            "0B",
            "0.4B",
            "1.0000000001GB",
            "18446744073709551616B",
            "18446744073709551615kB",
        ] {
            assert!(text.parse::<ByteRate>().unwrap_err().starts_with("expected"), "{text}");
        }
    }
}
