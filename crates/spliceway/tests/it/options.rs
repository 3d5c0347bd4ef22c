//! What a caller may choose about a relay: for every engine, and with the ends swapped.
//!
//! Where a test is about time, time is tokio's paused clock, which goes on when nothing else does,
//! and the sockets are Unix ones, whose bytes arrive within the very call that sends them: no load
//! on the machine can make the clock overtake a byte.

mod cancel; //  told to end, it loses nothing that it can deliver in time
mod failed; // what is still done after a stream has failed
mod half_close; // the end of one stream as the end of both
mod parts; // its streams back, and the bytes between them
mod peers; // whose end was the first, whose stream failed
mod prefix; // bytes that go first
mod rate; // a rate shared by one or many, spliced all the same
mod timeouts; // silence ends a relay, age does not

use std::time::Duration;

use spliceway::{
    DirectionSummary, EndReason, Engine, HalfClose, RateLimit, Relay, RelayError, RelayOptions, RelayStats,
    RelaySummary,
};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::support::pattern::Pattern;
use crate::support::{BULK, finish, guard, tcp};

/// How a scenario is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) engine: Engine,
    /// The near peer is the relay's `b`.
    pub(crate) swapped: bool,
}

/// Runs it with every engine, with near as `a` and as `b`.
pub(crate) async fn every_way(mut scenario: impl AsyncFnMut(Variant)) {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        for swapped in [false, true] {
            scenario(Variant { engine, swapped }).await;
        }
    }
}

/// Lets so much of the paused clock's time pass.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await; // sleeps because that is what moves a paused clock, and takes no time
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

/// What a relay did, as the peers see it.
pub(crate) struct Done {
    /// From near to far.
    pub(crate) forth: DirectionSummary,
    /// From far to near.
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

    /// Whether bulk must be spliced.
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

/// Over TCP and in real time, none of them near what it would end.
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
