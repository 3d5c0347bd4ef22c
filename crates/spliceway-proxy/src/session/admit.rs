//! Admits a client: finds its address, and decides whether it may use the service.

use std::net::SocketAddr;

use tokio::time::timeout;

use super::client::Client;
use super::guard::Guard;
use super::handshake;
use super::kept::Kept;
use super::service::Service;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::hops::Hops;
use crate::net::listener::{self, Accepted};
use crate::net::stream::Stream;
use crate::settings::{AcceptProxy, Kind, Naming};
use spliceway_protocol::proxy;

/// The size of the handshake's buffer. It has room for the longest SOCKS message (520 bytes), most
/// HTTP heads, and some early data. Further early data waits in the socket.
pub(super) const HANDSHAKE_BUFFER_BYTES: usize = 1024;

/// The addresses of a client and of the socket that it reached. They come from the connection, or
/// from a load balancer in front of the proxy.
pub(super) struct Addresses {
    pub(super) client: Option<SocketAddr>,
    pub(super) reached: Option<SocketAddr>,
    /// Additional fields (TLVs) of the load balancer's header, for targets that get a header of the
    /// same version.
    pub(super) tlvs: Vec<u8>,
}

/// A client that may use the service, and has not sent its request yet.
pub(super) struct Admitted {
    pub(super) client: Client,
    /// Whether only the relay reads from the socket of the client.
    pub(super) is_client_new: bool,
    pub(super) addresses: Addresses,
    /// The services of this program that the client has passed.
    pub(super) hops: Hops,
    /// What the connection keeps from one HTTP request to the next. `None` before the first
    /// request.
    pub(super) kept: Option<Box<Kept>>,
}

impl Admitted {
    /// Admits a client. A client that is refused gets a reset.
    pub(super) async fn admit(accepted: Accepted, guard: &mut Guard) -> Result<Self, Outcome> {
        let service = guard.service();
        let mut hops = Hops::behind(&accepted.stream, accepted.peer);
        if is_stranger(&accepted, service) || hops.are_far() && service.is_only_for_this_machine {
            return Err(reset(accepted.stream, Refusal::Client));
        }
        let mut addresses = Addresses::direct(&accepted, service);
        hops.begin(!service.is_private && !service.clients.names_who_may());
        let is_client_new = is_read_by_relay_only(service);
        // A `BufReader` cannot be without a buffer.
        let buffer_bytes = if is_client_new { 1 } else { HANDSHAKE_BUFFER_BYTES };
        let mut client = Client::with_capacity(buffer_bytes, accepted.stream);
        if let Some(accept) = &service.accept_proxy {
            addresses = Box::pin(read_header(&mut client, accept, addresses, service)).await?;
            if let Some(client) = addresses.client {
                guard.set_client(client);
            }
        }
        if let Some(reason) = refusal(&addresses, guard) {
            let outcome = reset(client.into_inner(), reason);
            return Err(Outcome {
                cause: why_unknown(&addresses, guard.service()),
                ..outcome
            });
        }
        Ok(Self {
            client,
            is_client_new: is_client_new && accepted.is_plain_tcp,
            addresses,
            hops,
            kept: None,
        })
    }
}

/// Returns whether nothing but the relay reads what the clients of this service send.
fn is_read_by_relay_only(service: &Service) -> bool {
    matches!(service.kind, Kind::Forward(_) | Kind::Transparent(_, Naming::Off))
        && service.accept_proxy.is_none()
        && service.tls.is_none()
}

/// Resets the connection of a client that is refused for this reason.
pub(super) fn reset(client: Stream, reason: Refusal) -> Outcome {
    listener::reset(client);
    SessionEnd::Denied(reason).into()
}

impl Addresses {
    /// Returns the addresses of the connection itself.
    fn direct(accepted: &Accepted, service: &Service) -> Self {
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
fn is_stranger(accepted: &Accepted, service: &Service) -> bool {
    service.is_private
        && accepted.is_of_other_user()
        && (!service.kind.has_fixed_targets() || accepted.is_on_private_path())
}

/// Reads the header with which a load balancer begins a connection, within the handshake timeout.
async fn read_header(
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
    match timeout(service.settings.timeouts.handshake, read).await {
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
fn refusal(addresses: &Addresses, guard: &mut Guard) -> Option<Refusal> {
    let service = guard.service();
    let Some(client) = addresses.client else {
        // The mode of a Unix socket decides who may open it. Behind a load balancer, the allowed
        // networks decide, and this client is in none of them.
        let is_stranger = service.accept_proxy.is_some() && service.clients.names_who_may();
        return (is_stranger || service.clients.lacks_user(None)).then_some(Refusal::Client);
    };
    let client = client.ip();
    if !service.clients.admits(client) {
        return Some(Refusal::Client);
    }
    (!guard.permit().count(client)).then_some(Refusal::SessionsOfClient)
}

/// Returns the cause for the record if a client is refused because no table has its network.
fn why_unknown(addresses: &Addresses, service: &Service) -> Option<Box<str>> {
    let ip = addresses.client.map(|client| client.ip());
    let who = ip.map_or_else(|| "a Unix socket".to_owned(), |ip| ip.to_canonical().to_string());
    let is_unknown = service.clients.lacks_user(ip);
    is_unknown.then(|| format!("no table [[client]] has the network of {who}").into())
}
