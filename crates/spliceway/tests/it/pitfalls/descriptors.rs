//! Descriptors that do not behave as their type promises: sockets that block, and record sockets
//! wrapped in a stream type.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream as Blocking;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use spliceway::{Engine, PipePool, RateLimit, Reason, Relay, RelayOptions};
use tokio::net::UnixStream;

use crate::support::child::block_on;
use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{guard, tcp, tcp_small};

/// Longer than a worker that is not blocked needs to answer, on any machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A worker with one relay whose sockets are in blocking mode, and the relay's peers.
struct Worker {
    near: Blocking,
    far: Blocking,
    questions: tokio::sync::mpsc::UnboundedSender<mpsc::Sender<()>>,
    thread: thread::JoinHandle<()>,
}

impl Worker {
    fn start(engine: Engine, swapped: bool) -> Self {
        let (tell_peers, peers) = mpsc::channel();
        let (questions, mut asked) = tokio::sync::mpsc::unbounded_channel::<mpsc::Sender<()>>();
        let relaying = async move {
            let ((near, a), (far, b)) = (tcp_small().await, tcp_small().await);
            // This happens after tokio has accepted the sockets, because tokio refuses blocking
            // sockets in debug builds. Any process that shares a socket can do this: the flag
            // belongs to the open file, not to the descriptor.
            for end in [&a, &b] {
                rustix::io::ioctl_fionbio(end, false).unwrap();
            }
            tell_peers
                .send([near, far].map(|peer| peer.into_std().unwrap()))
                .unwrap();
            let (a, b) = if swapped { (b, a) } else { (a, b) };
            let relay = tokio::spawn(Relay::with_options(
                a,
                b,
                RelayOptions::new().engine(engine).pool(&PipePool::new(limits())),
            ));
            while let Some(answer) = asked.recv().await {
                answer.send(()).unwrap();
            }
            relay.await.unwrap().unwrap();
        };
        let thread = thread::spawn(|| block_on(relaying));
        let [near, far] = peers.recv().unwrap();
        for peer in [&near, &far] {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        Self {
            near,
            far,
            questions,
            thread,
        }
    }

    fn assert_not_blocked(&self) {
        let (answer, answered) = mpsc::channel();
        self.questions.send(answer).unwrap();
        assert_eq!(answered.recv_timeout(PATIENCE), Ok(()), "the worker is blocked");
    }

    /// Sends until no socket accepts more and the relay holds as much as it can. The worker must
    /// not block in a write.
    fn push_until_stuck(&mut self, sent: &mut Pattern) {
        let mut refused = 0;
        while refused < 50 {
            let chunk = sent.take(64 << 10);
            let taken = match self.near.write(&chunk) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => panic!("{error}"),
            };
            sent.unsend(chunk.len() - taken);
            refused = if taken == 0 { refused + 1 } else { 0 };
            self.assert_not_blocked();
        }
    }

    fn expect(&mut self, wanted: &mut Pattern, bytes: u64) {
        let mut got = vec![0; usize::try_from(bytes).unwrap()];
        self.far.set_nonblocking(false).unwrap();
        self.far.read_exact(&mut got).unwrap();
        wanted.check(&got);
    }
}

#[test]
fn a_socket_that_blocks_does_not_block_its_worker() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        for swapped in [false, true] {
            let mut worker = Worker::start(engine, swapped);
            let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
            worker.assert_not_blocked();
            worker.push_until_stuck(&mut sent);
            worker.expect(&mut wanted, sent.at());
            // After the bulk, and after each message below, the relay has drained the source and
            // has probed for more.
            worker.assert_not_blocked();
            for _ in 0..3 {
                worker.near.write_all(&sent.take(100)).unwrap();
                worker.expect(&mut wanted, 100);
                worker.assert_not_blocked();
            }
            let Worker {
                near,
                far,
                questions,
                thread,
            } = worker;
            drop((near, far, questions));
            thread.join().unwrap();
        }
    }
}

/// Returns two ends of a connection that carries records, wrapped in a stream type.
fn records(kind: SocketType) -> (UnixStream, UnixStream) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, end) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let stream = |socket: OwnedFd| UnixStream::from_std(socket.into()).unwrap();
    (stream(near), stream(end))
}

/// The most bytes that one receive reads. (tokio's copy cuts records at 8 KiB.)
const SCRATCH: usize = 64 << 10;
/// The sizes of the records in bytes. Some fill a receive, because a full receive marks a bulk
/// flow.
const RECORDS: [usize; 8] = [1, 100, 8 << 10, 20_000, SCRATCH, 100_000, 100_000, 3];

/// Sends the records one by one, each after the previous one has arrived. For each record, returns
/// the bytes that arrived.
async fn exchange(near: &UnixStream, far: &UnixStream) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    let mut record = vec![0; 128 << 10];
    for (seed, bytes) in RECORDS.into_iter().enumerate() {
        near.writable().await.unwrap();
        near.try_write(&Pattern::new(seed as u64).take(bytes)).unwrap();
        let got = loop {
            far.readable().await.unwrap();
            match far.try_read(&mut record) {
                Ok(got) => break got,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        };
        arrived.push(record[..got].to_vec());
    }
    arrived
}

#[tokio::test]
async fn records_are_copied_one_by_one() {
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        for swapped in [false, true] {
            let ((near, a), (far, b)) = (records(kind), records(kind));
            let (a, b) = if swapped { (b, a) } else { (a, b) };
            let pool = PipePool::new(limits());
            let relay = Relay::with_options(a, b, RelayOptions::new().pool(&pool));
            let stats = relay.stats();
            let relay = tokio::spawn(relay);
            for (seed, arrived) in guard(exchange(&near, &far)).await.iter().enumerate() {
                assert_eq!(arrived.len(), RECORDS[seed].min(SCRATCH), "{kind:?}");
                Pattern::new(seed as u64).check(arrived);
            }
            let summary = stats.snapshot();
            let (forth, back) = if swapped {
                (summary.b_to_a, summary.a_to_b)
            } else {
                (summary.a_to_b, summary.b_to_a)
            };
            assert_eq!((forth.spliced, back.spliced), (0, 0), "{kind:?}");
            assert_eq!(forth.fallback, Some(Reason::NotSupported));
            assert_eq!(pool.stats().lent, 0);
            relay.abort();
        }
    }
}

#[tokio::test]
async fn an_engine_that_must_splice_refuses_records() {
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let ((near, a), (_far, b)) = (records(kind), tcp().await);
        near.writable().await.unwrap();
        near.try_write(b"not taken").unwrap();
        let error = guard(Relay::with_options(a, b, RelayOptions::new().engine(Engine::Splice)))
            .await
            .unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::Unsupported, "{kind:?}");
        let ((_far, a), (near, b)) = (tcp().await, records(kind));
        near.writable().await.unwrap();
        near.try_write(b"not taken").unwrap();
        let error = guard(Relay::with_options(a, b, RelayOptions::new().engine(Engine::Splice)))
            .await
            .unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::Unsupported, "{kind:?}");
    }
}

/// The unread part of a record is lost, so a relay with a rate limit or a limit still reads each
/// record whole.
#[tokio::test]
async fn a_rate_limit_and_a_limit_do_not_cut_records() {
    const LENGTH: usize = 4000;
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let ((near, a), (far, b)) = (records(kind), records(kind));
        let rate = RateLimit::with_burst(1_000_000, 1000);
        let relay = Relay::with_options(
            a,
            b,
            RelayOptions::new()
                .rate_limit(&rate)
                .a_to_b_limit(9 * LENGTH as u64 + 1)
                .b_to_a_limit(0),
        );
        let exchange = async {
            for seed in 0..10 {
                near.writable().await.unwrap();
                near.try_write(&Pattern::new(seed).take(LENGTH)).unwrap();
                let mut record = vec![0; 2 * LENGTH];
                let length = loop {
                    far.readable().await.unwrap();
                    match far.try_read(&mut record) {
                        Ok(length) => break length,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                };
                assert_eq!(length, LENGTH, "{kind:?}");
                Pattern::new(seed).check(&record[..length]);
            }
        };
        let (summary, ()) = guard(async { tokio::join!(relay, exchange) }).await;
        assert_eq!(summary.unwrap().a_to_b.bytes, 10 * LENGTH as u64, "{kind:?}");
    }
}
