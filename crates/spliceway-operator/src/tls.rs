//! What `status` and `top` say about certificates.

use std::fmt::{self, Write};

use crate::api::{ServiceStatus, TlsStatus};

const DAY: i64 = 86_400;
/// A certificate that ends within this time is a warning, as in the alerts.
const SOON: i64 = 14 * DAY;

/// How urgent the state of certificates is, the best one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    None,
    Soon,
    Now,
}

/// Writes the lines of one service.
pub(crate) fn lines(text: &mut String, tls: &TlsStatus) -> fmt::Result {
    writeln!(text, "  TLS: {}", certificates(tls.certificates, tls))?;
    if tls.expires_in_seconds < SOON {
        writeln!(text, "  TLS: renew {}", tls.file)?;
    }
    if let Some(stale) = &tls.stale {
        writeln!(
            text,
            "  TLS: the old certificates stay in force since {}: {}",
            stale.since, stale.why
        )?;
    }
    Ok(())
}

/// Returns the sum of all services, or `None` if none has certificates.
pub(crate) fn summary(services: &[ServiceStatus]) -> Option<(String, Urgency)> {
    let all = || {
        services
            .iter()
            .filter_map(|service| Some((service, service.tls.as_ref()?)))
    };
    let (_, first) = all().min_by_key(|(_, tls)| tls.expires_in_seconds)?;
    let mut text = format!(
        "tls {}",
        certificates(all().map(|(_, tls)| tls.certificates).sum(), first)
    );
    let mut urgency = match first.expires_in_seconds {
        ..=0 => Urgency::Now,
        1..SOON => Urgency::Soon,
        _ => Urgency::None,
    };
    let stale: Vec<_> = all()
        .filter(|(_, tls)| tls.stale.is_some())
        .map(|(service, _)| &*service.name)
        .collect();
    if !stale.is_empty() {
        text.push_str(&format!("   old ones in force: {}", stale.join(", ")));
        urgency = Urgency::Now;
    }
    Some((text, urgency))
}

/// Returns the number of certificates, and when the first one ends.
fn certificates(count: u64, first: &TlsStatus) -> String {
    let (what, which) = match count {
        1 => ("certificate", "it"),
        _ => ("certificates", "the first"),
    };
    let date = first.expires.get(..10).unwrap_or(&first.expires);
    let days = |seconds: i64| match seconds / DAY {
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    let seconds = first.expires_in_seconds;
    let when = if seconds > 0 {
        format!("ends in {} ({date})", days(seconds))
    } else {
        format!("has ended {} ago ({date})", days(seconds.saturating_neg()))
    };
    format!("{count} {what}, {which} {when}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::StaleStatus;

    fn service(name: &str, certificates: u64, days: i64) -> ServiceStatus {
        ServiceStatus {
            name: name.to_owned(),
            tls: Some(TlsStatus {
                certificates,
                file: "/etc/web.pem".to_owned(),
                expires: "2027-01-12T00:00:00Z".to_owned(),
                expires_in_seconds: days * DAY,
                stale: None,
            }),
            ..ServiceStatus::default()
        }
    }

    fn shown(service: &ServiceStatus) -> String {
        let mut text = String::new();
        lines(&mut text, service.tls.as_ref().unwrap()).unwrap();
        text
    }

    #[test]
    fn a_service_says_when_its_first_certificate_ends() {
        let line = "  TLS: 1 certificate, it ends in 47 days (2027-01-12)\n";
        assert_eq!(shown(&service("web", 1, 47)), line);
        let line = "  TLS: 1000 certificates, the first ends in 1 day (2027-01-12)\n  TLS: renew /etc/web.pem\n";
        assert_eq!(shown(&service("web", 1000, 1)), line);
        assert!(shown(&service("web", 1, -3)).contains("it has ended 3 days ago (2027-01-12)"));
        let mut service = service("web", 1, 47);
        service.tls.as_mut().unwrap().stale = Some(StaleStatus {
            since: "2026-11-26T13:00:00Z".to_owned(),
            why: "/etc/web.key has no private key".to_owned(),
        });
        let line =
            "\n  TLS: the old certificates stay in force since 2026-11-26T13:00:00Z: /etc/web.key has no private key\n";
        assert!(shown(&service).ends_with(line));
    }

    #[test]
    fn the_summary_is_as_urgent_as_the_worst_service() {
        assert_eq!(summary(&[ServiceStatus::default()]), None);
        let mut services = vec![service("a", 1, 47), service("b", 2, 20)];
        let (text, urgency) = summary(&services).unwrap();
        assert_eq!(text, "tls 3 certificates, the first ends in 20 days (2027-01-12)");
        assert_eq!(urgency, Urgency::None);
        services.push(service("c", 1, 13));
        assert_eq!(summary(&services).unwrap().1, Urgency::Soon);
        services[0].tls.as_mut().unwrap().stale = Some(StaleStatus::default());
        let (text, urgency) = summary(&services).unwrap();
        assert!(
            text.ends_with("   old ones in force: a") && urgency == Urgency::Now,
            "{text}"
        );
    }
}
