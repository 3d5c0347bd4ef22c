//! Rewrites the head of a target's response, and finds out where the response ends.
//!
//! The head of a response tells the client whether it may send another request. It may only if all
//! readers agree on the end of this response. Otherwise, a part of it could pass for the response
//! to the next request. The parser repairs and forwards heads that some readers would refuse, but
//! it then marks the response as the last one on its connection. If the length is not valid, the
//! client gets 502 in place of the response (RFC 9112 section 6.3).

use httparse::Header;

use super::exchange::{Exchange, Remaining, Reuse, has_bare_line_feed, persists};
use super::framing::{bytes, length, options};
use super::response::{Status, kept, with_text};
use super::{Body, Malformed, head_length_within};
use crate::message::Message;

/// The limit for all heads of one response together, in bytes. It is higher than the limit for a
/// request, because targets set cookies. The parser holds the bytes until the head is complete.
const HEADS_MAX_BYTES: usize = 64 << 10;
/// Marks a response as the last one on its connection.
const LAST: &[u8] = b"Connection: close\r\n";
/// Fields that are not passed on. Either they apply to this connection alone (RFC 9110 section
/// 7.6.1), or the proxy writes new ones.
const NOT_PASSED_ON: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "upgrade",
];
/// The status of an answer from the next proxy that demands other credentials. The client could
/// only give its credentials for this proxy, which are not for anybody else.
const DEMANDS_CREDENTIALS: u16 = 407;
/// What the client gets instead.
const BAD_GATEWAY: &str = "502 Bad Gateway\r\n";
/// The status that ends HTTP on a connection, which only an upgrade may do.
const SWITCHES: u16 = 101;

/// Parses and rewrites the head of a target's response, together with the interim responses before
/// it.
#[derive(Debug)]
pub struct Answer {
    message: Message,
    interim: Vec<u8>,
    exchange: Exchange,
    /// Whether readers could disagree on the end of an interim response.
    is_in_doubt: bool,
    /// Whether the body of the request is still being sent.
    is_early: bool,
    /// What follows the head, once the head is complete.
    followed: Option<Followed>,
}

/// What follows the head of a response.
#[derive(Debug)]
pub struct Followed {
    /// The body of the response.
    pub body: Remaining,
    /// Whether the client was told that it may send another request after the body.
    pub keeps_client: bool,
    /// Whether the target accepts another request after the body.
    pub keeps_target: bool,
    /// Whether the target agreed to an upgrade (status 101). The connection is then a tunnel.
    pub has_switched: bool,
    /// Why the client gets the proxy's own response in place of the target's.
    pub refused: Option<BadAnswer>,
}

/// Why a response is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadAnswer {
    /// It states several lengths, or one that is no number.
    Length,
    /// It switches protocols, and the request has not asked for that.
    Switch,
}

impl BadAnswer {
    /// Returns the reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Length => "the length of the answer is not valid",
            Self::Switch => "the answer switches protocols, which the request has not asked for",
        }
    }
}

impl Followed {
    /// A response that ends with its connection.
    pub const LAST: Self = Self {
        body: Remaining::UntilClose,
        keeps_client: false,
        keeps_target: false,
        has_switched: false,
        refused: None,
    };

    fn reuse(&self) -> Reuse {
        if self.keeps_client {
            Reuse::KeepAlive
        } else {
            Reuse::Close
        }
    }

    /// Returns how many of these next bytes belong to the body. If there are more, the target is
    /// not kept, because they could pass for the answer to another request.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the body is not valid chunked encoding.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let taken = self.body.take(bytes)?;
        self.keeps_target &= taken == bytes.len();
        Ok(taken)
    }
}

impl Default for Answer {
    /// Creates a parser for a response that is the last one on its connection.
    fn default() -> Self {
        Self::to(Exchange::LAST)
    }
}

impl Answer {
    /// Creates a parser for the response to a request.
    pub fn to(exchange: Exchange) -> Self {
        Self {
            message: Message::default(),
            interim: Vec::new(),
            exchange,
            is_in_doubt: false,
            is_early: false,
            followed: None,
        }
    }

    /// Makes this the last response on the client's connection, if its head is not complete yet.
    pub fn closes(&mut self) {
        self.exchange.reuse = Reuse::Close;
    }

    /// Sets whether the body of the request is still being sent. A response that arrives before the
    /// end of the body may mean that the body will never be read.
    pub fn set_early(&mut self, is_early: bool) {
        self.is_early = is_early;
    }

    /// Returns what follows the head, if the head is complete.
    pub fn into_followed(self) -> Option<Followed> {
        self.followed
    }

    /// Removes and returns the interim responses received so far. They are of use before the final
    /// response: a client may wait for one before it sends its body, or load what one names.
    pub fn take_interim(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.interim)
    }

    /// Consumes the bytes of the heads from `input`. Returns the bytes to send to the client in
    /// their place, or `None` until the heads are complete.
    ///
    /// If a head of HTTP/1 is malformed or exceeds 64 KiB, a mark follows its status line, and the
    /// other bytes are unchanged. If the bytes are no head of HTTP/1, all of them are unchanged:
    /// the client then interprets them itself. In both cases, the response ends with its
    /// connection.
    pub fn feed(&mut self, input: &mut &[u8]) -> Option<Vec<u8>> {
        loop {
            let room = HEADS_MAX_BYTES.saturating_sub(self.interim.len());
            let whole = self.message.feed(input, |held| {
                let speaks_http = held.iter().zip(b"HTTP/1.").all(|(byte, expected)| byte == expected);
                head_length_within(held, room).filter(|_| speaks_http).ok_or(())
            });
            let head = match whole {
                Ok(Some(head)) => head,
                Ok(None) => return None,
                Err(()) => {
                    self.followed = Some(Followed::LAST);
                    return Some([&self.interim[..], &marked(self.message.held())].concat());
                }
            };
            match status(head) {
                Some(100 | 102..=199) => {
                    self.is_in_doubt |= !is_clear_interim(head);
                    // A client of HTTP/1.0 knows no interim responses (RFC 9110 section 15.2).
                    if self.exchange.reads_chunks {
                        self.interim.extend_from_slice(&interim(head));
                    }
                    self.message.clear();
                }
                // The client needs the fields unchanged, because they name the agreed protocol.
                Some(SWITCHES) if self.exchange.body == Body::Upgrade => {
                    self.followed = Some(Followed {
                        has_switched: true,
                        ..Followed::LAST
                    });
                    return Some([&self.interim[..], head].concat());
                }
                status => {
                    let head = std::mem::take(&mut self.message).into_held();
                    let (last, followed) = self.last(status, &head);
                    self.followed = Some(followed);
                    return Some([&self.interim[..], &last].concat());
                }
            }
        }
    }

    /// Returns what the client gets in place of the final head, and what follows it.
    fn last(&self, status: Option<u16>, head: &[u8]) -> (Vec<u8>, Followed) {
        let followed = followed(head, &self.exchange, self.is_early).filter(|_| !self.is_in_doubt);
        let followed = followed.unwrap_or(Followed::LAST);
        match rewritten(head, Some(followed.reuse())) {
            _ if status == Some(SWITCHES) => self.refusal(BadAnswer::Switch),
            Ok(last) => (last, followed),
            Err(Unclear::Length) => self.refusal(BadAnswer::Length),
            Err(Unclear::Head) => (marked(head), followed),
        }
    }

    /// Returns the proxy's own response in place of one that is not valid. The target's connection
    /// is not used again.
    fn refusal(&self, why: BadAnswer) -> (Vec<u8>, Followed) {
        let response = with_text(Status::BadGateway, "The target's answer is not valid.");
        let keeps_client = self.exchange.reuse == Reuse::KeepAlive && !self.is_early;
        let response = if keeps_client {
            kept(&response, self.exchange.is_head)
        } else {
            response
        };
        let followed = Followed {
            body: Remaining::Bytes(0),
            keeps_client,
            refused: Some(why),
            ..Followed::LAST
        };
        (response, followed)
    }
}

/// Returns the status in the first line of a head, or `None` if that is not a line of HTTP/1.
fn status(head: &[u8]) -> Option<u16> {
    let line = head[..head.iter().position(|byte| *byte == b'\n')?].trim_ascii_end();
    match line.strip_prefix(b"HTTP/1.")? {
        [b'0'..=b'9', b' ', digits @ ..] => {
            let (digits, reason) = digits.split_at_checked(3)?;
            let is_number = digits.iter().all(u8::is_ascii_digit) && matches!(reason, [] | [b' ', ..]);
            is_number.then(|| {
                digits
                    .iter()
                    .fold(0, |number, digit| 10 * number + u16::from(digit - b'0'))
            })
        }
        _ => None,
    }
}

/// Returns what follows a head, or `None` if readers could disagree on it. The parser is strict.
fn followed(head: &[u8], exchange: &Exchange, is_early: bool) -> Option<Followed> {
    let mut fields = fields_for(head);
    let parsed = strictly_parsed(head, &mut fields)?;
    let (minor, status) = (parsed.version?, parsed.code?);
    let length = length(minor, parsed.headers).ok()?;
    let body = match (status, length) {
        (200..=599, _) if exchange.is_head => Remaining::Bytes(0),
        // Some readers expect the body that these fields describe.
        (204 | 304, Some(Body::Chunked)) => return None,
        (204, Some(Body::Bytes(1..))) => return None,
        (204 | 304, _) => Remaining::Bytes(0),
        (200..=599, Some(body)) => body.into(),
        (200..=599, None) => return None,
        _ => return None,
    };
    let persists = persists(minor, parsed.headers);
    // A target that closes does not read the rest of the request. A client that waits for an
    // interim response may never send it.
    let is_read = !is_early || persists && !exchange.expects_continue;
    let keeps_client = exchange.reuse == Reuse::KeepAlive && is_read;
    Some(match body {
        // A body in chunks that is not parsed passes through the kernel. A client that cannot read
        // chunks takes the end of the connection for that of the body.
        Remaining::Chunks(_) if !keeps_client || !exchange.reads_chunks => Followed::LAST,
        body => Followed {
            body,
            keeps_client,
            keeps_target: keeps_client && persists,
            ..Followed::LAST
        },
    })
}

/// Returns whether all readers agree that an interim response has no body.
fn is_clear_interim(head: &[u8]) -> bool {
    let mut fields = fields_for(head);
    let parsed = strictly_parsed(head, &mut fields);
    parsed.is_some_and(|parsed| matches!(length(parsed.version.unwrap_or(1), parsed.headers), Ok(None)))
}

/// Parses a head without any leniency.
fn strictly_parsed<'fields, 'head>(
    head: &'head [u8],
    fields: &'fields mut [Header<'head>],
) -> Option<httparse::Response<'fields, 'head>> {
    let mut parsed = httparse::Response::new(fields);
    let is_whole = parsed.parse(head) == Ok(httparse::Status::Complete(head.len()));
    (is_whole && !has_bare_line_feed(head)).then_some(parsed)
}

/// Returns room for the fields of a head. A field has a line of its own, and the size of the head
/// limits them. Any other limit would refuse what clients accept.
fn fields_for(head: &[u8]) -> Vec<Header<'_>> {
    let lines = head.iter().filter(|byte| **byte == b'\n').count();
    vec![httparse::EMPTY_HEADER; lines]
}

/// Why a head cannot be rewritten.
enum Unclear {
    /// It is not valid.
    Head,
    /// It states several lengths, or one that is no number.
    Length,
}

/// Returns the head with what applies to the client's connection. An interim response has no
/// `reuse`, and no body, whatever its fields say.
fn rewritten(head: &[u8], reuse: Option<Reuse>) -> Result<Vec<u8>, Unclear> {
    let mut fields = fields_for(head);
    let mut parsed = httparse::Response::new(&mut fields);
    let mut lenient = httparse::ParserConfig::default();
    // RFC 9112 section 5 lets a proxy repair these two in a response.
    lenient.allow_spaces_after_header_name_in_responses(true);
    lenient.allow_obsolete_multiline_headers_in_responses(true);
    match lenient.parse_response(&mut parsed, head) {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
        _ => return Err(Unclear::Head),
    }
    let (version, code) = parsed.version.zip(parsed.code).ok_or(Unclear::Head)?;
    let mut last = match code {
        DEMANDS_CREDENTIALS => format!("HTTP/1.{version} {BAD_GATEWAY}").into_bytes(),
        _ => status_line(head).to_vec(),
    };
    let mut length = reuse.map_or(Ok(None), |_| stated_length(parsed.headers))?;
    for field in parsed.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            // Equal fields become one (RFC 9110 section 8.6).
            if let Some(length) = length.take() {
                push(&mut last, field.name, length);
            }
        } else if is("transfer-encoding") && reuse.is_some() || is_passed_on(field, parsed.headers) {
            push(&mut last, field.name, field.value);
        }
    }
    if let Some(reuse) = reuse {
        push(&mut last, "Connection", reuse.as_str().as_bytes());
    }
    last.extend_from_slice(b"\r\n");
    Ok(last)
}

/// Returns an interim response as the client gets it.
fn interim(head: &[u8]) -> Vec<u8> {
    rewritten(head, None).unwrap_or_else(|_| [status_line(head), b"\r\n"].concat())
}

/// Returns the length that all `Content-Length` fields state. A response with a transfer coding has
/// none, whatever these fields say (RFC 9112 section 6.3).
fn stated_length<'head>(fields: &[Header<'head>]) -> Result<Option<&'head [u8]>, Unclear> {
    let of = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    if of("transfer-encoding").next().is_some() {
        return Ok(None);
    }
    let values = of("content-length").flat_map(|field| field.value.split(|byte| *byte == b','));
    let mut values = values.map(<[u8]>::trim_ascii);
    let Some(first) = values.next() else {
        return Ok(None);
    };
    let is_clear = bytes(first).is_some() && values.all(|other| other == first);
    is_clear.then_some(Some(first)).ok_or(Unclear::Length)
}

/// Returns the first line of a head, with its line end.
fn status_line(head: &[u8]) -> &[u8] {
    let end = head.iter().position(|byte| *byte == b'\n');
    &head[..end.map_or(head.len(), |end| end + 1)]
}

/// Appends a field. A folded value gets blanks in place of its line ends.
fn push(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    let blank = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    head.extend(value.iter().map(blank));
    head.extend_from_slice(b"\r\n");
}

/// Returns the bytes with the mark behind their status line, or unchanged if they have none.
fn marked(bytes: &[u8]) -> Vec<u8> {
    let line = bytes.iter().position(|byte| *byte == b'\n');
    let (line, rest) = match line.filter(|_| status(bytes).is_some()) {
        Some(end) => bytes.split_at(end + 1),
        None => return bytes.to_vec(),
    };
    [line, LAST, rest].concat()
}

fn is_passed_on(field: &Header<'_>, fields: &[Header<'_>]) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    let named = options(fields).any(|option| option.eq_ignore_ascii_case(field.name.as_bytes()));
    !(named || is("transfer-encoding") || NOT_PASSED_ON.into_iter().any(is))
}

#[cfg(test)]
mod tests;
