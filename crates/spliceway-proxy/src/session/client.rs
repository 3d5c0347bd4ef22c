//! A client's connection, with the bytes that the client has already sent.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

use crate::net::stream::Stream;

/// A client's connection, with a buffer for the bytes that the client has already sent.
///
/// The body of an HTTP request may be read past its end. The further bytes are put back, and come
/// before those of the buffer.
pub(super) struct Client {
    reader: BufReader<Stream>,
    put_back: Option<Box<io::Cursor<Vec<u8>>>>,
}

impl Client {
    pub(super) fn with_capacity(bytes: usize, stream: Stream) -> Self {
        BufReader::with_capacity(bytes, stream).into()
    }

    pub(super) fn get_ref(&self) -> &Stream {
        self.reader.get_ref()
    }

    pub(super) fn get_mut(&mut self) -> &mut Stream {
        self.reader.get_mut()
    }

    /// Returns bytes that were received and not consumed. If there are none, nothing was received.
    pub(super) fn buffer(&self) -> &[u8] {
        match &self.put_back {
            Some(bytes) => rest(bytes),
            None => self.reader.buffer(),
        }
    }

    /// Puts bytes back that were read from the connection itself. The buffer must be empty.
    pub(super) fn put_back(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            debug_assert!(self.buffer().is_empty(), "the order of the bytes is lost");
            self.put_back = Some(Box::new(io::Cursor::new(bytes)));
        }
    }

    /// Returns the connection without the buffer.
    pub(super) fn into_inner(self) -> Stream {
        self.reader.into_inner()
    }

    /// Returns the connection of a client to which no bytes were put back.
    pub(super) fn into_reader(self) -> BufReader<Stream> {
        debug_assert!(self.put_back.is_none(), "only after a request");
        self.reader
    }

    fn consumed(&mut self) {
        self.put_back.take_if(|bytes| rest(bytes).is_empty());
    }
}

fn rest(bytes: &io::Cursor<Vec<u8>>) -> &[u8] {
    let at = usize::try_from(bytes.position()).unwrap_or(usize::MAX);
    bytes.get_ref().get(at..).unwrap_or_default()
}

impl From<BufReader<Stream>> for Client {
    fn from(reader: BufReader<Stream>) -> Self {
        Self { reader, put_back: None }
    }
}

impl AsyncRead for Client {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(bytes) = &mut this.put_back else {
            return Pin::new(&mut this.reader).poll_read(cx, buf);
        };
        let read = bytes.read(buf.initialize_unfilled())?;
        buf.advance(read);
        this.consumed();
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for Client {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        match &this.put_back {
            Some(bytes) => Poll::Ready(Ok(rest(bytes))),
            None => Pin::new(&mut this.reader).poll_fill_buf(cx),
        }
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.get_mut();
        match &mut this.put_back {
            Some(bytes) => bytes.set_position(bytes.position() + amount as u64),
            None => Pin::new(&mut this.reader).consume(amount),
        }
        this.consumed();
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().reader).poll_write(cx, buf)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn bytes_that_are_put_back_come_first() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let mut client = Client::with_capacity(8, stream.into());
        peer.write_all(b"later").await.unwrap();
        drop(peer);
        client.put_back(b"first, ".to_vec());
        assert_eq!(client.buffer(), b"first, ");
        let mut two = [0; 2];
        client.read_exact(&mut two).await.unwrap();
        assert_eq!((&two, client.buffer()), (b"fi", &b"rst, "[..]));
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "rst, later");
        assert_eq!(client.buffer(), b"");
    }
}
