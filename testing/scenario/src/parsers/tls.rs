//! ClientHellos as a router of TLS connections receives them.

use spliceway_protocol::tls::Hello;

use super::{Decision, decision, feed};

const HELLO_BYTES_MAX: usize = 20 << 10;

/// Checks that the outcome for a ClientHello depends only on its bytes, however they were cut into
/// reads. Also checks that no byte of it is changed or lost, and that its name is safe for a log.
/// The first byte selects how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn tls(bytes: &[u8]) {
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut hello = Hello::new();
        feed(pieces, HELLO_BYTES_MAX, |input| hello.feed(input))
    };
    let Some((stream, Decision::Made(hello, taken))) = decision(bytes, converse) else {
        return;
    };
    assert_eq!(hello.bytes, stream[..taken]);
    let of_names = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if let Some(name) = hello.name {
        assert!(
            (1..=253).contains(&name.len()) && name.bytes().all(of_names),
            "{name:?}"
        );
        assert!(
            !name.starts_with('.') && !name.ends_with('.') && !name.contains(".."),
            "{name:?}"
        );
    }
    assert!(hello.protocols.iter().all(|protocol| !protocol.is_empty()));
}
