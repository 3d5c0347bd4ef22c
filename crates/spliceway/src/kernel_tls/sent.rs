//! Counts what was given to kernel TLS, and what reached the socket's send queue.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use spliceway_core::kernel_tls::{self, OVERHEAD, Way};
use spliceway_core::{TlsCipher, TrafficKey};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// The first interval between two looks at the send queue, because no event tells that it has
/// changed. The interval doubles after each look.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// The longest interval between two looks.
const SLOWEST_LOOK: Duration = Duration::from_millis(64);

/// What this side has sent.
///
/// A FIN would overtake a record of which only a part is in the send queue.
#[derive(Debug)]
pub(super) struct Sent {
    /// The bytes that the send queue must have had, without the overhead of all records of the
    /// present key: the number of the next record tells how many there are. Negative if the key
    /// came with a number.
    bytes: i64,
    cipher: TlsCipher,
    look: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Sent {
    pub(super) fn new(socket: &TcpStream, key: &TrafficKey) -> io::Result<Self> {
        let bytes = signed(kernel_tls::queued(socket)?).wrapping_sub(overhead(key.next_record()));
        Ok(Self::resume(key.cipher(), bytes))
    }

    /// Continues from these [`bytes`](Self::bytes).
    pub(super) fn resume(cipher: TlsCipher, bytes: i64) -> Self {
        let look = None;
        Self { bytes, cipher, look }
    }

    pub(super) fn bytes(&self) -> i64 {
        self.bytes
    }

    pub(super) fn cipher(&self) -> TlsCipher {
        self.cipher
    }

    /// Counts content that was given to the kernel.
    pub(super) fn add(&mut self, content: u64) {
        self.bytes = self.bytes.wrapping_add(signed(content));
    }

    /// Returns the number of the next record under the key.
    pub(super) fn next_record(&self, socket: &TcpStream) -> io::Result<u64> {
        kernel_tls::next_record(socket, Way::Send, self.cipher)
    }

    /// Gives the kernel the next key of this side.
    pub(super) fn set_key(&mut self, socket: &TcpStream, key: &TrafficKey) -> io::Result<()> {
        let earlier = overhead(self.next_record(socket)?);
        kernel_tls::set_key(socket, Way::Send, key)?;
        let change = earlier.wrapping_sub(overhead(key.next_record()));
        self.bytes = self.bytes.wrapping_add(change);
        Ok(())
    }

    /// Ready when the send queue has had every byte. A record that was given to the kernel may be
    /// outside of the queue.
    pub(super) fn poll_queued(&mut self, cx: &mut Context<'_>, socket: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            let all = self.bytes.wrapping_add(overhead(self.next_record(socket)?));
            if signed(kernel_tls::queued(socket)?) >= all {
                self.look = None;
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = socket.take_error()? {
                return Poll::Ready(Err(error));
            }
            if kernel_tls::is_closed(socket) {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let (timer, interval) = self
                .look
                .get_or_insert_with(|| (Box::pin(tokio::time::sleep(FIRST_LOOK)), FIRST_LOOK));
            ready!(timer.as_mut().poll(cx));
            *interval = (*interval * 2).min(SLOWEST_LOOK);
            timer.as_mut().reset(Instant::now() + *interval);
        }
    }
}

/// It wraps, because a key may come with any number. The sums are right again in the end.
fn overhead(records: u64) -> i64 {
    signed(OVERHEAD.wrapping_mul(records))
}

fn signed(bytes: u64) -> i64 {
    bytes.cast_signed()
}
