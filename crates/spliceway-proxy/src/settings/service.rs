//! The settings of one service.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use spliceway_protocol::address::{ListenAddress, ListenRange, Target, TargetRange};
use spliceway_protocol::{Spoken, proxy};

use super::config;
use crate::access::auth::Users;
use crate::access::policy::{ClientPolicy, TargetAccess};
use crate::access::rates::Rates;
use crate::net::listener::Transport;
use crate::net::transparent::Interception;
use crate::reach::balance::BalanceSettings;
use crate::reach::dial::DialSettings;
use crate::reach::sni::Routes;
use crate::tls::client::Originator;
use crate::tls::client_cert::ClientCertSettings;
use crate::tls::server::Terminator;

/// The settings of one service.
#[derive(Debug)]
pub(crate) struct ServiceSettings {
    /// The value of `service` in metrics and records.
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) listen: Vec<ListenRange>,
    /// What the clients of these listeners send.
    pub(crate) transport: Transport,
    /// Where the service answers DNS queries.
    pub(crate) dns_listen: Vec<ListenAddress>,
    /// The clients that may connect.
    pub(crate) clients: ClientPolicy,
    /// The users who may request a target. `None` means every client that may connect.
    pub(crate) users: Option<Arc<Users>>,
    /// The longest time that an address must wait after wrong passwords. Zero means no wait.
    pub(crate) auth_penalty: Duration,
    /// Whether everybody may use the service.
    pub(super) open: bool,
    /// The targets that clients may reach.
    pub(crate) targets: TargetAccess,
    /// The targets of users who have a table of their own.
    pub(crate) user_targets: Arc<[UserTargets]>,
    /// Empty if certificates name no users.
    pub(crate) host_users: Arc<HostUsers>,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    /// Ends the TLS of the clients. `None` means that clients speak no TLS to the service.
    pub(crate) tls: Option<Arc<Terminator>>,
    pub(crate) send_proxy: Option<proxy::Version>,
    /// Speaks TLS to targets and upstream proxies. `None` if none of them speaks it.
    pub(crate) originator: Option<Arc<Originator>>,
    /// The observer that gets a copy of what clients send.
    pub(crate) mirror: Option<MirrorSettings>,
    pub(crate) dial: DialSettings,
    /// The backends of a forwarder. `None` if there is only the target of its kind.
    pub(crate) balance: Option<BalanceSettings>,
    /// The rate limits for bytes from clients.
    pub(crate) rates_in: Rates,
    /// The rate limits for bytes to clients.
    pub(crate) rates_out: Rates,
    /// The address that SOCKS replies give for UDP ASSOCIATE and BIND. `None` means the address
    /// that the client reached.
    pub(crate) advertise: Option<IpAddr>,
    /// What the operator has written, with the defaults for all services.
    pub(crate) config: config::Service,
}

/// The observer that gets a copy of what clients send.
#[derive(Debug, Clone)]
pub(crate) struct MirrorSettings {
    pub(crate) observer: Target,
    /// The share of the sessions that are mirrored, in per cent.
    pub(crate) share: u32,
}

/// The users with a table whose names have capitals, by their names in lower case. The names of
/// hosts in certificates find their users here.
pub(crate) type HostUsers = HashMap<Box<str>, Box<str>>;

/// The targets that one user may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserTargets {
    /// The name as clients send it.
    pub(crate) name: Box<[u8]>,
    pub(crate) targets: TargetAccess,
}

/// The kind of a service.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Relays to one target, or from each port of a range to its own target. With several backends,
    /// this is the first one.
    Forward(TargetRange),
    /// Relays to the target that the client names in SOCKS5 (RFC 1928).
    Socks5,
    /// Relays to the target that the client names in HTTP (RFC 9110): in CONNECT, or in a request
    /// with an absolute URI.
    Http,
    /// Relays for SOCKS5, HTTP and SOCKS4 clients. The first byte identifies the protocol.
    Mixed,
    /// Relays to the target that the client wanted to reach, or to the server that it names. A
    /// firewall rule has sent the client here instead.
    Transparent(Interception, Naming),
    /// Relays TLS clients to the target of the name that they state.
    Sni(Arc<Routes>),
}

/// Whether a service reads the names that redirected clients state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// A client reaches the address that it has dialled.
    Off,
    /// A client reaches the server that it names, if the rules allow the name.
    On,
    /// A client reaches the server that it names. The record says what the rules do not allow.
    Learning,
}

impl Kind {
    /// Returns the default name of such a service.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Socks5 => "socks5",
            Self::Http => "http",
            Self::Mixed => "mixed",
            Self::Transparent(..) => "transparent",
            Self::Sni(_) => "sni",
        }
    }

    /// Returns the protocols in which clients name their target.
    pub(crate) fn protocols(&self) -> &'static [Spoken] {
        match self {
            Self::Socks5 => &[Spoken::Socks5],
            Self::Http => &[Spoken::Http],
            Self::Mixed => &Spoken::ALL,
            Self::Forward(_) | Self::Transparent(..) | Self::Sni(_) => &[],
        }
    }

    /// Returns whether a TPROXY rule sends clients to the listeners.
    pub(crate) fn is_behind_tproxy(&self) -> bool {
        matches!(self, Self::Transparent(Interception::Tproxy, _))
    }

    /// Returns whether the service reads the names that redirected clients state.
    pub(crate) fn reads_names(&self) -> bool {
        matches!(self, Self::Transparent(_, Naming::On | Naming::Learning))
    }

    /// Returns whether only the operator names targets.
    pub(crate) fn has_fixed_targets(&self) -> bool {
        matches!(self, Self::Forward(_) | Self::Sni(_))
    }
}

/// What the clients of a listener want, and what they send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Sessions(Transport),
    /// Answers to DNS queries.
    Dns(Transport),
}

impl Purpose {
    /// Returns what the service does at the listener, for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sessions(_) => "listening",
            Self::Dns(_) => "answering DNS",
        }
    }

    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Sessions(transport) | Self::Dns(transport) => transport,
        }
    }
}

impl ServiceSettings {
    /// Returns the addresses of all listeners, and what they are for.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (ListenRange, Purpose)> {
        let own = self.listen.iter().cloned();
        let dns = self.dns_listen.iter().flat_map(|address| {
            let both = [Transport::Datagrams, Transport::Streams].map(Purpose::Dns);
            both.map(|purpose| (address.clone().into(), purpose))
        });
        own.map(|range| (range, Purpose::Sessions(self.transport))).chain(dns)
    }

    /// Returns whether it is a proxy that would serve a client of any address without a password.
    pub(crate) fn is_unguarded_proxy(&self) -> bool {
        !self.kind.protocols().is_empty()
            && self.users.is_none()
            && !self.requires_client_certs()
            && !self.open
            && self.accept_proxy.is_none()
    }

    /// Returns whether clients may have no list of what they may reach. No client is without a list
    /// if each of them is a user by its network, and each of these users has one.
    pub(super) fn has_clients_without_a_list(&self) -> bool {
        let listed = self
            .user_targets
            .iter()
            .filter(|user| user.targets.rules.allow.is_some());
        let listed: HashSet<&[u8]> = listed.map(|user| &*user.name).collect();
        let names = self.clients.networks().map(|networks| networks.names());
        let have_lists = names.is_some_and(|names| names.iter().all(|name| listed.contains(name.as_bytes())));
        self.targets.rules.allow.is_none() && !(self.clients.lacks_user(None) && have_lists)
    }

    /// Returns whether every client needs a certificate.
    pub(crate) fn requires_client_certs(&self) -> bool {
        self.clients_of_tls().is_some_and(|clients| clients.is_required)
    }

    /// Returns whether the user of a session is the name in the certificate of its client.
    pub(crate) fn has_users_by_certificate(&self) -> bool {
        self.users.is_none() && self.clients_of_tls().is_some()
    }

    /// Returns the names of the users, as records show them, if the configuration has them all.
    pub(crate) fn user_names(&self) -> Option<HashSet<Box<str>>> {
        let by_network = || self.clients.networks().map(|networks| networks.names().clone());
        self.users.as_ref().map(|users| users.names()).or_else(by_network)
    }

    /// Returns the names of users that `new` does not have.
    pub(crate) fn users_missing_in(&self, new: &Self) -> Vec<Box<str>> {
        let (names, new) = (self.user_names().unwrap_or_default(), new.user_names());
        let mut missing: Vec<_> = names.difference(&new.unwrap_or_default()).cloned().collect();
        missing.sort();
        missing
    }

    fn clients_of_tls(&self) -> Option<&ClientCertSettings> {
        self.tls.as_ref().and_then(|tls| tls.clients())
    }
}

/// The requirement that every connection begins with a PROXY header, which names the client.
#[derive(Debug, Clone)]
pub(crate) struct AcceptProxy {
    pub(crate) versions: proxy::Accept,
    /// The networks whose headers are trusted. A connection from any other network is refused.
    pub(crate) from: Vec<IpNet>,
}
