//! One service of the program: a forwarder or a proxy, with what only its sessions share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use spliceway::RelayOptions;
use spliceway_protocol::proxy;

use crate::access::admission::Dials;
use crate::access::auth::{Penalties, Users};
use crate::access::policy::ClientPolicy;
use crate::access::rates::RateLimits;
use crate::kit::alive::Accepting;
use crate::kit::health::State;
use crate::log::LogThrottle;
use crate::metrics::Traffic;
use crate::reach::balance::Balancer;
use crate::reach::dial::Dialer;
use crate::session::mirror::Mirroring;
use crate::session::process::Process;
use crate::settings::{AcceptProxy, HostUsers, Kind, SessionSettings};
use crate::tls::client_name::ClientCert;
use crate::tls::server::Terminator;

/// The state that the sessions of one service share.
pub(crate) struct Service {
    pub(crate) process: Arc<Process>,
    /// The value of `service` in metrics and records.
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    /// The settings for the sessions of every service.
    pub(crate) settings: SessionSettings,
    pub(crate) relays: RelayOptions,
    /// The same, for relays to a new socket: from a client that something has read from before, and
    /// from a client with a new socket. All relays share them, so they are made once.
    pub(crate) relays_of_new_sockets: [RelayOptions; 2],
    pub(crate) clients: ClientPolicy,
    /// Whether its clients count as local. Those of a Unix socket must then be of this user or
    /// root.
    pub(crate) is_private: bool,
    /// Whether it is a proxy whose clients need no password because they count as local.
    pub(crate) is_only_for_this_machine: bool,
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    /// Ends the TLS of the clients, if they speak it to the service.
    pub(crate) tls: Option<Arc<Terminator>>,
    pub(crate) send_proxy: Option<proxy::Version>,
    /// Copies what clients send for an observer.
    pub(crate) mirroring: Option<Mirroring>,
    pub(crate) dialer: Dialer,
    /// The dialers of users who have targets of their own, by their names.
    pub(crate) user_dialers: HashMap<Box<[u8]>, Dialer>,
    /// The users whose names have capitals, by their names in lower case.
    pub(crate) host_users: Arc<HostUsers>,
    /// Chooses the target, if there are several backends.
    pub(crate) balancer: Option<Arc<Balancer>>,
    pub(crate) dials: Arc<Dials>,
    pub(crate) rates: Arc<RateLimits>,
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) traffic: Arc<Traffic>,
    /// Limits the warnings about targets that clients have named and that were not reached.
    pub(crate) failures: Mutex<LogThrottle>,
    pub(crate) accepting: Accepting,
    /// Whether no reload has replaced the service.
    pub(crate) in_force: Accepting,
}

impl Service {
    /// Returns whether the user of a session is the name in the certificate of its client.
    pub(super) fn has_users_by_certificate(&self) -> bool {
        self.users.is_none() && self.tls.as_ref().is_some_and(|tls| tls.clients().is_some())
    }

    /// Returns whether the user of a session may be known before its request: by certificate or by
    /// network.
    pub(super) fn knows_users(&self) -> bool {
        self.has_users_by_certificate() || self.clients.networks().is_some()
    }

    /// Returns whether a client may send another request on its connection. If the service has
    /// ended or was replaced, the request belongs to another one.
    pub(super) fn keeps_clients(&self) -> bool {
        self.accepting.is_on() && self.in_force.is_on() && self.process.health.state() == State::Serving
    }

    /// Waits until the service no longer keeps clients.
    pub(super) async fn releases_clients(&self) {
        tokio::select! {
            () = self.accepting.stopped() => {}
            () = self.in_force.stopped() => {}
            _ = self.process.health.stopped() => {}
        }
    }

    /// Returns the name of the user that a certificate is of.
    pub(super) fn user_of<'a>(&'a self, cert: &'a ClientCert) -> &'a str {
        let known = self.host_users.get(&cert.name).filter(|_| cert.is_host);
        known.unwrap_or(&cert.name)
    }

    /// Returns the dialer for a client that is known by its network at most.
    pub(super) fn dialer_of_client(&self, ip: IpAddr) -> &Dialer {
        self.dialer_of(self.clients.user_of(ip).map(str::as_bytes))
    }

    /// Returns the dialer for the targets of a client, who may have proven to be a user.
    pub(super) fn dialer_of(&self, user: Option<&[u8]>) -> &Dialer {
        user.and_then(|user| self.user_dialers.get(user))
            .unwrap_or(&self.dialer)
    }
}
