//! Follows the records of TLS that a connection receives, so that reading can stop between two.
//!
//! The kernel can decrypt a connection only from the beginning of a record on. rustls must have
//! read everything before it, and nothing after it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

use super::traffic_secrets::TrafficSecrets;

/// The reader below TLS. It has bytes that came before or with the first message of TLS.
#[derive(Debug)]
pub(crate) struct Records<S> {
    reader: BufReader<S>,
    /// `None` means that nothing is followed, at no cost.
    followed: Option<Box<Followed>>,
}

/// What is known about the records that have come.
#[derive(Debug)]
struct Followed {
    position: Position,
    last: LastRead,
    secrets: Arc<TrafficSecrets>,
    request: Arc<SwitchRequest>,
}

/// A request to a connection to stop between two records, and the answer.
///
/// ```text
///   the task of the session: request ──▶ the connection stops between two records
///                       switches ◀── take_stop ──┘ and answers `Pending`, which wakes no task
/// ```
#[derive(Debug, Default)]
pub(crate) struct SwitchRequest {
    is_requested: AtomicBool,
    has_stopped: AtomicBool,
}

/// The position in the stream of records.
#[derive(Debug, PartialEq, Eq)]
enum Position {
    /// In a header, of which this many bytes have come.
    Header([u8; HEADER_BYTES], usize),
    /// In a record of this type and length, of which `left` bytes are to come.
    Content { kind: u8, length: usize, left: usize },
}

/// The records that ended in the last read in which a record ended.
#[derive(Debug, Default)]
struct LastRead {
    records: usize,
    /// The most bytes of data that these records can have. `None` if one of them has no data.
    most: Option<usize>,
    /// The bytes of data that rustls has returned since then.
    returned: usize,
}

/// The type, the version and the length.
const HEADER_BYTES: usize = 5;
/// The type of each encrypted record of TLS 1.3, whatever it has.
const DATA: u8 = 23;
/// What a record of TLS 1.3 has besides data and padding: its real type, and a tag.
const OVERHEAD_BYTES: usize = 1 + 16;

impl SwitchRequest {
    /// Asks the connection to stop.
    pub(crate) fn make(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Lets the connection continue.
    pub(crate) fn withdraw(&self) {
        self.is_requested.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_made(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    /// Records that the connection has stopped. Its next call continues, unless it stops again.
    pub(super) fn stop(&self) {
        self.has_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection has stopped since the last call.
    pub(crate) fn take_stop(&self) -> bool {
        self.has_stopped.swap(false, Ordering::Relaxed)
    }
}

impl<S: AsyncRead> Records<S> {
    /// Follows nothing.
    pub(crate) fn unseen(reader: BufReader<S>) -> Self {
        Self { reader, followed: None }
    }

    /// Follows the records of a connection from its first byte. The bytes in `head` were read
    /// before.
    pub(crate) fn followed(reader: BufReader<S>, head: &[u8]) -> Self {
        let mut followed = Box::new(Followed {
            position: Position::default(),
            last: LastRead::default(),
            secrets: Arc::default(),
            request: Arc::default(),
        });
        followed.pass(head);
        Self {
            reader,
            followed: Some(followed),
        }
    }

    /// Reads from a connection from which nothing was read, and follows its records if
    /// `is_followed`.
    pub(crate) fn of_silent(stream: S, is_followed: bool) -> Self {
        // A reader whose buffer is this small never uses it.
        let reader = BufReader::with_capacity(1, stream);
        if is_followed {
            Self::followed(reader, &[])
        } else {
            Self::unseen(reader)
        }
    }

    /// Follows nothing from now on.
    pub(super) fn forget(&mut self) {
        if let Some(followed) = self.followed.take() {
            followed.secrets.forget();
        }
    }

    /// Returns where rustls logs the secrets of the connection, if records are followed.
    pub(crate) fn secrets(&self) -> Option<&Arc<TrafficSecrets>> {
        self.followed.as_ref().map(|followed| &followed.secrets)
    }

    pub(super) fn request(&self) -> Option<&Arc<SwitchRequest>> {
        self.followed.as_ref().map(|followed| &followed.request)
    }

    /// Records that rustls has returned this many bytes of data.
    pub(super) fn returned(&mut self, bytes: usize) {
        if let Some(followed) = &mut self.followed {
            followed.last.returned += bytes;
        }
    }

    /// Returns whether the connection is between two records, the last one had data, and rustls has
    /// returned all of it. Then no message of a handshake is incomplete, because it must not have
    /// data in its middle.
    pub(super) fn is_after_data(&self) -> bool {
        self.followed.as_ref().is_some_and(|followed| {
            followed.position == Position::default() && followed.last.is_data() && self.reader.buffer().is_empty()
        })
    }

    pub(crate) fn get_ref(&self) -> &S {
        self.reader.get_ref()
    }

    pub(crate) fn into_inner(self) -> S {
        self.reader.into_inner()
    }
}

impl Followed {
    /// Follows bytes that one read has returned.
    fn pass(&mut self, mut bytes: &[u8]) {
        let mut read = LastRead::default();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.position.rest().min(bytes.len()));
            bytes = later;
            if let Some((kind, length)) = self.position.pass(now) {
                read.add(kind, length);
            }
        }
        if read.records > 0 {
            self.last = read;
        }
    }
}

impl Position {
    /// Returns the number of bytes that surely belong to the same record.
    fn rest(&self) -> usize {
        match self {
            Self::Header(_, have) => HEADER_BYTES - have,
            Self::Content { left, .. } => *left,
        }
    }

    /// Passes bytes of the record. Returns its type and its length at its end.
    fn pass(&mut self, bytes: &[u8]) -> Option<(u8, usize)> {
        match self {
            Self::Header(header, have) => {
                header[*have..*have + bytes.len()].copy_from_slice(bytes);
                *have += bytes.len();
                if *have < HEADER_BYTES {
                    return None;
                }
                let [kind, _, _, high, low] = *header;
                let length = usize::from(u16::from_be_bytes([high, low]));
                let left = length;
                *self = Self::Content { kind, length, left };
            }
            Self::Content { left, .. } => *left -= bytes.len(),
        }
        match *self {
            Self::Content { kind, length, left: 0 } => {
                *self = Self::default();
                Some((kind, length))
            }
            _ => None,
        }
    }
}

impl Default for Position {
    fn default() -> Self {
        Self::Header([0; HEADER_BYTES], 0)
    }
}

impl LastRead {
    /// Adds a record that has ended.
    fn add(&mut self, kind: u8, length: usize) {
        let data = length.checked_sub(OVERHEAD_BYTES).filter(|_| kind == DATA);
        let before = if self.records == 0 { Some(0) } else { self.most };
        self.most = before.zip(data).map(|(before, data)| before + data);
        self.records += 1;
    }

    /// Returns whether the last record certainly had data. With several records, all of them must
    /// have had data and no padding.
    fn is_data(&self) -> bool {
        self.returned > 0 && (self.records == 1 || self.most == Some(self.returned))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Records<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(followed) = &mut this.followed else {
            return Pin::new(&mut this.reader).poll_read(cx, buf);
        };
        let before = buf.filled().len();
        if followed.request.is_made() {
            let max = followed.position.rest().min(buf.remaining());
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(max));
            ready!(poll_read_exactly(&mut this.reader, cx, &mut part))?;
            let read = part.filled().len();
            buf.advance(read);
        } else {
            ready!(Pin::new(&mut this.reader).poll_read(cx, buf))?;
        }
        followed.pass(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

/// Reads without filling the buffer of the reader.
fn poll_read_exactly<S: AsyncRead + Unpin>(
    reader: &mut BufReader<S>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if reader.buffer().is_empty() {
        Pin::new(reader.get_mut()).poll_read(cx, buf)
    } else {
        Pin::new(reader).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + Unpin> AsyncBufRead for Records<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.get_mut().reader).poll_fill_buf(cx)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        let this = self.get_mut();
        if let Some(followed) = &mut this.followed {
            followed.pass(&this.reader.buffer()[..bytes]);
        }
        Pin::new(&mut this.reader).consume(bytes);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Records<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().reader).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().reader).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.reader.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().reader).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn record(kind: u8, content: usize) -> Vec<u8> {
        let length = u16::try_from(content).unwrap();
        [&[kind, 3, 3], &length.to_be_bytes()[..], &vec![b'x'; content]].concat()
    }

    fn followed(head: &[u8]) -> (DuplexStream, Records<DuplexStream>, Arc<SwitchRequest>) {
        let (peer, stream) = duplex(1 << 16);
        let records = Records::followed(BufReader::with_capacity(64, stream), head);
        let request = Arc::clone(records.request().unwrap());
        (peer, records, request)
    }

    #[tokio::test]
    async fn records_that_come_in_any_pieces_are_followed() {
        let all = [record(22, 3), record(DATA, 0), record(DATA, 40), record(20, 1)].concat();
        let ends = [8, 13, 58, 64];
        for cut in 0..=all.len() {
            let (mut peer, mut records, _) = followed(&all[..cut]);
            let mut at = cut;
            for piece in all[cut..].chunks(7) {
                peer.write_all(piece).await.unwrap();
                let mut bytes = vec![0; piece.len()];
                records.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes, piece);
                at += piece.len();
                let position = &records.followed.as_ref().unwrap().position;
                assert_eq!(*position == Position::default(), ends.contains(&at), "{cut} {at}");
            }
        }
    }

    #[tokio::test]
    async fn a_read_does_not_pass_a_record_after_a_request() {
        let all = [record(DATA, 30), record(DATA, 100), record(DATA, 20)].concat();
        for cut in 0..all.len() {
            let (mut peer, mut records, request) = followed(&[]);
            peer.write_all(&all).await.unwrap();
            // The buffer has read further than its reader.
            let mut read = 0;
            while read < cut {
                let available = records.fill_buf().await.unwrap().len().min(cut - read);
                records.consume(available);
                read += available;
            }
            request.make();
            let ends = [35, 140, 165];
            while read < all.len() {
                let end = *ends.iter().find(|end| read < **end).unwrap();
                let mut bytes = [0; 200];
                let length = records.read(&mut bytes).await.unwrap();
                assert_eq!(bytes[..length], all[read..read + length]);
                read += length;
                assert!(length > 0 && read <= end, "{cut}: {read} is behind {end}");
            }
            assert!(records.reader.buffer().is_empty());
        }
    }

    #[test]
    fn only_data_that_is_certain_ends_a_read() {
        let with = |content: usize| (DATA, content + OVERHEAD_BYTES);
        for (records, returned, is_data) in [
            (&[][..], 0, false),
            (&[with(5)], 5, true),
            // With padding.
            (&[with(9)], 5, true),
            // A message of a handshake, or an empty record.
            (&[with(9)], 0, false),
            (&[with(0)], 0, false),
            (&[with(5), with(7)], 12, true),
            // The second one may be a part of a message.
            (&[with(5), with(7)], 5, false),
            (&[with(5), with(7)], 7, false),
            (&[with(5), (20, 1)], 5, false),
            (&[(20, 1), with(5)], 5, false),
            (&[(DATA, 3), with(5)], 5, false),
        ] {
            let mut last = LastRead::default();
            for (kind, length) in records {
                last.add(*kind, *length);
            }
            last.returned = returned;
            assert_eq!(last.is_data(), is_data, "{records:?} {returned}");
        }
    }
}
