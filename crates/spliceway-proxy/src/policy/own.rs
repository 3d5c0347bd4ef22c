//! Where we listen ourselves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// The addresses of this program's own listeners, added once they are bound. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnListeners {
    bound: Arc<RwLock<Vec<Bound>>>,
}

#[derive(Debug)]
enum Bound {
    Ip {
        address: SocketAddr,
        /// IPv4 clients reach a wildcard of IPv6, too, unless this is set.
        only_v6: bool,
    },
    Path(PathBuf),
}

impl OwnListeners {
    /// Adds a listener: its socket says where it listens.
    ///
    /// # Errors
    /// What the kernel says of a descriptor that is no bound socket.
    pub(crate) fn add<'socket>(&self, listener: impl Into<SockRef<'socket>>) -> io::Result<()> {
        let listener = listener.into();
        let local = listener.local_addr()?;
        let bound = if let Some(address) = local.as_socket() {
            Bound::Ip {
                only_v6: address.is_ipv6() && listener.only_v6()?,
                address,
            }
        } else if let Some(path) = local.as_pathname() {
            Bound::Path(real(path))
        } else {
            return Ok(());
        };
        self.bound.write().unwrap_or_else(PoisonError::into_inner).push(bound);
        Ok(())
    }

    /// Whether a connection to `address` comes out at one of them.
    pub(super) fn are_at(&self, address: SocketAddr) -> bool {
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner);
        let ip = reached(address.ip());
        let mut own = bound.iter().filter_map(|bound| match bound {
            Bound::Ip { address: own, only_v6 } if own.port() == address.port() => Some((own.ip(), *only_v6)),
            _ => None,
        });
        own.any(|(own, only_v6)| match own {
            IpAddr::V4(own) if own.is_unspecified() => ip.is_ipv4() && is_of_this_machine(ip),
            IpAddr::V6(own) if own.is_unspecified() => (ip.is_ipv6() || !only_v6) && is_of_this_machine(ip),
            own => own.to_canonical() == ip,
        })
    }

    /// The same of a socket on the file system.
    pub(super) fn are_at_path(&self, path: &Path) -> bool {
        let path = real(path);
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner);
        bound
            .iter()
            .any(|bound| matches!(bound, Bound::Path(own) if *own == path))
    }
}

/// Where a connection to `ip` goes: connect(2) takes the unspecified address for loopback.
fn reached(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// How long what the system says of its addresses holds: they come and go, and it takes some 50 µs to say.
const FRESH: Duration = Duration::from_secs(1);

/// Whether a connection to `ip` stays on this machine. Asked of the system once a second at most.
pub(super) fn is_of_this_machine(ip: IpAddr) -> bool {
    static ADDRESSES: Mutex<Option<(Instant, Vec<IpAddr>)>> = Mutex::new(None);
    if ip.is_loopback() {
        return true;
    }
    let mut known = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    if known.as_ref().is_none_or(|(when, _)| when.elapsed() >= FRESH) {
        // Without an answer the last one holds.
        if let Ok(interfaces) = if_addrs::get_if_addrs() {
            *known = Some((Instant::now(), interfaces.iter().map(if_addrs::Interface::ip).collect()));
        }
    }
    // Of nobody knows what, it may be.
    known.as_ref().is_none_or(|(_, addresses)| addresses.contains(&ip))
}

/// The one name of a path that has several.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A listener on the wildcard of IPv6, and the policy that knows it.
    fn wildcard(only_v6: bool) -> (Socket, u16, OwnListeners) {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_only_v6(only_v6).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())
            .unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let own = OwnListeners::default();
        own.add(&socket).unwrap();
        (socket, port, own)
    }

    fn are_at(own: &OwnListeners, ip: &str, port: u16) -> bool {
        own.are_at(SocketAddr::new(ip.parse().unwrap(), port))
    }

    #[test]
    fn a_listener_on_one_address_is_there_by_every_name_of_it_and_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = OwnListeners::default();
        let policy = own.clone();
        own.add(&listener).unwrap();
        for ip in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0"] {
            assert!(are_at(&policy, ip, port), "{ip}");
        }
        for ip in ["127.0.0.2", "::1", "::", "192.0.2.1"] {
            assert!(!are_at(&policy, ip, port), "{ip}");
        }
        assert!(!are_at(&policy, "127.0.0.1", port.wrapping_add(1)));
    }

    #[test]
    fn a_wildcard_is_at_every_address_of_this_machine_of_the_families_it_serves() {
        let (_socket, port, own) = wildcard(false);
        for ip in ["127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
            assert!(are_at(&own, ip, port), "{ip}");
        }
        for interface in if_addrs::get_if_addrs().unwrap() {
            assert!(own.are_at(SocketAddr::new(interface.ip(), port)), "{interface:?}");
        }
        assert!(!are_at(&own, "192.0.2.1", port));
    }

    #[test]
    fn a_wildcard_of_ipv6_alone_leaves_the_port_of_ipv4_to_others() {
        let (_socket, port, own) = wildcard(true);
        assert!(are_at(&own, "::1", port) && are_at(&own, "::", port));
        assert!(!are_at(&own, "127.0.0.1", port) && !are_at(&own, "::ffff:127.0.0.1", port));
    }

    #[test]
    fn a_socket_on_the_file_system_is_the_same_by_another_path() {
        let folder = std::env::temp_dir().join(format!("spliceway-own-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = OwnListeners::default();
        own.add(&listener).unwrap();
        assert!(own.are_at_path(&path));
        assert!(own.are_at_path(&folder.join(".").join("socket")));
        assert!(!own.are_at_path(&folder.join("other")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
