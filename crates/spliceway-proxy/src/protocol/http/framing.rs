//! Whether everybody who reads a head agrees on where the body ends.
//!
//! The body passes as it is, and a target that reads its end elsewhere than a proxy before or behind us takes a part of it for a request:
//! request smuggling. So what RFC 9112 section 6 lets a recipient refuse is refused.

use httparse::Header;

use super::{Body, Refusal};

/// Any number of so many digits fits 64 bits.
const LENGTH_MAX_DIGITS: usize = 19;

/// How long the body is.
pub(super) fn body(minor: u8, fields: &[Header<'_>]) -> Result<Body, Refusal> {
    let of = |name: &'static str| fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    if of("host").count() > 1 {
        return Err(Refusal::Malformed);
    }
    // Two of a kind are two opinions, even where both are the same today.
    if of("content-length").count() > 1 || of("transfer-encoding").count() > 1 {
        return Err(Refusal::Framing);
    }
    let body = match (of("content-length").next(), of("transfer-encoding").next()) {
        (None, None) => Some(Body::Bytes(0)),
        (Some(length), None) => bytes(length.value).map(Body::Bytes),
        // HTTP/1.0 has no codings, and of others than this one nobody but the target knows an end.
        (None, Some(coding)) => (minor > 0 && coding.value.eq_ignore_ascii_case(b"chunked")).then_some(Body::Chunked),
        (Some(_), Some(_)) => None,
    };
    // To be told to take the framing off is to be told to smuggle.
    let severed = options(fields).any(|option| {
        option.eq_ignore_ascii_case(b"content-length") || option.eq_ignore_ascii_case(b"transfer-encoding")
    });
    body.filter(|_| !severed).ok_or(Refusal::Framing)
}

fn bytes(length: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(length).ok()?;
    let is_number = digits.len() <= LENGTH_MAX_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// What the fields named `Connection` name: the fields that are for this connection alone.
pub(super) fn options<'head>(fields: &'head [Header<'head>]) -> impl Iterator<Item = &'head [u8]> {
    let connection = |field: &&Header<'_>| field.name.eq_ignore_ascii_case("connection");
    let values = fields.iter().filter(connection);
    values.flat_map(|field| field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii))
}
