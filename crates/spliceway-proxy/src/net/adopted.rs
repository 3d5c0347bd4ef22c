//! The listeners of a hand-over: those that the old process offers, and those that the new one has
//! received.
//!
//! ```text
//!   received ─┬─ bind: a service uses it ─▶ open ───────────────┐
//!             └─ no service uses it                             ▼
//!                        the old process still accepts: nothing of the listeners changes
//!                                                               │ commit
//!                   files belong to this process, modes change, unused listeners close
//! ```

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spliceway_protocol::address::{ListenAddress, is_abstract};

use crate::net::listener::{self, Listener, ModeChange, Ownership, Transport};

/// Listeners that were opened for one address, and that a new process may receive.
#[derive(Clone)]
pub(crate) struct Offered {
    pub(crate) role: String,
    pub(crate) address: String,
    pub(crate) listeners: Vec<Arc<Listener>>,
}

impl Offered {
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|listener| listener.as_fd())
    }
}

/// Listeners by their address. The limit on descriptors limits them. Empty in a process that was
/// not started by another one.
#[derive(Default)]
pub(crate) struct Adopted {
    /// The groups with the same hash of address and role, in the order of their numbers. A program
    /// may have 10,000 services.
    groups: Mutex<HashMap<u64, Vec<Group>>>,
    changes: Mutex<Vec<Change>>,
    /// Whether the files of the sockets belong to this process.
    ownership: Ownership,
}

/// What changes a listener when it belongs to this process.
type Change = Box<dyn FnOnce() + Send>;

/// The listeners of an address.
pub(crate) struct Found {
    pub(crate) listeners: Vec<Listener>,
    /// Whether another process still accepts their clients. Their options must not change yet.
    pub(crate) are_received: bool,
}

/// The listeners of one address.
struct Group {
    number: usize,
    /// What used them: a service, or the metrics or admin listener.
    role: String,
    address: ListenAddress,
    listeners: Vec<Listener>,
}

impl Adopted {
    /// Adds a listener. Listeners with the same number were opened for one address.
    pub(crate) fn add(&self, number: usize, role: String, address: &str, socket: OwnedFd) -> io::Result<()> {
        let address: ListenAddress = address
            .parse()
            .map_err(|error| io::Error::other(format!("{address}: {error}")))?;
        let listener = listener::adopted(socket, &address, &self.ownership)?;
        let mut groups = self.groups.lock();
        let groups = groups.entry(listener::hash_of(&address, &role)).or_default();
        match groups.last_mut().filter(|group| group.number == number) {
            Some(group) => group.listeners.push(listener),
            None => groups.push(Group {
                number,
                role,
                address,
                listeners: vec![listener],
            }),
        }
        Ok(())
    }

    /// Returns the listeners for an address, and binds them if there are none.
    pub(crate) async fn bind(&self, role: &str, address: &ListenAddress, transport: Transport) -> io::Result<Found> {
        let group = {
            let mut groups = self.groups.lock();
            let groups = groups.entry(listener::hash_of(address, role)).or_default();
            let found = groups.iter().position(|group| group.is_for(role, address, transport));
            found.map(|index| groups.remove(index))
        };
        let Some(mut group) = group else {
            return Ok(Found {
                listeners: listener::bind(address, transport).await?,
                are_received: false,
            });
        };
        if let (ListenAddress::Unix { mode: before, .. }, ListenAddress::Unix { path, mode }) =
            (&group.address, address)
            && before != mode
        {
            self.change_mode(&mut group.listeners, path.clone(), *before, *mode);
        }
        Ok(Found {
            listeners: group.listeners,
            are_received: true,
        })
    }

    /// Changes the mode of a socket at the commit. Until then, the old process serves clients by
    /// its own settings.
    fn change_mode(&self, listeners: &mut [Listener], path: Box<Path>, before: Option<u32>, mode: Option<u32>) {
        for listener in listeners {
            if let Listener::Unix(Some(file), _) = listener {
                file.set_next_mode(mode);
            }
        }
        let is_abstract = is_abstract(&path);
        let change = move || {
            let change = ModeChange::new(&path, before, mode);
            if let Err(error) = change.narrow().and_then(|()| change.widen()) {
                let path = path.display();
                tracing::error!(%path, %error, "cannot change the mode of the socket");
            }
        };
        if is_abstract {
            // Each process asks for the users of its own clients.
            change();
        } else {
            self.at_commit(change);
        }
    }

    /// Changes a listener when the old process accepts no clients any more.
    pub(crate) fn at_commit(&self, change: impl FnOnce() + Send + 'static) {
        let mut changes = self.changes.lock();
        changes.push(Box::new(change));
    }

    /// Owns the listeners: the old process accepts no clients any more, and this one does not yet.
    /// Closes the listeners that are not in use.
    pub(crate) fn commit(&self) {
        self.ownership.store(true, Ordering::Relaxed);
        let changes = std::mem::take(&mut *self.changes.lock());
        changes.into_iter().for_each(|change| change());
        let unused = std::mem::take(&mut *self.groups.lock());
        let mut unused: Vec<_> = unused.into_values().flatten().collect();
        unused.sort_by_key(|group| group.number);
        for group in unused {
            tracing::info!("no longer listens on {}", group.address);
        }
    }
}

impl Group {
    fn is_for(&self, role: &str, address: &ListenAddress, transport: Transport) -> bool {
        let has = self.listeners.first().map(Listener::transport);
        has.is_some_and(|has| listener::does_for((&self.address, &self.role, has), (address, role, transport)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn each_listener_is_found_by_its_address_in_any_order() {
        let adopted = Adopted::default();
        let sockets: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let (any, fixed) = ("127.0.0.1:0".parse().unwrap(), sockets[2].local_addr().unwrap());
        let ports: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let addresses = ["127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned(), fixed.to_string()];
        for (number, (socket, address)) in sockets.into_iter().zip(addresses).enumerate() {
            adopted
                .add(number, format!("service {number}"), &address, socket.into())
                .unwrap();
        }
        // A fixed address may change its service.
        for (role, address, port) in [
            ("service x", &ListenAddress::Ip(fixed), ports[2]),
            ("service 1", &any, ports[1]),
            ("service 0", &any, ports[0]),
        ] {
            let found = adopted.bind(role, address, Transport::Streams).await.unwrap();
            assert!(found.are_received);
            assert_eq!(found.listeners[0].local_addr(), Some(port), "{role}");
        }
        let found = adopted.bind("service 0", &any, Transport::Streams).await.unwrap();
        assert!(!found.are_received && !ports.contains(&found.listeners[0].local_addr().unwrap()));
    }
}
