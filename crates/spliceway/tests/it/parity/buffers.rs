//! Buffers around sockets. Bytes that were read ahead go first. Bytes that were written and not yet
//! flushed go even before them.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufStream, BufWriter};
use tokio::net::{TcpStream, UnixStream};

use super::{Subject, for_each};
use crate::support::pattern::Pattern;
use crate::support::{Duplex, MIB, finish, tcp};

/// More than any buffer, so the relay splices the bytes after the buffered ones.
const STREAM: u64 = 8 * MIB + 11;

/// Sends a stream from both peers, and closes them. The relay's ends have already read the start of
/// each stream.
async fn exchange(
    near: &mut (impl Duplex + ?Sized),
    far: &mut (impl Duplex + ?Sized),
    mut sent: (Pattern, Pattern),
    wanted: (Pattern, Pattern),
) {
    let (mut near_in, mut near_out) = tokio::io::split(near);
    let (mut far_in, mut far_out) = tokio::io::split(far);
    let forth = async {
        let left = STREAM - sent.0.at();
        sent.0.send(&mut near_out, left).await;
        near_out.shutdown().await.unwrap();
    };
    let back = async {
        let left = STREAM - sent.1.at();
        sent.1.send(&mut far_out, left).await;
        far_out.shutdown().await.unwrap();
    };
    tokio::join!(
        forth,
        back,
        wanted.0.expect_end(&mut far_in, STREAM),
        wanted.1.expect_end(&mut near_in, STREAM)
    );
}

#[tokio::test]
async fn bytes_that_a_buf_reader_has_read_ahead_go_first() {
    // Fewer bytes than the buffer holds, more than it holds, and bytes that have all been used.
    for (ahead, used) in [(1_u64, 0_usize), (5000, 17), (20_000, 0), (300, 300)] {
        for_each(async |subject, swapped| {
            let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
            let mut sent = (Pattern::new(1), Pattern::new(2));
            sent.0.send(&mut near, ahead).await;
            sent.1.send(&mut far, ahead).await;
            let (mut near_end, mut far_end) = (BufReader::new(near_end), BufReader::new(far_end));
            let mut wanted = (Pattern::new(1), Pattern::new(2));
            for (end, pattern) in [(&mut near_end, &mut wanted.0), (&mut far_end, &mut wanted.1)] {
                assert!(!end.fill_buf().await.unwrap().is_empty());
                let take = used.min(end.buffer().len());
                pattern.check(&end.buffer()[..take]);
                end.consume(take);
            }
            let skipped = (wanted.0.at(), wanted.1.at());
            let relay = subject.spawn(near_end, far_end, swapped);
            exchange(&mut near, &mut far, sent, wanted).await;
            assert_eq!(relay.await.unwrap().unwrap(), (STREAM - skipped.0, STREAM - skipped.1));
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_that_is_buffered_whole_arrives_with_its_end() {
    for_each(async |subject, swapped| {
        let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
        near.write_all(b"all of it").await.unwrap();
        finish(&near);
        let mut near_end = BufReader::new(near_end);
        near_end.fill_buf().await.unwrap();
        let relay = subject.spawn(near_end, far_end, swapped);
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"all of it");
        drop(far);
        assert_eq!(relay.await.unwrap().unwrap(), (9, 0));
    })
    .await;
}

/// Relays a buffered stream. The relay's end for the near peer holds unsent and unread bytes. The
/// far peer gets the unread bytes, and the near peer gets the unsent ones.
async fn with_buf_stream(subject: Subject, swapped: bool, pair: (impl Duplex, BufStream<impl Duplex + 'static>)) {
    let (mut near, mut near_end) = pair;
    let (mut far, far_end) = tcp().await;
    let (mut forth, mut back) = (Pattern::new(3), Pattern::new(4));
    forth.send(&mut near, 5000).await;
    near_end.fill_buf().await.unwrap();
    // This fits in the buffer, so it stays there.
    near_end.write_all(&back.take(1000)).await.unwrap();
    let relay = subject.spawn(near_end, far_end, swapped);
    exchange(&mut near, &mut far, (forth, back), (Pattern::new(3), Pattern::new(4))).await;
    assert_eq!(relay.await.unwrap().unwrap(), (STREAM, STREAM - 1000));
}

#[tokio::test]
async fn bytes_in_a_buf_stream_go_first_both_ways() {
    for_each(async |subject, swapped| {
        let (near, near_end) = tcp().await;
        with_buf_stream(subject, swapped, (near, BufStream::new(near_end))).await;
        let (near, near_end) = UnixStream::pair().unwrap();
        with_buf_stream(subject, swapped, (near, BufStream::new(near_end))).await;
    })
    .await;
}

#[tokio::test]
async fn bytes_in_a_buf_writer_go_first() {
    for_each(async |subject, swapped| {
        let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
        let mut near_end = BufWriter::new(near_end);
        let mut back = Pattern::new(5);
        near_end.write_all(&back.take(777)).await.unwrap();
        let relay = subject.spawn(near_end, far_end, swapped);
        let sent = (Pattern::new(6), back);
        exchange(&mut near, &mut far, sent, (Pattern::new(6), Pattern::new(5))).await;
        assert_eq!(relay.await.unwrap().unwrap(), (STREAM, STREAM - 777));
    })
    .await;
}

#[tokio::test]
async fn buffered_sockets_are_spliced_after_their_buffers() {
    for swapped in [false, true] {
        let ((mut near, near_end), (mut far, far_end)) = (tcp().await, tcp().await);
        let sent = (Pattern::new(7), Pattern::new(8));
        let ends = (BufStream::new(near_end), BufReader::new(far_end));
        let summary = if swapped {
            let task = tokio::spawn(spliceway::Relay::new(ends.1, ends.0));
            exchange(&mut near, &mut far, sent, (Pattern::new(7), Pattern::new(8))).await;
            task.await.unwrap().unwrap()
        } else {
            let task = tokio::spawn(spliceway::Relay::new(ends.0, ends.1));
            exchange(&mut near, &mut far, sent, (Pattern::new(7), Pattern::new(8))).await;
            task.await.unwrap().unwrap()
        };
        for direction in [summary.a_to_b, summary.b_to_a] {
            assert!(direction.spliced > STREAM / 2, "{direction:?}");
        }
    }
}

#[tokio::test]
async fn an_idle_buf_stream_lets_the_other_direction_through() {
    for_each(async |subject, swapped| {
        let ((mut near, near_end), (mut far, far_end)): ((TcpStream, _), _) = (tcp().await, tcp().await);
        let relay = subject.spawn(BufStream::new(near_end), far_end, swapped);
        // The near peer sends nothing. The relay must not wait for it before it serves the far
        // peer.
        far.write_all(b"hello?").await.unwrap();
        let mut got = [0; 6];
        near.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"hello?");
        drop((near, far));
        assert_eq!(relay.await.unwrap().unwrap(), (0, 6));
    })
    .await;
}
