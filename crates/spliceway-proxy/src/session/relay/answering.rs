//! Reads the answer while the request's body is still being sent, or while the answer's body is in
//! chunks. The head is rewritten for the client, and the rest passes unchanged, up to its end.
//!
//! ```text
//!   body sent, head not yet passed ──┐
//!                                    ├─▶ finished: a second relay passes what is left
//!   head passed, body not yet sent ──┘
//! ```

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use spliceway::{CancelHandle, RelayStats};
use tokio::io::{AsyncRead, ReadBuf};

use crate::kit::outcome::{Outcome, SessionEnd};
use spliceway_protocol::Failure;
use spliceway_protocol::http::{self, Answer, Followed, Malformed};

/// A reader of the target's answer. It ends its relay when the body of the request is sent and the
/// head of the answer has passed, or at the end of the answer.
pub(super) struct Answering<R, K> {
    target: R,
    state: State<K>,
    /// Bytes for the next read.
    ready: Vec<u8>,
    upload: Arc<Upload>,
}

enum State<K> {
    /// The head is incomplete. The function returns whether the client may send another request.
    Head(Answer, K),
    /// The head has passed. Another relay passes the body after the whole request was sent.
    Early(Followed),
    /// The target has the whole request. This relay passes the body.
    Body(Followed),
    /// The body is not chunked as its head says.
    Malformed,
    /// The rest of the answer is left to another relay, or the answer is over.
    Left,
}

/// The progress of the request, and what is left of it and of its answer.
#[derive(Default)]
pub(super) struct Upload {
    /// The size of the request in bytes, once it is known.
    total: OnceLock<u64>,
    relay: OnceLock<(RelayStats, CancelHandle)>,
    left: Mutex<Left>,
}

#[derive(Default)]
struct Left {
    followed: Option<Followed>,
    failure: Option<Failed>,
    put_back: Vec<u8>,
}

/// How a target failed before the head of its answer was complete.
pub(super) enum Failed {
    Eof,
    Error(io::Error),
}

impl Failed {
    /// Returns how the session of the request ended.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Eof => SessionEnd::UpstreamEof.into(),
            Self::Error(error) => Outcome::of_upstream(error),
        }
    }
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

    /// Returns what is left of the answer after the relay was cancelled.
    pub(super) fn take_followed(&self) -> Option<Followed> {
        self.left.lock().followed.take()
    }

    /// Returns how the target failed, if the client got an answer of the proxy in its place.
    pub(super) fn take_failure(&self) -> Option<Failed> {
        self.left.lock().failure.take()
    }

    /// Keeps bytes that the client has sent after its request.
    pub(super) fn put_back(&self, bytes: &[u8]) {
        self.left.lock().put_back.extend_from_slice(bytes);
    }

    pub(super) fn take_put_back(&self) -> Vec<u8> {
        std::mem::take(&mut self.left.lock().put_back)
    }

    /// Returns whether the target has the whole request.
    fn is_delivered(&self) -> bool {
        let (Some(total), Some((stats, _))) = (self.total.get(), self.relay.get()) else {
            return false;
        };
        stats.snapshot().a_to_b.bytes >= *total
    }

    /// Cancels the relay.
    fn finish(&self, followed: Followed) {
        self.left.lock().followed = Some(followed);
        if let Some((_, cancel)) = self.relay.get() {
            // There is no deadline, because the relay's own timeouts apply to bytes that the client
            // has not read yet.
            cancel.cancel(Duration::MAX);
        }
    }
}

impl<R, K: Fn() -> bool> Answering<R, K> {
    /// Creates a reader. `early` holds the bytes of the answer that were read before. `may_keep`
    /// returns whether the client may send another request.
    pub(super) fn new(target: R, answer: Answer, early: &[u8], upload: Arc<Upload>, may_keep: K) -> Self {
        let mut answering = Self {
            target,
            state: State::Head(answer, may_keep),
            ready: Vec::new(),
            upload,
        };
        if !early.is_empty() {
            answering.take(early);
        }
        answering
    }

    /// Creates a reader of the rest of an answer. `early` holds the bytes of it that were read
    /// before.
    pub(super) fn rest(target: R, mut followed: Followed, early: &[u8], upload: Arc<Upload>) -> Self {
        let (ready, state) = match followed.take(early) {
            Ok(body) => (early[..body].to_vec(), State::Body(followed)),
            Err(Malformed) => (Vec::new(), State::Malformed),
        };
        Self {
            target,
            state,
            ready,
            upload,
        }
    }

    /// Takes bytes of the head, and of the body behind it.
    fn take(&mut self, mut bytes: &[u8]) {
        let State::Head(answer, may_keep) = &mut self.state else {
            return;
        };
        if !may_keep() {
            answer.closes();
        }
        answer.set_early(!self.upload.is_delivered());
        let Some(heads) = answer.feed(&mut bytes) else {
            self.ready = answer.take_interim();
            return;
        };
        let answer = std::mem::take(answer);
        let mut followed = answer.into_followed().unwrap_or(Followed::LAST);
        self.ready = heads;
        self.state = match followed.take(bytes) {
            Ok(body) => {
                self.ready.extend_from_slice(&bytes[..body]);
                State::Early(followed)
            }
            Err(Malformed) => State::Malformed,
        };
    }

    /// Answers in place of a target that failed before the head of its answer was complete.
    fn fail(&mut self, failure: Failed) {
        self.upload.left.lock().failure = Some(failure);
        self.ready = http::failed(Failure::General);
        self.state = State::Early(Followed::LAST);
    }

    /// Ends the relay if another one continues, or if the answer is over. Returns whether it does.
    fn finish(&mut self) -> bool {
        let is_over = match &self.state {
            State::Early(_) => self.upload.is_delivered(),
            State::Body(followed) => followed.body.is_over(),
            State::Head(..) | State::Malformed => false,
            State::Left => true,
        };
        if !is_over {
            return false;
        }
        if let State::Early(followed) | State::Body(followed) = std::mem::replace(&mut self.state, State::Left) {
            // Cancelling wakes the relay's task.
            self.upload.finish(followed);
        }
        true
    }
}

impl<R: AsyncRead + Unpin, K: Fn() -> bool + Unpin> AsyncRead for Answering<R, K> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.ready.is_empty() {
                let bytes = this.ready.len().min(buf.remaining());
                buf.put_slice(&this.ready[..bytes]);
                this.ready.drain(..bytes);
                return Poll::Ready(Ok(()));
            }
            if this.finish() {
                return Poll::Pending;
            }
            if let State::Malformed = this.state {
                return Poll::Ready(Err(malformed(Malformed)));
            }
            let before = buf.filled().len();
            match ready!(Pin::new(&mut this.target).poll_read(cx, buf)) {
                Err(error) if matches!(this.state, State::Head(..)) => {
                    this.fail(Failed::Error(error));
                    continue;
                }
                result => result?,
            }
            let read = &buf.filled()[before..];
            match &mut this.state {
                State::Early(followed) | State::Body(followed) => {
                    let body = followed.take(read).map_err(malformed)?;
                    // After the body, whatever the target sends ends the answer.
                    buf.set_filled(before + body);
                    return Poll::Ready(Ok(()));
                }
                State::Head(..) if read.is_empty() => this.fail(Failed::Eof),
                State::Head(..) => {
                    let read = read.to_vec();
                    buf.set_filled(before);
                    this.take(&read);
                }
                State::Malformed | State::Left => unreachable!("nothing is read then"),
            }
        }
    }
}

fn malformed(_: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is not chunked as its head says")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn read(said: &[u8], early: usize) -> String {
        let mut answering = Answering::new(
            &said[early..],
            Answer::default(),
            &said[..early],
            Arc::default(),
            || true,
        );
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
        let mut answering = Answering::new(ours, Answer::default(), b"", Arc::default(), || true);
        let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut target, interim).await.unwrap();
        let mut read = vec![0; interim.len()];
        answering.read_exact(&mut read).await.unwrap();
        assert_eq!(read, interim);
    }

    #[tokio::test]
    async fn an_answer_without_a_whole_head_becomes_502() {
        for said in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"] {
            for early in [0, said.len() / 2] {
                let answer = read(said.as_bytes(), early).await;
                assert!(answer.starts_with("HTTP/1.1 502 "), "{said:?}: {answer}");
            }
        }
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        let answer = read(interim.as_bytes(), 0).await;
        assert!(answer.starts_with(&[interim, "HTTP/1.1 502 "].concat()), "{answer}");
    }

    /// A connection that was reset.
    struct Broken;

    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_in_its_head_becomes_502() {
        for said in [&b""[..], b"HTTP/1.1 200 OK\r\n"] {
            let target = said.chain(Broken);
            let mut answering = Answering::new(target, Answer::default(), b"", Arc::default(), || true);
            let mut read = [0; 13];
            answering.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"HTTP/1.1 502 ");
        }
    }
}
