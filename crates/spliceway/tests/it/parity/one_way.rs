//! `copy` in one direction, with whole streams and with halves.

use std::io::{self, ErrorKind};

use rustix::fs::{FileType, Mode};
use spliceway_faults::{Call, Faults, Rule};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio_test::io::Builder;

use crate::support::child::block_on;
use crate::support::pattern::Pattern;
use crate::support::{BULK, MIB, finish, guard, reset, tcp};

#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    Tokio,
    Ours,
}

impl Subject {
    pub(super) async fn copy<R, W>(self, reader: &mut R, writer: &mut W) -> io::Result<u64>
    where
        R: AsyncRead + Unpin + ?Sized,
        W: AsyncWrite + Unpin + ?Sized,
    {
        match self {
            Self::Tokio => tokio::io::copy(reader, writer).await,
            Self::Ours => spliceway::copy(reader, writer).await,
        }
    }
}

pub(super) async fn for_each(mut scenario: impl AsyncFnMut(Subject)) {
    for subject in [Subject::Tokio, Subject::Ours] {
        eprintln!("{subject:?}");
        guard(scenario(subject)).await;
    }
}

/// Copies from a reader whose peer is `near` to a writer whose peer is `far`. Checks that all bytes
/// arrive, and that the writer stays open.
async fn all_arrives(
    subject: Subject,
    (mut near, mut reader): (impl AsyncWrite + Unpin, impl AsyncRead + Unpin),
    (mut far, mut writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) {
    let send = async {
        Pattern::new(1).send(&mut near, BULK).await;
        near.shutdown().await.unwrap();
    };
    let mut wanted = Pattern::new(1);
    let (copied, (), ()) = tokio::join!(
        subject.copy(&mut reader, &mut writer),
        send,
        wanted.expect(&mut far, BULK)
    );
    assert_eq!(copied.unwrap(), BULK);
    writer.write_all(b"still open").await.unwrap();
    writer.flush().await.unwrap();
    let mut more = [0; 10];
    far.read_exact(&mut more).await.unwrap();
    assert_eq!(&more, b"still open");
}

#[tokio::test]
async fn whole_sockets_and_owned_halves_of_both_kinds_are_copied() {
    for_each(async |subject| {
        all_arrives(subject, tcp().await, tcp().await).await;
        all_arrives(subject, UnixStream::pair().unwrap(), tcp().await).await;
        let ((near, a), (far, b)) = (tcp().await, tcp().await);
        let ((a_read, _a_write), (_b_read, b_write)) = (a.into_split(), b.into_split());
        all_arrives(subject, (near, a_read), (far, b_write)).await;
        let ((near, a), (far, b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let ((a_read, _a_write), (_b_read, b_write)) = (a.into_split(), b.into_split());
        all_arrives(subject, (near, a_read), (far, b_write)).await;
    })
    .await;
}

#[tokio::test]
async fn pipes_are_copied_to_sockets_to_pipes_and_from_them() {
    let pipe = || pipe::pipe().unwrap();
    let reversed = || {
        let (sender, receiver) = pipe();
        (receiver, sender)
    };
    for_each(async |subject| {
        all_arrives(subject, tcp().await, reversed()).await;
        all_arrives(subject, UnixStream::pair().unwrap(), reversed()).await;
        // A pipe ends when its writer is dropped, not when the writer is shut down.
        let ((near, reader), (far, writer)) = (pipe(), tcp().await);
        all_of_a_pipe_arrives(subject, (near, reader), (far, writer)).await;
        all_of_a_pipe_arrives(subject, pipe(), reversed()).await;
        all_of_a_pipe_arrives(subject, pipe(), UnixStream::pair().unwrap()).await;
    })
    .await;
}

async fn all_of_a_pipe_arrives(
    subject: Subject,
    (mut near, mut reader): (pipe::Sender, pipe::Receiver),
    (mut far, mut writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) {
    let send = async move {
        Pattern::new(8).send(&mut near, BULK).await;
    };
    let mut wanted = Pattern::new(8);
    let (copied, (), ()) = tokio::join!(
        subject.copy(&mut reader, &mut writer),
        send,
        wanted.expect(&mut far, BULK)
    );
    assert_eq!(copied.unwrap(), BULK);
}

/// Small messages fill a pipe in the same way as a single write of all their bytes. The copy sees
/// the end of its source even while the bytes in the pipe are unread.
#[tokio::test]
async fn a_pipe_holds_as_many_small_messages_as_its_bytes_allow() {
    for_each(async |subject| {
        let ((mut near, mut reader), (mut writer, mut far)) = (tcp().await, pipe::pipe().unwrap());
        let send = async {
            for said in 1..=100 {
                near.write_all(b"x").await.unwrap();
                while rustix::io::ioctl_fionread(&far).unwrap() < said {
                    tokio::task::yield_now().await;
                }
            }
            finish(&near);
        };
        let (copied, ()) = tokio::join!(subject.copy(&mut reader, &mut writer), send);
        assert_eq!(copied.unwrap(), 100);
        let mut got = [0; 100];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [b'x'; 100]);
    })
    .await;
}

#[tokio::test]
async fn with_a_full_pipe_an_end_and_a_reset_are_still_noticed() {
    for_each(async |subject| {
        let full = async || {
            let (writer, far) = pipe::pipe().unwrap();
            writer.writable().await.unwrap();
            while writer.try_write(&[0; 4096]).is_ok() {}
            (writer, far)
        };
        let ((near, mut reader), (mut writer, _far)) = (tcp().await, full().await);
        finish(&near);
        assert_eq!(subject.copy(&mut reader, &mut writer).await.unwrap(), 0);

        let ((near, mut reader), (mut writer, _far)) = (tcp().await, full().await);
        reset(near);
        let error = subject.copy(&mut reader, &mut writer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let ((near, mut reader), (mut writer, _far)) = (pipe::pipe().unwrap(), full().await);
        drop(near);
        assert_eq!(subject.copy(&mut reader, &mut writer).await.unwrap(), 0);
    })
    .await;
}

/// A read from a FIFO returns an end of stream until a writer has opened the FIFO.
#[tokio::test]
async fn a_fifo_is_not_at_its_end_before_its_first_writer() {
    let directory = std::env::temp_dir().join(format!("spliceway-fifo-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    for_each(async |subject| {
        let path = directory.join(format!("{subject:?}"));
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut reader = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        let (mut far, mut writer) = tcp().await;
        let mut copy = tokio::spawn(async move { subject.copy(&mut reader, &mut writer).await });
        // Lets the copy run a hundred times.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!copy.is_finished(), "{subject:?}");
        let mut near = pipe::OpenOptions::new().open_sender(&path).unwrap();
        near.write_all(b"at last").await.unwrap();
        drop(near);
        assert_eq!((&mut copy).await.unwrap().unwrap(), 7);
        let mut got = [0; 7];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"at last");
    })
    .await;
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn halves_in_buffers_give_their_bytes_first() {
    for_each(async |subject| {
        let ((mut near, a), (mut far, b)) = (tcp().await, tcp().await);
        let ((a_read, _a_write), (_b_read, b_write)) = (a.into_split(), b.into_split());
        let (mut reader, mut writer) = (BufReader::new(a_read), BufWriter::new(b_write));
        let mut sent = Pattern::new(2);
        writer.write_all(&sent.take(100)).await.unwrap();
        sent.send(&mut near, 5000).await;
        tokio::io::AsyncBufReadExt::fill_buf(&mut reader).await.unwrap();
        let rest = async {
            sent.send(&mut near, BULK - 5100).await;
            finish(&near);
        };
        let mut wanted = Pattern::new(2);
        let (copied, (), ()) = tokio::join!(
            subject.copy(&mut reader, &mut writer),
            rest,
            wanted.expect(&mut far, BULK)
        );
        assert_eq!(copied.unwrap(), BULK - 100);
    })
    .await;
}

/// tokio's own proxy example used borrowed halves for years.
#[tokio::test]
async fn borrowed_halves_of_both_kinds_are_copied() {
    for_each(async |subject| {
        let ((near, mut a), (far, mut b)) = (tcp().await, tcp().await);
        let ((a_read, _), (_, b_write)) = (a.split(), b.split());
        all_arrives(subject, (near, a_read), (far, b_write)).await;
        let ((near, mut a), (far, mut b)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let ((mut a_read, _), (_, mut b_write)) = (a.split(), b.split());
        all_arrives(subject, (near, &mut a_read), (far, &mut b_write)).await;
    })
    .await;
}

#[test]
fn borrowed_and_owned_halves_are_spliced() {
    let watched = || {
        let faults = Faults::on_this_thread(vec![Rule::watch(Call::SpliceIn)]).unwrap();
        let splices = || faults.seen(Call::SpliceIn).calls;
        block_on(async {
            let before = splices();
            let ((near, mut a), (far, mut b)) = (tcp().await, tcp().await);
            let ((a_read, _), (_, b_write)) = (a.split(), b.split());
            all_arrives(Subject::Ours, (near, a_read), (far, b_write)).await;
            assert!(splices() > before + 20, "borrowed halves");

            let before = splices();
            let ((near, a), (far, b)) = (tcp().await, tcp().await);
            let ((a_read, _a_write), (_b_read, b_write)) = (a.into_split(), b.into_split());
            all_arrives(Subject::Ours, (near, a_read), (far, b_write)).await;
            assert!(splices() > before + 20, "owned halves");
        });
    };
    // The calls of a thread are watched until it ends.
    std::thread::spawn(watched).join().unwrap();
}

#[tokio::test]
async fn both_halves_of_one_connection_can_be_copied_at_the_same_time() {
    for_each(async |subject| {
        let ((mut near, a), (mut far, b)) = (tcp().await, tcp().await);
        let ((mut a_read, mut a_write), (mut b_read, mut b_write)) = (a.into_split(), b.into_split());
        let relay = async {
            let forth = async {
                let bytes = subject.copy(&mut a_read, &mut b_write).await.unwrap();
                b_write.shutdown().await.unwrap();
                bytes
            };
            let back = async {
                let bytes = subject.copy(&mut b_read, &mut a_write).await.unwrap();
                a_write.shutdown().await.unwrap();
                bytes
            };
            tokio::join!(forth, back)
        };
        let peers = async {
            let request = async {
                Pattern::new(3).send(&mut near, 3 * MIB).await;
                finish(&near);
            };
            tokio::join!(request, Pattern::new(3).expect_end(&mut far, 3 * MIB));
            let answer = async {
                Pattern::new(4).send(&mut far, 2 * MIB).await;
                finish(&far);
            };
            tokio::join!(answer, Pattern::new(4).expect_end(&mut near, 2 * MIB));
        };
        let (counts, ()) = tokio::join!(relay, peers);
        assert_eq!(counts, (3 * MIB, 2 * MIB));
    })
    .await;
}

#[tokio::test]
async fn an_end_without_data_counts_as_zero_bytes() {
    for_each(async |subject| {
        let ((near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
        finish(&near);
        assert_eq!(subject.copy(&mut a, &mut b).await.unwrap(), 0);
        assert_eq!(subject.copy(&mut tokio::io::empty(), &mut b).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn errors_keep_their_kind() {
    for_each(async |subject| {
        let ((near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
        reset(near);
        let error = subject.copy(&mut a, &mut b).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let ((mut near, mut a), (far, mut b)) = (tcp().await, tcp().await);
        reset(far);
        // Waits without a read, because a read would consume the error. The writer must find the
        // reset itself.
        b.ready(tokio::io::Interest::READABLE).await.unwrap();
        near.write_all(b"nobody there").await.unwrap();
        let error = subject.copy(&mut a, &mut b).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let mut reader = Builder::new().read(b"x").read_error(ErrorKind::TimedOut.into()).build();
        let error = subject.copy(&mut reader, &mut tokio::io::sink()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    })
    .await;
}

#[tokio::test]
async fn interrupted_calls_are_retried() {
    for_each(async |subject| {
        let interrupted = || io::Error::from(ErrorKind::Interrupted);
        let mut reader = Builder::new()
            .read_error(interrupted())
            .read(b"ab")
            .read_error(interrupted())
            .build();
        let mut writer = Builder::new()
            .write_error(interrupted())
            .write(b"a")
            .write_error(interrupted())
            .write(b"b")
            .build();
        assert_eq!(subject.copy(&mut reader, &mut writer).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn trait_objects_and_in_memory_streams_are_copied() {
    for_each(async |subject| {
        let bytes = Pattern::new(5).take(MIB as usize);
        let mut reader: &[u8] = &bytes;
        let mut writer = Vec::new();
        {
            let (reader, writer): (&mut (dyn AsyncRead + Unpin), &mut (dyn AsyncWrite + Unpin)) =
                (&mut reader, &mut writer);
            assert_eq!(subject.copy(reader, writer).await.unwrap(), MIB);
        }
        assert!(writer == bytes);
    })
    .await;
}
