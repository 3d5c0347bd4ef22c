//! HTTP/1 from a proxy's side: the head of one request, and the answers that are ours.
//!
//! ```text
//!   Head ──▶ RequestHead ─┬─ Agreed ────────────▶ HttpRequest::Connect: the rest of the stream is the target's
//!                         └─ Unproven ─ Proof ─▶ HttpRequest::Forward: a head to send on, and behind it the rest of the stream
//! ```
//!
//! One request per connection: the body is relayed as it is, and nothing that follows it; the answer is made to say that it is the last. A head
//! that leaves room for two opinions on where the body ends is refused. A head has at most 16 KiB and 100 fields.

mod answer;
mod basic;
mod chunks;
mod forward;
mod framing;
mod response;
mod target;

pub use answer::Answer;
pub(super) use basic::encode as basic_credentials;
pub use chunks::{Chunks, Malformed};
pub use response::{ESTABLISHED, Status, come_again, failed, no_chunks, response};

use super::message::Message;
use super::{Credentials, Demand, Proof, Refused};
use crate::address::Target;

/// What others allow, and browsers with their cookies need: 8 KiB to 64 KiB. It is held once for every client that has not asked yet.
pub const HEAD_MAX_BYTES: usize = 16 << 10;
pub(super) const FIELDS_MAX: usize = 100;

/// The head of a client's request.
#[derive(Debug)]
pub struct Head {
    demand: Demand,
    message: Message,
    /// Of the request, with our entry, once that is whole.
    via: String,
}

/// A request that was read.
#[derive(Debug)]
pub enum RequestHead {
    /// Nothing is demanded of the client.
    Agreed(HttpRequest),
    Password(Unproven),
}

/// What a client wants whose credentials are to be looked at.
#[derive(Debug)]
pub struct Unproven {
    /// `None` where it sends none, or none that can be read. [`Status::AuthenticationRequired`] asks for them.
    pub credentials: Option<Credentials>,
    request: HttpRequest,
}

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpRequest {
    /// To talk to the target. It is told [`ESTABLISHED`] once that is possible.
    Connect(Target),
    /// This head sent to the target, and after it the body and no more: what comes behind is another request, which may be for another
    /// target, and this one is not to have it.
    Forward { target: Target, head: Vec<u8>, body: Body },
    /// This answer of the proxy's own: the request names it as its last recipient.
    Answered(Vec<u8>),
}

/// How much of what follows a head is the request's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Bytes(u64),
    /// No body. The client asks for an upgrade: if the target agrees, all further bytes are the target's.
    Upgrade,
    /// As many as [`Chunks`] says.
    Chunked,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No request of HTTP/1.0 or 1.1, or one that not everybody reads alike.
    Malformed,
    /// It leaves open where its body ends.
    Framing,
    /// More than [`HEAD_MAX_BYTES`], or than 100 fields.
    HeadTooLarge,
    /// A request to a server: it names no host.
    NoHost,
    /// A URI of another scheme than `http`.
    Scheme,
    /// Its host or port is none, or it says who asks.
    Target,
    /// It has passed us before.
    Loop,
}

impl Head {
    pub fn new(demand: Demand) -> Self {
        Self {
            demand,
            message: Message::default(),
            via: String::new(),
        }
    }

    /// The proxies that the request has passed, as a `Via` names them, and this one behind them.
    pub fn into_via(self) -> String {
        self.via
    }

    /// Takes from `input` what belongs to the head; `None` while it is not whole.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<RequestHead>, Refusal> {
        let Some(head) = self.message.feed(input, request_length)? else {
            return Ok(None);
        };
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        match parsed.parse(head) {
            // It ends where the message does, or something in it was read in two ways.
            Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
            Err(httparse::Error::TooManyHeaders) => return Err(Refusal::HeadTooLarge),
            _ => return Err(Refusal::Malformed),
        }
        self.via = forward::via(parsed.version.unwrap_or(1), parsed.headers)?;
        let request = request(&parsed)?;
        Ok(Some(match self.demand {
            Demand::Nothing => RequestHead::Agreed(request),
            Demand::Password => RequestHead::Password(Unproven {
                credentials: basic::of_fields(parsed.headers),
                request,
            }),
        }))
    }
}

fn request(parsed: &httparse::Request<'_, '_>) -> Result<HttpRequest, Refusal> {
    let (Some(method), Some(uri), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Refusal::Malformed);
    };
    let body = framing::body(minor, parsed.headers)?;
    if method == "CONNECT" {
        return target::of_connect(uri).map(HttpRequest::Connect).ok_or(Refusal::Target);
    }
    let absolute = target::Absolute::parse(uri)?;
    let forwards = forward::max_forwards(method, parsed.headers)?;
    if forwards == Some(0) {
        return Ok(forward::answer_in_place(method, uri, minor, parsed.headers));
    }
    let rewritten = forward::Rewritten {
        forwards: forwards.map(|forwards| forwards - 1),
        // With a body, the first byte of the new protocol would be ambiguous.
        upgrade: forward::upgrade(minor, parsed.headers).filter(|_| body == Body::Bytes(0)),
    };
    Ok(HttpRequest::Forward {
        head: forward::head(method, &absolute, minor, parsed.headers, &rewritten),
        target: absolute.target,
        body: match rewritten.upgrade {
            Some(_) => Body::Upgrade,
            None => body,
        },
    })
}

impl Unproven {
    pub fn accept(self, _: Proof) -> HttpRequest {
        self.request
    }
}

/// How long the head of a request is at least, that starts with `held`. Once `held` is that long, it is exact.
fn request_length(held: &[u8]) -> Result<usize, Refusal> {
    // Who speaks TLS or SOCKS waits for an answer, and may never send an empty line.
    let speaks_http = |first: &u8| first.is_ascii_graphic() || matches!(first, b'\r' | b'\n');
    match held.first().is_none_or(speaks_http) {
        true => head_length(held).ok_or(Refusal::HeadTooLarge),
        false => Err(Refusal::Malformed),
    }
}

/// How long a head is at least, that starts with `held`; once `held` is that long, it is exact. `None` if it is too long.
///
/// A head ends with its first empty line, and nothing but a look at each byte finds that. A line ends with a line feed, as it does for
/// httparse.
pub(super) fn head_length(held: &[u8]) -> Option<usize> {
    head_length_within(held, HEAD_MAX_BYTES)
}

fn head_length_within(held: &[u8], max: usize) -> Option<usize> {
    let ended = held.ends_with(b"\n\r\n") || held.ends_with(b"\n\n");
    match ended {
        true => Some(held.len()),
        false => (held.len() < max).then_some(held.len() + 1),
    }
}

impl Refusal {
    /// Every one, for whoever keeps a count of each.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::Framing,
        Self::HeadTooLarge,
        Self::NoHost,
        Self::Scheme,
        Self::Target,
        Self::Loop,
    ];

    /// What the client is told.
    pub fn answer(self) -> Vec<u8> {
        let (status, text) = match self {
            Self::Malformed => (Status::BadRequest, "This is no request of HTTP/1.0 or HTTP/1.1."),
            Self::Framing => (Status::BadRequest, "The request leaves open where its body ends."),
            Self::HeadTooLarge => (
                Status::HeadTooLarge,
                "The head of the request is larger than 16 KiB or 100 fields.",
            ),
            Self::NoHost => (
                Status::BadRequest,
                "This is a proxy: the request must name a host, as in GET http://example.com/.",
            ),
            Self::Scheme => (
                Status::BadRequest,
                "Only http:// is forwarded; reach anything else, https:// too, with CONNECT.",
            ),
            Self::Target => (
                Status::BadRequest,
                "The request names no host and port that could be reached.",
            ),
            Self::Loop => return response(Status::LoopDetected),
        };
        response::with_text(status, text)
    }

    /// The `reason` of metrics and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Framing => "framing",
            Self::HeadTooLarge => "head_too_large",
            Self::NoHost => "no_host",
            Self::Scheme => "scheme",
            Self::Target => "target",
            Self::Loop => "loop",
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            reason: refusal.as_str(),
            answer: refusal.answer(),
        }
    }
}

/// The `Via` of a request that begins here: of a client that speaks another protocol.
pub(crate) fn first_via() -> String {
    forward::own_via(1)
}

#[cfg(test)]
mod tests;
