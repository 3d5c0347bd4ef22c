//! Checks that all readers of a head agree on the end of the body.
//!
//! The body passes unchanged. Suppose that the target and a proxy on the path disagree on the end
//! of the body. The target then mistakes a part of the body for a request, which is request
//! smuggling. Therefore, the parser refuses everything that RFC 9112 section 6 allows a recipient
//! to refuse.

use httparse::Header;

use super::{Body, Refusal};

/// Every decimal number of this many digits fits into 64 bits.
const LENGTH_MAX_DIGITS: usize = 19;

/// Returns the form of the body that the fields of a request describe. Without such fields, a
/// request has no body.
pub(super) fn body(minor: u8, fields: &[Header<'_>]) -> Result<Body, Refusal> {
    length(minor, fields).map(|length| length.unwrap_or(Body::Bytes(0)))
}

/// Returns the form of the body that the fields describe, if they describe one.
pub(super) fn length(minor: u8, fields: &[Header<'_>]) -> Result<Option<Body>, Refusal> {
    let of = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    if of("host").count() > 1 {
        return Err(Refusal::Malformed);
    }
    // Two fields with the same name are ambiguous, even if their values are equal.
    if of("content-length").count() > 1 || of("transfer-encoding").count() > 1 {
        return Err(Refusal::Framing);
    }
    let body = match (of("content-length").next(), of("transfer-encoding").next()) {
        (None, None) => Some(None),
        (Some(length), None) => bytes(length.value).map(|bytes| Some(Body::Bytes(bytes))),
        // HTTP/1.0 has no transfer codings. Only the target can find the end of a body with another
        // coding.
        (None, Some(coding)) => {
            (minor > 0 && coding.value.eq_ignore_ascii_case(b"chunked")).then_some(Some(Body::Chunked))
        }
        (Some(_), Some(_)) => None,
    };
    // A request to remove the framing fields is an attempt at request smuggling.
    let severed = options(fields).any(|option| {
        option.eq_ignore_ascii_case(b"content-length") || option.eq_ignore_ascii_case(b"transfer-encoding")
    });
    body.filter(|_| !severed).ok_or(Refusal::Framing)
}

/// Returns the number of a `Content-Length`, if it is one.
pub(super) fn bytes(length: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(length).ok()?;
    let is_number = digits.len() <= LENGTH_MAX_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Returns the options in all `Connection` fields: the names of fields that apply to this
/// connection alone.
pub(super) fn options<'head>(fields: &'head [Header<'head>]) -> impl Iterator<Item = &'head [u8]> {
    let connection = |field: &&Header<'_>| field.name.eq_ignore_ascii_case("connection");
    let values = fields.iter().filter(connection);
    values.flat_map(|field| field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}
