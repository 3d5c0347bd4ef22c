use tokio::io::duplex;

use super::*;

/// Returns the result of a check, and what it sent. The backend sends these parts, and then closes.
async fn checked(probe: &Probe, parts: &[&[u8]]) -> (Result<(), Unhealthy>, Vec<u8>) {
    let (ours, mut theirs) = duplex(2 * ANSWER_MAX_BYTES);
    let backend = async move {
        for part in parts {
            // A check that knows enough does not read the rest.
            let _ = theirs.write_all(part).await;
            tokio::task::yield_now().await;
        }
        let _ = theirs.shutdown().await;
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.unwrap();
        heard
    };
    let target: Target = "web.example:80".parse().unwrap();
    tokio::join!(probe.talk(ours, Vec::new(), b"", &target), backend)
}

fn probe(check: &str, expected: &str) -> Probe {
    let mut probe: Probe = check.parse().unwrap();
    if !expected.is_empty() {
        probe.expect(expected).unwrap();
    }
    probe
}

#[tokio::test]
async fn each_check_accepts_its_answer_and_no_other_one() {
    for (check, expected, answer, is_good) in [
        ("connect", "", "", true),
        ("http:/up", "", "HTTP/1.1 200 OK\r\n\r\n", true),
        ("http:/up", "", "HTTP/1.0 302 Found\r\n\r\n", true),
        ("http:/up", "", "HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
        ("http:/up", "404", "HTTP/1.1 404 Not Found\r\n\r\n", true),
        ("http:/up", "200-204", "HTTP/1.1 301 Moved\r\n\r\n", false),
        ("http:/up", "", "SSH-2.0-OpenSSH", false),
        ("http:/up", "", "HTTP/1.1 20", false),
        ("http:/up", "", "HTTP/1.1 2000 OK\r\n\r\n", false),
        ("http:/up", "", "HTTP/1.1X200 OK\r\n\r\n", false),
        ("http:/up", "", "HTTP/1.1 +99 OK\r\n\r\n", false),
        ("http:/up", "", "HTTP/1.1 200\r\n\r\n", true),
        (
            "http:/up",
            "",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            true,
        ),
        (
            "http:/up",
            "",
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 500 No\r\n\r\n",
            false,
        ),
        ("http:/up", "", "HTTP/1.1 103 Early Hints\r\n\r\n", false),
        ("http:/up", "101", "HTTP/1.1 101 Switching Protocols\r\n\r\n", true),
        ("send:PING\\r\\n", "+PONG", "+PONG\r\n", true),
        (
            "send:PING\\r\\n",
            "+PONG",
            "-NOAUTH Authentication required.\r\n",
            false,
        ),
        ("send:", "220 ", "220 mail.example ESMTP\r\n", true),
        ("send:QUIT\\r\\n", "", "", true),
        ("tls-hello", "", "\x16\x03\x03\0\x7a", true),
        ("tls-hello", "", "\x15\x03\x03\0\x02", true),
        ("tls-hello", "", "HTTP/1.1 400 Bad Request", false),
        ("tls-hello", "", "", false),
    ] {
        let probe = probe(check, expected);
        // In one part, and byte by byte.
        let bytes: Vec<&[u8]> = answer.as_bytes().chunks(1).collect();
        for parts in [&[answer.as_bytes()][..], &bytes] {
            let (result, _) = checked(&probe, parts).await;
            assert_eq!(result.is_ok(), is_good, "{check} {expected} {answer:?}: {result:?}");
        }
    }
}

#[tokio::test]
async fn a_check_sends_what_was_asked() {
    let (_, sent) = checked(&probe("send:a\\x00\\\\\\tb", ""), &[]).await;
    assert_eq!(sent, b"a\0\\\tb");
    let (_, sent) = checked(&probe("http:/up?a=b", ""), &[b"HTTP/1.1 200 OK\r\n\r\n"]).await;
    let sent = String::from_utf8(sent).unwrap();
    assert!(
        sent.starts_with("GET /up?a=b HTTP/1.1\r\nHost: web.example:80\r\n"),
        "{sent}"
    );
    assert!(sent.ends_with("\r\n\r\n"), "{sent}");
}

#[tokio::test]
async fn an_endless_answer_ends_the_check() {
    let (result, _) = checked(&probe("send:", "x"), &[&[b'a'; ANSWER_MAX_BYTES]]).await;
    let why = result.unwrap_err().to_string();
    assert!(why.len() < 80 && why.contains("aaaa"), "{why}");
}

#[test]
fn an_answer_in_the_log_has_no_control_characters() {
    let why = Unhealthy::Unexpected(b"\x1b[31m\r\nred\xff".to_vec()).to_string();
    assert_eq!(why, r#"unexpected answer "\x1b[31m\r\nred\xff""#);
}

#[test]
fn wrong_checks_are_refused() {
    for check in [
        "",
        "ping",
        "http",
        "http:up",
        "http://10.0.0.1/up",
        "http:/a b",
        "connect:80",
        "send:\\q",
        "send:\\x1",
        "send:\\xé",
    ] {
        assert!(check.parse::<Probe>().is_err(), "{check}");
    }
    for (check, expected) in [
        ("connect", "a"),
        ("tls-hello", "a"),
        ("http:/", "ok"),
        ("http:/", "99"),
        ("send:", "\\"),
    ] {
        assert!(
            check.parse::<Probe>().unwrap().expect(expected).is_err(),
            "{check} {expected}"
        );
    }
    assert!(
        "send:"
            .parse::<Probe>()
            .unwrap()
            .expect(&"a".repeat(TEXT_MAX_BYTES + 1))
            .is_err()
    );
}
