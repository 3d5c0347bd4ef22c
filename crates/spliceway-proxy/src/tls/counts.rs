//! What metrics and the status show about the TLS of a service.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

/// What metrics and the status show about the TLS of a service.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Handshakes that succeeded. Each bit of the position is one answer: whether the version is
    /// 1.3, whether a session was resumed, and whether the client has shown a certificate.
    handshakes: [AtomicU64; 8],
    /// Handshakes that failed, in the order of [`Failure::ALL`].
    failures: [AtomicU64; Failure::ALL.len()],
    /// Changed files that were read, and those that could not be used.
    reloads: [AtomicU64; 2],
    /// Certificates that ACME issued, and tries that failed.
    acme_tries: [AtomicU64; 2],
    /// The next tries of ACME, by name.
    next_tries: Mutex<BTreeMap<Box<str>, NextTry>>,
}

/// When ACME tries to issue a certificate for a name, and why the last try failed.
#[derive(Debug, Clone)]
pub(crate) struct NextTry {
    pub(crate) at: SystemTime,
    pub(crate) why: Option<String>,
}

/// The labels of handshakes that succeeded.
pub(crate) struct Kind {
    pub(crate) version: &'static str,
    pub(crate) resumed: &'static str,
    pub(crate) client_cert: &'static str,
}

/// Why a handshake failed. There are few reasons, because each has a series for each service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client has closed the connection.
    Closed,
    Timeout,
    /// The client does not speak TLS, or sends a malformed message.
    Malformed,
    /// Client and service share no version, suite or protocol.
    NothingInCommon,
    /// No certificate has the name that the client states.
    UnknownName,
    /// The client does not accept the certificate.
    CertificateRefused,
    /// The client ends the handshake for another reason.
    Alert,
    /// The client shows no certificate, and must.
    NoClientCert,
    /// The client shows a certificate that is not accepted.
    ClientCert,
    Other,
}

impl Failure {
    pub(super) const ALL: [Self; 10] = [
        Self::Closed,
        Self::Timeout,
        Self::Malformed,
        Self::NothingInCommon,
        Self::UnknownName,
        Self::CertificateRefused,
        Self::Alert,
        Self::NoClientCert,
        Self::ClientCert,
        Self::Other,
    ];

    /// Returns the value of `reason` in metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
            Self::NothingInCommon => "nothing_in_common",
            Self::UnknownName => "unknown_name",
            Self::CertificateRefused => "certificate_refused",
            Self::Alert => "alert",
            Self::NoClientCert => "no_client_cert",
            Self::ClientCert => "client_cert",
            Self::Other => "other",
        }
    }
}

impl Counts {
    /// Counts a handshake by its answers, in the order of the bits.
    pub(super) fn succeeded(&self, answers: [bool; 3]) {
        let bits = answers.into_iter().map(usize::from);
        let position = bits.fold(0, |position, bit| position * 2 + bit);
        self.handshakes[position].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, failure: Failure) {
        self.failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reloaded(&self, is_in_force: bool) {
        self.reloads[usize::from(!is_in_force)].fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "tls")]
    pub(super) fn tried(&self, has_succeeded: bool) {
        self.acme_tries[usize::from(!has_succeeded)].fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(feature = "tls")]
    pub(super) fn will_try(&self, name: &str, next: NextTry) {
        self.next_tries.lock().insert(name.into(), next);
    }

    /// Returns `None` before the first look at the schedule.
    pub(crate) fn next_try(&self, name: &str) -> Option<NextTry> {
        self.next_tries.lock().get(name).cloned()
    }

    /// Returns the handshakes that succeeded.
    pub(crate) fn handshakes(&self) -> [(Kind, u64); 8] {
        let yes = |position: usize, bit: usize| if position >> bit & 1 == 1 { "yes" } else { "no" };
        std::array::from_fn(|position| {
            let kind = Kind {
                version: if yes(position, 2) == "yes" { "1.3" } else { "1.2" },
                resumed: yes(position, 1),
                client_cert: yes(position, 0),
            };
            (kind, self.handshakes[position].load(Ordering::Relaxed))
        })
    }

    /// Returns the handshakes that failed, by reason.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.failures.iter().map(|count| count.load(Ordering::Relaxed));
        Failure::ALL.map(Failure::as_str).into_iter().zip(counts)
    }

    /// Returns how often changed files were read, by result.
    pub(crate) fn reloads(&self) -> [(&'static str, u64); 2] {
        by_result(&self.reloads)
    }

    /// Returns how often a certificate was ordered by ACME, by result.
    pub(crate) fn acme_tries(&self) -> [(&'static str, u64); 2] {
        by_result(&self.acme_tries)
    }
}

fn by_result([ok, failed]: &[AtomicU64; 2]) -> [(&'static str, u64); 2] {
    [
        ("ok", ok.load(Ordering::Relaxed)),
        ("failed", failed.load(Ordering::Relaxed)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handshake_has_one_place() {
        let counts = Counts::default();
        for position in 0..8 {
            counts.succeeded([position & 4 > 0, position & 2 > 0, position & 1 > 0]);
        }
        assert!(counts.handshakes().iter().all(|(_, count)| *count == 1));
        let (kind, _) = &counts.handshakes()[5];
        assert_eq!((kind.version, kind.resumed, kind.client_cert), ("1.3", "no", "yes"));
    }

    #[test]
    fn each_failure_is_counted_under_its_own_reason() {
        let counts = Counts::default();
        for (times, failure) in Failure::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| counts.failed(failure));
        }
        let seen: Vec<_> = counts.failures().collect();
        for (times, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(seen[times], (failure.as_str(), times as u64));
        }
    }
}
