//! Basic authentication (RFC 7617).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::Header;

use crate::protocol::Credentials;

/// What the client says it is; `None` if it does not, in more than one way, or in a way that is not known here.
pub(super) fn of_fields(fields: &[Header<'_>]) -> Option<Credentials> {
    let mut values = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("proxy-authorization"));
    let value = values.next()?.value;
    match values.next() {
        None => decode(value),
        Some(_) => None,
    }
}

fn decode(value: &[u8]) -> Option<Credentials> {
    let (scheme, encoded) = value.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let pair = STANDARD.decode(encoded.trim_ascii()).ok()?;
    // A name has no colon; a secret may.
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Credentials {
        name: pair[..colon].into(),
        secret: pair[colon + 1..].into(),
    })
}

/// The value of a field that says it; `None` of a name with a colon, which would end there.
pub(in crate::protocol) fn encode(credentials: &Credentials) -> Option<String> {
    if credentials.name.contains(&b':') {
        return None;
    }
    let pair = [&credentials.name, &b":"[..], &credentials.secret].concat();
    Some(format!("Basic {}", STANDARD.encode(pair)))
}
