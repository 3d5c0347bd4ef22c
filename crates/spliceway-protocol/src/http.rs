//! The proxy's side of HTTP/1: the head of one request, and the proxy's own responses.
//!
//! ```text
//!   Head ─▶ RequestHead ─┬─ Agreed ───────────┬─▶ HttpRequest ─┬─ Connect: a tunnel
//!                        └─ Unproven ─ Proof ─┘                ├─ Forward: a new head and the body
//!                                                              └─ Answered: the proxy's response
//! ```
//!
//! The proxy relays the body unchanged. The bytes that follow the body belong to another request,
//! which may be for another target. [`Head::exchange`] tells whether the connection may carry it.
//! [`Answer`] finds the end of the response, and tells the client whether the connection stays
//! open.
//!
//! The parser refuses a head if two readers could disagree on the end of the body. A head has at
//! most 16 KiB and at most 100 fields.

mod answer;
mod basic;
mod chunks;
mod exchange;
mod forward;
mod framing;
mod response;
mod target;

pub use answer::{Answer, BadAnswer, Followed};
pub(super) use basic::encode as basic_credentials;
pub use chunks::{Chunks, Malformed};
pub use exchange::{Exchange, Remaining, Reuse};
pub use forward::for_proxy;
pub use response::{ESTABLISHED, Status, come_again, failed, kept, no_chunks, response, wrong_password};

use std::cell::Cell;
use std::sync::LazyLock;

use super::message::Message;
use super::{Credentials, Demand, Proof, Refused};
use crate::address::Target;

/// The largest request head, in bytes.
///
/// Other software allows 8 KiB to 64 KiB, and browsers that send long cookies need heads of this
/// size. The parser can hold this many bytes for each client whose request head is not complete.
pub const HEAD_MAX_BYTES: usize = 16 << 10;
pub(super) const FIELDS_MAX: usize = 100;

/// Parses the head of a client's request.
#[derive(Debug)]
pub struct Head {
    recipient: Recipient,
    demand: Demand,
    message: Message,
    /// The value of `Via` with this proxy's entry. Empty until the head is complete.
    via: String,
    exchange: Exchange,
}

/// Where the client believes that its request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recipient {
    /// To a proxy: the URI names the target.
    Proxy,
    /// To a server: the `Host` field names it. `is_http` is known at the end of the first line.
    Server { is_http: bool },
}

/// A request whose head is complete.
#[derive(Debug)]
pub enum RequestHead {
    /// The service demands no authentication.
    Agreed(HttpRequest),
    /// The service demands a password. The caller must check the credentials first.
    Password(Unproven),
}

/// The request of a client whose credentials have not been checked yet.
#[derive(Debug)]
pub struct Unproven {
    /// The credentials, or `None` if the client sent no well-formed credentials.
    ///
    /// A response with [`Status::AuthenticationRequired`] asks the client for them.
    pub credentials: Option<Credentials>,
    request: HttpRequest,
}

/// The request of an HTTP client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpRequest {
    /// Connect to this target. Once the target is reached, send [`ESTABLISHED`] to the client and
    /// relay all further bytes.
    Connect(Target),
    /// Send the head and then the body to the target, but no further bytes.
    ///
    /// The bytes after the body belong to another request. That request may be for another target,
    /// so this target must not receive it.
    Forward {
        /// The target of the request.
        target: Target,
        /// The head to send to the target in place of the client's head.
        head: Vec<u8>,
        /// The part of the following bytes that belongs to the request.
        body: Body,
    },
    /// Send this response to the client. The request, which is for a proxy, names the proxy as its
    /// last recipient.
    Answered(Vec<u8>),
}

/// The bytes after a head that belong to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// The body has this many bytes.
    Bytes(u64),
    /// The request has no body, and the client asks for an upgrade. If the target agrees, all
    /// further bytes are for the target.
    Upgrade,
    /// The body uses chunked encoding. [`Chunks`] finds its end.
    Chunked,
}

/// The reason why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The head is not an HTTP/1.0 or HTTP/1.1 request, or two readers could disagree on its
    /// meaning.
    Malformed,
    /// Two readers could disagree on the end of the body.
    Framing,
    /// The head is larger than [`HEAD_MAX_BYTES`] or has more than 100 fields.
    HeadTooLarge,
    /// The request names no host: its URI, or the `Host` field of a request that is meant for a
    /// server.
    NoHost,
    /// The scheme of the URI is not `http`.
    Scheme,
    /// The host or the port is not valid, the URI has user information or a fragment, or `Host`
    /// names another server than the URI.
    Target,
    /// The request has already passed through this proxy.
    Loop,
}

impl Head {
    /// Creates a parser for a service with this demand.
    pub fn new(demand: Demand) -> Self {
        Self {
            recipient: Recipient::Proxy,
            demand,
            message: Message::default(),
            via: String::new(),
            exchange: Exchange::LAST,
        }
    }

    /// Creates a parser for a client that does not know that there is a proxy, and that has sent
    /// these bytes: the start of its first line, which may follow an empty one. The target of its
    /// request is the one in `Host`.
    ///
    /// A client of another protocol may never send an empty line, so the parser refuses it at the
    /// end of its first line.
    pub(super) fn to_server(held: Vec<u8>) -> Self {
        Self {
            recipient: Recipient::Server { is_http: false },
            message: Message::begun(held),
            ..Self::new(Demand::Nothing)
        }
    }

    /// Returns the bytes that the parser has consumed.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.message.into_held()
    }

    /// Returns what the request means for the connections that it uses. If the head is not
    /// complete, the connection closes.
    pub fn exchange(&self) -> Exchange {
        self.exchange
    }

    /// Returns the value of a `Via` field: the proxies that the request has passed through, then
    /// this proxy.
    ///
    /// The value is empty if the head is not complete.
    pub fn into_via(self) -> String {
        self.via
    }

    /// Consumes the bytes of the head from `input`. Returns `None` until the head is complete.
    ///
    /// # Errors
    /// Returns the reason why the client is refused.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<RequestHead>, Refusal> {
        let recipient = Cell::new(self.recipient);
        let head = self.message.feed(input, |held| {
            // RFC 9112 section 2.2 asks servers to ignore an empty line before a request.
            let line = held.strip_prefix(b"\r").unwrap_or(held);
            let line = line.strip_prefix(b"\n").unwrap_or(held);
            if recipient.get() == (Recipient::Server { is_http: false }) && line.ends_with(b"\n") {
                let is_http = is_request_line(line);
                recipient.set(Recipient::Server { is_http });
                return is_http.then_some(held.len() + 1).ok_or(Refusal::Malformed);
            }
            request_length(held)
        });
        self.recipient = recipient.get();
        let Some(head) = head? else {
            return Ok(None);
        };
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        match parsed.parse(head) {
            // Both parsers must find the same end of the head. Otherwise, one of them misread it.
            Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
            Err(httparse::Error::TooManyHeaders) => return Err(Refusal::HeadTooLarge),
            _ => return Err(Refusal::Malformed),
        }
        self.via = forward::via(parsed.version.unwrap_or(1), parsed.headers)?;
        let (request, exchange) = request(&parsed, head, self.recipient)?;
        self.exchange = exchange;
        Ok(Some(match self.demand {
            Demand::Nothing => RequestHead::Agreed(request),
            Demand::Password => RequestHead::Password(Unproven {
                credentials: basic::of_fields(parsed.headers),
                request,
            }),
        }))
    }
}

/// Returns the request with these parts, which were parsed from `head`.
fn request(
    parsed: &httparse::Request<'_, '_>,
    head: &[u8],
    recipient: Recipient,
) -> Result<(HttpRequest, Exchange), Refusal> {
    let (Some(method), Some(uri), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Refusal::Malformed);
    };
    let body = framing::body(minor, parsed.headers)?;
    let exchange = |body| match recipient {
        Recipient::Proxy => Exchange::of(method, minor, parsed.headers, body, head),
        // The next request may be for another server.
        Recipient::Server { .. } => Exchange {
            reuse: Reuse::Close,
            ..Exchange::of(method, minor, parsed.headers, body, head)
        },
    };
    if method == "CONNECT" {
        let target = target::of_connect(uri).ok_or(Refusal::Target)?;
        return Ok((HttpRequest::Connect(target), exchange(body)));
    }
    let absolute = match recipient {
        Recipient::Proxy => target::Absolute::parse(uri)?,
        Recipient::Server { .. } => target::Absolute::of_server(uri, parsed.headers)?,
    };
    let forwards = match recipient {
        Recipient::Proxy => forward::max_forwards(method, parsed.headers)?,
        // RFC 9110 section 7.6.2 lets intermediaries count it. But this client counts those behind
        // the server to which it believes to be connected.
        Recipient::Server { .. } => None,
    };
    if forwards == Some(0) {
        let answered = forward::answer_in_place(method, uri, minor, parsed.headers);
        return Ok((answered, exchange(body)));
    }
    let passes = match recipient {
        Recipient::Proxy => forward::is_no_http,
        Recipient::Server { .. } => forward::is_for_servers,
    };
    // If the request had a body, the start of the new protocol would be ambiguous.
    let upgrade = forward::upgrade(minor, parsed.headers, passes).filter(|_| body == Body::Bytes(0));
    let body = if upgrade.is_some() { Body::Upgrade } else { body };
    let exchange = exchange(body);
    let rewritten = forward::Rewritten {
        forwards: forwards.map(|forwards| forwards - 1),
        upgrade,
        reuse: exchange.reuse,
    };
    let forward = HttpRequest::Forward {
        head: forward::head(method, &absolute, minor, parsed.headers, &rewritten),
        target: absolute.target,
        body,
    };
    Ok((forward, exchange))
}

impl Unproven {
    /// Returns the request in exchange for proof of the client's identity.
    pub fn accept(self, _: Proof) -> HttpRequest {
        self.request
    }
}

fn is_request_line(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0")
}

/// Returns the minimum length of a request head that starts with `held`. The length is exact once
/// `held` is that long.
fn request_length(held: &[u8]) -> Result<usize, Refusal> {
    // A client that speaks TLS or SOCKS waits for an answer and may never send an empty line.
    let speaks_http = |first: &u8| first.is_ascii_graphic() || matches!(first, b'\r' | b'\n');
    match held.first().is_none_or(speaks_http) {
        true => head_length(held).ok_or(Refusal::HeadTooLarge),
        false => Err(Refusal::Malformed),
    }
}

/// Returns the minimum length of a head that starts with `held`, or `None` if the head is too long.
/// The length is exact once `held` is that long.
///
/// A head ends with its first empty line. To find that line, the parser checks the head after every
/// byte. A line ends with a line feed, as in httparse.
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
    /// Every refusal, for code that keeps one counter for each refusal.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::Framing,
        Self::HeadTooLarge,
        Self::NoHost,
        Self::Scheme,
        Self::Target,
        Self::Loop,
    ];

    /// Returns the response to a client that knows that there is a proxy.
    pub fn answer(self) -> Vec<u8> {
        let text = match self {
            Self::NoHost => "This is a proxy: the request must name a host, as in GET http://example.com/.",
            Self::Scheme => {
                "The proxy forwards only http:// URIs. Use CONNECT for everything else, including https://."
            }
            Self::Malformed | Self::Framing | Self::HeadTooLarge | Self::Target | Self::Loop => {
                return self.answer_for_server();
            }
        };
        response::with_text(self.status(), text)
    }

    /// Returns the response to a client that believes to be connected to a server.
    pub fn answer_for_server(self) -> Vec<u8> {
        let (first, rest) = self.problem().split_at(1);
        response::with_text(self.status(), &format!("{}{rest}.", first.to_uppercase()))
    }

    /// Returns what is wrong, without a mention of proxies.
    pub const fn problem(self) -> &'static str {
        match self {
            Self::Malformed => "the request is not valid HTTP/1.0 or HTTP/1.1",
            Self::Framing => "the end of the request body is ambiguous",
            Self::HeadTooLarge => "the head of the request is larger than 16 KiB or has more than 100 fields",
            Self::NoHost => "the request names no host",
            Self::Scheme => "the URI of the request is not an http:// URI",
            Self::Target => "the request does not name one valid host and port",
            Self::Loop => "the request has passed here before, so it goes in a circle",
        }
    }

    const fn status(self) -> Status {
        match self {
            Self::HeadTooLarge => Status::HeadTooLarge,
            Self::Loop => Status::LoopDetected,
            Self::Malformed | Self::Framing | Self::NoHost | Self::Scheme | Self::Target => Status::BadRequest,
        }
    }

    /// Returns the value of `reason` in metrics and log records.
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

/// Returns the value of `Via` for a request that originates at this proxy, because the client does
/// not speak HTTP.
pub fn first_via() -> &'static str {
    static FIRST: LazyLock<String> = LazyLock::new(|| forward::own_via(1));
    &FIRST
}

#[cfg(test)]
mod tests;
