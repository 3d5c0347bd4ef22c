//! Finds out which clients can reach a service, and whether it would serve everybody.

use spliceway_protocol::address::ListenAddress;

use crate::net::listener::{Listener, OTHERS_MAY_CONNECT};
use crate::net::transparent::Interception;
use crate::settings::service::{Kind, ServiceSettings};

/// The clients that can connect to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Clients on this machine, or only this user on a Unix socket.
    Local,
    /// Other machines.
    Network,
    /// Other users of this machine, on a Unix socket.
    SharedSocket,
}

/// The origin of a service's clients, as far as its listeners show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// This machine. These clients can reach whatever the program can reach.
    Local,
    /// Other machines.
    Remote,
    /// Any address that a load balancer names. The load balancer may be on this machine, but its
    /// clients need not be.
    BehindBalancer,
    /// A Unix socket that other users may open. A client there has no address.
    SharedSocket,
}

impl Reach {
    /// Returns the reach of a listener on this address, or `None` if only the socket shows it.
    pub(crate) fn of_address(address: &ListenAddress) -> Option<Self> {
        match address {
            ListenAddress::Every(_) => Some(Self::Network),
            ListenAddress::Ip(address) if address.ip().to_canonical().is_loopback() => Some(Self::Local),
            ListenAddress::Ip(_) => Some(Self::Network),
            ListenAddress::Unix { mode: Some(mode), .. } if mode & OTHERS_MAY_CONNECT != 0 => Some(Self::SharedSocket),
            ListenAddress::Unix { .. } => Some(Self::Local),
            ListenAddress::Name(..) | ListenAddress::Inherited(_) => None,
        }
    }

    pub(crate) fn of_listener(listener: &Listener) -> Self {
        match listener {
            listener if listener.is_local() => Self::Local,
            Listener::Unix(..) => Self::SharedSocket,
            Listener::Tcp(_) | Listener::Udp(_) => Self::Network,
        }
    }
}

impl Clients {
    pub(crate) fn of_service(service: &ServiceSettings, reach: impl IntoIterator<Item = Reach>) -> Self {
        if service.accept_proxy.is_some() {
            return Self::BehindBalancer;
        }
        // A rule with TPROXY also sends clients of other machines to a listener on loopback.
        if service.kind.is_behind_tproxy() {
            return Self::Remote;
        }
        // A shared socket takes precedence over a network address, because `--allow` does not apply
        // to it.
        reach.into_iter().fold(Self::Local, |clients, reach| match reach {
            Reach::Local => clients,
            Reach::SharedSocket => Self::SharedSocket,
            Reach::Network if clients == Self::SharedSocket => clients,
            Reach::Network => Self::Remote,
        })
    }
}

/// Checks that a service is not open to everybody, unless the settings permit this. Strangers find
/// and use an open proxy within hours.
///
/// # Errors
/// Returns a message that says how to restrict access.
pub(crate) fn check_open(service: &ServiceSettings, clients: Clients) -> Result<(), String> {
    let has_networks = service.clients.names_who_may();
    let (is_guarded, why, who) = match clients {
        Clients::Local => return Ok(()),
        Clients::Remote => (
            has_networks,
            "listens on an address that other machines can reach",
            "(--auth-file, --tls-client-ca, --allow)",
        ),
        Clients::BehindBalancer => (
            has_networks,
            "accepts clients from a load balancer (--accept-proxy), which may pass on clients of other machines",
            "(--auth-file, --tls-client-ca, --allow)",
        ),
        Clients::SharedSocket => (
            false,
            "listens on a Unix socket that other users may open",
            "(--auth-file, or mode=0600 for the socket)",
        ),
    };
    if is_guarded || service.users.is_some() || service.requires_client_certs() || service.open {
        return Ok(());
    }
    let (why, who) = match service.kind {
        Kind::Transparent(Interception::Tproxy, _) => ("serves connections of other machines", "(--allow)"),
        Kind::Transparent(Interception::Redirect, _) => (why, "(--allow)"),
        _ => (why, who),
    };
    Err(format!(
        "{} {why}, and would serve everybody: restrict access {who}, or allow everybody (--open)",
        service.name
    ))
}
