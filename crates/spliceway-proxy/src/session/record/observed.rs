//! What the kernel knows about the connections of a relay at its end.

use std::os::fd::AsFd;
use std::time::Duration;

use spliceway::TcpInfo;

use super::bottleneck::{self, slowest};
use crate::log::Line;
use crate::session::facts::Session;

/// What the kernel knew about the connections at the end of the relay, and what that means.
pub(super) struct Observed {
    client: Option<TcpInfo>,
    upstream: Option<TcpInfo>,
    slow_up: Option<&'static str>,
    slow_down: Option<&'static str>,
}

/// The kernel is asked about the connections of a session that lasted this long.
const OBSERVED_TIME: Duration = Duration::from_secs(1);
/// It is also asked if the session passed this many bytes. A session below both limits is not slow,
/// and the questions would be 1.4 % of its CPU time (`docs/design/007-the-cost-of-a-session.md`).
const OBSERVED_BYTES: u64 = 1 << 20;

impl Observed {
    /// Returns `None` if the answers of the kernel are not worth their cost.
    pub(super) fn query(session: &Session, client: impl AsFd, upstream: impl AsFd) -> Option<Self> {
        let facts = session.facts();
        let opening = facts.opening?;
        let (relayed, waits) = (facts.relayed(), facts.waits());
        let duration = session.started.elapsed();
        if duration < OBSERVED_TIME && relayed.bytes() < OBSERVED_BYTES {
            return None;
        }
        let time = duration.saturating_sub(opening);
        // A Unix socket has no such information.
        let (client, upstream) = (TcpInfo::of(client).ok(), TcpInfo::of(upstream).ok());
        Some(Self {
            slow_up: slowest(
                relayed.a_to_b.bytes,
                &waits.a_to_b,
                time,
                upstream.as_ref(),
                &bottleneck::UP,
            ),
            slow_down: slowest(
                relayed.b_to_a.bytes,
                &waits.b_to_a,
                time,
                client.as_ref(),
                &bottleneck::DOWN,
            ),
            client,
            upstream,
        })
    }

    pub(super) fn fill(&self, line: &mut Line) {
        for (info, names) in [
            (
                &self.client,
                ["rtt_client_us", "retransmits_client", "delivery_rate_client"],
            ),
            (
                &self.upstream,
                ["rtt_upstream_us", "retransmits_upstream", "delivery_rate_upstream"],
            ),
        ] {
            if let Some(info) = info {
                let rtt = u64::try_from(info.rtt.as_micros()).unwrap_or(u64::MAX);
                let values = [rtt, info.retransmitted.into(), info.delivery_rate];
                names
                    .into_iter()
                    .zip(values)
                    .for_each(|(name, value)| line.number(name, value));
            }
        }
        for (name, word) in [("slow_up", self.slow_up), ("slow_down", self.slow_down)] {
            if let Some(word) = word {
                line.text(name, word);
            }
        }
    }
}
