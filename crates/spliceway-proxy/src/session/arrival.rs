//! Finds the address of a client and decides whether the proxy admits the client.

use std::net::SocketAddr;

use tokio::time::timeout;

use crate::access::admission::Permit;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::listener::Accepted;
use crate::session::handshake::{self, Client};
use crate::session::service::Service;
use crate::settings::AcceptProxy;
use spliceway_protocol::proxy;

/// The addresses of a client and of the socket that it reached. They come from the connection, or
/// from a load balancer in front of the proxy.
pub(super) struct Addresses {
    pub(super) client: Option<SocketAddr>,
    pub(super) reached: Option<SocketAddr>,
    /// Additional fields (TLVs) of the load balancer's header, for targets that get a header of the
    /// same version.
    pub(super) tlvs: Vec<u8>,
}

impl Addresses {
    pub(super) fn of(accepted: &Accepted, service: &Service) -> Self {
        Self {
            client: accepted.peer,
            // Only a PROXY header needs this address. Otherwise, the proxy saves the system call.
            reached: service.send_proxy.and_then(|_| accepted.local()),
            tlvs: Vec::new(),
        }
    }
}

/// Returns whether a client of a private Unix socket is of another user. It has connected while the
/// mode of the socket was another one, or an operator has changed the mode by hand. The latter is
/// fine for a service whose targets only the operator names.
pub(super) fn is_stranger(accepted: &Accepted, service: &Service) -> bool {
    service.is_private
        && accepted.is_of_other_user()
        && (!service.kind.has_fixed_targets() || accepted.is_on_private_path())
}

/// Reads the header with which a load balancer begins a connection, within the handshake timeout.
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
        return Err(SessionEnd::Denied(Refusal::Balancer).into());
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
        Err(_) => Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into()),
    }
}

/// Returns the reason to refuse this client before its request is read, if there is one.
pub(super) fn refusal(addresses: &Addresses, permit: &mut Permit, service: &Service) -> Option<Refusal> {
    let Some(client) = addresses.client else {
        // The mode of a Unix socket decides who may open it. Behind a load balancer, the allowed
        // networks decide, and this client is in none of them.
        let is_stranger = service.accept_proxy.is_some() && service.clients.names_who_may();
        return is_stranger.then_some(Refusal::Client);
    };
    let client = client.ip();
    if !service.clients.admits(client) {
        return Some(Refusal::Client);
    }
    (!permit.count(client)).then_some(Refusal::SessionsOfClient)
}
