use super::message::Message;
use super::*;

/// Returns the ways to split a stream: into up to three pieces, or into two if the stream has more
/// than 64 bytes. The last way splits it into single bytes.
pub(super) fn cuttings(stream: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let bytes = stream.len();
    let second_of = move |first| match bytes <= 64 {
        true => first..=bytes,
        false => bytes..=bytes,
    };
    let pieces = (0..=bytes).flat_map(move |first| {
        second_of(first).map(move |second| vec![&stream[..first], &stream[first..second], &stream[second..]])
    });
    pieces.chain([stream.chunks(1).collect()])
}

/// The length of a test message of at most 4 bytes. The first byte is the number of bytes that
/// follow it.
fn counted(held: &[u8]) -> Result<usize, &'static str> {
    match held {
        [] => Ok(1),
        [count @ 0..=3, ..] => Ok(1 + usize::from(*count)),
        _ => Err("too long"),
    }
}

#[test]
fn a_message_consumes_only_its_own_bytes() {
    for pieces in cuttings(&[3, 7, 8, 9, 10, 11]) {
        let (mut message, mut whole, mut left) = (Message::default(), None, Vec::new());
        for mut input in pieces {
            if whole.is_none() {
                whole = message.feed(&mut input, counted).unwrap().map(<[u8]>::to_vec);
            }
            left.extend(input);
        }
        assert_eq!(
            (whole.as_deref(), left.as_slice()),
            (Some(&[3, 7, 8, 9][..]), &[10, 11][..])
        );
    }
}

#[test]
fn a_refused_message_holds_only_the_bytes_that_decided_it() {
    let mut message = Message::default();
    let mut input = &[4, 1, 2, 3, 4][..];
    assert_eq!(message.feed(&mut input, counted), Err("too long"));
    assert_eq!(input, [1, 2, 3, 4]);
    assert_eq!(format!("{message:?}"), "Message(1 bytes)");
}

#[test]
fn a_secret_is_not_shown() {
    let credentials = Credentials {
        name: (*b"ann").into(),
        secret: (*b"hush").into(),
    };
    assert_eq!(format!("{credentials:?}"), "Credentials { name: \"ann\", .. }");
    let mut message = Message::default();
    let _ = message.feed(&mut &b"\x03hush"[..], counted);
    assert!(!format!("{message:?}").contains("104"), "{message:?}");
}

#[test]
fn names_in_a_log_are_short_and_printable() {
    for (bytes, text) in [
        (&b"ann lee"[..], "ann lee"),
        (b"a\nb\x1b[2J\"", "a\\nb\\x1b[2J\\\""),
        ("bj\u{f6}rn".as_bytes(), "bj\\xc3\\xb6rn"),
        (b"", ""),
    ] {
        assert_eq!(&*printable(bytes), text);
    }
    for byte in 0..=255 {
        let text = printable(&[byte; 300]);
        assert!(
            text.len() == 255 && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
            "{text}"
        );
    }
}

#[test]
fn every_refusal_has_its_own_reason_and_a_matching_answer() {
    let refused: [Vec<Refused>; 3] = [
        socks5::Refusal::ALL.map(Refused::from).into(),
        socks4::Refusal::ALL.map(Refused::from).into(),
        http::Refusal::ALL.map(Refused::from).into(),
    ];
    for refused in refused {
        let mut reasons: Vec<&str> = refused.iter().map(|refused| refused.reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        assert_eq!(reasons.len(), refused.len(), "{reasons:?}");
        for Refused { reason, answer } in refused {
            assert_eq!(answer.is_empty(), reason == "version", "{reason}");
        }
    }
}
