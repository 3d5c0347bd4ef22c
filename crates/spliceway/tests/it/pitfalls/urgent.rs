//! A splice stops at an urgent mark forever, and returns 0 there if a FIN follows. A receive steps
//! over the mark.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use spliceway::{Relay, RelayOptions};
use tokio::io::{AsyncReadExt, BufStream};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Builder;

use crate::support::child::block_on;
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, both_ways, both_ways_and_engines};
use crate::support::{BULK, KIB, MIB, finish, guard, send_urgent, tcp, turns};

/// The mark comes before the relay has moved a byte. Bulk follows, and then an end if `with_fin` is
/// set.
#[tokio::test]
async fn an_urgent_byte_at_the_start_hides_no_later_byte() {
    for with_fin in [false, true] {
        both_ways_and_engines(async |setup| {
            let mut rig = setup.start().await;
            send_urgent(&rig.near).await;
            arrives(&mut rig, Pattern::new(1), 0, with_fin).await;
            assert!(rig.relay.moved().forth.spliced > BULK / 2, "{:?}", rig.relay.moved());
            done(rig, with_fin).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_urgent_byte_in_a_splice_run_hides_no_later_byte() {
    for with_fin in [false, true] {
        both_ways_and_engines(async |setup| {
            let mut rig = setup.start().await;
            let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
            tokio::join!(sent.send(&mut rig.near, BULK), wanted.expect(&mut rig.far, BULK));
            assert!(rig.relay.moved().forth.spliced > 0);
            for _ in 0..3 {
                // The far peer does not read, so the mark comes while the relay holds a pipe, with
                // bytes before and after it.
                rig.push_until_stuck(&mut sent, None).await;
                let queued = sent.at();
                let urgent_then_more = async {
                    send_urgent(&rig.near).await;
                    sent.send(&mut rig.near, MIB).await;
                };
                tokio::join!(
                    urgent_then_more,
                    wanted.expect(&mut rig.far, queued - wanted.at() + MIB)
                );
            }
            arrives(&mut rig, sent, wanted.at(), with_fin).await;
            done(rig, with_fin).await;
        })
        .await;
    }
}

/// Everything is in the source's queue before the first poll, and nothing follows. So the relay
/// must not lose the only edge. If the end is in the queue too, splice returns 0 at the mark.
#[tokio::test]
async fn bytes_queued_around_an_urgent_byte_before_the_first_poll_arrive() {
    let (small, large) = (100 * KIB, 200 * KIB);
    for (before, after) in [
        (6, 5),
        (0, 5),
        (5, 0),
        (30 * KIB, 20 * KIB),
        (small, small),
        (1, large),
        (large, 1),
    ] {
        for with_fin in [false, true] {
            both_ways_and_engines(async |setup| {
                let pool = spliceway::PipePool::new(setup.limits.clone());
                let (mut laid, relay) = setup.lay_out(pool).await;
                let (mut sent, mut wanted) = (Pattern::new(3), Pattern::new(3));
                sent.send(&mut laid.near, before).await;
                send_urgent(&laid.near).await;
                sent.send(&mut laid.near, after).await;
                if with_fin {
                    finish(&laid.near);
                }
                let mut rig = laid.run(relay);
                wanted.expect(&mut rig.far, before + after).await;
                if !with_fin {
                    // The mark must not disturb the following bytes.
                    arrives(&mut rig, sent, wanted.at(), true).await;
                }
                done(rig, true).await;
            })
            .await;
        }
    }
}

/// The caller's read stopped at the mark, and tokio considers a socket drained after a short read.
/// No edge announces the bytes after the mark. With tokio's own copy, they stay in the queue until
/// the next byte arrives.
#[tokio::test]
async fn bytes_after_a_mark_that_stopped_the_callers_read_arrive() {
    for buffered in [false, true] {
        both_ways_and_engines(async |setup| {
            let ((mut near, mut near_end), (mut far, far_end)) = (tcp().await, tcp().await);
            let (mut sent, mut wanted) = (Pattern::new(6), Pattern::new(6));
            sent.send(&mut near, 6).await;
            send_urgent(&near).await;
            sent.send(&mut near, 5).await;
            // All bytes are queued before the read.
            while near_end.peek(&mut [0; 64]).await.unwrap() < 6 {}
            turns(10).await;
            let mut start = [0; 64];
            let read = near_end.read(&mut start).await.unwrap();
            wanted.check(&start[..read]);
            assert_eq!(read, 6, "a read stops at the mark");
            let relay = async {
                let near_end = BufStream::new(near_end);
                let relayed = match (buffered, setup.swapped) {
                    (false, false) => {
                        Relay::with_options(near_end.into_inner(), far_end, RelayOptions::new().engine(setup.engine))
                            .await
                    }
                    (false, true) => {
                        Relay::with_options(far_end, near_end.into_inner(), RelayOptions::new().engine(setup.engine))
                            .await
                    }
                    (true, false) => {
                        Relay::with_options(near_end, far_end, RelayOptions::new().engine(setup.engine)).await
                    }
                    (true, true) => {
                        Relay::with_options(far_end, near_end, RelayOptions::new().engine(setup.engine)).await
                    }
                };
                relayed.unwrap();
            };
            let peers = async {
                wanted.expect(&mut far, 5).await;
                finish(&near);
                finish(&far);
            };
            tokio::join!(relay, peers);
        })
        .await;
    }
}

#[tokio::test]
async fn small_messages_around_urgent_bytes_arrive_one_by_one() {
    both_ways_and_engines(async |setup| {
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(4), Pattern::new(4));
        for round in 0..200 {
            // The relay is idle again before each round: the message has arrived, and the relay has
            // found that nothing follows.
            let (before, after) = (round % 3, round % 4 + 1);
            sent.send(&mut rig.near, before).await;
            send_urgent(&rig.near).await;
            sent.send(&mut rig.near, after).await;
            wanted.expect(&mut rig.far, before + after).await;
            turns(3).await;
        }
        // The last byte of the stream is urgent.
        send_urgent(&rig.near).await;
        finish(&rig.near);
        wanted.expect_end(&mut rig.far, wanted.at()).await;
        done(rig, true).await;
    })
    .await;
}

#[tokio::test]
async fn urgent_bytes_of_both_peers_do_not_mix_up_the_directions() {
    both_ways(async |setup| {
        const ROUNDS: u64 = 16;
        let Rig { near, far, relay, .. } = setup.start().await;
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        let stream = async |out: &mut OwnedWriteHalf, from: &mut OwnedReadHalf, seed: u64| {
            let (mut sent, mut wanted) = (Pattern::new(seed), Pattern::new(seed));
            for _ in 0..ROUNDS {
                let send = async {
                    sent.send(out, MIB / 2 + seed).await;
                    send_urgent(out.as_ref()).await;
                    sent.send(out, MIB / 2).await;
                };
                tokio::join!(send, wanted.expect(from, MIB + seed));
            }
            finish(out.as_ref());
            wanted.expect_end(from, wanted.at()).await;
        };
        tokio::join!(
            stream(&mut near_out, &mut far_in, 5),
            stream(&mut far_out, &mut near_in, 6)
        );
        let total = |seed| ROUNDS * (MIB + seed);
        let moved = relay.end().await;
        assert_eq!(moved.bytes(), (total(5), total(6)));
        assert!(moved.forth.spliced > 0 && moved.back.spliced > 0, "{moved:?}");
    })
    .await;
}

/// A connection that is closed with unread bytes is reset, and an unread urgent byte is such a
/// byte. The peer would then lose bytes that it has not read yet.
#[tokio::test]
async fn an_urgent_byte_before_the_end_does_not_turn_the_close_into_a_reset() {
    /// More than the far peer's window while the far peer reads nothing.
    const TAIL: u64 = 200 * KIB;
    both_ways_and_engines(async |setup| {
        let pool = spliceway::PipePool::new(setup.limits.clone());
        let (mut laid, relay) = setup.lay_out(pool).await;
        // All of this is queued before the relay begins, so the relay meets the mark and the end
        // together.
        Pattern::new(9).send(&mut laid.far, 1000).await;
        send_urgent(&laid.far).await;
        finish(&laid.far);
        let mut rig = laid.run(relay);
        Pattern::new(8).send(&mut rig.near, TAIL).await;
        finish(&rig.near);
        Pattern::new(9).expect_end(&mut rig.near, 1000).await;
        let moved = rig.relay.end().await;
        assert_eq!(moved.bytes(), (TAIL, 1000));
        Pattern::new(8).expect_end(&mut rig.far, TAIL).await;
    })
    .await;
}

#[test]
fn a_mark_hides_nothing_whatever_thread_the_relay_runs_on() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..50 {
        runtime.block_on(async { tokio::spawn(guard(passes_a_mark())).await.unwrap() });
        // This thread is not a worker of the runtime, so there is no scheduler that polls for
        // events.
        runtime.block_on(guard(passes_a_mark()));
    }
}

/// The runtime stops between the short receive and its next poll for events.
#[test]
fn a_mark_hides_nothing_from_a_runtime_that_stops_and_continues() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut at_a_mark = runtime.block_on(guard(AtAMark::new()));
    let mut relay = at_a_mark.relay();
    runtime.block_on(poll_once(&mut relay));
    runtime.block_on(guard(at_a_mark.peers.pass(relay)));
}

/// A later runtime on the same thread still finds a mark.
#[test]
fn a_mark_hides_nothing_from_a_runtime_after_one_that_ended_at_a_mark() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut at_a_mark = AtAMark::new().await;
        poll_once(&mut at_a_mark.relay()).await;
    });
    drop(runtime);
    block_on(guard(passes_a_mark()));
}

/// The two ends of a relay. The queue of the first end has three bytes, an urgent byte and three
/// more bytes. The runtime has reported all of them, once.
struct AtAMark {
    ends: Option<(TcpStream, TcpStream)>,
    peers: Peers,
}

/// The peers of both ends.
struct Peers {
    near: TcpStream,
    far: TcpStream,
}

impl AtAMark {
    async fn new() -> Self {
        let ((mut near, near_end), (far, far_end)) = (tcp().await, tcp().await);
        let mut sent = Pattern::new(10);
        sent.send(&mut near, 3).await;
        send_urgent(&near).await;
        sent.send(&mut near, 3).await;
        // The socket is registered again, so the runtime reports its bytes once. Before, it
        // reported each part that arrived.
        let near_end = TcpStream::from_std(near_end.into_std().unwrap()).unwrap();
        near_end.readable().await.unwrap();
        Self {
            ends: Some((near_end, far_end)),
            peers: Peers { near, far },
        }
    }

    fn relay(&mut self) -> Relay<TcpStream, TcpStream> {
        let (near_end, far_end) = self.ends.take().unwrap();
        Relay::new(near_end, far_end)
    }
}

impl Peers {
    /// Checks that all six bytes arrive.
    async fn pass(mut self, relay: Relay<TcpStream, TcpStream>) {
        let peers = async {
            Pattern::new(10).expect(&mut self.far, 6).await;
            finish(&self.near);
            finish(&self.far);
        };
        let (relayed, ()) = tokio::join!(relay, peers);
        assert_eq!(relayed.unwrap().a_to_b.bytes, 6);
    }
}

async fn passes_a_mark() {
    let mut at_a_mark = AtAMark::new().await;
    let relay = at_a_mark.relay();
    at_a_mark.peers.pass(relay).await;
}

/// Polls the relay once. Its receive stops at the mark, and the runtime does not poll for events
/// afterwards.
async fn poll_once(relay: &mut Relay<TcpStream, TcpStream>) {
    poll_fn(|cx| {
        assert!(Pin::new(&mut *relay).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(relay.stats().snapshot().a_to_b.bytes, 3);
}

/// Sends more bulk, and then an end if `with_fin` is set. All bytes arrive after those that the far
/// peer has already seen.
async fn arrives(rig: &mut Rig, mut sent: Pattern, seen: u64, with_fin: bool) {
    assert_eq!(sent.at(), seen);
    let total = seen + BULK;
    let mut wanted = sent;
    let send = async {
        sent.send(&mut rig.near, BULK).await;
        if with_fin {
            finish(&rig.near);
        }
    };
    tokio::join!(send, wanted.expect(&mut rig.far, BULK));
    assert_eq!(wanted.at(), total);
}

/// Ends both peers' streams, and waits for the end of the relay. The far peer sees the near peer's
/// end.
async fn done(mut rig: Rig, near_has_ended: bool) {
    if !near_has_ended {
        finish(&rig.near);
    }
    assert_eq!(rig.far.read(&mut [0]).await.unwrap(), 0);
    finish(&rig.far);
    let moved = rig.relay.end().await;
    assert!(moved.forth.eof && moved.back.eof);
    assert_eq!(rig.pool.stats().lent, 0);
}
