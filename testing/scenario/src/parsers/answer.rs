//! Answers from targets, and chunked bodies.

use spliceway_protocol::http::{Answer, Body, Chunks, Exchange, Remaining, Reuse};

use super::{Decision, decision};

/// The most head bytes of one answer. The program may replace these heads for the client.
const HEADS_BYTES_MAX: usize = 64 << 10;

/// The request of a client that wants to send another one.
const KEPT: Exchange = Exchange {
    reuse: Reuse::KeepAlive,
    is_head: false,
    is_connect: false,
    reads_chunks: true,
    is_idempotent: true,
    expects_continue: false,
    body: Body::Bytes(0),
};

/// Checks that the client's view of an answer depends only on its bytes, however they were cut into
/// reads. The client reads either the whole answer unchanged, or heads of which the last one says
/// whether the connection stays open. That head has at most one length, and the connection stays
/// open only if each reader finds it. The first byte selects how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn http_answer(bytes: &[u8]) {
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut answer = Answer::to(KEPT);
        let mut taken = 0;
        for mut input in pieces {
            let before = input.len();
            let given = answer.feed(&mut input);
            taken += before - input.len();
            assert!(taken <= HEADS_BYTES_MAX);
            match given {
                None => assert!(input.is_empty(), "input before the end is taken whole"),
                Some(given) => {
                    let followed = answer.into_followed().expect("the head is complete");
                    assert!(followed.keeps_client || !followed.keeps_target);
                    let has_end = !matches!(followed.body, Remaining::UntilClose);
                    assert_eq!(
                        followed.keeps_client, has_end,
                        "an answer without an end is the last one"
                    );
                    return Decision::Made((given, followed.keeps_client), taken);
                }
            }
        }
        Decision::<_, ()>::Undecided
    };
    let Some((stream, Decision::Made((given, is_kept), taken))) = decision(bytes, converse) else {
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
        let expected: &[u8] = if is_kept { b"keep-alive" } else { b"close" };
        assert_eq!(
            connection,
            [expected],
            "a client is told whether this is the last answer"
        );
        let count = |name: &str| {
            let is = |field: &&httparse::Header<'_>| field.name.eq_ignore_ascii_case(name);
            parsed.headers.iter().filter(is).count()
        };
        let (lengths, codings) = (count("content-length"), count("transfer-encoding"));
        assert!(lengths == 0 || lengths == 1 && codings == 0);
        assert!(!is_kept || codings <= 1);
    }
}

/// Checks that the end of a chunked body depends only on its bytes, however they were cut into
/// reads. The parser does not use bytes after the end.
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
