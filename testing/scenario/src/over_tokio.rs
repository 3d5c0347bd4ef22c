//! The relays of a scenario as `spliceway::Relay` on a tokio runtime with one thread.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use spliceway::{EndReason, Relay, RelayError, RelayOptions, RelayStats, RelaySummary};
use spliceway_core::PipePool;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;

use crate::plan::{Driving, Family, Plan, RelayPlan};
use crate::sockets::Stage;
use crate::world::{self, End, Relays, Standing};

type Outcome = Result<RelaySummary, RelayError>;

/// The most suspensions of a relay in a row during which it moves nothing. A resumed relay is
/// polled, so there would be no end to them.
const SUSPENSIONS: u32 = 4;

/// Runs the scenario with the tokio layer's relays.
///
/// # Panics
/// Panics if a property does not hold.
pub fn over_tokio(plan: &Plan) {
    run(plan, false);
}

/// Does the same with relays that are suspended after every poll. Each of them continues with
/// descriptors that are new to the runtime, as in another process.
///
/// # Panics
/// Panics if a property does not hold.
pub fn over_tokio_suspended(plan: &Plan) {
    run(plan, true);
}

fn run(plan: &Plan, suspends: bool) {
    let stage = Stage::enter();
    world::run(&stage, plan, |plan, pool, ends| {
        let _inside = stage.runtime.enter();
        let running = plan.relays.iter().zip(ends);
        OverTokio {
            runtime: &stage.runtime,
            running: running
                .map(|(relay, ends)| Running::new(relay, pool, ends, suspends))
                .collect(),
        }
    });
}

struct OverTokio<'runtime> {
    runtime: &'runtime Runtime,
    running: Vec<Running>,
}

/// One relay, which is polled like a task.
struct Running {
    relay: Option<Box<dyn Suspends>>,
    stats: RelayStats,
    /// The suspensions that may follow before the relay moves bytes.
    suspensions: u32,
    suspends: bool,
    resumed: bool,
    woken: Arc<Woken>,
    driving: Driving,
    standing: Standing,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Relays for OverTokio<'_> {
    fn turn(&mut self) {
        let running = &mut self.running;
        self.runtime.block_on(async {
            // Returns after the driver has looked for events.
            tokio::task::yield_now().await;
            for relay in running {
                relay.turn();
            }
        });
    }

    fn standing(&self, number: usize) -> &Standing {
        &self.running[number].standing
    }
}

impl Running {
    fn new(plan: &RelayPlan, pool: &PipePool, [near, far]: [OwnedFd; 2], suspends: bool) -> Self {
        let relay = match (plan.near.family, plan.far.family) {
            (Family::Tcp, Family::Tcp) => boxed(plan, pool, tcp(near), tcp(far)),
            (Family::Tcp, Family::Unix) => boxed(plan, pool, tcp(near), unix(far)),
            (Family::Unix, Family::Tcp) => boxed(plan, pool, unix(near), tcp(far)),
            (Family::Unix, Family::Unix) => boxed(plan, pool, unix(near), unix(far)),
        };
        Self {
            stats: relay.stats(),
            relay: Some(relay),
            suspensions: SUSPENSIONS,
            suspends,
            resumed: false,
            // The relay starts like a task that was just spawned.
            woken: Arc::new(Woken(AtomicBool::new(true))),
            driving: plan.driving,
            standing: Standing::default(),
        }
    }

    fn turn(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let woken = self.woken.0.swap(false, Ordering::Relaxed);
        if !woken && !self.resumed && !self.driving.spurious {
            return;
        }
        self.standing.polls += u64::from(woken);
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = relay.poll(&mut Context::from_waker(&waker));
        self.resumed = false;
        let summary = self.stats.snapshot();
        let before = self.standing.moved;
        self.standing.moved = [summary.a_to_b.bytes, summary.b_to_a.bytes];
        self.standing.eof = [summary.a_to_b.eof, summary.b_to_a.eof];
        self.standing.end = match polled {
            Poll::Ready(Ok(told)) => {
                let counts = (told.a_to_b, told.b_to_a);
                assert_eq!(counts, (summary.a_to_b, summary.b_to_a), "the summary is the counts");
                assert_eq!((told.end, counts.0.lost, counts.1.lost), (EndReason::Ended, 0, 0));
                Some(End::Well)
            }
            Poll::Ready(Err(error)) => {
                let counts = (error.summary.a_to_b, error.summary.b_to_a);
                assert_eq!(counts, (summary.a_to_b, summary.b_to_a), "the summary is the counts");
                assert_eq!(error.summary.end, EndReason::Broken);
                Some(End::Broken(io::Error::from(error)))
            }
            Poll::Pending => self.driving.is_cancelled().then_some(End::Dropped),
        };
        if self.standing.end.is_some() {
            self.relay = None;
        } else if self.suspends {
            self.suspend(before != self.standing.moved);
        }
    }

    fn suspend(&mut self, has_moved: bool) {
        if has_moved {
            self.suspensions = SUSPENSIONS;
        }
        if self.suspensions == 0 {
            return;
        }
        self.suspensions -= 1;
        self.resumed = true;
        let relay = self.relay.as_mut().expect("it has not ended");
        let before = self.stats.snapshot();
        relay.suspend();
        assert_eq!(self.stats.snapshot().end, EndReason::Suspended);
        self.stats = relay.stats();
        assert_eq!(self.stats.snapshot(), before, "the counts continue");
    }
}

/// A relay that can be suspended, between streams of any types.
trait Suspends {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome>;
    fn stats(&self) -> RelayStats;
    /// Suspends the relay, and resumes it with the same sockets.
    fn suspend(&mut self);
}

struct Suspending<A, B> {
    /// `None` only within `suspend`.
    relay: Option<Relay<A, B>>,
    options: RelayOptions,
}

impl<A: Moves, B: Moves> Suspends for Suspending<A, B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(self.relay.as_mut().expect("present")).poll(cx)
    }

    fn stats(&self) -> RelayStats {
        self.relay.as_ref().expect("present").stats()
    }

    fn suspend(&mut self) {
        let relay = self.relay.take().expect("present");
        assert!(relay.can_suspend());
        let suspended = relay.suspend().expect("suspended");
        let (a, b) = (suspended.a.moved(), suspended.b.moved());
        self.relay = Some(Relay::resume(a, b, self.options.clone(), suspended.state));
    }
}

/// A stream that can leave the runtime and enter it again.
trait Moves: AsyncRead + AsyncWrite + Unpin + 'static {
    fn moved(self) -> Self;
}

impl Moves for TcpStream {
    fn moved(self) -> Self {
        tcp(self.into_std().expect("deregistered").into())
    }
}

impl Moves for UnixStream {
    fn moved(self) -> Self {
        unix(self.into_std().expect("deregistered").into())
    }
}

fn boxed<A: Moves, B: Moves>(plan: &RelayPlan, pool: &PipePool, a: A, b: B) -> Box<dyn Suspends> {
    let options = RelayOptions::new()
        .engine(plan.engine)
        .pipe_size(plan.pipe_size)
        .pool(pool);
    Box::new(Suspending {
        relay: Some(Relay::with_options(a, b, options.clone())),
        options,
    })
}

fn tcp(socket: OwnedFd) -> TcpStream {
    TcpStream::from_std(StdTcpStream::from(socket)).expect("registered")
}

fn unix(socket: OwnedFd) -> UnixStream {
    UnixStream::from_std(StdUnixStream::from(socket)).expect("registered")
}
