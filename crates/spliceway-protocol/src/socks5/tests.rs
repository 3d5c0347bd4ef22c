use std::net::Ipv6Addr;

use super::*;
use crate::address::Target;
use crate::tests::cuttings;

const GREETING: [u8; 3] = [VERSION, 1, NO_AUTHENTICATION];
const GREETING_WITH_PASSWORD: [u8; 4] = [VERSION, 2, NO_AUTHENTICATION, PASSWORD];
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The answers of the server, and the messages that it understood.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    answers: Vec<u8>,
    credentials: Option<(Vec<u8>, Vec<u8>)>,
    request: Option<Request>,
    left: Vec<u8>,
}

enum Stage {
    Greeting(Greeting),
    Password(PasswordStage),
    Request(RequestStage),
    Waiting,
}

impl Stage {
    fn feed(&mut self, input: &mut &[u8], heard: &mut Heard) -> Result<Option<Self>, Refusal> {
        Ok(match self {
            Self::Greeting(greeting) => greeting.feed(input)?.map(|offer| {
                heard.answers.extend(offer.answer());
                match offer {
                    Offer::Agreed(agreed) => Self::Request(agreed.request()),
                    Offer::Password(stage) => Self::Password(stage),
                }
            }),
            Self::Password(stage) => stage.feed(input)?.map(|(credentials, undecided)| {
                heard.credentials = Some((credentials.name.into(), credentials.secret.into()));
                Self::Request(undecided.accept(Proof::of_known_user()).request())
            }),
            Self::Request(stage) => stage.feed(input)?.map(|request| {
                heard.request = Some(request);
                Self::Waiting
            }),
            Self::Waiting => None,
        })
    }

    fn room_bytes(&self) -> usize {
        match self {
            Self::Greeting(stage) => stage.message.room_bytes(),
            Self::Password(stage) => stage.message.room_bytes(),
            Self::Request(stage) => stage.message.room_bytes(),
            Self::Waiting => 0,
        }
    }
}

/// Runs the handshake on a stream in pieces. The server accepts every password.
fn converse(demand: Demand, pieces: &[&[u8]]) -> Result<Heard, Refusal> {
    let (mut stage, mut heard) = (Stage::Greeting(Greeting::new(demand)), Heard::default());
    for mut input in pieces.iter().copied() {
        while let Some(next) = stage.feed(&mut input, &mut heard)? {
            stage = next;
        }
        match stage {
            Stage::Waiting => heard.left.extend(input),
            _ => assert!(input.is_empty(), "what is not the end is taken whole"),
        }
    }
    Ok(heard)
}

fn refusal(demand: Demand, stream: &[u8]) -> Refusal {
    let whole = converse(demand, &[stream]).unwrap_err();
    for pieces in cuttings(stream) {
        assert_eq!(converse(demand, &pieces), Err(whole), "{pieces:?}");
    }
    whole
}

fn request(command: u8, address_type: u8, address: &[u8]) -> Vec<u8> {
    [&[VERSION, command, 0, address_type], address, &[0x1f, 0x90]].concat()
}

/// Returns the bytes, preceded by their number.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn password(name: &[u8], secret: &[u8]) -> Vec<u8> {
    [vec![PASSWORD_VERSION], counted(name), counted(secret)].concat()
}

fn connect(address_type: u8, address: &[u8]) -> Vec<u8> {
    [&GREETING[..], &request(CONNECT, address_type, address)].concat()
}

#[test]
fn every_address_type_is_read_at_every_split_and_early_data_is_left() {
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
    let cases = [
        (connect(IPV4, &[192, 0, 2, 1]), "192.0.2.1:8080"),
        (connect(IPV6, &v6.octets()), "[2001:db8::7]:8080"),
        (connect(NAME, &counted(b"example.com")), "example.com:8080"),
    ];
    for (mut stream, expected) in cases {
        stream.extend(b"early");
        for pieces in cuttings(&stream) {
            let heard = converse(Demand::Nothing, &pieces).unwrap();
            assert_eq!(heard.request.unwrap().target.to_string(), expected);
            assert_eq!(
                (heard.answers, heard.left),
                (vec![5, 0], b"early".to_vec()),
                "{pieces:?}"
            );
        }
    }
}

#[test]
fn name_and_secret_are_read_at_every_split_and_early_data_is_left() {
    let stream = [
        &GREETING_WITH_PASSWORD[..],
        &password(b"ann", b"hush"),
        &request(CONNECT, IPV4, &[192, 0, 2, 1]),
        b"early",
    ]
    .concat();
    for pieces in cuttings(&stream) {
        let heard = converse(Demand::Password, &pieces).unwrap();
        assert_eq!(heard.answers, [5, 2]);
        assert_eq!(heard.credentials, Some((b"ann".to_vec(), b"hush".to_vec())));
        assert_eq!(heard.request.unwrap().target.to_string(), "192.0.2.1:8080");
        assert_eq!(heard.left, b"early");
    }
    assert_eq!((Undecided::ACCEPTED, Undecided::REFUSED), ([1, 0], [1, 1]));
}

#[test]
fn every_command_is_read() {
    for (code, command) in [(1, Command::Connect), (2, Command::Bind), (3, Command::Associate)] {
        let stream = [&GREETING[..], &request(code, IPV4, &[0; 4])].concat();
        let asked = converse(Demand::Nothing, &[&stream]).unwrap().request.unwrap();
        assert_eq!(
            (asked.command, asked.target.to_string().as_str()),
            (command, "0.0.0.0:8080")
        );
    }
}

#[test]
fn an_incomplete_message_decides_nothing() {
    let last = request(CONNECT, NAME, &counted(b"example.com"));
    let stream = [&GREETING_WITH_PASSWORD[..], &password(b"ann", b"hush"), &last].concat();
    for end in 0..stream.len() {
        let heard = converse(Demand::Password, &[&stream[..end]]).unwrap();
        assert_eq!(heard.request, None, "{end}");
        assert_eq!(heard.credentials.is_some(), end >= stream.len() - last.len(), "{end}");
        assert_eq!(heard.answers.is_empty(), end < GREETING_WITH_PASSWORD.len(), "{end}");
    }
}

#[test]
fn fields_of_255_bytes_fit() {
    let long = [b'a'; 255];
    let mut stream = vec![VERSION, 255];
    stream.extend([3; 254]);
    stream.push(PASSWORD);
    stream.extend(password(&[b'n'; 255], &[0xFF; 255]));
    stream.extend(request(CONNECT, NAME, &counted(&long)));
    for pieces in cuttings(&stream) {
        let heard = converse(Demand::Password, &pieces).unwrap();
        assert_eq!(heard.credentials, Some((vec![b'n'; 255], vec![0xFF; 255])));
        let target = Target::named(std::str::from_utf8(&long).unwrap(), 8080);
        assert_eq!(heard.request.map(|request| request.target), target);
    }
}

#[test]
fn empty_fields_are_accepted() {
    for (name, secret) in [(&b""[..], &b"x"[..]), (b"x", b""), (b"", b"")] {
        let stream = [&GREETING_WITH_PASSWORD[..], &password(name, secret)].concat();
        for pieces in cuttings(&stream) {
            let heard = converse(Demand::Password, &pieces).unwrap();
            assert_eq!(heard.credentials, Some((name.to_vec(), secret.to_vec())));
        }
    }
}

#[test]
fn an_address_written_as_a_name_is_that_address() {
    for (name, expected) in [
        (&b"127.0.0.1"[..], "127.0.0.1:8080"),
        (b"::1", "[::1]:8080"),
        (b"[::1]", "[::1]:8080"),
        (b"[2001:DB8::1]", "[2001:db8::1]:8080"),
    ] {
        let asked = converse(Demand::Nothing, &[&connect(NAME, &counted(name))])
            .unwrap()
            .request;
        assert!(matches!(asked, Some(Request { target: Target::Ip(ip), .. }) if ip.to_string() == expected));
    }
}

#[test]
fn brackets_are_only_around_an_ipv6_address() {
    for name in [
        &b"[127.0.0.1]"[..],
        b"[a.example]",
        b"[::1",
        b"::1]",
        b"[[::1]]",
        b"[]",
        b"[::1]:80",
        b"[::1%lo]",
    ] {
        let refused = converse(Demand::Nothing, &[&connect(NAME, &counted(name))]);
        assert!(matches!(refused, Err(Refusal::Name)), "{name:?}");
    }
}

/// Only the operator may name a Unix socket (`unix:`).
#[test]
fn a_client_cannot_name_a_unix_socket() {
    assert_eq!(
        refusal(Demand::Nothing, &connect(NAME, &counted(b"unix:/run/admin"))),
        Refusal::Name
    );
}

#[test]
fn another_version_is_refused_at_its_first_byte() {
    for first in (0..=255).filter(|first| *first != VERSION) {
        assert_eq!(refusal(Demand::Nothing, &[first]), Refusal::Version);
        assert_eq!(
            refusal(Demand::Nothing, &[&GREETING[..], &[first]].concat()),
            Refusal::Version
        );
    }
    assert_eq!(refusal(Demand::Nothing, b"GET / HTTP/1.1\r\n"), Refusal::Version);
    for first in (0..=255).filter(|first| *first != PASSWORD_VERSION) {
        let stream = [&GREETING_WITH_PASSWORD[..], &[first]].concat();
        assert_eq!(refusal(Demand::Password, &stream), Refusal::PasswordVersion);
    }
}

#[test]
fn without_the_demanded_method_no_further_bytes_are_read() {
    let asked = request(CONNECT, IPV4, &[1; 4]);
    for methods in [&[5, 1, 2][..], &[5, 0], &[5, 2, 1, 2], &[5, 1, 0xFF]] {
        assert_eq!(refusal(Demand::Nothing, &[methods, &asked].concat()), Refusal::Method);
    }
    for methods in [&[5, 1, 0][..], &[5, 0], &[5, 2, 1, 0], &[5, 1, 0xFF]] {
        assert_eq!(refusal(Demand::Password, &[methods, &asked].concat()), Refusal::Method);
    }
}

#[test]
fn a_client_that_skips_its_password_is_refused() {
    let stream = [&GREETING_WITH_PASSWORD[..], &request(CONNECT, IPV4, &[1; 4])].concat();
    assert_eq!(refusal(Demand::Password, &stream), Refusal::PasswordVersion);
}

#[test]
fn every_unsupported_part_of_a_request_has_its_own_refusal() {
    for command in (0..=255).filter(|command| !(1..=3).contains(command)) {
        let stream = [&GREETING[..], &request(command, IPV4, &[1; 4])].concat();
        assert_eq!(refusal(Demand::Nothing, &stream), Refusal::Command);
        let short = &stream[..stream.len() - 1];
        assert_eq!(
            converse(Demand::Nothing, &[short]).unwrap().request,
            None,
            "not before it is whole"
        );
    }
    for address_type in (0..=255).filter(|address_type| ![IPV4, NAME, IPV6].contains(address_type)) {
        // No bytes follow the type, because the length of the address is unknown.
        let stream = [&GREETING[..], &[VERSION, CONNECT, 0, address_type]].concat();
        assert_eq!(refusal(Demand::Nothing, &stream), Refusal::AddressType);
    }
    for bad in [
        &b""[..],
        b"a\0b",
        b"a b",
        b"a\n",
        b"\xff\xfe",
        b"caf\xc3\xa9",
        b"a/b",
        b"[::1",
    ] {
        assert_eq!(
            refusal(Demand::Nothing, &connect(NAME, &counted(bad))),
            Refusal::Name,
            "{bad:?}"
        );
    }
}

#[test]
fn held_bytes_are_bounded_for_any_input() {
    // Every length is 255, and more bytes follow.
    let stream = [
        &[VERSION, 255][..],
        &[PASSWORD; 255],
        &password(&[b'a'; 255], &[b'b'; 255]),
        &request(CONNECT, NAME, &counted(&[b'c'; 255])),
        &[0; 4096],
    ]
    .concat();
    for piece_bytes in [1, 2, 7, 100, stream.len()] {
        let (mut stage, mut heard) = (Stage::Greeting(Greeting::new(Demand::Password)), Heard::default());
        for mut input in stream.chunks(piece_bytes) {
            loop {
                let next = stage.feed(&mut input, &mut heard).unwrap();
                assert!(
                    stage.room_bytes() <= 1024,
                    "{} in pieces of {piece_bytes}",
                    stage.room_bytes()
                );
                match next {
                    Some(next) => stage = next,
                    None => break,
                }
            }
        }
        assert!(heard.request.is_some());
    }
}

#[test]
fn replies_carry_the_family_of_the_bound_address() {
    assert_eq!(
        succeeded(([127, 0, 0, 1], 258).into()),
        [5, 0, 0, 1, 127, 0, 0, 1, 1, 2]
    );
    let v6 = Reply::TtlExpired.encode((Ipv6Addr::LOCALHOST, 258).into());
    assert_eq!((&v6[..4], &v6[19..], v6.len()), (&[5, 6, 0, 4][..], &[1, 1, 2][..], 22));
}

#[test]
fn every_failure_and_every_refusal_has_its_reply() {
    for (failure, code) in [
        (Failure::General, 1),
        (Failure::Loop, 1),
        (Failure::NotAllowed, 2),
        (Failure::NetworkUnreachable, 3),
        (Failure::HostUnreachable, 4),
        (Failure::Refused, 5),
        (Failure::TimedOut, 6),
    ] {
        assert_eq!(failed(failure), [5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
    for (refusal, answer) in [
        (Refusal::Version, &[][..]),
        (Refusal::Method, &[5, 0xFF]),
        (Refusal::PasswordVersion, &[1, 1]),
        (Refusal::Command, &[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]),
        (Refusal::AddressType, &[5, 8, 0, 1, 0, 0, 0, 0, 0, 0]),
        (Refusal::Name, &[5, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(refusal.answer(), answer);
    }
}

#[test]
fn addresses_read_back_as_they_were_written() {
    for text in ["192.0.2.1:80", "[2001:db8::1]:65535", "example.com:0"] {
        let target: Target = text.parse().unwrap();
        let mut bytes = Vec::new();
        address::encode_target(&target, &mut bytes).unwrap();
        assert_eq!(address::length(&bytes), Ok(bytes.len()));
        assert_eq!(address::decode(&bytes), Ok(target));
        // No shorter prefix is a complete address.
        assert!((0..bytes.len()).all(|end| address::length(&bytes[..end]).unwrap() > end));
    }
    let file = Target::Unix(std::path::Path::new("/run/x").into());
    assert_eq!(address::encode_target(&file, &mut Vec::new()), None);
}
