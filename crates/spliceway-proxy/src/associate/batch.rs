//! Datagrams taken off a socket, many by one call.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::gso_batch::GsoBatch;
use crate::protocol::socks5::datagram::{HEADER_MAX_BYTES, Header};

/// Datagrams taken off a socket before the others have their turn: 0.1 ms of work. As many as quinn-udp takes by one call.
const BATCH: usize = quinn_udp::BATCH_SIZE;
/// What a UDP header can count, so nothing is cut short; and the room before it.
const SLOT_BYTES: usize = HEADER_MAX_BYTES + u16::MAX as usize;
/// After so many errors with no datagram between them a socket counts as drained: it is looked at again when something arrives.
const ERRORS_IN_A_ROW_MAX: usize = 8;

thread_local! {
    /// Datagrams pass through between two waits, so a thread needs one place for them and an association none. 2 MiB, of which
    /// the kernel gives as much as has ever been filled.
    static SCRATCH: RefCell<(Batch, GsoBatch)> = RefCell::new((Batch::new(), GsoBatch::default()));
}

/// Lends this thread's room for datagrams: what is received, and what is to be sent.
pub(super) fn with_scratch<T>(turn: impl FnOnce(&mut Batch, &mut GsoBatch) -> T) -> T {
    SCRATCH.with_borrow_mut(|(batch, gso)| {
        // Nothing, unless a turn before has panicked.
        gso.clear();
        turn(batch, gso)
    })
}

/// What one call took off a socket.
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

    /// Takes what is there off `socket`, as far as there is room. Whether there may be more.
    ///
    /// An error is nobody's end: what a peer's host or a router says of a datagram that was sent is of no interest here.
    pub(super) fn receive(&mut self, udp: &UdpSocketState, socket: &UdpSocket) -> bool {
        let mut slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        let mut slots: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(&mut slots.next().expect("one for each")[HEADER_MAX_BYTES..]));
        for _ in 0..ERRORS_IN_A_ROW_MAX {
            let mut received = 0;
            let read = socket.try_io(Interest::READABLE, || {
                received = udp.recv(UdpSockRef::from(socket), &mut slots, &mut self.metas)?;
                // It stopped because there were no more: so tokio need not ask to learn the same.
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
        // Takes it for drained. The error is the one above.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(drained()));
        false
    }

    /// What was received, and where from.
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

/// One datagram, with room for a header before it.
#[derive(Debug)]
pub(super) struct Packet<'buffer> {
    buffer: &'buffer mut [u8],
}

impl Packet<'_> {
    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[HEADER_MAX_BYTES..]
    }

    /// With `header` directly before the data.
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
