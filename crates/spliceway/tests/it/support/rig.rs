//! An observed relay between two peers, with its ends in either order.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use spliceway::{
    DirectionSummary, Engine, Limits, PipePool, Relay, RelayError, RelayOptions, RelayStats, RelaySummary, RelayWaits,
    Waits,
};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{tcp, tcp_small, try_send, turns};
use crate::support::pattern::Pattern;

type Outcome = Result<RelaySummary, RelayError>;

/// `near ⇄ relay ⇄ far`. [`both_ways`] varies which of the two peers is on the relay's side `a`.
pub(crate) struct Rig {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
    pub(crate) relay: Running,
    pub(crate) pool: PipePool,
}

/// The relay's task.
pub(crate) struct Running {
    pub(crate) task: JoinHandle<Outcome>,
    pub(crate) stats: RelayStats,
    polls: Arc<AtomicU64>,
    pub(crate) swapped: bool,
}

/// The counts of a relay, as the peers see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// From the near peer to the far peer.
    pub(crate) forth: DirectionSummary,
    /// From the far peer to the near peer.
    pub(crate) back: DirectionSummary,
}

/// How to build a [`Rig`].
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) engine: Engine,
    pub(crate) small: bool,
    pub(crate) swapped: bool,
    pub(crate) limits: Limits,
    /// The options other than the engine and the pool.
    pub(crate) options: RelayOptions,
}

/// Runs a scenario with the near peer as `a`, then with the near peer as `b`.
pub(crate) async fn both_ways(mut scenario: impl AsyncFnMut(Setup)) {
    for swapped in [false, true] {
        super::guard(scenario(Setup::new(swapped))).await;
    }
}

/// Runs a scenario both ways, with a relay that treats every flow as bulk and with one that decides
/// for itself. Every rule for splices must also hold for the receives between them.
pub(crate) async fn both_ways_and_engines(mut scenario: impl AsyncFnMut(Setup)) {
    for engine in [Engine::Splice, Engine::Auto] {
        both_ways(async |setup| scenario(Setup { engine, ..setup }).await).await;
    }
}

/// Limits with enough room for these tests, whatever the limits of the process are.
pub(crate) fn limits() -> Limits {
    Limits::of_this_process()
        .with_max_pipes(1 << 10)
        .with_max_pages(1 << 16)
}

impl Setup {
    pub(crate) fn new(swapped: bool) -> Self {
        Self {
            engine: Engine::Auto,
            small: false,
            swapped,
            limits: limits(),
            options: RelayOptions::new(),
        }
    }

    pub(crate) fn options(self, options: RelayOptions) -> Self {
        Self { options, ..self }
    }

    /// Uses small socket buffers.
    pub(crate) fn small(self) -> Self {
        Self { small: true, ..self }
    }

    pub(crate) fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    pub(crate) async fn start(self) -> Rig {
        let pool = PipePool::new(self.limits.clone());
        self.start_in(pool).await
    }

    pub(crate) async fn start_in(self, pool: PipePool) -> Rig {
        let (rig, relay) = self.lay_out(pool).await;
        rig.run(relay)
    }

    /// Builds everything except the relay's task.
    pub(crate) async fn lay_out(self, pool: PipePool) -> (Laid, Relay<TcpStream, TcpStream>) {
        let (near, far) = if self.small {
            (tcp_small().await, tcp_small().await)
        } else {
            (tcp().await, tcp().await)
        };
        self.lay_between(pool, near, far)
    }

    /// Does the same with connected sockets. For each connection, it needs the peer and the relay's
    /// end.
    pub(crate) fn lay_between(
        self,
        pool: PipePool,
        (near, near_end): (TcpStream, TcpStream),
        (far, far_end): (TcpStream, TcpStream),
    ) -> (Laid, Relay<TcpStream, TcpStream>) {
        let (a, b) = if self.swapped {
            (far_end, near_end)
        } else {
            (near_end, far_end)
        };
        let relay = Relay::with_options(a, b, self.options.engine(self.engine).pool(&pool));
        let swapped = self.swapped;
        let laid = Laid {
            near,
            far,
            pool,
            swapped,
        };
        (laid, relay)
    }
}

/// A rig whose relay has not been polled yet.
pub(crate) struct Laid {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
    pub(crate) pool: PipePool,
    swapped: bool,
}

impl Laid {
    pub(crate) fn run(self, relay: Relay<TcpStream, TcpStream>) -> Rig {
        let (stats, polls) = (relay.stats(), Arc::<AtomicU64>::default());
        let task = tokio::spawn(Counted {
            relay,
            polls: Arc::clone(&polls),
        });
        Rig {
            near: self.near,
            far: self.far,
            pool: self.pool,
            relay: Running {
                task,
                stats,
                polls,
                swapped: self.swapped,
            },
        }
    }
}

impl Running {
    /// Returns the current counts.
    pub(crate) fn moved(&self) -> Moved {
        Moved::of(self.stats.snapshot(), self.swapped)
    }

    /// Returns the current waits, first from the near peer to the far peer.
    pub(crate) fn waits(&self) -> (Waits, Waits) {
        let RelayWaits { a_to_b, b_to_a, .. } = self.stats.waits();
        if self.swapped {
            (b_to_a, a_to_b)
        } else {
            (a_to_b, b_to_a)
        }
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Waits for the end of both directions.
    pub(crate) async fn end(self) -> Moved {
        Moved::of(self.task.await.unwrap().unwrap(), self.swapped)
    }

    /// Waits for the relay to fail.
    pub(crate) async fn broken(self) -> (Moved, std::io::Error) {
        let error = self.task.await.unwrap().expect_err("the relay should break");
        (Moved::of(error.summary, self.swapped), error.source)
    }
}

impl Moved {
    fn of(summary: RelaySummary, swapped: bool) -> Self {
        let RelaySummary { a_to_b, b_to_a, .. } = summary;
        let (forth, back) = if swapped { (b_to_a, a_to_b) } else { (a_to_b, b_to_a) };
        Self { forth, back }
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.forth.bytes, self.back.bytes)
    }
}

/// The number of scheduler passes without a moved byte after which a relay counts as stuck. Each
/// pass polls the driver, so this outlasts every event that is on its way. It does not outlast an
/// acknowledgement that the kernel delays. Callers must allow for that.
const STUCK_TURNS: usize = 500;

impl Rig {
    /// Sends both peers' streams until neither socket accepts more and the relay moves nothing.
    pub(crate) async fn push_until_stuck(&self, forth: &mut Pattern, back: Option<&mut Pattern>) {
        let mut senders = vec![(&self.near, forth)];
        senders.extend(back.map(|back| (&self.far, back)));
        let mut quiet_turns = 0;
        while quiet_turns < STUCK_TURNS {
            let before = self.relay.moved().bytes();
            let mut sent = 0;
            for (socket, pattern) in &mut senders {
                sent += push(socket, pattern);
            }
            turns(1).await;
            let still = sent == 0 && self.relay.moved().bytes() == before;
            quiet_turns = if still { quiet_turns + 1 } else { 0 };
        }
    }

    /// Looks for a series of passes in which no byte moves, and asserts that the relay was not
    /// polled in it. `meanwhile` runs once in each pass, and returns whether it moved a byte
    /// itself.
    pub(crate) async fn assert_sleeps(&self, mut meanwhile: impl FnMut() -> bool) {
        let mut seen = Vec::new();
        for _ in 0..20 {
            let (bytes, polls, mut disturbed) = (self.relay.moved().bytes(), self.relay.polls(), false);
            for _ in 0..STUCK_TURNS {
                disturbed |= meanwhile();
                turns(1).await;
            }
            let polled = self.relay.polls() - polls;
            if !disturbed && polled == 0 && self.relay.moved().bytes() == bytes {
                return;
            }
            seen.push(polled);
        }
        panic!("the relay was polled with nothing to move, times per {STUCK_TURNS} turns: {seen:?}");
    }
}

/// Sends the bytes that the socket accepts now. Returns their number.
pub(crate) fn push(socket: &TcpStream, pattern: &mut Pattern) -> usize {
    const BYTES: usize = 16 << 10;
    let chunk = pattern.take(BYTES);
    let sent = try_send(socket, &chunk);
    pattern.unsend(BYTES - sent);
    sent
}

/// A relay that counts how often it is polled.
struct Counted {
    relay: Relay<TcpStream, TcpStream>,
    polls: Arc<AtomicU64>,
}

impl Future for Counted {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.relay).poll(cx)
    }
}
