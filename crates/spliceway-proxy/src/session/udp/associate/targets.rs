//! Sends a client's datagrams to targets: checks the policy, resolves names and opens sockets.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use quinn_udp::UdpSocketState;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::names::{Lookup, Name, Names};
use super::peers::Peers;
use super::sockets::TargetSockets;
use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::access::policy::Denied;
use crate::net::datagrams::{GsoBatch, Route, send};
use crate::reach::dial::{DialError, LookupError};
use crate::session::destinations::Destinations;
use spliceway_protocol::address::Target;

/// The target side of an association.
#[derive(Debug)]
pub(super) struct Targets<D> {
    pub(super) sockets: TargetSockets,
    pub(super) peers: Peers,
    pub(super) lookups: JoinSet<FinishedLookup>,
    pub(super) names: Names,
    pub(super) destinations: D,
    pub(super) lookup_limit: Duration,
    /// Whether the IPv4 addresses of names come first.
    pub(super) prefers_v4: bool,
    pub(super) udp: &'static UdpSocketState,
    pub(super) stats: DatagramStats,
}

/// A finished lookup.
#[derive(Debug)]
pub(super) struct FinishedLookup {
    name: Name,
    addresses: Result<Vec<SocketAddr>, DialError>,
}

impl<D: Destinations> Targets<D> {
    /// Sends a datagram, adds it to `gso`, keeps it until the lookup of its name ends, or drops it.
    /// Sent and dropped datagrams are counted.
    pub(super) fn send(&mut self, target: Target, data: &[u8], now: Instant, gso: &mut GsoBatch) {
        match target {
            Target::Ip(address) => self.send_to(None, address, data, gso),
            Target::Name(name, port) => self.send_to_name((name, port), data, now, gso),
            // A client cannot name a Unix socket.
            Target::Unix(_) => self.stats.dropped(Dropped::Denied),
        }
    }

    fn send_to(&mut self, name: Option<&str>, address: SocketAddr, data: &[u8], gso: &mut GsoBatch) {
        if let Err(dropped) = self.admit(name, address, data) {
            return self.stats.dropped(dropped);
        }
        if !gso.push(Route::To(address), data, |gso| self.flush(gso)) {
            let sent = self.send_now(address, data);
            self.stats.up(data.len(), sent);
        }
    }

    fn send_to_name(&mut self, name: Name, data: &[u8], now: Instant, gso: &mut GsoBatch) {
        match self.names.look_up(&name, now) {
            Lookup::NotNeeded => {}
            Lookup::Start => self.look_up(name.clone()),
            Lookup::TooMany => return self.stats.dropped(Dropped::LookupLimit),
        }
        if let Some(address) = self.names.proven(&name) {
            self.send_to(Some(&name.0), address, data, gso);
        } else if self.names.addresses(&name).is_some() {
            self.flush(gso);
            let sent = self.send_to_first(&name, data);
            self.stats.up(data.len(), sent);
        } else if !self.names.wait(&name, data) {
            self.stats.dropped(Dropped::LookupLimit);
        }
    }

    /// Sends to the first address of the name that is allowed and has a route. This address becomes
    /// the name's first one.
    fn send_to_first(&mut self, name: &Name, data: &[u8]) -> Result<(), Dropped> {
        let mut sent = Err(Dropped::Unresolved);
        for index in 0.. {
            let Some(&address) = self.names.addresses(name).and_then(|addresses| addresses.get(index)) else {
                break;
            };
            sent = self
                .admit(Some(&name.0), address, data)
                .and_then(|()| self.send_now(address, data));
            match sent {
                Err(Dropped::Unreachable | Dropped::Denied | Dropped::Rule) => {}
                Err(Dropped::Rate) => break,
                _ => {
                    self.names.prove(name, index);
                    break;
                }
            }
        }
        sent
    }

    /// Admits a datagram to `address`, if the policy and the rates allow it. Every datagram passes
    /// this check, so no datagram is sent to a forbidden address.
    fn admit(&mut self, name: Option<&str>, address: SocketAddr, data: &[u8]) -> Result<(), Dropped> {
        let allowed = self.destinations.check(name, address);
        allowed.map_err(|denied| self.reason(&DialError::Denied(denied, Some(address.ip()))))?;
        self.sockets.get_or_open(address, &self.destinations)?;
        self.stats.charge_up(data.len())?;
        // The peer is recorded before sending, because the answer may arrive before this thread
        // continues.
        self.peers.sent_to(address);
        Ok(())
    }

    /// Returns why a datagram is dropped. The record of the session tells the first refusal.
    fn reason(&self, error: &DialError) -> Dropped {
        match error {
            DialError::Denied(denied, _) => {
                self.stats.denied(error);
                match denied {
                    Denied::Rule(_) => Dropped::Rule,
                    _ => Dropped::Denied,
                }
            }
            _ => Dropped::Unresolved,
        }
    }

    fn send_now(&self, address: SocketAddr, data: &[u8]) -> Result<(), Dropped> {
        let socket = self.sockets.get(address).ok_or(Dropped::Socket)?;
        send(self.udp, socket, Route::To(address), data).map_err(Dropped::from)
    }

    /// Sends the datagrams in `gso`.
    pub(super) fn flush(&self, gso: &mut GsoBatch) {
        let Some(Route::To(address)) = gso.to() else { return };
        if let Some(socket) = self.sockets.get(address) {
            gso.flush(self.udp, socket, |bytes, sent| self.stats.up(bytes, sent));
        }
    }

    fn look_up(&mut self, name: Name) {
        let (destinations, limit) = (self.destinations.clone(), self.lookup_limit);
        self.lookups.spawn(async move {
            let target = Target::Name(name.0.clone(), name.1);
            let looked_up = timeout(limit, destinations.look_up(&target)).await;
            FinishedLookup {
                addresses: looked_up.unwrap_or(Err(LookupError::TimedOut.into())),
                name,
            }
        });
    }

    /// Handles a finished lookup and sends the datagrams that waited for it.
    pub(super) fn finish_lookup(&mut self, lookup: FinishedLookup, now: Instant) {
        let FinishedLookup { name, addresses } = lookup;
        let (mut addresses, reason) = match addresses {
            Ok(addresses) => (addresses, Dropped::Unresolved),
            Err(error) => (Vec::new(), self.reason(&error)),
        };
        let has_addresses = !addresses.is_empty();
        addresses.sort_by_key(|address| address.is_ipv4() != self.prefers_v4);
        for data in self.names.finish_lookup(&name, addresses, now) {
            let sent = if has_addresses {
                self.send_to_first(&name, &data)
            } else {
                Err(reason)
            };
            self.stats.up(data.len(), sent);
        }
    }
}

/// Waits for the next finished lookup, or forever if no lookup is running. Cancel safe.
pub(super) async fn next(lookups: &mut JoinSet<FinishedLookup>) -> FinishedLookup {
    match lookups.join_next().await {
        Some(Ok(found)) => found,
        Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
        None => pending().await,
    }
}
