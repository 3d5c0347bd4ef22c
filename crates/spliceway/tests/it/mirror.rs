//! A second pipe gets what a direction reads. The session never waits for it.

use std::os::fd::OwnedFd;

use spliceway::{Engine, Limits, Mirror, MirrorEnd, MirrorState, PipePool, Relay, RelayOptions, RelaySummary};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{BULK, KIB, finish, guard, reset, send_urgent, tcp, turns};

const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Splice, Engine::Copy];

/// A relay with a mirror, between a client and a server.
struct Session {
    client: TcpStream,
    server: TcpStream,
    relay: Relay<TcpStream, TcpStream>,
    reader: OwnedFd,
    state: MirrorState,
    pool: PipePool,
}

impl Session {
    async fn new(options: RelayOptions) -> Self {
        let ((client, a), (server, b)) = (tcp().await, tcp().await);
        let pool = PipePool::new(limits());
        let mut relay = Relay::with_options(a, b, options.pool(&pool));
        let (mirror, reader, state) = Mirror::new(&pool).unwrap();
        relay.mirror_a_to_b(mirror);
        Self {
            client,
            server,
            relay,
            reader,
            state,
            pool,
        }
    }
}

/// Passes the copy on, and returns the observer and the number of spliced bytes.
async fn observe(reader: OwnedFd) -> (TcpStream, JoinHandle<u64>) {
    let (observer, mut to) = tcp().await;
    let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
    let passing = tokio::spawn(async move {
        let options = spliceway::CopyOptions::new();
        let passed = spliceway::copy_with_options(&mut reader, &mut to, &options).await;
        passed.unwrap().spliced
    });
    (observer, passing)
}

/// Sends `bytes` bytes, and awaits them at both ends before the next ones are sent. So the second
/// pipe always has room.
async fn send_to_both(client: &mut TcpStream, ends: &mut [(&mut TcpStream, Pattern); 2], bytes: u64) {
    let [server, observer] = ends;
    let mut sent = server.1;
    tokio::join!(
        sent.send(client, bytes),
        server.1.expect(server.0, bytes),
        observer.1.expect(observer.0, bytes)
    );
}

#[tokio::test]
async fn an_observer_gets_every_byte_and_the_end() {
    for engine in ENGINES {
        guard(async {
            let prefix = Pattern::new(1).take(5000);
            let options = RelayOptions::new().engine(engine).a_to_b_prefix(prefix.clone());
            let session = Session::new(options).await;
            let (mut client, mut server) = (session.client, session.server);
            let relay = tokio::spawn(session.relay);
            let (mut observer, passing) = observe(session.reader).await;
            let mut ends = [&mut server, &mut observer].map(|end| (end, Pattern::new(1)));
            for (end, wanted) in &mut ends {
                wanted.expect(*end, 5000).await;
            }
            for bytes in [1, 100, 30 * KIB, 1, 4097, 16 * KIB].into_iter().cycle().take(60) {
                send_to_both(&mut client, &mut ends, bytes).await;
            }
            for bytes in [256 * KIB; 40] {
                send_to_both(&mut client, &mut ends, bytes).await;
                send_to_both(&mut client, &mut ends, 10).await;
            }
            // A half-closed session still carries the answer.
            finish(&client);
            let total = ends[0].1.at();
            for (end, wanted) in ends {
                wanted.expect_end(end, total).await;
            }
            let spliced = passing.await.unwrap();
            assert_eq!(session.state.end(), MirrorEnd::Complete);
            assert!(spliced > total / 2, "{spliced} of {total} bytes");
            let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
            tokio::join!(sent.send(&mut server, BULK), wanted.expect(&mut client, BULK));
            drop(server);
            let summary = relay.await.unwrap().unwrap();
            assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (total, BULK));
            let is_spliced = summary.a_to_b.spliced > total / 2;
            assert_eq!(is_spliced, engine != Engine::Copy, "{engine:?}: {summary:?}");
        })
        .await;
    }
}

/// The client's bytes around an urgent one, which TCP keeps beside the stream.
#[tokio::test]
async fn an_observer_gets_the_bytes_around_an_urgent_byte() {
    guard(async {
        let session = Session::new(RelayOptions::new()).await;
        let (mut client, mut server) = (session.client, session.server);
        let relay = tokio::spawn(session.relay);
        let (mut observer, _passing) = observe(session.reader).await;
        let mut ends = [&mut server, &mut observer].map(|end| (end, Pattern::new(1)));
        for _ in 0..5 {
            send_to_both(&mut client, &mut ends, 256 * KIB).await;
            send_urgent(&client).await;
            send_to_both(&mut client, &mut ends, 256 * KIB).await;
        }
        drop(client);
        let total = ends[0].1.at();
        for (end, wanted) in ends {
            wanted.expect_end(end, total).await;
        }
        drop(server);
        assert_eq!(relay.await.unwrap().unwrap().a_to_b.bytes, total);
    })
    .await;
}

/// Bytes that the caller's own buffer holds, and a stream that cannot be spliced.
#[tokio::test]
async fn an_observer_gets_the_bytes_of_streams_with_buffers() {
    guard(async {
        let ((mut client, a), (mut server, b)) = (tcp().await, tcp().await);
        let mut a = BufStream::new(a);
        client.write_all(b"line\nearly").await.unwrap();
        let mut line = [0; 5];
        a.read_exact(&mut line).await.unwrap();
        let mut relay = Relay::new(a, b);
        let (mirror, reader, _) = Mirror::new(PipePool::global()).unwrap();
        relay.mirror_a_to_b(mirror);
        let relay = tokio::spawn(relay);
        let (mut observer, _passing) = observe(reader).await;
        client.write_all(b" late").await.unwrap();
        drop(client);
        for end in [&mut server, &mut observer] {
            let mut bytes = Vec::new();
            end.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, b"early late");
        }
        drop(server);
        relay.await.unwrap().unwrap();

        let (near, far) = tokio::io::duplex(4096);
        let ((mut server, b), mut near) = (tcp().await, near);
        let options = RelayOptions::new().a_to_b_prefix("first ");
        let mut relay = Relay::with_options(far, b, options);
        let (mirror, reader, state) = Mirror::new(PipePool::global()).unwrap();
        relay.mirror_a_to_b(mirror);
        let relay = tokio::spawn(relay);
        let (mut observer, passing) = observe(reader).await;
        near.write_all(b"then").await.unwrap();
        near.shutdown().await.unwrap();
        for end in [&mut server, &mut observer] {
            let mut bytes = Vec::new();
            end.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, b"first then");
        }
        passing.await.unwrap();
        assert_eq!(state.end(), MirrorEnd::Complete);
        drop(server);
        relay.await.unwrap().unwrap();
    })
    .await;
}

/// Sends more than the second pipe holds through a session, and returns the summary.
async fn send_past_mirror(session: Session) -> (RelaySummary, PipePool) {
    let (mut client, mut server) = (session.client, session.server);
    let relay = tokio::spawn(session.relay);
    let sending = async {
        Pattern::new(1).send(&mut client, BULK).await;
        finish(&client);
        Pattern::new(2).expect_end(&mut client, BULK).await;
    };
    let answering = async {
        Pattern::new(1).expect_end(&mut server, BULK).await;
        Pattern::new(2).send(&mut server, BULK).await;
        finish(&server);
    };
    tokio::join!(sending, answering);
    (relay.await.unwrap().unwrap(), session.pool)
}

/// Nobody reads the second pipe while the session runs. What it has then is the beginning of the
/// stream, without a hole.
#[tokio::test]
async fn a_stalled_observer_loses_its_copy_and_delays_nothing() {
    for engine in ENGINES {
        guard(async {
            let mut session = Session::new(RelayOptions::new().engine(engine)).await;
            let (_, unread) = pipe_ends();
            let reader = std::mem::replace(&mut session.reader, unread);
            let state = session.state.clone();
            let (summary, _) = send_past_mirror(session).await;
            assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (BULK, BULK));
            let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
            let mut copied = Pattern::new(1);
            assert!(copied.expect_until_broken(&mut reader).await.is_none());
            assert_eq!(state.end(), MirrorEnd::Lost);
            assert!(copied.at() > 64 * KIB && copied.at() < BULK, "{}", copied.at());
        })
        .await;
    }
}

fn pipe_ends() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().unwrap()
}

#[tokio::test]
async fn an_observer_that_closes_delays_nothing() {
    for engine in ENGINES {
        for bytes_before in [0, 100, 256 * KIB] {
            guard(async {
                let mut session = Session::new(RelayOptions::new().engine(engine)).await;
                let (_, unread) = pipe_ends();
                let reader = std::mem::replace(&mut session.reader, unread);
                let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
                let state = session.state.clone();
                let closing = async {
                    Pattern::new(1).expect(&mut reader, bytes_before).await;
                    drop(reader);
                };
                let ((summary, _), ()) = tokio::join!(send_past_mirror(session), closing);
                assert_eq!((summary.a_to_b.bytes, summary.b_to_a.bytes), (BULK, BULK));
                assert_eq!(state.end(), MirrorEnd::Lost);
            })
            .await;
        }
    }
}

/// A copy that ends before its stream does not look complete.
#[tokio::test]
async fn a_session_that_ends_early_cuts_its_copy() {
    for ending in ["reset", "dropped", "suspended", "cancelled"] {
        guard(async {
            let session = Session::new(RelayOptions::new()).await;
            let (mut client, mut server, state) = (session.client, session.server, session.state);
            let mut relay = session.relay;
            let cancel = relay.cancel_handle();
            let mut reader = pipe::Receiver::from_owned_fd(session.reader).unwrap();
            let mut first = [0; 5];
            client.write_all(b"first").await.unwrap();
            tokio::select! {
                _ = &mut relay => unreachable!("both peers are there"),
                read = server.read_exact(&mut first) => assert_eq!(read.unwrap(), 5),
            }
            match ending {
                "reset" => {
                    reset(client);
                    assert!(relay.await.is_err());
                }
                "dropped" => drop(relay),
                "suspended" => {
                    let suspended = relay.suspend().unwrap();
                    assert_eq!(suspended.state.a_to_b.counts.bytes, 5);
                }
                _ => {
                    cancel.cancel(std::time::Duration::ZERO);
                    relay.await.unwrap();
                }
            }
            let mut copy = Vec::new();
            reader.read_to_end(&mut copy).await.unwrap();
            assert_eq!(
                (copy.as_slice(), state.end()),
                (&b"first"[..], MirrorEnd::Cut),
                "{ending}"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn only_the_first_mirror_before_the_first_poll_counts() {
    guard(async {
        let mut session = Session::new(RelayOptions::new()).await;
        let (second, _, second_state) = Mirror::new(&session.pool).unwrap();
        session.relay.mirror_a_to_b(second);
        assert_eq!(second_state.end(), MirrorEnd::Cut);
        drop(session.client);
        let mut reader = pipe::Receiver::from_owned_fd(session.reader).unwrap();
        let mut byte = [0];
        tokio::select! {
            _ = &mut session.relay => unreachable!("the server has not ended"),
            read = reader.read(&mut byte) => assert_eq!(read.unwrap(), 0),
        }
        assert_eq!(session.state.end(), MirrorEnd::Complete);
        let (late, _, late_state) = Mirror::new(&session.pool).unwrap();
        session.relay.mirror_a_to_b(late);
        assert_eq!(late_state.end(), MirrorEnd::Cut);
    })
    .await;
}

/// The observer reads all before more bytes follow, and must not get a stream with a hole.
#[tokio::test]
async fn a_copy_ends_at_the_first_byte_without_room() {
    guard(async {
        let (mut mirror, reader, state) = Mirror::new(&PipePool::new(limits())).unwrap();
        let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
        mirror.write(&Pattern::new(1).take(2 << 20));
        let mut copied = Pattern::new(1);
        assert!(copied.expect_until_broken(&mut reader).await.is_none());
        assert!(copied.at() > 0 && copied.at() < 2 << 20, "{}", copied.at());
        mirror.write(b"behind the hole");
        assert_eq!(reader.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(state.end(), MirrorEnd::Lost);
    })
    .await;
}

/// One splice from a pipe to a socket would leave nothing to duplicate.
#[tokio::test]
async fn an_observer_gets_the_bytes_of_a_pipe() {
    guard(async {
        let (mut near, from) = pipe::pipe().unwrap();
        let (to, _answers) = pipe::pipe().unwrap();
        let (mut server, b) = tcp().await;
        let mut relay = Relay::new(tokio::io::join(from, to), b);
        let (mirror, reader, state) = Mirror::new(PipePool::global()).unwrap();
        relay.mirror_a_to_b(mirror);
        let relay = tokio::spawn(relay);
        let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
        let sending = async {
            Pattern::new(1).send(&mut near, 256 * KIB).await;
            drop(near);
        };
        let (wanted, copied) = (Pattern::new(1), Pattern::new(1));
        tokio::join!(
            sending,
            wanted.expect_end(&mut server, 256 * KIB),
            copied.expect_end(&mut reader, 256 * KIB)
        );
        assert_eq!(state.end(), MirrorEnd::Complete);
        drop(server);
        relay.await.unwrap().unwrap();
    })
    .await;
}

/// The room of the pipe is free when the last of its sides is gone.
#[test]
fn a_mirror_counts_in_its_pool_and_leaves_no_descriptor() {
    in_child(
        "mirror::a_mirror_counts_in_its_pool_and_leaves_no_descriptor",
        None,
        || {
            block_on(async {
                drop(tcp().await);
                let at_start = open_descriptors();
                let pool = PipePool::new(limits().with_max_pipes(1));
                let (mirror, reader, state) = Mirror::new(&pool).unwrap();
                assert_eq!((pool.stats().lent, open_descriptors()), (1, at_start + 2));
                assert!(Mirror::new(&pool).is_err());
                drop((reader, state));
                assert_eq!((pool.stats().lent, open_descriptors()), (1, at_start + 1));
                drop(mirror);
                assert_eq!((pool.stats().lent, open_descriptors()), (0, at_start));

                let session = Session::new(RelayOptions::new()).await;
                assert_eq!(session.pool.stats().lent, 1);
                let (_, pool) = send_past_mirror(session).await;
                turns(10).await;
                let stats = pool.stats();
                assert_eq!(stats.lent, 0, "{stats:?}");
                drop(pool);
                assert_eq!(open_descriptors(), at_start);
            });
        },
    );
}

/// The pool's own limit leaves a small pipe, which still has a whole copy of small messages.
#[tokio::test]
async fn a_small_second_pipe_copies_small_messages() {
    guard(async {
        let pool = PipePool::new(Limits::of_this_process().with_max_pipes(4).with_max_pages(16));
        let ((mut client, a), (mut server, b)) = (tcp().await, tcp().await);
        let mut relay = Relay::new(a, b);
        let (mirror, reader, state) = Mirror::new(&pool).unwrap();
        relay.mirror_a_to_b(mirror);
        let relay = tokio::spawn(relay);
        let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
        for _ in 0..500 {
            sent.send(&mut client, 100).await;
            wanted.expect(&mut server, 100).await;
        }
        drop(client);
        let mut reader = pipe::Receiver::from_owned_fd(reader).unwrap();
        Pattern::new(1).expect_end(&mut reader, 50_000).await;
        assert_eq!(state.end(), MirrorEnd::Complete);
        drop(server);
        relay.await.unwrap().unwrap();
    })
    .await;
}
