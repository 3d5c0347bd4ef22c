//! An end of a connection that speaks TLS.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustls::Connection;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream as Inner;

use super::kernel_support::{KernelSupport, Switch};
use super::records::{Records, SwitchRequest};
use crate::kit::tls_error::{Peer, TlsError};

/// A connection on which a handshake has succeeded.
///
/// The end of the other side is EOF, whether or not the other side has announced it
/// (`close_notify`). [`Self::truncation`] tells the difference. An error of TLS is a [`TlsError`].
#[derive(Debug)]
pub(crate) struct TlsStream<S> {
    inner: Inner<Records<S>>,
    /// Why the kernel cannot take the connection over, although it should.
    stays: Option<Switch>,
    peer: Peer,
    is_truncated: Arc<AtomicBool>,
    /// Becomes `true` if what this side sends is cut, so that its end must not look complete.
    is_cut: Option<Arc<AtomicBool>>,
    /// Whether the other side has ended its stream.
    is_at_end: bool,
    /// Whether every byte of this side was sent when it began to announce its end.
    has_sent_all: bool,
    /// Whether this side has announced its end.
    is_finished: bool,
}

impl<S: AsyncRead> TlsStream<S> {
    pub(crate) fn new(inner: impl Into<Inner<Records<S>>>, peer: Peer) -> Self {
        let mut inner = inner.into();
        let (records, session) = inner.get_mut();
        let support = records.request().map(|_| KernelSupport::get().check(session));
        let stays = support.and_then(Result::err);
        if stays.is_some() {
            records.forget();
        }
        Self {
            inner,
            stays,
            peer,
            is_truncated: Arc::default(),
            is_cut: None,
            is_at_end: false,
            has_sent_all: false,
            is_finished: false,
        }
    }

    /// Returns the connection below TLS.
    pub(super) fn socket(&self) -> &S {
        self.inner.get_ref().0.get_ref()
    }

    /// Returns what becomes `true` if the connection ends without an announcement, so that bytes
    /// may be missing.
    pub(crate) fn truncation(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_truncated)
    }

    /// Ends without an announcement if the source of what this side sends has ended without one.
    pub(crate) fn pass_truncation_of(&mut self, source: Arc<AtomicBool>) {
        self.is_cut = Some(source);
    }

    /// Returns whether this side has announced its end, so that the other side knows that it has
    /// every byte.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Gives up TLS. The other side sees the end of the connection below.
    pub(crate) fn into_socket(self) -> S {
        match self.inner {
            Inner::Server(stream) => stream.into_inner().0.into_inner(),
            Inner::Client(stream) => stream.into_inner().0.into_inner(),
        }
    }

    /// Returns the request to stop between two records, if the kernel can take the connection over.
    pub(crate) fn switch_request(&self) -> Option<&Arc<SwitchRequest>> {
        self.inner.get_ref().0.request()
    }

    /// Returns why the kernel cannot take the connection over, although it should.
    pub(crate) fn why_it_stays(&self) -> Option<Switch> {
        self.stays
    }

    /// Stays in user space.
    pub(crate) fn stay(&mut self) {
        self.inner.get_mut().0.forget();
    }

    /// Returns the state of TLS. [`Self::is_between_records`] must be true.
    pub(super) fn into_parts(self) -> Parts<S> {
        let (records, connection) = match self.inner {
            Inner::Server(stream) => {
                let (records, connection) = stream.into_inner();
                (records, connection.into())
            }
            Inner::Client(stream) => {
                let (records, connection) = stream.into_inner();
                (records, connection.into())
            }
        };
        Parts {
            records,
            connection,
            is_truncated: self.is_truncated,
            is_cut: self.is_cut,
        }
    }

    /// Returns whether the kernel can take the connection over now: both sides are between two
    /// records, and have not ended.
    pub(super) fn is_between_records(&mut self) -> bool {
        if self.is_at_end || self.is_finished || !self.inner.get_ref().0.is_after_data() {
            return false;
        }
        // Without data to send, this passes the answer to a key update on to the socket.
        let _ = match &mut self.inner {
            Inner::Server(stream) => stream.get_mut().1.writer().write(&[]),
            Inner::Client(stream) => stream.get_mut().1.writer().write(&[]),
        };
        let session = self.inner.get_ref().1;
        // rustls wants to read unless it has data, or the end of the other side.
        session.wants_read() && !session.wants_write()
    }
}

/// The state of a connection between two records.
pub(super) struct Parts<S> {
    pub(super) records: Records<S>,
    pub(super) connection: Connection,
    pub(super) is_truncated: Arc<AtomicBool>,
    pub(super) is_cut: Option<Arc<AtomicBool>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, has_room) = (buf.filled().len(), buf.remaining() > 0);
        let read = if self.switch_request().is_none() {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        } else if self.stops() {
            return Poll::Pending;
        } else {
            self.poll_read_followed(cx, buf)
        };
        match read {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_truncated.store(true, Ordering::Relaxed);
                self.is_at_end = true;
                Poll::Ready(Ok(()))
            }
            read => {
                if read.is_pending() && self.inner.get_ref().1.wants_write() {
                    // An answer of TLS itself, such as the refusal to renegotiate, does not wait
                    // for data. The next write reports an error.
                    let _ = Pin::new(&mut self.inner).poll_flush(cx);
                    if self.stops() {
                        return Poll::Pending;
                    }
                }
                let is_end = matches!(read, Poll::Ready(Ok(()))) && has_room && buf.filled().len() == before;
                self.is_at_end |= is_end;
                read.map_err(|error| TlsError::explain(error, self.peer))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        written.map_err(|error| self.reason(error, cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_before_write(cx))?;
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        written.map_err(|error| self.reason(error, cx))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this
            .is_cut
            .as_ref()
            .is_some_and(|is_cut| is_cut.load(Ordering::Relaxed))
        {
            ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
            return Pin::new(this.inner.get_mut().0).poll_shutdown(cx);
        }
        if !this.is_finished {
            this.is_finished = true;
            // The kernel takes over no connection that has ended on a side.
            this.inner.get_mut().0.forget();
            this.has_sent_all = !this.inner.get_ref().1.wants_write();
        }
        match Pin::new(&mut this.inner).poll_shutdown(cx) {
            // The other side has ended its stream, has every byte, and has left. It needs no
            // announcement.
            Poll::Ready(Err(error)) if this.is_at_end && this.has_sent_all && is_gone(&error) => Poll::Ready(Ok(())),
            shutdown => shutdown,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Reads the data of one record at most, so that it is known whether the last record had data.
    fn poll_read_followed(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let data = ready!(Pin::new(&mut self.inner).poll_fill_buf(cx))?;
        let read = data.len().min(buf.remaining());
        buf.put_slice(&data[..read]);
        Pin::new(&mut self.inner).consume(read);
        self.inner.get_mut().0.returned(read);
        Poll::Ready(Ok(()))
    }

    /// Returns whether the stream stops, because a switch was requested and is possible now.
    /// Nothing wakes the task: the code that has made the request looks after each poll.
    fn stops(&mut self) -> bool {
        let Some(request) = self.switch_request().filter(|request| request.is_made()) else {
            return false;
        };
        let request = Arc::clone(request);
        let can_switch = self.is_between_records();
        if can_switch {
            request.stop();
        }
        can_switch
    }

    /// Ready if a write may follow. If a switch was requested, what was written before must be sent
    /// first. This does not stop reads, because the other side may write before it reads.
    fn poll_before_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.switch_request().is_some_and(|request| request.is_made()) {
            return Poll::Ready(Ok(()));
        }
        if self.inner.get_ref().1.wants_write() {
            let flushed = ready!(Pin::new(&mut self.inner).poll_flush(cx));
            flushed.map_err(|error| self.reason(error, cx))?;
        }
        if self.stops() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Returns the alert that came before the connection broke, if it is still unread.
    fn reason(&mut self, error: io::Error, cx: &mut Context<'_>) -> io::Error {
        match Pin::new(&mut self.inner).poll_fill_buf(cx) {
            // The kernel reports a reset once. The write has met it, and the read finds an end.
            Poll::Ready(Err(read)) if is_gone(&error) && read.kind() != io::ErrorKind::UnexpectedEof => {
                TlsError::explain(read, self.peer)
            }
            _ => error,
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

#[cfg(all(test, feature = "tls"))]
mod tests;
