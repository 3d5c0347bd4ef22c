//! What a client says before it is served: read, judged, answered.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::Instant;

use crate::address::Target;
use crate::auth::{Penalties, Users};
use crate::protocol::{
    Command, Credentials, Demand, Failure, Proof, Refused, Request, Spoken, http, printable, socks4, socks5,
};
use crate::settings::Kind;
use crate::stream::Stream;

/// The reasons of refusals that no parser knows.
const WRONG_SECRET: &str = "auth";
const HELD: &str = "auth_penalty";
const NO_SECRET: &str = "auth_required";
/// A command that is known, and not served here.
pub(crate) const UNSUPPORTED: &str = "command";
/// A body that is not in chunks as its head says.
pub(crate) const NO_CHUNKS: &str = "framing";
pub(crate) const TOO_SLOW: &str = "handshake_timeout";
const NONE_OF_THEM: &str = "version";

/// The reasons for which a client of such a service may be refused before it has asked.
pub(crate) fn refusals(kind: &Kind, has_users: bool) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    if matches!(kind, Kind::Socks5 | Kind::Mixed) {
        reasons.extend(socks5::Refusal::ALL.map(socks5::Refusal::as_str));
    }
    if matches!(kind, Kind::Http | Kind::Mixed) {
        reasons.extend(http::Refusal::ALL.map(http::Refusal::as_str));
    }
    if matches!(kind, Kind::Mixed) {
        reasons.push(NONE_OF_THEM);
        reasons.extend(socks4::Refusal::ALL.map(socks4::Refusal::as_str));
    }
    if !matches!(kind, Kind::Forward(_)) {
        reasons.push(TOO_SLOW);
    }
    if has_users {
        reasons.extend([WRONG_SECRET, HELD, NO_SECRET]);
    }
    reasons
}

/// A client, and what it has sent ahead.
pub(crate) type Client = BufReader<Stream>;

/// What a client asks for. Whether it may ask is settled.
pub(crate) struct Asked {
    pub(crate) request: Request,
    /// `None` where nobody had to ask: a forwarder's target.
    pub(crate) spoken: Option<Spoken>,
    /// Whoever it has proven to be.
    pub(crate) user: Option<Box<str>>,
    /// What the target is sent before anything else: the request itself, where it is meant for the target.
    pub(crate) head: Vec<u8>,
    /// What of the client's further bytes is the target's, too; `None`: all.
    pub(crate) body: Option<http::Body>,
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
pub(crate) struct Door<'a> {
    pub(crate) users: Option<&'a Users>,
    pub(crate) penalties: &'a Penalties,
    /// `None` of a client on this machine's file system.
    pub(crate) client: Option<IpAddr>,
}

/// Has the client's request, in the protocols that a service of this kind speaks. Dropped before that, it leaves the client unanswered.
pub(crate) async fn ask(client: &mut Client, kind: &Kind, door: &Door<'_>) -> Result<Asked, NoRequest> {
    let spoken = match kind {
        Kind::Forward(target) => return Ok(Asked::of_nobody(target.first.clone())),
        Kind::Socks5 => Spoken::Socks5,
        Kind::Http => Spoken::Http,
        Kind::Mixed => first_byte(client).await?,
    };
    match spoken {
        Spoken::Socks5 => ask_socks5(client, door).await,
        Spoken::Socks4 => ask_socks4(client, door).await,
        Spoken::Http => ask_http(client, door).await,
    }
}

async fn first_byte(client: &mut Client) -> Result<Spoken, NoRequest> {
    let first = client.fill_buf().await?.first().ok_or(NoRequest::Gone)?;
    Spoken::by_first_byte(*first).ok_or_else(|| refused(NONE_OF_THEM, Vec::new()))
}

async fn ask_socks5(client: &mut Client, door: &Door<'_>) -> Result<Asked, NoRequest> {
    let mut greeting = socks5::Greeting::new(door.demand());
    let offer = read(client, |input| greeting.feed(input)).await?;
    client.write_all(&offer.answer()).await?;
    let (agreed, user) = match offer {
        socks5::Offer::Agreed(agreed) => (agreed, None),
        socks5::Offer::Password(mut stage) => {
            let (credentials, undecided) = read(client, |input| stage.feed(input)).await?;
            let refusal = || socks5::Undecided::REFUSED.to_vec();
            let proof = door.verify(&credentials, refusal).await?;
            client.write_all(&socks5::Undecided::ACCEPTED).await?;
            (undecided.accept(proof), Some(credentials.name_as_text()))
        }
    };
    let mut stage = agreed.request();
    let request = read(client, |input| stage.feed(input)).await?;
    Ok(Asked {
        request,
        spoken: Some(Spoken::Socks5),
        user,
        head: Vec::new(),
        body: None,
    })
}

async fn ask_socks4(client: &mut Client, door: &Door<'_>) -> Result<Asked, NoRequest> {
    let mut stage = socks4::RequestStage::new(door.demand());
    // Its user id is what anybody may say.
    let (request, _) = read(client, |input| stage.feed(input)).await?;
    Ok(Asked {
        request,
        spoken: Some(Spoken::Socks4),
        user: None,
        head: Vec::new(),
        body: None,
    })
}

async fn ask_http(client: &mut Client, door: &Door<'_>) -> Result<Asked, NoRequest> {
    let mut head = http::Head::new(door.demand());
    let (request, user) = match read(client, |input| head.feed(input)).await? {
        http::Asked::Agreed(request) => (request, None),
        http::Asked::Password(unproven) => {
            let refusal = || http::response(http::Status::AuthenticationRequired);
            let Some(credentials) = &unproven.credentials else {
                return Err(refused(NO_SECRET, refusal()));
            };
            let proof = door.verify(credentials, refusal).await?;
            let user = printable(&credentials.name);
            (unproven.accept(proof), Some(user))
        }
    };
    let (target, head, body) = match request {
        http::HttpRequest::Connect(target) => (target, Vec::new(), None),
        http::HttpRequest::Forward { target, head, body } => (target, head, Some(body)),
    };
    Ok(Asked {
        request: Request {
            command: Command::Connect,
            target,
        },
        spoken: Some(Spoken::Http),
        user,
        head,
        body,
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

impl Door<'_> {
    fn demand(&self) -> Demand {
        match self.users {
            Some(_) => Demand::Password,
            None => Demand::Nothing,
        }
    }

    /// Whoever guesses waits, and while it does the right secret is no better than a wrong one.
    async fn verify(&self, credentials: &Credentials, answer: impl Fn() -> Vec<u8>) -> Result<Proof, NoRequest> {
        let _turn = match self.client {
            None => None,
            Some(client) => {
                let turn = self.penalties.turn(client).await;
                if self.penalties.holds(client, Instant::now()) {
                    return Err(refused(HELD, answer()));
                }
                Some(turn)
            }
        };
        let proof = match self.users {
            Some(users) => users.verify(credentials).await,
            None => None,
        };
        proof.ok_or_else(|| {
            if let Some(client) = self.client {
                self.penalties.failed(client, Instant::now());
            }
            refused(WRONG_SECRET, answer())
        })
    }
}

impl Asked {
    /// What everybody gets who connects.
    pub(crate) fn of_nobody(target: Target) -> Self {
        Self {
            request: Request {
                command: Command::Connect,
                target,
            },
            spoken: None,
            user: None,
            head: Vec::new(),
            body: None,
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
