//! Receives the request of an admitted client.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::admit::{Addresses, Admitted, reset};
use super::client::Client;
use super::connect::Connecting;
use super::guard::Guard;
use super::handshake::{self, Authenticator, ClientClaims, ClientRequest, NoRequest};
use super::kept::Kept;
use super::linger::lingering_close;
use super::names::request_by_name;
use super::next_request::{Ended, send_and_stay};
use super::service::Service;
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::transparent::{Interception, OwnDial};
use crate::settings::{Kind, Naming};
use spliceway_protocol::address::Target;
use spliceway_protocol::http::{self, Remaining, Reuse};
use spliceway_protocol::{Failure, Spoken};

impl Admitted {
    /// Receives the request, and enters the account of the user. The clients of some services send
    /// no request, because the operator or the firewall knows their target.
    pub(super) async fn receive_request(mut self, port_index: u16, guard: &Guard) -> Result<Connecting, Ended> {
        let service = Arc::clone(guard.service());
        let mut request = match &service.kind {
            Kind::Forward(targets) => ClientRequest::to_fixed_target(targets.nth(port_index)),
            Kind::Transparent(how, naming) => match original_target(*how, &self.client, &self.addresses, &service) {
                Ok(target) => self.redirected_to(target, *naming, guard).await?,
                Err(reason) => return Err(reset(self.client.into_inner(), reason).into()),
            },
            kind => {
                // A further request is one of HTTP, like those before.
                let kind = self.kept.as_ref().map_or(kind, |_| &Kind::Http);
                // Boxed, so that the sessions of a forwarder do not hold the memory of a handshake.
                match Box::pin(self.receive(kind, guard)).await {
                    Ok(request) => request,
                    Err((outcome, unread)) => {
                        let kept = unread.map(|unread| self.keep(unread));
                        return Err(Ended { outcome, kept });
                    }
                }
            }
        };
        if let Some((start, terminator)) = request.tls_start.take().zip(service.tls.as_ref()) {
            // Boxed, so that other sessions do not hold the memory of this handshake.
            self = Box::pin(self.end_tls(terminator, start, guard)).await?;
        }
        if service.knows_users() {
            let facts = guard.session().facts();
            request.user = facts.user.as_ref().map(|user| user.as_bytes().into());
        }
        let Self {
            client,
            is_client_new,
            addresses,
            hops,
            kept,
        } = self;
        match &service.balancer {
            None => guard.dials(request.request.target.clone()),
            Some(_) => guard.chooses_backend(),
        }
        if let Some(exchange) = &mut request.exchange
            && !(guard.may_keep() && kept.as_ref().is_none_or(|kept| kept.may_go_on()))
        {
            exchange.reuse = Reuse::Close;
        }
        let mut connecting = Connecting {
            client,
            is_client_new,
            addresses,
            request,
            port_index,
            header: service.send_proxy,
            ahead: 0,
            rates: SessionRates::default(),
            charged: 0,
            hops,
            kept,
            unread: None,
            answer: None,
            service,
        };
        if let Err(reason) = guard.enter_account() {
            let failure = if reason == Refusal::Quota {
                Failure::NotAllowed
            } else {
                Failure::General
            };
            let outcome = connecting.refuse(failure, SessionEnd::Denied(reason).into()).await;
            return Err(connecting.into_ended(outcome));
        }
        Ok(connecting)
    }

    /// Returns the request of a client that has dialled this target.
    async fn redirected_to(
        &mut self,
        target: SocketAddr,
        naming: Naming,
        guard: &Guard,
    ) -> Result<ClientRequest, Outcome> {
        self.addresses.reached = Some(target);
        match naming {
            Naming::Off => Ok(ClientRequest::to_fixed_target(Target::Ip(target))),
            // Boxed, so that other sessions do not hold the memory of the parsers.
            naming => Box::pin(request_by_name(&mut self.client, target, naming, guard)).await,
        }
    }

    /// Receives the request. With an error, returns the part of the body that must be read if the
    /// client may send another request.
    async fn receive(&mut self, kind: &Kind, guard: &Guard) -> Result<ClientRequest, (Outcome, Option<Remaining>)> {
        let Self {
            client,
            addresses,
            kept,
            ..
        } = self;
        let no_request = match receive(client, kind, addresses, guard).await {
            Ok(Ok(request)) => return Ok(request),
            Ok(Err(no_request)) => no_request,
            Err(outcome) => return Err((outcome, None)),
        };
        let mut unread = None;
        if let NoRequest::Refused { answer, exchange, .. } = &no_request {
            let limit = guard.service().settings.timeouts.handshake;
            // What follows CONNECT already is of its tunnel, and no request.
            let is_clear = |exchange: &http::Exchange| !exchange.is_connect || client.buffer().is_empty();
            let exchange = exchange.filter(|exchange| guard.may_keep() && is_clear(exchange));
            unread = exchange.and_then(|exchange| kept.as_deref().unwrap_or(&Kept::default()).unread_body(&exchange));
            let is_head = exchange.is_some_and(|exchange| exchange.is_head);
            if unread.is_none() {
                lingering_close(client, answer).await;
            } else if !send_and_stay(client, &http::kept(answer, is_head), limit).await {
                unread = None;
            }
        }
        Err((no_request.outcome(), unread))
    }
}

/// Returns the target of a redirected client, or the reason to refuse the client.
fn original_target(
    how: Interception,
    client: &Client,
    addresses: &Addresses,
    service: &Service,
) -> Result<SocketAddr, Refusal> {
    let target = how.target(client.get_ref()).ok_or(Refusal::NotRedirected)?;
    let is_own = addresses.client.is_some_and(|client| OwnDial::is_from(client, target));
    if is_own || service.dialer.is_own_listener(target) {
        return Err(Refusal::Loop);
    }
    Ok(target)
}

/// Receives the request in time.
async fn receive(
    client: &mut Client,
    kind: &Kind,
    addresses: &Addresses,
    guard: &Guard,
) -> Result<Result<ClientRequest, NoRequest>, Outcome> {
    let service = guard.service();
    let authenticator = Authenticator {
        users: service.users.as_deref(),
        penalties: &service.penalties,
        client: addresses.client.map(|client| client.ip()),
        deadline: Instant::now() + service.settings.timeouts.handshake,
    };
    let mut claims = ClientClaims::default();
    let request = timeout(
        service.settings.timeouts.handshake,
        handshake::receive_request(client, kind, &authenticator, &mut claims),
    )
    .await;
    // A client that has not sent a byte gets no 408. It may be about to send its first request and
    // would mistake the 408 for the answer. A client that has named its user gets no 408 either. It
    // has sent its whole head and was waiting for the proxy.
    let is_late = claims.protocol == Some(Spoken::Http) && claims.user.is_none();
    let silent_target = match kind {
        Kind::Sni(routes) if claims.is_silent => routes.silent_target(),
        _ => None,
    };
    // The record has them whether or not the client is served.
    guard.set_claims(claims);
    match request {
        Ok(received) => Ok(received),
        Err(_) => {
            if let Some(target) = silent_target {
                // The client may wait for its server to speak.
                return Ok(Ok(ClientRequest::to_fixed_target(target.clone())));
            }
            if is_late {
                lingering_close(client, &http::response(http::Status::RequestTimeout)).await;
            }
            Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into())
        }
    }
}
