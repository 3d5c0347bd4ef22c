//! What made a session slow: one word for each direction.
//!
//! ```text
//!   time of the relay = waits for source + sink + rate limit + other direction + its own work
//!                                            │
//!                         TCP_INFO of the sink: is its receive window full, or not?
//! ```
//!
//! The longest part gives the word. Bytes count as delivered when they are in the kernel's send
//! buffer, so the relay may have ended before the network has carried them. The kernel's busy time
//! shows this.

use std::time::Duration;

use spliceway::{TcpInfo, Waits};

/// A direction that passed less says nothing: it fits into the buffers on the way.
const BYTES_MIN: u64 = 64 << 10;

/// The words for one direction.
pub(super) struct Words {
    source: &'static str,
    network: &'static str,
    sink: &'static str,
}

pub(super) const UP: Words = Words {
    source: "client",
    network: "network_to_upstream",
    sink: "upstream",
};

pub(super) const DOWN: Words = Words {
    source: "upstream",
    network: "network_to_client",
    sink: "client",
};

const LIMIT: &str = "limit";
const RELAY: &str = "relay";

/// Returns what made a direction slow that has passed `bytes`. `time` is the time of its relay, and
/// `sink` what the kernel knows about its sink. A Unix socket has no network.
pub(super) fn slowest(
    bytes: u64,
    waits: &Waits,
    time: Duration,
    sink: Option<&TcpInfo>,
    words: &Words,
) -> Option<&'static str> {
    if bytes < BYTES_MIN {
        return None;
    }
    let (busy, window) = sink.map_or_else(Default::default, |sink| (sink.busy, sink.receive_window_limited));
    // The sink must have been busy for this long after the direction had ended.
    let after = (busy + waits.other_direction)
        .saturating_sub(time)
        .min(waits.other_direction);
    let waited = waits.source + waits.sink + waits.rate_limit + waits.other_direction;
    let slow_sink = if window * 2 >= busy { words.sink } else { words.network };
    let parts = [
        (waits.sink + after, slow_sink),
        (waits.rate_limit, LIMIT),
        (waits.source, words.source),
        (time.saturating_sub(waited), RELAY),
    ];
    let longest = parts.into_iter().rev().max_by_key(|(time, _)| *time);
    longest.filter(|(time, _)| !time.is_zero()).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// Returns the word for a relay of 1 s.
    fn word([source, sink, rate_limit, other]: [u64; 4], [busy, window]: [u64; 2]) -> Option<&'static str> {
        let mut waits = Waits::default();
        waits.source = ms(source);
        waits.sink = ms(sink);
        waits.rate_limit = ms(rate_limit);
        waits.other_direction = ms(other);
        let mut info = TcpInfo::default();
        info.busy = ms(busy);
        info.receive_window_limited = ms(window);
        slowest(BYTES_MIN, &waits, ms(1000), Some(&info), &DOWN)
    }

    #[test]
    fn the_longest_part_of_the_time_gives_the_word() {
        for (waits, kernel, expected) in [
            ([900, 50, 0, 0], [1000, 900], "upstream"),
            ([300, 600, 0, 0], [1000, 900], "client"),
            ([300, 600, 0, 0], [1000, 100], "network_to_client"),
            ([100, 200, 600, 0], [1000, 0], "limit"),
            ([100, 100, 100, 0], [1000, 0], "relay"),
            // All bytes were in the send buffer after 20 ms, and the network carried them for 900.
            ([20, 0, 0, 980], [920, 0], "network_to_client"),
            ([20, 0, 0, 980], [920, 900], "client"),
            // The client did nothing for a long time after it had everything.
            ([20, 0, 0, 980], [30, 0], "upstream"),
        ] {
            assert_eq!(word(waits, kernel), Some(expected), "{waits:?} {kernel:?}");
        }
    }

    #[test]
    fn a_sink_without_a_network_is_slow_itself() {
        let mut waits = Waits::default();
        waits.sink = ms(900);
        assert_eq!(slowest(BYTES_MIN, &waits, ms(1000), None, &UP), Some("upstream"));
    }

    #[test]
    fn a_direction_with_few_bytes_has_no_word() {
        let mut waits = Waits::default();
        waits.source = ms(900);
        assert_eq!(slowest(BYTES_MIN - 1, &waits, ms(1000), None, &UP), None);
    }
}
