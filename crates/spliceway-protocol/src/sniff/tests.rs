use super::*;
use crate::address::Target;
use crate::tests::cuttings;

/// What a mixed proxy distinguishes.
const PROXIES: &[Protocol] = &[Protocol::Socks5, Protocol::Socks4, Protocol::Http];

/// Returns the result for a stream and the bytes that were not consumed, and checks that they are
/// the same for every way to split the stream, and that no byte is lost.
fn sniff(stream: &[u8]) -> (Option<Sniffed>, Vec<u8>) {
    let read = |pieces: &[&[u8]]| {
        let (mut sniffer, mut sniffed, mut left) = (Sniffer::new(&Protocol::ALL), None, Vec::new());
        for mut input in pieces.iter().copied() {
            if sniffed.is_none() {
                sniffed = sniffer.feed(&mut input);
            }
            left.extend(input);
        }
        let consumed = match &sniffed {
            Some(Sniffed::Tls(Ok(hello))) => hello.bytes.clone(),
            _ => sniffer.into_bytes(),
        };
        assert_eq!([&consumed[..], &left].concat(), stream);
        (sniffed, left)
    };
    let whole = read(&[stream]);
    for pieces in cuttings(stream) {
        assert_eq!(read(&pieces), whole, "{pieces:?}");
    }
    whole
}

#[test]
fn the_first_bytes_identify_the_protocol() {
    for (bytes, expected) in [
        (&b"\x16\x03"[..], Some(Protocol::Tls)),
        (b"\x80\x2e\x01\x00\x02", Some(Protocol::Tls)),
        (b"PRI * HTTP/2.0\r\n", Some(Protocol::Http2)),
        (b"PROXY TCP4", Some(Protocol::Proxy)),
        (b"\r\n\r\n\0\r\nQUIT\n\x21", Some(Protocol::Proxy)),
        (b"SSH-2.0-x\r\n", Some(Protocol::Ssh)),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", Some(Protocol::PostgresTls)),
        (b"\0\0\0\x08\x04\xd2\x16\x30", Some(Protocol::PostgresGssapi)),
        (b"\0\0\0\x10\x04\xd2\x16\x2e\0", Some(Protocol::Postgres)),
        (b"\0\0\0\x29\0\x03\0\0user", Some(Protocol::Postgres)),
        (b"\0\0\0\x29\0\x03\0\x02user", Some(Protocol::Postgres)),
        (b"\x05\x01\0", Some(Protocol::Socks5)),
        (b"\x04\x01", Some(Protocol::Socks4)),
        (b"GET", Some(Protocol::Http)),
        (b"PRIVMSG x", Some(Protocol::Http)),
        (b"PROPFIND /", Some(Protocol::Http)),
        (b"m-search", Some(Protocol::Http)),
        (b"\r\nGET", Some(Protocol::Http)),
        (b"\nGET", Some(Protocol::Http)),
        (b"\x16\x02", None),
        (b"\0\0\0\x09\x04\xd2\x16\x2f", None),
        (b"\0\0\0\x07\0\x03\0\0", None),
        (b"\0\0\0\x08\0\x02\0\0", None),
        (b"\0\xff", None),
        (b"\r\n\r\n\r", None),
        (b"\r\n\r\nGET", None),
        (b"\rGET", None),
        (b"\n\nGET", None),
        (b"1", None),
        (b"\x7f", None),
    ] {
        let recognized = recognize(bytes, &Protocol::ALL);
        assert_eq!(
            recognized,
            expected.map_or(Recognized::Other, Recognized::Known),
            "{bytes:?}"
        );
        // Every shorter start is undecided, or has the same result.
        for end in 0..bytes.len() {
            let earlier = recognize(&bytes[..end], &Protocol::ALL);
            assert!(
                earlier == Recognized::Undecided || earlier == recognized,
                "{bytes:?} at {end}"
            );
        }
    }
}

#[test]
fn a_program_waits_only_for_the_protocols_that_it_distinguishes() {
    for (protocols, bytes, expected) in [
        (PROXIES, &b"P"[..], Recognized::Known(Protocol::Http)),
        (PROXIES, b"S", Recognized::Known(Protocol::Http)),
        (PROXIES, b"\x05", Recognized::Known(Protocol::Socks5)),
        (PROXIES, b"\x04", Recognized::Known(Protocol::Socks4)),
        (PROXIES, b"\x16", Recognized::Other),
        (PROXIES, b"\r\n", Recognized::Undecided),
        (PROXIES, b"\r\r", Recognized::Other),
        (PROXIES, b"\r\nG", Recognized::Known(Protocol::Http)),
        (PROXIES, b"", Recognized::Undecided),
        (&[Protocol::Tls], b"P", Recognized::Other),
        (&[Protocol::Tls], b"\x16", Recognized::Undecided),
        (&Protocol::ALL, b"P", Recognized::Undecided),
        (&Protocol::ALL, b"G", Recognized::Known(Protocol::Http)),
    ] {
        assert_eq!(recognize(bytes, protocols), expected, "{bytes:?}");
    }
}

/// Any byte, and any two bytes, are decided after a bounded number of further ones.
#[test]
fn recognition_ends_after_a_bounded_number_of_bytes() {
    for first in 0..=u16::MAX {
        for fill in [0, 0x20, b'a', 0xff] {
            let mut bytes = first.to_be_bytes().to_vec();
            bytes.resize(RECOGNIZE_MAX_BYTES, fill);
            assert_ne!(recognize(&bytes, &Protocol::ALL), Recognized::Undecided, "{bytes:?}");
        }
    }
}

/// Returns the target and the head for it.
fn requested(stream: &str) -> Result<(String, String), http::Refusal> {
    match sniff(stream.as_bytes()).0 {
        Some(Sniffed::Http(Ok(http::HttpRequest::Forward { target, head, .. }))) => {
            Ok((target.to_string(), String::from_utf8(head).unwrap()))
        }
        Some(Sniffed::Http(Err(refusal))) => Err(refusal),
        other => panic!("{stream:?}: {other:?}"),
    }
}

#[test]
fn a_request_names_its_server_in_host() {
    for (stream, expected, line) in [
        (
            "GET / HTTP/1.1\r\nHost: a.test\r\n\r\nmore",
            "a.test:80",
            "GET / HTTP/1.1\r\nHost: a.test\r\n",
        ),
        (
            "GET /x?y HTTP/1.0\nhOST:A.test.:81\n\n",
            "A.test.:81",
            "GET /x?y HTTP/1.0\r\nHost: A.test.:81\r\n",
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "a.test:80",
            "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n",
        ),
        (
            "\r\nGET /x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "a.test:80",
            "GET /x HTTP/1.1\r\nHost: a.test\r\n",
        ),
        (
            "\nGET /x HTTP/1.1\r\nHost: a.test\r\n\r\n",
            "a.test:80",
            "GET /x HTTP/1.1\r\nHost: a.test\r\n",
        ),
        (
            "GET http://a.TEST/x HTTP/1.1\r\nHost: a.test.\r\n\r\n",
            "a.TEST:80",
            "GET /x HTTP/1.1\r\nHost: a.TEST\r\n",
        ),
        (
            "GET / HTTP/1.1\r\nHost: [::ffff:192.0.2.1]\r\n\r\n",
            "[::ffff:192.0.2.1]:80",
            "GET / HTTP/1.1\r\n",
        ),
    ] {
        let (target, head) = requested(stream).unwrap();
        assert_eq!(target, expected, "{stream:?}");
        assert!(
            head.starts_with(line) && head.contains("\r\nConnection: close\r\n"),
            "{head}"
        );
    }
}

#[test]
fn a_request_with_two_meanings_names_nothing() {
    use http::Refusal;
    for (stream, expected) in [
        ("GET / HTTP/1.0\r\n\r\n", Refusal::NoHost),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", Refusal::NoHost),
        (
            "GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n",
            Refusal::Malformed,
        ),
        ("GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", Refusal::Target),
        ("GET / HTTP/1.1\r\nHost: a@b.test\r\n\r\n", Refusal::Target),
        (
            "GET / HTTP/1.1\r\nHost: a.test\r\n Host: b.test\r\n\r\n",
            Refusal::Malformed,
        ),
        ("GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", Refusal::Malformed),
        ("GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", Refusal::Target),
        (
            "GET http://a.test:81/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
            Refusal::Target,
        ),
        ("GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", Refusal::Scheme),
        ("GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", Refusal::Malformed),
        ("GET / HTTP/1.1\r\nHost: a.test..\r\n\r\n", Refusal::Target),
        ("GET / HTTP/1.1\r\nHost: a..test\r\n\r\n", Refusal::Target),
        ("GET / HTTP/1.1\r\nHost: .\r\n\r\n", Refusal::Target),
        ("GET http://a.test../ HTTP/1.1\r\nHost: a.test\r\n\r\n", Refusal::Target),
        (
            "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Refusal::Framing,
        ),
        // The first line shows that these clients do not speak HTTP/1.
        ("EHLO a.test\r\n", Refusal::Malformed),
        ("GET / HTTP/2.0\r\n", Refusal::Malformed),
        ("\u{61}\n", Refusal::Malformed),
        ("\r\nEHLO a.test\r\n", Refusal::Malformed),
    ] {
        assert_eq!(requested(stream), Err(expected), "{stream:?}");
    }
}

#[test]
fn a_request_for_a_server_is_not_for_the_proxies_before_it() {
    for stream in [
        "OPTIONS * HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0\r\n\r\n",
        "TRACE /x HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0\r\n\r\n",
        "TRACE /x HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 7\r\n\r\n",
        "OPTIONS /x HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: +1\r\n\r\n",
    ] {
        let (target, head) = requested(stream).unwrap();
        assert_eq!(target, "a.test:80", "{stream:?}");
        let (sent, _) = stream.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("{sent}\r\nVia: ")), "{head}");
    }
}

#[test]
fn only_an_upgrade_to_websocket_is_for_servers() {
    for (asked, passed) in [
        ("websocket", Some("websocket")),
        ("WebSocket", Some("WebSocket")),
        ("connect-udp, websocket, h2c", Some("websocket")),
        ("connect-udp", None),
        ("connect-ip", None),
        ("websocket/13", None),
        ("TLS/1.2", None),
        ("h2c", None),
    ] {
        let stream = format!("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: {asked}\r\n\r\n");
        let (_, head) = requested(&stream).unwrap();
        let end = match passed {
            Some(passed) => format!("\r\nUpgrade: {passed}\r\nConnection: Upgrade\r\n\r\n"),
            None => "\r\nConnection: close\r\n\r\n".to_owned(),
        };
        assert!(head.ends_with(&end), "{asked}: {head}");
        assert_eq!(
            head.matches("pgrade: ").count(),
            usize::from(passed.is_some()),
            "{head}"
        );
    }
}

#[test]
fn connect_is_a_request_to_a_proxy() {
    let (sniffed, left) = sniff(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n\x16\x03");
    let target = Target::Name("a.test".into(), 443);
    assert_eq!(sniffed, Some(Sniffed::Http(Ok(http::HttpRequest::Connect(target)))));
    assert_eq!(left, b"\x16\x03");
}

#[test]
fn other_protocols_name_nothing_and_lose_no_byte() {
    for (stream, expected) in [
        (&b"SSH-2.0-x\r\n"[..], Some(Protocol::Ssh)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Protocol::Http2)),
        (b"\x05\x01\0", Some(Protocol::Socks5)),
        (b"\xff\xfb\x03", None),
    ] {
        assert_eq!(sniff(stream).0, Some(Sniffed::Other(expected)), "{stream:?}");
    }
    for stream in [
        &b"PRI *"[..],
        b"GET / HTTP/1.1\r\nHost: a",
        b"\x16\x03\x01\x02",
        b"\0\0",
    ] {
        assert_eq!(sniff(stream), (None, Vec::new()), "{stream:?}");
    }
}

#[test]
fn a_hello_is_read_as_by_its_own_parser() {
    for bytes in [
        &include_bytes!("../tls/hellos/openssl.bin")[..],
        b"\x80\x2e\x01\0\x02\0\x15\0\0",
        b"\x16\x03\x01\0\x04\x02\0\0\0",
    ] {
        let expected = tls::Hello::new().feed(&mut &*bytes).transpose();
        assert_eq!(sniff(bytes).0, expected.map(Sniffed::Tls));
    }
}
