//! SOCKS5 as a server receives it.

use spliceway_protocol::socks5::{Greeting, Offer, PasswordStage, Refusal, Reply, RequestStage, UNSPECIFIED};
use spliceway_protocol::{Demand, Proof, Request};

use super::{Decision, Pair, assert_sound, decision, demand, feed, pair};

/// Two bytes, and the most methods that one byte can count.
const GREETING_BYTES_MAX: usize = 2 + 255;
const PASSWORD_BYTES_MAX: usize = 1 + 2 * (1 + 255);
const REQUEST_BYTES_MAX: usize = 4 + 1 + 255 + 2;

/// The parts of a handshake before the complete request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    answer: Option<[u8; 2]>,
    credentials: Option<Pair>,
}

/// Checks that the outcome of a SOCKS5 handshake depends only on its bytes, however they were cut
/// into reads. The first byte selects how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn socks5(bytes: &[u8]) {
    let demand = demand(bytes);
    let bytes_max = match demand {
        Demand::Nothing => GREETING_BYTES_MAX + REQUEST_BYTES_MAX,
        Demand::Password => GREETING_BYTES_MAX + PASSWORD_BYTES_MAX + REQUEST_BYTES_MAX,
    };
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut server = Server::Greeting(Greeting::new(demand));
        let mut heard = Heard::default();
        let made = feed(pieces, bytes_max, |input| server.feed(input, &mut heard));
        match made {
            Decision::Made(request, bytes) => Decision::Made((heard, request), bytes),
            Decision::Refused(refusal) => Decision::Refused(refusal),
            Decision::Undecided => Decision::Undecided,
        }
    };
    match decision(bytes, converse) {
        None | Some((_, Decision::Undecided)) => {}
        Some((stream, Decision::Made((heard, request), bytes))) => {
            assert_sound(&request.target);
            let port = request.target.port().expect("no file");
            assert!(
                stream[..bytes].ends_with(&port.to_be_bytes()),
                "the port is the last of it"
            );
            assert_eq!(
                heard.credentials.is_some(),
                demand == Demand::Password,
                "nobody skips the password"
            );
            let method = heard.answer.expect("a method was chosen")[1];
            assert!(
                stream[2..2 + usize::from(stream[1])].contains(&method),
                "it was offered"
            );
        }
        Some((_, Decision::Refused(refusal))) => assert_well_formed(refusal),
    }
}

enum Server {
    Greeting(Greeting),
    Password(PasswordStage),
    Request(RequestStage),
}

impl Server {
    fn feed(&mut self, input: &mut &[u8], heard: &mut Heard) -> Result<Option<Request>, Refusal> {
        loop {
            let next = match self {
                Self::Greeting(greeting) => greeting.feed(input)?.map(|offer| {
                    heard.answer = Some(offer.answer());
                    match offer {
                        Offer::Agreed(agreed) => Self::Request(agreed.request()),
                        Offer::Password(stage) => Self::Password(stage),
                    }
                }),
                Self::Password(stage) => stage.feed(input)?.map(|(credentials, undecided)| {
                    heard.credentials = Some(pair(&credentials));
                    Self::Request(undecided.accept(Proof::of_known_user()).request())
                }),
                Self::Request(stage) => return stage.feed(input),
            };
            match next {
                Some(next) => *self = next,
                None => return Ok(None),
            }
        }
    }
}

/// Checks the answer to a refused client. RFC 1928: a method selection that selects none, or a
/// reply with the reason. RFC 1929: a status other than 0.
fn assert_well_formed(refusal: Refusal) {
    let answer = refusal.answer();
    match answer[..] {
        [] => assert_eq!(refusal, Refusal::Version),
        [5, 0xFF] => assert_eq!(refusal, Refusal::Method),
        [1, status] => assert!(refusal == Refusal::PasswordVersion && status != 0),
        [5, code, 0, 1, _, _, _, _, _, _] => assert_ne!(code, Reply::Succeeded as u8),
        _ => panic!("{refusal:?} is answered {answer:?}"),
    }
    assert!(!refusal.as_str().is_empty() && answer != Reply::Succeeded.encode(UNSPECIFIED));
}
