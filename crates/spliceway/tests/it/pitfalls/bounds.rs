//! Bytes in a pipe count towards no socket buffer, so only the relay limits what it holds for a
//! slow sink.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use spliceway::{Direction, DirectionSummary, Engine, Operation, PipePool, PipeSize, Relay, RelayOptions, SizeClass};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{KIB, MIB, finish, guard, reset, tcp, tcp_small, try_send, turns};

/// The most bytes that a direction holds if it copies: the rest of one receive.
const SCRATCH: u64 = 64 * KIB;
/// Enough bytes for a flow to count as bulk, and for the windows to open.
const WARM_UP: u64 = 2 * MIB;

#[tokio::test]
async fn a_slow_sink_holds_one_pipe_and_every_byte_is_counted() {
    let fixed = SizeClass::ALL.map(|class| (Engine::Splice, PipeSize::Fixed(class), class.bytes() as u64));
    let others = [
        (Engine::Auto, PipeSize::Auto, SizeClass::Mib1.bytes() as u64),
        (Engine::Splice, PipeSize::Auto, SizeClass::Mib1.bytes() as u64),
        (Engine::Copy, PipeSize::Auto, SCRATCH),
    ];
    for (engine, size, cap) in fixed.into_iter().chain(others) {
        for swapped in [false, true] {
            for end in [End::Dropped, End::Reset] {
                let held = guard(held_for_a_blocked_sink(engine, size, swapped, end)).await;
                assert!(
                    held > 0 && held <= cap,
                    "{engine:?}, {size:?}, {end:?}: {held} bytes held"
                );
            }
        }
    }
}

/// The way in which a direction with bytes in flight ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Dropped,
    /// The far peer resets its connection, so the write fails.
    Reset,
}

/// Ends a direction whose sink accepts no more, and returns how many bytes it held. This is the
/// number of sent bytes, less the bytes that the far peer received and those that are still in the
/// source.
async fn held_for_a_blocked_sink(engine: Engine, size: PipeSize, swapped: bool, end: End) -> u64 {
    let ((mut near, mut near_end), (mut far, mut far_end)) = (tcp().await, tcp_small().await);
    let pool = PipePool::new(limits());
    let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
    let moved = {
        let (a, b) = if swapped {
            (&mut far_end, &mut near_end)
        } else {
            (&mut near_end, &mut far_end)
        };
        let relay = Relay::with_options(a, b, RelayOptions::new().engine(engine).pipe_size(size).pool(&pool));
        let stats = relay.stats();
        let forth = || {
            let summary = stats.snapshot();
            if swapped { summary.b_to_a } else { summary.a_to_b }
        };
        let mut relay = pin!(relay);
        let bulk = async { tokio::join!(sent.send(&mut near, WARM_UP), wanted.expect(&mut far, WARM_UP)) };
        tokio::select! {
            _ = bulk => {}
            _ = relay.as_mut() => panic!("the relay ended"),
        }
        push_until_stuck(relay.as_mut(), &near, &mut sent, &forth).await;
        if engine != Engine::Copy {
            assert!(pool.stats().lent == 1 && forth().spliced > 0, "{:?}", forth());
        }
        if end == End::Reset {
            let (placeholder, _) = tcp().await;
            reset(std::mem::replace(&mut far, placeholder));
            let error = relay.await.unwrap_err();
            // If the other direction sees the reset first, its read fails.
            let forth_failed = (error.direction == Direction::AToB) != swapped;
            let operation = if forth_failed {
                Operation::Write
            } else {
                Operation::Read
            };
            assert_eq!(error.operation, operation, "{error:?}");
        }
        forth()
    };
    let stats = pool.stats();
    assert_eq!(stats.lent, 0, "{stats:?}");
    assert!(stats.closed_dirty > 0 || engine == Engine::Copy, "{stats:?}");
    if end == End::Dropped {
        drop(far_end);
        wanted.expect_end(&mut far, moved.bytes).await;
    }
    finish(&near);
    let mut rest = Vec::new();
    near_end.read_to_end(&mut rest).await.unwrap();
    let held = sent.at() - moved.bytes - rest.len() as u64;
    let mut untaken = Pattern::new(1);
    untaken.take((moved.bytes + held) as usize);
    untaken.check(&rest);
    held
}

/// The bytes in a pipe of 1 MiB stay there as long as the sink is full.
#[tokio::test]
async fn a_sink_that_is_full_gets_no_further_pipe_of_1_mib() {
    let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp_small().await);
    let pool = PipePool::new(limits());
    let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
    let mut relay = pin!(Relay::with_options(
        near_end,
        far_end,
        RelayOptions::new().engine(Engine::Splice).pool(&pool)
    ));
    let stats = relay.stats();
    let bulk = async { tokio::join!(sent.send(&mut near, 8 * WARM_UP), wanted.expect(&mut far, 8 * WARM_UP)) };
    tokio::select! {
        _ = bulk => {}
        _ = relay.as_mut() => panic!("the relay ended"),
    }
    push_until_stuck(relay.as_mut(), &near, &mut sent, &|| stats.snapshot().a_to_b).await;
    let state = format!("{relay:?}");
    assert!(
        state.contains("class: Kib256") && !state.contains("class: Mib1"),
        "{state}"
    );
}

/// Polls the relay until no byte moves any more. Meanwhile, keeps the near peer's socket and the
/// relay's own socket full.
async fn push_until_stuck(
    mut relay: Pin<&mut impl Future>,
    near: &TcpStream,
    sent: &mut Pattern,
    moved: &impl Fn() -> DirectionSummary,
) {
    // The pieces are large, so that their fragments are larger than a page.
    const PIECE: usize = 256 << 10;
    let (mut piece, mut quiet) = (Vec::new(), 0);
    while quiet < 500 {
        let before = (moved(), sent.at() - piece.len() as u64);
        loop {
            if piece.is_empty() {
                piece = sent.take(PIECE);
            }
            match try_send(near, &piece) {
                0 => break,
                pushed => drop(piece.drain(..pushed)),
            }
        }
        poll_fn(|cx| {
            assert!(relay.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        turns(1).await;
        let still = (moved(), sent.at() - piece.len() as u64) == before;
        quiet = if still { quiet + 1 } else { 0 };
    }
    sent.unsend(piece.len());
}
