//! ClientHellos as a router of TLS connections receives them.

use rustls::server::Acceptor;
use spliceway_protocol::tls::{ClientHello, Hello};

use super::{Decision, decision, feed};

const HELLO_BYTES_MAX: usize = 20 << 10;

/// Checks that the outcome for a ClientHello depends only on its bytes, however they were cut into
/// reads. Also checks that no byte of it is changed or lost, that its name is safe for a log, and
/// that rustls reads no other name: a route chooses the target, and rustls the certificate.
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
    compare(&hello);
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

/// Checks that rustls refuses the hello, or reads the same in it.
fn compare(hello: &ClientHello) {
    let mut acceptor = Acceptor::default();
    let mut bytes = &hello.bytes[..];
    while !bytes.is_empty() {
        if acceptor.read_tls(&mut bytes).is_err() {
            return;
        }
    }
    let Ok(accepted) = acceptor.accept() else {
        return;
    };
    let Some(accepted) = accepted else {
        // The parser has read no more of a hello of SSL 2.0.
        assert_ne!(hello.bytes[0], 22, "rustls waits for more");
        return;
    };
    let other = accepted.client_hello();
    assert_eq!(hello.name.as_deref(), other.server_name(), "rustls reads another name");
    let protocols = other.alpn().into_iter().flatten();
    assert!(
        hello.protocols.iter().map(|name| &**name).eq(protocols),
        "rustls reads other protocols"
    );
}
