//! Reads the answer while the request's body is still being sent. The head is rewritten to end the
//! connection, and the rest passes unchanged.
//!
//! ```text
//!   body sent, head not yet passed ──┐
//!                                    ├─▶ finished: a second relay splices the other bytes
//!   head passed, body not yet sent ──┘
//! ```

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use spliceway::{CancelHandle, RelayStats};
use tokio::io::{AsyncRead, ReadBuf};

use spliceway_protocol::Failure;
use spliceway_protocol::http::{self, Answer};

/// A reader of the target's answer. It ends its relay when the body is sent and the head has
/// passed.
pub(super) struct Answering<R> {
    target: R,
    /// `None` after the head is complete.
    answer: Option<Answer>,
    has_spoken: bool,
    /// Bytes for the next read.
    ready: Vec<u8>,
    upload: Arc<Upload>,
}

/// The progress of the request.
#[derive(Default)]
pub(super) struct Upload {
    /// The size of the request in bytes, once it is known.
    total: OnceLock<u64>,
    relay: OnceLock<(RelayStats, CancelHandle)>,
    is_finished: AtomicBool,
}

impl Upload {
    /// Records that the request has `bytes` bytes in total.
    pub(super) fn set_total(&self, bytes: u64) {
        let _ = self.total.set(bytes);
    }

    /// Sets the relay that sends the request.
    pub(super) fn set_relay(&self, stats: RelayStats, cancel: CancelHandle) {
        let _ = self.relay.set((stats, cancel));
    }

    /// Returns whether the relay was cancelled so that a second relay can continue.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Relaxed)
    }

    /// Cancels the relay if the target has the whole request. Returns whether it did.
    fn finish(&self) -> bool {
        let (Some(total), Some((stats, cancel))) = (self.total.get(), self.relay.get()) else {
            return false;
        };
        let is_delivered = stats.snapshot().a_to_b.bytes >= *total;
        if is_delivered {
            self.is_finished.store(true, Ordering::Relaxed);
            // There is no deadline, because the relay's own timeouts apply to bytes that the client
            // has not read yet.
            cancel.cancel(Duration::MAX);
        }
        is_delivered
    }
}

impl<R> Answering<R> {
    /// Creates a reader. `early` holds the bytes of the answer that were read before.
    pub(super) fn new(target: R, early: &[u8], upload: Arc<Upload>) -> Self {
        let mut answering = Self {
            target,
            answer: Some(Answer::default()),
            has_spoken: false,
            ready: Vec::new(),
            upload,
        };
        answering.take(early);
        answering
    }

    fn take(&mut self, mut bytes: &[u8]) {
        self.has_spoken |= !bytes.is_empty();
        let Some(answer) = &mut self.answer else {
            self.ready.extend_from_slice(bytes);
            return;
        };
        match answer.feed(&mut bytes) {
            Some(heads) => {
                self.answer = None;
                self.ready = [&heads[..], bytes].concat();
            }
            None => self.ready = answer.take_interim(),
        }
    }

    /// Ends the answer of a target that closed the connection before the head of the answer was
    /// complete.
    fn end(&mut self, answer: Answer) {
        self.ready = if self.has_spoken {
            answer.cut_short()
        } else {
            http::failed(Failure::General)
        };
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Answering<R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.ready.is_empty() {
                let bytes = this.ready.len().min(buf.remaining());
                buf.put_slice(&this.ready[..bytes]);
                this.ready.drain(..bytes);
                return Poll::Ready(Ok(()));
            }
            if this.answer.is_none() {
                if this.upload.finish() {
                    // Cancelling wakes the relay's task.
                    return Poll::Pending;
                }
                return Pin::new(&mut this.target).poll_read(cx, buf);
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.target).poll_read(cx, buf))?;
            let read = buf.filled()[before..].to_vec();
            buf.set_filled(before);
            match this.answer.take_if(|_| read.is_empty()) {
                Some(answer) => this.end(answer),
                None => this.take(&read),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn read(said: &[u8], early: usize) -> String {
        let mut answering = Answering::new(&said[early..], &said[..early], Arc::default());
        let mut read = String::new();
        answering.read_to_string(&mut read).await.unwrap();
        read
    }

    #[tokio::test]
    async fn an_answer_is_marked_as_the_last_and_its_body_follows() {
        let said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nbody";
        for early in 0..=said.len() {
            assert_eq!(
                read(said, early).await,
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"
            );
        }
    }

    #[tokio::test]
    async fn an_interim_answer_can_be_read_before_the_last_one() {
        let (mut target, ours) = tokio::io::duplex(64);
        let mut answering = Answering::new(ours, b"", Arc::default());
        let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut target, interim).await.unwrap();
        let mut read = vec![0; interim.len()];
        answering.read_exact(&mut read).await.unwrap();
        assert_eq!(read, interim);
    }

    #[tokio::test]
    async fn an_answer_without_a_byte_becomes_502_and_a_partial_head_passes() {
        assert!(read(b"", 0).await.starts_with("HTTP/1.1 502 "));
        assert_eq!(read(b"HTTP/1.1 200", 4).await, "HTTP/1.1 200");
        assert_eq!(
            read(b"HTTP/1.1 100 Continue\r\n\r\n", 0).await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
    }
}
