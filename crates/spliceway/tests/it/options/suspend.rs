//! A relay is suspended, and another one continues as if nothing had happened. The scenarios of
//! `testing/scenario` do this after every poll, between sockets.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use spliceway::{DirectionStage, EndReason, HalfClose, Peer, RateLimit, Relay, RelayOptions, RelaySummary};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};

use super::{every_way, pass};
use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, guard, reset, tcp, turns};

const SECOND: Duration = Duration::from_secs(1);

type UnixRelay = Relay<UnixStream, UnixStream>;

/// `near ⇄ relay ⇄ far`, with the relay in the hands of the test.
fn line(options: &RelayOptions) -> (UnixStream, UnixRelay, UnixStream) {
    let ((near, a), (b, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    (near, Relay::with_options(a, b, options.clone()), far)
}

/// Suspends the relay, checks that the counts continue, and resumes it.
fn again<A, B>(relay: Relay<A, B>, options: &RelayOptions) -> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    assert!(relay.can_suspend());
    let before = relay.stats();
    let suspended = relay.suspend().unwrap();
    assert_eq!(before.snapshot().end, EndReason::Suspended);
    assert_eq!(before.snapshot().lost(), 0);
    let relay = Relay::resume(suspended.a, suspended.b, options.clone(), suspended.state);
    let counts = |summary: RelaySummary| (summary.a_to_b, summary.b_to_a, summary.first_eof);
    assert_eq!(counts(relay.stats().snapshot()), counts(before.snapshot()));
    relay
}

/// Runs the relay for this time.
async fn run_for<A, B>(relay: &mut Relay<A, B>, time: Duration)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    assert!(tokio::time::timeout(time, relay).await.is_err(), "it does not end");
}

#[tokio::test]
async fn bytes_in_pipes_and_in_user_space_are_delivered_once() {
    every_way(async |variant| {
        let options = RelayOptions::new().engine(variant.engine);
        let (near, relay, far) = line(&options);
        let (from, mut to) = if variant.swapped { (far, near) } else { (near, far) };
        let mut relay = task::spawn(relay);
        let (mut sent, mut idle, mut held) = (Pattern::new(1), 0, 0);
        while idle < 8 {
            let bytes = sent.take(MIB as usize);
            let written = from.try_write(&bytes).unwrap_or(0);
            sent.unsend(bytes.len() - written);
            idle = if written == 0 { idle + 1 } else { 0 };
            turns(2).await;
            assert_pending!(relay.poll());
        }
        let suspended = relay.into_inner().suspend().unwrap();
        for way in [&suspended.state.a_to_b, &suspended.state.b_to_a] {
            assert_eq!((way.stage, way.remaining), (DirectionStage::Moving, None));
            held += way.in_flight.len() as u64;
        }
        let before = suspended.state.a_to_b.counts.bytes + suspended.state.b_to_a.counts.bytes;
        assert!(held > 0, "{variant:?}");
        let relay = Relay::resume(suspended.a, suspended.b, options, suspended.state);
        let reading = async {
            Pattern::new(1).expect_end(&mut to, sent.at()).await;
            to.shutdown().await.unwrap();
        };
        drop(from);
        let (summary, ()) = guard(async { tokio::join!(relay, reading) }).await;
        let summary = summary.unwrap();
        assert_eq!((summary.end, summary.bytes()), (EndReason::Ended, sent.at()));
        assert!(before > 0 && before + held <= summary.bytes());
        let first = if variant.swapped { Peer::B } else { Peer::A };
        assert_eq!(summary.first_eof, Some(first));
    })
    .await;
}

#[tokio::test]
async fn a_relay_that_never_ran_keeps_its_prefixes_and_limits() {
    every_way(async |variant| {
        let options = RelayOptions::new().engine(variant.engine);
        let first = options
            .clone()
            .a_to_b_prefix("first")
            .b_to_a_prefix("back")
            .a_to_b_limit(3);
        let (mut near, relay, mut far) = line(&first);
        let relay = again(again(relay, &options), &options);
        near.write_all(b"abcdef").await.unwrap();
        let relay = tokio::spawn(relay);
        let mut bytes = [0; 8];
        guard(far.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"firstabc");
        guard(near.read_exact(&mut bytes[..4])).await.unwrap();
        assert_eq!(&bytes[..4], b"back");
        drop(far);
        let summary = guard(relay).await.unwrap().unwrap();
        assert_eq!(
            (summary.a_to_b.bytes, summary.a_to_b.eof, summary.b_to_a.eof),
            (8, false, true)
        );
    })
    .await;
}

#[tokio::test]
async fn a_limit_counts_the_bytes_before_the_suspension() {
    every_way(async |variant| {
        let options = RelayOptions::new().engine(variant.engine);
        let (mut near, relay, mut far) = line(&options.clone().a_to_b_limit(300 * KIB));
        let mut relay = task::spawn(relay);
        let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
        while wanted.at() < 100 * KIB {
            sent.send(&mut near, 20 * KIB).await;
            turns(2).await;
            assert_pending!(relay.poll());
            wanted.expect(&mut far, 20 * KIB).await;
        }
        let relay = again(relay.into_inner(), &options);
        let ended = tokio::spawn(relay);
        let total = 600 * KIB;
        let sending = tokio::spawn(async move {
            sent.send(&mut near, total - sent.at()).await;
            near
        });
        guard(wanted.expect(&mut far, 200 * KIB)).await;
        drop(far);
        let summary = guard(ended).await.unwrap().unwrap();
        assert_eq!(summary.a_to_b.bytes, 300 * KIB);
        // The relay drops its streams, with the bytes above the limit.
        sending.abort();
        drop(sending.await);
    })
    .await;
}

#[tokio::test]
async fn a_half_closed_relay_stays_half_closed_and_shuts_down_once() {
    every_way(async |variant| {
        let options = RelayOptions::new().engine(variant.engine);
        let (mut near, relay, mut far) = line(&options);
        let mut relay = task::spawn(relay);
        near.write_all(b"question").await.unwrap();
        near.shutdown().await.unwrap();
        let mut question = Vec::new();
        while !relay.stats().snapshot().a_to_b.eof {
            assert_pending!(relay.poll());
            turns(1).await;
        }
        far.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question");
        let suspended = relay.into_inner().suspend().unwrap();
        assert_eq!(suspended.state.a_to_b.stage, DirectionStage::Ended);
        assert_eq!(suspended.state.first_eof, Some(Peer::A));
        let mut relay = task::spawn(Relay::resume(suspended.a, suspended.b, options, suspended.state));
        assert_pending!(relay.poll());
        let (mut answer, mut sent) = (Pattern::new(2), Pattern::new(2));
        sent.send(&mut far, 3000).await;
        drop(far);
        let ended = tokio::spawn(relay.into_inner());
        guard(answer.expect(&mut near, 3000)).await;
        answer.expect_end(&mut near, 3000).await;
        let summary = guard(ended).await.unwrap().unwrap();
        assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (8, 3000));
        assert_eq!((summary.end, summary.first_eof), (EndReason::Ended, Some(Peer::A)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_idle_time_before_a_suspension_counts() {
    let options = RelayOptions::new()
        .idle_timeout(8 * SECOND)
        .half_close_timeout(60 * SECOND);
    let (near, mut relay, far) = line(&options);
    run_for(&mut relay, 3 * SECOND + SECOND / 2).await;
    near.try_write(b"x").unwrap();
    // The check at 4 s sees the byte.
    run_for(&mut relay, 3 * SECOND + SECOND / 2).await;
    let mut relay = again(relay, &options);
    // This relay was never polled.
    relay = again(relay, &options);
    pass(100 * SECOND).await;
    run_for(&mut relay, 4 * SECOND).await;
    let relay = again(relay, &options);
    let (started, summary) = (Instant::now(), relay.await.unwrap());
    assert_eq!((summary.end, summary.bytes()), (EndReason::IdleTimeout, 1));
    assert_eq!(started.elapsed().as_millis(), 1_000, "4 s + 8 s, without the pause");
    drop((near, far));
}

#[tokio::test(start_paused = true)]
async fn the_half_close_timeout_continues_and_does_not_start_again() {
    let options = RelayOptions::new()
        .idle_timeout(60 * SECOND)
        .half_close_timeout(8 * SECOND);
    let (mut near, mut relay, far) = line(&options);
    run_for(&mut relay, 30 * SECOND).await;
    near.shutdown().await.unwrap();
    run_for(&mut relay, 6 * SECOND).await;
    let relay = again(relay, &options);
    let (started, summary) = (Instant::now(), relay.await.unwrap());
    assert_eq!(summary.end, EndReason::HalfCloseTimeout);
    assert_eq!(started.elapsed().as_millis(), 2_000);
    drop(far);
}

#[tokio::test]
async fn a_direction_that_finishes_continues_to_finish() {
    every_way(async |variant| {
        let options = RelayOptions::new()
            .engine(variant.engine)
            .half_close(HalfClose::CloseBoth);
        let (mut near, relay, mut far) = line(&options);
        let mut relay = task::spawn(relay);
        // The far peer's bytes fill the way to the near peer, which does not read.
        let (mut sent, mut idle) = (Pattern::new(3), 0);
        while idle < 8 {
            let bytes = sent.take(MIB as usize);
            let written = far.try_write(&bytes).unwrap_or(0);
            sent.unsend(bytes.len() - written);
            idle = if written == 0 { idle + 1 } else { 0 };
            turns(2).await;
            assert_pending!(relay.poll());
        }
        near.shutdown().await.unwrap();
        while !relay.stats().snapshot().a_to_b.eof {
            turns(1).await;
            assert_pending!(relay.poll());
        }
        let suspended = relay.into_inner().suspend().unwrap();
        assert_eq!(suspended.state.b_to_a.stage, DirectionStage::Finishing);
        let relay = Relay::resume(suspended.a, suspended.b, options.clone(), suspended.state);
        let relay = again(relay, &options);
        let reading = Pattern::new(3).expect_end(&mut near, sent.at());
        let (summary, ()) = guard(async { tokio::join!(relay, reading) }).await;
        let summary = summary.unwrap();
        assert_eq!((summary.end, summary.b_to_a.eof), (EndReason::Ended, false));
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_a_suspended_relay_waited_for_goes_back() {
    every_way(async |variant| {
        let rate = RateLimit::with_burst(1_000, 1_000);
        let options = RelayOptions::new().engine(variant.engine).rate_limit(&rate);
        let (mut near, mut relay, mut far) = line(&options);
        let mut sent = Pattern::new(4);
        sent.send(&mut near, 3_000).await;
        let started = Instant::now();
        // 20 suspensions, each of which would lose a grant of 20 bytes.
        for _ in 0..20 {
            run_for(&mut relay, Duration::from_millis(5)).await;
            relay = again(relay, &options);
        }
        let task = tokio::spawn(relay);
        Pattern::new(4).expect(&mut far, 3_000).await;
        let passed = started.elapsed().as_millis();
        assert!((1_980..=2_120).contains(&passed), "{passed} ms for 2000 bytes");
        drop((near, far));
        task.await.unwrap().unwrap();
    })
    .await;
}

/// A stream whose writer keeps bytes until it is flushed, and is shut down only at the second try.
struct Slow {
    inner: BufWriter<DuplexStream>,
    has_tried: bool,
}

impl Slow {
    fn new(inner: DuplexStream) -> Self {
        Self {
            inner: BufWriter::new(inner),
            has_tried: false,
        }
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if !std::mem::replace(&mut self.has_tried, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn streams_that_are_copied_are_flushed_and_shut_down_after_a_suspension() {
    let ((mut near, a), (b, mut far)) = (duplex(64), duplex(64));
    let options = RelayOptions::new();
    let mut relay = Relay::new(Slow::new(a), Slow::new(b));
    let (mut sent, mut wanted) = (Pattern::new(5), Pattern::new(5));
    for _ in 0..1000 {
        turns(1).await;
        let mut polled = task::spawn(relay);
        if sent.at() < 2_000 {
            let bytes = sent.take(50);
            let written = {
                let mut write = task::spawn(near.write(&bytes));
                match write.poll() {
                    Poll::Ready(written) => written.unwrap(),
                    Poll::Pending => 0,
                }
            };
            sent.unsend(50 - written);
        } else {
            near.shutdown().await.unwrap();
        }
        assert_pending!(polled.poll());
        let before = polled.stats().snapshot();
        if before.a_to_b.eof {
            relay = polled.into_inner();
            break;
        }
        relay = again(polled.into_inner(), &options);
        let mut bytes = [0; 40];
        let read = {
            let mut read = task::spawn(far.read(&mut bytes));
            match read.poll() {
                Poll::Ready(read) => read.unwrap(),
                Poll::Pending => 0,
            }
        };
        wanted.check(&bytes[..read]);
    }
    assert!(relay.stats().snapshot().a_to_b.eof);
    let relay = again(relay, &options);
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    let ended = tokio::spawn(relay);
    guard(wanted.expect_end(&mut far, sent.at())).await;
    let mut answer = Vec::new();
    guard(near.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"answer");
    let summary = guard(ended).await.unwrap().unwrap();
    assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (sent.at(), 6));
}

#[tokio::test]
async fn a_relay_that_is_over_or_cancelled_or_broken_is_not_suspended() {
    // Cancelled, before the relay has noticed.
    let options = RelayOptions::new();
    let (_near, mut relay, _far) = line(&options);
    relay.cancel_handle().cancel(Duration::ZERO);
    assert!(!relay.can_suspend());
    assert_eq!(relay.suspend().unwrap_err().kind(), std::io::ErrorKind::InvalidInput);

    let (near, relay, far) = line(&options);
    let mut relay = task::spawn(relay);
    drop((near, far));
    turns(2).await;
    assert!(assert_ready!(relay.poll()).is_ok());
    assert!(!relay.can_suspend());

    // One side has reset its connection, and the other one has not acknowledged all bytes.
    let ((mut near, a), (_far, b)) = (tcp().await, tcp().await);
    let relay = Relay::with_options(a, b, RelayOptions::new().pass_resets(true));
    let (stats, mut relay) = (relay.stats(), task::spawn(relay));
    Pattern::new(6).send(&mut near, 200 * KIB).await;
    guard(async {
        while stats.snapshot().bytes() < 200 * KIB {
            assert_pending!(relay.poll());
            turns(1).await;
        }
        assert!(relay.can_suspend());
        reset(near);
        while relay.can_suspend() {
            assert_pending!(relay.poll());
            turns(1).await;
        }
    })
    .await;
}
