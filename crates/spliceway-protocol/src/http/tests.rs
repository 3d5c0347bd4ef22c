use super::*;
use crate::tests::cuttings;

/// The outcome of a head in a comparable form, and the bytes that follow the head.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    request: HttpRequest,
    credentials: Option<(String, String)>,
    left: Vec<u8>,
}

fn converse(demand: Demand, pieces: &[&[u8]]) -> Result<Option<Heard>, Refusal> {
    let (mut head, mut heard) = (Head::new(demand), None);
    for mut input in pieces.iter().copied() {
        if heard.is_none() {
            heard = head.feed(&mut input)?.map(Heard::of);
        }
        match &mut heard {
            Some(heard) => heard.left.extend(input),
            None => assert!(input.is_empty(), "what is not the end is taken whole"),
        }
    }
    Ok(heard)
}

impl Heard {
    fn of(asked: RequestHead) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (credentials, request) = match asked {
            RequestHead::Agreed(request) => (None, request),
            RequestHead::Password(unproven) => {
                let credentials = unproven.credentials.clone();
                let pair = credentials.map(|credentials| (text(&credentials.name), text(&credentials.secret)));
                (pair, unproven.accept(Proof::of_known_user()))
            }
        };
        Self {
            request,
            credentials,
            left: Vec::new(),
        }
    }
}

/// Returns the outcome of a stream, and checks that it is the same for every way to split the
/// stream.
fn heard(demand: Demand, stream: &[u8]) -> Result<Heard, Refusal> {
    let whole = converse(demand, &[stream]);
    for pieces in cuttings(stream) {
        assert_eq!(converse(demand, &pieces), whole, "{pieces:?}");
    }
    whole.map(|heard| heard.expect("a head that is whole"))
}

fn refusal(stream: &str) -> Refusal {
    heard(Demand::Nothing, stream.as_bytes()).unwrap_err()
}

/// Returns the target and the new head of a request that is forwarded.
fn forwarded(stream: &str) -> (String, String) {
    let heard = heard(Demand::Nothing, stream.as_bytes()).unwrap_or_else(|refusal| panic!("{stream:?}: {refusal:?}"));
    let HttpRequest::Forward { target, head, .. } = heard.request else {
        panic!("{stream:?} is not sent on");
    };
    let head = String::from_utf8(head).unwrap();
    (target.to_string(), head.replace(forward::pseudonym(), "PSEUDONYM"))
}

#[test]
fn connect_is_read_at_every_split_and_early_data_is_left() {
    for (authority, target) in [
        ("example.com:443", "example.com:443"),
        ("192.0.2.1:443", "192.0.2.1:443"),
        ("[2001:db8::7]:443", "[2001:db8::7]:443"),
        ("2001:db8::7:443", "[2001:db8::7]:443"),
        ("::1:80", "[::1]:80"),
        ("1:2:3:4:5:6:7:8:80", "[1:2:3:4:5:6:7:8]:80"),
        ("::ffff:192.0.2.1:80", "[::ffff:192.0.2.1]:80"),
        ("Example.COM.:00443", "Example.COM.:443"),
    ] {
        for end in ["\r\n\r\n", "\n\n", "\r\nHost: other\r\n\r\n", "\nHost: other\n\r\n"] {
            for minor in [0, 1] {
                let stream = format!("CONNECT {authority} HTTP/1.{minor}{end}\nearly");
                let heard = heard(Demand::Nothing, stream.as_bytes()).unwrap();
                assert_eq!(heard.left, b"\nearly");
                assert!(matches!(heard.request, HttpRequest::Connect(asked) if asked.to_string() == target));
            }
        }
    }
}

#[test]
fn a_request_with_an_absolute_uri_is_forwarded_in_origin_form() {
    let (target, head) = forwarded(
        "POST http://example.com:8080/path?query=1 HTTP/1.1\r\nHost: other\r\nAccept: */*\r\nContent-Length: 4\r\n\r\nbody",
    );
    assert_eq!(target, "example.com:8080");
    assert_eq!(
        head,
        "POST /path?query=1 HTTP/1.1\r\nHost: example.com:8080\r\nAccept: */*\r\nContent-Length: 4\r\n\
         Via: 1.1 PSEUDONYM\r\nConnection: keep-alive\r\n\r\n"
    );
}

#[test]
fn every_form_of_a_uri_is_read() {
    for (line, target, sent) in [
        ("GET http://a", "a:80", "GET / HTTP/1.1\r\nHost: a\r\n"),
        ("GET http://a/", "a:80", "GET / HTTP/1.1\r\nHost: a\r\n"),
        ("GET HTTP://A.b./", "A.b.:80", "GET / HTTP/1.1\r\nHost: A.b.\r\n"),
        ("GET http://a:/x", "a:80", "GET /x HTTP/1.1\r\nHost: a:\r\n"),
        ("GET http://a:81?q=/", "a:81", "GET /?q=/ HTTP/1.1\r\nHost: a:81\r\n"),
        ("GET http://a//b//", "a:80", "GET //b// HTTP/1.1\r\nHost: a\r\n"),
        (
            "GET http://a/http://b/@:",
            "a:80",
            "GET /http://b/@: HTTP/1.1\r\nHost: a\r\n",
        ),
        (
            "HEAD http://[::1]:8080/x",
            "[::1]:8080",
            "HEAD /x HTTP/1.1\r\nHost: [::1]:8080\r\n",
        ),
        (
            "GET http://[2001:db8::7]/",
            "[2001:db8::7]:80",
            "GET / HTTP/1.1\r\nHost: [2001:db8::7]\r\n",
        ),
        (
            "M-SEARCH http://127.0.0.1/x",
            "127.0.0.1:80",
            "M-SEARCH /x HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        ),
        ("OPTIONS http://a", "a:80", "OPTIONS * HTTP/1.1\r\nHost: a\r\n"),
        ("OPTIONS http://a/", "a:80", "OPTIONS / HTTP/1.1\r\nHost: a\r\n"),
        // Not CONNECT: methods are case-sensitive.
        ("connect http://a/x", "a:80", "connect /x HTTP/1.1\r\nHost: a\r\n"),
    ] {
        let (asked, head) = forwarded(&format!("{line} HTTP/1.1\r\n\r\n"));
        assert_eq!(asked, target, "{line}");
        assert!(head.starts_with(sent), "{line}: {head}");
    }
}

/// An HTTP/1.0 client could not read a chunked response.
#[test]
fn the_forwarded_version_is_that_of_the_client() {
    let (_, head) = forwarded("GET http://a/ HTTP/1.0\r\n\r\n");
    assert_eq!(
        head,
        "GET / HTTP/1.0\r\nHost: a\r\nVia: 1.0 PSEUDONYM\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn hop_by_hop_fields_are_not_forwarded() {
    let (_, head) = forwarded(
        "GET http://a/ HTTP/1.1\r\nX-First: 1\r\nCONNECTION: x-Mine , close,,X-Other\r\nx-mine: 1\r\nX-OTHER: 2\r\n\
         Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eDp5\r\nProxy-Authenticate: Basic\r\nconnection: authorization\r\nAuthorization: x\r\n\
         hOST: b\r\nVia: 1.0 other\r\nTrailer: x\r\nTransfer-Encoding: Chunked\r\nX-Last:\r\n\r\n",
    );
    assert_eq!(
        head,
        "GET / HTTP/1.1\r\nHost: a\r\nX-First: 1\r\nVia: 1.0 other\r\nTrailer: x\r\nTransfer-Encoding: Chunked\r\n\
         X-Last: \r\nVia: 1.1 PSEUDONYM\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn ambiguous_heads_are_refused() {
    let framing = [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4\r\ncontent-length: 4",
        "Content-Length: 4, 4",
        "Content-Length: +4",
        "Content-Length: -1",
        "Content-Length: 0x4",
        "Content-Length: 4 4",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding:",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Connection: close, Content-Length\r\nContent-Length: 4",
        "Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
    ];
    for fields in framing {
        for uri in ["POST http://a/", "CONNECT a:443"] {
            assert_eq!(
                refusal(&format!("{uri} HTTP/1.1\r\n{fields}\r\n\r\n")),
                Refusal::Framing,
                "{fields:?}"
            );
        }
    }
    assert_eq!(
        refusal("POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Refusal::Framing
    );
    let malformed = [
        "X: a\r\n b",
        "X: a\r\n\tb",
        "X : a",
        " X: a",
        "\tX: a",
        "Content-Length : 4",
        "Transfer-Encoding\t: chunked",
        "X: a\rContent-Length: 4",
        "X: a\r\r\nContent-Length: 4",
        "X: a\0",
        "X: \x0bchunked",
        "X",
        ": a",
        "X\u{e4}: a",
        "Host: a\r\nHost: a",
        "Host: a\r\nhost: b",
    ];
    for fields in malformed {
        for uri in ["POST http://a/", "CONNECT a:443"] {
            assert_eq!(
                refusal(&format!("{uri} HTTP/1.1\r\n{fields}\r\n\r\n")),
                Refusal::Malformed,
                "{fields:?}"
            );
        }
    }
}

#[test]
fn an_invalid_request_line_is_refused() {
    for line in [
        "",
        "nonsense",
        "GET http://a/",
        "GET  http://a/ HTTP/1.1",
        "GET http://a/  HTTP/1.1",
        "GET http://a/ HTTP/1.1 ",
        " GET http://a/ HTTP/1.1",
        "GET http://a/ b HTTP/1.1",
        "GET\thttp://a/\tHTTP/1.1",
        "GET http://a/\r HTTP/1.1",
        "GET http://a/ HTTP/1.2",
        "GET http://a/ HTTP/2.0",
        "GET http://a/ HTTP/0.9",
        "GET http://a/ http/1.1",
        "PRI * HTTP/2.0",
        "G\u{e4}T http://a/ HTTP/1.1",
    ] {
        assert_eq!(refusal(&format!("{line}\r\n\r\n")), Refusal::Malformed, "{line:?}");
    }
    // One empty line before a request may be left over from a body (RFC 9112 section 2.2). Empty
    // lines alone are not a request.
    assert_eq!(forwarded("\r\nGET http://a/ HTTP/1.1\r\n\r\n").0, "a:80");
    assert_eq!(refusal("\r\n\r\nGET http://a/ HTTP/1.1\r\n\r\n"), Refusal::Malformed);
}

#[test]
fn another_protocol_is_refused_at_its_first_byte() {
    // SOCKS, TLS, a byte outside ASCII, a space, and a 0 byte.
    for first in [&[4][..], &[5, 1, 0], &[0x16, 3, 1], &[0x80], b" ", &[0]] {
        assert_eq!(
            converse(Demand::Nothing, &[first]),
            Err(Refusal::Malformed),
            "{first:?}"
        );
    }
}

#[test]
fn a_uri_without_a_valid_target_is_refused() {
    for uri in ["/", "/path", "*", "example.com", "/?u=http://a/"] {
        assert_eq!(
            refusal(&format!("GET {uri} HTTP/1.1\r\nHost: a\r\n\r\n")),
            Refusal::NoHost,
            "{uri}"
        );
    }
    for uri in ["https://a/", "HTTPS://a/", "ftp://a/", "ws://a/", "httpx://a/", "://a/"] {
        assert_eq!(
            refusal(&format!("GET {uri} HTTP/1.1\r\n\r\n")),
            Refusal::Scheme,
            "{uri}"
        );
    }
    for host in [
        "",
        ":80",
        "user@a",
        "user:secret@a",
        "@a",
        "a:b",
        "a:+80",
        "a:65536",
        "a:80:80",
        "::1",
        "[::1",
        "[::1]80",
        "[::1]]",
        "[a]:80",
        "[::1%eth0]",
        "[::ffff:127.0.0.1",
        "a b",
        "a\\b",
        "a%2eb",
        "caf\u{e9}",
        "unix:/run/admin",
        "[unix:/run/admin]",
    ] {
        if !host.contains([' ', '/']) {
            assert_eq!(
                refusal(&format!("GET http://{host}/ HTTP/1.1\r\n\r\n")),
                Refusal::Target,
                "{host}"
            );
        }
        let connect = format!("CONNECT {host} HTTP/1.1\r\n\r\n");
        let expected = if host.contains(' ') || host.is_empty() {
            Refusal::Malformed
        } else {
            Refusal::Target
        };
        assert_eq!(refusal(&connect), expected, "{host}");
    }
    for uri in ["http://a/#x", "http://a#x", "http://a/?#"] {
        assert_eq!(
            refusal(&format!("GET {uri} HTTP/1.1\r\n\r\n")),
            Refusal::Target,
            "{uri}"
        );
    }
}

/// Only a URI has a default port.
#[test]
fn connect_without_a_port_is_refused() {
    for authority in [
        "a",
        "a:",
        "[::1]",
        "[::1]:",
        "::1",
        "::",
        "::1:",
        "1:2:3:4:5:6:7:8",
        "fe80::",
        "::1:+80",
        "::1:65536",
        "http://a:80/",
        "/",
        "*",
    ] {
        assert_eq!(
            refusal(&format!("CONNECT {authority} HTTP/1.1\r\n\r\n")),
            Refusal::Target,
            "{authority}"
        );
    }
}

#[test]
fn credentials_are_read_and_invalid_ones_are_ignored() {
    let credentials = |fields: &str| {
        let stream = format!("CONNECT a:443 HTTP/1.1\r\n{fields}\r\n\r\n");
        heard(Demand::Password, stream.as_bytes()).unwrap().credentials
    };
    let ann = Some(("ann".to_owned(), "hush".to_owned()));
    for value in ["Basic YW5uOmh1c2g=", "basic YW5uOmh1c2g=", "BASIC   YW5uOmh1c2g=  "] {
        assert_eq!(credentials(&format!("proxy-AUTHORIZATION: {value}")), ann, "{value}");
    }
    for (value, name, secret) in [
        ("YTpiOmM=", "a", "b:c"),
        ("Og==", "", ""),
        ("YTo=", "a", ""),
        ("OmE=", "", "a"),
    ] {
        let expected = Some((name.to_owned(), secret.to_owned()));
        assert_eq!(
            credentials(&format!("Proxy-Authorization: Basic {value}")),
            expected,
            "{value}"
        );
    }
    for fields in [
        "Host: a",
        "Authorization: Basic YW5uOmh1c2g=",
        "Proxy-Authorization:",
        "Proxy-Authorization: Basic",
        "Proxy-Authorization: YW5uOmh1c2g=",
        "Proxy-Authorization: BasicYW5uOmh1c2g=",
        "Proxy-Authorization: Bearer YW5uOmh1c2g=",
        // The value has no colon, is not valid base64, uses another alphabet, or is not the only
        // value.
        "Proxy-Authorization: Basic YW5u",
        "Proxy-Authorization: Basic YW5uOmh1c2g",
        "Proxy-Authorization: Basic YW5u Omh1c2g=",
        "Proxy-Authorization: Basic __5uOmh1c2g=",
        "Proxy-Authorization: Basic YW5uOmh1c2g=, Basic YW5uOmh1c2g=",
        "Proxy-Authorization: Basic YW5uOmh1c2g=\r\nProxy-Authorization: Basic YW5uOmh1c2g=",
    ] {
        assert_eq!(credentials(fields), None, "{fields}");
    }
}

/// Credentials are for the proxy, and the target must not receive them.
#[test]
fn credentials_are_not_forwarded() {
    let stream = b"GET http://a/ HTTP/1.1\r\nProxy-Authorization: Basic YW5uOmh1c2g=\r\n\r\n";
    for demand in [Demand::Nothing, Demand::Password] {
        let HttpRequest::Forward { head, .. } = heard(demand, stream).unwrap().request else {
            panic!("not sent on");
        };
        assert!(!String::from_utf8(head).unwrap().to_ascii_lowercase().contains("proxy-"));
    }
}

#[test]
fn an_incomplete_head_decides_nothing() {
    let stream = b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    for end in 0..stream.len() {
        assert_eq!(converse(Demand::Nothing, &[&stream[..end]]), Ok(None), "{end}");
    }
}

/// Returns a head of this many bytes.
fn head_of(bytes: usize) -> Vec<u8> {
    let (start, end) = (&b"CONNECT a:443 HTTP/1.1\r\nX: "[..], &b"\r\n\r\n"[..]);
    [start, &vec![b'x'; bytes - start.len() - end.len()], end].concat()
}

#[test]
fn a_head_has_at_most_16_kib() {
    for piece_bytes in [1, 1000, 1 << 20] {
        let outcome = |stream: &[u8]| converse(Demand::Nothing, &stream.chunks(piece_bytes).collect::<Vec<_>>());
        assert!(matches!(outcome(&head_of(16 << 10)), Ok(Some(_))));
        assert_eq!(outcome(&head_of((16 << 10) + 1)), Err(Refusal::HeadTooLarge));
        // The parser refuses a head as soon as it cannot end within the limit.
        assert_eq!(outcome(&vec![b'x'; 16 << 10]), Err(Refusal::HeadTooLarge));
        assert_eq!(outcome(&vec![b'x'; (16 << 10) - 1]), Ok(None));
    }
}

#[test]
fn a_head_has_at_most_100_fields() {
    let stream = |fields: usize| format!("GET http://a/ HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(fields));
    let (_, head) = forwarded(&stream(100));
    assert_eq!(head.matches("X: y\r\n").count(), 100);
    assert_eq!(refusal(&stream(101)), Refusal::HeadTooLarge);
}

#[test]
fn held_bytes_are_bounded_for_any_input() {
    for piece_bytes in [1, 100, 5_000, 1 << 20] {
        let mut head = Head::new(Demand::Password);
        let endless = vec![b'x'; 1 << 20];
        let refused = endless.chunks(piece_bytes).find_map(|mut piece| {
            let fed = head.feed(&mut piece);
            assert!(
                head.message.room_bytes() <= HEAD_MAX_BYTES + crate::message::ROOM_BYTES,
                "{}",
                head.message.room_bytes()
            );
            fed.err()
        });
        assert_eq!(refused, Some(Refusal::HeadTooLarge));
    }
    // The proxy adds a space and a carriage return to each line that it forwards. It also adds
    // fields.
    let lines = format!("GET http://{}/ HTTP/1.1\n{}\n", "a".repeat(255), "X:\n".repeat(100));
    let (_, head) = forwarded(&lines);
    assert!(head.len() <= lines.len() + 1024, "{} of {}", head.len(), lines.len());
}

#[test]
fn a_request_that_has_passed_this_instance_is_refused_as_a_loop() {
    let own = forward::own_via(1);
    let others = "Via: 1.0 a (b, c)\r\nVia: 1.1 spliceway-0123456789abcdef, HTTP/2 x";
    for start in ["CONNECT a:1 HTTP/1.1", "GET http://a/ HTTP/1.1"] {
        assert!(heard(Demand::Nothing, format!("{start}\r\n{others}\r\n\r\n").as_bytes()).is_ok());
        for via in [format!("Via: {own}"), format!("{others}, {own} (comment), 1.1 z")] {
            assert_eq!(refusal(&format!("{start}\r\n{via}\r\n\r\n")), Refusal::Loop, "{via}");
        }
    }
}

#[test]
fn every_via_is_kept_and_this_proxy_is_the_last() {
    let mut head = Head::new(Demand::Nothing);
    head.feed(&mut &b"CONNECT a:1 HTTP/1.0\r\nVia: 1.1 x\r\nvia: 1.0 y, 1.1 z\r\n\r\n"[..])
        .unwrap();
    assert_eq!(head.into_via(), format!("1.1 x, 1.0 y, 1.1 z, {}", forward::own_via(0)));
}

#[test]
fn max_forwards_is_counted_down() {
    for method in ["TRACE", "OPTIONS"] {
        let (_, head) = forwarded(&format!("{method} http://a/ HTTP/1.1\r\nMax-Forwards: 7\r\n\r\n"));
        assert!(head.contains("\r\nMax-Forwards: 6\r\n"), "{head}");
        for wrong in [
            "Max-Forwards: -1",
            "Max-Forwards: +1",
            "Max-Forwards:",
            "Max-Forwards: 1\r\nMax-Forwards: 1",
        ] {
            let stream = format!("{method} http://a/ HTTP/1.1\r\n{wrong}\r\n\r\n");
            assert_eq!(refusal(&stream), Refusal::Malformed, "{wrong}");
        }
    }
    let (_, head) = forwarded("GET http://a/ HTTP/1.1\r\nMax-Forwards: 0\r\n\r\n");
    assert!(head.contains("\r\nMax-Forwards: 0\r\n"), "{head}");
}

/// Another reader of the response must not learn the client's credentials.
#[test]
fn the_answer_to_trace_has_the_request_without_its_secrets() {
    let fields = "X-Kept: 1\r\nAuthorization: Basic a\r\nCookie: b\r\nProxy-Authorization: Basic YW5uOmh1c2g=\r\nMax-Forwards: 0\r\n";
    for demand in [Demand::Nothing, Demand::Password] {
        let stream = format!("TRACE http://a/b HTTP/1.1\r\n{fields}\r\n");
        let HttpRequest::Answered(answer) = heard(demand, stream.as_bytes()).unwrap().request else {
            panic!("sent on");
        };
        let echo = "TRACE http://a/b HTTP/1.1\r\nX-Kept: 1\r\nMax-Forwards: 0\r\n\r\n";
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, echo);
        assert!(head.contains(&format!("Content-Length: {}", echo.len())), "{head}");
        assert!(head.contains("Content-Type: message/http"), "{head}");
    }
}

#[test]
fn a_head_for_a_further_proxy_is_absolute_and_has_its_credentials() {
    let secret = Credentials {
        name: b"ann".as_slice().into(),
        secret: b"pw".as_slice().into(),
    };
    for (request, expected) in [
        (
            "GET http://a.test/x?y HTTP/1.1\r\nHost: other\r\nProxy-Authorization: Basic YTpi\r\nA: b\r\n\r\n",
            "GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic YW5uOnB3\r\nA: b\r\n",
        ),
        (
            "OPTIONS http://a.test:81 HTTP/1.1\r\nHost: other\r\n\r\n",
            "OPTIONS http://a.test:81 HTTP/1.1\r\nHost: a.test:81\r\nProxy-Authorization: Basic YW5uOnB3\r\n",
        ),
        (
            "GET http://[::1]:8 HTTP/1.0\r\n\r\n",
            "GET http://[::1]:8/ HTTP/1.0\r\nHost: [::1]:8\r\nProxy-Authorization: Basic YW5uOnB3\r\n",
        ),
    ] {
        let mut parser = Head::new(Demand::Nothing);
        let parsed = parser.feed(&mut request.as_bytes()).unwrap();
        let Some(RequestHead::Agreed(HttpRequest::Forward { head, .. })) = parsed else {
            panic!("{parsed:?}");
        };
        let sent = String::from_utf8(for_proxy(&head, Some(&secret)).unwrap()).unwrap();
        assert!(
            sent.starts_with(expected) && sent.contains("\r\nVia: ") && sent.ends_with("\r\n\r\n"),
            "{sent}"
        );
        assert_eq!(sent.matches("Proxy-Authorization").count(), 1);
        let open = String::from_utf8(for_proxy(&head, None).unwrap()).unwrap();
        assert_eq!(open, sent.replace("Proxy-Authorization: Basic YW5uOnB3\r\n", ""));
    }
}
