//! Reads the chunked body of a client's request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::answering::Upload;
use crate::session::linger::FORGOTTEN_MAX_BYTES;
use spliceway_protocol::http::{Chunks, Malformed};

/// A reader that returns the rest of the body. After the body, it returns no more bytes while the
/// client is connected. It reads and discards up to 64 KiB of the bytes that follow.
///
/// There are two reasons to read these bytes. A socket that is closed with unread bytes resets its
/// peer, and the end of the answer is lost. Also, the proxy notices that a client has left only if
/// it reads from the client.
pub(super) struct RequestBody<R> {
    client: R,
    chunks: Chunks,
    /// The size of the request so far, in bytes. `upload` gets this number when the body ends.
    bytes: u64,
    upload: Arc<Upload>,
    forgotten: usize,
}

impl<R> RequestBody<R> {
    /// Creates a reader. `sent` is the number of bytes that were read from the client before.
    pub(super) fn new(client: R, chunks: Chunks, sent: u64, upload: Arc<Upload>) -> Self {
        if chunks.are_over() {
            upload.set_total(sent);
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
                // Nothing needs to wake this reader, because it returns no more bytes.
                return Poll::Pending;
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut *client).poll_read(cx, buf))?;
            let read = &buf.filled()[before..];
            let (bytes, taken) = (read.len(), chunks.take(read));
            buf.set_filled(before + taken.unwrap_or(0));
            let wrong =
                |Malformed| io::Error::new(io::ErrorKind::InvalidData, "the body is not chunked as its head says");
            let taken = taken.map_err(wrong)?;
            *forgotten += bytes - taken;
            *sent += taken as u64;
            if chunks.are_over() {
                upload.set_total(*sent);
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
    async fn a_body_is_read_to_its_end_and_nothing_after_it() {
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
    async fn an_invalid_chunk_is_an_error() {
        let mut body = RequestBody::new(&b"nonsense\r\n"[..], Chunks::default(), 0, Arc::default());
        let read = body.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
