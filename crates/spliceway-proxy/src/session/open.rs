//! Opens a session: turns an accepted connection into the relay or association that its client
//! asked for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use spliceway::RateLimit;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::arrival::{self, Addresses};
use super::departure::{Finish, departed};
use super::destinations::ClientDestinations;
use super::exchange::{self, NoAnswer, Patience};
use super::udp::associate::{self, Associated};
use super::{Begin, Ends, Opened, RemainingBody};
use crate::access::admission::{ClientKey, Dial, Permit};
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::hops::Hops;
use crate::net::listener::{self, Accepted};
use crate::net::stream::Stream;
use crate::net::transparent::{Interception, OwnDial};
use crate::reach::dial::{DialError, DialRequest, Dialed, Passage};
use crate::session::bind::{AcceptError, Binding, Expected};
use crate::session::handshake::{self, Authenticator, Client, ClientRequest, Heard, NoRequest};
use crate::session::record::Record;
use crate::session::service::Service;
use crate::settings::Kind;
use spliceway_protocol::address::Target;
use spliceway_protocol::http::{self, Body, Chunks, Malformed};
use spliceway_protocol::socks5::UNSPECIFIED;
use spliceway_protocol::{Command, Failure, Spoken, proxy};

/// The size of the handshake's buffer. It has room for the longest SOCKS message (520 bytes), most
/// HTTP heads, and some early data. Further early data waits in the socket.
const HANDSHAKE_BUFFER_BYTES: usize = 1024;
/// The longest time for which the proxy reads from a refused client. Without these reads, closing
/// the connection could discard the answer.
const LINGER: Duration = Duration::from_secs(1);
/// The most bytes that the proxy reads from a refused client.
const LINGER_MAX_BYTES: u64 = 64 << 10;

/// Opens a session: a connection becomes both ends of a relay, or an association. If this future is
/// dropped early, the client gets no answer.
pub(super) async fn open(
    accepted: Accepted,
    port_index: u16,
    permit: &mut Permit,
    record: &mut Record,
) -> Result<Opened, Outcome> {
    let service = Arc::clone(record.service());
    if arrival::is_stranger(&accepted, &service) {
        listener::reset(accepted.stream);
        return Err(SessionEnd::Denied(Refusal::Client).into());
    }
    let mut addresses = Addresses::of(&accepted, &service);
    let mut hops = Hops::behind(&accepted.stream, accepted.peer);
    if hops.are_far() && service.is_only_for_this_machine {
        listener::reset(accepted.stream);
        return Err(SessionEnd::Denied(Refusal::Client).into());
    }
    hops.begin(!service.is_private && !service.clients.names_who_may());
    let mut client = Client::with_capacity(HANDSHAKE_BUFFER_BYTES, accepted.stream);
    if let Some(accept) = &service.accept_proxy {
        addresses = arrival::introduce(&mut client, accept, addresses, &service).await?;
        if let Some(client) = addresses.client {
            record.introduced(client);
        }
    }
    if let Some(reason) = arrival::refusal(&addresses, permit, &service) {
        listener::reset(client.into_inner());
        return Err(SessionEnd::Denied(reason).into());
    }
    let request = match &service.kind {
        Kind::Forward(targets) => ClientRequest::to_fixed_target(targets.nth(port_index)),
        Kind::Transparent(how) => match original_target(*how, &client, &addresses, &service) {
            Ok(target) => {
                addresses.reached = Some(target);
                ClientRequest::to_fixed_target(Target::Ip(target))
            }
            Err(reason) => {
                listener::reset(client.into_inner());
                return Err(SessionEnd::Denied(reason).into());
            }
        },
        kind => ask(&mut client, kind, &addresses, &service, record).await?,
    };
    match &service.balancer {
        None => record.requested(&request),
        Some(_) => record.waits_for_backend(),
    }
    let mut opening = Opening {
        client,
        addresses,
        request,
        port_index,
        introduced: false,
        ahead: 0,
        hops,
        service,
    };
    if let Err(reason) = record.enter_account() {
        let failure = match reason {
            Refusal::Quota => Failure::NotAllowed,
            _ => Failure::General,
        };
        return Err(opening.refuse(failure, SessionEnd::Denied(reason).into()).await);
    }
    // Boxed, so that a handshake does not hold the memory of a dial.
    Box::pin(opening.carry_out(permit, record)).await
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

async fn ask(
    client: &mut Client,
    kind: &Kind,
    addresses: &Addresses,
    service: &Service,
    record: &mut Record,
) -> Result<ClientRequest, Outcome> {
    let authenticator = Authenticator {
        users: service.users.as_deref(),
        penalties: &service.penalties,
        client: addresses.client.map(|client| client.ip()),
        deadline: Instant::now() + service.timeouts.handshake,
    };
    let mut heard = Heard::default();
    let request = timeout(
        service.timeouts.handshake,
        handshake::receive_request(client, kind, &authenticator, &mut heard),
    )
    .await;
    // A client that has not sent a byte gets no 408. It may be about to send its first request and
    // would mistake the 408 for the answer. A client that has named its user gets no 408 either. It
    // has sent its whole head and was waiting for the proxy.
    let is_late = heard.protocol == Some(Spoken::Http) && heard.user.is_none();
    let silent_target = match kind {
        Kind::Sni(routes) if heard.is_silent => routes.silent_target(),
        _ => None,
    };
    record.heard(heard);
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

/// A client whose request is known.
pub(super) struct Opening {
    pub(super) client: Client,
    addresses: Addresses,
    pub(super) request: ClientRequest,
    /// The position of the listener's port in the port range.
    pub(super) port_index: u16,
    /// Whether the target has already received the introduction.
    introduced: bool,
    /// The number of bytes that the target has received before the relay starts.
    ahead: u64,
    /// The services of this program that the client has passed.
    hops: Hops,
    pub(super) service: Arc<Service>,
}

impl Opening {
    /// Does what the client asks for.
    async fn carry_out(mut self, permit: &mut Permit, record: &mut Record) -> Result<Opened, Outcome> {
        match self.request.request.command {
            Command::Connect => {
                let mut dialed = match self.service.balancer.clone() {
                    None => self.connect(record).await?,
                    Some(balancer) => Box::pin(self.connect_to_backend(&balancer, record)).await?,
                };
                if self.is_whole() {
                    self.exchange(&mut dialed, record).await?;
                }
                self.ends(dialed, record).await.map(Opened::Relay)
            }
            Command::Bind => {
                let dialed = self.bind(record).await?;
                self.ends(dialed, record).await.map(Opened::Relay)
            }
            // An association has up to four descriptors, as two sessions do, and ports.
            Command::Associate if !permit.widen() => {
                let end = SessionEnd::Denied(Refusal::Sessions);
                Err(self.refuse(Failure::General, end.into()).await)
            }
            Command::Associate => self.associate(record).await,
        }
    }

    async fn connect(&mut self, record: &mut Record) -> Result<Dialed, Outcome> {
        let service = Arc::clone(&self.service);
        let _dial = self.dial_of(&service).await?;
        let started = Instant::now();
        let dialed = tokio::select! {
            biased;
            dialed = self.dial(&service) => dialed,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        let mut dialed = match dialed {
            Ok(dialed) => dialed,
            Err(error) => return Err(self.refuse(error.failure(), error.into()).await),
        };
        record.connected(dialed.address, started.elapsed());
        record.keep(dialed.own.take());
        if let Some(proxy) = dialed.proxy.take() {
            self.request.head = proxy.request_head(&self.request.head).unwrap_or_default();
        }
        let bound = || dialed.stream.local_addr().unwrap_or(UNSPECIFIED);
        self.answer(&self.request.succeeded(bound)).await?;
        Ok(dialed)
    }

    async fn dial(&self, service: &Service) -> Result<Dialed, DialError> {
        let dialer = service.dialer_of(self.request.user.as_deref());
        dialer.dial_for(&self.request.request.target, self.dial_request()).await
    }

    pub(super) fn dial_request(&self) -> DialRequest<'_> {
        DialRequest {
            // A proxy passes no upgrade on, so a client that asks for one gets a tunnel.
            passage: match self.request.body {
                Some(Body::Bytes(_) | Body::Chunked) => Passage::Request,
                Some(Body::Upgrade) | None => Passage::Tunnel,
            },
            client: self.client_ip(),
            via: &self.request.via,
            hops: self.hops,
        }
    }

    pub(super) fn client_ip(&self) -> Option<IpAddr> {
        self.addresses.client.map(|client| client.ip())
    }

    pub(super) fn client_key(&self) -> Option<ClientKey> {
        self.client_ip().map(ClientKey::from)
    }

    fn is_transparent(&self) -> bool {
        matches!(self.service.kind, Kind::Transparent(_))
    }

    /// Counts a dial for this client. A forwarder's clients and clients without an address are not
    /// counted.
    async fn dial_of<'a>(&mut self, service: &'a Service) -> Result<Option<Dial<'a>>, Outcome> {
        let chooses_target = self.request.spoken.is_some() || self.is_transparent();
        let Some(client) = self.client_ip().filter(|_| chooses_target) else {
            return Ok(None);
        };
        match service.dials.begin(client) {
            Some(dial) => Ok(Some(dial)),
            None => Err(self
                .refuse(Failure::General, SessionEnd::Denied(Refusal::DialsOfClient).into())
                .await),
        }
    }

    /// Returns what EOF from the client means while its target is being dialled.
    pub(super) fn finish(&self) -> Finish {
        match self.request.spoken {
            Some(_) if !self.is_whole() => Finish::Leaves,
            _ => Finish::Waits,
        }
    }

    /// Returns whether the client has sent a request without a body.
    fn is_whole(&self) -> bool {
        matches!(self.request.body, Some(Body::Bytes(0) | Body::Upgrade))
    }

    /// Accepts one connection from a target (BIND). The client gets two answers: one when the
    /// target can connect, and one when it has connected.
    async fn bind(&mut self, record: &mut Record) -> Result<Dialed, Outcome> {
        let service = Arc::clone(&self.service);
        let _dial = self.dial_of(&service).await?;
        let reached = self.reached_directly().await?;
        let destinations = ClientDestinations {
            dialer: service.dialer_of(self.request.user.as_deref()).clone(),
            client: self.client_key(),
        };
        let expected = tokio::select! {
            biased;
            expected = Expected::new(&self.request.request.target, &destinations) => expected,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        let expected = match expected {
            Ok(expected) => expected,
            Err(error) => return Err(self.refuse(error.failure(), error.into()).await),
        };
        let binding = match Binding::listen(reached, self.service.advertise) {
            Ok(binding) => binding,
            Err(error) => return Err(self.out_of_sockets(&error).await),
        };
        self.answer(&self.request.succeeded(|| binding.address())).await?;
        let limit = self.service.timeouts.connect;
        let started = Instant::now();
        let accepted = tokio::select! {
            biased;
            accepted = binding.accept(&expected, &destinations, limit) => accepted,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        match accepted {
            Ok((stream, peer)) => {
                record.connected(Some(peer), started.elapsed());
                self.answer(&self.request.succeeded(|| peer)).await?;
                Ok(Dialed {
                    stream: stream.into(),
                    early: Vec::new(),
                    address: Some(peer),
                    own: None,
                    proxy: None,
                })
            }
            Err(AcceptError::TimedOut) => Err(self
                .refuse(Failure::TimedOut, SessionEnd::ConnectFailed("ETIMEDOUT").into())
                .await),
            Err(AcceptError::Listener(error)) => Err(self.out_of_sockets(&error).await),
        }
    }

    async fn associate(mut self, record: &Record) -> Result<Opened, Outcome> {
        let reached = self.reached_directly().await?;
        // Only TCP clients get here, and they have an address.
        let from = self.addresses.client.unwrap_or(UNSPECIFIED);
        let rates = record.user_rates(self.service.rates.of_session(self.client_ip()));
        let association = match associate::bind(&self.service, reached, from, &self.request, rates) {
            Ok(association) => association,
            Err(error) => return Err(self.out_of_sockets(&error).await),
        };
        self.answer(&self.request.succeeded(|| association.address())).await?;
        Ok(Opened::Association(Box::new(Associated {
            client: self.client,
            association,
        })))
    }

    /// Returns the address at which the client reached the proxy. The socket for the client's peers
    /// or datagrams is bound to this address.
    ///
    /// Refuses a client that comes through a load balancer, or whose targets are reached through
    /// upstream proxies.
    async fn reached_directly(&mut self) -> Result<SocketAddr, Outcome> {
        let reached = self.client.get_ref().local_addr();
        match reached.filter(|_| !self.service.dialer.has_upstreams() && self.service.accept_proxy.is_none()) {
            Some(reached) => Ok(reached),
            None => {
                lingering_close(&mut self.client, &self.request.unsupported()).await;
                Err(SessionEnd::Denied(Refusal::Command).into())
            }
        }
    }

    async fn out_of_sockets(&mut self, error: &io::Error) -> Outcome {
        let end = SessionEnd::ConnectFailed(crate::kit::errno::name(error));
        self.refuse(Failure::General, Outcome::because(end, error)).await
    }

    async fn refuse(&mut self, failure: Failure, outcome: Outcome) -> Outcome {
        if self.request.spoken.is_some() {
            lingering_close(&mut self.client, &self.request.failed(failure)).await;
        } else if self.is_transparent()
            && let Stream::Tcp(client) = self.client.get_ref()
        {
            // The client believes that it has reached its target. A reset says that it has not, and
            // an end of stream would look like an answer. If this call fails, that is what it gets.
            let _ = client.set_zero_linger();
        }
        outcome
    }

    /// Sends an answer to the client. A client that does not receive it within the handshake
    /// timeout is treated like a client that sends no request.
    async fn answer(&mut self, answer: &[u8]) -> Result<(), Outcome> {
        match timeout(self.service.timeouts.handshake, self.client.write_all(answer)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Outcome::because(SessionEnd::ResetByClient, &error)),
            Err(_) => Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into()),
        }
    }

    /// Sends a request and reads the head of its answer. The rewritten head announces to the client
    /// that this request was the last one on its connection.
    async fn exchange(&mut self, dialed: &mut Dialed, record: &mut Record) -> Result<(), Outcome> {
        let introduction = self.introduction();
        let patience = Patience {
            idle: self.service.timeouts.idle,
            half_closed: self.service.timeouts.half_close,
        };
        let wants_upgrade = self.request.body == Some(Body::Upgrade);
        let sent = |bytes| record.sent_ahead(bytes);
        match exchange::exchange(&introduction, sent, wants_upgrade, dialed, &mut self.client, patience).await {
            Ok(answer) => {
                self.ahead = introduction.len() as u64;
                dialed.early = answer.bytes;
                if answer.has_switched {
                    // From now on, all bytes from the client are for the target.
                    self.request.body = None;
                }
                Ok(())
            }
            Err(NoAnswer::Left(left)) => Err(left),
            Err(NoAnswer::Client(error)) => Err(Outcome::because(SessionEnd::ResetByClient, &error)),
            Err(NoAnswer::Target(error)) => Err(self
                .refuse(Failure::General, Outcome::because(SessionEnd::ResetByUpstream, &error))
                .await),
            Err(NoAnswer::Eof) => Err(self.refuse(Failure::General, SessionEnd::UpstreamEof.into()).await),
            Err(NoAnswer::HalfClosed) => Err(SessionEnd::HalfCloseTimeout.into()),
            Err(NoAnswer::Idle) => Err(self.refuse(Failure::TimedOut, SessionEnd::Idle.into()).await),
        }
    }

    /// Returns the first bytes for the target: a PROXY header, if the service sends one, and the
    /// request, if it is meant for the target. A second call returns no bytes.
    fn introduction(&mut self) -> Vec<u8> {
        let Addresses { client, reached, tlvs } = &self.addresses;
        let version = self.service.send_proxy.filter(|_| !self.introduced);
        self.introduced = true;
        let mut said = version.map_or_else(Vec::new, |version| proxy::encode(version, *client, *reached, tlvs));
        said.append(&mut self.request.head);
        said
    }

    async fn ends(mut self, dialed: Dialed, record: &Record) -> Result<Ends, Outcome> {
        let mut up = self.introduction();
        let early = self.client.buffer();
        let mut rest = self.request.body.map(|body| match body {
            Body::Bytes(0) | Body::Upgrade => RemainingBody::Nothing,
            Body::Bytes(bytes) => RemainingBody::Bytes(bytes),
            Body::Chunked => RemainingBody::Chunks(Chunks::default()),
        });
        let here = match &mut rest {
            None => early.len(),
            Some(rest) => match rest.take(early) {
                Ok(here) => here,
                Err(Malformed) => {
                    lingering_close(&mut self.client, &http::no_chunks()).await;
                    return Err(SessionEnd::Denied(Refusal::NotChunked).into());
                }
            },
        };
        up.extend_from_slice(&early[..here]);
        let rates = self
            .service
            .rates
            .of_session(self.addresses.client.map(|client| client.ip()));
        let rates = record.user_rates(rates);
        // Many sessions consist only of requests and answer heads, so these bytes count, too.
        charge(&rates.incoming, up.len() as u64 + self.ahead);
        charge(&rates.outgoing, dialed.early.len() as u64);
        Ok(Ends {
            rates,
            client: self.client.into_inner(),
            upstream: dialed.stream,
            begin: Begin::New {
                up,
                rest,
                down: dialed.early,
            },
        })
    }
}

fn charge(rate: &Option<RateLimit>, bytes: u64) {
    if let Some(rate) = rate {
        rate.charge(bytes);
    }
}

/// Sends an answer and closes the connection in such a way that the answer arrives. A socket that
/// is closed with unread bytes sends a reset, which discards the answer.
async fn lingering_close(client: &mut Client, answer: &[u8]) {
    let lingering_close = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        tokio::io::copy_buf(&mut client.take(LINGER_MAX_BYTES), &mut tokio::io::sink()).await
    };
    // The proxy cannot know whether the answer arrived.
    let _ = timeout(LINGER, lingering_close).await;
}

impl NoRequest {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { reason, .. } => SessionEnd::Denied(*reason).into(),
            Self::Gone => SessionEnd::ClientEof.into(),
            Self::Failed(error) => Outcome::because(SessionEnd::ResetByClient, error),
        }
    }
}
