//! What a client says before it is served: read, judged, answered.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::Instant;

use crate::address::Target;
use crate::auth::{Busy, Penalties, Standing, Users};
use crate::protocol::{Command, Credentials, Demand, Failure, Proof, Refused, Request, Spoken, http, socks4, socks5};
use crate::settings::Kind;
use crate::stream::Stream;

/// The reasons of refusals that no parser knows.
const WRONG_SECRET: &str = "auth";
const HELD: &str = "auth_penalty";
const TOO_MANY_CHECKS: &str = "auth_busy";
const NO_SECRET: &str = "auth_required";
/// A command that is known, and not served here.
pub(crate) const UNSUPPORTED: &str = "command";
/// A body that is not in chunks as its head says.
pub(crate) const NO_CHUNKS: &str = "framing";
/// A request that the proxy answers itself, as its `Max-Forwards` asks.
const LAST_RECIPIENT: &str = "max_forwards";
pub(crate) const TOO_SLOW: &str = "handshake_timeout";
const NONE_OF_THEM: &str = "version";

/// When a client may come again that came to too many others.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// The reasons for which a client of such a service may be refused before it has asked.
pub(crate) fn refusals(kind: &Kind, has_users: bool) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    if matches!(kind, Kind::Socks5 | Kind::Mixed) {
        reasons.extend(socks5::Refusal::ALL.map(socks5::Refusal::as_str));
    }
    if matches!(kind, Kind::Http | Kind::Mixed) {
        reasons.extend(http::Refusal::ALL.map(http::Refusal::as_str));
        reasons.push(LAST_RECIPIENT);
    }
    if matches!(kind, Kind::Mixed) {
        reasons.push(NONE_OF_THEM);
        reasons.extend(socks4::Refusal::ALL.map(socks4::Refusal::as_str));
    }
    if !matches!(kind, Kind::Forward(_)) {
        reasons.push(TOO_SLOW);
    }
    if has_users {
        reasons.extend([WRONG_SECRET, HELD, TOO_MANY_CHECKS, NO_SECRET]);
    }
    reasons
}

/// A client, and what it has sent ahead.
pub(crate) type Client = BufReader<Stream>;

/// What a client asks for. Whether it may ask is settled.
pub(crate) struct ClientRequest {
    pub(crate) request: Request,
    /// `None` where nobody had to ask: a forwarder's target.
    pub(crate) spoken: Option<Spoken>,
    /// What the target is sent before anything else: the request itself, where it is meant for the target.
    pub(crate) head: Vec<u8>,
    /// What of the client's further bytes is the target's, too; `None`: all.
    pub(crate) body: Option<http::Body>,
    /// The proxies that the request has passed, this one included, as a `Via` names them.
    pub(crate) via: String,
}

/// What a client has said of itself so far. Its record has this even where the handshake comes to nothing.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) protocol: Option<Spoken>,
    /// The name that it gave. It is proven only once the handshake has succeeded.
    pub(crate) user: Option<Box<str>>,
}

/// Why a handshake came to no request.
pub(crate) enum NoRequest {
    /// With what the client is still to be told.
    Refused(Refused),
    /// The client finished before it asked.
    Gone,
    Failed(io::Error),
}

/// Who may ask.
pub(crate) struct Authenticator<'a> {
    pub(crate) users: Option<&'a Users>,
    pub(crate) penalties: &'a Penalties,
    /// `None` of a client on this machine's file system.
    pub(crate) client: Option<IpAddr>,
    /// Of the handshake.
    pub(crate) deadline: Instant,
}

/// Why a client is not let in that gave a name and a secret.
#[derive(Debug, Clone, Copy)]
enum Unproven {
    Wrong,
    /// It has to wait so long.
    Held(Duration),
    Busy,
}

/// Has the client's request, in the protocols that a service of this kind speaks. Dropped before that, it leaves the client unanswered.
pub(crate) async fn receive_request(
    client: &mut Client,
    kind: &Kind,
    authenticator: &Authenticator<'_>,
    heard: &mut Heard,
) -> Result<ClientRequest, NoRequest> {
    let spoken = match kind {
        Kind::Forward(target) => return Ok(ClientRequest::to_fixed_target(target.first.clone())),
        Kind::Socks5 => Spoken::Socks5,
        // Its record, and what it is told, depend on whether it has said anything.
        Kind::Http if client.fill_buf().await?.is_empty() => return Err(NoRequest::Gone),
        Kind::Http => Spoken::Http,
        Kind::Mixed => first_byte(client).await?,
    };
    heard.protocol = Some(spoken);
    match spoken {
        Spoken::Socks5 => receive_socks5(client, authenticator, heard).await,
        Spoken::Socks4 => receive_socks4(client, authenticator).await,
        Spoken::Http => receive_http(client, authenticator, heard).await,
    }
}

async fn first_byte(client: &mut Client) -> Result<Spoken, NoRequest> {
    let first = client.fill_buf().await?.first().ok_or(NoRequest::Gone)?;
    Spoken::by_first_byte(*first).ok_or_else(|| refused(NONE_OF_THEM, Vec::new()))
}

async fn receive_socks5(client: &mut Client, authenticator: &Authenticator<'_>, heard: &mut Heard) -> Result<ClientRequest, NoRequest> {
    let mut greeting = socks5::Greeting::new(authenticator.demand());
    let offer = read(client, |input| greeting.feed(input)).await?;
    client.write_all(&offer.answer()).await?;
    let agreed = match offer {
        socks5::Offer::Agreed(agreed) => agreed,
        socks5::Offer::Password(mut stage) => {
            let (credentials, undecided) = read(client, |input| stage.feed(input)).await?;
            heard.user = Some(credentials.name_as_text());
            let proof = authenticator.verify(&credentials).await;
            let proof = proof.map_err(|why| refused(why.reason(), why.socks5().to_vec()))?;
            client.write_all(&socks5::Undecided::ACCEPTED).await?;
            undecided.accept(proof)
        }
    };
    let mut stage = agreed.request();
    let request = read(client, |input| stage.feed(input)).await?;
    Ok(ClientRequest {
        request,
        spoken: Some(Spoken::Socks5),
        head: Vec::new(),
        body: None,
        via: http::first_via(),
    })
}

async fn receive_socks4(client: &mut Client, authenticator: &Authenticator<'_>) -> Result<ClientRequest, NoRequest> {
    let mut stage = socks4::RequestStage::new(authenticator.demand());
    // Its user id is what anybody may say.
    let (request, _) = read(client, |input| stage.feed(input)).await?;
    Ok(ClientRequest {
        request,
        spoken: Some(Spoken::Socks4),
        head: Vec::new(),
        body: None,
        via: http::first_via(),
    })
}

async fn receive_http(client: &mut Client, authenticator: &Authenticator<'_>, heard: &mut Heard) -> Result<ClientRequest, NoRequest> {
    let mut parser = http::Head::new(authenticator.demand());
    let request = match read(client, |input| parser.feed(input)).await? {
        http::RequestHead::Agreed(request) => request,
        http::RequestHead::Password(unproven) => {
            let Some(credentials) = &unproven.credentials else {
                let challenge = http::response(http::Status::AuthenticationRequired);
                return Err(refused(NO_SECRET, challenge));
            };
            heard.user = Some(credentials.name_as_text());
            let proof = authenticator.verify(credentials).await;
            let proof = proof.map_err(|why| refused(why.reason(), why.http()))?;
            unproven.accept(proof)
        }
    };
    let (target, head, body) = match request {
        http::HttpRequest::Connect(target) => (target, Vec::new(), None),
        http::HttpRequest::Forward { target, head, body } => (target, head, Some(body)),
        http::HttpRequest::Answered(answer) => return Err(refused(LAST_RECIPIENT, answer)),
    };
    Ok(ClientRequest {
        request: Request {
            command: Command::Connect,
            target,
        },
        spoken: Some(Spoken::Http),
        head,
        body,
        via: parser.into_via(),
    })
}

/// Feeds what the client sends to a parser until it has its message. What follows the message stays in the buffer.
pub(crate) async fn read<T, R: Into<Refused>>(
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
        if let Some(message) = fed.map_err(|refusal| NoRequest::Refused(refusal.into()))? {
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

    /// A client with recent failures has to wait. Meanwhile, even the right secret is refused, unless it
    /// has passed before from this address.
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
        let standing = match self.client.is_some_and(has_failed) {
            true => Standing::Failed,
            false => Standing::Good,
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
    fn reason(self) -> &'static str {
        match self {
            Self::Wrong => WRONG_SECRET,
            Self::Held(_) => HELD,
            Self::Busy => TOO_MANY_CHECKS,
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
            Self::Wrong => http::response(http::Status::AuthenticationRequired),
            Self::Held(wait) => http::come_again(http::Status::TooManyRequests, wait),
            Self::Busy => http::come_again(http::Status::Unavailable, BUSY_FOR),
        }
    }
}

impl ClientRequest {
    /// What everybody gets who connects.
    pub(crate) fn to_fixed_target(target: Target) -> Self {
        Self {
            request: Request {
                command: Command::Connect,
                target,
            },
            spoken: None,
            head: Vec::new(),
            body: None,
            via: http::first_via(),
        }
    }

    /// What the client is told when its target is reached, from `bound`. Nothing, where the target itself will answer.
    pub(crate) fn succeeded(&self, bound: SocketAddr) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::succeeded(bound),
            Some(Spoken::Socks4) => socks4::succeeded(bound).to_vec(),
            Some(Spoken::Http) if self.body.is_none() => http::ESTABLISHED.to_vec(),
            Some(Spoken::Http) | None => Vec::new(),
        }
    }

    /// What the client is told whose command is not served here.
    pub(crate) fn unsupported(&self) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::Refusal::Command.answer(),
            _ => self.failed(Failure::General),
        }
    }

    /// What the client is told when it is not.
    pub(crate) fn failed(&self, failure: Failure) -> Vec<u8> {
        match self.spoken {
            Some(Spoken::Socks5) => socks5::failed(failure),
            Some(Spoken::Socks4) => socks4::failed(failure).to_vec(),
            Some(Spoken::Http) => http::failed(failure),
            None => Vec::new(),
        }
    }
}

fn refused(reason: &'static str, answer: Vec<u8>) -> NoRequest {
    NoRequest::Refused(Refused { reason, answer })
}

impl From<io::Error> for NoRequest {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}
