//! The cases of Go's splice tests, between any two kinds of socket. They copy from streams, and
//! from streams with a limit (`AsyncReadExt::take`, Go's `LimitedReader`).

use std::io;

use spliceway_faults::{Call, Faults, Rule};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::one_way::{Subject, for_each};
use crate::support::child::block_on;
use crate::support::pattern::{Loop, Pattern};
use crate::support::{Duplex, KIB, MIB, finish, guard, tcp};

/// Runs a scenario for both functions, from each kind of socket (TCP and Unix) to each kind.
macro_rules! between_all {
    ($scenario:ident) => {
        for_each(async |subject| {
            guard($scenario(subject, tcp().await, tcp().await)).await;
            guard($scenario(subject, tcp().await, unix())).await;
            guard($scenario(subject, unix(), tcp().await)).await;
            guard($scenario(subject, unix(), unix())).await;
        })
        .await
    };
}

fn unix() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

/// Sends `total` bytes in writes of `chunk` bytes, and then an end of stream. Copies the bytes, and
/// compares them.
async fn copied_in_chunks<S: Duplex, D: Duplex>(
    subject: Subject,
    (mut client, mut source): (S, S),
    (mut server, mut sink): (D, D),
    chunk: u64,
    total: u64,
) {
    let send = async {
        let mut said = Pattern::new(1);
        for _ in 0..total / chunk {
            said.send(&mut client, chunk).await;
        }
        client.shutdown().await.unwrap();
    };
    let mut heard = Pattern::new(1);
    let copy = subject.copy(&mut source, &mut sink);
    let ((), copied, ()) = tokio::join!(send, copy, heard.expect(&mut server, total));
    assert_eq!(copied.unwrap(), total);
}

#[tokio::test]
async fn one_write_and_many_are_copied() {
    async fn simple<S: Duplex, D: Duplex>(subject: Subject, source: (S, S), sink: (D, D)) {
        copied_in_chunks(subject, source, sink, 128, 128).await;
    }
    async fn multiple_write<S: Duplex, D: Duplex>(subject: Subject, source: (S, S), sink: (D, D)) {
        copied_in_chunks(subject, source, sink, 4 * KIB, MIB).await;
    }
    between_all!(simple);
    between_all!(multiple_write);
}

/// Runs only with spliceway, because this test takes a long time.
#[tokio::test]
async fn a_gibibyte_is_copied() {
    const BIG: u64 = 1 << 30;
    let ((mut client, mut source), (mut server, mut sink)) = (tcp().await, tcp().await);
    let mut said = Loop::new(2);
    let mut heard = said.clone();
    let send = async {
        said.send(&mut client, BIG).await;
        finish(&client);
    };
    let copy = spliceway::copy(&mut source, &mut sink);
    let ((), copied, ()) = guard(async { tokio::join!(send, copy, heard.expect(&mut server, BIG)) }).await;
    assert_eq!(copied.unwrap(), BIG);
}

#[tokio::test]
async fn a_limit_is_honoured_and_reduced_to_the_remaining_bytes() {
    async fn scenario<S: Duplex, D: Duplex>(
        subject: Subject,
        (mut client, mut source): (S, S),
        (mut server, mut sink): (D, D),
    ) {
        const SENT: u64 = 300 * KIB;
        let (mut said, mut heard) = (Pattern::new(3), Pattern::new(3));
        let send = async {
            said.send(&mut client, SENT).await;
            client.shutdown().await.unwrap();
        };
        let copies = async {
            let mut left = SENT;
            for limit in [0, 1, 4 * KIB, 64 * KIB, 100 * KIB] {
                let mut limited = (&mut source).take(limit);
                assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), limit);
                assert_eq!(limited.limit(), 0);
                left -= limit;
            }
            // A limit that is larger than the number of bytes.
            let mut limited = (&mut source).take(SENT);
            assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), left);
            assert_eq!(limited.limit(), SENT - left);
        };
        tokio::join!(send, copies, heard.expect(&mut server, SENT));
    }
    between_all!(scenario);
}

#[tokio::test]
async fn a_copy_at_its_limit_reads_nothing_although_bytes_are_queued() {
    async fn scenario<S: Duplex, D: Duplex>(
        subject: Subject,
        (mut client, mut source): (S, S),
        (_server, mut sink): (D, D),
    ) {
        client.write_all(b"not for you").await.unwrap();
        let mut limited = (&mut source).take(0);
        assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), 0);
        let mut unharmed = [0; 11];
        source.read_exact(&mut unharmed).await.unwrap();
        assert_eq!(&unharmed, b"not for you");
    }
    between_all!(scenario);
}

#[tokio::test]
async fn a_reader_at_its_end_gives_no_byte_and_the_writer_stays_usable() {
    async fn scenario<S: Duplex, D: Duplex>(
        subject: Subject,
        (client, mut source): (S, S),
        (mut server, mut sink): (D, D),
    ) {
        drop(client);
        assert_eq!(subject.copy(&mut source, &mut sink).await.unwrap(), 0);
        let mut limited = (&mut source).take(10);
        assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), 0);
        assert_eq!(limited.limit(), 10);
        sink.write_all(b"after").await.unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"after");
    }
    between_all!(scenario);
}

/// Go's issue 25985: a proxy of two copies, the second of which never ended.
#[tokio::test]
async fn two_copies_between_two_connections_end_when_both_peers_have() {
    async fn scenario<S: Duplex, D: Duplex>(subject: Subject, (client, near): (S, S), (server, far): (D, D)) {
        let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
            (tokio::io::split(near), tokio::io::split(far));
        let forth = async {
            subject.copy(&mut near_read, &mut far_write).await.unwrap();
            far_write.shutdown().await.unwrap();
        };
        let back = async {
            subject.copy(&mut far_read, &mut near_write).await.unwrap();
            near_write.shutdown().await.unwrap();
        };
        let ask = async move {
            let mut client = client;
            client.write_all(b"ping").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let serve = async move {
            let (mut server, mut question) = (server, Vec::new());
            server.read_to_end(&mut question).await.unwrap();
            server.write_all(&question.repeat(10_000)).await.unwrap();
        };
        let ((), (), answer, ()) = tokio::join!(forth, back, ask, serve);
        assert_eq!(answer, b"ping".repeat(10_000));
    }
    between_all!(scenario);
}

/// Copies up to `limit` bytes that `said` sends, and checks that the rest can be read.
async fn limit_holds(subject: Subject, limit: u64, mut said: impl AsyncWrite + Unpin, reader: impl AsyncRead + Unpin) {
    const SENT: u64 = 400 * KIB;
    let (mut server, mut sink) = tcp().await;
    let (mut pattern, mut heard) = (Pattern::new(4), Pattern::new(4));
    let copy = async {
        let mut limited = reader.take(limit);
        assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), limit);
        let mut rest = Pattern::new(4);
        rest.take(limit as usize);
        rest.expect(&mut limited.into_inner(), SENT - limit).await;
    };
    guard(async { tokio::join!(pattern.send(&mut said, SENT), copy, heard.expect(&mut server, limit)) }).await;
}

#[tokio::test]
async fn a_limit_holds_around_every_kind_of_reader() {
    for_each(async |subject| {
        for limit in [0, 10, 3000, 200 * KIB] {
            let (said, reader) = tcp().await;
            limit_holds(subject, limit, said, reader).await;
            let (said, reader) = tcp().await;
            limit_holds(subject, limit, said, BufReader::with_capacity(2000, reader)).await;
            let (said, mut reader) = tcp().await;
            limit_holds(subject, limit, said, &mut reader).await;
            let (said, reader) = unix();
            limit_holds(subject, limit, said, reader).await;
            let (said, reader) = tcp().await;
            limit_holds(subject, limit, said, reader.into_split().0).await;
            let (said, reader) = unix();
            limit_holds(subject, limit, said, BufReader::new(reader.into_split().0)).await;
            let (said, reader) = pipe::pipe().unwrap();
            limit_holds(subject, limit, said, reader).await;
            let (said, mut reader) = pipe::pipe().unwrap();
            limit_holds(subject, limit, said, BufReader::new(&mut reader)).await;
        }
    })
    .await;
}

/// A copy delivers the bytes of a buffer up to the limit around it. The rest stays in the buffer.
#[tokio::test]
async fn a_buffer_within_a_limit_gives_its_bytes_first_and_no_more() {
    for_each(async |subject| {
        let ((mut client, source), (mut server, mut sink)) = (tcp().await, tcp().await);
        let (mut said, mut heard) = (Pattern::new(5), Pattern::new(5));
        said.send(&mut client, 1000).await;
        let mut source = BufReader::new(source);
        source.fill_buf().await.unwrap();
        for limit in [0, 1, 300] {
            let mut limited = (&mut source).take(limit);
            assert_eq!(subject.copy(&mut limited, &mut sink).await.unwrap(), limit);
            heard.expect(&mut server, limit).await;
        }
        finish(&client);
        heard.expect_end(&mut source, 1000).await;
    })
    .await;
}

/// If a copy is dropped in the middle, the limit is reduced by the bytes that the copy has read, as
/// with tokio's copy.
#[tokio::test]
async fn a_dropped_copy_leaves_the_remaining_limit() {
    for_each(async |subject| {
        let ((mut client, mut source), (mut server, mut sink)) = (tcp().await, tcp().await);
        let mut limited = (&mut source).take(1000);
        client.write_all(&[7; 600]).await.unwrap();
        let mut got = [0; 600];
        tokio::select! {
            copied = subject.copy(&mut limited, &mut sink) => panic!("{copied:?}"),
            read = server.read_exact(&mut got) => assert_eq!(read.unwrap(), 600),
        }
        assert_eq!((limited.limit(), got), (400, [7; 600]));
    })
    .await;
}

#[test]
fn a_copy_with_a_limit_is_still_spliced() {
    let copying = || {
        let faults = Faults::on_this_thread(vec![Rule::watch(Call::SpliceIn), Rule::watch(Call::Recv)]).unwrap();
        block_on(async {
            let ((mut client, mut source), (server, mut sink)) = (tcp().await, tcp().await);
            let (mut said, mut heard) = (Pattern::new(6), Pattern::new(6));
            let mut limited = (&mut source).take(8 * MIB);
            let copy = spliceway::copy(&mut limited, &mut sink);
            let send = said.send(&mut client, 8 * MIB);
            // The test receives with read(2), which the relay does not call.
            let hear = async {
                let mut buf = vec![0; 64 << 10];
                while heard.at() < 8 * MIB {
                    server.readable().await.unwrap();
                    let read = || Ok(rustix::io::read(&server, &mut buf)?);
                    match server.try_io(Interest::READABLE, read) {
                        Ok(read) => heard.check(&buf[..read]),
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                    }
                }
            };
            let ((), copied, ()) = guard(async { tokio::join!(send, copy, hear) }).await;
            assert_eq!(copied.unwrap(), 8 * MIB);
        });
        (faults.seen(Call::SpliceIn).calls, faults.seen(Call::Recv).calls)
    };
    // The calls of a thread are watched until it ends.
    let (splices, receives) = std::thread::spawn(copying).join().unwrap();
    assert!(
        splices >= 8 && receives < splices,
        "{splices} splices, {receives} receives"
    );
}
