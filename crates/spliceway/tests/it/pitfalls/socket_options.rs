//! Options that the caller has set on a socket before the relay gets it.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::net::RecvFlags;
use spliceway::{CopyOptions, DirectionSummary, Engine, PipePool, copy_with_options};
use spliceway_faults::{SocketOption, set_option};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::support::pattern::Pattern;
use crate::support::rig::{Setup, both_ways_and_engines, limits};
use crate::support::{BULK, Duplex, KIB, MIB, finish, guard, tcp, tcp_small, turns};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];

/// Sends a byte whose time stays in the error queue of `end`. Returns another descriptor of `end`.
async fn fill_error_queue((far, end): &mut (TcpStream, TcpStream)) -> OwnedFd {
    set_option(&*end, SocketOption::Timestamping, SocketOption::SENT_TIMES).unwrap();
    end.write_all(b"!").await.unwrap();
    set_option(&*end, SocketOption::Timestamping, 0).unwrap();
    far.read_exact(&mut [0]).await.unwrap();
    end.as_fd().try_clone_to_owned().unwrap()
}

/// Asserts that the error queue still has its entry.
fn assert_error_queue_is_full(end: &OwnedFd) {
    let mut nothing = [0; 64];
    let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
    rustix::net::recv(end, &mut nothing[..], flags).expect("the caller's entry in the error queue");
}

#[tokio::test]
async fn a_full_sink_with_an_error_queue_costs_no_polls() {
    both_ways_and_engines(async |setup: Setup| {
        let (near, mut far) = (tcp_small().await, tcp_small().await);
        let far_end = fill_error_queue(&mut far).await;
        let pool = PipePool::new(setup.limits.clone());
        let (laid, relay) = setup.lay_between(pool, near, far);
        let mut rig = laid.run(relay);
        let mut sent = Pattern::new(1);
        rig.push_until_stuck(&mut sent, None).await;
        // The other direction wakes the task, but the sink gets no room.
        let (mut back_sent, mut back) = (Pattern::new(2), Pattern::new(2));
        tokio::join!(back_sent.send(&mut rig.far, MIB), back.expect(&mut rig.near, MIB));
        rig.assert_sleeps(|| false).await;
        finish(&rig.near);
        Pattern::new(1).expect_end(&mut rig.far, sent.at()).await;
        drop(rig.far);
        assert_eq!(rig.relay.end().await.bytes(), (sent.at(), MIB));
        assert_error_queue_is_full(&far_end);
    })
    .await;
}

/// Copies from `source` to `sink`, and counts the polls.
fn counted_copy(
    mut source: pipe::Receiver,
    mut sink: TcpStream,
    engine: Engine,
) -> (JoinHandle<io::Result<DirectionSummary>>, Arc<AtomicU64>) {
    let polls = Arc::<AtomicU64>::default();
    let seen = Arc::clone(&polls);
    let task = tokio::spawn(async move {
        let pool = PipePool::new(limits());
        let options = CopyOptions::new().engine(engine).pool(&pool);
        let mut copy = pin!(copy_with_options(&mut source, &mut sink, &options));
        poll_fn(|cx| {
            seen.fetch_add(1, Relaxed);
            copy.as_mut().poll(cx)
        })
        .await
    });
    (task, polls)
}

#[tokio::test]
async fn a_full_sink_of_a_pipe_with_an_error_queue_costs_no_polls() {
    for engine in ENGINES {
        let (mut sender, receiver) = pipe::pipe().unwrap();
        let mut sink = tcp_small().await;
        let end = fill_error_queue(&mut sink).await;
        let (mut far, near) = sink;
        let (task, polls) = counted_copy(receiver, near, engine);
        let sending = tokio::spawn(async move { Pattern::new(1).send(&mut sender, BULK).await });
        let mut quiet_turns = 0;
        guard(async {
            while quiet_turns < 1_000 {
                let before = polls.load(Relaxed);
                turns(1).await;
                quiet_turns = if polls.load(Relaxed) == before {
                    quiet_turns + 1
                } else {
                    0
                };
            }
            assert!(!sending.is_finished(), "{engine:?}: the sink is not full");
            Pattern::new(1).expect(&mut far, BULK).await;
            assert_eq!(task.await.unwrap().unwrap().bytes, BULK);
        })
        .await;
        assert_error_queue_is_full(&end);
    }
}

/// Sends a few bytes, relays them with each engine, and expects them. Then it sends more.
async fn exchange<S: Duplex + AsFd + 'static>(engine: Engine, [mut near, near_end, mut far, far_end]: [S; 4]) {
    let mut four = [0; 4];
    near.write_all(b"head").await.unwrap();
    far.write_all(b"HEAD").await.unwrap();
    // The runtime learns that both ends are readable.
    turns(50).await;
    let task = tokio::spawn(async move {
        let pool = PipePool::new(limits());
        let options = spliceway::RelayOptions::new().engine(engine).pool(&pool);
        spliceway::Relay::with_options(near_end, far_end, options).await
    });
    far.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"head");
    near.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"HEAD");
    for bytes in [100, MIB, 100] {
        let (mut sent, mut expected) = (Pattern::new(bytes), Pattern::new(bytes));
        tokio::join!(sent.send(&mut near, bytes), expected.expect(&mut far, bytes));
        let (mut sent, mut expected) = (Pattern::new(bytes), Pattern::new(bytes));
        tokio::join!(sent.send(&mut far, bytes), expected.expect(&mut near, bytes));
    }
    near.shutdown().await.unwrap();
    assert_eq!(far.read(&mut four).await.unwrap(), 0);
    far.write_all(b"last").await.unwrap();
    near.read_exact(&mut four).await.unwrap();
    far.shutdown().await.unwrap();
    assert_eq!(near.read(&mut four).await.unwrap(), 0);
    let summary = task.await.unwrap().unwrap();
    let (forth, back) = (summary.a_to_b.bytes, summary.b_to_a.bytes);
    assert_eq!((forth, back), (MIB + 204, MIB + 208));
}

#[tokio::test]
async fn options_that_the_caller_has_set_hide_no_byte() {
    use SocketOption as Set;
    let options = [
        (Set::PeekOffset, 0),
        (Set::PeekOffset, 3),
        (Set::PeekOffset, 1 << 20),
        (Set::LowWaterMark, 2),
        (Set::Timestamping, SocketOption::SENT_TIMES),
        (Set::ZeroCopy, 1),
        (Set::BusyPoll, 50),
        (Set::PassCredentials, 1),
        (Set::UrgentInline, 1),
        (Set::ReportQueue, 1),
        (Set::UnsentLowWaterMark, 1),
        (Set::WindowClamp, 4 << 10),
    ];
    for (option, value) in options {
        for engine in ENGINES {
            eprintln!("{option:?} = {value}, {engine:?}");
            let ((near, a), (far, b)) = (tcp().await, tcp().await);
            let is_set = [&a, &b].map(|end| set_option(end, option, value).is_ok()) == [true; 2];
            if is_set {
                guard(exchange(engine, [near, a, far, b])).await;
            }
            let ((near, a), (far, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
            let is_set = [&a, &b].map(|end| set_option(end, option, value).is_ok()) == [true; 2];
            if is_set {
                guard(exchange(engine, [near, a, far, b])).await;
            }
        }
    }
}

/// If the sink is full, the relay looks at the source. It must see the bytes there, and wait for
/// the sink alone.
#[tokio::test]
async fn a_peek_offset_does_not_hide_the_bytes_for_a_full_pipe() {
    const BYTES: u64 = 512 * KIB;
    for engine in ENGINES {
        let (mut near, mut source) = tcp().await;
        if let Err(error) = set_option(&source, SocketOption::PeekOffset, 1 << 30) {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()));
            println!("skipped: TCP has SO_PEEK_OFF since Linux 6.9");
            return;
        }
        let (mut sink, mut receiver) = pipe::pipe().unwrap();
        let copy = tokio::spawn(async move {
            let pool = PipePool::new(limits());
            let options = CopyOptions::new().engine(engine).pool(&pool).limit(BYTES);
            copy_with_options(&mut source, &mut sink, &options).await
        });
        guard(async {
            Pattern::new(1).send(&mut near, BYTES).await;
            turns(200).await;
            Pattern::new(1).expect(&mut receiver, BYTES).await;
            assert_eq!(copy.await.unwrap().unwrap().bytes, BYTES, "{engine:?}");
        })
        .await;
    }
}
