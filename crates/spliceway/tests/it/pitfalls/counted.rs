//! Because fallbacks were silent, other relays worked without zero copy for a year. Here every byte
//! counts as spliced or as copied, and each fallback has a reason.

use std::io::ErrorKind;
use std::pin::Pin;
use std::task::{Context, Poll};

use spliceway::{Engine, PipePool, PipeSize, Reason, Relay, RelayOptions, SizeClass};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::support::child::{block_on, in_child};
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup, both_ways, limits, push};
use crate::support::{BULK, MIB, finish, tcp, tcp_small, turns};

/// Sends bulk and an end from both peers. The relay's counts must equal the bytes that the peers
/// have counted.
async fn bulk_both_ways(rig: Rig) -> (crate::support::rig::Moved, PipePool) {
    let Rig { near, far, relay, pool } = rig;
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let send = async |out: &mut tokio::net::tcp::OwnedWriteHalf, seed, bytes| {
        Pattern::new(seed).send(out, bytes).await;
        finish(out.as_ref());
    };
    tokio::join!(
        send(&mut near_out, 1, BULK),
        send(&mut far_out, 2, BULK / 2),
        Pattern::new(1).expect_end(&mut far_in, BULK),
        Pattern::new(2).expect_end(&mut near_in, BULK / 2)
    );
    let moved = relay.end().await;
    assert_eq!(moved.bytes(), (BULK, BULK / 2));
    for way in [moved.forth, moved.back] {
        assert_eq!(way.spliced + way.copied, way.bytes);
        assert!(way.eof);
    }
    (moved, pool)
}

#[tokio::test]
async fn bulk_between_sockets_is_spliced_and_counted_as_spliced() {
    both_ways(async |setup| {
        let (moved, pool) = bulk_both_ways(setup.start().await).await;
        for way in [moved.forth, moved.back] {
            assert!(way.spliced > way.bytes / 2, "{way:?}");
            assert_eq!(way.fallback, None);
        }
        assert!(pool.stats().created > 0);
    })
    .await;
}

#[tokio::test]
async fn an_engine_that_copies_splices_nothing() {
    both_ways(async |setup| {
        let setup = Setup {
            engine: Engine::Copy,
            ..setup
        };
        let (moved, pool) = bulk_both_ways(setup.start().await).await;
        for way in [moved.forth, moved.back] {
            assert_eq!((way.spliced, way.fallback), (0, Some(Reason::Disabled)));
        }
        assert_eq!(pool.stats().created, 0);
    })
    .await;
}

#[tokio::test]
async fn an_engine_that_splices_copies_only_at_the_ends_of_bursts() {
    both_ways(async |setup| {
        let setup = Setup {
            engine: Engine::Splice,
            ..setup
        };
        let (moved, _) = bulk_both_ways(setup.start().await).await;
        for way in [moved.forth, moved.back] {
            assert!(way.spliced > way.bytes / 2, "{way:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn small_messages_are_copied_without_a_pipe_or_a_fallback_reason() {
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        let (mut forth, mut back) = ((Pattern::new(3), Pattern::new(3)), (Pattern::new(4), Pattern::new(4)));
        for _ in 0..500 {
            forth.0.send(&mut rig.near, 1000).await;
            forth.1.expect(&mut rig.far, 1000).await;
            back.0.send(&mut rig.far, 2000).await;
            back.1.expect(&mut rig.near, 2000).await;
        }
        let moved = rig.relay.moved();
        assert_eq!(moved.bytes(), (500_000, 1_000_000));
        assert_eq!((moved.forth.spliced, moved.back.spliced), (0, 0));
        assert_eq!((moved.forth.fallback, moved.back.fallback), (None, None));
        assert_eq!(rig.pool.stats().created, 0);
    })
    .await;
}

#[tokio::test]
async fn the_counts_move_while_the_relay_runs() {
    both_ways(async |setup| {
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(5), Pattern::new(5));
        let mut before = rig.relay.moved();
        for _ in 0..8 {
            tokio::join!(sent.send(&mut rig.near, 4 * MIB), wanted.expect(&mut rig.far, 4 * MIB));
            let now = rig.relay.moved();
            // Bytes that the far peer has read were delivered, so they are counted exactly. The
            // relay runs in this thread.
            assert_eq!(now.bytes(), (wanted.at(), 0));
            assert!(now.forth.spliced > before.forth.spliced, "{before:?} {now:?}");
            before = now;
        }
        assert!(!before.forth.eof);
        assert!(!rig.relay.task.is_finished());
    })
    .await;
}

/// Represents a TLS stream. It has a socket, but the relay must not bypass it.
struct Wrapped(TcpStream);

impl AsyncRead for Wrapped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wrapped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_wrapped_socket_is_copied_with_a_reason() {
    let ((mut near, a), (mut far, b)) = (tcp().await, tcp().await);
    let pool = PipePool::new(limits());
    let relay = tokio::spawn(Relay::with_options(Wrapped(a), b, RelayOptions::new().pool(&pool)));
    let request = async {
        Pattern::new(6).send(&mut near, BULK).await;
        finish(&near);
    };
    tokio::join!(request, Pattern::new(6).expect_end(&mut far, BULK));
    Pattern::new(7).send(&mut far, 10).await;
    drop(far);
    Pattern::new(7).expect_end(&mut near, 10).await;
    let summary = relay.await.unwrap().unwrap();
    for (way, bytes) in [(summary.a_to_b, BULK), (summary.b_to_a, 10)] {
        assert_eq!(
            (way.spliced, way.copied, way.fallback),
            (0, bytes, Some(Reason::NotSockets))
        );
    }
    assert_eq!(pool.stats().created, 0);
}

#[tokio::test]
async fn an_engine_that_must_splice_fails_if_a_stream_is_not_a_socket() {
    let ((mut near, a), (_far, b)) = (tcp().await, tcp().await);
    near.write_all(b"not taken").await.unwrap();
    let relay = Relay::with_options(Wrapped(a), b, RelayOptions::new().engine(Engine::Splice));
    let error = relay.await.unwrap_err();
    assert_eq!(error.source.kind(), ErrorKind::Unsupported);
    assert_eq!((error.summary.a_to_b.bytes, error.summary.b_to_a.bytes), (0, 0));
    assert_eq!(error.summary.a_to_b.fallback, Some(Reason::NotSockets));
}

#[tokio::test]
async fn an_engine_that_must_splice_fails_if_the_pool_has_no_pipe() {
    both_ways(async |setup| {
        let setup = Setup {
            engine: Engine::Splice,
            ..setup
        };
        let mut rig = setup.limits(limits().with_max_pipes(0)).start().await;
        // While no peer sends, the relay needs no pipe.
        crate::support::turns(50).await;
        assert_eq!(
            (rig.relay.task.is_finished(), rig.pool.stats().denied.len()),
            (false, 0)
        );
        rig.near.write_all(b"not taken").await.unwrap();
        let (moved, error) = rig.relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(moved.bytes(), (0, 0));
        // Either direction may be the first to ask for a pipe, because readiness may be a false
        // alarm.
        let reasons = [moved.forth.fallback, moved.back.fallback];
        assert!(reasons.contains(&Some(Reason::PipeBudget)), "{moved:?}");
        assert!(!rig.pool.stats().denied.is_empty());
        // Both connections are closed. The one with unread data is reset.
        assert!(!matches!(rig.near.read(&mut [0]).await, Ok(1..)));
        assert!(!matches!(rig.far.read(&mut [0]).await, Ok(1..)));
    })
    .await;
}

#[tokio::test]
async fn a_fixed_pipe_size_is_the_size_used() {
    for class in SizeClass::ALL {
        let ((near, a), (mut far, b)) = (tcp_small().await, tcp_small().await);
        let pool = PipePool::new(limits());
        let relay = Relay::with_options(
            a,
            b,
            RelayOptions::new()
                .engine(Engine::Splice)
                .pipe_size(PipeSize::Fixed(class))
                .pool(&pool),
        );
        let relay = tokio::spawn(relay);
        let mut sent = Pattern::new(8);
        // The far peer does not read, so in the end the relay holds a pipe.
        let mut refused = 0;
        while refused < 100 {
            refused = if push(&near, &mut sent) == 0 { refused + 1 } else { 0 };
            turns(1).await;
        }
        let stats = pool.stats();
        assert_eq!((stats.lent, stats.idle), (1, 0), "{stats:?}");
        assert_eq!(stats.pages * rustix::param::page_size(), class.bytes(), "{stats:?}");
        finish(&near);
        Pattern::new(8).expect_end(&mut far, sent.at()).await;
        drop(far);
        assert_eq!(relay.await.unwrap().unwrap().a_to_b.bytes, sent.at());
        assert_eq!(pool.stats().created, 1);
    }
}

#[test]
fn the_functions_splice_from_the_pool_of_the_process() {
    in_child(
        "pitfalls::counted::the_functions_splice_from_the_pool_of_the_process",
        None,
        || {
            block_on(async {
                let stats = || PipePool::global().stats();
                let acquired = || stats().created + stats().reused;
                let ((near, mut a), (far, mut b)) = (tcp().await, tcp().await);
                let peers = one_way_bulk(near, far);
                let (copied, ()) = tokio::join!(spliceway::copy(&mut a, &mut b), peers);
                assert_eq!(copied.unwrap(), BULK);
                let by_copy = acquired();
                assert!(by_copy > 0);
                let ((near, mut a), (far, mut b)) = (tcp().await, tcp().await);
                let peers = one_way_bulk(near, far);
                let (counts, ()) = tokio::join!(spliceway::copy_bidirectional(&mut a, &mut b), peers);
                assert_eq!(counts.unwrap(), (BULK, 0));
                let by_both = acquired();
                assert!(by_both > by_copy);
                let ((near, a), (far, mut b)) = (tcp().await, tcp().await);
                let (mut a, peers) = (Wrapped(a), one_way_bulk(near, far));
                let (counts, ()) = tokio::join!(spliceway::copy_bidirectional(&mut a, &mut b), peers);
                assert_eq!(counts.unwrap(), (BULK, 0));
                assert_eq!(acquired(), by_both, "a wrapper was spliced");
                assert_eq!(stats().lent, 0);
            });
        },
    );
}

async fn one_way_bulk(mut near: TcpStream, mut far: TcpStream) {
    let send = async {
        Pattern::new(9).send(&mut near, BULK).await;
        finish(&near);
    };
    let mut wanted = Pattern::new(9);
    tokio::join!(send, wanted.expect(&mut far, BULK));
}
