//! Counts the datagrams that a session forwards and drops. One task at a time writes the counts of
//! a direction. Any task may read them at any time.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use spliceway::RateLimit;
use tokio::sync::Notify;

use crate::access::rates::SessionRates;
use crate::kit::refusal::Refusal;
use spliceway_protocol::socks5::datagram::Malformed;

/// The reason why a datagram was not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The client's datagram does not follow RFC 1928 or is a fragment.
    Malformed(Malformed),
    /// The datagram came to the inside socket, but not from the client.
    Source,
    /// The datagram came from an address to which the client has not sent a datagram recently.
    Unsolicited,
    /// The policy refuses the address of the target.
    Denied,
    /// A target rule of the operator refuses the target.
    Rule,
    /// The name has no address, or its lookup failed or took too long.
    Unresolved,
    /// The name is not known yet, and the limit on lookups or on waiting datagrams is reached.
    LookupLimit,
    /// The datagram with its header is longer than UDP or the path to the target allows.
    TooLong,
    /// The send buffer of the socket is full.
    SendBuffer,
    /// The datagram is above a rate limit.
    Rate,
    /// There is no route to the target, or this machine's firewall forbids the datagram.
    Unreachable,
    /// No socket for the target could be opened.
    Socket,
    /// The service does not serve this client (`--allow`, `--deny`).
    Client,
    /// The datagram would begin a session, and the limit on sessions is reached.
    Sessions,
    /// The datagram would begin a session, and its client has reached its limit on sessions.
    SessionsOfClient,
    /// The datagram would begin a session, and the service accepts no new clients.
    Draining,
}

impl Dropped {
    /// All reasons, for code that counts each one.
    pub(super) const ALL: [Self; 21] = [
        Self::Malformed(Malformed::Short),
        Self::Malformed(Malformed::Reserved),
        Self::Malformed(Malformed::Fragment),
        Self::Malformed(Malformed::AddressType),
        Self::Malformed(Malformed::Name),
        Self::Malformed(Malformed::Port),
        Self::Source,
        Self::Unsolicited,
        Self::Denied,
        Self::Rule,
        Self::Unresolved,
        Self::LookupLimit,
        Self::TooLong,
        Self::SendBuffer,
        Self::Rate,
        Self::Unreachable,
        Self::Socket,
        Self::Client,
        Self::Sessions,
        Self::SessionsOfClient,
        Self::Draining,
    ];

    /// Returns the value of `reason` in metrics and records.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.as_str(),
            Self::Source => "source",
            Self::Unsolicited => "unsolicited",
            Self::Denied => "denied",
            Self::Rule => "target_rule",
            Self::Unresolved => "unresolved",
            Self::LookupLimit => "lookup_limit",
            Self::TooLong => "too_long",
            Self::SendBuffer => "send_buffer",
            Self::Rate => "rate",
            Self::Unreachable => "unreachable",
            Self::Socket => "socket",
            Self::Client => "client",
            Self::Sessions => Refusal::Sessions.as_str(),
            Self::SessionsOfClient => Refusal::SessionsOfClient.as_str(),
            Self::Draining => "draining",
        }
    }

    /// Returns the index of this reason in [`Self::ALL`].
    fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|one| *one == self)
            .expect("ALL has every reason")
    }
}

/// Returns the reason for an error of a send call.
impl From<Errno> for Dropped {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => Self::SendBuffer,
            Errno::MSGSIZE => Self::TooLong,
            _ => Self::Unreachable,
        }
    }
}

/// A handle that reads the counts of a session with datagrams, knows its rates and can stop it.
/// Clones refer to the same session.
#[derive(Debug, Clone, Default)]
pub(crate) struct DatagramStats(Arc<Live>);

#[derive(Debug, Default)]
struct Live {
    up: LivePassed,
    down: LivePassed,
    dropped: [AtomicU64; Dropped::ALL.len()],
    /// Why the policy has refused a target, for the first time.
    denied: OnceLock<Box<str>>,
    rates: SessionRates,
    stop: Notify,
}

#[derive(Debug, Default)]
struct LivePassed {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

/// The counts of a session so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DatagramSummary {
    /// From the client to targets.
    pub(crate) up: Passed,
    /// From targets to the client.
    pub(crate) down: Passed,
    /// The count for each reason in [`Dropped::ALL`].
    dropped: [u64; Dropped::ALL.len()],
}

/// The counts of one direction: datagrams that the kernel accepted for sending, and their data
/// bytes without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl DatagramStats {
    /// Returns the handle of a session with these rates.
    pub(crate) fn within(rates: SessionRates) -> Self {
        Self(Arc::new(Live {
            rates,
            ..Live::default()
        }))
    }

    /// Counts a datagram with this much data from the client towards the rates.
    ///
    /// # Errors
    /// Returns [`Dropped::Rate`] if a rate does not allow the datagram.
    pub(crate) fn charge_up(&self, bytes: usize) -> Result<(), Dropped> {
        charge(self.0.rates.incoming.as_ref(), bytes)
    }

    /// Counts a datagram with this much data to the client towards the rates.
    pub(crate) fn charge_down(&self, bytes: usize) -> Result<(), Dropped> {
        charge(self.0.rates.outgoing.as_ref(), bytes)
    }

    /// Returns the current counts. Each count is correct, but the counts may be from different
    /// moments, because they are read one by one.
    pub(crate) fn snapshot(&self) -> DatagramSummary {
        DatagramSummary {
            up: self.0.up.now(),
            down: self.0.down.now(),
            dropped: std::array::from_fn(|index| self.0.dropped[index].load(Ordering::Relaxed)),
        }
    }

    /// Ends the session when its task next runs. It holds no data that is worth waiting for. One
    /// call is enough, even before the session runs.
    pub(crate) fn stop(&self) {
        self.0.stop.notify_one();
    }

    pub(crate) async fn stopped(&self) {
        self.0.stop.notified().await;
    }

    /// Counts a datagram with this much data from the client, which was sent or dropped.
    pub(crate) fn up(&self, bytes: usize, sent: Result<(), impl Into<Dropped>>) {
        match sent {
            Ok(()) => self.0.up.add(bytes),
            Err(reason) => self.dropped(reason.into()),
        }
    }

    /// Counts a datagram with this much data to the client, which was sent or dropped.
    pub(crate) fn down(&self, bytes: usize, sent: Result<(), impl Into<Dropped>>) {
        match sent {
            Ok(()) => self.0.down.add(bytes),
            Err(reason) => self.dropped(reason.into()),
        }
    }

    pub(crate) fn dropped(&self, reason: Dropped) {
        // Both directions may drop a datagram at the same time.
        self.0.dropped[reason.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Records why the policy refuses the target of a datagram, if it is the first such datagram.
    pub(crate) fn denied(&self, why: &impl Display) {
        self.0.denied.get_or_init(|| why.to_string().into());
    }

    /// Returns why the policy has refused the target of a datagram for the first time.
    pub(crate) fn first_denial(&self) -> Option<&str> {
        self.0.denied.get().map(|why| &**why)
    }

    /// Returns the number of forwarded datagrams in both directions.
    pub(crate) fn passed(&self) -> u64 {
        self.0.up.now().datagrams + self.0.down.now().datagrams
    }
}

fn charge(rate: Option<&RateLimit>, bytes: usize) -> Result<(), Dropped> {
    let is_within = rate.is_none_or(|rate| rate.try_charge(bytes as u64));
    is_within.then_some(()).ok_or(Dropped::Rate)
}

impl LivePassed {
    fn add(&self, bytes: usize) {
        add(&self.datagrams, 1);
        add(&self.bytes, bytes as u64);
    }

    fn now(&self) -> Passed {
        Passed {
            datagrams: self.datagrams.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Adds without an atomic read-modify-write instruction, because only one task at a time writes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl DatagramSummary {
    /// Adds the counts of another session.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.up, other.up), (&mut self.down, other.down)] {
            sum.datagrams += more.datagrams;
            sum.bytes += more.bytes;
        }
        for (sum, more) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += more;
        }
    }

    /// Returns the number of datagrams that were dropped for this reason.
    #[cfg(test)]
    pub(crate) fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason.index()]
    }

    /// Returns the number of dropped datagrams.
    pub(crate) fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Returns the reasons for which datagrams were dropped, with the number of datagrams for each.
    pub(crate) fn drops(&self) -> impl Iterator<Item = (Dropped, u64)> + '_ {
        Dropped::ALL
            .into_iter()
            .zip(self.dropped)
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_name_and_its_own_count() {
        let stats = DatagramStats::default();
        for (index, reason) in Dropped::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| stats.dropped(reason));
        }
        let summary = stats.snapshot();
        let mut names = Vec::new();
        for (index, reason) in Dropped::ALL.into_iter().enumerate() {
            assert_eq!(summary.dropped(reason), index as u64 + 1, "{reason:?}");
            assert!(!names.contains(&reason.as_str()), "{reason:?}");
            names.push(reason.as_str());
        }
        assert_eq!(summary.drops().count(), Dropped::ALL.len());
        let all: u64 = (1..=Dropped::ALL.len() as u64).sum();
        assert_eq!(summary.dropped_in_all(), all);
        let mut twice = summary;
        twice.add(&summary);
        assert_eq!(twice.dropped_in_all(), 2 * all);
    }

    #[test]
    fn a_failed_send_is_counted_by_its_cause() {
        for (errno, cause) in [
            (Errno::AGAIN, Dropped::SendBuffer),
            (Errno::NOBUFS, Dropped::SendBuffer),
            (Errno::MSGSIZE, Dropped::TooLong),
            (Errno::CONNREFUSED, Dropped::Unreachable),
            (Errno::NETUNREACH, Dropped::Unreachable),
            (Errno::PERM, Dropped::Unreachable),
        ] {
            assert_eq!(Dropped::from(errno), cause, "{errno:?}");
        }
    }
}
