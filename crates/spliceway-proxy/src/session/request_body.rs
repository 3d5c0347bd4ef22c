//! A client whose request has a body in chunks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::answering::Upload;
use crate::protocol::http::{Chunks, Malformed};

/// Read and forgotten of what comes behind a body: more than ends a line twice, or asks again. A sender of more is held up by TCP.
pub(super) const FORGOTTEN_MAX_BYTES: usize = 64 << 10;

/// Reads as the rest of the body and then, for as long as the client is there, as one that says nothing more: what it sends is read and
/// forgotten, up to 64 KiB. (A socket that is closed with bytes unread resets its peer, and the end of the answer is lost. And a client that is not
/// listened to is not seen to go.)
pub(super) struct RequestBody<R> {
    client: R,
    chunks: Chunks,
    /// Bytes of the request so far. `upload` gets their number when the body ends.
    bytes: u64,
    upload: Arc<Upload>,
    forgotten: usize,
}

impl<R> RequestBody<R> {
    /// `sent` is the number of bytes that were read from the client before.
    pub(super) fn new(client: R, chunks: Chunks, sent: u64, upload: Arc<Upload>) -> Self {
        if chunks.are_over() {
            upload.is_of(sent);
        }
        Self {
            client,
            chunks,
            bytes: sent,
            upload,
            forgotten: 0,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for RequestBody<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self {
            client,
            chunks,
            bytes: sent,
            upload,
            forgotten,
        } = self.get_mut();
        loop {
            if *forgotten > FORGOTTEN_MAX_BYTES {
                // Nobody wakes this, and nothing is to come of it.
                return Poll::Pending;
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut *client).poll_read(cx, buf))?;
            let read = &buf.filled()[before..];
            let (bytes, taken) = (read.len(), chunks.take(read));
            buf.set_filled(before + taken.unwrap_or(0));
            let wrong =
                |Malformed| io::Error::new(io::ErrorKind::InvalidData, "the body is not in chunks as its head says");
            let taken = taken.map_err(wrong)?;
            *forgotten += bytes - taken;
            *sent += taken as u64;
            if chunks.are_over() {
                upload.is_of(*sent);
            }
            if taken > 0 || bytes == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_body_is_read_to_its_end_and_nothing_behind_it() {
        let body = "3\r\nabc\r\n0\r\n\r\n";
        let (mut client, ours) = tokio::io::duplex(7);
        let said = [body, "GET http://next/ HTTP/1.1\r\n\r\n"].concat();
        let said = tokio::spawn(async move { client.write_all(said.as_bytes()).await.unwrap() });
        let mut read = String::new();
        RequestBody::new(ours, Chunks::default(), 0, Arc::default())
            .read_to_string(&mut read)
            .await
            .unwrap();
        said.await.unwrap();
        assert_eq!(read, body);
    }

    #[tokio::test]
    async fn what_is_no_chunk_is_an_error() {
        let mut body = RequestBody::new(&b"nonsense\r\n"[..], Chunks::default(), 0, Arc::default());
        let read = body.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
