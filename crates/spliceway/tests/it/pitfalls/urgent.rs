//! splice stops at an urgent mark, for ever, and says 0 there if a FIN follows. A receive steps
//! over it.

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

/// Before a splice run, where the relay has not moved a byte; then bulk; then the end or not.
#[tokio::test]
async fn an_urgent_byte_first_hides_nothing_behind_it() {
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
async fn an_urgent_byte_in_a_splice_run_hides_nothing_behind_it() {
    for with_fin in [false, true] {
        both_ways_and_engines(async |setup| {
            let mut rig = setup.start().await;
            let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
            tokio::join!(sent.send(&mut rig.near, BULK), wanted.expect(&mut rig.far, BULK));
            assert!(rig.relay.moved().forth.spliced > 0);
            for _ in 0..3 {
                // Nobody reads, so the mark comes while the relay holds a pipe, and with bytes
                // before it and behind it.
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

/// The edge must not be lost: everything lies in the source's queue before the relay is polled at
/// all, and nothing follows. With the end in the queue too, splice says 0 at the mark.
#[tokio::test]
async fn what_is_queued_around_an_urgent_byte_before_the_first_poll_arrives() {
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
                    // And it is not at odds with what comes next.
                    arrives(&mut rig, sent, wanted.at(), true).await;
                }
                done(rig, true).await;
            })
            .await;
        }
    }
}

/// The caller's read stopped at the mark, short of its buffer, and tokio takes a short read for a
/// drained socket. No edge comes for what lies behind the mark: with tokio's own copy it stays
/// there until the next byte.
#[tokio::test]
async fn bytes_behind_a_mark_that_stopped_the_caller_s_read_arrive() {
    for buffered in [false, true] {
        both_ways_and_engines(async |setup| {
            let ((mut near, mut near_end), (mut far, far_end)) = (tcp().await, tcp().await);
            let (mut sent, mut wanted) = (Pattern::new(6), Pattern::new(6));
            sent.send(&mut near, 6).await;
            send_urgent(&near).await;
            sent.send(&mut near, 5).await;
            // All of it is queued before the read.
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
            // Idle again before each: the message arrived, and the relay had turns to find that
            // nothing follows.
            let (before, after) = (round % 3, round % 4 + 1);
            sent.send(&mut rig.near, before).await;
            send_urgent(&rig.near).await;
            sent.send(&mut rig.near, after).await;
            wanted.expect(&mut rig.far, before + after).await;
            turns(3).await;
        }
        // A mark as the last thing of the stream.
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

/// A connection that is closed with bytes unread is reset, and an urgent byte that nobody took is
/// one. What its peer had not read by then would be lost.
#[tokio::test]
async fn an_urgent_byte_before_the_end_does_not_turn_the_close_into_a_reset() {
    /// More than the far peer's window, as long as it reads nothing.
    const TAIL: u64 = 200 * KIB;
    both_ways_and_engines(async |setup| {
        let pool = spliceway::PipePool::new(setup.limits.clone());
        let (mut laid, relay) = setup.lay_out(pool).await;
        // All of this is queued before the relay begins, so that it meets the mark and the end
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
        // On this thread there is no scheduler, whose looks for events could be waited for.
        runtime.block_on(guard(passes_a_mark()));
    }
}

/// The runtime stops between the short receive and its next look for events.
#[test]
fn a_mark_hides_nothing_from_a_runtime_that_stops_and_goes_on() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut at_a_mark = runtime.block_on(guard(AtAMark::new()));
    let mut relay = at_a_mark.relay();
    runtime.block_on(poll_once(&mut relay));
    runtime.block_on(guard(at_a_mark.peers.pass(relay)));
}

/// Nor from the next on its thread.
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

/// A relay's two ends. At the first lie three bytes, an urgent one and three more, and the runtime
/// has told of all of them, once.
struct AtAMark {
    ends: Option<(TcpStream, TcpStream)>,
    peers: Peers,
}

/// What is at the other ends.
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
        // Registered anew, it is told of once; before, with each part that came.
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
    /// All six bytes arrive.
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

/// Its receive comes short at the mark, and the runtime looks for no event behind it.
async fn poll_once(relay: &mut Relay<TcpStream, TcpStream>) {
    poll_fn(|cx| {
        assert!(Pin::new(&mut *relay).poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(relay.stats().snapshot().a_to_b.bytes, 3);
}

/// More bulk, and then an end or a last message, arrive behind what far has seen already.
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

/// The relay ends with both peers' ends, and far saw near's.
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
