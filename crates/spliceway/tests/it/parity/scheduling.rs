//! Streams that are always ready: other tasks of the thread still run.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, UnixStream};
use tokio_test::io::Builder;

use super::for_each;
use crate::support::{MIB, guard, tcp};

/// If a task makes this many calls on streams without yielding, it never yields. tokio's own budget
/// is 128 operations.
const PATIENCE: u64 = 20_000;

/// A stream that can always be read and written, and that ignores tokio's budget. It counts the
/// calls since another task ran.
#[derive(Clone, Default)]
struct Endless(Arc<AtomicU64>);

impl Endless {
    fn call(&self) {
        let calls = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(calls < PATIENCE, "no other task ran for {calls} calls");
    }
}

impl AsyncRead for Endless {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.call();
        buf.put_slice(b"more");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.call();
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// tokio's own copy relies on the streams to use the budget. A [`Relay`](spliceway::Relay) does
/// not.
#[tokio::test]
async fn a_relay_of_always_ready_streams_that_ignore_the_budget_yields() {
    let calls = Endless::default();
    let relay = tokio::spawn(spliceway::Relay::new(calls.clone(), calls.clone()));
    for _ in 0..100 {
        calls.0.store(0, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
    assert!(!relay.is_finished(), "a call panicked");
    relay.abort();
}

#[tokio::test]
async fn always_ready_streams_of_tokio_yield() {
    for_each(async |subject, swapped| {
        let endless = || tokio::io::join(tokio::io::repeat(7), tokio::io::sink());
        let relay = subject.spawn(endless(), endless(), swapped);
        crate::support::turns(100).await;
        assert!(!relay.is_finished());
        relay.abort();
    })
    .await;
}

/// Runs `short_relay` repeatedly until another task runs.
async fn gives_way(mut short_relay: impl AsyncFnMut()) {
    let loop_of_them = async {
        for _ in 0..PATIENCE {
            short_relay().await;
        }
        panic!("{PATIENCE} relays in a row without giving way");
    };
    tokio::select! {
        biased;
        () = loop_of_them => {},
        () = tokio::task::yield_now() => {},
    }
}

#[tokio::test]
async fn a_loop_of_short_relays_yields() {
    for_each(async |subject, _| {
        gives_way(async || {
            let mut a = Builder::new().read(b"short").write(b"shorter").build();
            let mut b = Builder::new().read(b"shorter").write(b"short").build();
            subject.run(&mut a, &mut b).await.unwrap();
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_loop_of_short_relays_of_streams_that_ignore_the_budget_yields() {
    for_each(async |subject, _| {
        gives_way(async || {
            let mut a = tokio::io::join(&b"short"[..], Vec::new());
            let mut b = tokio::io::join(&b"shorter"[..], Vec::new());
            assert_eq!(subject.run(&mut a, &mut b).await.unwrap(), (5, 7));
        })
        .await;
    })
    .await;
}

/// Returns a socket for a relay. The threads of its peer keep it readable and writable.
async fn saturated() -> (TcpStream, Saturating) {
    let (peer, end) = tcp().await;
    let peer = Arc::new(peer.into_std().unwrap());
    peer.set_nonblocking(false).unwrap();
    let (writing, reading) = (Arc::clone(&peer), Arc::clone(&peer));
    let writer = std::thread::spawn(move || {
        let chunk = vec![7; MIB as usize];
        while (&*writing).write_all(&chunk).is_ok() {}
    });
    let reader = std::thread::spawn(move || {
        let mut chunk = vec![0; MIB as usize];
        while matches!((&*reading).read(&mut chunk), Ok(1..)) {}
    });
    let threads = vec![writer, reader];
    (end, Saturating { peer, threads })
}

struct Saturating {
    peer: Arc<std::net::TcpStream>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Drop for Saturating {
    fn drop(&mut self) {
        let _ = self.peer.shutdown(std::net::Shutdown::Both);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

#[tokio::test]
async fn always_ready_sockets_yield() {
    for_each(async |subject, swapped| {
        let ((near_end, _near), (far_end, _far)) = (saturated().await, saturated().await);
        let relay = subject.spawn(near_end, far_end, swapped);
        crate::support::turns(2000).await;
        assert!(!relay.is_finished());
        relay.abort();
    })
    .await;
}

/// A relay that always has bytes to move, and whose polls are measured.
struct Measured {
    relay: spliceway::Relay<TcpStream, TcpStream>,
    /// The bytes of each direction so far.
    moved: [u64; 2],
    _peers: [Saturating; 2],
}

impl Measured {
    async fn new() -> Self {
        let ((a, near), (b, far)) = (saturated().await, saturated().await);
        Self {
            relay: spliceway::Relay::new(a, b),
            moved: [0; 2],
            _peers: [near, far],
        }
    }

    /// Polls until a poll moves bytes. Returns the bytes of the direction that moved more.
    async fn poll(&mut self) -> u64 {
        let stats = self.relay.stats();
        let most = poll_fn(|cx| {
            assert!(Pin::new(&mut self.relay).poll(cx).is_pending());
            let now = stats.snapshot();
            let now = [now.a_to_b.bytes, now.b_to_a.bytes];
            let before = std::mem::replace(&mut self.moved, now);
            let most = (now[0] - before[0]).max(now[1] - before[1]);
            if most > 0 { Poll::Ready(most) } else { Poll::Pending }
        })
        .await;
        // The next poll then has a new tokio budget.
        crate::support::turns(1).await;
        most
    }
}

/// A poll ends with the first step that exceeds 1 MiB in total. One step moves at most as much as
/// the largest pipe holds, 1 MiB.
#[tokio::test]
async fn a_poll_of_a_relay_moves_a_bounded_number_of_bytes() {
    guard(async {
        let mut bulk = Measured::new().await;
        let (a, mut near) = tcp().await;
        let (b, mut far) = tcp().await;
        let chatty = tokio::spawn(spliceway::Relay::new(a, b));
        for _ in 0..3 {
            for _ in 0..200 {
                let moved = bulk.poll().await;
                assert!(moved <= 5 * MIB, "{moved} bytes in one poll");
            }
            // Another relay has a message.
            near.write_all(b"?").await.unwrap();
            far.read_exact(&mut [0]).await.unwrap();
            // These polls follow that message.
            for _ in 0..15 {
                let moved = bulk.poll().await;
                assert!(moved <= 2 * MIB, "{moved} bytes in one poll soon after a message");
            }
        }
        chatty.abort();
    })
    .await;
}

/// A peer that the test drives. While the relay is polled, only bytes in the kernel's queues can
/// arrive or leave.
struct Driven {
    peer: std::net::TcpStream,
    /// A second descriptor of the relay's end, for inspection.
    end: std::net::TcpStream,
    chunk: Vec<u8>,
}

impl Driven {
    async fn connect() -> (Self, TcpStream) {
        let (peer, end) = tcp().await;
        let driven = Self {
            peer: peer.into_std().unwrap(),
            end: end.as_fd().try_clone_to_owned().unwrap().into(),
            chunk: vec![7; MIB as usize],
        };
        (driven, end)
    }

    /// Writes as many bytes as there is room for, and reads all bytes that there are.
    fn top_up(&mut self) {
        while matches!((&self.peer).write(&self.chunk), Ok(1..)) {}
        while matches!((&self.peer).read(&mut self.chunk), Ok(1..)) {}
    }

    fn is_ready_for(&self, flag: PollFlags) -> bool {
        let mut asked = [PollFd::new(&self.end, flag)];
        rustix::event::poll(&mut asked, Some(&Timespec::default())).unwrap() > 0
    }
}

/// tokio polls for events when no task is ready, or after 61 polls of tasks. If a relay that is
/// always ready woke itself, every other relay would wait for 61 of its polls.
#[tokio::test]
async fn a_relay_that_yields_continues_after_the_runtime_polled() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let ((mut near, a), (mut far, b)) = (Driven::connect().await, Driven::connect().await);
    let mut relay = spliceway::Relay::new(a, b);
    let stats = relay.stats();
    let mut turns = 0;
    let eight_turns = async {
        while turns < 8 {
            near.top_up();
            far.top_up();
            let before = stats.snapshot().a_to_b.bytes;
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&woken));
            let polled = Pin::new(&mut relay).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            let woken_at_once = woken.0.load(Ordering::SeqCst);
            let moved = stats.snapshot().a_to_b.bytes - before;
            // The poll may have ended because the source was drained or the sink was full.
            let could_go_on = near.is_ready_for(PollFlags::IN) && far.is_ready_for(PollFlags::OUT);
            crate::support::turns(1).await;
            if moved >= MIB && could_go_on {
                assert!(!woken_at_once, "woken before others had their turn");
                assert!(woken.0.load(Ordering::SeqCst), "not woken at all");
                turns += 1;
            }
        }
    };
    guard(eight_turns).await;
}

/// Polls another task inside `wake`, as executors without a queue do. It does so only on this
/// thread.
struct PollsInline {
    other: Mutex<Pin<Box<dyn Future<Output = io::Result<u64>> + Send>>>,
    thread: ThreadId,
    polls: AtomicU64,
}

impl Wake for PollsInline {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.thread == thread::current().id()
            && let Ok(mut other) = self.other.try_lock()
            && self.polls.fetch_add(1, Ordering::Relaxed) == 0
        {
            let polled = other.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "its source has not ended");
        }
    }
}

/// Returns a pipe of 1 MiB that contains `bytes`, and a socket with room for more than 256 KiB. All
/// ends count as ready.
async fn ready_ends(bytes: &[u8]) -> (pipe::Sender, pipe::Receiver, UnixStream, UnixStream) {
    let (sender, receiver) = pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&sender, 1 << 20).unwrap();
    guard(sender.writable()).await.unwrap();
    assert_eq!(sender.try_write(bytes).unwrap(), bytes.len());
    guard(receiver.readable()).await.unwrap();
    let (sink, reader) = UnixStream::pair().unwrap();
    // The kernel doubles this size.
    sockopt::set_socket_send_buffer_size(&sink, 208 << 10).unwrap();
    guard(sink.writable()).await.unwrap();
    (sender, receiver, sink, reader)
}

/// Outside a runtime's tasks, a relay that yields wakes its task immediately.
#[test]
fn a_waker_may_poll_another_relay_inline() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let bulk = vec![7; MIB as usize];
    let (back, source, sink, _reader) = runtime.block_on(ready_ends(&bulk));
    let (_later, mut other_source, mut other_sink, other_reader) = runtime.block_on(ready_ends(b"other"));
    let other = async move { spliceway::copy(&mut other_source, &mut other_sink).await };
    let inline = Arc::new(PollsInline {
        other: Mutex::new(Box::pin(other)),
        thread: thread::current().id(),
        polls: AtomicU64::new(0),
    });
    let waker = Waker::from(Arc::clone(&inline));
    let options = spliceway::RelayOptions::new().engine(spliceway::Engine::Copy);
    let mut relay = Box::pin(spliceway::Relay::with_options(
        tokio::io::join(source, back),
        sink,
        options,
    ));
    assert!(relay.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(inline.polls.load(Ordering::Relaxed) > 0, "the relay gave way");
    let mut passed = [0; 6];
    runtime.block_on(guard(other_reader.readable())).unwrap();
    assert_eq!(other_reader.try_read(&mut passed).unwrap(), 5);
    assert_eq!(passed[..5], *b"other");
}
