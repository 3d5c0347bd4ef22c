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

/// Runs the scenario with the tokio layer's relays.
///
/// # Panics
/// Panics if a property does not hold.
pub fn over_tokio(plan: &Plan) {
    let stage = Stage::enter();
    world::run(&stage, plan, |plan, pool, ends| {
        let _inside = stage.runtime.enter();
        let running = plan.relays.iter().zip(ends);
        OverTokio {
            runtime: &stage.runtime,
            running: running.map(|(relay, ends)| Running::new(relay, pool, ends)).collect(),
        }
    });
}

struct OverTokio<'runtime> {
    runtime: &'runtime Runtime,
    running: Vec<Running>,
}

/// One relay, which is polled like a task.
struct Running {
    relay: Option<Pin<Box<dyn Future<Output = Outcome>>>>,
    stats: RelayStats,
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
    fn new(plan: &RelayPlan, pool: &PipePool, [near, far]: [OwnedFd; 2]) -> Self {
        let (relay, stats) = match (plan.near.family, plan.far.family) {
            (Family::Tcp, Family::Tcp) => boxed(plan, pool, tcp(near), tcp(far)),
            (Family::Tcp, Family::Unix) => boxed(plan, pool, tcp(near), unix(far)),
            (Family::Unix, Family::Tcp) => boxed(plan, pool, unix(near), tcp(far)),
            (Family::Unix, Family::Unix) => boxed(plan, pool, unix(near), unix(far)),
        };
        Self {
            relay: Some(relay),
            stats,
            // The relay starts like a task that was just spawned.
            woken: Arc::new(Woken(AtomicBool::new(true))),
            driving: plan.driving,
            standing: Standing::default(),
        }
    }

    fn turn(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let woken = self.woken.0.swap(false, Ordering::Relaxed);
        if !woken && !self.driving.spurious {
            return;
        }
        self.standing.polls += u64::from(woken);
        let waker = Waker::from(Arc::clone(&self.woken));
        let polled = relay.as_mut().poll(&mut Context::from_waker(&waker));
        let summary = self.stats.snapshot();
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
        }
    }
}

fn boxed<A, B>(plan: &RelayPlan, pool: &PipePool, a: A, b: B) -> (Pin<Box<dyn Future<Output = Outcome>>>, RelayStats)
where
    A: AsyncRead + AsyncWrite + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let relay = Relay::with_options(
        a,
        b,
        RelayOptions::new()
            .engine(plan.engine)
            .pipe_size(plan.pipe_size)
            .pool(pool),
    );
    let stats = relay.stats();
    (Box::pin(relay), stats)
}

fn tcp(socket: OwnedFd) -> TcpStream {
    TcpStream::from_std(StdTcpStream::from(socket)).expect("registered")
}

fn unix(socket: OwnedFd) -> UnixStream {
    UnixStream::from_std(StdUnixStream::from(socket)).expect("registered")
}
