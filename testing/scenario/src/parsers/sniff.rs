//! The first bytes of clients whose protocol is not known.

use spliceway_protocol::http::HttpRequest;
use spliceway_protocol::sniff::{Protocol, Sniffed, Sniffer};

use super::{Decision, assert_sound, decision, feed};

const BYTES_MAX: usize = 20 << 10;

/// Checks that what a client states depends only on its bytes, however they were cut into reads.
/// Also checks that no byte is changed or lost, because a server gets them. The first byte selects
/// how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn sniff(bytes: &[u8]) {
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut sniffer = Sniffer::new(&Protocol::ALL);
        let mut given = Vec::new();
        let mut pieces = pieces.inspect(|piece| given.extend_from_slice(piece));
        match feed(&mut pieces, BYTES_MAX, |input| Ok::<_, ()>(sniffer.feed(input))) {
            Decision::Made(Sniffed::Tls(Ok(hello)), taken) => {
                let bytes = hello.bytes.clone();
                Decision::Made((Sniffed::Tls(Ok(hello)), bytes), taken)
            }
            Decision::Made(Sniffed::Tls(Err(refusal)), _) => {
                // A record is refused at its first wrong byte, or when it has come as a whole. The
                // number of bytes that were consumed then depends on the reads.
                assert!(given.starts_with(&sniffer.into_bytes()));
                Decision::Made((Sniffed::Tls(Err(refusal)), Vec::new()), 0)
            }
            Decision::Made(sniffed, taken) => Decision::Made((sniffed, sniffer.into_bytes()), taken),
            Decision::Undecided => Decision::Undecided,
            Decision::Refused(()) => Decision::Refused(()),
        }
    };
    let Some((stream, Decision::Made((sniffed, consumed), taken))) = decision(bytes, converse) else {
        return;
    };
    assert_eq!(consumed, stream[..taken]);
    if let Sniffed::Http(Ok(HttpRequest::Forward { target, head, .. })) = sniffed {
        assert_sound(&target);
        let hosts = head
            .split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"Host: "));
        assert_eq!(hosts.count(), 1, "the target reads one host");
    }
}
