//! The addresses that this program listens on.

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, Type};
use spliceway_protocol::address::is_abstract;

/// The addresses of this program's own listeners. A listener is added once it is bound. Clones
/// share the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnListeners {
    /// The number of listeners at each place.
    bound: Arc<RwLock<BTreeMap<Bound, usize>>>,
}

/// The entry of a listener. Dropping it removes the listener from the list.
#[derive(Debug)]
#[must_use]
pub(crate) struct OwnEntry {
    own: OwnListeners,
    bound: Bound,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    Ip(Endpoint),
    Path(PathBuf),
}

/// The port comes first, because few listeners share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Endpoint {
    port: u16,
    at: At,
    /// Whether the listener is for datagrams, and not for connections.
    is_for_datagrams: bool,
}

/// The addresses of this machine at which a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    One(IpAddr),
    EveryV4,
    EveryV6,
    Every,
}

impl OwnListeners {
    /// Adds a listener at the address of its socket. Returns `None` for a socket without an address
    /// that a connection could name.
    ///
    /// # Errors
    /// Returns the kernel's error for a descriptor that is not a bound socket.
    pub(crate) fn add<'socket>(&self, listener: impl Into<SockRef<'socket>>) -> io::Result<Option<OwnEntry>> {
        let listener = listener.into();
        let local = listener.local_addr()?;
        let bound = if let Some(address) = local.as_socket() {
            let at = match address.ip() {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED) => At::EveryV4,
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) if listener.only_v6()? => At::EveryV6,
                // IPv4 clients can reach it too.
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) => At::Every,
                ip => At::One(ip.to_canonical()),
            };
            Bound::Ip(Endpoint {
                at,
                port: address.port(),
                is_for_datagrams: listener.r#type()? == Type::DGRAM,
            })
        } else if let Some(path) = local.as_pathname() {
            Bound::Path(real(path))
        } else if let Some(name) = local.as_abstract_namespace() {
            Bound::Path(OsStr::from_bytes(&[b"@", name].concat()).into())
        } else {
            return Ok(None);
        };
        let own = self.clone();
        *self.bound.write().entry(bound.clone()).or_default() += 1;
        Ok(Some(OwnEntry { own, bound }))
    }

    /// Returns whether a connection to `address`, or a datagram, reaches one of these listeners.
    /// Each dial asks, so the time hardly depends on the number of listeners.
    pub(super) fn are_at(&self, address: SocketAddr, is_for_datagrams: bool) -> bool {
        let (ip, port) = (reached(address.ip()), address.port());
        let bound = self.bound.read();
        let has = |at| {
            bound.contains_key(&Bound::Ip(Endpoint {
                at,
                port,
                is_for_datagrams,
            }))
        };
        let every = if ip.is_ipv4() { At::EveryV4 } else { At::EveryV6 };
        has(At::One(ip)) || ((has(every) || has(At::Every)) && is_of_this_machine(ip))
    }

    /// Returns whether a connection to this Unix socket reaches one of these listeners.
    pub(super) fn are_at_path(&self, path: &Path) -> bool {
        self.bound.read().contains_key(&Bound::Path(real(path)))
    }
}

impl Drop for OwnEntry {
    fn drop(&mut self) {
        let mut bound = self.own.bound.write();
        if let Some(count) = bound.get_mut(&self.bound) {
            *count -= 1;
            if *count == 0 {
                bound.remove(&self.bound);
            }
        }
    }
}

/// Returns the address that a connection to `ip` reaches: connect(2) treats the unspecified address
/// as loopback.
pub(crate) fn reached(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// The time for which a list of the machine's addresses is used.
const FRESH: Duration = Duration::from_secs(1);

static THIS_MACHINE: Addresses = Addresses::new();

/// Returns whether a connection to `ip` stays on this machine.
pub(super) fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || THIS_MACHINE.have(ip, Instant::now(), system)
}

fn system() -> io::Result<Vec<IpAddr>> {
    Ok(if_addrs::get_if_addrs()?.iter().map(if_addrs::Interface::ip).collect())
}

/// The addresses of this machine. At most once per second, one caller refreshes them, which takes
/// about 50 µs. Other callers do not wait, but use the previous list.
struct Addresses {
    known: RwLock<Option<(Instant, Vec<IpAddr>)>>,
    refreshing: Mutex<()>,
}

impl Addresses {
    const fn new() -> Self {
        Self {
            known: RwLock::new(None),
            refreshing: Mutex::new(()),
        }
    }

    fn have(&self, ip: IpAddr, now: Instant, system: impl FnOnce() -> io::Result<Vec<IpAddr>>) -> bool {
        if !self.are_known(|when| now.saturating_duration_since(when) < FRESH) {
            self.refresh(now, system);
        }
        let known = self.known.read();
        // Without a list, the program assumes that `ip` is an address of this machine.
        known.as_ref().is_none_or(|(_, addresses)| addresses.contains(&ip))
    }

    /// Refreshes the list. If the system returns an error, the previous list stays in use.
    fn refresh(&self, now: Instant, system: impl FnOnce() -> io::Result<Vec<IpAddr>>) {
        let refreshing = match self.refreshing.try_lock() {
            Some(refreshing) => refreshing,
            None if self.are_known(|_| true) => return,
            // The first callers have no previous list, so they wait.
            None => self.refreshing.lock(),
        };
        if self.are_known(|when| now.saturating_duration_since(when) < FRESH) {
            return;
        }
        if let Ok(addresses) = system() {
            *self.known.write() = Some((now, addresses));
        }
        drop(refreshing);
    }

    fn are_known(&self, since: impl FnOnce(Instant) -> bool) -> bool {
        let known = self.known.read();
        known.as_ref().is_some_and(|(when, _)| since(*when))
    }
}

/// Returns the canonical form of a path, because a file may have several paths.
fn real(path: &Path) -> PathBuf {
    if is_abstract(path) {
        return path.to_owned();
    }
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::sync::mpsc;
    use std::thread;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Returns a listener on the IPv6 wildcard with its entry, its port, and the list that contains
    /// the listener.
    fn wildcard(only_v6: bool) -> ((Socket, Option<OwnEntry>), u16, OwnListeners) {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_only_v6(only_v6).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())
            .unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let own = OwnListeners::default();
        let entry = own.add(&socket).unwrap();
        ((socket, entry), port, own)
    }

    fn are_at(own: &OwnListeners, ip: &str, port: u16) -> bool {
        own.are_at(SocketAddr::new(ip.parse().unwrap(), port), false)
    }

    #[test]
    fn a_listener_without_an_entry_is_not_in_the_list() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = OwnListeners::default();
        let (first, second) = (own.add(&listener).unwrap(), own.add(&listener).unwrap());
        drop(first);
        assert!(are_at(&own, "127.0.0.1", port));
        drop(second);
        assert!(!are_at(&own, "127.0.0.1", port));
    }

    #[test]
    fn a_port_is_that_of_connections_or_of_datagrams() {
        let own = OwnListeners::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let _entries = (own.add(&listener).unwrap(), own.add(&socket).unwrap());
        let (listener, socket) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
        assert!(own.are_at(listener, false) && own.are_at(socket, true));
        if listener != socket {
            assert!(!own.are_at(listener, true) && !own.are_at(socket, false));
        }
    }

    #[test]
    fn a_listener_is_found_by_all_forms_of_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = OwnListeners::default();
        let policy = own.clone();
        let _entry = own.add(&listener).unwrap();
        for ip in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::ffff:0.0.0.0"] {
            assert!(are_at(&policy, ip, port), "{ip}");
        }
        for ip in ["127.0.0.2", "::1", "::", "192.0.2.1"] {
            assert!(!are_at(&policy, ip, port), "{ip}");
        }
        assert!(!are_at(&policy, "127.0.0.1", port.wrapping_add(1)));
    }

    #[test]
    fn the_list_of_own_addresses_is_refreshed_without_waiting() {
        let [old, new] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let (addresses, start) = (Addresses::new(), Instant::now());
        assert!(addresses.have(old, start, || Ok(vec![old])));
        let never = || -> io::Result<Vec<IpAddr>> { panic!("it is not asked for") };
        assert!(!addresses.have(new, start + FRESH / 2, never));
        let (asked, is_asked) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        thread::scope(|scope| {
            let slow = move || {
                asked.send(()).unwrap();
                Ok(answered.recv().unwrap())
            };
            let refreshing = scope.spawn(|| addresses.have(new, start + FRESH, slow));
            is_asked.recv().unwrap();
            assert!(addresses.have(old, start + FRESH, never) && !addresses.have(new, start + FRESH, never));
            answer.send(vec![old, new]).unwrap();
            assert!(refreshing.join().unwrap());
        });
        assert!(addresses.have(new, start + FRESH, never));
        let fails = || Err(io::ErrorKind::Other.into());
        assert!(addresses.have(new, start + 2 * FRESH, fails), "the last answer holds");
    }

    #[test]
    fn a_wildcard_listener_is_at_every_address_of_its_families() {
        let (_socket, port, own) = wildcard(false);
        for ip in ["127.0.0.1", "127.8.8.8", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
            assert!(are_at(&own, ip, port), "{ip}");
        }
        for interface in if_addrs::get_if_addrs().unwrap() {
            assert!(
                own.are_at(SocketAddr::new(interface.ip(), port), false),
                "{interface:?}"
            );
        }
        assert!(!are_at(&own, "192.0.2.1", port));
    }

    #[test]
    fn an_ipv6_only_wildcard_does_not_match_ipv4_addresses() {
        let (_socket, port, own) = wildcard(true);
        assert!(are_at(&own, "::1", port) && are_at(&own, "::", port));
        assert!(!are_at(&own, "127.0.0.1", port) && !are_at(&own, "::ffff:127.0.0.1", port));
    }

    #[test]
    fn a_unix_socket_is_recognized_by_another_path() {
        let folder = std::env::temp_dir().join(format!("spliceway-own-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = OwnListeners::default();
        let _entry = own.add(&listener).unwrap();
        assert!(own.are_at_path(&path));
        assert!(own.are_at_path(&folder.join(".").join("socket")));
        assert!(!own.are_at_path(&folder.join("other")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
