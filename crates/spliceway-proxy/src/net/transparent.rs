//! Connections that the firewall has taken from their way to a target: finds their target, and
//! recognizes those that this process has opened itself.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use rustix::io::Errno;
use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};
use socket2::{Domain, SockRef, Socket, Type};
use spliceway_protocol::address::canonical;

use crate::net::hops::Hops;
use crate::net::stream::Stream;

/// How the firewall sends connections to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interception {
    /// A rule with REDIRECT or DNAT changes the destination, and the kernel knows the original one.
    Redirect,
    /// A rule with TPROXY changes nothing: the socket has the address of the target. The listener
    /// needs the option `IP_TRANSPARENT`.
    Tproxy,
}

impl Interception {
    /// Returns the address that the client wanted to reach, or `None` if no rule has redirected the
    /// connection.
    pub(crate) fn target(self, client: &Stream) -> Option<SocketAddr> {
        let Stream::Tcp(socket) = client else { return None };
        let local = canonical(socket.local_addr().ok()?);
        match (self, local) {
            (Self::Tproxy, local) => Some(local),
            // A client of an IPv6 socket may have an IPv4 address.
            (Self::Redirect, SocketAddr::V4(_)) => ip_original_dst(socket).ok().map(SocketAddr::V4),
            (Self::Redirect, SocketAddr::V6(_)) => ipv6_original_dst(socket).ok().map(SocketAddr::V6),
        }
    }
}

/// Lets a socket use addresses that this machine does not have: as the address of a listener behind
/// TPROXY, or as the source of a connection.
///
/// # Errors
/// Returns an error that names the missing capability, or the kernel's error.
pub(crate) fn allow_foreign_addresses<'socket>(socket: impl Into<SockRef<'socket>>) -> io::Result<()> {
    let socket = socket.into();
    // One socket for both families needs only the call for IPv6.
    let is_v6 = socket.domain()? == Domain::IPV6;
    // A service manager that passes such a socket has the capability.
    if allows_foreign_addresses(&socket, is_v6)? {
        return Ok(());
    }
    let set = if is_v6 {
        socket.set_ip_transparent_v6(true)
    } else {
        socket.set_ip_transparent_v4(true)
    };
    set.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::PERM) => io::Error::new(
            error.kind(),
            "it needs CAP_NET_ADMIN (`spliceway doctor --transparent WAY` shows what else is missing)",
        ),
        _ => error,
    })
}

/// Checks that [`allow_foreign_addresses`] will succeed, and leaves the socket as it is.
///
/// # Errors
/// As [`allow_foreign_addresses`].
pub(crate) fn may_allow_foreign_addresses<'socket>(socket: impl Into<SockRef<'socket>>) -> io::Result<()> {
    let socket = socket.into();
    let domain = socket.domain()?;
    if allows_foreign_addresses(&socket, domain == Domain::IPV6)? {
        return Ok(());
    }
    allow_foreign_addresses(&Socket::new(domain, Type::STREAM, None)?)
}

fn allows_foreign_addresses(socket: &SockRef<'_>, is_v6: bool) -> io::Result<bool> {
    if is_v6 {
        socket.ip_transparent_v6()
    } else {
        socket.ip_transparent_v4()
    }
}

/// The connections of transparent services to their targets, by a hash of the target.
///
/// A rule that also takes the connections of this process sends each of them back to it, and every
/// session would open the next one until no descriptor is left. Both ends of such a connection have
/// the same addresses: the source of one is the client of the other, and their target is the same.
static OWN_DIALS: LazyLock<OwnDials> = LazyLock::new(|| OwnDials {
    hasher: RandomState::new(),
    shards: std::array::from_fn(|_| Mutex::default()),
});

/// More shards than most machines have processors, so that workers rarely wait for each other.
const SHARDS: usize = 64;

struct OwnDials {
    hasher: RandomState,
    /// With the services of this process that the bytes have passed before the target.
    shards: [Mutex<HashMap<Ends, Hops>>; SHARDS],
}

/// The source and the target of a connection, without scope and flow of IPv6.
type Ends = [(IpAddr, u16); 2];

/// A connection of this process. Dropping this value forgets it.
#[derive(Debug)]
pub(crate) struct OwnDial(Ends);

impl OwnDial {
    /// Remembers a connection after these hops. Calls `connect`, which begins to connect to
    /// `target` and returns the source, and remembers both. The other end cannot be checked before
    /// that, because `connect` runs under the lock.
    ///
    /// # Errors
    /// Returns the error of `connect`.
    pub(crate) fn begin<E>(
        target: SocketAddr,
        hops: Hops,
        connect: impl FnOnce() -> Result<SocketAddr, E>,
    ) -> Result<Self, E> {
        let mut shard = OWN_DIALS.shard(target);
        let ends = ends(connect()?, target);
        shard.insert(ends, hops);
        Ok(Self(ends))
    }

    /// Returns whether a client with this address and target is a connection of this process.
    pub(crate) fn is_from(client: SocketAddr, target: SocketAddr) -> bool {
        Self::hops(client, target).is_some()
    }

    /// Returns the services that the bytes of such a connection have passed. `None` if the
    /// connection is not one of this process.
    fn hops(client: SocketAddr, target: SocketAddr) -> Option<Hops> {
        OWN_DIALS.shard(target).get(&ends(client, target)).copied()
    }
}

impl Hops {
    /// Returns the hops behind a client at `peer`.
    pub(crate) fn behind(client: &Stream, peer: Option<SocketAddr>) -> Self {
        if !Self::have_begun() {
            return Self::default();
        }
        match (client, peer) {
            (Stream::Tcp(stream), Some(peer)) => {
                let local = stream.local_addr().ok();
                local.and_then(|local| OwnDial::hops(peer, local)).unwrap_or_default()
            }
            // A Unix socket does not tell which session is at its other end.
            (Stream::Unix(stream), _) => {
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                let is_own = pid.is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
                if is_own {
                    Self::of_unknown_session()
                } else {
                    Self::default()
                }
            }
            (Stream::Tcp(_) | Stream::Tls(_) | Stream::Kernel(_), _) => Self::default(),
        }
    }
}

impl Drop for OwnDial {
    fn drop(&mut self) {
        let (ip, port) = self.0[1];
        OWN_DIALS.shard(SocketAddr::new(ip, port)).remove(&self.0);
    }
}

impl OwnDials {
    fn shard(&self, target: SocketAddr) -> MutexGuard<'_, HashMap<Ends, Hops>> {
        let target = canonical(target);
        let hash = self.hasher.hash_one((target.ip(), target.port()));
        self.shards[hash as usize % SHARDS].lock()
    }
}

fn ends(source: SocketAddr, target: SocketAddr) -> Ends {
    [source, target].map(|end| {
        let end = canonical(end);
        (end.ip(), end.port())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_both_of_its_ends_until_it_is_dropped() {
        let [source, target, other]: [SocketAddr; 3] =
            ["192.0.2.1:1001", "192.0.2.2:80", "192.0.2.3:80"].map(|text| text.parse().unwrap());
        let dial = OwnDial::begin(target, Hops::passed(3), || Ok::<_, ()>(source)).unwrap();
        assert!(OwnDial::is_from(source, target));
        assert_eq!(OwnDial::hops(source, target), Some(Hops::passed(3)));
        let mapped = "[::ffff:192.0.2.1]:1001".parse().unwrap();
        assert!(OwnDial::is_from(mapped, target));
        for (client, target) in [(source, other), (other, target), (target, source)] {
            assert!(!OwnDial::is_from(client, target), "{client} to {target}");
        }
        drop(dial);
        assert!(!OwnDial::is_from(source, target));
        assert_eq!(
            OwnDial::begin(target, Hops::default(), || Err("refused")).unwrap_err(),
            "refused"
        );
    }
}
