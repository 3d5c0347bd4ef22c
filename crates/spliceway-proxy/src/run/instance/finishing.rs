//! Sockets for datagrams that no service uses any more, but whose sessions continue.
//!
//! A socket stays bound for its sessions. So a service that gets the address again must get the
//! socket, too.

use parking_lot::Mutex;
use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;

use crate::net::listener::{Listener, Transport, does_for};
use crate::session::udp::Port;

/// The sockets. Each has a session, so the limit on sessions limits them.
#[derive(Default)]
pub(super) struct Finishing(Mutex<Vec<Left>>);

/// The socket of a service that has stopped.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) address: ListenAddress,
    pub(super) service: Arc<str>,
    pub(super) listener: Arc<Listener>,
    pub(super) port: Arc<Port>,
}

impl Finishing {
    pub(super) fn add(&self, left: Left) {
        self.0.lock().push(left);
    }

    pub(super) fn remove(&self, port: &Arc<Port>) {
        self.0.lock().retain(|left| !Arc::ptr_eq(&left.port, port));
    }

    /// Returns the sockets that would do for this address of a service.
    pub(super) fn at(&self, address: &ListenAddress, service: &str) -> Vec<Left> {
        let would_do = |left: &&Left| {
            let left = (&left.address, &*left.service, Transport::Datagrams);
            does_for(left, (address, service, Transport::Datagrams))
        };
        self.0.lock().iter().filter(would_do).cloned().collect()
    }
}
