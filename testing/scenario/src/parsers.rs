//! What must hold for whatever strangers send to the parsers, and users type.

use spliceway_proxy::address::{ListenAddress, Target};
use spliceway_proxy::protocol::socks5::{Greeting, NoAuth, Refusal, Reply, Request, UNSPECIFIED};

/// Two bytes, and as many methods or bytes of a name as one byte can count.
const GREETING_BYTES_MAX: usize = 2 + 255;
const REQUEST_BYTES_MAX: usize = 4 + 1 + 255 + 2;

/// What a client's bytes came to.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Undecided,
    /// And how many bytes the handshake was.
    Target(Target, usize),
    Refused(Refusal),
}

/// A SOCKS5 handshake is decided by its bytes, however they were cut into reads. The first byte says how to cut the rest.
///
/// # Panics
/// If something does not hold that must.
pub fn socks5(bytes: &[u8]) {
    let Some((&cut, stream)) = bytes.split_first() else {
        return;
    };
    let whole = converse([stream]);
    let mut state = u32::from(cut);
    let mut rest = stream;
    let irregular = std::iter::from_fn(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (piece, after) = rest.split_at(rest.len().min(1 + (state >> 28) as usize));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(whole, converse(irregular), "cut by {cut}");
    assert_eq!(whole, converse(stream.chunks(1)), "byte by byte");
    match whole {
        Decision::Undecided => {}
        Decision::Target(target, _) => {
            assert!(!target.to_string().contains(char::is_control), "{target:?}");
            assert_eq!(target.to_string().parse(), Ok(target), "it reads back");
        }
        Decision::Refused(refusal) => assert_well_formed(refusal),
    }
}

fn converse<'stream>(pieces: impl IntoIterator<Item = &'stream [u8]>) -> Decision {
    let (mut greeting, mut request) = (Greeting::default(), None);
    let (mut greeting_bytes, mut request_bytes) = (0, 0);
    for mut input in pieces {
        let before = input.len();
        let agreed: Result<Option<Request>, _> = match request.take() {
            Some(request) => Ok(Some(request)),
            None => greeting.feed(&mut input).map(|agreed| agreed.map(NoAuth::request)),
        };
        greeting_bytes += before - input.len();
        assert!(
            greeting_bytes <= GREETING_BYTES_MAX,
            "a greeting of {greeting_bytes} bytes"
        );
        let decided = match agreed {
            Ok(Some(agreed)) => {
                let before = input.len();
                let fed = request.insert(agreed).feed(&mut input);
                request_bytes += before - input.len();
                assert!(request_bytes <= REQUEST_BYTES_MAX, "a request of {request_bytes} bytes");
                fed
            }
            Ok(None) => Ok(None),
            Err(refusal) => Err(refusal),
        };
        match decided {
            Ok(None) => assert!(input.is_empty(), "what is not the end is taken whole"),
            Ok(Some(target)) => return Decision::Target(target, greeting_bytes + request_bytes),
            Err(refusal) => return Decision::Refused(refusal),
        }
    }
    Decision::Undecided
}

/// RFC 1928: a method selection that selects none, or a reply that says why not.
fn assert_well_formed(refusal: Refusal) {
    let answer = refusal.answer();
    match answer[..] {
        [] => assert_eq!(refusal, Refusal::Version),
        [5, 0xFF] => assert_eq!(refusal, Refusal::Method),
        [5, code, 0, 1, _, _, _, _, _, _] => assert_ne!(code, Reply::Succeeded as u8),
        _ => panic!("{refusal:?} is answered {answer:?}"),
    }
    assert!(!refusal.as_str().is_empty() && answer != Reply::Succeeded.encode(UNSPECIFIED));
}

/// An address reads back as it is written, and none that is accepted could garble a log.
///
/// # Panics
/// If something does not hold that must.
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
