//! The listeners that a new process has received and not yet used.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use spliceway_protocol::address::ListenAddress;

use crate::listener::{self, Listener, Transport};

/// Listeners by their address. The limit on descriptors limits them. Empty in a process that was
/// not started by another one.
#[derive(Default)]
pub(crate) struct Adopted(Mutex<Vec<Group>>);

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
    pub(super) fn add(&self, number: usize, role: String, address: &str, socket: OwnedFd) -> io::Result<()> {
        let address: ListenAddress = address
            .parse()
            .map_err(|error| io::Error::other(format!("{address}: {error}")))?;
        let listener = listener::adopted(socket, &address)?;
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    pub(crate) async fn bind(
        &self,
        role: &str,
        address: &ListenAddress,
        transport: Transport,
    ) -> io::Result<Vec<Listener>> {
        let group = {
            let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = groups.iter().position(|group| group.is_for(role, address, transport));
            found.map(|index| groups.remove(index))
        };
        let Some(group) = group else {
            return listener::bind(address, transport).await;
        };
        if let ListenAddress::Unix { path, mode } = address
            && group.address != *address
        {
            listener::set_mode(path, *mode)?;
        }
        Ok(group.listeners)
    }

    /// Closes the listeners that are not in use.
    pub(crate) fn clear(&self) {
        let unused = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
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
