//! Receives the request of an admitted client.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::admit::{Addresses, Admitted, reset};
use super::connect::Connecting;
use super::guard::Guard;
use super::handshake::{self, Authenticator, Client, ClientClaims, ClientRequest, NoRequest};
use super::linger::lingering_close;
use super::names::request_by_name;
use super::service::Service;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::transparent::{Interception, OwnDial};
use crate::settings::{Kind, Naming};
use spliceway_protocol::address::Target;
use spliceway_protocol::{Failure, Spoken, http};

impl Admitted {
    /// Receives the request, and enters the account of the user. The clients of some services send
    /// no request, because the operator or the firewall knows their target.
    pub(super) async fn receive_request(mut self, port_index: u16, guard: &Guard) -> Result<Connecting, Outcome> {
        let service = Arc::clone(guard.service());
        let mut request = match &service.kind {
            Kind::Forward(targets) => ClientRequest::to_fixed_target(targets.nth(port_index)),
            Kind::Transparent(how, naming) => match original_target(*how, &self.client, &self.addresses, &service) {
                Ok(target) => {
                    self.addresses.reached = Some(target);
                    match naming {
                        Naming::Off => ClientRequest::to_fixed_target(Target::Ip(target)),
                        // Boxed, so that other sessions do not hold the memory of the parsers.
                        naming => Box::pin(request_by_name(&mut self.client, target, *naming, guard)).await?,
                    }
                }
                Err(reason) => return Err(reset(self.client.into_inner(), reason)),
            },
            // Boxed, so that the sessions of a forwarder do not hold the memory of a handshake.
            kind => Box::pin(receive(&mut self.client, kind, &self.addresses, guard)).await?,
        };
        if let Some((start, terminator)) = request.tls_start.take().zip(service.tls.as_ref()) {
            // Boxed, so that other sessions do not hold the memory of this handshake.
            self = Box::pin(self.end_tls(terminator, start, guard)).await?;
        }
        if service.has_users_by_certificate() {
            let facts = guard.session().facts();
            request.user = facts.user.as_ref().map(|user| user.as_bytes().into());
        }
        let Self {
            client,
            is_client_new,
            addresses,
            hops,
        } = self;
        match &service.balancer {
            None => guard.dials(request.request.target.clone()),
            Some(_) => guard.chooses_backend(),
        }
        let mut connecting = Connecting {
            client,
            is_client_new,
            addresses,
            request,
            port_index,
            header: service.send_proxy,
            ahead: 0,
            hops,
            service,
        };
        if let Err(reason) = guard.enter_account() {
            let failure = if reason == Refusal::Quota {
                Failure::NotAllowed
            } else {
                Failure::General
            };
            return Err(connecting.refuse(failure, SessionEnd::Denied(reason).into()).await);
        }
        Ok(connecting)
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

async fn receive(
    client: &mut Client,
    kind: &Kind,
    addresses: &Addresses,
    guard: &Guard,
) -> Result<ClientRequest, Outcome> {
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
        Ok(Ok(request)) => Ok(request),
        Ok(Err(no_request)) => {
            if let NoRequest::Refused { answer, .. } = &no_request {
                lingering_close(client, answer).await;
            }
            Err(no_request.outcome())
        }
        Err(_) => {
            if let Some(target) = silent_target {
                // The client may wait for its server to speak.
                return Ok(ClientRequest::to_fixed_target(target.clone()));
            }
            if is_late {
                lingering_close(client, &http::response(http::Status::RequestTimeout)).await;
            }
            Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into())
        }
    }
}
