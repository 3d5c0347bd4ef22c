//! Answers of targets, and bodies in chunks.

use spliceway_protocol::http::{Answer, Chunks};

use super::{Decision, decision};

/// The most bytes of the heads of one answer, which the program may replace for the client.
const HEADS_BYTES_MAX: usize = 64 << 10;

/// Checks that an answer's bytes decide what a client reads, however they were cut into reads. The
/// client reads the heads as they are and the last one with a close, or all of it as it came. The
/// first byte says how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn http_answer(bytes: &[u8]) {
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut answer = Answer::default();
        let mut taken = 0;
        for mut input in pieces {
            let before = input.len();
            let given = answer.feed(&mut input);
            taken += before - input.len();
            assert!(taken <= HEADS_BYTES_MAX);
            match given {
                None => assert!(input.is_empty(), "input before the end is taken whole"),
                Some(given) => return Decision::Made(given, taken),
            }
        }
        assert!(answer.cut_short().len() <= taken);
        Decision::<_, ()>::Undecided
    };
    let Some((stream, Decision::Made(given, taken))) = decision(bytes, converse) else {
        return;
    };
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Response::new(&mut fields);
    if given == stream[..taken] || !matches!(parsed.parse(&given), Ok(httparse::Status::Complete(_))) {
        return;
    }
    if parsed.code.is_some_and(|code| code == 101 || code >= 200) {
        let closes = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case("connection");
        let connection: Vec<_> = parsed.headers.iter().filter(closes).map(|field| field.value).collect();
        assert_eq!(connection, [b"close"], "a client is told that this is the last answer");
    }
}

/// Checks that the bytes of a body in chunks decide where it ends, however they were cut into
/// reads. Nothing after the end is taken.
///
/// # Panics
/// Panics if a property does not hold.
pub fn http_chunks(bytes: &[u8]) {
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut chunks, mut taken) = (Chunks::default(), 0);
        for input in pieces {
            match chunks.take(input) {
                Err(malformed) => return Decision::Refused(malformed),
                Ok(bytes) => taken += bytes,
            }
            if chunks.are_over() {
                return Decision::Made((), taken);
            }
        }
        Decision::Undecided
    };
    if let Some((stream, Decision::Made((), taken))) = decision(bytes, converse) {
        assert!(stream[..taken].ends_with(b"\r\n\r\n"));
        assert_eq!(
            Chunks::default().take(&stream[..taken]),
            Ok(taken),
            "it is whole by itself"
        );
    }
}
