use super::*;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
                      Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n\r\n";
const PASSED_ON: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nConnection: close\r\n\r\n";

fn fed(pieces: &[&[u8]]) -> (Option<String>, Vec<u8>) {
    let (mut answer, mut given, mut left) = (Answer::default(), None, Vec::new());
    for mut input in pieces.iter().copied() {
        if given.is_none() {
            given = answer.feed(&mut input);
        }
        left.extend_from_slice(input);
    }
    (given.map(|given| String::from_utf8_lossy(&given).into_owned()), left)
}

#[test]
fn an_answer_is_marked_as_the_last_at_every_split() {
    let stream = [ANSWER.as_bytes(), b"hello"].concat();
    for split in 0..=stream.len() {
        let (given, left) = fed(&[&stream[..split], &stream[split..]]);
        assert_eq!(
            (given.as_deref(), &left[..]),
            (Some(PASSED_ON), &b"hello"[..]),
            "{split}"
        );
    }
}

#[test]
fn interim_answers_precede_the_final_answer_unchanged() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
    let (given, _) = fed(&[hints.as_bytes(), hints.as_bytes(), ANSWER.as_bytes()]);
    assert_eq!(given.unwrap(), [hints, hints, PASSED_ON].concat());
}

/// Some readers expect the body that the fields describe, and some refuse the malformed field.
#[test]
fn interim_answers_have_no_body_and_no_fields_for_one_connection() {
    for fields in [
        "Content-Length: 4\r\n",
        "Content-Length: x\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close, X-Hop\r\nX-Hop: 1\r\n",
        "Keep-Alive: timeout=5\r\n",
        "bad field\r\n",
    ] {
        let hints = format!("HTTP/1.1 103 Early Hints\r\n{fields}\r\n");
        let (given, _) = fed(&[hints.as_bytes(), ANSWER.as_bytes()]);
        assert_eq!(
            given.unwrap(),
            ["HTTP/1.1 103 Early Hints\r\n\r\n", PASSED_ON].concat(),
            "{fields:?}"
        );
    }
}

#[test]
fn a_requested_switch_of_protocols_passes_unchanged() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n";
    let upgrade = Exchange {
        body: Body::Upgrade,
        ..Exchange::LAST
    };
    let mut answer = Answer::to(upgrade);
    let mut input = switching.as_bytes();
    assert_eq!(answer.feed(&mut input).as_deref(), Some(switching.as_bytes()));
    assert!(answer.into_followed().unwrap().has_switched);
    let (given, _) = fed(&[switching.as_bytes()]);
    assert!(given.unwrap().starts_with("HTTP/1.1 502 "), "nobody has asked for it");
    let mut answer = Answer::to(upgrade);
    assert_eq!(
        answer.feed(&mut ANSWER.as_bytes()).as_deref(),
        Some(PASSED_ON.as_bytes())
    );
    assert!(!answer.into_followed().unwrap().has_switched);
}

#[test]
fn interim_answers_are_available_before_the_final_answer() {
    let hints = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut answer = Answer::default();
    assert_eq!(answer.feed(&mut hints.as_bytes()), None);
    assert_eq!(answer.take_interim(), hints.as_bytes());
    assert_eq!(
        answer.feed(&mut ANSWER.as_bytes()).as_deref(),
        Some(PASSED_ON.as_bytes())
    );
}

#[test]
fn what_is_no_head_of_http_1_passes_unchanged() {
    for raw in [
        "<html>",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "SSH-2.0-x\r\n",
    ] {
        let (given, left) = fed(&[raw.as_bytes()]);
        assert_eq!([given.unwrap().as_bytes(), &left].concat(), raw.as_bytes());
    }
}

#[test]
fn a_head_of_any_number_of_fields_is_marked_as_the_last() {
    let fields: String = (0..500).map(|number| format!("X-{number}: 1\r\n")).collect();
    let (given, _) = fed(&[format!("HTTP/1.1 200 OK\r\n{fields}Connection: keep-alive\r\n\r\n").as_bytes()]);
    assert_eq!(
        given.unwrap(),
        format!("HTTP/1.1 200 OK\r\n{fields}Connection: close\r\n\r\n")
    );
}

#[test]
fn blanks_before_a_colon_and_folded_lines_are_repaired() {
    let raw = "HTTP/1.1 200 OK\r\nX-A : 1\r\nConnection : keep-alive\r\nX-B: 2\r\n 3\r\n\r\n";
    let (given, _) = fed(&[raw.as_bytes()]);
    assert_eq!(
        given.unwrap(),
        "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-B: 2   3\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn a_malformed_or_endless_head_is_marked_behind_its_status_line() {
    let endless = ["X: ", &"x".repeat(70_000)].concat();
    for rest in [
        "bad field\r\n\r\n",
        "X: a\0b\r\nConnection: keep-alive\r\n\r\n",
        &endless,
    ] {
        let (given, left) = fed(&[b"HTTP/1.1 200 OK\r\n", rest.as_bytes()]);
        let given = [given.unwrap().as_bytes(), &left].concat();
        let expected = ["HTTP/1.1 200 OK\r\nConnection: close\r\n", rest].concat();
        assert_eq!(String::from_utf8_lossy(&given), expected);
    }
}

#[test]
fn a_demand_for_credentials_is_not_for_the_client() {
    let demand = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
                  Content-Length: 2\r\n\r\nno";
    let (given, left) = fed(&[demand.as_bytes()]);
    let expected = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\nConnection: close\r\n\r\n";
    assert_eq!((given.as_deref(), &left[..]), (Some(expected), &b"no"[..]));
}

#[test]
fn an_incomplete_head_is_awaited() {
    assert_eq!(fed(&[&ANSWER.as_bytes()[..ANSWER.len() - 1]]), (None, Vec::new()));
}

const KEPT: Exchange = Exchange {
    reuse: Reuse::KeepAlive,
    ..Exchange::LAST
};

/// Returns the head for the client and what follows it, which is the same for each split.
fn answered(exchange: Exchange, stream: &str) -> (String, Followed) {
    let mut answers = (0..=stream.len()).map(|split| {
        let mut answer = Answer::to(exchange);
        let (mut first, mut second) = stream.as_bytes().split_at(split);
        let fed = answer.feed(&mut first).or_else(|| answer.feed(&mut second));
        let head = String::from_utf8(fed.expect("a whole head")).unwrap();
        (head, answer.into_followed().unwrap())
    });
    let first = answers.next().unwrap();
    for other in answers {
        assert_eq!(format!("{other:?}"), format!("{first:?}"));
    }
    first
}

#[test]
fn an_answer_with_a_certain_end_keeps_the_connections() {
    let (head, get) = (Exchange { is_head: true, ..KEPT }, KEPT);
    for (exchange, start, bytes) in [
        (get, "1.1 200 OK\r\nContent-Length: 5", Some(5)),
        (get, "1.1 200 \r\nContent-Length: 0", Some(0)),
        (get, "1.1 200 OK\r\ntransfer-encoding: CHUNKED", None),
        (get, "1.1 204 No Content", Some(0)),
        (get, "1.1 304 Not Modified\r\nContent-Length: 5", Some(0)),
        (head, "1.1 200 OK\r\nContent-Length: 5", Some(0)),
        (head, "1.1 200 OK\r\nTransfer-Encoding: chunked", Some(0)),
        (head, "1.1 200 OK", Some(0)),
        (
            get,
            "1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5",
            Some(5),
        ),
        (
            get,
            "1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5",
            Some(5),
        ),
    ] {
        let (head, followed) = answered(exchange, &format!("HTTP/{start}\r\n\r\n"));
        assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
        assert!(followed.keeps_client && followed.keeps_target, "{start}");
        match (followed.body, bytes) {
            (Remaining::Bytes(left), Some(bytes)) => assert_eq!(left, bytes, "{start}"),
            (Remaining::Chunks(_), None) => {}
            other => panic!("{start}: {other:?}"),
        }
    }
}

#[test]
fn a_target_that_closes_does_not_close_the_client_s_connection() {
    for start in [
        "1.1 200 OK\r\nConnection: close\r\nContent-Length: 5",
        "1.1 200 OK\r\nProxy-Connection: close\r\nContent-Length: 5",
        "1.0 200 OK\r\nContent-Length: 5",
    ] {
        let (head, followed) = answered(KEPT, &format!("HTTP/{start}\r\n\r\n"));
        assert!(head.ends_with("\r\nConnection: keep-alive\r\n\r\n"), "{head}");
        assert!(followed.keeps_client && !followed.keeps_target, "{start}");
    }
}

#[test]
fn an_early_answer_of_a_target_that_closes_is_the_last_one() {
    for (fields, expects_continue, is_kept) in [
        ("", false, true),
        ("Connection: close\r\n", false, false),
        ("", true, false),
    ] {
        let exchange = Exchange {
            expects_continue,
            ..KEPT
        };
        let mut answer = Answer::to(exchange);
        answer.set_early(true);
        let stream = format!("HTTP/1.1 401 No\r\n{fields}Content-Length: 0\r\n\r\n");
        answer.feed(&mut stream.as_bytes()).unwrap();
        assert_eq!(answer.into_followed().unwrap().keeps_client, is_kept, "{fields:?}");
        let (_, followed) = answered(exchange, &stream);
        assert!(followed.keeps_client, "after the whole request");
    }
}

#[test]
fn an_answer_that_readers_may_end_elsewhere_is_the_last_one() {
    for start in [
        "200 OK",
        "200 OK\r\nContent-Length: 5\r\nContent-Length: 5",
        "200 OK\r\nContent-Length: 5, 5",
        "200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
        "200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "200 OK\r\nTransfer-Encoding: chunked, identity",
        "200 OK\r\nTransfer-Encoding: gzip, chunked",
        "200 OK\r\nTransfer-Encoding: xchunked",
        "200 OK\r\nTransfer-Encoding : chunked",
        "200 OK\r\nContent-Length : 5",
        "200 OK\r\nContent-Length: 5\r\nX: a\r\n b",
        "200 OK\r\nX: a\r\n\tb\r\nContent-Length: 5",
        "200 OK\r\nX: a\nContent-Length: 5",
        "200 OK\nContent-Length: 5",
        "200 OK\r\nContent-Length: 5\r\nX: \0",
        "200 OK\r\nX: a\rContent-Length: 5",
        "200 OK\r\nContent-Length: 5\r\nnonsense",
        "200 OK\r\nConnection: Content-Length\r\nContent-Length: 5",
        "204 No Content\r\nContent-Length: 5",
        "204 No Content\r\nTransfer-Encoding: chunked",
        "304 Not Modified\r\nTransfer-Encoding: chunked",
        "099 What\r\nContent-Length: 5",
        "600 What\r\nContent-Length: 5",
        "103 Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5",
        "100 Continue\r\n\nHTTP/1.1 200 OK\r\nContent-Length: 5",
        "100 Continue\r\nX : a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5",
    ] {
        let (head, followed) = answered(KEPT, &format!("HTTP/1.1 {start}\r\n\r\n"));
        assert!(!head.contains("keep-alive"), "{head}");
        assert!(!followed.keeps_client && !followed.keeps_target, "{start}");
        assert!(matches!(followed.body, Remaining::UntilClose), "{start}");
    }
    let (_, followed) = answered(KEPT, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert!(!followed.keeps_client && !followed.keeps_target);
    let (_, followed) = answered(KEPT, "<html>");
    assert!(!followed.keeps_client && !followed.keeps_target);
}

/// RFC 9112 section 6.3: a proxy must answer 502, and close the connection of the target.
#[test]
fn an_answer_without_a_valid_length_becomes_502() {
    for start in [
        "200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
        "200 OK\r\nContent-Length: 5, 6",
        "200 OK\r\nContent-Length: 5,",
        "200 OK\r\nContent-Length: +5",
        "200 OK\r\nContent-Length: 0x5",
        "200 OK\r\nContent-Length: -5",
        "200 OK\r\nContent-Length: 5 5",
        "200 OK\r\nContent-Length:",
        "200 OK\r\nContent-Length: 18446744073709551616",
        "200 OK\r\nContent-Length : x",
        "101 Switching Protocols",
    ] {
        let stream = format!("HTTP/1.1 {start}\r\n\r\n");
        for (exchange, connection) in [(KEPT, "keep-alive"), (Exchange::LAST, "close")] {
            let (answer, followed) = answered(exchange, &stream);
            assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
            assert!(
                answer.contains(&format!("\r\nConnection: {connection}\r\n")),
                "{answer}"
            );
            assert!(followed.body.is_over() && !followed.keeps_target, "{start}");
            assert_eq!(followed.keeps_client, connection == "keep-alive", "{start}");
        }
        let (answer, _) = answered(Exchange { is_head: true, ..KEPT }, &stream);
        assert!(answer.ends_with("\r\n\r\n"), "HEAD has no body: {answer}");
        let mut answer = Answer::to(KEPT);
        answer.set_early(true);
        answer.feed(&mut stream.as_bytes()).unwrap();
        assert!(
            !answer.into_followed().unwrap().keeps_client,
            "the body is still on its way"
        );
    }
}

#[test]
fn equal_lengths_become_one_and_a_coding_removes_them() {
    for (fields, expected) in [
        (
            "Content-Length: 5\r\nX: y\r\nContent-Length: 5",
            "Content-Length: 5\r\nX: y",
        ),
        ("content-length: 5 , 5", "content-length: 5"),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked",
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: x",
            "Transfer-Encoding: chunked",
        ),
    ] {
        let (head, followed) = answered(KEPT, &format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"));
        assert_eq!(
            head,
            format!("HTTP/1.1 200 OK\r\n{expected}\r\nConnection: close\r\n\r\n")
        );
        assert!(matches!(followed.body, Remaining::UntilClose), "{fields:?}");
    }
}

#[test]
fn chunks_for_a_client_that_reads_none_end_with_its_connection() {
    let exchange = Exchange {
        reads_chunks: false,
        ..KEPT
    };
    let (head, followed) = answered(exchange, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert!(head.ends_with("\r\nConnection: close\r\n\r\n"), "{head}");
    assert!(!followed.keeps_client && !followed.keeps_target);
    assert!(matches!(followed.body, Remaining::UntilClose));
}

#[test]
fn a_client_that_closes_gets_the_last_answer_and_its_target_is_not_kept() {
    let (head, followed) = answered(Exchange::LAST, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert!(head.ends_with("\r\nConnection: close\r\n\r\n"), "{head}");
    assert!(!followed.keeps_client && !followed.keeps_target);
    assert!(matches!(followed.body, Remaining::Bytes(5)));
    let mut answer = Answer::to(KEPT);
    answer.closes();
    let head = answer.feed(&mut &b"HTTP/1.1 204 No Content\r\n\r\n"[..]).unwrap();
    assert_eq!(head, b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}
