use super::*;

/// The first bytes of a client (`hellos/README.md`), and what they state.
struct Recorded {
    client: &'static str,
    bytes: &'static [u8],
    name: &'static str,
    protocols: &'static [&'static [u8]],
}

macro_rules! recorded {
    ($client:literal, $name:literal, $protocols:expr) => {
        Recorded {
            client: $client,
            bytes: include_bytes!(concat!("hellos/", $client, ".bin")),
            name: $name,
            protocols: $protocols,
        }
    };
}

const RECORDED: [Recorded; 6] = [
    recorded!("openssl", "example.com", &[]),
    recorded!("curl", "example.com", &[b"h2", b"http/1.1"]),
    recorded!("go", "example.com", &[b"h2", b"http/1.1"]),
    recorded!("go-ech", "public.example", &[b"h2", b"http/1.1"]),
    recorded!("chromium", "example.com", &[b"h2", b"http/1.1"]),
    recorded!("rustls", "example.com", &[b"h2", b"http/1.1"]),
];
const SERVER_NAME: u16 = 0;
const SIGNATURES: u16 = 13;
const PROTOCOLS: u16 = 16;

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &long(content)].concat()
}

/// Returns `content` behind its length in two bytes.
fn long(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&length.to_be_bytes()[..], content].concat()
}

fn name(name: &[u8]) -> Vec<u8> {
    extension(SERVER_NAME, &long(&[&[0][..], &long(name)].concat()))
}

fn signatures() -> Vec<u8> {
    extension(SIGNATURES, &long(&[4, 3]))
}

/// Returns a ClientHello message with these extensions and compressions.
fn message(extensions: &[Vec<u8>], compressions: &[u8]) -> Vec<u8> {
    let count = u8::try_from(compressions.len()).unwrap();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &long(&[0x13, 1]),
        &[count],
        compressions,
        &long(&extensions.concat()),
    ]
    .concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

/// Returns records with `bytes` bytes of the message each.
fn records(message: &[u8], bytes: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &long(part)].concat();
    message.chunks(bytes).flat_map(record).collect()
}

fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    records(&message(extensions, &[0]), 16 << 10)
}

/// Returns the result for bytes that arrive in these pieces.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<ClientHello>, Refusal> {
    let mut parser = Hello::new();
    for mut piece in pieces {
        if let Some(hello) = parser.feed(&mut piece)? {
            assert!(piece.is_empty(), "{} bytes are left", piece.len());
            return Ok(Some(hello));
        }
        assert!(piece.is_empty());
    }
    Ok(None)
}

fn refusal(bytes: &[u8]) -> Refusal {
    let refusal = read([bytes]).expect_err("a hostile hello");
    assert_eq!(read(bytes.chunks(1)), Err(refusal), "byte by byte");
    refusal
}

#[test]
fn hellos_of_real_clients_are_read_cut_at_every_byte() {
    for recorded in RECORDED {
        let Recorded {
            client,
            bytes,
            name,
            protocols,
        } = recorded;
        let expected = ClientHello {
            name: Some(name.into()),
            protocols: protocols.iter().map(|&protocol| protocol.into()).collect(),
            bytes: bytes.into(),
        };
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let had = read([first, second]).expect(client);
            assert_eq!(had.as_ref(), Some(&expected), "{client} at {cut}");
            if !second.is_empty() {
                assert_eq!(read([first]), Ok(None), "{client} at {cut}");
            }
        }
        assert_eq!(read(bytes.chunks(1)), Ok(Some(expected)), "{client}, byte by byte");
    }
}

#[test]
fn a_hello_is_read_in_records_of_every_size() {
    let message = &RECORDED[2].bytes[HEAD_BYTES..];
    for bytes in 1..=message.len() {
        let sent = records(message, bytes);
        let hello = read(sent.chunks(1000)).unwrap().expect("a whole hello");
        assert_eq!(
            (hello.name.as_deref(), hello.bytes),
            (Some("example.com"), sent),
            "{bytes}"
        );
    }
}

#[test]
fn bytes_after_the_hello_stay_in_the_input() {
    for Recorded { client, bytes, .. } in RECORDED {
        let sent = [bytes, b"early data"].concat();
        let (mut parser, mut input) = (Hello::new(), &sent[..]);
        let hello = parser.feed(&mut input).expect(client).expect(client);
        assert_eq!((&hello.bytes[..], input), (bytes, &b"early data"[..]));
    }
}

#[test]
fn sixteen_kib_of_extensions_are_read() {
    let padding = extension(21, &vec![0; (16 << 10) - 4]);
    let sent = hello(&[padding, name(b"example.com"), signatures()]);
    let hello = read(sent.chunks(1)).unwrap().expect("a whole hello");
    assert_eq!((hello.name.as_deref(), hello.bytes), (Some("example.com"), sent));
}

#[test]
fn a_name_has_one_form_however_it_is_written() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    for (sent, expected) in [
        (&b"Example.COM"[..], Some("example.com")),
        (b"example.com.", Some("example.com")),
        (b"a_b.xn--bcher-kva.example", Some("a_b.xn--bcher-kva.example")),
        (longest.as_bytes(), Some(longest.as_str())),
        // RFC 6066 forbids addresses. Clients that send one mean no name.
        (b"192.0.2.1", None),
        (b"2001:db8::1", None),
    ] {
        let hello = read([&hello(&[name(sent), signatures()])[..]]).unwrap().unwrap();
        assert_eq!(hello.name.as_deref(), expected, "{}", sent.escape_ascii());
    }
    let nameless = read([&hello(&[signatures()])[..]]).unwrap().unwrap();
    assert_eq!((nameless.name, nameless.protocols), (None, Vec::new()));
}

#[test]
fn an_invalid_name_is_refused() {
    for sent in [
        &b"exam\0ple.com"[..],
        b"example.com\0",
        b"b\xFCcher.example",
        b"a b.example",
        b"a..example",
        b"a.example..",
        b".",
        b".example",
        b"*.example",
        b"example.com\r\nHost: other",
        &[b'a'; 254],
        &[b'a'; 1000],
    ] {
        let sent = hello(&[name(sent), signatures()]);
        assert_eq!(refusal(&sent), Refusal::InvalidName, "{}", sent.escape_ascii());
    }
    let two = long(&[&[0][..], &long(b"a.example"), &[0], &long(b"b.example")].concat());
    for content in [two, vec![0], vec![0, 9], long(&[0]), long(&[0, 0, 9, b'a'])] {
        let sent = hello(&[extension(SERVER_NAME, &content), signatures()]);
        assert_eq!(refusal(&sent), Refusal::Malformed, "{content:?}");
    }
}

#[test]
fn what_is_no_hello_is_refused_at_once() {
    let valid = hello(&[name(b"example.com"), signatures()]);
    for (sent, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], Refusal::Missing),
        (b"\x05\x01\x00", Refusal::Missing),
        (b"SSH-2.0-x\r\n", Refusal::Missing),
        // An alert, a change of cipher, a record of no SSL, and what is almost a hello of SSL 2.0.
        (b"\x15\x03\x01\x00\x02\x02\x28", Refusal::Missing),
        (b"\x14\x03\x01\x00\x01\x01", Refusal::Missing),
        (b"\x16\x02\x01\x00\x04\x01", Refusal::Missing),
        (b"\x80\x2e\x04", Refusal::Missing),
        (b"\x80\x2e\x01\x01", Refusal::Missing),
        (b"\x80\x2e\x01\x00\x03", Refusal::Missing),
        (b"\x16\x03\x01\x00\x00", Refusal::Malformed),
        (b"\x16\x03\x01\x40\x01", Refusal::Malformed),
        (b"\x16\x03\x01\xFF\xFF", Refusal::Malformed),
        // A ServerHello, and a finished message.
        (b"\x16\x03\x01\x00\x04\x02\0\0\0", Refusal::Malformed),
        (b"\x16\x03\x01\x00\x04\x14\0\0\0", Refusal::Malformed),
        // A hello of 16 MiB.
        (b"\x16\x03\x01\x00\x04\x01\xFF\xFF\xFF", Refusal::TooLong),
        (b"\x16\x03\x01\x00\x01\x02", Refusal::Malformed),
        (b"\x16\x03\x01\x00\x04\x01\0\0\0", Refusal::Malformed),
    ] {
        assert_eq!(refusal(sent), expected, "{}", sent.escape_ascii());
    }
    for between in [
        &b"\x15\x03\x01\x00\x02\x01\x00"[..],
        b"\x17\x03\x01\x00\x01\x00",
        b"GET /",
    ] {
        let (first, second) = valid.split_at(HEAD_BYTES + 40);
        let mut first = first.to_vec();
        first[4] = 40;
        assert_eq!(refusal(&[&first, between, second].concat()), Refusal::Malformed);
    }
}

#[test]
fn a_hostile_hello_is_refused() {
    let named = name(b"example.com");
    let protocols = |content: &[u8]| extension(PROTOCOLS, content);
    for (what, sent, expected) in [
        (
            "a name twice",
            hello(&[named.clone(), named.clone()]),
            Refusal::Malformed,
        ),
        (
            "an empty protocol",
            hello(&[named.clone(), signatures(), protocols(&long(&[0]))]),
            Refusal::Malformed,
        ),
        (
            "a protocol that is cut",
            hello(&[named.clone(), signatures(), protocols(&long(&[2, b'h']))]),
            Refusal::Malformed,
        ),
        (
            "bytes after the list of names",
            hello(&[extension(SERVER_NAME, &[&named[4..], &[0]].concat()), signatures()]),
            Refusal::Malformed,
        ),
        (
            "a second list of names",
            hello(&[extension(SERVER_NAME, &named[4..].repeat(2)), signatures()]),
            Refusal::Malformed,
        ),
        (
            "bytes after an empty list of names",
            hello(&[extension(SERVER_NAME, &[0, 0, 0]), signatures()]),
            Refusal::Malformed,
        ),
        (
            "bytes after the list of protocols",
            hello(&[named.clone(), protocols(&[&long(b"\x02h2")[..], &[0]].concat())]),
            Refusal::Malformed,
        ),
        (
            "a long hello",
            hello(&[extension(21, &[0; 20 << 10])]),
            Refusal::TooLong,
        ),
        (
            "many records",
            records(&message(&[extension(21, &[0; 8 << 10])], &[0]), 1),
            Refusal::TooLong,
        ),
    ] {
        assert_eq!(refusal(&sent), expected, "{what}");
    }
}

/// Returns a record with a hello of this version, these ciphers and this end, which is everything
/// after the compressions.
fn old(record: u8, version: u8, session: &[u8], ciphers: &[u8], end: &[u8]) -> Vec<u8> {
    let session = [&[u8::try_from(session.len()).unwrap()][..], session].concat();
    let body = [&[3, version][..], &[7; 32], &session, &long(ciphers), &[2, 1, 0], end].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    [&[22, 3, record][..], &long(&message)].concat()
}

#[test]
fn a_router_judges_nothing_but_the_names() {
    let names = [name(b"example.com")].concat();
    let grease = extension(0x4a4a, &[0]);
    let unknown = extension(0xFFFF, b"unknown");
    let hidden = extension(0xfe0d, &[0; 300]);
    let all = [grease.clone(), hidden, names.clone(), unknown, grease].concat();
    let named = Some("example.com");
    for (what, sent, expected) in [
        ("SSL 3.0", old(0, 0, &[], &[0, 5], &[]), None),
        ("TLS 1.0 without extensions", old(0, 1, &[], &[0, 5], &[]), None),
        ("TLS 1.0", old(1, 1, &[], &[0, 5], &long(&names)), named),
        (
            "TLS 1.1 in a record of SSL 3.0",
            old(0, 2, &[9; 32], &[0, 5], &long(&names)),
            named,
        ),
        (
            "TLS 1.2 without signatures",
            old(1, 3, &[], &[0, 5], &long(&names)),
            named,
        ),
        ("a version of the future", old(9, 9, &[], &[0, 5], &long(&names)), named),
        (
            "a session of 255 bytes, and no ciphers",
            old(1, 3, &[9; 255], &[], &long(&names)),
            named,
        ),
        ("unknown extensions", old(1, 3, &[], &[0x2a; 60], &long(&all)), named),
        (
            "bytes after the extensions",
            old(1, 3, &[], &[0, 5], &[long(&names), vec![0; 9]].concat()),
            named,
        ),
        (
            "an extension without a name",
            old(1, 3, &[], &[0, 5], &long(&extension(SERVER_NAME, &[]))),
            None,
        ),
        (
            "an empty list of names",
            old(1, 3, &[], &[0, 5], &long(&extension(SERVER_NAME, &[0, 0]))),
            None,
        ),
        ("an empty name", old(1, 3, &[], &[0, 5], &long(&name(b""))), None),
        (
            "a name of another type",
            old(
                1,
                3,
                &[],
                &[0, 5],
                &long(&extension(SERVER_NAME, &long(&[7, 0, 1, b'x', 0, 0, 1, b'a']))),
            ),
            Some("a"),
        ),
        (
            "a second message",
            records(&[message(std::slice::from_ref(&names), &[0]), vec![1]].concat(), 999),
            named,
        ),
    ] {
        for size in [1, 7, 20_000] {
            let hello = read(sent.chunks(size)).expect(what).expect(what);
            assert_eq!((hello.name.as_deref(), &hello.bytes), (expected, &sent), "{what}");
        }
    }
}

#[test]
fn a_hello_of_ssl_2_names_nothing_and_passes() {
    for version in [[0, 2], [3, 0], [3, 1]] {
        let sent = [&[0x80, 46, 1][..], &version, &[0, 21, 0, 0, 0, 16], &[7; 37]].concat();
        let (mut parser, mut input) = (Hello::new(), &sent[..]);
        let hello = parser.feed(&mut input).unwrap().unwrap();
        assert_eq!((hello.name, &hello.bytes[..], input), (None, &sent[..5], &sent[5..]));
    }
}

#[test]
fn the_bytes_of_a_client_that_does_not_speak_tls_are_not_lost() {
    for sent in [
        &b"SSH-2.0-x\r\n"[..],
        b"\x05\x01\x00",
        b"\x16\x02\x01\x00\x04\x01",
        b"\x80\x2e\x04\x00\x00\x01",
    ] {
        for size in 1..=sent.len() {
            let (mut parser, mut rest) = (Hello::new(), sent);
            let refusal = loop {
                let mut piece = &rest[..size.min(rest.len())];
                let before = piece.len();
                let fed = parser.feed(&mut piece);
                rest = &rest[before - piece.len()..];
                if let Err(refusal) = fed {
                    break refusal;
                }
            };
            assert_eq!(refusal, Refusal::Missing);
            assert_eq!([&parser.into_bytes(), rest].concat(), sent, "by {size}");
        }
    }
}

#[test]
fn a_changed_hello_has_one_result_however_it_is_cut() {
    for Recorded { client, bytes, .. } in RECORDED {
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xFF] {
                let mut changed = bytes.to_vec();
                changed[at] ^= change;
                assert_eq!(read_all(&changed), read_all_by(&changed, 7), "{client} at {at}");
            }
        }
    }
}

fn read_all(bytes: &[u8]) -> Result<Option<ClientHello>, Refusal> {
    Hello::new().feed(&mut &*bytes)
}

fn read_all_by(bytes: &[u8], size: usize) -> Result<Option<ClientHello>, Refusal> {
    let mut parser = Hello::new();
    for mut piece in bytes.chunks(size) {
        if let Some(hello) = parser.feed(&mut piece)? {
            return Ok(Some(hello));
        }
    }
    Ok(None)
}

#[test]
fn the_parser_holds_no_byte_after_its_limit() {
    // The heads of records count, too.
    let endless = records(&[&[1, 0, 0x40, 0][..], &[0; 16 << 10]].concat(), 10);
    let mut parser = Hello::new();
    let refused = endless.chunks(1).find_map(|mut byte| parser.feed(&mut byte).err());
    assert_eq!(refused, Some(Refusal::TooLong));
    assert!(parser.held.len() > HELLO_MAX_BYTES / 2);
    assert!(parser.held.len() <= HELLO_MAX_BYTES && parser.held.capacity() <= 2 * HELLO_MAX_BYTES);
}

#[test]
fn every_refusal_has_its_own_reason_and_an_alert() {
    let mut reasons: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), Refusal::ALL.len());
    for refusal in Refusal::ALL {
        let answer = refusal.answer();
        match refusal {
            Refusal::Missing => assert!(answer.is_empty()),
            _ => assert!(matches!(answer[..], [21, 3, 3, 0, 2, 2, _]), "{answer:?}"),
        }
    }
}
