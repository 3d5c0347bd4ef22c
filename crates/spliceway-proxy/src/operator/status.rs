//! The command `spliceway status`: asks a running program how it is, and prints the answer.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;

use super::conversation::{answered, printed};
use crate::access::accounts::UserStatus;
use crate::kit::harmless::is_harmful;
use crate::kit::text;
use crate::monitor::admin::client::{self, NoAnswer};
use crate::monitor::admin::view::{Rates, ServiceStatus, Status};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusCommand {
    pub(crate) socket: PathBuf,
    pub(crate) json: bool,
}

/// Prints the status. The code is 0 if the program answers and is ready.
pub(crate) fn run(command: &StatusCommand) -> ExitCode {
    let (status, text) = match answered(ask(&command.socket)) {
        Ok(asked) => asked,
        Err(code) => return code,
    };
    let text = if command.json { text } else { shown(&status) };
    let code = printed(&text);
    if status.ready { code } else { ExitCode::FAILURE }
}

async fn ask(socket: &Path) -> Result<(Status, String), NoAnswer> {
    let body = client::request(socket, Method::GET, "/v1/status", client::PATIENCE).await?;
    let unexpected = |error: &dyn fmt::Display| NoAnswer::unexpected(socket, error);
    let status = client::parse(&body).map_err(|error| unexpected(&error))?;
    let text = String::from_utf8(body.into()).map_err(|error| unexpected(&error))?;
    Ok((status, escaped(&text)))
}

/// Returns the same JSON without characters that a terminal obeys. Only its strings may have them.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '\n' => text.push(char),
            char if is_harmful(char) => text.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => text.push(char),
        }
    }
    text
}

/// Returns the status for people, in at most 80 columns.
fn shown(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, status);
    text
}

fn write(text: &mut String, status: &Status) -> fmt::Result {
    let pid = status.pid.unwrap_or_default();
    let ready = if status.ready { "ready" } else { "not ready" };
    let uptime = uptime(status);
    writeln!(
        text,
        "spliceway {}  pid {pid}  {}, {ready}  up {uptime}",
        status.version, status.state
    )?;
    writeln!(
        text,
        "sessions   {} active of {}, {} in total, {:.1}/s",
        status.sessions.active, status.limits.sessions, status.sessions.total, status.rates.sessions
    )?;
    writeln!(
        text,
        "throughput up {}/s, down {}/s, {} spliced, over {:.0} s",
        bytes(status.rates.bytes_up),
        bytes(status.rates.bytes_down),
        share(&status.rates),
        status.rates.over_seconds
    )?;
    writeln!(
        text,
        "pipes      {} lent, {} idle of {}, {}/{} pages, {} denied",
        status.pipes.lent,
        status.pipes.idle,
        status.limits.pipes,
        status.pipes.pages,
        status.limits.pipe_pages,
        status.pipes.denied
    )?;
    let fallbacks: Vec<String> = status
        .fallbacks
        .iter()
        .map(|one| format!("{} {}", one.count, one.reason))
        .collect();
    let fallbacks = if fallbacks.is_empty() {
        "none".to_owned()
    } else {
        fallbacks.join(", ")
    };
    writeln!(text, "fallbacks  {fallbacks}")?;
    writeln!(
        text,
        "log        level {}, {} lines dropped",
        status.log.level, status.log.lines_dropped
    )?;
    if status.quotas_are_saved == Some(false) {
        writeln!(text, "quotas     the quota file cannot be written: see the log")?;
    }
    services(text, &status.services)?;
    if status.users.is_empty() {
        return Ok(());
    }
    writeln!(text)?;
    users(text, &status.users)
}

/// Writes a table of users, with the sessions that each may have, and a line for each period that
/// has a quota.
pub(crate) fn users(text: &mut String, users: &[UserStatus]) -> fmt::Result {
    writeln!(
        text,
        "{:<20} {:>9} {:>9} {:>10} {:>6} {:>20}",
        "USER", "SESSIONS", "USED", "QUOTA", "SHARE", "RESETS"
    )?;
    for user in users {
        // A longer name does not fit.
        let mut name: String = user.user.chars().take(20).collect();
        let mut sessions = match user.max_conns {
            Some(max) => format!("{}/{max}", user.sessions),
            None => user.sessions.to_string(),
        };
        let has_quota = user.used.iter().any(|period| period.quota.is_some());
        let shown = user.used.iter().filter(|period| match has_quota {
            true => period.quota.is_some(),
            false => period.period == "month",
        });
        for period in shown {
            let quota = period.quota.map_or("-".to_owned(), |quota| bytes(quota as f64));
            let share = period
                .quota
                .map_or("-".to_owned(), |quota| percent(period.bytes as f64, quota as f64));
            writeln!(
                text,
                "{name:<20} {sessions:>9} {:>9} {quota:>10} {share:>6} {:>20}",
                bytes(period.bytes as f64),
                period.resets
            )?;
            // The second line is about the same user.
            (name, sessions) = (String::new(), String::new());
        }
    }
    Ok(())
}

fn services(text: &mut String, services: &[ServiceStatus]) -> fmt::Result {
    writeln!(text)?;
    writeln!(
        text,
        "{:<16} {:<10} {:>7} {:>9} {:>10} {:>10} {:>9}",
        "SERVICE", "STATE", "ACTIVE", "TOTAL", "UP", "DOWN", "SPLICED"
    )?;
    for service in services {
        let all = service.bytes_up.saturating_add(service.bytes_down);
        let spliced = service.spliced_up.saturating_add(service.spliced_down);
        writeln!(
            text,
            "{:<16} {:<10} {:>7} {:>9} {:>10} {:>10} {:>9}",
            service.name,
            service.state,
            service.sessions.active,
            service.sessions.total,
            bytes(service.bytes_up as f64),
            bytes(service.bytes_down as f64),
            percent(spliced as f64, all as f64)
        )?;
        service
            .listen
            .iter()
            .try_for_each(|address| writeln!(text, "  on {address}"))?;
        backends(text, service)?;
    }
    Ok(())
}

fn backends(text: &mut String, service: &ServiceStatus) -> fmt::Result {
    for backend in &service.backends {
        let backup = if backend.backup { ", backup" } else { "" };
        let weight = match backend.weight {
            // A draining backend has the weight 0.
            0 | 1 => String::new(),
            weight => format!(", weight {weight}"),
        };
        writeln!(
            text,
            "  to {}  {}{backup}{weight}, active {}, connected {}, failed {}",
            backend.name, backend.state, backend.sessions, backend.connections, backend.failures
        )?;
    }
    match service.waiting {
        0 => Ok(()),
        waiting => writeln!(text, "  {waiting} clients wait for a backend"),
    }
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

/// Returns the share of the bytes that are spliced now.
pub(crate) fn share(rates: &Rates) -> String {
    percent(rates.spliced, rates.bytes_up + rates.bytes_down)
}

/// Returns a share in per cent, or `-` of nothing.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    match whole > 0.0 {
        // A share that is not whole is never shown as 100 %.
        true if part < whole => format!("{:.0} %", (100.0 * part / whole).min(99.0)),
        true => "100 %".to_owned(),
        false => "-".to_owned(),
    }
}

/// Returns how long the program has run. A number that is no time is shown as 0 or as the longest.
pub(crate) fn uptime(status: &Status) -> String {
    let seconds = status.uptime_seconds.max(0.0);
    text::time(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::admin::view::{Fallback, Limits, LogStatus, Pipes, SessionCounts};

    #[test]
    fn the_status_has_80_columns_even_with_large_numbers() {
        let large = 999_999_999_999_999;
        let counts = SessionCounts {
            active: 100_000,
            total: 999_999_999,
            waits: 9,
        };
        let rates = Rates {
            over_seconds: 5.0,
            bytes_up: 9e14,
            bytes_down: 9e14,
            spliced: 1.8e15,
            sessions: 99_999.9,
        };
        let status = Status {
            version: "0.1.0".to_owned(),
            pid: Some(4_194_304),
            state: "serving".to_owned(),
            ready: true,
            uptime_seconds: 1e8,
            sessions: counts.clone(),
            rates,
            services: vec![ServiceStatus {
                name: "forward".to_owned(),
                listen: vec!["[2001:db8:1111:2222:3333:4444:5555:6666]:65535".to_owned()],
                state: "accepting".to_owned(),
                sessions: counts,
                bytes_up: large,
                bytes_down: large,
                spliced_up: large,
                ..ServiceStatus::default()
            }],
            pipes: Pipes {
                lent: 65_536,
                idle: 65_536,
                pages: 262_144,
                denied: 999_999,
                ..Pipes::default()
            },
            fallbacks: vec![Fallback {
                reason: "pipe_budget".to_owned(),
                count: 12,
            }],
            limits: Limits {
                sessions: 500_000,
                pipes: 65_536,
                pipe_pages: 262_144,
                ..Limits::default()
            },
            log: LogStatus {
                level: "info".to_owned(),
                lines_dropped: 0,
            },
            ..Status::default()
        };
        let text = shown(&status);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("up 1157d09h"), "{text}");
        assert!(text.contains("909 TiB"), "{text}");
        assert!(text.contains("fallbacks  12 pipe_budget"), "{text}");
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
        assert_eq!(text::time(Duration::from_secs(3_725)), "1h02m");
    }
}
