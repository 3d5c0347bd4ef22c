//! Whose connection it is, and whether that client is listened to.

use std::net::SocketAddr;

use tokio::time::timeout;

use super::Service;
use crate::admission::{self, Permit};
use crate::handshake::{self, Client};
use crate::listener::Accepted;
use crate::protocol::proxy;
use crate::record::{SessionEnd, Outcome};
use crate::settings::AcceptProxy;

/// The reasons to refuse a client for where it comes from.
pub(super) const NO_CLIENT: &str = "client";
pub(super) const NO_BALANCER: &str = "proxy_from";

/// Whose connection it is, and what it was made to: as the socket says, or as a balancer in front of us does.
pub(super) struct Addresses {
    pub(super) client: Option<SocketAddr>,
    pub(super) reached: Option<SocketAddr>,
    /// What else the balancer says of the connection, for targets that are told by the same version.
    pub(super) tlvs: Vec<u8>,
}

impl Addresses {
    pub(super) fn of(accepted: &Accepted, service: &Service) -> Self {
        Self {
            client: accepted.peer,
            // A call for each client that only a header has use for.
            reached: service.send_proxy.and_then(|_| accepted.local()),
            tlvs: Vec::new(),
        }
    }
}

/// Reads the header that a balancer begins a connection with, within the time of a handshake.
pub(super) async fn introduce(
    client: &mut Client,
    accept: &AcceptProxy,
    own: Addresses,
    service: &Service,
) -> Result<Addresses, Outcome> {
    let trusted = own
        .client
        .is_none_or(|balancer| accept.from.iter().any(|network| network.contains(&balancer.ip())));
    if !trusted {
        return Err(SessionEnd::Denied(NO_BALANCER).into());
    }
    let mut header = proxy::Header::new(accept.versions);
    let read = handshake::read(client, |input| header.feed(input));
    match timeout(service.timeouts.handshake, read).await {
        Ok(Ok(proxy::Source::Own)) => Ok(own),
        Ok(Ok(proxy::Source::Proxied { client, reached })) => Ok(Addresses {
            client: Some(client),
            reached: Some(reached),
            tlvs: header.into_tlvs(),
        }),
        Ok(Err(no_request)) => Err(no_request.outcome()),
        Err(_) => Err(SessionEnd::Denied(handshake::TOO_SLOW).into()),
    }
}

/// Why this client is not even listened to.
pub(super) fn refusal(addresses: &Addresses, permit: &mut Permit, service: &Service) -> Option<&'static str> {
    let Some(client) = addresses.client else {
        // The mode of a unix socket says who may open it. Behind a balancer the allowed networks say so, and this client is in none.
        let is_stranger = service.accept_proxy.is_some() && service.clients.names_who_may();
        return is_stranger.then_some(NO_CLIENT);
    };
    let client = client.ip();
    if !service.clients.admits(client) {
        return Some(NO_CLIENT);
    }
    (!permit.count(client)).then_some(admission::TOO_MANY_OF_CLIENT)
}
