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
    /// The content of all records.
    pub(super) content: u64,
    /// Bytes that had been queued before the kernel encrypted.
    before: u64,
    /// Records under earlier keys.
    earlier: u64,
    /// The number of the first record under the key.
    first: u64,
    cipher: TlsCipher,
    look: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Sent {
    pub(super) fn new(socket: &TcpStream, key: &TrafficKey) -> io::Result<Self> {
        Ok(Self {
            content: 0,
            before: kernel_tls::queued(socket)?,
            earlier: 0,
            first: key.next_record(),
            cipher: key.cipher(),
            look: None,
        })
    }

    /// Returns the number of records that the kernel has sent under the key.
    fn records(&self, socket: &TcpStream) -> io::Result<u64> {
        Ok(self.next_record(socket)? - self.first)
    }

    /// Returns the number of the next record under the key.
    pub(super) fn next_record(&self, socket: &TcpStream) -> io::Result<u64> {
        kernel_tls::next_record(socket, Way::Send, self.cipher)
    }

    /// Gives the kernel the next key of this side.
    pub(super) fn set_key(&mut self, socket: &TcpStream, key: &TrafficKey) -> io::Result<()> {
        self.earlier += self.records(socket)?;
        kernel_tls::set_key(socket, Way::Send, key)?;
        self.first = key.next_record();
        Ok(())
    }

    /// Ready when the send queue has had every byte. A record that was given to the kernel may be
    /// outside of the queue.
    pub(super) fn poll_queued(&mut self, cx: &mut Context<'_>, socket: &TcpStream) -> Poll<io::Result<()>> {
        loop {
            let records = self.earlier + self.records(socket)?;
            if kernel_tls::queued(socket)? >= self.before + self.content + OVERHEAD * records {
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
