//! The command `spliceway status`: asks a running program how it is, and prints the answer.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use hyper::Method;

use crate::api::{Health, Rates, ServiceStatus, Status};
use crate::client::{self, Error, PATIENCE};
use crate::health;
use crate::text::{bytes, count, is_harmful, percent, time};
use crate::tls;
use crate::users;

/// Returns the status for people or as JSON, and whether the program is ready.
pub(crate) async fn text(socket: &Path, json: bool) -> Result<(String, bool), Error> {
    let body = client::request(socket, Method::GET, "/v1/status", PATIENCE).await?;
    let unexpected = |error: &dyn fmt::Display| Error::unexpected(socket, error);
    let status: Status = client::parse(&body).map_err(|error| unexpected(&error))?;
    let text = String::from_utf8(body.into()).map_err(|error| unexpected(&error))?;
    let text = if json { escaped(&text) } else { shown(&status) };
    Ok((text, status.ready))
}

/// Returns the same JSON without characters that a terminal obeys. Only its strings may have them.
pub(crate) fn escaped(json: &str) -> String {
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
    if let Some((line, _)) = health::summary(&status.services) {
        writeln!(text, "{line}")?;
    }
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
    writeln!(text, "fallbacks  {}", fallbacks(status))?;
    writeln!(
        text,
        "log        level {}, {} dropped",
        status.log.level,
        count(status.log.lines_dropped, "line")
    )?;
    if status.quotas_are_saved == Some(false) {
        writeln!(text, "quotas     the quota file cannot be written: see the log")?;
    }
    services(text, &status.services)?;
    if status.users.is_empty() {
        return Ok(());
    }
    writeln!(text)?;
    users::table(text, &status.users)
}

fn services(text: &mut String, services: &[ServiceStatus]) -> fmt::Result {
    writeln!(text)?;
    writeln!(
        text,
        "{:<16} {:<10} {:>7} {:>9} {:>10} {:>10} {:>9}",
        "SERVICE", "STATE", "ACTIVE", "TOTAL", "UP", "DOWN", "SPLICED"
    )?;
    let mut services: Vec<_> = services.iter().collect();
    services.sort_by_key(|service| service.health);
    for service in services {
        let all = service.bytes_up.saturating_add(service.bytes_down);
        let spliced = service.spliced_up.saturating_add(service.spliced_down);
        writeln!(
            text,
            "{:<16} {:<10} {:>7} {:>9} {:>10} {:>10} {:>9}",
            service.name,
            state(service),
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
        if let Some(tls) = &service.tls {
            tls::lines(text, tls)?;
        }
        failures(text, service)?;
        backends(text, service)?;
    }
    Ok(())
}

/// Returns the health of a service that accepts clients, unless that is ok. Otherwise, its state.
fn state(service: &ServiceStatus) -> &str {
    match (&*service.state, service.health) {
        ("accepting", Health::Failing) => "failing",
        ("accepting", Health::Degraded) => "degraded",
        (state, _) => state,
    }
}

/// Writes how many sessions failed in the last minute, and why.
fn failures(text: &mut String, service: &ServiceStatus) -> fmt::Result {
    let recent = &service.recent;
    if recent.reasons.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "  {} failed and {} refused of {} in the last {:.0} s:",
        recent.failed,
        recent.refused,
        recent.whole(),
        recent.over_seconds
    )?;
    let mut reasons = recent.reasons.iter();
    reasons.try_for_each(|one| writeln!(text, "    {} {}", one.count, one.reason))
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
        if let (Some(trouble), Some((time, why))) = (&backend.trouble, backend.trouble()) {
            writeln!(text, "     for {time}, since {}: {why}", trouble.since)?;
        }
    }
    match service.waiting {
        0 => Ok(()),
        waiting => writeln!(text, "  waiting for a backend: {}", count(waiting, "client")),
    }
}

/// Returns why directions copied, and how often.
pub(crate) fn fallbacks(status: &Status) -> String {
    if status.fallbacks.is_empty() {
        return "none".to_owned();
    }
    let all = status.fallbacks.iter();
    let all: Vec<_> = all.map(|one| format!("{} {}", one.count, one.reason)).collect();
    all.join(", ")
}

/// Returns the share of the bytes that are spliced now.
pub(crate) fn share(rates: &Rates) -> String {
    percent(rates.spliced, rates.bytes_up + rates.bytes_down)
}

/// Returns how long the program has run. A number that is no time is shown as 0 or as the longest.
pub(crate) fn uptime(status: &Status) -> String {
    let seconds = status.uptime_seconds.max(0.0);
    time(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Backend, BackendCounts, Limits, LogStatus, Pipes, ReasonCount, Recent, SessionCounts, Trouble};

    fn service(large: u64, sessions: SessionCounts) -> ServiceStatus {
        ServiceStatus {
            name: "forward".to_owned(),
            listen: vec!["[2001:db8:1111:2222:3333:4444:5555:6666]:65535".to_owned()],
            state: "accepting".to_owned(),
            sessions,
            bytes_up: large,
            bytes_down: large,
            spliced_up: large,
            recent: Recent {
                over_seconds: 60.1,
                sessions: 10,
                failed: 7,
                refused: 2,
                reasons: [(7, "no_backend"), (2, "client")]
                    .map(|(count, reason)| ReasonCount {
                        reason: reason.to_owned(),
                        count,
                    })
                    .into(),
            },
            backends: vec![Backend {
                name: "192.0.2.1:80".to_owned(),
                state: "down".to_owned(),
                connections: 9,
                failures: 3,
                trouble: Some(Trouble {
                    since: "2026-11-27T00:31:23Z".to_owned(),
                    for_seconds: 125,
                    why: "no answer in time".to_owned(),
                }),
                ..Backend::default()
            }],
            ..ServiceStatus::default()
        }
    }

    #[test]
    fn services_that_need_the_operator_come_first_with_their_health() {
        let service = |name: &str, state: &str, health| ServiceStatus {
            name: name.to_owned(),
            state: state.to_owned(),
            health,
            backend_counts: Some(BackendCounts {
                up: 0,
                draining: 0,
                all: 3,
            }),
            ..ServiceStatus::default()
        };
        let status = Status {
            state: "serving".to_owned(),
            services: vec![
                service("fine", "accepting", Health::Ok),
                service("lame", "accepting", Health::Degraded),
                service("web", "accepting", Health::Failing),
                service("old", "draining", Health::Failing),
            ],
            ..Status::default()
        };
        let text = shown(&status);
        let line = "\nfailing: web (0 of 3 backends up), old (0 of 3 backends up)\nsessions ";
        assert!(text.contains(line), "{text}");
        let table = text.lines().skip_while(|line| !line.starts_with("SERVICE")).skip(1);
        let table: Vec<_> = table.map(|line| line[..27].trim_end()).collect();
        let expected = [
            "web              failing",
            "old              draining",
            "lame             degraded",
            "fine             accepting",
        ];
        assert_eq!(table, expected);
    }

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
            services: vec![service(large, counts)],
            pipes: Pipes {
                lent: 65_536,
                idle: 65_536,
                pages: 262_144,
                denied: 999_999,
                ..Pipes::default()
            },
            fallbacks: vec![ReasonCount {
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
        for line in [
            "  7 failed and 2 refused of 10 in the last 60 s:\n    7 no_backend\n    2 client\n",
            "  to 192.0.2.1:80  down, active 0, connected 9, failed 3\n     for 2m05s, since 2026-11-27T00:31:23Z: \
             no answer in time\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("up 1157d09h"), "{text}");
        assert!(text.contains("909 TiB"), "{text}");
        assert!(text.contains("fallbacks  12 pipe_budget"), "{text}");
    }
}
