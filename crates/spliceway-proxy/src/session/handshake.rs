//! The handshake: reads a client's messages, decides whether the client may make its request, and
//! answers.

use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::client::Client;
use crate::access::auth::{Busy, Penalties, Standing, Users};
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::reach::dial::Destination;
use crate::reach::sni::{Routes, StartTls};
use crate::settings::Kind;
use crate::tls::client::PeerName;
use spliceway_protocol::sniff::{Protocol, Recognized, Sniffed, Sniffer, recognize};
use spliceway_protocol::tls::{self, ClientHello};
use spliceway_protocol::{
    Command, Credentials, Demand, Failure, Proof, Refused, Request, Spoken, http, socks4, socks5,
};

/// The time after which a client should try again if too many other clients were waiting.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// The protocols of a mixed proxy. The first byte identifies them.
const MIXED: [Protocol; 3] = [Protocol::Socks5, Protocol::Socks4, Protocol::Http];

/// A request that the client is allowed to make.
pub(super) struct ClientRequest {
    pub(super) request: Request,
    /// The protocol of the request. `None` if the clients send no request: those of a forwarder,
    /// and TLS clients.
    pub(super) spoken: Option<Spoken>,
    /// The user that the client has proven to be.
    pub(super) user: Option<Box<[u8]>>,
    /// The bytes that the target gets first: the request itself, if it is meant for the target.
    pub(super) head: Vec<u8>,
    /// The part of the client's further bytes that is also for the target. `None` means all of
    /// them.
    pub(super) body: Option<http::Body>,
    /// What an HTTP request means for the connections that it uses.
    pub(super) exchange: Option<http::Exchange>,
    /// The proxies that the request has passed through, including this one, in the form of a `Via`
    /// field.
    pub(super) via: Cow<'static, str>,
    /// The name that the certificate of the target must have. `None` means that it does not speak
    /// TLS.
    pub(super) tls: Option<PeerName>,
    /// The start of TLS that the program ends. `None` means that there is nothing to end.
    pub(super) tls_start: Option<TlsStart>,
    /// Whether the client has asked for TLS in its own protocol. The target is asked, too.
    pub(super) asks_for_tls: bool,
    /// Why the service would refuse the target, which no rule allows, if it did not only learn.
    pub(super) would_deny: Option<Refusal>,
}

/// What is known of a client's handshake of TLS before the program takes part in it.
pub(super) struct TlsStart {
    /// When the client has begun.
    pub(super) began: Instant,
    /// What the client has sent.
    pub(super) head: Vec<u8>,
    /// The protocol to agree on (ALPN), instead of those of the service.
    pub(super) protocol: Option<Box<[u8]>>,
}

impl TlsStart {
    /// Returns the start of a client that has sent nothing.
    pub(super) fn now() -> Self {
        Self {
            began: Instant::now(),
            head: Vec::new(),
            protocol: None,
        }
    }
}

/// The facts that a client has stated about itself so far. The record includes them even if the
/// handshake fails.
#[derive(Default)]
pub(super) struct ClientClaims {
    pub(super) protocol: Option<Spoken>,
    /// The name that the client gave. The name is proven only after the handshake has succeeded.
    pub(super) user: Option<Box<str>>,
    /// The name of a server that a TLS client stated.
    pub(super) server_name: Option<Box<str>>,
    /// Whether a client that may speak TLS has sent nothing.
    pub(super) is_silent: bool,
}

/// The reason why a handshake ended without a request.
pub(super) enum NoRequest {
    /// The proxy refuses the client and sends it this answer.
    Refused {
        reason: Refusal,
        answer: Vec<u8>,
        /// What the client should have done, if the reason does not say it.
        cause: Option<&'static str>,
        /// The HTTP request, if the client may send another one on its connection.
        exchange: Option<http::Exchange>,
    },
    /// The client ended its stream before its request was complete.
    Gone,
    Failed(io::Error),
}

/// Decides whether a client may make a request.
pub(super) struct Authenticator<'a> {
    pub(super) users: Option<&'a Users>,
    pub(super) penalties: &'a Penalties,
    /// The client's address. `None` for a client of a Unix socket.
    pub(super) client: Option<IpAddr>,
    /// The deadline of the handshake.
    pub(super) deadline: Instant,
}

/// The reason to refuse a client that gave a name and a password.
#[derive(Debug, Clone, Copy)]
enum Unproven {
    Wrong,
    /// The client must wait this long.
    Held(Duration),
    Busy,
}

/// Receives the client's request, in a protocol that a service of this kind speaks. If this future
/// is dropped early, the client gets no answer.
pub(super) async fn receive_request(
    client: &mut Client,
    kind: &Kind,
    authenticator: &Authenticator<'_>,
    claims: &mut ClientClaims,
) -> Result<ClientRequest, NoRequest> {
    let spoken = match kind {
        Kind::Forward(target) => return Ok(ClientRequest::to_fixed_target(target.first.clone())),
        Kind::Transparent(..) => unreachable!("the firewall knows the target of these clients"),
        // Boxed, because only this kind needs the memory of a TLS parser.
        Kind::Sni(routes) => return Box::pin(receive_hello(client, routes, claims)).await,
        Kind::Socks5 => Spoken::Socks5,
        // The record and the answer depend on whether the client has sent a byte.
        Kind::Http if client.fill_buf().await?.is_empty() => return Err(NoRequest::Gone),
        Kind::Http => Spoken::Http,
        Kind::Mixed => first_byte(client).await?,
    };
    claims.protocol = Some(spoken);
    match spoken {
        Spoken::Socks5 => receive_socks5(client, authenticator, claims).await,
        Spoken::Socks4 => receive_socks4(client, authenticator).await,
        Spoken::Http => receive_http(client, authenticator, claims).await,
    }
}

async fn first_byte(client: &mut Client) -> Result<Spoken, NoRequest> {
    loop {
        let first = client.fill_buf().await?;
        let protocol = match recognize(first, &MIXED) {
            Recognized::Known(protocol) => protocol.spoken(),
            Recognized::Undecided if first.is_empty() => return Err(NoRequest::Gone),
            // Some clients of HTTP send an empty line before a request.
            Recognized::Undecided if first == b"\r\n" => {
                client.consume(2);
                continue;
            }
            Recognized::Undecided | Recognized::Other => None,
        };
        return protocol.ok_or_else(|| refused(Refusal::UnknownProtocol, Vec::new()));
    }
}

async fn receive_socks5(
    client: &mut Client,
    authenticator: &Authenticator<'_>,
    claims: &mut ClientClaims,
) -> Result<ClientRequest, NoRequest> {
    let mut greeting = socks5::Greeting::new(authenticator.demand());
    let offer = read(client, |input| greeting.feed(input)).await;
    let offer = offer.map_err(|no_request| no_request.of_demand(authenticator.demand()))?;
    client.write_all(&offer.answer()).await?;
    let (agreed, user) = match offer {
        socks5::Offer::Agreed(agreed) => (agreed, None),
        socks5::Offer::Password(mut stage) => {
            let (credentials, undecided) = read(client, |input| stage.feed(input)).await?;
            claims.user = Some(credentials.name_as_text());
            let proof = authenticator.verify(&credentials).await;
            let proof = proof.map_err(|why| refused(why.reason(), why.socks5().to_vec()))?;
            client.write_all(&socks5::Undecided::ACCEPTED).await?;
            (undecided.accept(proof), Some(credentials.name))
        }
    };
    let mut stage = agreed.request();
    let request = read(client, |input| stage.feed(input)).await?;
    Ok(ClientRequest {
        request,
        spoken: Some(Spoken::Socks5),
        user,
        head: Vec::new(),
        body: None,
        exchange: None,
        via: http::first_via().into(),
        tls: None,
        tls_start: None,
        asks_for_tls: false,
        would_deny: None,
    })
}

async fn receive_socks4(client: &mut Client, authenticator: &Authenticator<'_>) -> Result<ClientRequest, NoRequest> {
    let mut stage = socks4::RequestStage::new(authenticator.demand());
    // The user id proves nothing, because a client may send any user id.
    let request = read(client, |input| stage.feed(input)).await;
    let (request, _) = request.map_err(|no_request| no_request.of_demand(authenticator.demand()))?;
    Ok(ClientRequest {
        request,
        spoken: Some(Spoken::Socks4),
        user: None,
        head: Vec::new(),
        body: None,
        exchange: None,
        via: http::first_via().into(),
        tls: None,
        tls_start: None,
        asks_for_tls: false,
        would_deny: None,
    })
}

async fn receive_http(
    client: &mut Client,
    authenticator: &Authenticator<'_>,
    claims: &mut ClientClaims,
) -> Result<ClientRequest, NoRequest> {
    let mut parser = http::Head::new(authenticator.demand());
    let (request, user) = match read(client, |input| parser.feed(input)).await? {
        http::RequestHead::Agreed(request) => (request, None),
        http::RequestHead::Password(unproven) => {
            let Some(credentials) = &unproven.credentials else {
                let challenge = http::response(http::Status::AuthenticationRequired);
                return Err(refused(Refusal::NoPassword, challenge).of_exchange(parser.exchange()));
            };
            claims.user = Some(credentials.name_as_text());
            let proof = authenticator.verify(credentials).await;
            let refused = |why: Unproven| match why {
                Unproven::Wrong => refused(why.reason(), why.http()).of_exchange(parser.exchange()),
                Unproven::Held(_) | Unproven::Busy => refused(why.reason(), why.http()),
            };
            let proof = proof.map_err(refused)?;
            let user = credentials.name.clone();
            (unproven.accept(proof), Some(user))
        }
    };
    let (target, head, body) = match request {
        http::HttpRequest::Connect(target) => (target, Vec::new(), None),
        http::HttpRequest::Forward { target, head, body } => (target, head, Some(body)),
        http::HttpRequest::Answered(answer) => {
            return Err(refused(Refusal::LastRecipient, answer).of_exchange(parser.exchange()));
        }
    };
    Ok(ClientRequest {
        request: Request {
            command: Command::Connect,
            target,
        },
        spoken: Some(Spoken::Http),
        user,
        head,
        body,
        exchange: Some(parser.exchange()),
        via: parser.into_via().into(),
        tls: None,
        tls_start: None,
        asks_for_tls: false,
        would_deny: None,
    })
}

/// Reads what a TLS client states, and chooses its route. The end of its TLS gets the same bytes.
async fn receive_hello(
    client: &mut Client,
    routes: &Routes,
    claims: &mut ClientClaims,
) -> Result<ClientRequest, NoRequest> {
    let began = Instant::now();
    claims.is_silent = true;
    client.fill_buf().await?;
    claims.is_silent = false;
    let (first, asks_for_tls) = first_of_tls(client, routes.starttls()).await?;
    let (chosen, head) = match first {
        Err(_) if asks_for_tls => (Err(tls::Refusal::Missing), Vec::new()),
        Err(bytes) => (routes.choose_without_tls(), bytes),
        Ok(hello) => {
            claims.server_name.clone_from(&hello.name);
            (routes.choose(&hello), hello.bytes)
        }
    };
    let chosen = chosen.map_err(NoRequest::by_parser)?;
    let request = ClientRequest::to_fixed_target(chosen.target.clone());
    if !chosen.ends_tls {
        return Ok(ClientRequest {
            head,
            asks_for_tls,
            ..request
        });
    }
    let tls_start = Some(TlsStart {
        began,
        head,
        protocol: chosen.protocol.map(Into::into),
    });
    Ok(ClientRequest { tls_start, ..request })
}

/// Returns the hello of a client, or the bytes of a client that does not speak TLS, and whether it
/// has asked for TLS before. A client of PostgreSQL asks for GSSAPI at most once.
async fn first_of_tls(
    client: &mut Client,
    starttls: Option<StartTls>,
) -> Result<(Result<ClientHello, Vec<u8>>, bool), NoRequest> {
    let mut protocols: &[Protocol] = match starttls {
        Some(StartTls::Postgres) => &[Protocol::Tls, Protocol::PostgresTls, Protocol::PostgresGssapi],
        None => &[Protocol::Tls],
    };
    let mut asks_for_tls = false;
    loop {
        let mut sniffer = Sniffer::new(protocols);
        let feed = |input: &mut &[u8]| match sniffer.feed(input) {
            Some(Sniffed::Tls(Err(refusal))) => Err(refusal),
            sniffed => Ok(sniffed),
        };
        let answer = match read(client, feed).await? {
            Sniffed::Tls(Ok(hello)) => return Ok((Ok(hello), asks_for_tls)),
            Sniffed::Other(Some(Protocol::PostgresGssapi)) => {
                protocols = &[Protocol::Tls, Protocol::PostgresTls];
                b"N"
            }
            Sniffed::Other(Some(Protocol::PostgresTls)) => {
                asks_for_tls = true;
                protocols = &[Protocol::Tls];
                b"S"
            }
            _ => return Ok((Err(sniffer.into_bytes()), asks_for_tls)),
        };
        if !client.buffer().is_empty() {
            // They would count as part of what TLS protects.
            let reason = tls::Refusal::Malformed.into();
            return Err(NoRequest::Refused {
                reason,
                answer: Vec::new(),
                exchange: None,
                cause: Some("the client has sent more before the answer to its request for encryption"),
            });
        }
        client.write_all(answer).await?;
    }
}

/// Feeds the client's bytes to a parser until the parser has a whole message. The bytes after the
/// message stay in the buffer.
pub(super) async fn read<T, R: Copy + Into<Refusal> + Into<Refused>>(
    client: &mut Client,
    mut feed: impl FnMut(&mut &[u8]) -> Result<Option<T>, R>,
) -> Result<T, NoRequest> {
    loop {
        let received = client.fill_buf().await?;
        if received.is_empty() {
            return Err(NoRequest::Gone);
        }
        let mut left = received;
        let fed = feed(&mut left);
        let taken = received.len() - left.len();
        client.consume(taken);
        if let Some(message) = fed.map_err(NoRequest::by_parser)? {
            return Ok(message);
        }
    }
}

impl Authenticator<'_> {
    fn demand(&self) -> Demand {
        match self.users {
            Some(_) => Demand::Password,
            None => Demand::Nothing,
        }
    }

    /// Checks a name and a password.
    ///
    /// A client with recent failures must wait. During the wait, even the correct password is
    /// refused, unless it was accepted from this address before.
    async fn verify(&self, credentials: &Credentials) -> Result<Proof, Unproven> {
        let Some(users) = self.users else {
            return Err(Unproven::Wrong);
        };
        let again = |client| users.verify_again(credentials, client, Instant::now());
        if let Some(proof) = self.client.and_then(again) {
            return Ok(proof);
        }
        let _turn = self.penalties.turn(self.client).await.ok_or(Unproven::Busy)?;
        let now = Instant::now();
        if let Some(wait) = self.client.and_then(|client| self.penalties.wait(client, now)) {
            return Err(Unproven::Held(wait));
        }
        let has_failed = |client| self.penalties.has_failed(client, now) && !users.has_passed_from(client);
        let standing = if self.client.is_some_and(has_failed) {
            Standing::Failed
        } else {
            Standing::Good
        };
        match users.verify(credentials, self.client, standing, self.deadline).await {
            Ok(Some(proof)) => Ok(proof),
            Ok(None) => {
                if let Some(client) = self.client {
                    self.penalties.failed(client, Instant::now());
                }
                Err(Unproven::Wrong)
            }
            Err(Busy) => {
                if let Some(client) = self.client {
                    self.penalties.turned_away(client, Instant::now());
                }
                Err(Unproven::Busy)
            }
        }
    }
}

impl Unproven {
    fn reason(self) -> Refusal {
        match self {
            Self::Wrong => Refusal::WrongPassword,
            Self::Held(_) => Refusal::AuthPenalty,
            Self::Busy => Refusal::AuthBusy,
        }
    }

    fn socks5(self) -> [u8; 2] {
        match self {
            Self::Wrong => socks5::Undecided::REFUSED,
            Self::Held(_) => socks5::Undecided::WAIT,
            Self::Busy => socks5::Undecided::BUSY,
        }
    }

    fn http(self) -> Vec<u8> {
        match self {
            Self::Wrong => http::wrong_password(),
            Self::Held(wait) => http::come_again(http::Status::TooManyRequests, wait),
            Self::Busy => http::come_again(http::Status::Unavailable, BUSY_FOR),
        }
    }
}

impl ClientRequest {
    /// Returns the implied request of a client whose target the operator has named.
    pub(super) fn to_fixed_target(to: impl Into<Destination>) -> Self {
        let Destination { target, tls } = to.into();
        Self {
            tls,
            tls_start: None,
            asks_for_tls: false,
            would_deny: None,
            request: Request {
                command: Command::Connect,
                target,
            },
            spoken: None,
            user: None,
            head: Vec::new(),
            body: None,
            exchange: None,
            via: http::first_via().into(),
        }
    }

    /// Returns the answer for a client whose request has succeeded. Only SOCKS answers contain
    /// `bound`. The answer is empty if the target itself will answer.
    pub(super) fn succeeded(&self, bound: impl FnOnce() -> SocketAddr) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::succeeded(bound()),
            Some(Spoken::Socks4) => socks4::succeeded(bound()).to_vec(),
            Some(Spoken::Http) if self.body.is_none() => http::ESTABLISHED.to_vec(),
            Some(Spoken::Http) | None => Vec::new(),
        }
    }

    /// Returns the answer for a client whose command this service does not support.
    pub(super) fn unsupported(&self) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::Refusal::Command.answer(),
            _ => self.failed(Failure::General),
        }
    }

    /// Returns the answer for a client whose target was not reached.
    pub(super) fn failed(&self, failure: Failure) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::failed(failure),
            Some(Spoken::Socks4) => socks4::failed(failure).to_vec(),
            Some(Spoken::Http) => http::failed(failure),
            None => Vec::new(),
        }
    }
}

fn refused(reason: Refusal, answer: Vec<u8>) -> NoRequest {
    NoRequest::Refused {
        reason,
        answer,
        cause: None,
        exchange: None,
    }
}

impl NoRequest {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { reason, cause, .. } => Outcome {
                end: SessionEnd::Denied(*reason),
                cause: cause.map(Into::into),
            },
            Self::Gone => SessionEnd::ClientEof.into(),
            Self::Failed(error) => Outcome::because(SessionEnd::ResetByClient, error),
        }
    }

    /// Lets the client send another request on its connection, if it wants to.
    fn of_exchange(mut self, request: http::Exchange) -> Self {
        if let Self::Refused { exchange, .. } = &mut self {
            *exchange = Some(request);
        }
        self
    }

    /// Adds why a method to log in is refused by a service with this demand.
    fn of_demand(mut self, demand: Demand) -> Self {
        if let Self::Refused { reason, cause, .. } = &mut self {
            *cause = match (reason, demand) {
                (Refusal::Socks5(socks5::Refusal::Method), Demand::Password) => {
                    Some("the client offers no password, and this service needs one")
                }
                (Refusal::Socks5(socks5::Refusal::Method), Demand::Nothing) => {
                    Some("the client does not offer to come without a password, and this service has no users")
                }
                (Refusal::Socks4(socks4::Refusal::Method), _) => {
                    Some("SOCKS4 has no passwords, and this service needs one: use SOCKS5")
                }
                _ => return self,
            };
        }
        self
    }

    fn by_parser(refusal: impl Copy + Into<Refusal> + Into<Refused>) -> Self {
        let Refused { answer, .. } = refusal.into();
        refused(refusal.into(), answer)
    }
}

impl From<io::Error> for NoRequest {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}
