use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use spliceway::{EndReason, HalfClose, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};

use super::{Done, Variant, every_way, pass};
use crate::support::child::block_on;
use crate::support::pattern::Pattern;
use crate::support::{MIB, finish, guard, tcp, tcp_small, try_send, turns};

/// The peers and the relay's own ends, so that a test can read the bytes that the relay leaves in
/// them.
struct Ends {
    near: UnixStream,
    near_end: UnixStream,
    far: UnixStream,
    far_end: UnixStream,
}

impl Ends {
    fn new() -> Self {
        let ((near, near_end), (far, far_end)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        Self {
            near,
            near_end,
            far,
            far_end,
        }
    }
}

fn relay<'a>(
    variant: Variant,
    idle_timeout: Option<Duration>,
    near: &'a mut UnixStream,
    far: &'a mut UnixStream,
) -> Relay<&'a mut UnixStream, &'a mut UnixStream> {
    let (a, b) = if variant.swapped { (far, near) } else { (near, far) };
    Relay::with_options(
        a,
        b,
        RelayOptions::new().engine(variant.engine).idle_timeout(idle_timeout),
    )
}

#[tokio::test]
async fn a_cancelled_relay_delivers_what_it_read_and_leaves_the_rest() {
    every_way(async |variant| {
        let Ends {
            mut near,
            mut near_end,
            mut far,
            mut far_end,
        } = Ends::new();
        let mut relay = relay(variant, None, &mut near_end, &mut far_end);
        let cancel = relay.cancel_handle();
        let sending = tokio::spawn(async move {
            Pattern::new(1).send(&mut near, 32 * MIB).await;
            near.shutdown().await.unwrap();
        });
        let mut wanted = Pattern::new(1);
        let reading = async {
            let mut buffer = vec![0; MIB as usize];
            loop {
                let read = far.read(&mut buffer).await.unwrap();
                wanted.check(&buffer[..read]);
                if wanted.at() >= 8 * MIB {
                    cancel.cancel(Duration::from_secs(60));
                }
            }
        };
        let summary = guard(async {
            tokio::select! {
                summary = relay => summary,
                () = reading => unreachable!("nothing is shut down"),
            }
        });
        let summary = summary.await;
        let done = Done::of(summary.unwrap(), variant.swapped);
        assert_eq!((done.end, done.forth.lost), (EndReason::Cancelled, 0));
        assert!(!done.forth.eof && !done.back.eof);
        assert_eq!(done.forth.spliced > MIB, variant.splices(), "{:?}", done.forth);
        // The delivered bytes come first, and then the rest from the source itself. No byte is
        // missing in between.
        guard(wanted.expect(&mut far, done.forth.bytes - wanted.at())).await;
        guard(wanted.expect_end(&mut near_end, 32 * MIB)).await;
        sending.await.unwrap();
        // No stream was shut down.
        far_end.write_all(b"more").await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_not_delivered_by_the_deadline_are_lost_and_counted() {
    every_way(async |variant| {
        let Ends {
            mut near,
            mut near_end,
            mut far,
            mut far_end,
        } = Ends::new();
        let mut relay = relay(variant, None, &mut near_end, &mut far_end);
        let cancel = relay.cancel_handle();
        let sending = tokio::spawn(async move {
            Pattern::new(2).send(&mut near, 16 * MIB).await;
            near.shutdown().await.unwrap();
        });
        // The far peer does not read. Soon both sockets are full, and the relay holds bytes.
        let cancelling = async {
            pass(Duration::from_secs(1)).await;
            cancel.cancel(Duration::from_secs(5));
            Instant::now()
        };
        let (summary, asked) = tokio::join!(relay, cancelling);
        assert!(asked.elapsed() >= Duration::from_secs(5), "it waits for the deadline");
        let done = Done::of(summary.unwrap(), variant.swapped);
        assert_eq!(done.end, EndReason::Cancelled);
        assert!(done.forth.lost > 0, "{:?}", done.forth);
        let mut wanted = Pattern::new(2);
        wanted.expect(&mut far, done.forth.bytes).await;
        // The stream continues after the lost bytes.
        wanted.take(done.forth.lost as usize);
        wanted.expect_end(&mut near_end, 16 * MIB).await;
        sending.await.unwrap();
    })
    .await;
}

/// A relay is dropped without a cancel if its task is aborted, or if another branch of a `select!`
/// wins.
#[tokio::test(start_paused = true)]
async fn bytes_held_by_a_dropped_relay_are_lost_and_counted() {
    every_way(async |variant| {
        let Ends {
            mut near,
            mut near_end,
            mut far,
            mut far_end,
        } = Ends::new();
        let relay = relay(variant, None, &mut near_end, &mut far_end);
        let stats = relay.stats();
        let sending = tokio::spawn(async move {
            Pattern::new(3).send(&mut near, 16 * MIB).await;
            near.shutdown().await.unwrap();
        });
        let stuck = tokio::time::timeout(Duration::from_secs(1), relay);
        assert!(stuck.await.is_err(), "nobody reads");
        let done = Done::of(stats.snapshot(), variant.swapped);
        assert_eq!(done.end, EndReason::Dropped);
        assert!(done.forth.lost > 0 && done.back.lost == 0, "{:?}", done.forth);
        let mut wanted = Pattern::new(3);
        wanted.expect(&mut far, done.forth.bytes).await;
        // The stream continues after the lost bytes.
        wanted.take(done.forth.lost as usize);
        wanted.expect_end(&mut near_end, 16 * MIB).await;
        sending.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_idle_or_unstarted_relay_ends_immediately_when_cancelled() {
    every_way(async |variant| {
        for early in [false, true] {
            let Ends {
                near,
                mut near_end,
                far,
                mut far_end,
            } = Ends::new();
            let mut relay = relay(variant, None, &mut near_end, &mut far_end);
            let cancel = relay.cancel_handle();
            if early {
                cancel.cancel(Duration::ZERO);
            }
            let later = async {
                turns(20).await;
                cancel.cancel(Duration::ZERO);
            };
            let (summary, ()) = guard(async { tokio::join!(relay, later) }).await;
            assert_eq!(summary.unwrap().end, EndReason::Cancelled);
            drop((near, far));
        }
    })
    .await;
}

#[tokio::test]
async fn a_handle_taken_while_the_relay_runs_cancels_it() {
    every_way(async |variant| {
        for timed in [false, true] {
            let Ends {
                near,
                mut near_end,
                far,
                mut far_end,
            } = Ends::new();
            let timeout = timed.then_some(Duration::from_secs(600));
            let mut relay = relay(variant, timeout, &mut near_end, &mut far_end);
            let stats = relay.stats();
            let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut relay).poll(cx).is_ready())).await;
            assert!(!polled);
            assert_eq!(stats.snapshot().end, EndReason::Running);
            let cancel = relay.cancel_handle();
            let later = async {
                turns(20).await;
                cancel.cancel(Duration::ZERO);
            };
            let (summary, ()) = guard(async { tokio::join!(relay, later) }).await;
            assert_eq!(summary.unwrap().end, EndReason::Cancelled);
            assert_eq!(stats.snapshot().end, EndReason::Cancelled);
            drop((near, far));
        }
    })
    .await;
}

#[tokio::test]
async fn a_handle_taken_after_the_first_poll_wakes_an_idle_relay() {
    every_way(async |variant| {
        for timed in [false, true] {
            let Ends {
                near,
                mut near_end,
                far,
                mut far_end,
            } = Ends::new();
            let timeout = timed.then_some(Duration::from_secs(600));
            let relay = relay(variant, timeout, &mut near_end, &mut far_end);
            let mut relay = task::spawn(relay);
            assert_pending!(relay.poll());
            let cancel = relay.cancel_handle();
            assert!(!relay.is_woken(), "nothing has happened yet");
            cancel.cancel(Duration::ZERO);
            assert!(relay.is_woken(), "the task is told to look");
            assert_eq!(assert_ready!(relay.poll()).unwrap().end, EndReason::Cancelled);
            drop((near, far));
        }
    })
    .await;
}

/// A relay may be created outside a runtime, and polled inside one.
#[test]
fn a_handle_can_be_taken_outside_of_a_runtime() {
    let ((_near, a), (_far, b)) = (tokio::io::duplex(64), tokio::io::duplex(64));
    let mut relay = Relay::with_options(a, b, RelayOptions::new().idle_timeout(Duration::from_secs(60)));
    let cancel = relay.cancel_handle();
    cancel.cancel(Duration::ZERO);
    assert_eq!(block_on(relay).unwrap().end, EndReason::Cancelled);
}

/// The documentation of `cancel` states that neither stream is shut down. This holds even if the
/// end of one stream was meant to end both.
#[tokio::test]
async fn cancelling_a_relay_that_closes_both_shuts_no_stream_down() {
    every_way(async |variant| {
        let ((near, mut near_end), (far, mut far_end)) = (tcp_small().await, tcp().await);
        let (a, b) = if variant.swapped {
            (&mut far_end, &mut near_end)
        } else {
            (&mut near_end, &mut far_end)
        };
        let mut relay = Relay::with_options(
            a,
            b,
            RelayOptions::new()
                .engine(variant.engine)
                .half_close(HalfClose::CloseBoth),
        );
        let cancel = relay.cancel_handle();
        let stats = relay.stats();
        let peers = async {
            // The near peer does not read, so the far peer's bytes are stuck when the near peer's
            // end arrives.
            let bytes = Pattern::new(5).take(MIB as usize);
            let mut sent = 0;
            for _ in 0..500 {
                sent += try_send(&far, &bytes[sent..]);
                turns(1).await;
            }
            finish(&near);
            let mut end = [0];
            far.readable().await.unwrap();
            assert_eq!(far.try_read(&mut end).unwrap(), 0);
            turns(10).await;
            cancel.cancel(Duration::from_secs(60));
            let mut wanted = Pattern::new(5);
            let mut buf = vec![0; MIB as usize];
            while stats.snapshot().end == EndReason::Running {
                match near.try_read(&mut buf) {
                    Ok(bytes) => wanted.check(&buf[..bytes]),
                    Err(_) => turns(1).await,
                }
            }
            wanted
        };
        let (summary, mut wanted) = guard(async { tokio::join!(relay, peers) }).await;
        assert_eq!(summary.unwrap().end, EndReason::Cancelled);
        near_end.write_all(b"!").await.unwrap();
        drop(near_end);
        let mut rest = Vec::new();
        let mut near = near;
        let _ = near.read_to_end(&mut rest).await;
        let last = rest.pop();
        wanted.check(&rest);
        assert_eq!(last, Some(b'!'), "it was not shut down");
    })
    .await;
}
