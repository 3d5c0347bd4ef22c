//! Streams that are not sockets: scripted mocks, in-memory pipes, trait objects and wrappers.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, duplex, join};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_test::io::Builder;

use super::{Counts, Subject, for_each};
use crate::support::pattern::Pattern;
use crate::support::{Duplex, MIB, finish, tcp};

/// Relays `near` and `far`, in this order or swapped.
async fn run(subject: Subject, swapped: bool, near: &mut impl Duplex, far: &mut impl Duplex) -> Counts {
    if swapped {
        subject.run(far, near).await.map(|(back, forth)| (forth, back))
    } else {
        subject.run(near, far).await
    }
}

#[tokio::test]
async fn scripted_reads_become_writes() {
    for_each(async |subject, swapped| {
        let mut near = Builder::new().read(b"ping").read(b"!").write(b"pong").build();
        let mut far = Builder::new().write(b"ping").write(b"!").read(b"pong").build();
        assert_eq!(run(subject, swapped, &mut near, &mut far).await.unwrap(), (5, 4));
    })
    .await;
}

#[tokio::test]
async fn in_memory_streams_carry_more_than_their_buffers() {
    for_each(async |subject, swapped| {
        let ((mut near, near_end), (mut far, far_end)) = (duplex(1000), duplex(77));
        let relay = subject.spawn(near_end, far_end, swapped);
        let request = async {
            Pattern::new(1).send(&mut near, MIB + 5).await;
            near.shutdown().await.unwrap();
        };
        tokio::join!(request, Pattern::new(1).expect_end(&mut far, MIB + 5));
        Pattern::new(2).send(&mut far, 70).await;
        far.shutdown().await.unwrap();
        Pattern::new(2).expect_end(&mut near, 70).await;
        assert_eq!(relay.await.unwrap().unwrap(), (MIB + 5, 70));
    })
    .await;
}

#[tokio::test]
async fn a_socket_and_an_in_memory_stream_are_relayed() {
    for_each(async |subject, swapped| {
        let ((mut near, near_end), (mut far, far_end)) = (duplex(1000), tcp().await);
        let relay = subject.spawn(near_end, far_end, swapped);
        let request = async {
            Pattern::new(3).send(&mut near, MIB).await;
            near.shutdown().await.unwrap();
        };
        tokio::join!(request, Pattern::new(3).expect_end(&mut far, MIB));
        let answer = async {
            Pattern::new(4).send(&mut far, MIB).await;
            finish(&far);
        };
        tokio::join!(answer, Pattern::new(4).expect_end(&mut near, MIB));
        assert_eq!(relay.await.unwrap().unwrap(), (MIB, MIB));
    })
    .await;
}

#[tokio::test]
async fn a_read_error_ends_both_directions_at_once() {
    for_each(async |subject, swapped| {
        let mut near = Builder::new().read_error(ErrorKind::HostUnreachable.into()).build();
        // This stream has nothing to read, and does not end.
        let (mut far, _peer) = duplex(8);
        let error = run(subject, swapped, &mut near, &mut far).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    })
    .await;
}

#[tokio::test]
async fn a_write_error_ends_both_directions_at_once() {
    for_each(async |subject, swapped| {
        let (mut near, mut peer) = duplex(8);
        peer.write_all(b"x").await.unwrap();
        let (quiet, _silent) = duplex(8);
        let mut far = join(quiet, Builder::new().write_error(ErrorKind::StorageFull.into()).build());
        let error = run(subject, swapped, &mut near, &mut far).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    })
    .await;
}

#[tokio::test]
async fn interrupted_reads_and_writes_are_retried() {
    for_each(async |subject, swapped| {
        let interrupted = || io::Error::from(ErrorKind::Interrupted);
        let script = |reads: &[u8], writes: &[u8]| {
            join(
                Builder::new()
                    .read_error(interrupted())
                    .read(reads)
                    .read_error(interrupted())
                    .build(),
                Builder::new()
                    .write_error(interrupted())
                    .write(&writes[..1])
                    .write_error(interrupted())
                    .write(&writes[1..])
                    .build(),
            )
        };
        let (mut near, mut far) = (script(b"ab", b"cd"), script(b"cd", b"ab"));
        assert_eq!(run(subject, swapped, &mut near, &mut far).await.unwrap(), (2, 2));
    })
    .await;
}

/// A writer that accepts no bytes and reports that.
struct Glutted;

impl AsyncWrite for Glutted {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_writer_that_accepts_nothing_causes_write_zero() {
    for_each(async |subject, swapped| {
        let mut near = join(Builder::new().read(b"data").build(), tokio::io::sink());
        let (quiet, _silent) = duplex(8);
        let mut far = join(quiet, Glutted);
        let error = run(subject, swapped, &mut near, &mut far).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WriteZero);
    })
    .await;
}

/// A writer that holds written bytes until it is flushed.
#[derive(Clone, Default)]
struct Holding {
    held: Arc<Mutex<Vec<u8>>>,
    flushed: Arc<Mutex<Vec<u8>>>,
    told: Arc<Notify>,
}

impl AsyncWrite for Holding {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.held.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        self.flushed.lock().unwrap().extend(held);
        self.told.notify_one();
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_writer_is_flushed_when_the_reader_stalls_and_at_the_end() {
    for_each(async |subject, swapped| {
        let writer = Holding::default();
        let (mut near, near_end) = duplex(64);
        let (quiet, silent) = duplex(8);
        let relay = subject.spawn(near_end, join(quiet, writer.clone()), swapped);
        near.write_all(b"question").await.unwrap();
        while *writer.flushed.lock().unwrap() != b"question" {
            writer.told.notified().await;
        }
        near.write_all(b", the last").await.unwrap();
        near.shutdown().await.unwrap();
        drop(silent);
        assert_eq!(relay.await.unwrap().unwrap(), (18, 0));
        assert_eq!(*writer.flushed.lock().unwrap(), b"question, the last");
    })
    .await;
}

#[tokio::test]
async fn trait_objects_are_relayed() {
    for_each(async |subject, swapped| {
        let ((mut near, mut near_end), (mut far, mut far_end)) = (tcp().await, duplex(64));
        let relay = async {
            let (a, b): (&mut dyn Duplex, &mut dyn Duplex) = (&mut near_end, &mut far_end);
            let (a, b) = if swapped { (b, a) } else { (a, b) };
            subject.run(a, b).await.unwrap()
        };
        let peers = async {
            let request = async {
                Pattern::new(5).send(&mut near, MIB).await;
                finish(&near);
            };
            tokio::join!(request, Pattern::new(5).expect_end(&mut far, MIB));
            drop(far);
        };
        let (counts, ()) = tokio::join!(relay, peers);
        assert_eq!(counts, if swapped { (0, MIB) } else { (MIB, 0) });
    })
    .await;
}

/// A wrapper with its own lifetime, like a TLS stream or a rate limiter. It counts bytes, and
/// inverts every bit.
struct Inverting<'a> {
    stream: &'a mut TcpStream,
    read: &'a mut u64,
}

impl AsyncRead for Inverting<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.stream).poll_read(cx, buf))?;
        let new = &mut buf.filled_mut()[before..];
        new.iter_mut().for_each(|byte| *byte = !*byte);
        *self.read += new.len() as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inverting<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_borrowing_wrapper_around_a_socket_sees_every_byte() {
    for_each(async |subject, swapped| {
        let ((mut near, mut near_end), (mut far, mut far_end)) = (tcp().await, tcp().await);
        let mut read = 0;
        let mut wrapped = Inverting {
            stream: &mut near_end,
            read: &mut read,
        };
        let peers = async {
            let request = async {
                let bytes = Pattern::new(6).take(MIB as usize);
                near.write_all(&bytes).await.unwrap();
                finish(&near);
            };
            let mut got = Vec::new();
            let (_, received) = tokio::join!(request, far.read_to_end(&mut got));
            received.unwrap();
            drop(far);
            got.iter_mut().for_each(|byte| *byte = !*byte);
            Pattern::new(6).check(&got);
        };
        let (counts, ()) = tokio::join!(run(subject, swapped, &mut wrapped, &mut far_end), peers);
        assert_eq!(counts.unwrap(), (MIB, 0));
        assert_eq!(read, MIB, "the wrapper was passed by");
    })
    .await;
}

#[tokio::test]
async fn a_buffer_size_of_0_panics_with_the_same_message() {
    for (a_size, b_size) in [(0, 1), (1, 0), (0, 0)] {
        let mut messages = Vec::new();
        for subject in [Subject::Tokio, Subject::Function] {
            for sockets in [false, true] {
                let panicked = tokio::spawn(async move {
                    if sockets {
                        let ((_near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
                        with_sizes(subject, &mut a, &mut b, a_size, b_size).await
                    } else {
                        with_sizes(subject, &mut duplex(8).0, &mut duplex(8).0, a_size, b_size).await
                    }
                });
                let panic = panicked.await.unwrap_err().into_panic();
                messages.push(panic.downcast_ref::<&str>().map(ToString::to_string).unwrap());
            }
        }
        assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
        assert!(messages[0].contains("must be greater than 0"), "{messages:?}");
    }
}

#[tokio::test]
async fn buffer_sizes_change_nothing_but_the_buffers() {
    for subject in [Subject::Tokio, Subject::Function] {
        let mut near = Builder::new().read(b"ab").write(b"c").build();
        let mut far = Builder::new().write(b"a").write(b"b").read(b"c").build();
        assert_eq!(with_sizes(subject, &mut near, &mut far, 1, 1).await.unwrap(), (2, 1));

        let ((mut near, mut near_end), (mut far, mut far_end)) = (tcp().await, tcp().await);
        let peers = async {
            let request = async {
                Pattern::new(7).send(&mut near, MIB).await;
                finish(&near);
            };
            tokio::join!(request, Pattern::new(7).expect_end(&mut far, MIB));
            drop(far);
        };
        let (counts, ()) = tokio::join!(with_sizes(subject, &mut near_end, &mut far_end, 4096, 1), peers);
        assert_eq!(counts.unwrap(), (MIB, 0));
    }
}

async fn with_sizes(
    subject: Subject,
    a: &mut impl Duplex,
    b: &mut impl Duplex,
    a_size: usize,
    b_size: usize,
) -> Counts {
    match subject {
        Subject::Tokio => tokio::io::copy_bidirectional_with_sizes(a, b, a_size, b_size).await,
        Subject::Function | Subject::Relay => spliceway::copy_bidirectional_with_sizes(a, b, a_size, b_size).await,
    }
}
