use super::*;
use crate::http::{Head, HttpRequest, RequestHead};
use crate::socks5::{Greeting, Offer};
use crate::tests::cuttings;
use crate::{Demand, Proof};

const VIA: &str = "1.1 test";

/// The messages of the handshake, and the bytes that follow the proxy's last answer.
type Said = (Vec<Vec<u8>>, Vec<u8>);

/// Runs a handshake with a proxy that sends `pieces`. Returns `None` if the handshake does not end.
fn converse(mut handshake: Handshake, pieces: &[&[u8]]) -> Result<Option<Said>, Error> {
    let (mut said, mut left) = (Vec::new(), None);
    for mut input in pieces.iter().copied() {
        while left.is_none() {
            match handshake.feed(&mut input)? {
                Step::Wait => {
                    assert!(input.is_empty(), "what is not the end is taken whole");
                    break;
                }
                Step::Send(words) => said.push(words),
                Step::Connected => left = Some(Vec::new()),
            }
        }
        if let Some(left) = &mut left {
            left.extend(input);
        }
    }
    Ok(left.map(|left| (said, left)))
}

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

fn credentials(name: &[u8], secret: &[u8]) -> Credentials {
    Credentials {
        name: name.into(),
        secret: secret.into(),
    }
}

fn ann() -> Credentials {
    credentials(b"ann", b"hush")
}

fn start(language: Language, target_text: &str, credentials: Option<&Credentials>) -> (Handshake, Vec<u8>) {
    Handshake::start(language, &target(target_text), credentials, VIA).unwrap()
}

/// Returns the outcome of a proxy's answers, and checks that it is the same for every way to split
/// the answers.
fn heard(language: Language, credentials: Option<&Credentials>, stream: &[u8]) -> Result<Option<Said>, Error> {
    let fresh = || start(language, "example.com:80", credentials).0;
    let whole = converse(fresh(), &[stream]);
    for pieces in cuttings(stream) {
        assert_eq!(converse(fresh(), &pieces), whole, "{pieces:?}");
    }
    whole
}

const REQUEST: &[u8] = b"\x05\x01\x00\x03\x0bexample.com\x00\x50";
const REPLY: [u8; 10] = [5, 0, 0, 1, 127, 0, 0, 1, 1, 2];

#[test]
fn socks5_without_credentials_offers_no_password_and_leaves_early_data() {
    let (_, first) = start(Language::Socks5, "example.com:80", None);
    assert_eq!(first, [5, 1, 0]);
    let said = heard(Language::Socks5, None, &[&[5, 0][..], &REPLY, b"early"].concat());
    assert_eq!(said, Ok(Some((vec![REQUEST.to_vec()], b"early".to_vec()))));
}

#[test]
fn socks5_sends_credentials_only_to_a_proxy_that_asks_for_them() {
    let (_, first) = start(Language::Socks5, "example.com:80", Some(&ann()));
    assert_eq!(first, [5, 2, 0, 2]);
    let password = b"\x01\x03ann\x04hush".to_vec();
    for verdict_version in [1, 5] {
        let stream = [&[5, 2, verdict_version, 0][..], &REPLY, b"early"].concat();
        let said = heard(Language::Socks5, Some(&ann()), &stream);
        assert_eq!(
            said,
            Ok(Some((vec![password.clone(), REQUEST.to_vec()], b"early".to_vec())))
        );
    }
    let said = heard(Language::Socks5, Some(&ann()), &[&[5, 0][..], &REPLY].concat());
    assert_eq!(said, Ok(Some((vec![REQUEST.to_vec()], Vec::new()))));
}

#[test]
fn socks5_requests_and_replies_support_every_address_type() {
    for (text, address) in [
        ("192.0.2.1:80", &[1, 192, 0, 2, 1, 0, 80][..]),
        ("[::1]:258", &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2]),
        ("a:80", &[3, 1, b'a', 0, 80]),
    ] {
        for bound in [
            &[1, 0, 0, 0, 0, 0, 0][..],
            &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0],
            &[3, 3, 0xFF, 0, b' ', 0, 0],
        ] {
            let stream = [&[5, 0, 5, 0, 0][..], bound, b"early"].concat();
            let said = converse(start(Language::Socks5, text, None).0, &[&stream])
                .unwrap()
                .unwrap();
            assert_eq!(said, (vec![[&[5, 1, 0][..], address].concat()], b"early".to_vec()));
        }
    }
    let name = format!("{}:80", "n".repeat(255));
    let (handshake, _) = start(Language::Socks5, &name, None);
    let said = converse(handshake, &[&[5, 0], &REPLY]).unwrap().unwrap().0;
    assert_eq!(said[0].len(), 4 + 1 + 255 + 2);
}

#[test]
fn every_socks5_reply_code_maps_to_a_failure() {
    for (code, failure) in [
        (1, Failure::General),
        (2, Failure::NotAllowed),
        (3, Failure::NetworkUnreachable),
        (4, Failure::HostUnreachable),
        (5, Failure::Refused),
        (6, Failure::TimedOut),
        (7, Failure::General),
        (8, Failure::General),
        (9, Failure::General),
        (255, Failure::General),
    ] {
        // With an address, without an address (some proxies omit it in a refusal), and with an
        // invalid address.
        for rest in [&[0, 1, 0, 0, 0, 0, 0, 0][..], &[], &[0, 0, 0]] {
            let stream = [&[5, 0, 5, code][..], rest].concat();
            assert_eq!(
                heard(Language::Socks5, None, &stream),
                Err(Error::Failed(failure)),
                "{code}"
            );
        }
    }
}

#[test]
fn a_refusal_of_a_socks5_proxy_differs_from_another_protocol() {
    for (credentials, stream, error) in [
        (None, &[5, 0xFF][..], Error::Method),
        (Some(ann()), &[5, 0xFF], Error::Method),
        (Some(ann()), &[5, 2, 1, 1], Error::Authentication),
        (Some(ann()), &[5, 2, 1, 0xFF], Error::Authentication),
        // The proxy chooses a method that was not offered.
        (None, &[5, 2], Error::Protocol),
        (None, &[5, 1], Error::Protocol),
        (Some(ann()), &[5, 1], Error::Protocol),
        (None, &[4], Error::Protocol),
        (None, b"H", Error::Protocol),
        (None, &[0, 90], Error::Protocol),
        (Some(ann()), &[5, 2, 2], Error::Protocol),
        (None, &[5, 0, 4], Error::Protocol),
        (None, &[5, 0, 5, 0, 0, 2], Error::Protocol),
    ] {
        assert_eq!(
            heard(Language::Socks5, credentials.as_ref(), stream),
            Err(error),
            "{stream:?}"
        );
    }
}

#[test]
fn a_target_or_password_that_cannot_be_encoded_is_an_error() {
    let file = Target::Unix(std::path::Path::new("/run/x").into());
    for language in [Language::Socks5, Language::Http] {
        assert_eq!(Handshake::start(language, &file, None, VIA).unwrap_err(), Error::Target);
    }
    let long = vec![b'x'; 256];
    for unspeakable in [
        credentials(b"", b"x"),
        credentials(b"x", b""),
        credentials(&long, b"x"),
        credentials(b"x", &long),
    ] {
        let started = Handshake::start(Language::Socks5, &target("a:80"), Some(&unspeakable), VIA);
        assert_eq!(started.unwrap_err(), Error::Credentials);
    }
    let colon = credentials(b"a:b", b"c");
    let started = Handshake::start(Language::Http, &target("a:80"), Some(&colon), VIA);
    assert_eq!(started.unwrap_err(), Error::Credentials);
}

#[test]
fn http_asks_with_connect_and_early_data_is_left() {
    for (text, credentials, request) in [
        (
            "a.b:80",
            None,
            "CONNECT a.b:80 HTTP/1.1\r\nHost: a.b:80\r\nVia: 1.1 test\r\n\r\n",
        ),
        (
            "[::1]:80",
            None,
            "CONNECT [::1]:80 HTTP/1.1\r\nHost: [::1]:80\r\nVia: 1.1 test\r\n\r\n",
        ),
        (
            "a:1",
            Some(ann()),
            "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nProxy-Authorization: Basic YW5uOmh1c2g=\r\nVia: 1.1 test\r\n\r\n",
        ),
    ] {
        let (_, first) = start(Language::Http, text, credentials.as_ref());
        assert_eq!(String::from_utf8(first).unwrap(), request);
    }
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200\n\n",
        "HTTP/1.1 299 \r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nVia: x\r\n\r\n",
    ] {
        let said = heard(Language::Http, None, format!("{answer}early").as_bytes());
        assert_eq!(said, Ok(Some((Vec::new(), b"early".to_vec()))), "{answer:?}");
    }
}

#[test]
fn every_http_error_status_maps_to_an_error() {
    for (status, error) in [
        (301, Error::Failed(Failure::General)),
        (400, Error::Failed(Failure::General)),
        (403, Error::Failed(Failure::NotAllowed)),
        (500, Error::Failed(Failure::General)),
        (502, Error::Failed(Failure::HostUnreachable)),
        (503, Error::Failed(Failure::HostUnreachable)),
        (504, Error::Failed(Failure::TimedOut)),
        (508, Error::Failed(Failure::Loop)),
        (407, Error::Method),
        (101, Error::Protocol),
    ] {
        let stream = format!("HTTP/1.1 {status} x\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(heard(Language::Http, None, stream.as_bytes()), Err(error), "{status}");
    }
    let refused = heard(Language::Http, Some(&ann()), b"HTTP/1.1 407 x\r\n\r\n");
    assert_eq!(refused, Err(Error::Authentication));
}

#[test]
fn a_malformed_http_answer_is_refused_at_its_first_byte() {
    for stream in [
        &b"S"[..],
        b"HTTP/2",
        b"\x05",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        b"HTTP/1.12",
    ] {
        let ended = [stream, b"\r\n\r\n"].concat();
        assert_eq!(heard(Language::Http, None, &ended), Err(Error::Protocol), "{stream:?}");
    }
    for first in ["S", "HTTP/2", "http"] {
        assert_eq!(
            heard(Language::Http, None, first.as_bytes()),
            Err(Error::Protocol),
            "{first}"
        );
    }
    let long = [&b"HTTP/1.1 200 OK\r\nX: "[..], &[b'x'; 16 << 10]].concat();
    let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
    for stream in [long, interim] {
        for piece_bytes in [1, 1000, 1 << 20] {
            let pieces: Vec<&[u8]> = stream.chunks(piece_bytes).collect();
            let (handshake, _) = start(Language::Http, "a:80", None);
            assert_eq!(converse(handshake, &pieces), Err(Error::Protocol));
        }
    }
}

#[test]
fn an_incomplete_answer_decides_nothing() {
    let socks5 = [&[5, 2, 1, 0][..], &REPLY].concat();
    let http = b"HTTP/1.1 200 OK\r\nVia: x\r\n\r\n".to_vec();
    for (language, stream) in [(Language::Socks5, socks5), (Language::Http, http)] {
        for end in 0..stream.len() {
            assert_eq!(heard(language, Some(&ann()), &stream[..end]), Ok(None), "{end}");
        }
    }
}

#[test]
fn every_error_has_its_own_name_and_message() {
    for words in [
        Error::ALL.map(|error| error.as_str().to_owned()),
        Error::ALL.map(|error| error.to_string()),
    ] {
        let mut distinct = words.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), Error::ALL.len());
    }
    assert_eq!(Error::Authentication.failure(), Failure::General);
    assert_eq!(Error::Failed(Failure::Refused).failure(), Failure::Refused);
}

/// Both sides are from this crate, so both could have the same fault. Therefore, the tests of each
/// side compare that side with the standard.
#[test]
fn the_server_side_understands_the_messages_of_the_client_side() {
    for text in ["192.0.2.1:80", "[2001:db8::7]:443", "example.com:8080"] {
        for (credentials, demand) in [(None, Demand::Nothing), (Some(ann()), Demand::Password)] {
            let (handshake, first) = start(Language::Socks5, text, credentials.as_ref());
            let answers = match demand {
                Demand::Nothing => [&[5, 0][..], &REPLY].concat(),
                Demand::Password => [&[5, 2, 1, 0][..], &REPLY].concat(),
            };
            let said = converse(handshake, &[&answers]).unwrap().unwrap().0;
            assert_eq!(heard_by_socks5(demand, &[first, said.concat()].concat()), target(text));
            let (_, first) = start(Language::Http, text, credentials.as_ref());
            assert_eq!(heard_by_http(demand, &first), target(text));
        }
    }
}

fn assert_ann(credentials: &Credentials) {
    assert_eq!((&*credentials.name, &*credentials.secret), (&b"ann"[..], &b"hush"[..]));
}

fn heard_by_socks5(demand: Demand, mut said: &[u8]) -> Target {
    let offer = Greeting::new(demand).feed(&mut said).unwrap().unwrap();
    let agreed = match offer {
        Offer::Agreed(agreed) => agreed,
        Offer::Password(mut stage) => {
            let (credentials, undecided) = stage.feed(&mut said).unwrap().unwrap();
            assert_ann(&credentials);
            undecided.accept(Proof::of_known_user())
        }
    };
    agreed.request().feed(&mut said).unwrap().unwrap().target
}

fn heard_by_http(demand: Demand, mut said: &[u8]) -> Target {
    let request = match Head::new(demand).feed(&mut said).unwrap().unwrap() {
        RequestHead::Agreed(request) => request,
        RequestHead::Password(unproven) => {
            assert_ann(unproven.credentials.as_ref().unwrap());
            unproven.accept(Proof::of_known_user())
        }
    };
    match request {
        HttpRequest::Connect(target) => target,
        _ => panic!("not a CONNECT"),
    }
}
