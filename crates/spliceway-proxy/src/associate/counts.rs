//! What an association has passed on and what it has not, written by the one who does it and read by anyone at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::protocol::socks5::datagram::Malformed;

/// Why a datagram was not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// From the client, and none by RFC 1928; fragments are among these.
    Malformed(Malformed),
    /// It came to the client's side from someone else.
    Source,
    /// From an address that the client has not sent to, or not for long.
    Unsolicited,
    /// To a target that is refused.
    Denied,
    /// To a name that has no address, or nobody could say in time.
    Unresolved,
    /// To a name that is not looked up yet, with as much waiting for names as may.
    LookupLimit,
    /// Longer than a datagram may be, with its header, or than the way to the target takes.
    TooLong,
    /// The socket that is to send it has no room.
    SendBuffer,
    /// There is no way to the target, or a firewall of this machine forbids it.
    Unreachable,
    /// No socket towards the target could be had.
    Socket,
}

impl Dropped {
    /// Every one, for whoever keeps a count of each.
    pub(crate) const ALL: [Self; 15] = [
        Self::Malformed(Malformed::Short),
        Self::Malformed(Malformed::Reserved),
        Self::Malformed(Malformed::Fragment),
        Self::Malformed(Malformed::AddressType),
        Self::Malformed(Malformed::Name),
        Self::Malformed(Malformed::Port),
        Self::Source,
        Self::Unsolicited,
        Self::Denied,
        Self::Unresolved,
        Self::LookupLimit,
        Self::TooLong,
        Self::SendBuffer,
        Self::Unreachable,
        Self::Socket,
    ];

    /// The `reason` of metrics and records.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.as_str(),
            Self::Source => "source",
            Self::Unsolicited => "unsolicited",
            Self::Denied => "denied",
            Self::Unresolved => "unresolved",
            Self::LookupLimit => "lookup_limit",
            Self::TooLong => "too_long",
            Self::SendBuffer => "send_buffer",
            Self::Unreachable => "unreachable",
            Self::Socket => "socket",
        }
    }

    /// Its place in [`Self::ALL`].
    fn place(self) -> usize {
        Self::ALL
            .iter()
            .position(|one| *one == self)
            .expect("ALL has every reason")
    }
}

/// An association from outside: its counts, and the way to stop it. Clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct AssociateStats(Arc<Live>);

#[derive(Debug, Default)]
struct Live {
    up: LivePassed,
    down: LivePassed,
    dropped: [AtomicU64; Dropped::ALL.len()],
    stop: Notify,
}

#[derive(Debug, Default)]
struct LivePassed {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

/// What an association came to so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AssociateSummary {
    /// From the client to targets.
    pub(crate) up: Passed,
    /// From targets to the client.
    pub(crate) down: Passed,
    /// Times of each of [`Dropped::ALL`].
    dropped: [u64; Dropped::ALL.len()],
}

/// One way: datagrams that the kernel took to send, and their data without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
}

impl AssociateStats {
    /// The counts now. Read one by one while they grow, so each is right and they may be of different moments.
    pub(crate) fn snapshot(&self) -> AssociateSummary {
        AssociateSummary {
            up: self.0.up.now(),
            down: self.0.down.now(),
            dropped: std::array::from_fn(|place| self.0.dropped[place].load(Ordering::Relaxed)),
        }
    }

    /// Ends the association as soon as it has its turn: nothing it holds is worth a wait. Once is enough, before it runs too.
    pub(crate) fn stop(&self) {
        self.0.stop.notify_one();
    }

    pub(super) async fn stopped(&self) {
        self.0.stop.notified().await;
    }

    pub(super) fn up(&self, bytes: usize) {
        self.0.up.add(bytes);
    }

    pub(super) fn down(&self, bytes: usize) {
        self.0.down.add(bytes);
    }

    pub(super) fn dropped(&self, reason: Dropped) {
        add(&self.0.dropped[reason.place()], 1);
    }

    /// Datagrams passed on, both ways.
    pub(super) fn passed(&self) -> u64 {
        self.0.up.now().datagrams + self.0.down.now().datagrams
    }
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

/// One task alone writes, so a count needs no locked addition.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl AssociateSummary {
    /// Adds what another came to.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.up, other.up), (&mut self.down, other.down)] {
            sum.datagrams += more.datagrams;
            sum.bytes += more.bytes;
        }
        for (sum, more) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += more;
        }
    }

    /// How many were dropped for this reason.
    #[cfg(test)]
    pub(super) fn dropped(&self, reason: Dropped) -> u64 {
        self.dropped[reason.place()]
    }

    /// How many were dropped in all.
    pub(crate) fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// The reasons for which some were dropped, and how many.
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
        let stats = AssociateStats::default();
        for (place, reason) in Dropped::ALL.into_iter().enumerate() {
            (0..=place).for_each(|_| stats.dropped(reason));
        }
        let summary = stats.snapshot();
        let mut names = Vec::new();
        for (place, reason) in Dropped::ALL.into_iter().enumerate() {
            assert_eq!(summary.dropped(reason), place as u64 + 1, "{reason:?}");
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
}
