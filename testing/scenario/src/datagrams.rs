//! Properties that hold for any SOCKS5 datagram from a stranger.

use std::net::SocketAddr;

use spliceway_protocol::address::Target;
use spliceway_protocol::socks5::datagram::{HEADER_MAX_BYTES, Header, parse};

/// Checks the parts of an accepted datagram. The target is a possible destination and is safe in a
/// log. The data is the rest of the datagram, and the header matches this target.
///
/// # Panics
/// Panics if a property does not hold.
pub fn socks5_datagram(bytes: &[u8]) {
    let (target, data) = match parse(bytes) {
        Ok(read) => read,
        Err(malformed) => {
            assert!(!malformed.as_str().is_empty());
            return;
        }
    };
    let header = bytes.strip_suffix(data).expect("the data is the end");
    assert_eq!(header[..3], [0; 3], "neither reserved bits nor a fragment");
    assert_ne!(target.port(), Some(0));
    let written = target.to_string();
    assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
    // A host with such a name cannot be typed, because paths start with these letters.
    if !written.starts_with("unix:") {
        assert_eq!(written.parse(), Ok(target.clone()), "it reads back");
    }
    assert!(
        (0..header.len()).all(|end| parse(&header[..end]).is_err()),
        "no part of a header is one"
    );
    match target {
        Target::Ip(address) => assert_answerable(address, data),
        Target::Name(name, port) => {
            let said = [&[0, 0, 0, 3, name.len() as u8], name.as_bytes(), &port.to_be_bytes()].concat();
            assert_eq!(header, said);
        }
        Target::Unix(path) => panic!("a client named {}", path.display()),
    }
}

/// Checks that the header of an answer from this address contains the same address.
fn assert_answerable(address: SocketAddr, data: &[u8]) {
    let header = Header::of(address);
    assert!(header.as_bytes().len() <= HEADER_MAX_BYTES);
    let answer = [header.as_bytes(), data].concat();
    assert_eq!(parse(&answer), Ok((Target::Ip(address), data)));
}
