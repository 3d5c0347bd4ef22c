//! The head that is sent on in place of the client's.

use httparse::Header;

use super::framing::options;
use super::target::Absolute;

/// For this connection alone, whatever `Connection` says (RFC 9110 section 7.6.1), or written anew. `Transfer-Encoding` is of the first
/// kind by the letter, and stays: the body passes as it is.
const NOT_SENT_ON: [&str; 6] = ["connection", "host", "http2-settings", "keep-alive", "te", "upgrade"];

/// What fields for proxies begin with; and `Proxy` alone is one that CGI programs take for a setting of theirs.
const PROXY: &str = "proxy";
/// Who we are in a `Via`.
const PSEUDONYM: &str = "spliceway";

/// Origin form, the `Host` of the URI (RFC 9112 section 3.2.2), the client's fields in their order, and a wish to close.
///
/// The version is the client's: it reads the answer as it comes, and one of HTTP/1.0 could not read a body in chunks.
pub(super) fn head(method: &str, uri: &Absolute<'_>, minor: u8, fields: &[Header<'_>]) -> Vec<u8> {
    let path = match (method, uri.path) {
        // Of the server as a whole, RFC 9112 section 3.2.4.
        ("OPTIONS", "") => "*",
        (_, path) => path,
    };
    let slash = if path.starts_with(['/', '*']) { "" } else { "/" };
    let mut head = format!("{method} {slash}{path} HTTP/1.{minor}\r\nHost: {}\r\n", uri.authority).into_bytes();
    for field in fields.iter().filter(|field| is_sent_on(field.name, fields)) {
        head.extend_from_slice(field.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(field.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend(format!("Via: 1.{minor} {PSEUDONYM}\r\nConnection: close\r\n\r\n").into_bytes());
    head
}

fn is_sent_on(name: &str, fields: &[Header<'_>]) -> bool {
    let of_proxies = name
        .get(..PROXY.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PROXY));
    let ours = of_proxies || NOT_SENT_ON.iter().any(|other| name.eq_ignore_ascii_case(other));
    !ours && !options(fields).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
}
