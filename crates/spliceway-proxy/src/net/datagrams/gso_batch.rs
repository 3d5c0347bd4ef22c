//! Sends several datagrams with one call. A bulk flow costs about half as much as with one call per
//! datagram. A flow that sends one datagram at a time costs the same.
//!
//! ```text
//!   to A: ████ ████ ████ ██ │ to B: ███ │ to A: ████ ████
//!         one batch         │ another   │ a third
//! ```
//!
//! The kernel splits a batch into datagrams of one length (`UDP_SEGMENT`, udp(7)). Only the last
//! datagram may be shorter. So a batch ends after a shorter datagram. It also ends before a longer
//! datagram, and before a datagram to another address. All datagrams keep their order.

use std::io;
use std::net::{IpAddr, SocketAddr};

use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use socket2::{SockAddr, SockRef};
use tokio::net::UdpSocket;

/// The smallest `UDP_MAX_SEGMENTS` of all kernels that support batches. Later kernels allow 128.
const DATAGRAMS_MAX: usize = 64;
/// The longest UDP payload that fits into an Ethernet frame with an IPv4 or an IPv6 header. Longer
/// datagrams are not batched, because the kernel must fragment each of them separately.
const DATAGRAM_MAX_BYTES: usize = 1_500 - 40 - 8;
/// The longest UDP payload. A batch is a single datagram until the kernel splits it.
const BATCH_MAX_BYTES: usize = 65_507;

/// Where datagrams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// To this address.
    To(SocketAddr),
    /// To the second address, from the first one, which must be an address of this machine.
    Between(IpAddr, SocketAddr),
    /// To the peer of a connected socket, whose address this is. The kernel knows its route.
    Connected(SocketAddr),
}

/// Datagrams of one route, in order.
#[derive(Debug, Default)]
pub(crate) struct GsoBatch {
    to: Option<Route>,
    bytes: Vec<u8>,
    /// The length of each datagram except the last one.
    each: usize,
    datagrams: usize,
}

impl GsoBatch {
    /// Returns the route, or `None` if the batch is empty.
    pub(crate) fn to(&self) -> Option<Route> {
        self.to
    }

    pub(super) fn clear(&mut self) {
        (self.to, self.datagrams) = (None, 0);
        self.bytes.clear();
    }

    /// Adds a datagram. Calls `flush` first if the current batch must be sent before this datagram.
    /// Returns `false` if the caller must send the datagram separately and immediately.
    pub(crate) fn push(&mut self, to: Route, datagram: &[u8], flush: impl FnOnce(&mut Self)) -> bool {
        let may_be_one_of_many = (1..=DATAGRAM_MAX_BYTES).contains(&datagram.len());
        if !may_be_one_of_many || !self.fits(to, datagram) {
            flush(self);
        }
        if may_be_one_of_many {
            if self.datagrams == 0 {
                (self.to, self.each) = (Some(to), datagram.len());
            }
            self.bytes.extend_from_slice(datagram);
            self.datagrams += 1;
        }
        may_be_one_of_many
    }

    /// Returns whether the datagram can be the next one in the batch.
    fn fits(&self, to: Route, datagram: &[u8]) -> bool {
        let has_room = self.datagrams < DATAGRAMS_MAX && self.bytes.len() + datagram.len() <= BATCH_MAX_BYTES;
        let goes_on = self.bytes.len() == self.datagrams * self.each;
        self.to.is_none() || (self.to == Some(to) && datagram.len() <= self.each && goes_on && has_room)
    }

    /// Sends the batch through `socket` without waiting. Calls `each` with the length and the
    /// result of every datagram.
    ///
    /// If the kernel refuses the batch, the datagrams are sent one by one, so that each one has its
    /// own result. This costs one extra call per batch. The kernel refuses batches if the MTU is
    /// smaller than Ethernet's, or if the kernel does not support `UDP_SEGMENT`.
    pub(crate) fn flush(
        &mut self,
        udp: &UdpSocketState,
        socket: &UdpSocket,
        mut each: impl FnMut(usize, Result<(), Errno>),
    ) {
        let Some(to) = self.to else {
            return;
        };
        let together = match self.datagrams {
            1 => None,
            _ => self.send_together(udp, socket, to),
        };
        for datagram in self.bytes.chunks(self.each) {
            each(
                datagram.len(),
                together.unwrap_or_else(|| send(udp, socket, to, datagram)),
            );
        }
        self.clear();
    }

    /// Sends the whole batch with one call. Returns `None` if the datagrams must be sent one by
    /// one.
    fn send_together(&self, udp: &UdpSocketState, socket: &UdpSocket, to: Route) -> Option<Result<(), Errno>> {
        match transmit(udp, socket, to, &self.bytes, Some(self.each)) {
            Ok(()) => Some(Ok(())),
            Err(Errno::AGAIN) => Some(Err(Errno::AGAIN)),
            Err(_) => None,
        }
    }
}

impl Route {
    fn destination(self) -> SocketAddr {
        match self {
            Self::To(address) | Self::Between(_, address) | Self::Connected(address) => address,
        }
    }

    fn source(self) -> Option<IpAddr> {
        match self {
            Self::Between(source, _) => Some(source),
            Self::To(_) | Self::Connected(_) => None,
        }
    }
}

/// Sends a datagram without waiting. The error is `EAGAIN` if the send buffer has no room for the
/// datagram. The call bypasses tokio, which sends only after it has seen that the socket is
/// writable.
pub(crate) fn send(udp: &UdpSocketState, socket: &UdpSocket, to: Route, datagram: &[u8]) -> Result<(), Errno> {
    let sent = match to {
        Route::To(address) => SockRef::from(socket).send_to(datagram, &SockAddr::from(address)),
        Route::Connected(_) => SockRef::from(socket).send(datagram),
        Route::Between(..) => return transmit(udp, socket, to, datagram, None),
    };
    sent.map(drop).map_err(|error| errno(&error))
}

fn transmit(
    udp: &UdpSocketState,
    socket: &UdpSocket,
    to: Route,
    contents: &[u8],
    segment_size: Option<usize>,
) -> Result<(), Errno> {
    let transmit = Transmit {
        destination: to.destination(),
        ecn: None,
        contents,
        segment_size,
        src_ip: to.source(),
    };
    let sent = udp.try_send(UdpSockRef::from(socket), &transmit);
    sent.map_err(|error| errno(&error))
}

fn errno(error: &io::Error) -> Errno {
    // Each of these errors comes from a system call.
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::datagrams::{bind, system};

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    /// Returns how many of these datagrams, given by port and length, share a batch with the first
    /// one.
    fn taken(datagrams: &[(u16, usize)]) -> usize {
        let mut gso = GsoBatch::default();
        let mut first = None;
        for (port, length) in datagrams {
            gso.push(Route::To(address(*port)), &vec![0; *length], |gso| {
                first.get_or_insert(gso.datagrams);
                gso.clear();
            });
        }
        first.unwrap_or(gso.datagrams)
    }

    #[test]
    fn a_batch_has_one_address_and_one_length_except_the_last() {
        assert_eq!(taken(&[(1, 100), (1, 100), (1, 100)]), 3);
        assert_eq!(taken(&[(1, 100), (1, 60), (1, 60)]), 2, "a shorter one is the last");
        assert_eq!(taken(&[(1, 100), (1, 101)]), 1);
        assert_eq!(taken(&[(1, 100), (2, 100)]), 1);
        assert_eq!(
            taken(&[(1, 100), (1, 0), (1, 100)]),
            1,
            "an empty one goes alone, in its place"
        );
    }

    #[test]
    fn a_batch_is_bounded() {
        assert_eq!(taken(&[(1, 1); 2 * DATAGRAMS_MAX]), DATAGRAMS_MAX);
        assert_eq!(taken(&[(1, 1_400); DATAGRAMS_MAX]), BATCH_MAX_BYTES / 1_400);
        let long = vec![0; DATAGRAM_MAX_BYTES + 1];
        let mut gso = GsoBatch::default();
        assert!(!gso.push(Route::To(address(1)), &long, |_| ()) && gso.to().is_none());
        assert!(gso.push(Route::To(address(1)), &long[1..], |_| ()));
    }

    #[tokio::test]
    async fn a_batch_is_sent_with_one_call_and_arrives_as_datagrams() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let (from, to) = (
                bind(host.parse().unwrap()).unwrap(),
                bind(host.parse().unwrap()).unwrap(),
            );
            let mut gso = GsoBatch::default();
            let datagrams = [vec![1; 1_200], vec![2; 1_200], vec![3; 7]];
            for datagram in &datagrams {
                assert!(gso.push(Route::To(to.local_addr().unwrap()), datagram, |_| panic!("they fit")));
            }
            let sent = gso.send_together(system().unwrap(), &from, Route::To(to.local_addr().unwrap()));
            assert_eq!(sent, Some(Ok(())));
            for datagram in &datagrams {
                let mut received = vec![0; 2_000];
                let length = to.recv(&mut received).await.unwrap();
                assert_eq!(&received[..length], datagram);
            }
        }
    }

    #[tokio::test]
    async fn each_datagram_of_a_refused_batch_has_its_own_result() {
        let (from, mut gso) = (bind(([0; 4], 0).into()).unwrap(), GsoBatch::default());
        // Sending to the broadcast address fails, because the socket does not have `SO_BROADCAST`.
        let no_way = Route::To(([255; 4], 9).into());
        for length in [100, 100, 60] {
            assert!(gso.push(no_way, &vec![0; length], |_| panic!("they fit")));
        }
        let mut told = Vec::new();
        gso.flush(system().unwrap(), &from, |bytes, sent| told.push((bytes, sent)));
        assert_eq!(told, [100, 100, 60].map(|bytes| (bytes, Err(Errno::ACCESS))));
        assert!(gso.to().is_none());
    }
}
