#[cfg(feature = "tls")]
mod clients;
#[cfg(feature = "tls")]
mod ended;
mod others;
mod postgres;
mod psql;

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::harness::{
    Program, TextFile, accept, assert_same, connect, echo, is_closed, listen, pattern, read_all, read_exactly,
    refused_to_start, refusing, send_and_finish, was_reached,
};

macro_rules! recorded {
    ($client:literal) => {
        include_bytes!(concat!("../../../spliceway-protocol/src/tls/hellos/", $client, ".bin"))
    };
}

/// The first bytes of real clients that state `example.com`. Those of Go and Chromium have
/// post-quantum keys.
pub(crate) const HELLOS: [(&str, &[u8]); 5] = [
    ("openssl", recorded!("openssl")),
    ("curl", recorded!("curl")),
    ("go", recorded!("go")),
    ("chromium", recorded!("chromium")),
    ("rustls", recorded!("rustls")),
];
/// A client with ECH that hides `secret.example`, and states `public.example`.
pub(crate) const HIDDEN: &[u8] = recorded!("go-ech");

/// Returns `content` behind its length in two bytes.
fn long(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    [&length.to_be_bytes()[..], content].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &long(content)].concat()
}

/// Returns a hello with this name and these protocols, and `padding` bytes of further extensions.
pub(crate) fn hello(name: Option<&[u8]>, protocols: &[&str], padding: usize) -> Vec<u8> {
    let mut extensions = vec![extension(13, &long(&[4, 3]))];
    if let Some(name) = name {
        extensions.push(extension(0, &long(&[&[0][..], &long(name)].concat())));
    }
    if !protocols.is_empty() {
        let short = |protocol: &&str| [&[u8::try_from(protocol.len()).unwrap()], protocol.as_bytes()].concat();
        extensions.push(extension(
            16,
            &long(&protocols.iter().flat_map(short).collect::<Vec<_>>()),
        ));
    }
    if padding > 0 {
        extensions.push(extension(21, &vec![0; padding - 4]));
    }
    hello_of(&extensions)
}

/// Returns a hello with these extensions.
fn hello_of(extensions: &[Vec<u8>]) -> Vec<u8> {
    let head = [&[3, 3][..], &[7; 32], &[0], &long(&[0x13, 1]), &[1, 0]].concat();
    let body = [head, long(&extensions.concat())].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    records(&message, 16 << 10)
}

/// Returns a hello whose list of names has `good.test`, and is followed by one byte.
pub(crate) fn followed_name() -> Vec<u8> {
    let list = long(&[&[0][..], &long(b"good.test")].concat());
    hello_of(&[extension(0, &[&list[..], &[0]].concat())])
}

/// Returns records with `bytes` bytes of the message each.
pub(crate) fn records(message: &[u8], bytes: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1][..], &long(part)].concat();
    message.chunks(bytes).flat_map(record).collect()
}

pub(crate) fn named(name: &str) -> Vec<u8> {
    hello(Some(name.as_bytes()), &[], 0)
}

/// Starts a router with these routes.
fn router(routes: &[(&str, SocketAddr)], arguments: &[&str]) -> Program {
    let routes: Vec<String> = routes
        .iter()
        .map(|(name, target)| format!("--route={name}={target}"))
        .collect();
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    Program::proxy("sni", &[&routes, arguments].concat())
}

/// The fatal alert that a client gets.
pub(crate) fn alert(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

fn send(program: &Program, bytes: &[u8]) -> TcpStream {
    let mut client = program.connect();
    // The program may refuse the client before it has sent everything.
    let _ = client.write_all(bytes);
    client
}

#[test]
fn hellos_of_real_clients_cut_at_every_byte_reach_their_target() {
    let target = echo("127.0.0.1:0");
    let program = router(&[("example.com", target), ("public.example", target)], &[]);
    let hellos = HELLOS.iter().chain(&[("go-ech", HIDDEN)]);
    let cuts: Vec<_> = hellos
        .flat_map(|(name, bytes)| (1..bytes.len()).map(move |cut| (name, bytes, cut)))
        .collect();
    let address = program.address;
    let exchange = |&(name, bytes, cut): &(&&str, &&[u8], usize)| {
        let mut client = connect(address);
        client.set_nodelay(true).unwrap();
        client.write_all(&bytes[..cut]).unwrap();
        send_and_finish(&client, &bytes[cut..]);
        assert!(read_all(&client) == **bytes, "{name} at {cut}");
    };
    thread::scope(|scope| {
        for cuts in cuts.chunks(cuts.len() / 4 + 1) {
            scope.spawn(move || cuts.iter().for_each(exchange));
        }
    });
}

#[test]
fn a_hello_that_arrives_byte_by_byte_reaches_its_target() {
    let program = router(&[("example.com", echo("127.0.0.1:0"))], &[]);
    for (name, bytes) in [HELLOS[3], ("16 KiB", &hello(Some(b"example.com"), &[], 16 << 10))] {
        let mut client = program.connect();
        client.set_nodelay(true).unwrap();
        bytes.chunks(1).for_each(|byte| client.write_all(byte).unwrap());
        client.shutdown(Shutdown::Write).unwrap();
        assert!(read_all(&client) == bytes, "{name}");
    }
}

#[test]
fn a_bulk_transfer_after_the_hello_is_exact_and_spliced() {
    const LARGE: usize = 6 << 20;
    let (listener, target) = listen();
    let mut program = router(&[("example.com", target)], &[]);
    let client = program.connect();
    let up = [HELLOS[2].1, &pattern(1, LARGE)].concat();
    let down = pattern(2, LARGE);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &up));
        scope.spawn(|| {
            let target = accept(&listener);
            thread::scope(|scope| {
                scope.spawn(|| send_and_finish(&target, &down));
                assert_same(&read_all(&target), &up);
            });
        });
        assert_same(&read_all(&client), &down);
    });
    let record = program.line("bytes_up=");
    let number = |name: &str| {
        let (_, rest) = record.split_once(&format!(" {name}=")).unwrap();
        rest.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    assert_eq!((number("bytes_up"), number("bytes_down")), (up.len(), down.len()));
    let spliced = number("spliced_up") + number("spliced_down");
    assert!(spliced >= 2 * LARGE / 100 * 95, "{record}");
}

#[test]
fn names_and_protocols_select_the_target() {
    let targets: Vec<_> = (0..4).map(|_| listen()).collect();
    let [exact, h2, below, default] = [0, 1, 2, 3].map(|index| targets[index].1);
    let routes = [
        ("example.com", exact),
        ("EXAMPLE.com/h2", h2),
        ("*.example.com.", below),
    ];
    let program = router(&routes, &["--default-target", &default.to_string()]);
    for (sent, expected) in [
        (named("example.com"), 0),
        (named("ExAmPlE.CoM"), 0),
        (named("example.com."), 0),
        (hello(Some(b"example.com"), &["http/1.1"], 0), 0),
        (hello(Some(b"example.com"), &["http/1.1", "h2"], 0), 1),
        (named("www.example.com"), 2),
        (hello(Some(b"a.b.example.com"), &["h2"], 0), 2),
        (named("example.com.evil.test"), 3),
        (named("com"), 3),
        (hello(None, &["h2"], 0), 3),
        // An address is no name, and is never dialled.
        (named("192.0.2.1"), 3),
        // The hidden name is in no route that anybody could see.
        (HIDDEN.to_vec(), 3),
        // GREASE for ECH does not hide the name.
        (HELLOS[3].1.to_vec(), 1),
    ] {
        let _client = send(&program, &sent);
        let mut target = accept(&targets[expected].0);
        assert_same(&read_exactly(&mut target, sent.len()), &sent);
    }
}

#[test]
fn a_client_without_a_route_gets_an_alert_and_no_target() {
    let (listener, target) = listen();
    let program = router(&[("example.com", target), ("picky.example/h2", target)], &[]);
    for (sent, expected, reason) in [
        (named("other.example"), 112, "sni_unknown"),
        (named("sub.example.com"), 112, "sni_unknown"),
        (HIDDEN.to_vec(), 112, "sni_unknown"),
        (hello(None, &["h2"], 0), 109, "sni_missing"),
        (named("192.0.2.1"), 109, "sni_missing"),
        (named(&target.ip().to_string()), 109, "sni_missing"),
        (hello(Some(b"picky.example"), &["http/1.1"], 0), 120, "alpn_unknown"),
    ] {
        let before = program.sum("spliceway_refused_total", &[reason]);
        assert_eq!(read_all(&send(&program, &sent)), alert(expected), "{reason}");
        program.await_sum("spliceway_refused_total", &[reason], before + 1);
    }
    assert!(!was_reached(&listener));
}

#[test]
fn a_hostile_hello_is_refused() {
    let (listener, target) = listen();
    let program = router(&[("example.com", target)], &["--default-target", &target.to_string()]);
    let valid = named("example.com");
    let mut cut = valid.clone();
    cut[4] -= 1;
    cut.extend(b"GET");
    for (sent, expected, reason) in [
        (b"\x16\x03\x01\0\0".to_vec(), Some(50), "tls_malformed"),
        (b"\x16\x03\x01\xFF\xFF\x01".to_vec(), Some(50), "tls_malformed"),
        (b"\x16\x03\x01\0\x04\x02\0\0\0".to_vec(), Some(50), "tls_malformed"),
        (b"\x16\x03\x01\0\x04\x01\xFF\xFF\xFF".to_vec(), Some(50), "tls_too_long"),
        (cut, Some(50), "tls_malformed"),
        (followed_name(), Some(50), "tls_malformed"),
        (named("example.com.."), Some(47), "sni_invalid"),
        (named("exam\0ple.com"), Some(47), "sni_invalid"),
        (named("example.com\r\nX: y"), Some(47), "sni_invalid"),
        (named(&"a".repeat(256)), Some(47), "sni_invalid"),
        (hello(Some(b"b\xFCcher.example"), &[], 0), Some(47), "sni_invalid"),
        (hello(Some(b"example.com"), &[], 20 << 10), Some(50), "tls_too_long"),
        (
            records(&[&[1, 0, 0xFF, 0xFF][..], &[0; 4000]].concat(), 1),
            Some(50),
            "tls_too_long",
        ),
    ] {
        let before = program.sum("spliceway_refused_total", &[reason]);
        let client = send(&program, &sent);
        let answer = read_all(&client);
        drop(client);
        assert_eq!(
            answer,
            expected.map_or(Vec::new(), |expected| alert(expected).to_vec()),
            "{reason} {}",
            sent[..20.min(sent.len())].escape_ascii()
        );
        program.await_sum("spliceway_refused_total", &[reason], before + 1);
    }
    assert!(!was_reached(&listener));
    assert_eq!(program.sum("spliceway_connections_active", &[]), 0);
}

#[test]
fn the_record_has_the_name_and_metrics_have_no_names() {
    let (listener, target) = listen();
    let mut program = router(&[("*.example.com", target)], &[]);
    drop(send(&program, &named("Www.Example.com")));
    drop(accept(&listener));
    let record = program.line("end=");
    assert!(
        record.contains(&format!("sni=\"www.example.com\" target={target}")),
        "{record}"
    );
    read_all(&send(&program, &named("other.test")));
    let record = program.line("end=denied:sni_unknown");
    assert!(
        record.contains("sni=\"other.test\"") && !record.contains("target="),
        "{record}"
    );
    read_all(&send(&program, &named("evil\nend=x")));
    let record = program.line("end=denied:sni_invalid");
    assert!(!record.contains("evil"), "{record}");
    let metrics = program.get("/metrics");
    assert!(
        !metrics.contains("example") && !metrics.contains("other.test"),
        "{metrics}"
    );
}

#[test]
fn a_client_that_does_not_finish_its_hello_is_refused_in_time() {
    let (listener, target) = listen();
    let mut program = router(&[("example.com", target)], &["--handshake-timeout", "50ms"]);
    for sent in [&b""[..], &HELLOS[0].1[..100]] {
        assert!(is_closed(&mut send(&program, sent)));
        program.line("end=denied:handshake_timeout");
    }
    // A client that leaves early is not refused.
    let program = router(&[("example.com", target)], &[]);
    let client = send(&program, &HELLOS[0].1[..3]);
    client.shutdown(Shutdown::Write).unwrap();
    program.await_end("client_eof");
    assert!(!was_reached(&listener));
}

#[test]
fn proxy_headers_precede_the_hello_on_both_sides() {
    const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";
    let (listener, target) = listen();
    let options = ["--accept-proxy=v1", "--proxy-from=127.0.0.0/8", "--send-proxy=v1"];
    let mut program = router(&[("example.com", target)], &options);
    let (_, hello) = HELLOS[3];
    for size in [1, usize::MAX] {
        let mut client = program.connect();
        client.set_nodelay(true).unwrap();
        let sent = [LINE, hello].concat();
        sent.chunks(size).for_each(|part| client.write_all(part).unwrap());
        client.shutdown(Shutdown::Write).unwrap();
        let target = accept(&listener);
        assert_same(&read_all(&target), &sent);
        drop((client, target));
        let record = program.line("end=");
        assert!(record.contains("client=192.0.2.1:56324 "), "{record}");
    }
}

#[test]
fn clients_are_admitted_and_targets_are_checked_as_by_a_forwarder() {
    let (listener, target) = listen();
    let denied = router(&[("example.com", target)], &["--deny", "127.0.0.0/8"]);
    assert!(is_closed(&mut send(&denied, &named("example.com"))));
    denied.await_end("denied:client");
    // On every address, and without --allow-private: the operator has chosen the targets.
    let route = format!("--route=example.com={target}");
    let public = Program::public("sni", &[&route]);
    drop(send(&public, &named("example.com")));
    drop(accept(&listener));
    let gone = router(&[("example.com", refusing())], &[]);
    assert!(is_closed(&mut send(&gone, &named("example.com"))));
    gone.await_end("connect_failed:ECONNREFUSED");
    assert!(!was_reached(&listener));
}

#[test]
fn a_route_back_to_the_router_is_refused() {
    // The port is known only after the start, so a reload brings the route.
    let (_listener, target) = listen();
    let service = |listen: &str, target: SocketAddr| {
        format!(
            "admin.metrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"sni\"\nlisten = \"{listen}\"\n\
             route = [\"example.com={target}\"]\n"
        )
    };
    let config = TextFile::new(&service("127.0.0.1:0", target));
    let mut program = Program::run(&config);
    config.write(&service("127.0.0.1:0", program.address));
    let report = program.reload();
    assert!(report.contains("changed sni"), "{report}");
    assert!(is_closed(&mut send(&program, &named("example.com"))));
    program.await_end("denied:loop");
}

#[test]
fn a_reload_changes_routes_and_cuts_no_session() {
    let ((first, to_first), (second, to_second)) = (listen(), listen());
    let service = |target: SocketAddr| {
        format!(
            "admin.metrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"sni\"\nlisten = \"127.0.0.1:0\"\n\
             route = \"example.com={target}\"\ndefault_target = \"{to_second}\"\n"
        )
    };
    let config = TextFile::new(&service(to_first));
    let mut program = Program::run(&config);
    let sent = named("example.com");
    let exchange = |client: &mut TcpStream, target: &mut TcpStream| {
        client.write_all(b"later").unwrap();
        assert_eq!(read_exactly(target, 5), b"later");
    };
    let reach = |program: &Program, listener: &TcpListener| {
        let client = send(program, &sent);
        let mut target = accept(listener);
        assert_same(&read_exactly(&mut target, sent.len()), &sent);
        (client, target)
    };
    let (mut client, mut target) = reach(&program, &first);
    config.write(&service(to_second));
    assert!(program.reload().contains("changed sni"));
    reach(&program, &second);
    exchange(&mut client, &mut target);
}

#[test]
fn a_configuration_that_names_no_target_is_refused() {
    let start = ["sni", "-l", "127.0.0.1:0"];
    for (arguments, expected) in [
        (&[][..], "--route"),
        (&["--route", "192.0.2.1=a:1"], "no IP address"),
        (&["--route", "*=a:1"], "--default-target"),
        (
            &["--route", "a.test=a:1", "--route", "A.test.=b:1"],
            "has two routes (a:1, b:1)",
        ),
        (&["--route", "a.test=a:1", "--default-target", "a:0"], "1 to 65535"),
        (&["--route", "a.test=a:1", "--auth-file", "users"], "--auth-file"),
    ] {
        let stderr = refused_to_start(&[&start[..], arguments].concat());
        assert!(stderr.contains(expected), "{stderr}");
    }
}
