use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use spliceway::{Engine, Peer, PipePool, Relay, RelayOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};

use super::{Variant, every_way, pass};
use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::{Laid, Rig, Setup, limits};
use crate::support::{KIB, MIB, guard, reset, tcp, tcp_small, turns};

/// The answer fits in the first window of a connection. It has therefore left the sender before the
/// reset, which discards unsent bytes.
const ANSWER: u64 = 40 * KIB;

fn setup(variant: Variant) -> Setup {
    Setup {
        engine: variant.engine,
        ..Setup::new(variant.swapped)
    }
}

fn is_of_a_closed_peer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Before the relay begins, the far peer has answered and has closed with unread bytes. The near
/// peer still sends. If the near peer is `a`, the relay first writes that peer's bytes, and the
/// write fails. If the near peer is `b`, the relay first reads the answer, and then the reset.
async fn answered_early(variant: Variant, options: RelayOptions) -> (Laid, Relay<TcpStream, TcpStream>) {
    let ((mut near, near_end), (mut far, mut far_end)) = (tcp().await, tcp().await);
    far_end.write_all(b"never read").await.unwrap();
    far.readable().await.unwrap();
    Pattern::new(1).send(&mut far, ANSWER).await;
    drop(far);
    near.write_all(b"an upload").await.unwrap();
    let (far, _) = tcp().await;
    let setup = setup(variant).options(options);
    setup.lay_between(PipePool::new(limits()), (near, near_end), (far, far_end))
}

#[test]
fn an_early_answer_is_delivered_before_the_error() {
    const NAME: &str = "options::failed::an_early_answer_is_delivered_before_the_error";
    in_child(NAME, None, || {
        block_on(async {
            let at_start = open_descriptors();
            every_way(async |variant| {
                for pass_resets in [false, true] {
                    let options = RelayOptions::new().early_answers(true).pass_resets(pass_resets);
                    let (laid, relay) = answered_early(variant, options).await;
                    let Rig { mut near, relay, .. } = laid.run(relay);
                    // Reads to the end of the stream. There is no reset.
                    Pattern::new(1).expect_end(&mut near, ANSWER).await;
                    near.write_all(b", goes on").await.unwrap();
                    near.shutdown().await.unwrap();
                    let (moved, error) = relay.broken().await;
                    assert!(is_of_a_closed_peer(error.kind()), "{error:?}");
                    assert_eq!(moved.bytes(), (0, ANSWER));
                    assert_eq!(moved.forth.lost, "an upload, goes on".len() as u64);
                    let end = near.read(&mut [0]).await.unwrap();
                    assert_eq!(end, 0, "the close is no reset either");
                }
                assert_eq!(open_descriptors(), at_start);
            })
            .await;
        });
    });
}

/// tokio's function does the same.
#[tokio::test]
async fn a_failed_write_ends_the_relay_immediately_by_default() {
    let variant = Variant {
        engine: Engine::Auto,
        swapped: false,
    };
    let (laid, relay) = answered_early(variant, RelayOptions::new()).await;
    let (moved, error) = guard(laid.run(relay).relay.broken()).await;
    assert!(is_of_a_closed_peer(error.kind()), "{error:?}");
    assert_eq!(moved.bytes(), (0, 0));
}

#[tokio::test]
async fn bytes_in_the_pipe_are_lost_and_the_early_answer_is_not() {
    every_way(async |variant| {
        let setup = setup(variant).small().options(RelayOptions::new().early_answers(true));
        let rig = setup.start().await;
        let mut sent = Pattern::new(2);
        rig.push_until_stuck(&mut sent, None).await;
        let Rig {
            mut near,
            mut far,
            relay,
            pool,
        } = rig;
        Pattern::new(3).send(&mut far, ANSWER / 4).await;
        let was_lent = pool.stats().lent;
        assert!(was_lent == 1 || variant.engine != Engine::Splice, "{was_lent}");
        // Bytes are unread, so this close is a reset.
        drop(far);
        Pattern::new(3).expect_end(&mut near, ANSWER / 4).await;
        near.shutdown().await.unwrap();
        let (moved, error) = guard(relay.broken()).await;
        assert!(is_of_a_closed_peer(error.kind()), "{error:?}");
        assert_eq!(moved.back.bytes, ANSWER / 4);
        // The relay reads up to the shutdown, so every sent byte was delivered or lost.
        assert_eq!(moved.forth.bytes + moved.forth.lost, sent.at());
        let stats = pool.stats();
        assert_eq!(stats.lent, 0, "{stats:?}");
        assert!(stats.closed_dirty >= was_lent as u64, "{stats:?}");
    })
    .await;
}

/// The peer reads the answer after its own write has failed, as it would without a relay.
#[tokio::test]
async fn a_peer_that_never_stops_writing_still_gets_the_early_answer() {
    every_way(async |variant| {
        let (laid, relay) = answered_early(variant, RelayOptions::new().early_answers(true)).await;
        let Rig { mut near, relay, .. } = laid.run(relay);
        let chunk = vec![0; MIB as usize];
        let (mut sent, limit) = (0, 256 * MIB);
        let failed = guard(async {
            while sent < limit {
                match near.write(&chunk).await {
                    Ok(bytes) => sent += bytes as u64,
                    Err(error) => return error,
                }
            }
            panic!("the relay takes bytes without end");
        });
        assert!(is_of_a_closed_peer(failed.await.kind()));
        let mut wanted = Pattern::new(1);
        wanted.expect_until_broken(&mut near).await;
        assert_eq!(wanted.at(), ANSWER);
        let (moved, _) = relay.broken().await;
        assert!(moved.forth.lost <= 17 * MIB, "{moved:?}");
    })
    .await;
}

/// Returns the near peer, and a relay between Unix sockets whose write to the far peer fails.
fn half_dead(variant: Variant) -> (UnixStream, Relay<UnixStream, UnixStream>) {
    half_dead_with(variant, RelayOptions::new().early_answers(true))
}

fn half_dead_with(variant: Variant, options: RelayOptions) -> (UnixStream, Relay<UnixStream, UnixStream>) {
    let ((near, near_end), (far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    near.try_write(b"an upload").unwrap();
    far.try_write(b"an answer").unwrap();
    drop(far);
    let (a, b) = if variant.swapped {
        (far_end, near_end)
    } else {
        (near_end, far_end)
    };
    (near, Relay::with_options(a, b, options.engine(variant.engine)))
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_finish_after_an_early_answer_gets_5_s() {
    every_way(async |variant| {
        let (mut near, relay) = half_dead(variant);
        let started = Instant::now();
        let error = relay.await.unwrap_err();
        assert!(is_of_a_closed_peer(error.source.kind()), "{error:?}");
        let seconds = started.elapsed().as_secs_f64();
        assert!((5.0..5.1).contains(&seconds), "{seconds}");
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "an answer");
    })
    .await;
}

/// The near peer is the server here, and the client has aborted a download.
#[tokio::test(start_paused = true)]
async fn a_server_whose_client_failed_gets_its_bytes_and_no_time_to_finish() {
    every_way(async |variant| {
        let (near_side, far_side) = match variant.swapped {
            true => (Peer::B, Peer::A),
            false => (Peer::A, Peer::B),
        };
        for (client, seconds) in [(far_side, 0), (near_side, 5)] {
            let (mut near, relay) = half_dead_with(variant, RelayOptions::new().early_answers_to(client));
            let started = Instant::now();
            relay.await.unwrap_err();
            assert_eq!(started.elapsed().as_secs(), seconds, "{client:?}");
            let mut bytes = String::new();
            near.read_to_string(&mut bytes).await.unwrap();
            assert_eq!(bytes, "an answer");
        }
    })
    .await;
}

/// Far is a client that uploads and then closes with unread bytes. The write to it may meet its
/// reset, and a later read shows only an end of stream.
#[tokio::test]
async fn an_upload_whose_client_was_reset_does_not_look_complete() {
    every_way(async |variant| {
        let client = if variant.swapped { Peer::A } else { Peer::B };
        let options = RelayOptions::new().early_answers_to(client).pass_resets(true);
        let (laid, relay) = answered_early(variant, options).await;
        let Rig { mut near, relay, .. } = laid.run(relay);
        Pattern::new(1).expect(&mut near, ANSWER).await;
        let end = near.read(&mut [0]).await;
        assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        relay.broken().await;
    })
    .await;
}

/// Far is a client that uploads, closes without unread bytes, and gets an answer. Its end of stream
/// is still in the queue when the write to it fails.
#[tokio::test]
async fn a_complete_upload_of_a_client_that_closed_ends_without_a_reset() {
    every_way(async |variant| {
        let client = if variant.swapped { Peer::A } else { Peer::B };
        let ((mut near, near_end), (mut far, mut far_end)) = (tcp().await, tcp().await);
        Pattern::new(1).send(&mut far, ANSWER).await;
        drop(far);
        // The first write brings the reset of a closed socket, and the second one fails.
        far_end.write_all(b"an answer").await.unwrap();
        far_end.ready(Interest::ERROR).await.unwrap();
        near.write_all(b"another answer").await.unwrap();
        let options = RelayOptions::new().early_answers_to(client).pass_resets(true);
        let setup = setup(variant).options(options);
        let (laid, relay) = setup.lay_between(PipePool::new(limits()), (near, near_end), (tcp().await.0, far_end));
        let Rig { mut near, relay, .. } = laid.run(relay);
        Pattern::new(1).expect_end(&mut near, ANSWER).await;
        relay.broken().await;
    })
    .await;
}

/// A server that answers, takes nothing, and fails: in a write, or in the read after its answer.
struct Failing {
    answer: &'static [u8],
    error: ErrorKind,
    fails_in_write: bool,
}

impl AsyncRead for Failing {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.answer.is_empty() && !self.fails_in_write {
            return Poll::Ready(Err(self.error.into()));
        }
        buf.put_slice(std::mem::take(&mut self.answer));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Failing {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        if self.fails_in_write {
            return Poll::Ready(Err(self.error.into()));
        }
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The end of an answer is known only if the server has closed. A timeout, or a record of TLS that
/// was changed on its way, is no close.
#[tokio::test]
async fn an_answer_is_early_only_if_its_server_has_closed() {
    let kinds = [
        (ErrorKind::ConnectionReset, true),
        (ErrorKind::BrokenPipe, true),
        (ErrorKind::NotConnected, true),
        (ErrorKind::TimedOut, false),
        (ErrorKind::InvalidData, false),
        (ErrorKind::HostUnreachable, false),
        (ErrorKind::UnexpectedEof, false),
    ];
    for ((error, is_early), fails_in_write) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (mut near, near_end) = tcp().await;
        near.write_all(b"an upload").await.unwrap();
        near_end.readable().await.unwrap();
        let options = RelayOptions::new().early_answers_to(Peer::A).pass_resets(true);
        let server = Failing {
            answer: b"an answer",
            error,
            fails_in_write,
        };
        let relay = Relay::with_options(near_end, server, options);
        let reading = async {
            let mut answer = [0; 9];
            near.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"an answer");
            near.shutdown().await.unwrap();
            near.read(&mut [0]).await.map_err(|error| error.kind())
        };
        let (ended, end) = guard(async { tokio::join!(relay, reading) }).await;
        assert_eq!(ended.unwrap_err().source.kind(), error);
        let expected = if is_early {
            Ok(0)
        } else {
            Err(ErrorKind::ConnectionReset)
        };
        assert_eq!(end, expected, "{error:?}, in a write: {fails_in_write}");
    }
}

/// Most of the answer is still missing. An end of stream would make it look complete.
#[tokio::test(start_paused = true)]
async fn an_early_answer_that_is_not_read_in_30_s_ends_with_a_reset() {
    every_way(async |variant| {
        let ((mut near, near_end), (far, far_end)) = (tcp_small().await, UnixStream::pair().unwrap());
        far.writable().await.unwrap();
        let piece = Pattern::new(5).take(8 << 10);
        let answer: usize = std::iter::from_fn(|| far.try_write(&piece).ok()).sum();
        assert!(
            answer >= 96 << 10,
            "near's sockets may hold the whole answer: {answer} bytes"
        );
        drop(far);
        near.write_all(b"an upload").await.unwrap();
        near_end.readable().await.unwrap();
        let started = Instant::now();
        let options = RelayOptions::new().engine(variant.engine);
        let options = options.early_answers(true).pass_resets(true);
        let ended = if variant.swapped {
            Relay::with_options(far_end, near_end, options).await
        } else {
            Relay::with_options(near_end, far_end, options).await
        };
        assert!(is_of_a_closed_peer(ended.unwrap_err().source.kind()));
        assert_eq!(started.elapsed().as_secs(), 30);
        let mut got = Vec::new();
        let told = near.read_to_end(&mut got).await;
        assert_eq!(told.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        assert!(got.len() < answer, "{} of {answer}", got.len());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_does_not_wait_for_a_peer_that_does_not_finish() {
    every_way(async |variant| {
        let (near, mut relay) = half_dead(variant);
        let cancel = relay.cancel_handle();
        let started = Instant::now();
        let cancelling = async {
            pass(Duration::from_secs(1)).await;
            cancel.cancel(Duration::from_secs(60));
        };
        let (ended, ()) = tokio::join!(relay, cancelling);
        assert!(is_of_a_closed_peer(ended.unwrap_err().source.kind()));
        assert_eq!(started.elapsed().as_secs(), 1);
        drop(near);
    })
    .await;
}

/// The stream fails in the relay's first poll, and the caller cancels later.
#[tokio::test(start_paused = true)]
async fn a_handle_taken_after_a_failure_wakes_the_relay() {
    every_way(async |variant| {
        let (near, relay) = half_dead(variant);
        let mut relay = task::spawn(relay);
        assert_pending!(relay.poll());
        for _ in 0..10 {
            turns(1).await;
            if relay.is_woken() {
                assert_pending!(relay.poll());
            }
        }
        let cancel = relay.cancel_handle();
        cancel.cancel(Duration::ZERO);
        assert!(relay.is_woken(), "the task is told to look");
        assert_ready!(relay.poll()).unwrap_err();
        drop(near);
    })
    .await;
}

/// More than a window of 16 KiB, and less than that window and the sink's send buffer together.
const QUEUED: u64 = 24 * KIB;

/// When the near peer's reset arrives, the relay has written all bytes to the kernel, but the far
/// peer has not acknowledged all of them.
#[tokio::test]
async fn a_reset_is_passed_on_once_every_earlier_byte_has_arrived() {
    every_way(async |variant| {
        let ((near, near_end), far) = (tcp().await, tcp_small().await);
        let pool = PipePool::new(setup(variant).limits);
        let options = RelayOptions::new().pass_resets(true).early_answers(true);
        let (laid, relay) = setup(variant).options(options).lay_between(pool, (near, near_end), far);
        let Rig {
            mut near,
            mut far,
            relay,
            pool,
        } = laid.run(relay);
        let mut sent = Pattern::new(4);
        sent.send(&mut near, QUEUED).await;
        guard(async {
            while relay.moved().forth.bytes < QUEUED {
                turns(1).await;
            }
        })
        .await;
        reset(near);
        turns(100).await;
        assert!(!relay.task.is_finished(), "far has not acknowledged all");
        let mut wanted = Pattern::new(4);
        let told = guard(wanted.expect_until_broken(&mut far)).await;
        assert_eq!(told.map(|error| error.kind()), Some(ErrorKind::ConnectionReset));
        assert_eq!(wanted.at(), QUEUED);
        let (moved, error) = guard(relay.broken()).await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(moved.bytes(), (QUEUED, 0));
        assert_eq!(pool.stats().lent, 0);
    })
    .await;
}

/// The near peer has ended its stream, and then resets the connection because it gets more bytes.
/// It acknowledges nothing any more, so the relay must not wait for it.
#[tokio::test(start_paused = true)]
async fn a_reset_does_not_wait_for_a_peer_that_is_gone() {
    every_way(async |variant| {
        let Rig {
            near, mut far, relay, ..
        } = setup(variant)
            .options(RelayOptions::new().pass_resets(true))
            .start()
            .await;
        drop(near);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        far.write_all(b"too late").await.unwrap();
        guard(async {
            while relay.moved().back.bytes < 8 {
                turns(1).await;
            }
        })
        .await;
        let started = Instant::now();
        reset(far);
        let (_, error) = relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(started.elapsed().as_secs(), 0, "{variant:?}");
    })
    .await;
}

/// The peer has read nothing, and has reset the connection.
#[tokio::test(start_paused = true)]
async fn the_reset_of_a_connection_that_is_gone_does_not_wait() {
    let (mut near, far) = tcp_small().await;
    while near.try_write(&[0; 4096]).is_ok() {}
    reset(far);
    assert_eq!(
        near.read(&mut [0]).await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    let started = Instant::now();
    spliceway::reset(near).await;
    assert_eq!(started.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn a_reset_is_an_end_of_stream_by_default() {
    every_way(async |variant| {
        let rig = setup(variant).start().await;
        let Rig {
            near, mut far, relay, ..
        } = rig;
        reset(near);
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(relay.broken().await.1.kind(), ErrorKind::ConnectionReset);
    })
    .await;
}

#[tokio::test]
async fn a_reset_of_a_tcp_peer_ends_a_unix_peer_in_the_usual_way() {
    for early_answers in [false, true] {
        every_way(async |variant| {
            let ((near, near_end), (mut far, far_end)) = (tcp().await, UnixStream::pair().unwrap());
            near.try_write(b"bytes").unwrap();
            near_end.readable().await.unwrap();
            reset(near);
            let options = RelayOptions::new()
                .engine(variant.engine)
                .pass_resets(true)
                .early_answers(early_answers);
            let ended = if variant.swapped {
                guard(Relay::with_options(far_end, near_end, options)).await
            } else {
                guard(Relay::with_options(near_end, far_end, options)).await
            };
            assert_eq!(ended.unwrap_err().source.kind(), ErrorKind::ConnectionReset);
            let mut read = String::new();
            far.read_to_string(&mut read).await.unwrap();
            assert_eq!(read, "bytes");
        })
        .await;
    }
}
