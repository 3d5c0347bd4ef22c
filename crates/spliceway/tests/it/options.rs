//! The options of a relay, for every engine and with the ends swapped.
//!
//! Tests of timeouts use tokio's paused clock, which advances only when no task can run. Their
//! streams are Unix sockets, whose bytes arrive within the call that sends them. So the clock
//! cannot overtake a byte, whatever the load on the machine.

// A cancelled relay loses no byte that it can deliver in time.
mod cancel;
// What the relay still does after a stream has failed.
mod failed;
// The end of one stream as the end of both.
mod half_close;
// Sockets that the caller knows to be new.
mod new_socket;
// The relay returns its streams, and the bytes in flight.
mod parts;
// Which peer ended first, and which stream failed.
mod peers;
// Bytes that go first.
mod prefix;
// A rate limit of one relay or of many, with splicing.
mod rate;
// Another relay continues a suspended one.
mod suspend;
// An idle relay times out. An old relay does not.
mod timeouts;

use std::time::Duration;

use spliceway::{
    DirectionSummary, EndReason, Engine, HalfClose, RateLimit, Relay, RelayError, RelayOptions, RelayStats,
    RelaySummary,
};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::support::pattern::Pattern;
use crate::support::{BULK, finish, guard, tcp};

/// How to run a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) engine: Engine,
    /// Whether the near peer is the relay's `b`.
    pub(crate) swapped: bool,
}

/// Runs a scenario with every engine, and with the near peer as `a` and as `b`.
pub(crate) async fn every_way(mut scenario: impl AsyncFnMut(Variant)) {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        for swapped in [false, true] {
            scenario(Variant { engine, swapped }).await;
        }
    }
}

/// Advances the paused clock by this time.
pub(crate) async fn pass(time: Duration) {
    // Sleeps because this advances the paused clock. It takes no real time.
    tokio::time::sleep(time).await;
}

/// `near ⇄ relay ⇄ far`, over Unix sockets.
pub(crate) struct Line {
    pub(crate) near: UnixStream,
    pub(crate) far: UnixStream,
    pub(crate) relay: Running,
}

pub(crate) struct Running {
    pub(crate) task: JoinHandle<Result<RelaySummary, RelayError>>,
    pub(crate) stats: RelayStats,
    swapped: bool,
}

/// The counts of a relay, as the peers see them.
pub(crate) struct Done {
    /// From the near peer to the far peer.
    pub(crate) forth: DirectionSummary,
    /// From the far peer to the near peer.
    pub(crate) back: DirectionSummary,
    pub(crate) end: EndReason,
}

impl Variant {
    pub(crate) fn start(self, options: RelayOptions) -> Line {
        let ((near, near_end), (far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (a, b) = if self.swapped {
            (far_end, near_end)
        } else {
            (near_end, far_end)
        };
        let relay = Relay::with_options(a, b, options.engine(self.engine));
        let running = Running {
            stats: relay.stats(),
            task: tokio::spawn(relay),
            swapped: self.swapped,
        };
        Line {
            near,
            far,
            relay: running,
        }
    }

    /// Returns whether the relay must splice bulk.
    pub(crate) fn splices(self) -> bool {
        self.engine != Engine::Copy
    }
}

impl Running {
    pub(crate) async fn end(self) -> Done {
        Done::of(self.task.await.unwrap().unwrap(), self.swapped)
    }
}

impl Done {
    pub(crate) fn of(summary: RelaySummary, swapped: bool) -> Self {
        let RelaySummary {
            a_to_b, b_to_a, end, ..
        } = summary;
        let (forth, back) = if swapped { (b_to_a, a_to_b) } else { (a_to_b, b_to_a) };
        Self { forth, back, end }
    }
}

/// Runs over TCP and in real time. No option comes near its limit.
#[tokio::test]
async fn all_options_together_leave_bulk_spliced() {
    for swapped in [false, true] {
        let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
        let (a, b) = if swapped {
            (far_end, near_end)
        } else {
            (near_end, far_end)
        };
        let (hour, rate) = (Duration::from_secs(3600), RateLimit::new(10 << 30));
        let options = RelayOptions::new()
            .idle_timeout(hour)
            .half_close_timeout(hour)
            .half_close(HalfClose::Propagate)
            .a_to_b_limit(1 << 40)
            .b_to_a_limit(1 << 40)
            .rate_limit(&rate);
        let mut relay = Relay::with_options(a, b, options);
        let (stats, _cancel) = (relay.stats(), relay.cancel_handle());
        let send = async {
            Pattern::new(1).send(&mut near, BULK).await;
            finish(&near);
        };
        let receive = async {
            Pattern::new(1).expect_end(&mut far, BULK).await;
            finish(&far);
        };
        let (summary, (), ()) = guard(async { tokio::join!(relay, send, receive) }).await;
        let summary = summary.unwrap();
        assert_eq!(stats.snapshot(), summary);
        let done = Done::of(summary, swapped);
        assert_eq!((done.end, done.forth.bytes), (EndReason::Ended, BULK));
        assert!(done.forth.spliced >= BULK / 10 * 9, "{:?}", done.forth);
    }
}
