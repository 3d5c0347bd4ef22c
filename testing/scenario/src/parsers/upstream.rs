//! Answers from an upstream proxy.

use spliceway_protocol::Credentials;
use spliceway_protocol::address::Target;
use spliceway_protocol::client::{Error, Handshake, Language, Step};

use super::{Decision, decision, feed};

/// A method, a verdict, and a reply with the longest address.
const SOCKS5_BYTES_MAX: usize = 2 + 2 + (4 + 1 + 255 + 2);
const HTTP_BYTES_MAX: usize = 16 << 10;

const REQUEST: &[u8] = b"\x05\x01\x00\x03\x07example\x00\x50";
const PASSWORD: &[u8] = b"\x01\x03ann\x04hush";

/// Checks that the outcome for an upstream proxy's answer depends only on its bytes, however they
/// were cut into reads. The first byte selects how to cut the rest. Its two highest bits select the
/// protocol, and whether there are credentials.
///
/// # Panics
/// Panics if a property does not hold.
pub fn upstream(bytes: &[u8]) {
    let bits = bytes.first().map_or(0, |first| first >> 6);
    let (language, bytes_max) = match bits & 1 {
        0 => (Language::Socks5, SOCKS5_BYTES_MAX),
        _ => (Language::Http, HTTP_BYTES_MAX),
    };
    let ann = Credentials {
        name: (*b"ann").into(),
        secret: (*b"hush").into(),
    };
    let credentials = (bits & 2 != 0).then_some(&ann);
    let target = Target::named("example", 80).expect("a name");
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut handshake, _) =
            Handshake::start(language, &target, credentials, "1.1 scenario").expect("words for it");
        let mut said = Vec::new();
        let over = feed(pieces, bytes_max, |input| talk(&mut handshake, input, &mut said));
        match over {
            Decision::Made((), bytes) => Decision::Made(said, bytes),
            Decision::Refused(error) => Decision::Refused(error),
            Decision::Undecided => Decision::Undecided,
        }
    };
    match decision(bytes, converse) {
        None | Some((_, Decision::Undecided)) => {}
        Some((stream, Decision::Made(said, bytes))) => {
            assert_agreed(language, credentials.is_some(), &stream[..bytes], &said);
        }
        Some((_, Decision::Refused(error))) => {
            assert!(Error::ALL.contains(&error) && error.as_str().starts_with("upstream_"));
            assert!(
                !matches!(error, Error::Target | Error::Credentials),
                "both could be said"
            );
            assert!(
                error != Error::Authentication || credentials.is_some(),
                "none were told"
            );
        }
    }
}

fn talk(handshake: &mut Handshake, input: &mut &[u8], said: &mut Vec<Vec<u8>>) -> Result<Option<()>, Error> {
    loop {
        match handshake.feed(input)? {
            Step::Wait => return Ok(None),
            Step::Send(words) => said.push(words),
            Step::Connected => return Ok(Some(())),
        }
    }
}

/// Checks that the proxy agreed, and that it received no more than it asked for.
fn assert_agreed(language: Language, credentials: bool, heard: &[u8], said: &[Vec<u8>]) {
    match language {
        Language::Http => {
            assert!(said.is_empty());
            let answer = heard.escape_ascii().to_string();
            assert!(answer.starts_with("HTTP/1."), "{answer}");
            assert!(heard.ends_with(b"\n\n") || heard.ends_with(b"\n\r\n"), "{answer}");
        }
        Language::Socks5 => match heard[1] {
            0 => assert_eq!((said, &heard[..2], heard[3]), (&[REQUEST.to_vec()][..], &[5, 0][..], 0)),
            _ => {
                assert_eq!((heard[1], credentials), (2, true));
                assert_eq!(
                    (said, heard[3], heard[5]),
                    (&[PASSWORD.to_vec(), REQUEST.to_vec()][..], 0, 0)
                );
            }
        },
    }
}
