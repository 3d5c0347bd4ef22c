//! Receives many datagrams from a socket with one call.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::gso_batch::GsoBatch;
use spliceway_protocol::socks5::datagram::{HEADER_MAX_BYTES, Header};

/// The number of datagrams to receive from a socket before other tasks run. The datagrams cause 0.1
/// ms of work. quinn-udp receives at most this many datagrams with one call.
const BATCH: usize = quinn_udp::BATCH_SIZE;
/// The size of a slot: a SOCKS header, and the largest length that a UDP header can specify. So no
/// datagram is truncated.
const SLOT_BYTES: usize = HEADER_MAX_BYTES + u16::MAX as usize;
/// After this many consecutive errors, a socket counts as drained. It is read again when a datagram
/// arrives.
const ERRORS_IN_A_ROW_MAX: usize = 8;

thread_local! {
    /// The buffers of this thread. A task empties them before it waits again, so an association
    /// needs no buffers of its own. The buffers have 2 MiB, but the kernel allocates only the pages
    /// that have been written.
    static SCRATCH: RefCell<(Batch, GsoBatch)> = RefCell::new((Batch::new(), GsoBatch::default()));
}

/// Calls `turn` with this thread's buffers, for received datagrams and for datagrams to send.
pub(super) fn with_scratch<T>(turn: impl FnOnce(&mut Batch, &mut GsoBatch) -> T) -> T {
    SCRATCH.with_borrow_mut(|(batch, gso)| {
        // The batch is already empty, unless an earlier `turn` has panicked.
        gso.clear();
        turn(batch, gso)
    })
}

/// The datagrams that one call has received.
pub(super) struct Batch {
    slots: Box<[u8]>,
    metas: [RecvMeta; BATCH],
    received: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            slots: vec![0; BATCH * SLOT_BYTES].into(),
            metas: [RecvMeta::default(); BATCH],
            received: 0,
        }
    }

    /// Receives as many ready datagrams from `socket` as fit. Returns whether more datagrams may be
    /// ready.
    ///
    /// Errors do not end the association. Other hosts and routers report them for datagrams that
    /// were sent earlier.
    pub(super) fn receive(&mut self, udp: &UdpSocketState, socket: &UdpSocket) -> bool {
        let mut slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        let mut slots: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(&mut slots.next().expect("one for each")[HEADER_MAX_BYTES..]));
        for _ in 0..ERRORS_IN_A_ROW_MAX {
            let mut received = 0;
            let read = socket.try_io(Interest::READABLE, || {
                received = udp.recv(UdpSockRef::from(socket), &mut slots, &mut self.metas)?;
                // Fewer datagrams were ready than fit, so the socket is drained. The error clears
                // the readiness in tokio, which saves another call.
                if received < BATCH { Err(drained()) } else { Ok(()) }
            });
            self.received = received;
            match read {
                Err(error) if received == 0 && error.kind() != io::ErrorKind::WouldBlock => {
                    tracing::debug!(%error, "cannot receive datagrams");
                }
                read => return read.is_ok(),
            }
        }
        // Clears the readiness in tokio. The result is always this error.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(drained()));
        false
    }

    /// Returns the received datagrams with their sources.
    pub(super) fn packets(&mut self) -> impl Iterator<Item = (SocketAddr, Packet<'_>)> {
        let slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        self.metas[..self.received].iter().zip(slots).map(|(meta, slot)| {
            let buffer = &mut slot[..HEADER_MAX_BYTES + meta.len];
            (meta.addr, Packet { buffer })
        })
    }
}

fn drained() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// A datagram with room for a header before it.
#[derive(Debug)]
pub(super) struct Packet<'buffer> {
    buffer: &'buffer mut [u8],
}

impl Packet<'_> {
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[HEADER_MAX_BYTES..]
    }

    /// Returns the datagram with `header` directly before the data.
    pub(super) fn behind(&mut self, header: &Header) -> &[u8] {
        let header = header.as_bytes();
        let whole = &mut self.buffer[HEADER_MAX_BYTES - header.len()..];
        whole[..header.len()].copy_from_slice(header);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_goes_directly_before_the_data() {
        let mut buffer = vec![0xAA; HEADER_MAX_BYTES];
        buffer.extend(b"data");
        let mut packet = Packet { buffer: &mut buffer };
        assert_eq!(packet.data(), b"data");
        let header = Header::of(([192, 0, 2, 1], 258).into());
        assert_eq!(
            packet.behind(&header),
            [0, 0, 0, 1, 192, 0, 2, 1, 1, 2, b'd', b'a', b't', b'a']
        );
    }
}
