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
/// client is connected. The bytes that follow are for the next request. If this is the last
/// request, up to 64 KiB of them are discarded.
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
    is_last: bool,
    forgotten: usize,
}

impl<R> RequestBody<R> {
    /// Creates a reader. `sent` is the number of bytes that were read from the client before.
    pub(super) fn new(client: R, chunks: Chunks, sent: u64, upload: Arc<Upload>, is_last: bool) -> Self {
        if chunks.are_over() {
            upload.set_total(sent);
        }
        Self {
            client,
            chunks,
            bytes: sent,
            upload,
            is_last,
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
            is_last,
            forgotten,
        } = self.get_mut();
        loop {
            if *forgotten > if *is_last { FORGOTTEN_MAX_BYTES } else { 0 } {
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
            if !*is_last {
                upload.put_back(&buf.initialized()[before + taken..before + bytes]);
            }
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
        RequestBody::new(ours, Chunks::default(), 0, Arc::default(), true)
            .read_to_string(&mut read)
            .await
            .unwrap();
        said.await.unwrap();
        assert_eq!(read, body);
    }

    #[tokio::test]
    async fn the_bytes_after_a_body_are_kept_for_the_next_request() {
        let next = "GET http://next/ HTTP/1.1\r\n\r\n";
        let said = ["0\r\n\r\n", next].concat();
        let upload = Arc::<Upload>::default();
        let mut body = RequestBody::new(said.as_bytes(), Chunks::default(), 0, Arc::clone(&upload), false);
        assert_eq!(body.read(&mut [0; 100]).await.unwrap(), 5);
        assert_eq!(upload.take_put_back(), next.as_bytes());
    }

    #[tokio::test]
    async fn an_invalid_chunk_is_an_error() {
        let mut body = RequestBody::new(&b"nonsense\r\n"[..], Chunks::default(), 0, Arc::default(), true);
        let read = body.read_to_end(&mut Vec::new()).await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
