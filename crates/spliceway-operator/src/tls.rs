//! What `status` and `top` say about certificates.

use std::fmt::{self, Write};

use crate::api::{AcmeStatus, ServiceStatus, TlsStatus};

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
    // ACME renews its certificates itself, and some last for a few days.
    if tls.expires_in_seconds < SOON && tls.acme.is_empty() {
        writeln!(text, "  TLS: renew {}", tls.file)?;
    }
    if let Some(stale) = &tls.stale {
        writeln!(
            text,
            "  TLS: the previous TLS files stay in force since {}: {}",
            stale.since, stale.why
        )?;
    }
    if let Some(crl) = &tls.crl {
        let remedy = if crl.expires_in_seconds > 0 {
            ""
        } else {
            ", and the clients of its CA are refused: get the new one"
        };
        let end = end(&crl.expires, crl.expires_in_seconds);
        writeln!(text, "  TLS: the CRL {} {end}{remedy}", crl.file)?;
    }
    tls.acme.iter().try_for_each(|name| acme(text, name))
}

/// Writes the line of a name for which ACME issues a certificate.
fn acme(text: &mut String, acme: &AcmeStatus) -> fmt::Result {
    write!(text, "  ACME: {} has ", acme.name)?;
    match &acme.expires {
        Some(expires) => write!(text, "a certificate until {expires}")?,
        None => text.write_str("no certificate yet")?,
    }
    if let Some(next) = &acme.next_try {
        write!(text, ", the next try is at {next}")?;
    }
    if let Some(why) = &acme.why {
        write!(text, ", the last one failed: {why}")?;
    }
    writeln!(text)
}

/// Returns the sum of all services, or `None` if none has certificates.
pub(crate) fn summary(services: &[ServiceStatus]) -> Option<(String, Urgency)> {
    let all = || {
        services
            .iter()
            .filter_map(|service| Some((service, service.tls.as_ref()?)))
    };
    let (_, first) = all().min_by_key(|(_, tls)| (tls.certificates == 0, tls.expires_in_seconds))?;
    let mut text = format!(
        "tls {}",
        certificates(all().map(|(_, tls)| tls.certificates).sum(), first)
    );
    let mut urgency = match first.expires_in_seconds {
        ..=0 => Urgency::Now,
        1..SOON if first.acme.is_empty() => Urgency::Soon,
        _ => Urgency::None,
    };
    if all().any(|(_, tls)| tls.acme.iter().any(|name| name.why.is_some())) {
        text.push_str("   ACME failed: see `spliceway status`");
        urgency = urgency.max(Urgency::Soon);
    }
    let names = |is_concerned: fn(&TlsStatus) -> bool| -> Vec<_> {
        let concerned = all().filter(|(_, tls)| is_concerned(tls));
        concerned.map(|(service, _)| &*service.name).collect()
    };
    let expired = names(|tls| tls.crl.as_ref().is_some_and(|crl| crl.expires_in_seconds <= 0));
    if !expired.is_empty() {
        text.push_str(&format!("   CRL has expired: {}", expired.join(", ")));
        urgency = Urgency::Now;
    }
    let stale = names(|tls| tls.stale.is_some());
    if !stale.is_empty() {
        text.push_str(&format!("   old ones in force: {}", stale.join(", ")));
        urgency = Urgency::Now;
    }
    Some((text, urgency))
}

/// Returns the number of certificates, and when the first one ends.
fn certificates(count: u64, first: &TlsStatus) -> String {
    let (what, which) = match count {
        // ACME has issued none yet.
        0 => return "no certificate yet".to_owned(),
        1 => ("certificate", "it"),
        _ => ("certificates", "the first"),
    };
    let when = end(&first.expires, first.expires_in_seconds);
    format!("{count} {what}, {which} {when}")
}

/// Returns when something expires, or when it has expired. The time until then is in seconds.
fn end(expires: &str, seconds: i64) -> String {
    let date = expires.get(..10).unwrap_or(expires);
    let days = |seconds: i64| match seconds / DAY {
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    if seconds > 0 {
        format!("expires in {} ({date})", days(seconds))
    } else {
        format!("has expired {} ago ({date})", days(seconds.saturating_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CrlStatus, StaleStatus};

    fn service(name: &str, certificates: u64, days: i64) -> ServiceStatus {
        ServiceStatus {
            name: name.to_owned(),
            tls: Some(TlsStatus {
                certificates,
                file: "/etc/web.pem".to_owned(),
                expires: "2027-01-12T00:00:00Z".to_owned(),
                expires_in_seconds: days * DAY,
                ..TlsStatus::default()
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
        let line = "  TLS: 1 certificate, it expires in 47 days (2027-01-12)\n";
        assert_eq!(shown(&service("web", 1, 47)), line);
        let line = "  TLS: 1000 certificates, the first expires in 1 day (2027-01-12)\n  TLS: renew /etc/web.pem\n";
        assert_eq!(shown(&service("web", 1000, 1)), line);
        assert!(shown(&service("web", 1, -3)).contains("it has expired 3 days ago (2027-01-12)"));
        let mut service = service("web", 1, 47);
        service.tls.as_mut().unwrap().stale = Some(StaleStatus {
            since: "2026-11-26T13:00:00Z".to_owned(),
            why: "/etc/web.key has no private key".to_owned(),
        });
        let line = "\n  TLS: the previous TLS files stay in force since 2026-11-26T13:00:00Z: /etc/web.key has no private key\n";
        assert!(shown(&service).ends_with(line));
    }

    #[test]
    fn a_service_says_when_its_first_crl_expires() {
        let mut service = service("web", 1, 47);
        let crl = |days: i64| CrlStatus {
            file: "/etc/ca.crl".to_owned(),
            expires: "2026-12-01T00:00:00Z".to_owned(),
            expires_in_seconds: days * DAY,
        };
        let mut shown = |days| {
            service.tls.as_mut().unwrap().crl = Some(crl(days));
            (shown(&service), summary(std::slice::from_ref(&service)).unwrap())
        };
        let (lines, (_, urgency)) = shown(3);
        assert!(lines.ends_with("\n  TLS: the CRL /etc/ca.crl expires in 3 days (2026-12-01)\n"));
        assert_eq!(urgency, Urgency::None);
        let (lines, (text, urgency)) = shown(-2);
        let expired = "\n  TLS: the CRL /etc/ca.crl has expired 2 days ago (2026-12-01), \
                       and the clients of its CA are refused: get the new one\n";
        assert!(lines.ends_with(expired), "{lines}");
        assert!(text.ends_with("   CRL has expired: web") && urgency == Urgency::Now);
    }

    #[test]
    fn a_service_with_acme_says_what_is_next_for_each_name() {
        let mut service = service("web", 1, 3);
        let name = |name: &str, expires: Option<&str>, why: Option<&str>| AcmeStatus {
            name: name.to_owned(),
            expires: expires.map(str::to_owned),
            next_try: Some("2027-01-01T00:00:00Z".to_owned()),
            why: why.map(str::to_owned),
        };
        let names = [
            name("b.test", None, Some("no answer")),
            name("a.test", Some("2027-01-12T00:00:00Z"), None),
        ];
        service.tls.as_mut().unwrap().acme = names.to_vec();
        let lines = "  TLS: 1 certificate, it expires in 3 days (2027-01-12)\n  \
             ACME: b.test has no certificate yet, the next try is at 2027-01-01T00:00:00Z, \
             the last one failed: no answer\n  \
             ACME: a.test has a certificate until 2027-01-12T00:00:00Z, the next try is at 2027-01-01T00:00:00Z\n";
        assert_eq!(shown(&service), lines);
        let (text, urgency) = summary(std::slice::from_ref(&service)).unwrap();
        assert!(text.ends_with("   ACME failed: see `spliceway status`") && urgency == Urgency::Soon);
        service.tls.as_mut().unwrap().acme.remove(0);
        assert_eq!(summary(std::slice::from_ref(&service)).unwrap().1, Urgency::None);
        service.tls.as_mut().unwrap().certificates = 0;
        assert!(shown(&service).starts_with("  TLS: no certificate yet\n"));
    }

    #[test]
    fn the_summary_is_as_urgent_as_the_worst_service() {
        assert_eq!(summary(&[ServiceStatus::default()]), None);
        let mut services = vec![service("a", 1, 47), service("b", 2, 20)];
        let (text, urgency) = summary(&services).unwrap();
        assert_eq!(text, "tls 3 certificates, the first expires in 20 days (2027-01-12)");
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
