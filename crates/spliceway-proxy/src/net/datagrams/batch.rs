//! Receives many datagrams from a socket with one call.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::gso_batch::GsoBatch;
use spliceway_protocol::proxy::DATAGRAM_HEADER_MAX_BYTES;
use spliceway_protocol::socks5::datagram::HEADER_MAX_BYTES;

/// The number of slots to receive from a socket before other tasks run. A slot has one datagram, or
/// up to 64 of one source that the kernel has gathered (`UDP_GRO`, udp(7)). The datagrams cause 0.1
/// ms of work. quinn-udp fills at most this many slots with one call.
const BATCH: usize = quinn_udp::BATCH_SIZE;
/// The room for a header before the first datagram of a slot: that of SOCKS or of PROXY.
const HEADROOM: usize = {
    assert!(DATAGRAM_HEADER_MAX_BYTES >= HEADER_MAX_BYTES);
    DATAGRAM_HEADER_MAX_BYTES
};
/// The size of a slot: the headroom, and the largest length that a UDP header can specify. So no
/// datagram is truncated.
const SLOT_BYTES: usize = HEADROOM + u16::MAX as usize;
/// After this many consecutive errors, a socket counts as drained. It is read again when a datagram
/// arrives.
const ERRORS_IN_A_ROW_MAX: usize = 8;

thread_local! {
    /// The buffers of this thread. A task empties them before it waits again, so a session
    /// needs no buffers of its own. The buffers have 2 MiB, but the kernel allocates only the pages
    /// that have been written.
    static SCRATCH: RefCell<(Batch, GsoBatch)> = RefCell::new((Batch::new(), GsoBatch::default()));
}

/// Calls `turn` with this thread's buffers, for received datagrams and for datagrams to send.
pub(crate) fn with_scratch<T>(turn: impl FnOnce(&mut Batch, &mut GsoBatch) -> T) -> T {
    SCRATCH.with_borrow_mut(|(batch, gso)| {
        // The batch is already empty, unless an earlier `turn` has panicked.
        gso.clear();
        turn(batch, gso)
    })
}

/// The datagrams that one call has received.
pub(crate) struct Batch {
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

    /// Fills as many slots with ready datagrams from `socket` as there are. Returns whether more
    /// datagrams may be ready.
    ///
    /// Other hosts and routers report errors for datagrams that were sent earlier. `failed` gets
    /// each error, and returns whether to try again.
    pub(crate) fn receive(
        &mut self,
        udp: &UdpSocketState,
        socket: &UdpSocket,
        mut failed: impl FnMut(io::Error) -> bool,
    ) -> bool {
        let mut slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        let mut slots: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(&mut slots.next().expect("one for each")[HEADROOM..]));
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
                    if !failed(error) {
                        return false;
                    }
                }
                read => return read.is_ok(),
            }
        }
        // Clears the readiness in tokio. The result is always this error.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(drained()));
        false
    }

    /// Passes each received datagram to `each`, in order.
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(Origin, Packet<'_>)) {
        let slots = self.slots.chunks_exact_mut(SLOT_BYTES);
        for (meta, slot) in self.metas[..self.received].iter().zip(slots) {
            let origin = Origin {
                source: meta.addr,
                reached: meta.dst_ip,
            };
            // A datagram without data has no length to advance by.
            let stride = if meta.stride == 0 { meta.len.max(1) } else { meta.stride };
            let mut start = 0;
            loop {
                let end = meta.len.min(start + stride);
                // The header of a datagram overwrites the end of the one before it, which `each`
                // has already had.
                let buffer = &mut slot[start..HEADROOM + end];
                each(origin, Packet { buffer });
                start = end;
                if start >= meta.len {
                    break;
                }
            }
        }
    }
}

/// Where a datagram came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) source: SocketAddr,
    /// The address of this machine to which the datagram was sent, if the socket has any address.
    pub(crate) reached: Option<IpAddr>,
}

fn drained() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// A datagram with room for a header before it.
#[derive(Debug)]
pub(crate) struct Packet<'buffer> {
    buffer: &'buffer mut [u8],
}

impl Packet<'_> {
    pub(crate) fn data(&self) -> &[u8] {
        &self.buffer[HEADROOM..]
    }

    /// Returns the datagram with `header` directly before the data. The header is at most that of
    /// SOCKS or PROXY.
    pub(crate) fn behind(&mut self, header: &[u8]) -> &[u8] {
        let whole = &mut self.buffer[HEADROOM - header.len()..];
        whole[..header.len()].copy_from_slice(header);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::datagrams::{GsoBatch, Route, bind, gather, system};
    use std::time::Duration;
    use tokio::time::timeout;

    #[test]
    fn a_header_goes_directly_before_the_data() {
        let mut buffer = vec![0xAA; HEADROOM];
        buffer.extend(b"data");
        let mut packet = Packet { buffer: &mut buffer };
        assert_eq!(packet.data(), b"data");
        assert_eq!(packet.behind(&[1, 2, 3]), b"\x01\x02\x03data");
        assert_eq!(packet.behind(&[9; HEADROOM]).len(), HEADROOM + 4);
    }

    #[tokio::test]
    async fn gathered_datagrams_keep_their_boundaries_and_their_order() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let (from, to) = (
                bind(host.parse().unwrap()).unwrap(),
                bind(host.parse().unwrap()).unwrap(),
            );
            gather(&to);
            let (udp, route) = (system().unwrap(), Route::To(to.local_addr().unwrap()));
            let mut gso = GsoBatch::default();
            let mut sent: Vec<Vec<u8>> = (0..20).map(|number| vec![number; 1_000]).collect();
            sent.push(vec![7; 3]);
            for datagram in &sent {
                assert!(gso.push(route, datagram, |_| panic!("they fit")));
            }
            gso.flush(udp, &from, |_, sent| sent.unwrap());
            from.send_to(&[], to.local_addr().unwrap()).await.unwrap();
            sent.push(Vec::new());
            let (mut batch, mut received) = (Batch::new(), Vec::new());
            while received.len() < sent.len() {
                let readable = timeout(Duration::from_secs(20), to.readable()).await;
                readable.expect("a datagram is missing").unwrap();
                batch.receive(udp, &to, |error| panic!("{error}"));
                batch.for_each(|origin, mut packet| {
                    assert_eq!(origin.source, from.local_addr().unwrap());
                    received.push(packet.data().to_vec());
                    packet.behind(&[0xAA; HEADROOM]);
                });
            }
            assert_eq!(received, sent);
        }
    }
}
