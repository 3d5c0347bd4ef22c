//! PROXY headers as a server behind a load balancer receives them.

use spliceway_protocol::proxy::{Accept, Header, Source, Version, encode};

use super::{Decision, decision, feed};

/// The version 2 head, and the most bytes that its length field can specify.
const HEADER_BYTES_MAX: usize = 16 + u16::MAX as usize;

/// Checks that the outcome for a header depends only on its bytes, however they were cut into
/// reads. Also checks that a header written for the parsed connection parses to that connection
/// again. The first byte selects how to cut the rest, and which versions are accepted.
///
/// # Panics
/// Panics if a property does not hold.
pub fn proxy_header(bytes: &[u8]) {
    let accept = match bytes {
        [0..=0x3F, ..] => Accept::V1,
        [0x40..=0x7F, ..] => Accept::V2,
        _ => Accept::Any,
    };
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut header = Header::new(accept);
        feed(pieces, HEADER_BYTES_MAX, |input| header.feed(input))
    };
    let Some((stream, Decision::Made(source, taken))) = decision(bytes, converse) else {
        return;
    };
    match accept {
        Accept::V1 => assert!(stream[..taken].ends_with(b"\r\n") && taken <= 107),
        Accept::V2 => assert_eq!(stream[0], b'\r'),
        Accept::Any => {}
    }
    let Source::Proxied { client, reached } = source else {
        return;
    };
    for version in [Version::V1, Version::V2] {
        let written = encode(version, Some(client), Some(reached), &[]);
        let mut header = Header::new(Accept::Any);
        let mut input = &written[..];
        assert_eq!(header.feed(&mut input), Ok(Some(source)), "{version:?}");
        assert!(input.is_empty());
    }
}
