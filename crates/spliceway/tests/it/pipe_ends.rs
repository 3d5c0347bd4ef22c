//! Pipes as the streams of a relay, such as the pipes of a child process. One splice moves the
//! bytes, and the relay needs no pipe of its own. From pipe to pipe, it copies: see
//! `a_packet_from_a_pipe_arrives_as_plain_bytes`.

use std::future::poll_fn;
use std::io::{ErrorKind, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use spliceway::{Engine, Operation, PipePool, RateLimit, Reason, Relay, RelayError, RelayOptions, RelaySummary};
use spliceway_faults::{Call, Fault, Faults, Rule, When};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, Join, join};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::support::child::{block_on, in_child};
use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{Duplex, KIB, MIB, guard, tcp};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];

/// More bytes than the pipes and sockets on the way hold.
const MANY: u64 = 8 * MIB;

type Pipes = Join<pipe::Receiver, pipe::Sender>;
type Outcome = Result<RelaySummary, RelayError>;

/// Returns one pipe for each direction: the peer's ends, and the relay's ends.
fn pipes() -> (Pipes, Pipes) {
    let ((to_relay, from_peer), (to_peer, from_relay)) = (pipe::pipe().unwrap(), pipe::pipe().unwrap());
    (join(from_relay, to_relay), join(from_peer, to_peer))
}

/// A near peer with pipes, a far peer with another stream, and the relay between them. The relay's
/// summary has the direction from near to far first.
struct Rig<D> {
    near: Pipes,
    far: D,
    relay: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    pool: PipePool,
    engine: Engine,
}

impl<D: Duplex + 'static> Rig<D> {
    fn new((far, far_end): (D, D), swapped: bool, engine: Engine) -> Self {
        let ((near, near_end), pool) = (pipes(), PipePool::new(limits()));
        let options = RelayOptions::new().engine(engine).pool(&pool);
        let relay = async move {
            if !swapped {
                return Relay::with_options(near_end, far_end, options).await;
            }
            let mut outcome = Relay::with_options(far_end, near_end, options).await;
            let summary = match &mut outcome {
                Ok(summary) => summary,
                Err(error) => &mut error.summary,
            };
            std::mem::swap(&mut summary.a_to_b, &mut summary.b_to_a);
            outcome
        };
        Self {
            near,
            far,
            relay: Box::pin(relay),
            pool,
            engine,
        }
    }
}

/// Runs a scenario for every engine, with the pipes as `a` and as `b`. The other stream is TCP, a
/// Unix socket, or pipes.
macro_rules! every_way {
    ($scenario:ident) => {
        for engine in ENGINES {
            for swapped in [false, true] {
                eprintln!("{engine:?}, swapped: {swapped}");
                guard($scenario(Rig::new(tcp().await, swapped, engine))).await;
                guard($scenario(Rig::new(UnixStream::pair().unwrap(), swapped, engine))).await;
                if engine != Engine::Splice {
                    guard($scenario(Rig::new(pipes(), swapped, engine))).await;
                }
            }
        }
    };
}

/// Sends and receives on a peer's stream, and returns the stream. Dropping it ends both directions.
async fn talk<D: Duplex>(mut peer: D, say: u64, hear: u64) -> D {
    let (mut reader, mut writer) = tokio::io::split(&mut peer);
    let (mut said, mut heard) = (Pattern::new(say), Pattern::new(hear));
    tokio::join!(said.send(&mut writer, MANY), heard.expect(&mut reader, MANY));
    peer
}

#[tokio::test]
async fn simultaneous_bulk_is_exact_and_spliced_with_no_pipe_between() {
    async fn scenario<D: Duplex + 'static>(rig: Rig<D>) {
        let peers = async {
            let (near, far) = tokio::join!(talk(rig.near, 1, 2), talk(rig.far, 2, 1));
            drop((near, far));
        };
        let (outcome, ()) = tokio::join!(rig.relay, peers);
        let summary = outcome.unwrap();
        for direction in [summary.a_to_b, summary.b_to_a] {
            assert_eq!((direction.bytes, direction.eof), (MANY, true));
            match direction.fallback {
                // This direction goes from pipe to pipe.
                Some(Reason::NotSockets) => assert_eq!(direction.spliced, 0),
                Some(Reason::Disabled) => assert_eq!((direction.spliced, rig.engine), (0, Engine::Copy)),
                _ => assert!(direction.spliced > MANY / 100 * 95, "{direction:?}"),
            }
        }
        assert_eq!(rig.pool.stats().created, 0);
    }
    every_way!(scenario);
}

#[tokio::test]
async fn messages_and_answers_of_any_size_wait_for_no_other_byte() {
    async fn scenario<D: Duplex + 'static>(mut rig: Rig<D>) {
        let sizes = [1, 100, 4095, 4096, 4097, 20_000, 65_536, 65_537, 200_000, 3];
        let (mut there, mut back) = (Pattern::new(3), Pattern::new(4));
        let (mut asked, mut answered) = (there, back);
        let peers = async {
            for size in sizes {
                tokio::join!(there.send(&mut rig.near, size), asked.expect(&mut rig.far, size));
                tokio::join!(back.send(&mut rig.far, size), answered.expect(&mut rig.near, size));
            }
        };
        tokio::select! {
            outcome = rig.relay => panic!("{outcome:?}"),
            () = peers => {}
        }
    }
    every_way!(scenario);
}

#[tokio::test]
async fn the_end_of_a_pipe_is_passed_on_and_the_other_direction_continues() {
    async fn scenario<D: Duplex + 'static>(mut rig: Rig<D>) {
        let (mut from_relay, mut to_relay) = rig.near.into_inner();
        let peers = async {
            Pattern::new(5).send(&mut to_relay, 100_000).await;
            drop(to_relay);
            Pattern::new(5).expect(&mut rig.far, 100_000).await;
            // A stream without a shutdown does not show its end to its peer until the relay ends:
            // see below.
            let (mut said, mut answer) = (Pattern::new(6), Pattern::new(6));
            tokio::join!(said.send(&mut rig.far, MIB), answer.expect(&mut from_relay, MIB));
            drop(rig.far);
            from_relay
        };
        let (outcome, mut from_relay) = tokio::join!(rig.relay, peers);
        let summary = outcome.unwrap();
        assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (100_000, MIB));
        assert!(summary.a_to_b.eof && summary.b_to_a.eof);
        assert_eq!(from_relay.read(&mut [0]).await.unwrap(), 0);
    }
    every_way!(scenario);
}

#[tokio::test]
async fn a_socket_sees_the_end_of_a_pipe_immediately() {
    for swapped in [false, true] {
        let Rig {
            near, mut far, relay, ..
        } = Rig::new(tcp().await, swapped, Engine::Auto);
        let peers = async {
            let (from_relay, to_relay) = near.into_inner();
            drop(to_relay);
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
            drop((far, from_relay));
        };
        guard(async { tokio::join!(relay, peers) }).await.0.unwrap();
    }
}

#[tokio::test]
async fn a_pipe_whose_reader_is_closed_breaks_the_relay_at_a_write() {
    async fn scenario<D: Duplex + 'static>(mut rig: Rig<D>) {
        let (from_relay, _to_relay) = rig.near.into_inner();
        drop(from_relay);
        // Writes repeatedly, because a process that another test starts has a copy of the reading
        // end until it executes another program.
        let say = async {
            while rig.far.write_all(b"for nobody").await.is_ok() {
                tokio::task::yield_now().await;
            }
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            outcome = rig.relay => outcome.unwrap_err(),
            () = say => unreachable!("it says so for ever"),
        };
        assert_eq!(error.operation, Operation::Write);
        assert_eq!(error.source.kind(), ErrorKind::BrokenPipe);
    }
    every_way!(scenario);
}

/// The sink is a full pipe, and the source always has more. The relay has nothing to do until the
/// peer reads.
#[tokio::test]
async fn a_relay_whose_sink_is_full_is_not_polled_and_loses_no_readiness() {
    async fn scenario<D: Duplex + 'static>(mut rig: Rig<D>) {
        let polls = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&polls);
        let relay = tokio::spawn(poll_fn(move |cx| {
            count.fetch_add(1, Relaxed);
            rig.relay.as_mut().poll(cx)
        }));
        let mut said = Pattern::new(8);
        let (mut from_relay, _to_relay) = rig.near.into_inner();
        let (_, mut far) = tokio::io::split(&mut rig.far);
        let peers = async {
            // The number of passes in a row in which no byte could be sent and the relay was not
            // polled.
            let (mut quiet, mut before) = (0, 0);
            while quiet < 200 {
                let chunk = said.take(8 << 10);
                let mut sent = 0;
                {
                    let write = pin!(far.write(&chunk));
                    if let Poll::Ready(written) = poll_once(write).await {
                        sent = written.unwrap();
                    }
                }
                said.unsend(chunk.len() - sent);
                tokio::task::yield_now().await;
                quiet = if sent == 0 && polls.load(Relaxed) == before {
                    quiet + 1
                } else {
                    0
                };
                before = polls.load(Relaxed);
            }
            let stuck = said.at();
            assert!(stuck > 64 * KIB);
            Pattern::new(8).expect(&mut from_relay, stuck).await;
        };
        tokio::select! {
            outcome = relay => panic!("{outcome:?}"),
            () = peers => {}
        }
    }
    every_way!(scenario);
}

/// Polls a future once, and returns the result.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[tokio::test]
async fn a_limit_is_exact_from_a_pipe_and_into_a_pipe() {
    for limit in [0, 1, 64 * KIB - 1, 64 * KIB + 1, 300 * KIB] {
        for engine in ENGINES {
            guard(async {
                let ((near, mut near_end), (mut far, mut far_end)) = (pipes(), tcp().await);
                let (mut from_relay, mut to_relay) = near.into_inner();
                let total = 400 * KIB;
                let relay = async {
                    let relay = Relay::with_options(
                        &mut near_end,
                        &mut far_end,
                        RelayOptions::new()
                            .engine(engine)
                            .a_to_b_limit(limit)
                            .b_to_a_limit(limit),
                    );
                    let summary = relay.await.unwrap();
                    assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (limit, limit));
                    let (mut rest_near, mut rest_far) = (Pattern::new(1), Pattern::new(2));
                    rest_near.take(limit as usize);
                    rest_far.take(limit as usize);
                    rest_near.expect(&mut near_end, total - limit).await;
                    rest_far.expect(&mut far_end, total - limit).await;
                };
                let (mut far_read, mut far_write) = far.split();
                let (mut heard_far, mut heard_near) = (Pattern::new(1), Pattern::new(2));
                let (mut said_near, mut said_far) = (Pattern::new(1), Pattern::new(2));
                tokio::join!(
                    relay,
                    said_near.send(&mut to_relay, total),
                    said_far.send(&mut far_write, total),
                    heard_far.expect(&mut far_read, limit),
                    heard_near.expect(&mut from_relay, limit),
                );
            })
            .await;
        }
    }
}

/// The causes are an end that cannot be spliced, a kernel without memory, and a sandbox that
/// forbids splice. The sandbox affects the whole process.
#[test]
fn streams_that_cannot_be_spliced_are_copied_with_a_reason() {
    const NAME: &str = "pipe_ends::streams_that_cannot_be_spliced_are_copied_with_a_reason";
    let reasons = [
        (Errno::INVAL, Reason::InvalidArgument),
        (Errno::NOMEM, Reason::NoMemory),
        (Errno::PERM, Reason::NotPermitted),
    ];
    in_child(NAME, None, || {
        for (errno, reason) in reasons {
            // A thread keeps its faults until it ends.
            let relay = thread::spawn(move || {
                let rules = [Call::SpliceIn, Call::SpliceOut]
                    .map(|call| Rule::new(call, When::Always, Fault::Errno(errno.raw_os_error())));
                let faults = Faults::on_this_thread(rules.into()).unwrap();
                block_on(async {
                    guard(copied_because(reason)).await;
                    let mut rig = Rig::new(tcp().await, false, Engine::Splice);
                    rig.near.write_all(b"spliced or not at all").await.unwrap();
                    let error = guard(rig.relay).await.unwrap_err().source;
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    drop((rig.near, rig.far));
                });
                assert!(faults.injected() > 0);
            });
            relay.join().unwrap();
        }
    });
}

/// Splicing from a pipe needs another system call. If a sandbox forbids that call, the relay still
/// splices where it does not need it.
#[test]
fn a_pipe_that_cannot_be_queried_is_copied_and_the_rest_is_spliced() {
    let relay = || {
        let rule = Rule::new(
            Call::BytesToRead,
            When::Always,
            Fault::Errno(Errno::PERM.raw_os_error()),
        );
        let faults = Faults::on_this_thread(vec![rule]).unwrap();
        block_on(async {
            let rig = Rig::new(tcp().await, false, Engine::Auto);
            let peers = async {
                let (near, far) = tokio::join!(talk(rig.near, 1, 2), talk(rig.far, 2, 1));
                drop((near, far));
            };
            let (outcome, ()) = guard(async { tokio::join!(rig.relay, peers) }).await;
            let summary = outcome.unwrap();
            assert_eq!(summary.a_to_b.spliced, 0, "from the pipe");
            assert_eq!(summary.a_to_b.fallback, Some(Reason::NotPermitted));
            assert!(summary.b_to_a.spliced > MANY / 2, "into the pipe: {summary:?}");
        });
        assert!(faults.injected() > 0);
    };
    thread::spawn(relay).join().unwrap();
}

async fn copied_because(reason: Reason) {
    let rig = Rig::new(tcp().await, false, Engine::Auto);
    let peers = async {
        let (near, far) = tokio::join!(talk(rig.near, 1, 2), talk(rig.far, 2, 1));
        drop((near, far));
    };
    let (outcome, ()) = tokio::join!(rig.relay, peers);
    let summary = outcome.unwrap();
    for direction in [summary.a_to_b, summary.b_to_a] {
        assert_eq!((direction.copied, direction.spliced), (MANY, 0), "{direction:?}");
        assert_eq!(direction.fallback, Some(reason));
    }
}

#[test]
fn a_pipe_without_a_reader_raises_no_sigpipe() {
    const NAME: &str = "pipe_ends::a_pipe_without_a_reader_raises_no_sigpipe";
    in_child(NAME, None, || {
        spliceway_faults::die_of_broken_pipes().unwrap();
        for engine in ENGINES {
            block_on(async {
                let Rig {
                    near, mut far, relay, ..
                } = Rig::new(tcp().await, false, engine);
                let (from_relay, _to_relay) = near.into_inner();
                drop(from_relay);
                far.write_all(b"for nobody").await.unwrap();
                assert_eq!(guard(relay).await.unwrap_err().source.kind(), ErrorKind::BrokenPipe);
            });
        }
        assert!(!spliceway_faults::ignores_broken_pipes().unwrap());
    });
}

#[tokio::test]
async fn bytes_in_a_buffer_around_a_pipe_go_first() {
    let (mut to_relay, from_peer) = pipe::pipe().unwrap();
    let (mut far, mut far_end) = tcp().await;
    let mut said = Pattern::new(9);
    said.send(&mut to_relay, 5000).await;
    let mut buffered = BufReader::with_capacity(3000, from_peer);
    tokio::io::AsyncBufReadExt::fill_buf(&mut buffered).await.unwrap();
    drop(to_relay);
    assert_eq!(guard(spliceway::copy(&mut buffered, &mut far_end)).await.unwrap(), 5000);
    drop(far_end);
    Pattern::new(9).expect_end(&mut far, 5000).await;
}

/// A relay reads a packet of a pipe whole, even if its rate limit allows fewer bytes.
#[tokio::test(start_paused = true)]
async fn a_rate_limit_loses_no_part_of_a_packet() {
    for engine in ENGINES {
        let (from_peer, mut to_relay) = packets();
        let mut said = Pattern::new(10);
        for _ in 0..4 {
            to_relay.write_all(&said.take(4096)).unwrap();
        }
        drop(to_relay);
        let (mut far, far_end) = tcp().await;
        let near_end = join(from_peer, pipe::pipe().unwrap().0);
        let relay = Relay::with_options(
            near_end,
            far_end,
            RelayOptions::new()
                .rate_limit(&RateLimit::new(50_000))
                .b_to_a_limit(0)
                .engine(engine),
        );
        // An hour of the paused clock, which advances when no task can run.
        let relay = tokio::spawn(tokio::time::timeout(Duration::from_secs(3600), relay));
        Pattern::new(10).expect(&mut far, 4 * 4096).await;
        let summary = relay.await.unwrap().unwrap().unwrap();
        assert_eq!((summary.a_to_b.bytes, summary.a_to_b.lost), (4 * 4096, 0), "{engine:?}");
    }
}

/// Returns a pipe whose writes are packets (`O_DIRECT`). A read returns one packet, and discards
/// the bytes that do not fit.
fn packets() -> (pipe::Receiver, std::fs::File) {
    let flags = PipeFlags::DIRECT | PipeFlags::NONBLOCK | PipeFlags::CLOEXEC;
    let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
    (pipe::Receiver::from_owned_fd(reader).unwrap(), writer.into())
}

/// A splice would pass the packet on as a packet.
#[tokio::test]
async fn a_packet_from_a_pipe_arrives_as_plain_bytes() {
    let (mut from_peer, mut to_relay) = packets();
    let (mut from_relay, mut to_peer) = {
        let (sender, receiver) = pipe::pipe().unwrap();
        (receiver, sender)
    };
    let mut said = Pattern::new(11);
    to_relay.write_all(&said.take(1000)).unwrap();
    drop(to_relay);
    assert_eq!(
        guard(spliceway::copy(&mut from_peer, &mut to_peer)).await.unwrap(),
        1000
    );
    drop(to_peer);
    let mut heard = Pattern::new(11);
    heard.expect(&mut from_relay, 10).await;
    heard.expect_end(&mut from_relay, 1000).await;
}
