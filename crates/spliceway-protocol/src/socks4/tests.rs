use std::net::Ipv6Addr;

use super::*;
use crate::tests::cuttings;

/// The outcome: the request with its user ID, and the bytes that follow the request.
type Heard = (Option<(Request, Vec<u8>)>, Vec<u8>);

fn converse(pieces: &[&[u8]]) -> Result<Heard, Refusal> {
    let (mut stage, mut asked, mut left) = (RequestStage::new(Demand::Nothing), None, Vec::new());
    for mut input in pieces.iter().copied() {
        if asked.is_none() {
            asked = stage
                .feed(&mut input)?
                .map(|(request, user_id)| (request, user_id.into()));
        }
        match asked {
            Some(_) => left.extend(input),
            None => assert!(input.is_empty(), "what is not the end is taken whole"),
        }
    }
    Ok((asked, left))
}

fn refusal(stream: &[u8]) -> Refusal {
    let whole = converse(&[stream]).unwrap_err();
    for pieces in cuttings(stream) {
        assert_eq!(converse(&pieces), Err(whole), "{pieces:?}");
    }
    whole
}

fn request(command: u8, ip: [u8; 4], user_id: &[u8]) -> Vec<u8> {
    [&[VERSION, command, 0x1f, 0x90], &ip[..], user_id, &[0]].concat()
}

fn named(user_id: &[u8], name: &[u8]) -> Vec<u8> {
    [&request(CONNECT, [0, 0, 0, 1], user_id)[..], name, &[0]].concat()
}

#[test]
fn addresses_and_names_are_read_at_every_split_and_early_data_is_left() {
    let cases = [
        (request(CONNECT, [192, 0, 2, 1], b""), "", "192.0.2.1:8080"),
        (request(CONNECT, [192, 0, 2, 1], b"ann"), "ann", "192.0.2.1:8080"),
        (named(b"ann", b"example.com"), "ann", "example.com:8080"),
        (named(b"", b"example.com"), "", "example.com:8080"),
        (named(b"", b"127.0.0.1"), "", "127.0.0.1:8080"),
        // These addresses do not mark SOCKS4a, because the last byte is 0 or the third byte is not
        // 0.
        (request(CONNECT, [0, 0, 0, 0], b"ann"), "ann", "0.0.0.0:8080"),
        (request(CONNECT, [0, 0, 1, 1], b"ann"), "ann", "0.0.1.1:8080"),
    ];
    // Early data may begin with a 0 byte, which would end a field.
    for early in [&b"early"[..], b"\0early"] {
        for (stream, user_id, target) in &cases {
            let stream = [&stream[..], early].concat();
            for pieces in cuttings(&stream) {
                let (asked, left) = converse(&pieces).unwrap();
                let (request, user) = asked.unwrap();
                assert_eq!(request.command, Command::Connect);
                assert_eq!(
                    (request.target.to_string().as_str(), user),
                    (*target, user_id.as_bytes().to_vec())
                );
                assert_eq!(left, early, "{pieces:?}");
            }
        }
    }
}

#[test]
fn an_incomplete_message_decides_nothing() {
    let stream = named(b"ann", b"example.com");
    for end in 0..stream.len() {
        assert_eq!(converse(&[&stream[..end]]), Ok((None, Vec::new())), "{end}");
    }
}

#[test]
fn fields_of_255_bytes_fit_and_longer_ones_are_refused() {
    let stream = named(&[b'u'; 255], &[b'n'; 255]);
    for pieces in cuttings(&stream) {
        let (request, user_id) = converse(&pieces).unwrap().0.unwrap();
        assert_eq!(user_id, [b'u'; 255]);
        assert_eq!(request.target.to_string(), format!("{}:8080", "n".repeat(255)));
    }
    for ip in [[192, 0, 2, 1], [0, 0, 0, 1]] {
        assert_eq!(refusal(&request(CONNECT, ip, &[b'u'; 256])), Refusal::UserId);
    }
    assert_eq!(refusal(&named(b"", &[b'n'; 256])), Refusal::Name);
}

#[test]
fn held_bytes_are_bounded_for_any_input() {
    let endless = [
        &[VERSION, CONNECT, 0, 80, 0, 0, 0, 1][..],
        &[b'u'; 255],
        &[0],
        &[b'n'; 4096],
    ]
    .concat();
    for piece_bytes in [1, 3, 100, endless.len()] {
        let mut stage = RequestStage::new(Demand::Nothing);
        let fed = endless.chunks(piece_bytes).find_map(|mut input| {
            let fed = stage.feed(&mut input);
            assert!(stage.message.room_bytes() <= 1024, "{}", stage.message.room_bytes());
            fed.err()
        });
        assert_eq!(fed, Some(Refusal::Name));
    }
}

#[test]
fn every_other_command_is_refused_once_the_message_is_complete() {
    let (asked, _) = converse(&[&request(BIND, [192, 0, 2, 1], b"")]).unwrap();
    assert_eq!(asked.unwrap().0.command, Command::Bind);
    for command in (0..=255).filter(|command| ![CONNECT, BIND].contains(command)) {
        assert_eq!(refusal(&request(command, [192, 0, 2, 1], b"ann")), Refusal::Command);
    }
}

#[test]
fn another_version_is_refused_at_its_first_byte() {
    for first in (0..=255).filter(|first| *first != VERSION) {
        assert_eq!(refusal(&[first]), Refusal::Version);
    }
}

#[test]
fn an_invalid_host_name_is_refused() {
    for bad in [
        &b""[..],
        b"a b",
        b"a\n",
        b"\xff\xfe",
        b"caf\xc3\xa9",
        b"a/b",
        b"unix:/run/admin",
    ] {
        assert_eq!(refusal(&named(b"ann", bad)), Refusal::Name, "{bad:?}");
    }
}

#[test]
fn every_client_is_refused_if_a_password_is_demanded() {
    for stream in [request(CONNECT, [192, 0, 2, 1], b"ann"), named(b"ann", b"example.com")] {
        for pieces in cuttings(&stream) {
            let mut stage = RequestStage::new(Demand::Password);
            let mut fed = pieces.into_iter().map(|mut input| stage.feed(&mut input));
            assert!(fed.any(|fed| matches!(fed, Err(Refusal::Method))));
        }
    }
}

#[test]
fn every_outcome_has_its_reply() {
    assert_eq!(succeeded(([127, 0, 0, 1], 258).into()), [0, 90, 1, 2, 127, 0, 0, 1]);
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    assert_eq!(succeeded((mapped, 258).into()), [0, 90, 1, 2, 127, 0, 0, 1]);
    assert_eq!(succeeded((Ipv6Addr::LOCALHOST, 258).into()), [0, 90, 1, 2, 0, 0, 0, 0]);
    for failure in Failure::ALL {
        assert_eq!(failed(failure), [0, 91, 0, 0, 0, 0, 0, 0]);
    }
    for refusal in Refusal::ALL {
        let answer = refusal.answer();
        match refusal {
            Refusal::Version => assert_eq!(answer, []),
            _ => assert_eq!(answer, [0, 91, 0, 0, 0, 0, 0, 0]),
        }
    }
}
