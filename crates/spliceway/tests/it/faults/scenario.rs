//! One relay on its own thread. Rules decide which system calls of that thread fail. The relay's
//! two peers meet no fault.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
// Despite its name, the type works for any stream socket, as far as these peers use it.
use std::os::unix::net::UnixStream as Peer;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt;
use spliceway::{
    Direction, DirectionSummary, Engine, PipePool, PoolStats, Relay, RelayError, RelayOptions, RelaySummary,
};
use spliceway_faults::{Faults, Rule, SignalStorm};
use tokio::runtime::Runtime;

use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{KIB, MIB, unpaced};

/// The number of small messages before bulk. Each is received before the next is sent, so the first
/// receives and sends are known.
pub(super) const MESSAGES: u64 = 4;
const MESSAGE: usize = 1000;
/// The size of a burst of bulk. The next burst is sent when the last one has arrived, so each burst
/// ends with a drained source. A burst is not a multiple of a pipe's size, so it also ends with a
/// short fill and a probe for more.
const BURST: usize = (2 << 20) + (20 << 10);
/// Bulk ends when the plan has [`enough`](Plan::enough). If it does not have enough after this many
/// bytes, the run fails.
const MOST: u64 = 256 * MIB;
/// The size of the answer that the far peer sends after the near peer has ended.
const ANSWER: u64 = 8 * KIB;
/// Longer than any step takes. A stall becomes an error, not a hang.
const PATIENCE: Duration = Duration::from_secs(30);

/// The faults of a run, and how the peers react to them.
pub(super) struct Plan {
    pub(super) rules: Vec<Rule>,
    /// The time between signals to the relay's thread, if it gets any.
    pub(super) storm: Option<Duration>,
    pub(super) family: Family,
    pub(super) engine: Engine,
    /// Whether the sending peer is the relay's `b`.
    pub(super) swapped: bool,
    pub(super) nudge: Nudge,
    /// The size of the sinks' send buffers, if it is smaller than usual.
    pub(super) send_buffer: Option<usize>,
    /// The least number of bytes of bulk.
    pub(super) bulk: u64,
    /// Whether enough was sent for the fault to occur, and for the events that must follow it.
    pub(super) enough: Box<dyn Fn(&Trouble) -> bool>,
}

/// The faults that the relay's thread has met so far.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) faults: Faults,
    pub(super) storm: Option<SignalStorm>,
}

impl Plan {
    /// Returns a plan without faults.
    pub(super) fn fair(swapped: bool) -> Self {
        Self {
            rules: Vec::new(),
            storm: None,
            family: Family::Tcp,
            engine: Engine::Auto,
            swapped,
            nudge: Nudge::None,
            send_buffer: None,
            bulk: 4 * MIB,
            enough: Box::new(|_| true),
        }
    }
}

/// The kind of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Tcp,
    Unix,
}

/// The cause of the next edge after a false `EAGAIN`. The relay must then clear its readiness, and
/// the kernel has no reason to report another edge. So a peer causes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nudge {
    None,
    /// The near peer continues to send as soon as the receive of this message has met the fault.
    Near {
        message: u64,
    },
    /// The far peer sends a byte back as soon as a send has met the fault.
    Far,
}

/// The result of a run.
pub(super) struct Run {
    pub(super) outcome: Result<RelaySummary, RelayError>,
    /// The direction with the bulk. `forth` has its counts, and `back` has the counts of the other
    /// direction.
    pub(super) direction: Direction,
    pub(super) forth: DirectionSummary,
    pub(super) back: DirectionSummary,
    pub(super) sent: u64,
    /// The number of bytes that the far peer received, all of them correct.
    pub(super) got: u64,
    /// The size of the far peer's answer. `answer_arrived` is whether the near peer received
    /// exactly this answer.
    pub(super) answered: u64,
    pub(super) answer_arrived: bool,
    pub(super) trouble: Trouble,
    pub(super) pool: PoolStats,
}

/// Runs one plan to its end. Checks that everything it opened is closed again.
pub(super) fn run(plan: &Plan, stream: u64) -> Run {
    // tokio's first runtime of a process opens descriptors for signals, if its signal feature is
    // on, and keeps them open.
    drop(runtime());
    let before = sockets_and_pipes();
    // The first thread that returns a pipe starts the reaper, which closes idle pipes. Here, that
    // is the relay's thread, so the reaper runs behind the filter of that thread, and should end
    // soon.
    let pool = PipePool::new(limits().with_idle_timeout(Duration::from_millis(200)));
    let ((near, near_end), (far, far_end)) = (pair(plan.family), pair(plan.family));
    if let Some(bytes) = plan.send_buffer {
        for end in [&near_end, &far_end] {
            sockopt::set_socket_send_buffer_size(end, bytes).unwrap();
        }
    }
    let (a, b) = if plan.swapped {
        (far_end, near_end)
    } else {
        (near_end, far_end)
    };
    let (sender, started) = channel();
    let relaying = start_relay(plan, [a, b], &pool, sender);
    let trouble = started.recv().unwrap();
    let progress = Arc::<Progress>::default();
    let nudged = u64::from(plan.nudge == Nudge::Far);
    let (sent, got, answer) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&far, stream, &progress));
        if plan.nudge == Nudge::Far {
            scope.spawn(|| {
                trouble.faults.await_injected(1);
                (&far).write_all(b"!").unwrap();
            });
        }
        let sent = send(&near, stream, plan, &trouble, &progress);
        let _ = near.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = (&near).read_to_end(&mut answer);
        (sent, receiving.join().unwrap(), answer)
    });
    let outcome = relaying.join().unwrap();
    let summary = outcome.as_ref().map_or_else(|error| error.summary, |summary| *summary);
    let (direction, forth, back) = if plan.swapped {
        (Direction::BToA, summary.b_to_a, summary.a_to_b)
    } else {
        (Direction::AToB, summary.a_to_b, summary.b_to_a)
    };
    let stats = pool.stats();
    drop((near, far, pool));
    assert_eq!(sockets_and_pipes(), before, "descriptors stay open");
    Run {
        outcome,
        direction,
        forth,
        back,
        sent,
        got,
        answered: ANSWER + nudged,
        answer_arrived: answer == [&b"!"[..nudged as usize], &Pattern::new(stream).take(ANSWER as usize)].concat(),
        trouble,
        pool: stats,
    }
}

impl Run {
    /// Checks that every byte arrived, in both directions and with both ends.
    pub(super) fn check_complete(&self, context: &str) {
        assert!(self.outcome.is_ok(), "{context}");
        assert_eq!(self.got, self.sent, "{context}");
        assert!(self.answer_arrived, "{context}");
        let counted = (self.forth.bytes, self.back.bytes);
        assert_eq!(counted, (self.sent, self.answered), "{context}");
        assert!(self.forth.eof && self.back.eof, "{context}");
        assert_eq!(self.pool.lent, 0, "{context}");
    }
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap()
}

/// Starts the relay on its own thread. The relay's calls fail once it has settled.
fn start_relay(
    plan: &Plan,
    ends: [OwnedFd; 2],
    pool: &PipePool,
    started: Sender<Trouble>,
) -> JoinHandle<Result<RelaySummary, RelayError>> {
    let (rules, storm) = (plan.rules.clone(), plan.storm);
    let (family, engine, pool) = (plan.family, plan.engine, pool.clone());
    thread::spawn(move || {
        let begin = || {
            let trouble = Trouble {
                faults: Faults::on_this_thread(rules).unwrap(),
                storm: storm.map(|period| SignalStorm::on_this_thread(period).unwrap()),
            };
            started.send(trouble).unwrap();
        };
        runtime().block_on(relay(family, engine, ends, &pool, begin))
    })
}

/// Runs the relay, on the thread whose calls fail.
async fn relay(
    family: Family,
    engine: Engine,
    ends: [OwnedFd; 2],
    pool: &PipePool,
    begin: impl FnOnce(),
) -> Result<RelaySummary, RelayError> {
    match family {
        Family::Tcp => {
            let [a, b] = ends.map(|end| tokio::net::TcpStream::from_std(end.into()).unwrap());
            settled(
                Relay::with_options(a, b, RelayOptions::new().engine(engine).pool(pool)),
                begin,
            )
            .await
        }
        Family::Unix => {
            let [a, b] = ends.map(|end| tokio::net::UnixStream::from_std(end.into()).unwrap());
            settled(
                Relay::with_options(a, b, RelayOptions::new().engine(engine).pool(pool)),
                begin,
            )
            .await
        }
    }
}

/// Lets the relay try both sources before `begin`, while they have no bytes. The counted calls are
/// then only those for the sent bytes, whichever direction the relay polls first.
async fn settled<R: Future + Unpin>(mut relay: R, begin: impl FnOnce()) -> R::Output {
    poll_fn(|cx| {
        assert!(Pin::new(&mut relay).poll(cx).is_pending(), "nothing was sent");
        Poll::Ready(())
    })
    .await;
    begin();
    relay.await
}

/// Sends messages and then bulk, as the near peer. Stops early if the relay ends. Returns how many
/// bytes it sent.
fn send(near: &Peer, stream: u64, plan: &Plan, trouble: &Trouble, progress: &Progress) -> u64 {
    let mut sent = 0;
    let mut send = |bytes: usize| {
        let outcome = write(near, stream, &mut sent, bytes);
        (outcome.is_ok(), sent)
    };
    for message in 1..=MESSAGES {
        let (open, sent) = send(MESSAGE);
        if plan.nudge == (Nudge::Near { message }) {
            trouble.faults.await_injected(1);
        } else if !open || !progress.await_got(sent) {
            return sent;
        }
    }
    loop {
        let (open, sent) = send(BURST.min(plan.bulk as usize));
        if !open || !progress.await_got(sent) || (sent >= plan.bulk && (plan.enough)(trouble)) {
            return sent;
        }
        assert!(sent < MOST, "no fault, or no splice after it: {trouble:?}");
    }
}

fn write(mut to: &Peer, stream: u64, sent: &mut u64, mut bytes: usize) -> io::Result<()> {
    while bytes > 0 {
        let chunk = following(stream, *sent);
        let written = to.write(&chunk[..bytes.min(chunk.len())])?;
        *sent += written as u64;
        bytes -= written;
    }
    Ok(())
}

/// Checks every byte up to the end of the stream, as the far peer, and then answers. Returns how
/// many bytes there were. The stream may end in any way.
fn receive(mut far: &Peer, stream: u64, progress: &Progress) -> u64 {
    let mut buf = vec![0; 512 << 10];
    let mut got = 0;
    while let Ok(count @ 1..) = far.read(&mut buf) {
        let mut rest = &buf[..count];
        while !rest.is_empty() {
            let expected = following(stream, got);
            let length = rest.len().min(expected.len());
            assert!(
                rest[..length] == expected[..length],
                "stream {stream}: a wrong byte after {got}"
            );
            got += length as u64;
            rest = &rest[length..];
        }
        progress.set(got, false);
    }
    progress.set(got, true);
    let _ = far.write_all(&Pattern::new(stream).take(ANSWER as usize));
    let _ = far.shutdown(Shutdown::Write);
    got
}

/// Returns the bytes of a stream from `at` on, as far as they are contiguous. All streams share one
/// block, and start at different positions in it. The block's length is a prime, so no buffer size
/// divides it.
fn following(stream: u64, at: u64) -> &'static [u8] {
    const BLOCK: usize = (1 << 20) - 3;
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let block = BYTES.get_or_init(|| Pattern::new(0).take(BLOCK));
    &block[((stream * 7919 + at) % BLOCK as u64) as usize..]
}

/// The bytes that the far peer has received so far.
#[derive(Default)]
struct Progress {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Progress {
    fn set(&self, got: u64, ended: bool) {
        *self.state.lock().unwrap() = (got, ended);
        self.changed.notify_all();
    }

    /// Waits until the far peer has received this many bytes, or its stream has ended. Returns
    /// whether the stream is still open.
    fn await_got(&self, count: u64) -> bool {
        let state = self.state.lock().unwrap();
        let missing = |(got, ended): &mut (u64, bool)| *got < count && !*ended;
        let (state, waited) = self.changed.wait_timeout_while(state, PATIENCE, missing).unwrap();
        assert!(
            !waited.timed_out(),
            "stuck: {count} bytes were sent, and {} have arrived",
            state.0
        );
        !state.1
    }
}

/// Returns a peer that never waits longer than [`PATIENCE`], and the relay's end of its connection.
fn pair(family: Family) -> (Peer, OwnedFd) {
    let (peer, end): (Peer, OwnedFd) = match family {
        Family::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let end = listener.accept().unwrap().0;
            for stream in [&peer, &end] {
                stream.set_nodelay(true).unwrap();
                unpaced(stream);
            }
            (OwnedFd::from(peer).into(), end.into())
        }
        Family::Unix => {
            let (peer, end) = Peer::pair().unwrap();
            (peer, end.into())
        }
    };
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_write_timeout(Some(PATIENCE)).unwrap();
    rustix::io::ioctl_fionbio(&end, true).unwrap();
    (peer, end)
}

/// Returns the number of descriptors of this process that a relay could have left open. (The
/// supervisor's own descriptor stays open until its thread has ended.)
fn sockets_and_pipes() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let relays = |target: &std::path::PathBuf| {
        let target = target.to_string_lossy();
        target.starts_with("socket:") || target.starts_with("pipe:")
    };
    targets.filter(relays).count()
}
