//! Basic authentication (RFC 7617).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::Header;

use crate::Credentials;

/// Returns the client's credentials. Returns `None` if there is no field, if there is more than
/// one, or if the field is not valid for this scheme.
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
    // A name cannot contain a colon, but a password can.
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Credentials {
        name: pair[..colon].into(),
        secret: pair[colon + 1..].into(),
    })
}

/// Returns the value of a field with these credentials. Returns `None` if the name contains a
/// colon, because the name would end there.
pub(crate) fn encode(credentials: &Credentials) -> Option<String> {
    if credentials.name.contains(&b':') {
        return None;
    }
    let pair = [&credentials.name, &b":"[..], &credentials.secret].concat();
    Some(format!("Basic {}", STANDARD.encode(pair)))
}
