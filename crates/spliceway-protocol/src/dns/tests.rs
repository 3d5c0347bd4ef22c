use super::*;

/// A query for `name`, whose labels are separated by dots.
fn query(name: &str, kind: u16, more: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"\xab\xcd\x01\x10\0\x01\0\0\0\0\0".to_vec();
    bytes.push(more.len() as u8);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend([kind, CLASS_IN].map(u16::to_be_bytes).as_flattened());
    bytes.extend(more.concat());
    bytes
}

/// The record of a client that accepts this many bytes, for a version of EDNS.
fn edns(bytes: u16, version: u8) -> Vec<u8> {
    let [high, low] = bytes.to_be_bytes();
    vec![0, 0, 41, high, low, 0, version, 0x80, 0, 0, 0]
}

fn parse(bytes: &[u8]) -> Query {
    Query::parse(bytes).unwrap()
}

/// The code of the answer to bytes that are no query. `None` means that there is no answer.
fn code(bytes: &[u8]) -> Option<u8> {
    let Malformed(answer) = Query::parse(bytes).unwrap_err();
    if answer.is_empty() {
        return None;
    }
    assert_eq!(answer[..2], bytes[..2], "the identifier");
    assert!(
        answer.len() <= HEADER_BYTES + 11 && answer[2] & IS_ANSWER != 0,
        "{answer:?}"
    );
    Some(answer[3] & 0x0F)
}

const ONE: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7))];

#[test]
fn an_answer_repeats_the_question_with_the_case_of_its_letters() {
    let bytes = query("wWw.EXAMPLE.com", TYPE_A, &[]);
    let query = parse(&bytes);
    assert_eq!(
        (query.name.as_deref(), query.record_type),
        (Some("www.example.com"), RecordType::V4)
    );
    let answer = query.datagram(Reply::Addresses(&ONE, 5));
    let end = b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\xc0\0\x02\x07";
    assert_eq!(
        answer,
        [b"\xab\xcd\x81\x90\0\x01\0\x01\0\0\0\0", &bytes[12..], end].concat()
    );
    let stream = query.stream(Reply::Addresses(&ONE, 5));
    assert_eq!(stream, [&(answer.len() as u16).to_be_bytes()[..], &answer].concat());
}

#[test]
fn an_answer_has_no_more_addresses_than_its_length_can_tell() {
    let query = parse(&query("a.test", TYPE_AAAA, &[]));
    let addresses = vec![IpAddr::from([0; 16]); 3000];
    let answer = query.stream(Reply::Addresses(&addresses, 5));
    let length = u16::from_be_bytes([answer[0], answer[1]]);
    assert_eq!(answer.len(), usize::from(length) + 2);
    assert_eq!(answer[8..10], 2000_u16.to_be_bytes());
}

#[test]
fn each_reply_has_its_code_and_no_records() {
    let query = parse(&query("a.test", TYPE_AAAA, &[]));
    assert_eq!(query.record_type, RecordType::V6);
    for (reply, code) in [
        (Reply::Addresses(&[], 5), 0),
        (Reply::Failed, 2),
        (Reply::NoSuchName, 3),
        (Reply::Blocked, 3),
    ] {
        let answer = query.datagram(reply);
        assert_eq!(
            answer[..12],
            [0xab, 0xcd, 0x81, 0x90 | code, 0, 1, 0, 0, 0, 0, 0, 0],
            "{reply:?}"
        );
        assert_eq!(answer[12..], *b"\x01a\x04test\0\0\x1c\0\x01");
    }
}

#[test]
fn a_client_with_edns_reads_why_a_name_is_blocked() {
    let query = parse(&query("a.test", TYPE_A, &[&edns(4096, 0)]));
    let answer = query.datagram(Reply::Blocked);
    assert_eq!(answer[11], 1);
    assert!(answer.ends_with(b"\0\0\x29\x04\xd0\0\0\0\0\0\x1e\0\x0f\0\x1a\0\x0fno rule allows this name"));
    assert_eq!(BLOCKED.len(), 4 + 0x1a, "the length in the option");
    assert!(
        query
            .datagram(Reply::Addresses(&[], 5))
            .ends_with(b"\0\0\x29\x04\xd0\0\0\0\0\0\0")
    );
}

#[test]
fn an_answer_that_does_not_fit_a_datagram_is_cut_to_none() {
    let label = "a".repeat(63);
    let name = [&*label; 3].join(".");
    let many = [IpAddr::V6(std::net::Ipv6Addr::LOCALHOST); 40];
    for (accepted, count, is_whole) in [
        (None, 10, true),
        (None, 11, false),
        (Some(100), 10, true),
        (Some(100), 11, false),
        (Some(1000), 27, true),
        (Some(1000), 28, false),
        (Some(4096), 36, true),
        (Some(4096), 37, false),
    ] {
        let more = accepted.map(|bytes| edns(bytes, 0));
        let more: Vec<&[u8]> = more.iter().map(Vec::as_slice).collect();
        let query = parse(&query(&name, TYPE_AAAA, &more));
        let answer = query.datagram(Reply::Addresses(&many[..count], 5));
        let most = accepted.unwrap_or(512).clamp(512, 1232);
        assert!(answer.len() <= most.into());
        assert_eq!(answer[2] & IS_CUT == 0, is_whole, "{accepted:?} {count}");
        assert_eq!(usize::from(answer[7]), if is_whole { count } else { 0 });
        // The whole of it arrives over TCP.
        let whole = query.stream(Reply::Addresses(&many[..count], 5));
        assert_eq!((whole[4] & IS_CUT, usize::from(whole[9])), (0, count));
    }
}

#[test]
fn other_types_and_classes_ask_for_no_address() {
    for kind in [2, 5, 16, 64, 65, 255] {
        assert_eq!(
            parse(&query("a.test", kind, &[])).record_type,
            RecordType::Other,
            "{kind}"
        );
    }
    let mut chaos = query("version.bind", 16, &[]);
    *chaos.last_mut().unwrap() = 3;
    assert_eq!(parse(&chaos).name, None);
}

#[test]
fn a_label_that_no_host_has_is_part_of_no_name() {
    // A dot in a label would make `a.b` of one label that of two.
    for label in ["a\0b", "a b", "\u{e4}", "a/b", "*", "\\"] {
        assert_eq!(
            parse(&query(&format!("{label}.test"), TYPE_A, &[])).name,
            None,
            "{label:?}"
        );
    }
    let dot = [&query("", TYPE_A, &[])[..12], b"\x03a.b\x04test\0\0\x01\0\x01"].concat();
    assert_eq!(parse(&dot).name, None);
    assert_eq!(parse(&query("", TYPE_A, &[])).name, None, "the root");
    assert_eq!(
        parse(&query("_a-1.test", TYPE_A, &[])).name.as_deref(),
        Some("_a-1.test")
    );
}

#[test]
fn a_name_has_at_most_255_bytes_and_labels_of_63() {
    let label = |length| "a".repeat(length);
    let name = [label(63), label(63), label(63), label(61)].join(".");
    assert_eq!(parse(&query(&name, TYPE_A, &[])).name.as_deref(), Some(&*name));
    assert_eq!(code(&query(&format!("{name}a"), TYPE_A, &[])), Some(FORMAT_ERROR));
    assert_eq!(code(&query(&label(64), TYPE_A, &[])), Some(FORMAT_ERROR));
}

#[test]
fn what_is_no_query_gets_a_code_or_nothing() {
    let good = query("a.test", TYPE_A, &[]);
    let with = |index: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[index] = byte;
        bytes
    };
    for (what, bytes, expected) in [
        ("nothing", Vec::new(), None),
        ("half a header", good[..11].into(), None),
        ("an answer", with(2, 0x81), None),
        ("an answer to an update", with(2, 0xA8), None),
        ("an update", with(2, 0x28), Some(NOT_IMPLEMENTED)),
        ("no question", with(5, 0), Some(FORMAT_ERROR)),
        ("two questions", with(5, 2), Some(FORMAT_ERROR)),
        ("65,281 questions", with(4, 0xFF), Some(FORMAT_ERROR)),
        ("a record that is an answer", with(7, 1), Some(FORMAT_ERROR)),
        ("an authority", with(9, 1), Some(FORMAT_ERROR)),
        ("a record that is not there", with(11, 1), Some(FORMAT_ERROR)),
        ("a pointer to itself", with(12, 0xC0), Some(FORMAT_ERROR)),
        ("an extended label", with(12, 0x41), Some(FORMAT_ERROR)),
        ("a label past the end", with(14, 0x3F), Some(FORMAT_ERROR)),
        ("bytes after the end", [&good[..], b"x"].concat(), Some(FORMAT_ERROR)),
        (
            "two records of EDNS",
            query("a", 1, &[&edns(512, 0), &edns(512, 0)]),
            Some(FORMAT_ERROR),
        ),
        (
            "EDNS of a name",
            query("a", 1, &[&[&b"\x01b"[..], &edns(512, 0)].concat()]),
            Some(FORMAT_ERROR),
        ),
        (
            "EDNS of a pointer",
            query("a", 1, &[b"\xc0\x0c\0\x29\x02\0\0\0\0\0\0\0"]),
            Some(FORMAT_ERROR),
        ),
        (
            "another version of EDNS",
            query("a", 1, &[&edns(512, 1)]),
            Some(NO_ERROR),
        ),
    ] {
        assert_eq!(code(&bytes), expected, "{what}");
    }
    for end in 12..good.len() {
        assert_eq!(code(&good[..end]), Some(FORMAT_ERROR), "{end} bytes");
    }
    let Malformed(version) = Query::parse(&query("a", 1, &[&edns(512, 1)])).unwrap_err();
    assert_eq!(version[12..], *b"\0\0\x29\x04\xd0\x01\0\0\0\0\0", "the code is 16");
}

#[test]
fn other_records_after_the_question_do_not_matter() {
    // A signature (TSIG), whose name points into the question, and to itself.
    for owner in [b"\xc0\x0c", b"\xc0\x18"] {
        let signature = [&owner[..], b"\0\xfa\0\xff\0\0\0\0\0\x02xx"].concat();
        let query = parse(&query("a.test", TYPE_A, &[&signature, &edns(1400, 0)]));
        assert_eq!((query.name.as_deref(), query.edns), (Some("a.test"), Some(1400)));
    }
}
