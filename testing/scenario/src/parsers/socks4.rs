//! SOCKS4 and SOCKS4a as a server receives them.

use spliceway_protocol::Demand;
use spliceway_protocol::socks4::{Refusal, RequestStage};

use super::{Decision, assert_sound, decision, demand, feed};

/// The head, and two fields with a 0 byte after each.
const REQUEST_BYTES_MAX: usize = 8 + 2 * (255 + 1);

/// Checks that the outcome for a SOCKS4 request depends only on its bytes, however they were cut
/// into reads. The first byte selects how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn socks4(bytes: &[u8]) {
    let demand = demand(bytes);
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut stage = RequestStage::new(demand);
        feed(pieces, REQUEST_BYTES_MAX, |input| stage.feed(input))
    };
    match decision(bytes, converse) {
        None | Some((_, Decision::Undecided)) => {}
        Some((stream, Decision::Made((request, user_id), bytes))) => {
            assert_eq!(demand, Demand::Nothing, "it knows no password");
            assert_sound(&request.target);
            let port = request.target.port().expect("no file");
            assert_eq!(stream[2..4], port.to_be_bytes());
            assert!(user_id.len() <= 255 && !user_id.contains(&0));
            assert_eq!(stream[8..][..user_id.len()], *user_id);
            assert_eq!(stream[bytes - 1], 0, "it ends with a field");
        }
        Some((_, Decision::Refused(refusal))) => match refusal.answer()[..] {
            [] => assert_eq!(refusal, Refusal::Version),
            [0, 91, 0, 0, 0, 0, 0, 0] => assert_ne!(refusal, Refusal::Version),
            ref answer => panic!("{refusal:?} is answered {answer:?}"),
        },
    }
}
