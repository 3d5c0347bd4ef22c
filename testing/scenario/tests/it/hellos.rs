//! A route by name and the certificate for it: the router and rustls read one name in a hello.

use rustls::server::Acceptor;
use spliceway_protocol::tls::Hello;
use spliceway_scenario::tls;

const HOST: u8 = 0;
const OTHER: u8 = 1;

/// What both read: a name, no name, or a fault.
type Read = Result<Option<String>, ()>;

#[test]
fn a_route_and_a_certificate_never_have_different_names() {
    let a = (HOST, &b"a.test"[..]);
    let name = |name: &str| Ok(Some(name.to_owned()));
    for (what, lists, router, server) in [
        ("a name", vec![vec![a]], name("a.test"), name("a.test")),
        (
            "upper case",
            vec![vec![(HOST, b"A.Test")]],
            name("a.test"),
            name("a.test"),
        ),
        (
            "a dot at the end",
            vec![vec![(HOST, b"a.test.")]],
            name("a.test"),
            name("a.test"),
        ),
        ("two dots", vec![vec![(HOST, b"a.test..")]], Err(()), Err(())),
        ("an address", vec![vec![(HOST, b"192.0.2.1")]], Ok(None), Ok(None)),
        (
            "an address of IPv6",
            vec![vec![(HOST, b"2001:db8::1")]],
            Ok(None),
            Ok(None),
        ),
        ("a NUL", vec![vec![(HOST, b"a.test\0.b.test")]], Err(()), Err(())),
        ("UTF-8", vec![vec![(HOST, "ä.test".as_bytes())]], Err(()), Err(())),
        ("an empty name", vec![vec![(HOST, b"")]], Ok(None), Err(())),
        ("two names", vec![vec![a, (HOST, b"b.test")]], Err(()), Err(())),
        ("the same name twice", vec![vec![a, a]], Err(()), Err(())),
        (
            "two extensions",
            vec![vec![a], vec![(HOST, b"b.test")]],
            Err(()),
            Err(()),
        ),
        ("an empty extension, and one", vec![vec![], vec![a]], Err(()), Err(())),
        (
            "another kind before",
            vec![vec![(OTHER, b"b.test"), a]],
            name("a.test"),
            Err(()),
        ),
        (
            "another kind after",
            vec![vec![a, (OTHER, b"b.test")]],
            name("a.test"),
            name("a.test"),
        ),
        ("another kind alone", vec![vec![(OTHER, b"b.test")]], Ok(None), Err(())),
        ("none", vec![], Ok(None), Ok(None)),
    ] {
        let message = message(&lists);
        for size in [1, 3, 50, message.len()] {
            let bytes: Vec<_> = message.chunks(size).flat_map(record).collect();
            assert_eq!(by_router(&bytes), router, "{what}, {size} bytes in a record");
            assert_eq!(by_server(&bytes), server, "{what}, {size} bytes in a record");
            // The first byte cuts the rest.
            tls(&[&[size as u8][..], &bytes].concat());
        }
    }
}

fn by_router(mut bytes: &[u8]) -> Read {
    let hello = Hello::new().feed(&mut bytes).map_err(drop)?;
    Ok(hello.expect("all of it").name.map(String::from))
}

fn by_server(mut bytes: &[u8]) -> Read {
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        acceptor.read_tls(&mut bytes).unwrap();
    }
    let accepted = acceptor.accept().map_err(drop)?;
    let accepted = accepted.expect("all of it");
    Ok(accepted.client_hello().server_name().map(str::to_owned))
}

/// Returns a ClientHello with an extension for each list of names.
fn message(lists: &[Vec<(u8, &[u8])>]) -> Vec<u8> {
    // The signatures that the client can verify.
    let mut extensions = extension(13, &long(&[4, 3]));
    for list in lists {
        let names = list
            .iter()
            .flat_map(|(kind, name)| [&[*kind][..], &long(name)].concat());
        extensions.extend(extension(0, &long(&names.collect::<Vec<_>>())));
    }
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &long(&[0x13, 1]),
        &[1, 0],
        &long(&extensions),
    ]
    .concat();
    let [_, length @ ..] = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1][..], &length, &body].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &long(content)].concat()
}

fn record(content: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &long(content)].concat()
}

/// Returns `content` behind its length in two bytes.
fn long(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&length.to_be_bytes()[..], content].concat()
}
