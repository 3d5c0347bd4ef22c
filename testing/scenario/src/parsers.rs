//! Properties that hold for any input that strangers send to the parsers, or that users type.

mod answer;
mod dns;
mod http;
mod pem;
mod proxy_header;
mod sniff;
mod socks4;
mod socks5;
mod tls;
mod upstream;

pub use answer::{http_answer, http_chunks};
pub use dns::dns;
pub use http::http;
pub use pem::pem;
pub use proxy_header::proxy_header;
pub use sniff::sniff;
pub use socks4::socks4;
pub use socks5::socks5;
pub use tls::tls;
pub use upstream::upstream;

use std::fmt::Debug;

use spliceway_protocol::address::{ListenAddress, Target};
use spliceway_protocol::rule::{Hosts, TargetRule, canonical_name};
use spliceway_protocol::{Credentials, Demand, printable};

/// The outcome of parsing.
#[derive(Debug, PartialEq, Eq)]
enum Decision<T, R> {
    Undecided,
    /// The value, and the number of bytes that the parser used. The next byte belongs to the next
    /// part.
    Made(T, usize),
    Refused(R),
}

/// A name and a password, for comparison.
type Pair = (Vec<u8>, Vec<u8>);

/// Returns the demand, which the highest bit of the first byte selects. The first byte also selects
/// how to cut the other bytes.
fn demand(bytes: &[u8]) -> Demand {
    match bytes {
        [0x80..=0xFF, ..] => Demand::Password,
        _ => Demand::Nothing,
    }
}

/// Returns the outcome of a conversation. It depends only on the bytes, however they are cut into
/// reads.
fn decision<T, R>(
    bytes: &[u8],
    converse: impl Fn(&mut dyn Iterator<Item = &[u8]>) -> Decision<T, R>,
) -> Option<(&[u8], Decision<T, R>)>
where
    Decision<T, R>: PartialEq + Debug,
{
    let (&cut, stream) = bytes.split_first()?;
    let whole = converse(&mut [stream].into_iter());
    assert_eq!(whole, converse(&mut irregular(cut, stream)), "cut by {cut}");
    assert_eq!(whole, converse(&mut stream.chunks(1)), "byte by byte");
    Some((stream, whole))
}

fn irregular(cut: u8, stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut state = u32::from(cut);
    let mut rest = stream;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, after) = rest.split_at(rest.len().min(1 + (state >> 28) as usize));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Feeds a parser until it has decided, and counts the bytes that it uses: never more than
/// `bytes_max`.
fn feed<T, R>(
    pieces: &mut dyn Iterator<Item = &[u8]>,
    bytes_max: usize,
    mut feed: impl FnMut(&mut &[u8]) -> Result<Option<T>, R>,
) -> Decision<T, R> {
    let mut taken = 0;
    for mut input in pieces {
        let before = input.len();
        let fed = feed(&mut input);
        taken += before - input.len();
        assert!(taken <= bytes_max, "{taken} bytes are taken, of {bytes_max} at most");
        match fed {
            Ok(None) => assert!(input.is_empty(), "input before the end is taken whole"),
            Ok(Some(made)) => return Decision::Made(made, taken),
            Err(refusal) => return Decision::Refused(refusal),
        }
    }
    Decision::Undecided
}

/// Checks that a client's target is an address, or a name that harms neither a log nor a lookup.
/// The target is not a Unix socket.
fn assert_sound(target: &Target) {
    assert!(!matches!(target, Target::Unix(_)), "{target:?}");
    let written = target.to_string();
    assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
    assert_eq!(written.parse().as_ref(), Ok(target), "it reads back");
}

fn pair(credentials: &Credentials) -> Pair {
    let text = credentials.name_as_text();
    assert_eq!(text, printable(&credentials.name));
    assert!(
        text.len() <= 255 && !text.contains(|c: char| !c.is_ascii_graphic() && c != ' '),
        "{text:?}"
    );
    (credentials.name.to_vec(), credentials.secret.to_vec())
}

/// Checks that an address in text form parses to the same address, and that no accepted address
/// garbles a log.
///
/// # Panics
/// Panics if a property does not hold.
pub fn address(text: &str) {
    if let Ok(target) = text.parse::<Target>() {
        let written = target.to_string();
        assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
        assert_eq!(written.parse(), Ok(target), "{text:?}");
    }
    if let Ok(listen) = text.parse::<ListenAddress>() {
        let written = listen.to_string();
        assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
        assert_eq!(written.parse(), Ok(listen), "{text:?}");
    }
    if let Some(target) = Target::named(text, 0) {
        assert!(target.to_string().len() <= "[]:0".len() + 255, "{target}");
    }
}
/// A rule reads back as it was written, and its text has only characters that a log may show. A
/// name in a rule is in the form in which the names of clients are compared with it.
///
/// # Panics
/// Panics if a property does not hold.
pub fn target_rule(text: &str) {
    if let Ok(rule) = text.parse::<TargetRule>() {
        let written = rule.to_string();
        assert!(written.bytes().all(|byte| byte.is_ascii_graphic()), "{written:?}");
        assert_eq!(written.parse().as_ref(), Ok(&rule), "{text:?}");
        assert!(rule.ports.0.iter().all(|(first, last)| 0 < *first && first <= last));
        if let Hosts::Name(name) | Hosts::Below(name) = &rule.hosts {
            assert_eq!(canonical_name(name).as_deref(), Some(&**name), "{text:?}");
            let spelled = format!("{}.", name.to_ascii_uppercase());
            assert_eq!(canonical_name(&spelled).as_deref(), Some(&**name), "{text:?}");
            assert!(
                matches!(Target::named(name, 0), Some(Target::Name(..))),
                "no client can ask for {name}"
            );
        }
    }
}
