//! Decides where a redirected client goes by the name of the server that it states.
//!
//! ```text
//!   first bytes ─┬─ a name that a rule allows ──▶ an address of the name, on the client's port
//!                ├─ an address that a rule has ─▶ the address that the client has dialled
//!                └─ anything else ──────────────▶ refused, or recorded by a service that learns
//! ```
//!
//! The program looks the name up, so a client cannot reach an address by the name of another
//! server. It looks up only names that a rule allows, because a lookup tells the name to others.
//!
//! A client of plain HTTP has one request for each connection, in the form that this program sends
//! to servers. If its bytes passed unchanged, its second request could name another server, and
//! be a CONNECT that an allowed server serves.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncBufReadExt;
use tokio::time::timeout;

use super::client::Client;
use super::guard::Guard;
use super::handshake::{ClientClaims, ClientRequest};
use super::linger::lingering_close;
use crate::access::policy::TargetPolicy;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::stream::Stream;
use crate::settings::Naming;
use spliceway_protocol::address::Target;
use spliceway_protocol::http::{self, Body, Exchange, HttpRequest};
use spliceway_protocol::rule::canonical_name;
use spliceway_protocol::sniff::{Protocol, Sniffed, Sniffer};
use spliceway_protocol::tls::{self, ClientHello};
use spliceway_protocol::{Failure, Spoken};

/// What a client has stated, and its first bytes.
struct Stated {
    /// The name in the form of rules. An address is no name.
    name: Option<Box<str>>,
    /// Why there is no name, for the record.
    why_nameless: &'static str,
    /// The bytes as the client has sent them. More may wait in the buffer of the client.
    bytes: Vec<u8>,
    /// The request for a server, if the client has sent one.
    request: Option<(Vec<u8>, Body, Option<Exchange>)>,
    /// What the client gets if it is refused. It is empty for a client that gets a reset.
    answer: Vec<u8>,
}

/// Where a client goes.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// To the server that it has named.
    Named(Target),
    /// To the address that it has dialled.
    Dialled,
    /// Nowhere, because no rule allows it. A service that learns allows it.
    Unlisted {
        target: Target,
        reason: Refusal,
        cause: String,
    },
    /// Nowhere, because a rule refuses the name.
    Denied { target: Target, cause: String },
}

/// Returns the request that a redirected client implies: for the server that it names, or for the
/// address that it has dialled.
pub(super) async fn request_by_name(
    client: &mut Client,
    dialled: SocketAddr,
    naming: Naming,
    guard: &Guard,
) -> Result<ClientRequest, Outcome> {
    let user = guard.session().facts().user.clone();
    let policy = guard
        .service()
        .dialer_of(user.as_ref().map(|user| user.as_bytes()))
        .policy();
    if naming == Naming::On && policy.lists(dialled) && !policy.refuses_names() {
        // No name can change the decision. A server that speaks first needs not wait.
        return Ok(ClientRequest::to_fixed_target(Target::Ip(dialled)));
    }
    let stated = Stated::read(client, guard).await?;
    let (target, reason, cause) = match decide(policy, &stated, dialled, naming) {
        Decision::Named(target) => return Ok(stated.request_for(target)),
        Decision::Dialled => return Ok(stated.request_for(Target::Ip(dialled))),
        Decision::Unlisted { target, reason, .. } if naming == Naming::Learning => {
            guard.session().facts().would_deny = Some(reason);
            return Ok(ClientRequest {
                would_deny: Some(reason),
                ..stated.request_for(target)
            });
        }
        Decision::Unlisted { target, reason, cause } => (target, reason, cause),
        Decision::Denied { target, cause } => (target, Refusal::TargetRule, cause),
    };
    guard.dials(target);
    if !stated.answer.is_empty() {
        lingering_close(client, &stated.answer).await;
    } else if let Stream::Tcp(client) = client.get_ref() {
        // As for a client whose target cannot be reached.
        let _ = client.set_zero_linger();
    }
    Err(Outcome::because(SessionEnd::Denied(reason), &cause))
}

/// Decides by the rules. A rule that refuses the name wins against one that allows the address. For
/// a service that learns, a missing allow list is an empty one.
fn decide(policy: &TargetPolicy, stated: &Stated, dialled: SocketAddr, naming: Naming) -> Decision {
    let Some(name) = &stated.name else {
        if policy.lists(dialled) {
            return Decision::Dialled;
        }
        return Decision::Unlisted {
            target: Target::Ip(dialled),
            reason: Refusal::NameMissing,
            cause: format!("{}, and no rule allows {dialled}", stated.why_nameless),
        };
    };
    let port = dialled.port();
    let target = Target::Name(name.clone(), port);
    match policy.allows_name(name, port) {
        Ok(true) if naming == Naming::On || policy.has_allow_list() => Decision::Named(target),
        Ok(_) if policy.lists(dialled) => Decision::Dialled,
        Ok(_) => Decision::Unlisted {
            cause: format!("no rule allows {target}, or the address {dialled} that the client has dialled"),
            reason: Refusal::TargetRule,
            target,
        },
        Err(denied) => Decision::Denied {
            cause: format!("{target} is {denied}; the client has dialled {dialled}"),
            target,
        },
    }
}

impl Stated {
    /// Reads the first bytes of a client, within the handshake timeout, and adds what it states to
    /// the record.
    async fn read(client: &mut Client, guard: &Guard) -> Result<Self, Outcome> {
        let mut sniffer = Sniffer::new(&Protocol::ALL);
        let limit = guard.service().settings.timeouts.handshake;
        let sniffed = timeout(limit, sniff(client, &mut sniffer)).await;
        let has_ended = sniffed.is_ok();
        let sniffed = sniffed.unwrap_or(Ok(None));
        let sniffed = sniffed.map_err(|error| Outcome::because(SessionEnd::ResetByClient, &error))?;
        let mut claims = ClientClaims::default();
        let stated = match sniffed {
            Some(Sniffed::Tls(Ok(hello))) => {
                claims.server_name.clone_from(&hello.name);
                Self::of_tls(hello)
            }
            Some(Sniffed::Tls(Err(refusal))) => {
                Self::nameless(problem_of_tls(refusal), sniffer.into_bytes()).answered(refusal.answer())
            }
            Some(Sniffed::Http(request)) => {
                claims.protocol = Some(Spoken::Http);
                let exchange = sniffer.exchange();
                Self::of_http(request, exchange, sniffer.into_bytes())
            }
            Some(Sniffed::Other(protocol)) => Self::nameless(without_name(protocol), sniffer.into_bytes()),
            None => {
                let bytes = sniffer.into_bytes();
                if bytes.is_empty() && has_ended {
                    return Err(SessionEnd::ClientEof.into());
                }
                let why = if has_ended {
                    "the client has ended its stream before it stated a name"
                } else {
                    "the client has stated no name in time"
                };
                Self::nameless(why, bytes)
            }
        };
        guard.set_claims(claims);
        Ok(stated)
    }

    fn nameless(why_nameless: &'static str, bytes: Vec<u8>) -> Self {
        Self {
            name: None,
            why_nameless,
            bytes,
            request: None,
            answer: Vec::new(),
        }
    }

    fn answered(self, answer: Vec<u8>) -> Self {
        Self { answer, ..self }
    }

    fn of_tls(hello: ClientHello) -> Self {
        let refusal = match hello.name {
            Some(_) => tls::Refusal::UnknownName,
            None => tls::Refusal::NoName,
        };
        Self {
            name: hello.name,
            ..Self::nameless("the client states no name in TLS", hello.bytes).answered(refusal.answer())
        }
    }

    fn of_http(request: Result<HttpRequest, http::Refusal>, exchange: Option<Exchange>, bytes: Vec<u8>) -> Self {
        let not_allowed = || http::failed(Failure::NotAllowed);
        match request {
            Ok(HttpRequest::Forward { target, head, body }) => Self {
                name: name_of(&target),
                request: Some((head, body, exchange)),
                ..Self::nameless("`Host` has an address", bytes).answered(not_allowed())
            },
            Ok(HttpRequest::Connect(_) | HttpRequest::Answered(_)) => {
                Self::nameless("CONNECT is a request to a proxy", bytes).answered(not_allowed())
            }
            Err(refusal) => Self::nameless(refusal.problem(), bytes).answered(refusal.answer_for_server()),
        }
    }

    /// Returns the request for a target. A named server gets an HTTP request as a proxy sends it,
    /// and an address gets the bytes of the client.
    fn request_for(self, target: Target) -> ClientRequest {
        let is_named = matches!(target, Target::Name(..));
        let request = ClientRequest::to_fixed_target(target);
        match self.request.filter(|_| is_named) {
            Some((head, body, exchange)) => ClientRequest {
                head,
                exchange,
                body: Some(body),
                spoken: Some(Spoken::Http),
                ..request
            },
            None => ClientRequest {
                head: self.bytes,
                ..request
            },
        }
    }
}

/// Returns the name of a target in the form of rules.
fn name_of(target: &Target) -> Option<Box<str>> {
    match target {
        Target::Name(name, _) => canonical_name(name).map(Into::into),
        Target::Ip(_) | Target::Unix(_) => None,
    }
}

fn problem_of_tls(refusal: tls::Refusal) -> &'static str {
    match refusal {
        tls::Refusal::TooLong => "the ClientHello has more than 20 KiB",
        tls::Refusal::Malformed => "the ClientHello is malformed",
        tls::Refusal::InvalidName => "the client states a name in TLS that no host can have",
        tls::Refusal::Missing | tls::Refusal::NoName | tls::Refusal::UnknownName | tls::Refusal::UnknownProtocol => {
            "the client states no name in TLS"
        }
    }
}

fn without_name(protocol: Option<Protocol>) -> &'static str {
    match protocol {
        Some(Protocol::Http2) => "HTTP/2 without TLS is not read",
        Some(Protocol::Ssh) => "SSH states no name",
        Some(Protocol::PostgresTls | Protocol::PostgresGssapi | Protocol::Postgres) => {
            "PostgreSQL states no name before TLS"
        }
        Some(Protocol::Socks5 | Protocol::Socks4) => "SOCKS is a request to a proxy",
        Some(Protocol::Proxy) => "a PROXY header states no name",
        Some(Protocol::Tls | Protocol::Http) | None => "the protocol is not known",
    }
}

/// Returns what the client states, or `None` if it ends its stream before that.
async fn sniff(client: &mut Client, sniffer: &mut Sniffer) -> io::Result<Option<Sniffed>> {
    loop {
        let received = client.fill_buf().await?;
        if received.is_empty() {
            return Ok(None);
        }
        let mut left = received;
        let sniffed = sniffer.feed(&mut left);
        let taken = received.len() - left.len();
        client.consume(taken);
        if sniffed.is_some() {
            return Ok(sniffed);
        }
    }
}
