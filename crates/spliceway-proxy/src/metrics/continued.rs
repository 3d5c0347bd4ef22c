//! Counters that continue from those of an earlier process, which has handed over to this one.
//!
//! The earlier process sends the text of its metrics. At a scrape, its counters and histograms are
//! added to those of this process. Gauges are not: they describe this process alone.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt::Write;

use tokio::time::Instant;

use super::services::KEPT_FOR;

/// The counters of an earlier process.
#[derive(Debug, Default)]
pub(super) struct Continued(Mutex<Earlier>);

#[derive(Debug, Default)]
struct Earlier {
    families: HashMap<String, Family>,
    /// When they came.
    since: Option<Instant>,
}

/// The samples of one family, in order: the name with its labels, and the value.
type Family = Vec<(String, Value)>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Whole(u64),
    Other(f64),
}

impl Continued {
    /// Replaces the counters of the earlier process.
    pub(super) fn replace(&self, text: &str, now: Instant) {
        let mut families: HashMap<String, Family> = HashMap::new();
        for (family, line) in lines(text) {
            if let (Some(family), Some((name, value))) = (family, sample(line)) {
                let samples = families.entry(family.to_owned()).or_default();
                samples.push((name.to_owned(), value));
            }
        }
        *self.earlier() = Earlier {
            families,
            since: Some(now),
        };
    }

    fn earlier(&self) -> MutexGuard<'_, Earlier> {
        self.0.lock()
    }

    /// Returns the text of this process, which has these services, with these counters added. What
    /// this process does not have stays for a while, so that every scraper sees the last counts.
    pub(super) fn add_to(&self, text: String, services: &[&str], now: Instant) -> String {
        let Earlier { families, since } = &*self.earlier();
        if families.is_empty() {
            return text;
        }
        let is_late = since.is_some_and(|since| now.saturating_duration_since(since) >= KEPT_FOR);
        let is_shown = |name: &str| !(is_late && is_gone(name, services));
        let mut sum = String::with_capacity(text.len());
        let mut rest: (&str, HashMap<&str, Value>) = Default::default();
        for (family, line) in lines(&text) {
            let family = family.unwrap_or_default();
            if family != rest.0 {
                missing(&mut sum, families, &rest, is_shown);
                let known = families.get(family).into_iter().flatten();
                rest = (family, known.map(|(name, value)| (&**name, *value)).collect());
            }
            let added = sample(line).and_then(|(name, value)| Some((name, value, rest.1.remove(name)?)));
            match added {
                Some((name, value, before)) => {
                    let _ = writeln!(sum, "{name} {}", value.plus(before));
                }
                None => {
                    sum.push_str(line);
                    sum.push('\n');
                }
            }
        }
        missing(&mut sum, families, &rest, is_shown);
        sum
    }
}

/// Adds the samples that this process does not have yet, in their order, if they are shown.
fn missing(
    sum: &mut String,
    families: &HashMap<String, Family>,
    (family, rest): &(&str, HashMap<&str, Value>),
    is_shown: impl Fn(&str) -> bool,
) {
    for (name, value) in families.get(*family).into_iter().flatten() {
        if rest.contains_key(&**name) && is_shown(name) {
            let _ = writeln!(sum, "{name} {}", value.plus(Value::Whole(0)));
        }
    }
}

/// Returns whether this process, with these services, can have no such sample any more. It has one
/// for every backend and every user that it knows.
fn is_gone(name: &str, services: &[&str]) -> bool {
    let mut quoted = name.split('"');
    while let (Some(key), Some(value)) = (quoted.next(), quoted.next()) {
        match key.trim_start_matches(|start: char| start != '{' && start != ',') {
            "{service=" | ",service=" if !services.contains(&value) => return true,
            "{backend=" | ",backend=" | "{user=" | ",user=" => return true,
            _ => {}
        }
    }
    false
}

/// Returns each line, with its family if that is one of counters or a histogram.
fn lines(text: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut family = None;
    text.lines().map(move |line| {
        if line.starts_with("# HELP ") || line.starts_with("# EOF") {
            family = None;
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            family = matches!(kind, "counter" | "histogram").then_some(name);
        }
        (family, line)
    })
}

/// Returns the name with its labels, and the value.
fn sample(line: &str) -> Option<(&str, Value)> {
    let (name, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let whole = value.parse().map(Value::Whole);
    Some((name, whole.or_else(|_| value.parse().map(Value::Other)).ok()?))
}

impl Value {
    fn plus(self, other: Self) -> String {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.saturating_add(other).to_string(),
            (one, other) => format!("{:?}", one.float() + other.float()),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Whole(value) => value as f64,
            Self::Other(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# HELP a_active Open.\n# TYPE a_active gauge\na_active 7\n\
        # HELP a_bytes Bytes.\n# TYPE a_bytes counter\na_bytes_total{s=\"x y\"} 5\na_bytes_total{s=\"old\"} 2\n\
        # HELP a_gone Gone.\n# TYPE a_gone counter\na_gone_total 9\n\
        # HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\na_seconds_sum 0.25\n\
        a_seconds_bucket{le=\"1.0\"} 3\n# EOF\n";
    const NOW: &str = "# HELP a_active Open.\n# TYPE a_active gauge\na_active 1\n\
        # HELP a_bytes Bytes.\n# TYPE a_bytes counter\na_bytes_total{s=\"new\"} 1\na_bytes_total{s=\"x y\"} 10\n\
        # HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\na_seconds_sum 1.5\n\
        a_seconds_bucket{le=\"1.0\"} 4\n# EOF\n";
    const SUM: &str = "# HELP a_active Open.\n# TYPE a_active gauge\na_active 1\n\
        # HELP a_bytes Bytes.\n# TYPE a_bytes counter\na_bytes_total{s=\"new\"} 1\na_bytes_total{s=\"x y\"} 15\n\
        a_bytes_total{s=\"old\"} 2\n\
        # HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\na_seconds_sum 1.75\n\
        a_seconds_bucket{le=\"1.0\"} 7\n# EOF\n";

    #[test]
    fn counters_and_histograms_continue_and_gauges_do_not() {
        let (continued, now) = (Continued::default(), Instant::now());
        let add_to = |text: &str| continued.add_to(text.to_owned(), &[], now);
        assert_eq!(add_to(NOW), NOW);
        continued.replace(BEFORE, now);
        assert_eq!(add_to(NOW), SUM);
        let part = |text: &str| text.split("# HELP a_seconds").next().unwrap().to_owned();
        assert_eq!(add_to(&part(NOW)), part(SUM), "the end of the text ends a family");
        let most = "# TYPE a_bytes counter\na_bytes_total{s=\"x y\"} 18446744073709551615\nnonsense\n";
        continued.replace(most, now);
        assert!(add_to(NOW).contains("{s=\"x y\"} 18446744073709551615\n"));
    }

    #[test]
    fn what_only_the_earlier_process_had_is_shown_for_a_while() {
        let (continued, now) = (Continued::default(), Instant::now());
        let head = "# TYPE a counter\n";
        let stays = "a_total{service=\"here\",end=\"idle\"} 1\na_total{errno=\"EMFILE\"} 2\n";
        let goes = "a_total{service=\"gone\",end=\"idle\"} 3\na_total{service=\"here\",backend=\"gone\"} 4\n\
            a_total{user=\"gone\"} 5\n";
        continued.replace(&format!("{head}{stays}{goes}"), now);
        let after = |time| continued.add_to(head.to_owned(), &["here"], now + time);
        assert_eq!(after(KEPT_FOR / 2), format!("{head}{stays}{goes}"));
        assert_eq!(after(KEPT_FOR), format!("{head}{stays}"));
    }
}
