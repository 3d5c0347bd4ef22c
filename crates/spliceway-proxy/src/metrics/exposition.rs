//! The formats in which scrapers read metrics: OpenMetrics, and the older text format of
//! Prometheus.
//!
//! Parsers of the older format refuse OpenMetrics: a counter has another name there, and the types
//! and the last line of OpenMetrics do not exist. So a scraper gets OpenMetrics only if it asks for
//! it.

use hyper::header::{ACCEPT, HeaderMap};

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposition {
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    Text,
}

impl Exposition {
    /// Returns the format that a scraper prefers, as the client libraries of Prometheus choose it.
    pub(crate) fn accepted_by(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut best = (Self::Text, 0.0);
        for (format, quality) in values.flat_map(|value| value.split(',')).filter_map(preference) {
            // The first one of several equal ones wins.
            if quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Writes metrics, which are in the format of OpenMetrics.
    pub(crate) fn write(self, metrics: String) -> String {
        match self {
            Self::OpenMetrics => metrics,
            Self::Text => text(&metrics),
        }
    }
}

/// Returns the format of one entry of an `Accept` field, and how much the scraper wants it.
fn preference(entry: &str) -> Option<(Exposition, f32)> {
    let mut parts = entry.split(';').map(str::trim);
    let format = match parts.next()?.to_ascii_lowercase().as_str() {
        "application/openmetrics-text" => Exposition::OpenMetrics,
        "text/plain" | "text/*" | "*/*" => Exposition::Text,
        _ => return None,
    };
    let mut quality = 1.0;
    for parameter in parts {
        let (name, value) = parameter.split_once('=')?;
        match (
            name.trim().to_ascii_lowercase().as_str(),
            value.trim().trim_matches('"'),
        ) {
            ("q", value) => quality = value.parse().ok()?,
            ("version", version) if format == Exposition::OpenMetrics && !matches!(version, "0.0.1" | "1.0.0") => {
                return None;
            }
            _ => {}
        }
    }
    Some((format, quality))
}

/// Returns metrics in the text format. `metrics` has neither exemplars nor times.
fn text(metrics: &str) -> String {
    let mut text = String::with_capacity(metrics.len());
    // OpenMetrics states the help first, and the type decides about the name in both lines.
    let mut help = None;
    for line in metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap_or((typed, "unknown"));
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                // Only OpenMetrics escapes quotation marks here.
                let help = help.replace("\\\"", "\"");
                text.extend(["# HELP ", name, end, " ", &help, "\n"]);
            }
            text.extend(["# TYPE ", name, end, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(values: &[&str]) -> Exposition {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        Exposition::accepted_by(&headers)
    }

    #[test]
    fn a_scraper_gets_open_metrics_only_if_it_prefers_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for values in [
            &[prometheus][..],
            &["application/openmetrics-text"],
            &["text/plain;q=0.5", "Application/OpenMetrics-Text; Version=\"1.0.0\""],
            &["application/openmetrics-text;version=0.0.1,*/*"],
        ] {
            assert_eq!(accepted(values), Exposition::OpenMetrics, "{values:?}");
        }
        for values in [
            &[][..],
            &["*/*"],
            &["text/plain;version=0.0.4"],
            &["text/html,*/*;q=0.8"],
            &["application/json"],
            &["text/plain;q=0.5,application/openmetrics-text;q=0.4"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;version=9.0.0"],
            &["application/openmetrics-text;q=much"],
            &["text/plain,application/openmetrics-text"],
            &["application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"],
        ] {
            assert_eq!(accepted(values), Exposition::Text, "{values:?}");
        }
    }

    #[test]
    fn the_text_format_has_its_own_names_and_types() {
        let metrics = "\
# HELP a_build The \\\"running\\\" build.
# TYPE a_build info
a_build_info{version=\"1 # 2\"} 1
# HELP a_sessions Sessions.
# TYPE a_sessions counter
a_sessions_total{end=\"x\"} 3
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
# UNIT a_time_seconds seconds
a_time_seconds_bucket{le=\"+Inf\"} 1
# TYPE a_thing unknown
a_thing 7
# EOF
";
        let expected = "\
# HELP a_build_info The \"running\" build.
# TYPE a_build_info gauge
a_build_info{version=\"1 # 2\"} 1
# HELP a_sessions_total Sessions.
# TYPE a_sessions_total counter
a_sessions_total{end=\"x\"} 3
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
a_time_seconds_bucket{le=\"+Inf\"} 1
# TYPE a_thing untyped
a_thing 7
";
        assert_eq!(Exposition::Text.write(metrics.to_owned()), expected);
        assert_eq!(Exposition::OpenMetrics.write(metrics.to_owned()), metrics);
    }
}
