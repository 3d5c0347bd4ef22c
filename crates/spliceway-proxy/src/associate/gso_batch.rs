//! Datagrams that go out by one call: a bulk flow costs about half of what it costs one by one, one at a time the same.
//!
//! ```text
//!   to A: ████ ████ ████ ██ │ to B: ███ │ to A: ████ ████
//!         one batch         │ another   │ a third
//! ```
//!
//! The kernel cuts a batch into datagrams of one length, of which the last may be shorter (UDP_SEGMENT, udp(7)). So a batch ends with
//! a shorter one, and where the address or the length changes: order is kept over all of them.

use std::io;
use std::net::SocketAddr;

use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use socket2::{SockAddr, SockRef};
use tokio::net::UdpSocket;

use super::counts::Dropped;

/// UDP_MAX_SEGMENTS of every kernel that has it: later ones take 128.
const DATAGRAMS_MAX: usize = 64;
/// What IP carries over Ethernet with either of its headers. No batch is made of longer ones: each has to be cut up by itself.
const DATAGRAM_MAX_BYTES: usize = 1_500 - 40 - 8;
/// What one datagram can carry, as a batch is one until it is cut.
const BATCH_MAX_BYTES: usize = 65_507;

/// Datagrams to one address, in order.
#[derive(Debug, Default)]
pub(super) struct GsoBatch {
    to: Option<SocketAddr>,
    bytes: Vec<u8>,
    /// The length of each but the last.
    each: usize,
    datagrams: usize,
}

impl GsoBatch {
    /// Where it goes, if anything does.
    pub(super) fn to(&self) -> Option<SocketAddr> {
        self.to
    }

    /// Forgets what it holds.
    pub(super) fn clear(&mut self) {
        (self.to, self.datagrams) = (None, 0);
        self.bytes.clear();
    }

    /// Takes a datagram on, once `flush` has sent what must go before it. `false`: it goes alone, and now.
    pub(super) fn push(&mut self, to: SocketAddr, datagram: &[u8], flush: impl FnOnce(&mut Self)) -> bool {
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

    /// Whether it can be the next.
    fn fits(&self, to: SocketAddr, datagram: &[u8]) -> bool {
        let has_room = self.datagrams < DATAGRAMS_MAX && self.bytes.len() + datagram.len() <= BATCH_MAX_BYTES;
        let goes_on = self.bytes.len() == self.datagrams * self.each;
        self.to.is_none() || (self.to == Some(to) && datagram.len() <= self.each && goes_on && has_room)
    }

    /// Sends what it holds by `socket`, and tells of each datagram how long it was and whether it was sent. Waits for nothing.
    ///
    /// What is not sent together is sent one by one: then each meets its own error. That costs a call for a batch, where a
    /// link is narrower than Ethernet or the kernel has no such thing.
    pub(super) fn flush(
        &mut self,
        udp: &UdpSocketState,
        socket: &UdpSocket,
        mut each: impl FnMut(usize, Result<(), Dropped>),
    ) {
        let Some(to) = self.to else {
            return;
        };
        let together = match self.datagrams {
            1 => None,
            _ => self.send_together(udp, socket, to),
        };
        for datagram in self.bytes.chunks(self.each) {
            each(datagram.len(), together.unwrap_or_else(|| send(socket, to, datagram)));
        }
        self.clear();
    }

    /// `None`: they can only be sent one by one.
    fn send_together(&self, udp: &UdpSocketState, socket: &UdpSocket, to: SocketAddr) -> Option<Result<(), Dropped>> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &self.bytes,
            segment_size: Some(self.each),
            src_ip: None,
        };
        match udp.try_send(UdpSockRef::from(socket), &transmit) {
            Ok(()) => Some(Ok(())),
            Err(error) if why(&error) == Dropped::SendBuffer => Some(Err(Dropped::SendBuffer)),
            Err(_) => None,
        }
    }
}

/// Past tokio, which would have to have seen the socket writable before: what does not fit is dropped, not waited for.
pub(super) fn send(socket: &UdpSocket, to: SocketAddr, datagram: &[u8]) -> Result<(), Dropped> {
    match SockRef::from(socket).send_to(datagram, &SockAddr::from(to)) {
        Ok(_) => Ok(()),
        Err(error) => Err(why(&error)),
    }
}

fn why(error: &io::Error) -> Dropped {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Dropped::SendBuffer,
        Some(Errno::MSGSIZE) => Dropped::TooLong,
        _ => Dropped::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::associate::sockets::{bind, system};

    fn address(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    /// How many of these, by address and length, go with the first.
    fn taken(datagrams: &[(u16, usize)]) -> usize {
        let mut gso = GsoBatch::default();
        let mut first = None;
        for (port, length) in datagrams {
            gso.push(address(*port), &vec![0; *length], |gso| {
                first.get_or_insert(gso.datagrams);
                gso.clear();
            });
        }
        first.unwrap_or(gso.datagrams)
    }

    #[test]
    fn a_train_is_of_one_address_and_one_length_but_the_last() {
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
    fn a_train_is_bounded() {
        assert_eq!(taken(&[(1, 1); 2 * DATAGRAMS_MAX]), DATAGRAMS_MAX);
        assert_eq!(taken(&[(1, 1_400); DATAGRAMS_MAX]), BATCH_MAX_BYTES / 1_400);
        let long = vec![0; DATAGRAM_MAX_BYTES + 1];
        let mut gso = GsoBatch::default();
        assert!(!gso.push(address(1), &long, |_| ()) && gso.to().is_none());
        assert!(gso.push(address(1), &long[1..], |_| ()));
    }

    #[tokio::test]
    async fn a_train_goes_by_one_call_and_arrives_as_it_was_put_together() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let (from, to) = (
                bind(host.parse().unwrap()).unwrap(),
                bind(host.parse().unwrap()).unwrap(),
            );
            let mut gso = GsoBatch::default();
            let datagrams = [vec![1; 1_200], vec![2; 1_200], vec![3; 7]];
            for datagram in &datagrams {
                assert!(gso.push(to.local_addr().unwrap(), datagram, |_| panic!("they fit")));
            }
            let sent = gso.send_together(system().unwrap(), &from, to.local_addr().unwrap());
            assert_eq!(sent, Some(Ok(())));
            for datagram in &datagrams {
                let mut received = vec![0; 2_000];
                let length = to.recv(&mut received).await.unwrap();
                assert_eq!(&received[..length], datagram);
            }
        }
    }

    #[tokio::test]
    async fn of_a_train_that_cannot_go_each_is_told_of() {
        let (from, mut gso) = (bind(([0; 4], 0).into()).unwrap(), GsoBatch::default());
        // A socket has to ask for leave to send to everybody.
        let no_way = ([255; 4], 9).into();
        for length in [100, 100, 60] {
            assert!(gso.push(no_way, &vec![0; length], |_| panic!("they fit")));
        }
        let mut told = Vec::new();
        gso.flush(system().unwrap(), &from, |bytes, sent| told.push((bytes, sent)));
        assert_eq!(told, [100, 100, 60].map(|bytes| (bytes, Err(Dropped::Unreachable))));
        assert!(gso.to().is_none());
    }

    #[test]
    fn what_a_send_fails_with_is_counted_by_its_cause() {
        for (errno, cause) in [
            (Errno::AGAIN, Dropped::SendBuffer),
            (Errno::NOBUFS, Dropped::SendBuffer),
            (Errno::MSGSIZE, Dropped::TooLong),
            (Errno::CONNREFUSED, Dropped::Unreachable),
            (Errno::NETUNREACH, Dropped::Unreachable),
            (Errno::PERM, Dropped::Unreachable),
        ] {
            assert_eq!(why(&errno.into()), cause, "{errno:?}");
        }
    }
}
