//! Routes on which the program terminates TLS, beside routes that pass it on.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustls::{ClientConnection, StreamOwned};

use super::{HELLOS, alert, hello, named, records, send};
use crate::harness::{
    Program, TextFile, accept, assert_same, assert_spliced, echo, listen, pattern, read_all, read_exactly,
    refused_to_start, refusing, send_and_finish, was_reached,
};
use crate::tls::client::{Client, Config, Pair, TLS12, TLS13};
use crate::tls::server::{Authority, Server};

const LARGE: usize = 4 << 20;
/// The name of the clients' route, which is that of their certificate too.
const ENDED: &str = "a.test";
const FAILURES: &str = "spliceway_tls_handshake_failures_total";

/// Starts a router that terminates TLS for `a.test`, with these further arguments.
fn ending(target: SocketAddr, pair: &Pair, arguments: &[&str]) -> Program {
    let route = format!("--route={ENDED}={target},tls=terminate");
    Program::proxy("sni", &[&[&*route][..], &pair.arguments(), arguments].concat())
}

/// Returns a number in a record.
fn number(record: &str, field: &str) -> u64 {
    let (_, rest) = record.split_once(&format!(" {field}=")).unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Exchanges bytes in both directions, and ends both of them.
fn transfer(mut client: Client, listener: &TcpListener) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let target = accept(listener);
            thread::scope(|scope| {
                scope.spawn(|| send_and_finish(&target, &pattern(2, LARGE)));
                assert_same(&read_all(&target), &pattern(1, LARGE));
            });
        });
        assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
    });
}

#[test]
fn one_listener_ends_tls_on_a_route_and_splices_another() {
    let pair = Pair::new(&[ENDED]);
    let (listener, target) = listen();
    let authority = Authority::new("Test CA");
    let owner = Server::new(&authority.issue(&["b.test"]));
    let passed = format!("--route=b.test={}", owner.address);
    let mut program = ending(target, &pair, &[&passed]);
    for (versions, version) in [(TLS12, "1.2"), (TLS13, "1.3")] {
        let client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        assert!(client.certificate() == pair.der());
        transfer(client, &listener);
        let record = program.line("bytes_up=").replace('"', "");
        let fields = format!(" sni={ENDED} tls={version} cipher=TLS_");
        assert!(record.contains(&fields) && !record.contains("truncated="), "{record}");
        assert_eq!(number(&record, "bytes_up"), LARGE as u64, "{record}");
        assert_eq!(number(&record, "spliced_up") + number(&record, "spliced_down"), 0);
    }
    // The client of the other name reaches the certificate of its server.
    let config = Config::anything().name(Some("b.test"));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_same(
                &owner.accept().exchange(&pattern(2, LARGE)).unwrap(),
                &pattern(1, LARGE),
            );
        });
        let mut client = Client::connect(&program, &config).unwrap();
        assert!(client.certificate() != pair.der());
        assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
    });
    let record = program.line("bytes_up=").replace('"', "");
    assert!(
        record.contains(" sni=b.test target=") && !record.contains(" tls="),
        "{record}"
    );
    assert_spliced(number(&record, "spliced_up"), LARGE as u64);
    assert_spliced(number(&record, "spliced_down"), LARGE as u64);
    // Only the first two clients were in a handshake with the program.
    assert_eq!(program.sum("spliceway_tls_handshakes_total", &[]), 2);
    assert_eq!(program.sum("spliceway_tls_handshake_seconds_count", &[]), 2);
    assert_eq!(program.sum(FAILURES, &[]), 0);
}

#[test]
fn either_side_of_a_route_that_ends_tls_may_end_first() {
    let pair = Pair::new(&[ENDED]);
    let (listener, target) = listen();
    let mut program = ending(target, &pair, &[]);
    let (up, down) = (pattern(3, 70_000), pattern(4, 70_000));
    for (versions, is_client_first) in [(TLS12, true), (TLS12, false), (TLS13, true), (TLS13, false)] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        let target = accept(&listener);
        if is_client_first {
            client.send(&up);
            client.finish();
            assert_same(&read_all(&target), &up);
            send_and_finish(&target, &down);
            assert_same(&client.rest().unwrap(), &down);
        } else {
            send_and_finish(&target, &down);
            assert_same(&client.rest().unwrap(), &down);
            client.send(&up);
            client.finish();
            assert_same(&read_all(&target), &up);
        }
        let end = ["end=upstream_eof", "end=client_eof"][usize::from(is_client_first)];
        assert!(program.line("bytes_up=").contains(end));
    }
}

/// Shakes hands over `socket`. `cut` changes the hello, and each byte is sent alone.
fn shake_slowly(socket: &mut TcpStream, config: &Config, cut: impl Fn(Vec<u8>) -> Vec<u8>) -> ClientConnection {
    socket.set_nodelay(true).unwrap();
    let (config, name) = config.parts();
    let mut session = ClientConnection::new(config, name).unwrap();
    let mut is_hello = true;
    while session.is_handshaking() || session.wants_write() {
        let mut bytes = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        if is_hello {
            bytes = cut(bytes);
            is_hello = false;
        }
        bytes.chunks(1).for_each(|byte| socket.write_all(byte).unwrap());
        if session.is_handshaking() {
            assert!(session.read_tls(socket).unwrap() > 0);
            session.process_new_packets().unwrap();
        }
    }
    session
}

#[test]
fn a_hello_in_many_pieces_or_of_16_kib_is_replayed_exactly() {
    let pair = Pair::new(&[ENDED]);
    let program = ending(echo("127.0.0.1:0"), &pair, &[]);
    // The names of protocols make the hello long.
    let names: Vec<String> = (0..65).map(|index| format!("{index:0>250}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (versions, protocols) in [(TLS12, &[][..]), (TLS13, &[]), (TLS12, &names), (TLS13, &names)] {
        let config = Config::new(&pair).versions(versions).alpn(protocols);
        for size in [1, 100, 16 << 10] {
            if size < 100 && !protocols.is_empty() {
                // The heads of the records would exceed the limit.
                continue;
            }
            let mut socket = program.connect();
            let cut = |bytes: Vec<u8>| {
                assert_eq!(bytes.len() > 16 << 10, !protocols.is_empty());
                let mut message = Vec::new();
                let mut rest = &bytes[..];
                while let [22, _, _, high, low, content @ ..] = rest {
                    let (part, next) = content.split_at(usize::from(*high) << 8 | usize::from(*low));
                    message.extend_from_slice(part);
                    rest = next;
                }
                records(&message, size)
            };
            let session = shake_slowly(&mut socket, &config, cut);
            let mut stream = StreamOwned::new(session, socket);
            stream.write_all(b"abc").unwrap();
            let mut echoed = [0; 3];
            stream.read_exact(&mut echoed).unwrap();
            assert_eq!(&echoed, b"abc");
        }
    }
}

/// A client, the end and the cause in its record, and the reason of its failure in metrics.
type Failing<'a> = (&'a dyn Fn(&Program), &'a str, &'a str, &'a str);

#[test]
fn a_client_that_gets_no_session_is_recorded_with_the_reason() {
    let pair = Pair::new(&[ENDED]);
    let (listener, target) = listen();
    let options = ["--tls-min=1.3", "--handshake-timeout=500ms"];
    let mut program = ending(target, &pair, &options);
    // A name without a route is no failure of a handshake.
    assert_eq!(read_all(&send(&program, &named("b.test"))), alert(112));
    assert!(program.line("end=").contains("denied:sni_unknown"));
    assert_eq!(program.sum(FAILURES, &[]), 0);
    let shake = |program: &Program, config: &Config| drop(Client::connect(program, config).err().expect("is refused"));
    let clients: [Failing<'_>; 4] = [
        (
            &|program| shake(program, &Config::new(&pair).versions(TLS12)),
            "end=denied:tls_handshake",
            "cause=\"the client speaks no version of TLS that is allowed: ",
            "nothing_in_common",
        ),
        (
            &|program| shake(program, &Config::new(&Pair::new(&[ENDED]))),
            "end=denied:tls_alert",
            "cause=\"the client refuses (alert ",
            "alert",
        ),
        (
            // This client is silent after its hello, which has an answer.
            &|program| assert_eq!(read_all(&send(program, &whole_hello(&pair)))[0], 22),
            "end=denied:handshake_timeout",
            "",
            "timeout",
        ),
        (
            &|program| {
                let client = send(program, &whole_hello(&pair));
                client.shutdown(Shutdown::Write).unwrap();
                read_all(&client);
            },
            "end=client_eof",
            "",
            "closed",
        ),
    ];
    for (client, end, cause, failure) in clients {
        client(&program);
        let record = program.line("end=");
        assert!(record.contains(end) && record.contains(cause), "{record}");
        assert!(record.contains(&format!(" sni=\"{ENDED}\" ")), "{record}");
        assert_eq!(program.sum(FAILURES, &[&format!("reason=\"{failure}\"")]), 1);
    }
    assert_eq!(program.sum(FAILURES, &[]), 4);
    assert!(!was_reached(&listener));
}

/// Returns the hello of a client of TLS 1.3.
fn whole_hello(pair: &Pair) -> Vec<u8> {
    let (config, name) = Config::new(pair).versions(TLS13).parts();
    let mut bytes = Vec::new();
    ClientConnection::new(config, name)
        .unwrap()
        .write_tls(&mut bytes)
        .unwrap();
    bytes
}

#[test]
fn a_name_without_a_certificate_gets_what_the_settings_say() {
    let pair = Pair::new(&[ENDED]);
    let (listener, target) = listen();
    let route = format!("--route=b.test={target},tls=terminate");
    let mut program = ending(refusing(), &pair, &[&route, "--tls-unknown-name", "refuse"]);
    let config = Config::anything().name(Some("b.test"));
    let error = Client::connect(&program, &config).err().expect("no certificate has it");
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    assert!(program.line("end=").contains("denied:tls_name"));
    let program = ending(refusing(), &pair, &[&route]);
    let client = Client::connect(&program, &config).unwrap();
    assert!(client.certificate() == pair.der());
    drop(accept(&listener));
}

#[test]
fn a_client_resumes_its_session_and_agrees_on_a_protocol() {
    let pair = Pair::new(&[ENDED]);
    let mut program = ending(echo("127.0.0.1:0"), &pair, &["--tls-alpn=h2", "--tls-alpn=http/1.1"]);
    for versions in [TLS12, TLS13] {
        let config = Config::new(&pair).versions(versions).alpn(&["http/1.1"]);
        for is_resumed in [false, true] {
            let mut client = Client::connect(&program, &config).unwrap();
            assert_eq!(client.protocol().as_deref(), Some("http/1.1"));
            assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
            assert_eq!(client.is_resumed(), is_resumed);
            let record = program.line("bytes_up=").replace('"', "");
            assert!(record.contains(" alpn=http/1.1 "), "{record}");
            assert_eq!(record.contains("resumed=yes"), is_resumed, "{record}");
        }
    }
}

#[test]
fn a_route_for_a_protocol_agrees_on_it_whatever_the_service_prefers() {
    let pair = Pair::new(&[ENDED]);
    let ((_other, other), (listener, target)) = (listen(), listen());
    let route = format!("--route={ENDED}/h2={target},tls=terminate");
    for options in [&[&*route][..], &[&route, "--tls-alpn=http/1.1", "--tls-alpn=h2"]] {
        let program = ending(other, &pair, options);
        let config = Config::new(&pair).alpn(&["http/1.1", "h2"]);
        let client = Client::connect(&program, &config).unwrap();
        assert_eq!(client.protocol().as_deref(), Some("h2"));
        drop(accept(&listener));
    }
}

#[test]
fn headers_precede_tls_from_clients_and_clear_text_to_targets() {
    const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";
    let pair = Pair::new(&[ENDED]);
    let (listener, target) = listen();
    let options = ["--accept-proxy=v1", "--proxy-from=127.0.0.0/8", "--send-proxy=v1"];
    let program = ending(target, &pair, &options);
    let mut socket = program.connect();
    socket.write_all(LINE).unwrap();
    let mut client = Client::over(socket, &Config::new(&pair)).unwrap();
    client.send(b"request");
    let mut target = accept(&listener);
    assert_eq!(read_exactly(&mut target, LINE.len() + 7), [LINE, b"request"].concat());
}

#[test]
fn tls_ends_on_a_route_and_begins_again_to_its_target() {
    let pair = Pair::new(&[ENDED]);
    let authority = Authority::new("Test CA");
    let (ca, owner) = (authority.file(), Server::new(&authority.issue(&["127.0.0.1"])));
    let route = format!("--route={ENDED}={},tls=terminate", owner.target());
    let arguments = [&[&*route, "--target-tls-ca", ca.path()][..], &pair.arguments()].concat();
    let mut program = Program::proxy("sni", &arguments);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_same(
                &owner.accept().exchange(&pattern(2, LARGE)).unwrap(),
                &pattern(1, LARGE),
            );
        });
        assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
    });
    let record = program.line("bytes_up=").replace('"', "");
    assert!(
        record.contains(" tls=1.3 ") && record.contains(" target_tls=1.3 "),
        "{record}"
    );
}

#[test]
fn acme_validations_reach_the_server_that_owns_the_name() {
    let pair = Pair::new(&[ENDED]);
    let ((ended, to_ended), (passed, to_passed), (owner, to_owner)) = (listen(), listen(), listen());
    let passed_on = format!("--route=b.test={to_passed}");
    let owned = format!("--route={ENDED}/acme-tls/1={to_owner}");
    let program = ending(to_ended, &pair, &[&passed_on, &owned]);
    // A route without a protocol is for these clients too, and one with it comes first.
    for (name, listener) in [("b.test", &passed), (ENDED, &owner)] {
        let sent = hello(Some(name.as_bytes()), &["acme-tls/1"], 0);
        let _client = send(&program, &sent);
        assert_same(&read_exactly(&mut accept(listener), sent.len()), &sent);
    }
    assert!(!was_reached(&ended) && !was_reached(&passed));
    assert_eq!(program.sum(FAILURES, &[]), 0);
}

#[test]
fn a_reload_lets_a_route_end_tls_and_cuts_no_session() {
    let (pair, (listener, target)) = (Pair::new(&["example.com"]), listen());
    let service = |rest: &str| {
        format!(
            "admin.metrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"sni\"\nlisten = \"127.0.0.1:0\"\n\
             route = \"example.com={target}{rest}\n"
        )
    };
    let files = [&pair.certificate, &pair.key].map(TextFile::path);
    let ending = format!(",tls=terminate\"\ntls_cert = {:?}\ntls_key = {:?}", files[0], files[1]);
    let config = TextFile::new(&service("\""));
    let mut program = Program::run(&config);
    let (_, sent) = HELLOS[0];
    let mut passed = send(&program, sent);
    let mut to_passed = accept(&listener);
    assert_same(&read_exactly(&mut to_passed, sent.len()), sent);
    config.write(&service(&ending));
    assert!(program.reload().contains("changed sni"));
    let mut client = Client::connect(&program, &Config::anything().name(Some("example.com"))).unwrap();
    assert!(client.certificate() == pair.der());
    client.send(b"clear");
    let mut to_ended = accept(&listener);
    assert_eq!(read_exactly(&mut to_ended, 5), b"clear");
    passed.write_all(b"later").unwrap();
    assert_eq!(read_exactly(&mut to_passed, 5), b"later");
    // A route that says what the program cannot do changes nothing.
    config.write(&service(",tls=terminate\""));
    assert!(
        program
            .reload()
            .contains("has tls=terminate, which needs a certificate")
    );
    // And back: the session with TLS continues.
    config.write(&service("\""));
    assert!(program.reload().contains("changed sni"));
    let _passed = send(&program, sent);
    assert_same(&read_exactly(&mut accept(&listener), sent.len()), sent);
    to_ended.write_all(b"answer").unwrap();
    assert_eq!(client.receive(6), b"answer");
}

#[test]
fn certificates_and_routes_that_end_tls_need_each_other() {
    let pair = Pair::new(&[ENDED]);
    let start = ["sni", "-l", "127.0.0.1:0"];
    let (passed, ended, typo) = (
        ["--route=a.test=a:1"],
        ["--route=a.test=a:1,tls=terminate"],
        ["--route=a.test=a:1,tls=on"],
    );
    let files = pair.arguments();
    for (arguments, expected) in [
        (
            &[&passed[..], &files].concat(),
            "--tls-cert: needs a route that terminates TLS: expected ,tls=terminate",
        ),
        (&ended.to_vec(), "--route: has tls=terminate, which needs a certificate"),
        (&[&ended[..], &["--tls-min=1.3"]].concat(), "which needs a certificate"),
        (&typo.to_vec(), "and then only ,tls=terminate"),
    ] {
        let stderr = refused_to_start(&[&start[..], arguments].concat());
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn a_target_that_refuses_leaves_no_end_that_looks_complete() {
    let pair = Pair::new(&[ENDED]);
    let program = ending(refusing(), &pair, &[]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    client.rest().expect_err("no end is announced");
    program.await_end("connect_failed:ECONNREFUSED");
}

#[test]
fn sessions_that_end_tls_leave_no_descriptor() {
    let pair = Pair::new(&[ENDED]);
    let program = ending(echo("127.0.0.1:0"), &pair, &[]);
    let exchange = || {
        let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    };
    exchange();
    program.await_sum("spliceway_connections_total", &[], 1);
    let descriptors = program.descriptors();
    (0..20).for_each(|_| exchange());
    (0..20).for_each(|_| drop(send(&program, &whole_hello(&pair))));
    program.await_sum("spliceway_connections_total", &[], 41);
    assert!(program.descriptors() <= descriptors + 1);
}
