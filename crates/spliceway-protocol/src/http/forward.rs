//! Writes the head that the target receives in place of the client's head, with new values of
//! `Via`, `Max-Forwards` and `Upgrade`.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use httparse::Header;

use super::framing::options;
use super::response::last_recipient;
use super::target::Absolute;
use super::{HttpRequest, Refusal, Reuse, basic_credentials};
use crate::Credentials;

/// Fields that are not forwarded. Either they apply to this connection alone, even if `Connection`
/// does not name them (RFC 9110 section 7.6.1), or the proxy writes new ones.
///
/// Formally, `Transfer-Encoding` applies to this connection alone, too. The proxy forwards it,
/// because the body passes unchanged.
const NOT_SENT_ON: [&str; 6] = ["connection", "host", "http2-settings", "keep-alive", "te", "upgrade"];

/// The protocols for which a client that knows no proxy may leave HTTP. Behind such a proxy, rules
/// for names decide what the client reaches, and nothing checks the bytes after an upgrade.
/// WebSocket is a conversation with the server. Others, such as `connect-udp` and `connect-ip`, ask
/// the server to reach further hosts, as CONNECT does.
const UPGRADES_OF_SERVERS: [&str; 1] = ["websocket"];

const MAX_FORWARDS: &str = "max-forwards";
/// The prefix of fields for proxies. CGI programs can mistake a field named `Proxy` for one of
/// their own settings.
const PROXY: &str = "proxy";
/// Fields that the response to TRACE omits, because its reader may not be allowed to see them.
const SECRETS: [&str; 2] = ["authorization", "cookie"];

/// Returns the name of this instance in `Via`. The name is random, so that the proxy can
/// distinguish a request that returns from one that passed through another instance.
pub(super) fn pseudonym() -> &'static str {
    static PSEUDONYM: OnceLock<String> = OnceLock::new();
    PSEUDONYM.get_or_init(|| format!("spliceway-{:016x}", RandomState::new().hash_one(0)))
}

/// Returns this proxy's entry in the `Via` of an HTTP/1.`minor` request.
pub(super) fn own_via(minor: u8) -> String {
    format!("1.{minor} {}", pseudonym())
}

/// Returns the value of `Via` for a request with these fields, with this proxy's entry at the end.
/// Returns [`Refusal::Loop`] if the fields already contain that entry.
pub(super) fn via(minor: u8, fields: &[Header<'_>]) -> Result<String, Refusal> {
    let mut via = String::new();
    for field in fields.iter().filter(|field| field.name.eq_ignore_ascii_case("via")) {
        let value = String::from_utf8_lossy(field.value);
        // An entry consists of a protocol, a received-by name, and an optional comment (RFC 9110
        // section 7.6.3).
        let mut received_by = value.split(',').filter_map(|entry| entry.split_whitespace().nth(1));
        if received_by.any(|name| name == pseudonym()) {
            return Err(Refusal::Loop);
        }
        via.push_str(value.trim());
        via.push_str(", ");
    }
    via.push_str(&own_via(minor));
    Ok(via)
}

/// Returns the value of `Max-Forwards` if the method must respect it (RFC 9110 section 7.6.2).
pub(super) fn max_forwards(method: &str, fields: &[Header<'_>]) -> Result<Option<u64>, Refusal> {
    let mut values = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(MAX_FORWARDS));
    let (true, Some(field)) = (matches!(method, "TRACE" | "OPTIONS"), values.next()) else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(field.value).unwrap_or_default();
    let is_number = values.next().is_none() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number);
    number.map(Some).ok_or(Refusal::Malformed)
}

/// Returns the proxy's own response to a request that must not be forwarded.
pub(super) fn answer_in_place(method: &str, uri: &str, minor: u8, fields: &[Header<'_>]) -> HttpRequest {
    if method != "TRACE" {
        return HttpRequest::Answered(last_recipient(None));
    }
    let mut echoed = format!("{method} {uri} HTTP/1.{minor}\r\n").into_bytes();
    for field in fields.iter().filter(|field| !is_secret(field.name)) {
        push(&mut echoed, field.name, field.value);
    }
    echoed.extend_from_slice(b"\r\n");
    HttpRequest::Answered(last_recipient(Some(&echoed)))
}

fn is_secret(name: &str) -> bool {
    is_of_proxies(name) || SECRETS.iter().any(|secret| name.eq_ignore_ascii_case(secret))
}

/// Fields of the head that get a new value.
pub(super) struct Rewritten {
    /// The new `Max-Forwards`, if the request has one.
    pub(super) forwards: Option<u64>,
    /// The new `Upgrade`, if the client asks for another protocol.
    pub(super) upgrade: Option<String>,
    /// Whether the target's connection may carry another request of this client.
    pub(super) reuse: Reuse,
}

/// Returns the protocols to which an HTTP/1.`minor` request asks to upgrade, as far as the proxy
/// passes them on.
pub(super) fn upgrade(minor: u8, fields: &[Header<'_>], passes: fn(&str) -> bool) -> Option<String> {
    if minor == 0 || !options(fields).any(|option| option.eq_ignore_ascii_case(b"upgrade")) {
        return None;
    }
    let named = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("upgrade"));
    let values = named.filter_map(|field| std::str::from_utf8(field.value).ok());
    let protocols: Vec<&str> = values
        .flat_map(|value| value.split(',').map(str::trim))
        .filter(|protocol| !protocol.is_empty() && passes(protocol))
        .collect();
    (!protocols.is_empty()).then(|| protocols.join(", "))
}

/// Returns whether a protocol is no version of HTTP. The proxy could not find the ends of requests
/// of another version.
pub(super) fn is_no_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    !name.eq_ignore_ascii_case("h2c") && !name.eq_ignore_ascii_case("http")
}

/// Returns whether a client that knows no proxy may ask a server for this protocol.
pub(super) fn is_for_servers(protocol: &str) -> bool {
    UPGRADES_OF_SERVERS
        .iter()
        .any(|name| protocol.eq_ignore_ascii_case(name))
}

/// Returns the head for the target. The head contains, in this order:
///
/// - a request line in origin form,
/// - the `Host` of the URI (RFC 9112 section 3.2.2),
/// - the client's fields in their original order,
/// - the proxy's `Via`,
/// - a request to keep the connection, to close it, or to upgrade it.
///
/// The version is the client's version, because the client receives the body of the response
/// unchanged. An HTTP/1.0 client could not read a chunked body.
pub(super) fn head(
    method: &str,
    uri: &Absolute<'_>,
    minor: u8,
    fields: &[Header<'_>],
    rewritten: &Rewritten,
) -> Vec<u8> {
    let path = match (method, uri.path) {
        // The request concerns the server as a whole (RFC 9112 section 3.2.4).
        ("OPTIONS", "") => "*",
        (_, path) => path,
    };
    let slash = if path.starts_with(['/', '*']) { "" } else { "/" };
    let mut head = format!("{method} {slash}{path} HTTP/1.{minor}\r\nHost: {}\r\n", uri.authority).into_bytes();
    for field in fields.iter().filter(|field| is_sent_on(field.name, fields)) {
        match rewritten
            .forwards
            .filter(|_| field.name.eq_ignore_ascii_case(MAX_FORWARDS))
        {
            Some(forwards) => push(&mut head, field.name, forwards.to_string().as_bytes()),
            None => push(&mut head, field.name, field.value),
        }
    }
    push(&mut head, "Via", own_via(minor).as_bytes());
    match &rewritten.upgrade {
        Some(protocols) => {
            push(&mut head, "Upgrade", protocols.as_bytes());
            push(&mut head, "Connection", b"Upgrade");
        }
        None => push(&mut head, "Connection", rewritten.reuse.as_str().as_bytes()),
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Returns the head of an [`HttpRequest::Forward`] for a further proxy in place of the target: the
/// URI is absolute, and the head has the credentials for that proxy.
///
/// Returns `None` if HTTP cannot express the credentials.
pub fn for_proxy(head: &[u8], credentials: Option<&Credentials>) -> Option<Vec<u8>> {
    let (line, rest) = first_line(head)?;
    let (host, fields) = first_line(rest)?;
    let authority = host.strip_prefix(b"Host: ")?;
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    // The last proxy before the server writes the asterisk (RFC 9112 section 3.2.4).
    let path = if path == b"*" { &b""[..] } else { path };
    let mut head = [
        method,
        b" http://",
        authority,
        path,
        b" ",
        version,
        b"\r\n",
        host,
        b"\r\n",
    ]
    .concat();
    if let Some(credentials) = credentials {
        push(
            &mut head,
            "Proxy-Authorization",
            basic_credentials(credentials)?.as_bytes(),
        );
    }
    head.extend_from_slice(fields);
    Some(head)
}

/// Splits a head after its first line.
fn first_line(head: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = head.windows(2).position(|end| end == b"\r\n")?;
    Some((&head[..end], &head[end + 2..]))
}

fn push(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
}

fn is_sent_on(name: &str, fields: &[Header<'_>]) -> bool {
    let ours = is_of_proxies(name) || NOT_SENT_ON.iter().any(|other| name.eq_ignore_ascii_case(other));
    !ours && !options(fields).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
}

fn is_of_proxies(name: &str) -> bool {
    name.get(..PROXY.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PROXY))
}
