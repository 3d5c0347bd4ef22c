//! A relay between two peers, under observation, and the same with its ends swapped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use spliceway::{
    DirectionSummary, Engine, Limits, PipePool, Relay, RelayError, RelayOptions, RelayStats, RelaySummary,
};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{tcp, tcp_small, try_send, turns};
use crate::support::pattern::Pattern;

type Outcome = Result<RelaySummary, RelayError>;

/// `near ⇄ relay ⇄ far`. Which of them is the relay's `a` is what [`both_ways`] varies.
pub(crate) struct Rig {
    pub(crate) near: TcpStream,
    pub(crate) far: TcpStream,
    pub(crate) relay: Running,
    pub(crate) pool: PipePool,
}

/// The relay's task.
pub(crate) struct Running {
    pub(crate) task: JoinHandle<Outcome>,
    stats: RelayStats,
    polls: Arc<AtomicU64>,
    swapped: bool,
}

/// What a relay moved, as the peers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// From near to far.
    pub(crate) forth: DirectionSummary,
    /// From far to near.
    pub(crate) back: DirectionSummary,
}

/// How to build a [`Rig`].
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) engine: Engine,
    pub(crate) small: bool,
    pub(crate) swapped: bool,
    pub(crate) limits: Limits,
    /// Those besides the engine and the pool.
    pub(crate) options: RelayOptions,
}

/// Runs a scenario with near as `a`, then with near as `b`.
pub(crate) async fn both_ways(mut scenario: impl AsyncFnMut(Setup)) {
    for swapped in [false, true] {
        super::guard(scenario(Setup::new(swapped))).await;
    }
}

/// Runs a scenario both ways for a relay that takes all flows as bulk and one that decides for
/// itself: every rule for a splice run must also hold in the receives between runs.
pub(crate) async fn both_ways_and_engines(mut scenario: impl AsyncFnMut(Setup)) {
    for engine in [Engine::Splice, Engine::Auto] {
        both_ways(async |setup| scenario(Setup { engine, ..setup }).await).await;
    }
}

/// Room for what these tests do, whatever the process' limits are.
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

    /// With small socket buffers.
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

    /// All but the relay's task.
    pub(crate) async fn lay_out(self, pool: PipePool) -> (Laid, Relay<TcpStream, TcpStream>) {
        let (near, far) = if self.small {
            (tcp_small().await, tcp_small().await)
        } else {
            (tcp().await, tcp().await)
        };
        self.lay_between(pool, near, far)
    }

    /// The same between sockets that are connected already: each peer's, and the relay's end of it.
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

/// A rig whose relay was not polled yet.
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
    /// The counts now.
    pub(crate) fn moved(&self) -> Moved {
        Moved::of(self.stats.snapshot(), self.swapped)
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Waits for the end of both directions.
    pub(crate) async fn end(self) -> Moved {
        Moved::of(self.task.await.unwrap().unwrap(), self.swapped)
    }

    /// Waits for the relay to break.
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

/// Scheduler turns without a byte moved after which a relay counts as stuck. Each turn polls the
/// driver, so this outlasts every event that is on its way; an acknowledgement the kernel delays is
/// the caller's to reckon with.
const STUCK_TURNS: usize = 500;

impl Rig {
    /// Both peers' streams are pushed until neither socket takes more and the relay moves nothing.
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

    /// Looks for a stretch of turns in which no byte moves, and asserts that the relay was not
    /// polled in it. `meanwhile` runs once per turn and says whether it moved anything itself.
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

/// Sends what the socket takes now.
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
