//! What a request means for the connections that it uses: whether they can carry another request.
//!
//! A connection carries another request only if both sides agree where the request and its answer
//! end. Suppose that a proxy and a target disagree on one end. The next request then begins in the
//! middle of a body, which is request smuggling. Therefore, the proxy closes the connection after
//! everything that is in doubt.

use httparse::Header;

use super::framing::options;
use super::{Body, Chunks, Malformed};

/// What the proxy must know of a request after it has forwarded the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Whether the client's connection stays open after the answer.
    pub reuse: Reuse,
    /// Whether the answer has no body, whatever its head says: the method is HEAD.
    pub is_head: bool,
    /// Whether the method is CONNECT. The client may send bytes of its tunnel before the answer.
    pub is_connect: bool,
    /// Whether the client can read a body in chunks, as every client of HTTP/1.1 can.
    pub reads_chunks: bool,
    /// Whether the method is idempotent (RFC 9110 section 9.2.2).
    pub is_idempotent: bool,
    /// Whether the client may wait for an interim answer, or for a refusal, before it sends the
    /// body.
    pub expects_continue: bool,
    /// The part of the following bytes that belongs to the request. It is empty for CONNECT.
    pub body: Body,
}

/// Whether a client's connection stays open after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// The connection closes.
    Close,
    /// The client may send another request. The answer says so, because clients of HTTP/1.0 need
    /// it.
    KeepAlive,
}

impl Reuse {
    /// Returns the value of `Connection` that announces this.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::KeepAlive => "keep-alive",
        }
    }
}

impl Exchange {
    /// An exchange after which the connection closes.
    pub(super) const LAST: Self = Self {
        reuse: Reuse::Close,
        is_head: false,
        is_connect: false,
        reads_chunks: true,
        is_idempotent: false,
        expects_continue: false,
        body: Body::Bytes(0),
    };

    /// Returns what a request of HTTP/1.`minor` means for its connections. `head` has the bytes
    /// that were parsed.
    pub(super) fn of(method: &str, minor: u8, fields: &[Header<'_>], body: Body, head: &[u8]) -> Self {
        // After CONNECT, a body and the bytes of the tunnel look alike. A client that asks for an
        // upgrade may have sent bytes of the new protocol.
        let is_clear = match body {
            Body::Upgrade => false,
            body => method != "CONNECT" || body == Body::Bytes(0),
        };
        let reuse = if is_clear && persists(minor, fields) && !has_bare_line_feed(head) {
            Reuse::KeepAlive
        } else {
            Reuse::Close
        };
        Self {
            reuse,
            is_head: method == "HEAD",
            is_connect: method == "CONNECT",
            reads_chunks: minor > 0,
            is_idempotent: matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"),
            expects_continue: fields.iter().any(|field| field.name.eq_ignore_ascii_case("expect")),
            body,
        }
    }

    /// Returns whether the proxy may send the request a second time, if a connection that has
    /// carried other requests ends before the first byte of an answer.
    pub fn may_repeat(&self) -> bool {
        self.is_idempotent && matches!(self.body, Body::Bytes(0) | Body::Upgrade)
    }

    /// Returns the body to read and discard before the next request, if the proxy answers this
    /// request itself and the connection may stay open. A body above `max` bytes is not worth it.
    pub fn unread_body(&self, max: u64) -> Option<Remaining> {
        let is_certain = self.body == Body::Bytes(0) || !self.expects_continue;
        match self.body {
            _ if self.reuse == Reuse::Close || !is_certain => None,
            Body::Bytes(bytes) => (bytes <= max).then_some(Remaining::Bytes(bytes)),
            Body::Chunked => Some(Remaining::Chunks(Chunks::default())),
            Body::Upgrade => None,
        }
    }
}

/// Returns whether the sender of these fields lets the connection stay open (RFC 9112 section 9.3).
///
/// `Proxy-Connection` has no specification. Clients that use it mean `Connection`.
pub(super) fn persists(minor: u8, fields: &[Header<'_>]) -> bool {
    let names = |wanted: &str| options(fields).any(|option| option.eq_ignore_ascii_case(wanted.as_bytes()));
    let values = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let says = |wanted: &str| {
        let mut values = values("proxy-connection").flat_map(|field| field.value.split(|byte| *byte == b','));
        values.any(|option| option.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let closes = names("close") || says("close");
    !closes && (minor > 0 || names("keep-alive") || says("keep-alive"))
}

/// Returns whether a line ends without a carriage return. Some readers accept this, and others do
/// not.
pub(super) fn has_bare_line_feed(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter().any(|byte| {
        *byte == b'\n' && before != b'\r' || {
            before = *byte;
            false
        }
    })
}

/// The part of a body that has not arrived yet.
#[derive(Debug)]
pub enum Remaining {
    /// This many bytes.
    Bytes(u64),
    /// A body in chunks.
    Chunks(Chunks),
    /// Everything until the connection ends.
    UntilClose,
}

impl Remaining {
    /// Returns how many of these next bytes belong to the body.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the body is not valid chunked encoding.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::UntilClose => Ok(bytes.len()),
            Self::Chunks(chunks) => chunks.take(bytes),
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
        }
    }

    /// Returns whether the body is complete.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Bytes(left) => *left == 0,
            Self::Chunks(chunks) => chunks.are_over(),
            Self::UntilClose => false,
        }
    }
}

impl From<Body> for Remaining {
    fn from(body: Body) -> Self {
        match body {
            Body::Bytes(bytes) => Self::Bytes(bytes),
            Body::Upgrade => Self::Bytes(0),
            Body::Chunked => Self::Chunks(Chunks::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Demand;
    use crate::http::Head;

    fn exchange(stream: &str) -> Exchange {
        let mut head = Head::new(Demand::Nothing);
        head.feed(&mut stream.as_bytes()).unwrap().expect("a whole head");
        head.exchange()
    }

    #[test]
    fn a_connection_persists_as_its_client_says() {
        for (version, fields, persists) in [
            ("1.1", "", true),
            ("1.1", "Connection: keep-alive\r\n", true),
            ("1.1", "Proxy-Connection: Keep-Alive\r\n", true),
            ("1.1", "Connection: x, CLOSE\r\n", false),
            ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
            ("1.1", "Proxy-Connection: close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Proxy-Connection: keep-alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
            ("1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", false),
            ("1.1", "Connection: Upgrade\r\nUpgrade: h2c\r\n", true),
        ] {
            for line in ["GET http://a/", "CONNECT a:1"] {
                let exchange = exchange(&format!("{line} HTTP/{version}\r\n{fields}\r\n"));
                let is_upgrade = exchange.body == Body::Upgrade;
                let expected = persists || line.starts_with("CONNECT") && fields.contains("websocket");
                assert_eq!(
                    exchange.reuse == Reuse::KeepAlive,
                    expected,
                    "{line} {version} {fields:?} {is_upgrade}"
                );
            }
        }
    }

    #[test]
    fn a_connection_closes_after_a_head_that_readers_may_end_elsewhere() {
        for head in [
            "GET http://a/ HTTP/1.1\n\n",
            "GET http://a/ HTTP/1.1\r\nX: a\n\r\n",
            "GET http://a/ HTTP/1.1\r\nX: a\r\n\n",
            "\nGET http://a/ HTTP/1.1\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert_eq!(exchange(head).reuse, Reuse::Close, "{head:?}");
        }
        assert_eq!(exchange("\r\nGET http://a/ HTTP/1.1\r\n\r\n").reuse, Reuse::KeepAlive);
    }

    #[test]
    fn only_idempotent_requests_without_a_body_may_be_repeated() {
        for (line, fields, may_repeat) in [
            ("GET http://a/", "", true),
            ("DELETE http://a/", "", true),
            ("GET http://a/", "Connection: Upgrade\r\nUpgrade: websocket\r\n", true),
            ("POST http://a/", "", false),
            ("PATCH http://a/", "", false),
            ("get http://a/", "", false),
            ("PUT http://a/", "Content-Length: 1\r\n", false),
            ("GET http://a/", "Transfer-Encoding: chunked\r\n", false),
            ("CONNECT a:1", "", false),
        ] {
            let exchange = exchange(&format!("{line} HTTP/1.1\r\n{fields}\r\n"));
            assert_eq!(exchange.may_repeat(), may_repeat, "{line} {fields:?}");
        }
    }

    #[test]
    fn a_refused_body_is_read_if_it_is_certain_to_come_and_small() {
        for (fields, is_read) in [
            ("", true),
            ("Expect: 100-continue\r\n", true),
            ("Content-Length: 9\r\n", true),
            ("Content-Length: 10\r\n", false),
            ("Content-Length: 9\r\nExpect: 100-continue\r\n", false),
            ("Transfer-Encoding: chunked\r\n", true),
            ("Connection: close\r\n", false),
        ] {
            let exchange = exchange(&format!("PUT http://a/ HTTP/1.1\r\n{fields}\r\n"));
            assert_eq!(exchange.unread_body(9).is_some(), is_read, "{fields:?}");
        }
    }
}
