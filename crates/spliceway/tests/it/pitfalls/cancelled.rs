//! A relay may be dropped or fail at any point. Its pipes may then hold bytes, and no other
//! connection may ever receive them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use rustix::net::sockopt::set_socket_linger;
use spliceway::{Engine, PipePool, RelayOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::{Pattern, Random};
use crate::support::rig::{Rig, Setup, limits, push};
use crate::support::{MIB, guard, tcp_small, turns};

#[tokio::test]
async fn dirty_pipes_never_reach_another_connection() {
    const LIVES: u64 = 240;
    const AT_ONCE: usize = 24;
    // Just enough pipes for every direction to splice, so each pipe serves many connections.
    let pool = PipePool::new(limits().with_max_pipes(2 * AT_ONCE));
    let mut living = tokio::task::JoinSet::new();
    let mut whole = 0;
    for seed in 0..LIVES {
        if living.len() == AT_ONCE {
            whole += u64::from(guard(living.join_next()).await.unwrap().unwrap());
        }
        living.spawn(one_life(pool.clone(), seed));
    }
    while let Some(life) = guard(living.join_next()).await {
        whole += u64::from(life.unwrap());
    }
    let stats = pool.stats();
    eprintln!("{whole} of {LIVES} relays lived to their end; {stats:?}");
    assert!(whole > 0 && whole < LIVES);
    assert_eq!(stats.lent, 0, "{stats:?}");
    assert!(stats.closed_dirty > 0 && stats.reused > stats.created, "{stats:?}");
}

/// The way in which the test ends a relay early.
enum Fate {
    Dropped,
    NearResets,
    FarResets,
}

/// Runs one relay with both directions loaded, and may end it at any point. All bytes that arrive
/// must be its own, in order. Returns whether the relay ended by itself.
async fn one_life(pool: PipePool, seed: u64) -> bool {
    let mut random = Random(seed << 32);
    let engine = if random.below(2) == 0 {
        Engine::Auto
    } else {
        Engine::Splice
    };
    let setup = Setup {
        engine,
        small: random.below(2) == 0,
        ..Setup::new(random.below(2) == 0)
    };
    let Rig { near, far, relay, .. } = setup.start_in(pool).await;
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let (mut forth, mut back) = (Pattern::new(2 * seed), Pattern::new(2 * seed + 1));
    let fate = match random.below(4) {
        0 => Some(Fate::Dropped),
        1 => Some(Fate::NearResets),
        2 => Some(Fate::FarResets),
        _ => None,
    };
    let until = if fate.is_some() {
        random.below(400) as usize
    } else {
        usize::MAX
    };
    let (forth_bytes, back_bytes) = (random.below(4 * MIB), random.below(4 * MIB));
    let (slow_near, slow_far) = (random.below(8) as usize, random.below(8) as usize);
    let own_end = tokio::select! {
        _ = async { tokio::join!(
            send(&mut near_out, 2 * seed, forth_bytes),
            send(&mut far_out, 2 * seed + 1, back_bytes),
            receive(&mut far_in, &mut forth, slow_far),
            receive(&mut near_in, &mut back, slow_near),
        ) } => true,
        () = turns(until) => false,
    };
    if own_end {
        assert_eq!(relay.end().await.bytes(), (forth_bytes, back_bytes));
        assert_eq!((forth.at(), back.at()), (forth_bytes, back_bytes));
        return true;
    }
    // If a peer has half-closed, the relay notices that peer's reset only when it writes to the
    // peer. So both peers are closed before the test waits for the relay.
    let reset = Some(std::time::Duration::ZERO);
    match fate.unwrap() {
        Fate::Dropped => relay.task.abort(),
        Fate::NearResets => {
            set_socket_linger(near_in.as_ref(), reset).unwrap();
            drop((near_in, near_out));
            forth.expect_until_broken(&mut far_in).await;
            drop((far_in, far_out));
        }
        Fate::FarResets => {
            set_socket_linger(far_in.as_ref(), reset).unwrap();
            drop((far_in, far_out));
            back.expect_until_broken(&mut near_in).await;
            drop((near_in, near_out));
        }
    }
    let _ = relay.task.await;
    false
}

async fn send(to: &mut (impl AsyncWrite + Unpin), seed: u64, bytes: u64) {
    Pattern::new(seed).send(to, bytes).await;
    to.shutdown().await.unwrap();
}

/// Reads to the end, and waits for this many passes after each read.
async fn receive(from: &mut (impl AsyncRead + Unpin), wanted: &mut Pattern, rest: usize) {
    let mut buf = vec![0; 100_000];
    loop {
        match from.read(&mut buf).await.unwrap() {
            0 => return,
            got => wanted.check(&buf[..got]),
        }
        turns(rest).await;
    }
}

/// Polls `relay` this many times while both peers send and sometimes read. Then drops it, in
/// whatever state it is.
async fn dropped_after(
    polls: usize,
    mut relay: Pin<Box<dyn Future<Output = ()> + '_>>,
    near: &TcpStream,
    far: &TcpStream,
) {
    let (mut forth, mut back) = (Pattern::new(1), Pattern::new(2));
    let mut buf = vec![0; 100_000];
    for poll in 0..polls {
        push(near, &mut forth);
        if poll % 3 > 0 {
            push(far, &mut back);
        }
        poll_fn(|cx| {
            let _ = relay.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
        turns(1).await;
        if poll % 4 == 3 {
            let _ = (near.try_read(&mut buf), far.try_read(&mut buf));
        }
    }
}

#[test]
fn a_future_dropped_at_any_point_leaks_nothing() {
    const NAME: &str = "pitfalls::cancelled::a_future_dropped_at_any_point_leaks_nothing";
    in_child(NAME, None, || {
        block_on(async {
            let at_start = open_descriptors();
            let mut lent_at_some_drop = false;
            for polls in 0..48 {
                for engine in [None, Some(Engine::Auto), Some(Engine::Splice)] {
                    let ((near, a), (far, b)) = (tcp_small().await, tcp_small().await);
                    let (mut a, mut b) = if polls % 2 == 0 { (a, b) } else { (b, a) };
                    let pool = match engine {
                        Some(_) => PipePool::new(limits()),
                        None => PipePool::global().clone(),
                    };
                    let relay: Pin<Box<dyn Future<Output = ()>>> = match engine {
                        Some(engine) => {
                            let relay =
                                spliceway::Relay::with_options(a, b, RelayOptions::new().engine(engine).pool(&pool));
                            Box::pin(async { drop(relay.await) })
                        }
                        None => Box::pin(async move { drop(spliceway::copy_bidirectional(&mut a, &mut b).await) }),
                    };
                    dropped_after(polls, relay, &near, &far).await;
                    let stats = pool.stats();
                    lent_at_some_drop |= stats.closed_dirty > 0;
                    assert_eq!(stats.lent, 0, "{polls} polls, {engine:?}: {stats:?}");
                    drop((near, far));
                    assert_eq!(open_descriptors(), at_start + 2 * (stats.idle + other_idle(&pool)));
                }
            }
            assert!(lent_at_some_drop, "no drop met a relay with a pipe in use");
        });
    });
}

/// Returns the number of idle pipes in the process's pool, if `pool` is another pool.
fn other_idle(pool: &PipePool) -> usize {
    let global = PipePool::global();
    if pool.limits() == global.limits() {
        0
    } else {
        global.stats().idle
    }
}
