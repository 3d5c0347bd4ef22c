//! A service that terminates the TLS of its clients.

mod acme;
pub(crate) mod client;
pub(crate) mod client_cert;
mod distrust;
mod doctor;
mod folder;
mod hostile;
mod kernel;
mod kernel_upgrade;
mod leaving;
mod originate;
mod outside;
mod peers;
mod plans;
mod relayed;
mod renewed;
mod seen;
pub(crate) mod server;
mod ticket_key;
mod upstream;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;

use rustls::pki_types::CertificateDer;

use crate::harness::{
    Folder, Program, accept, assert_same, echo, is_closed, listen, pattern, read_all, refused_to_start, refusing,
    send_and_finish, was_reached,
};
use client::{Client, Config, Pair, TLS12, TLS13};

const LARGE: usize = 10 << 20;

/// Returns the message of SOCKS5 that asks for this target, after a greeting.
fn socks5(target: SocketAddr) -> Vec<u8> {
    let mut message = vec![5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1];
    message.extend(target.port().to_be_bytes());
    message
}

/// Starts a service of this kind with a certificate for `a.test`.
fn service(kind: &str, target: SocketAddr, pair: &Pair, arguments: &[&str]) -> Program {
    let arguments = [&pair.arguments()[..], arguments].concat();
    match kind {
        "forward" => Program::forward(target, &arguments),
        kind => Program::proxy(kind, &arguments),
    }
}

/// Asks a service of this kind for the target.
fn ask(client: &mut Client, kind: &str, target: SocketAddr) {
    if kind == "socks5" || kind == "mixed" {
        client.send(&socks5(target));
        assert_eq!(client.receive(12)[..4], [5, 0, 5, 0]);
    } else if kind == "http" {
        client.send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes());
        let head = client.receive_head();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

#[test]
fn every_kind_relays_both_ways_with_each_version() {
    let pair = Pair::new(&["a.test"]);
    for kind in ["forward", "socks5", "http", "mixed"] {
        let (listener, target) = listen();
        let mut program = service(kind, target, &pair, &[]);
        for (versions, version) in [(TLS12, "1.2"), (TLS13, "1.3")] {
            let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let target = accept(&listener);
                    thread::scope(|scope| {
                        scope.spawn(|| send_and_finish(&target, &pattern(2, LARGE)));
                        assert_same(&read_all(&target), &pattern(1, LARGE));
                    });
                });
                ask(&mut client, kind, target);
                assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
            });
            let record = program.line("bytes_up=").replace('"', "");
            for field in [format!(" tls={version} cipher=TLS_"), " sni=a.test".into()] {
                assert!(record.contains(&field), "{kind}: {record}");
            }
            assert!(!record.contains("truncated="), "{record}");
        }
        for version in ["version=\"1.2\"", "version=\"1.3\""] {
            assert_eq!(program.sum("spliceway_tls_handshakes_total", &[version]), 1);
        }
    }
}

#[test]
fn either_side_may_end_first_and_receive_afterwards() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &[]);
    for (versions, is_client_first) in [(TLS12, true), (TLS12, false), (TLS13, true), (TLS13, false)] {
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        let target = accept(&listener);
        let (up, down) = (pattern(3, 70_000), pattern(4, 70_000));
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
        let end = if is_client_first {
            "end=client_eof"
        } else {
            "end=upstream_eof"
        };
        assert!(program.line("bytes_up=").contains(end));
    }
}

#[test]
fn the_name_that_a_client_states_selects_the_certificate() {
    let pairs = [&["first.test"], &["*.wild.test"], &["b.test"]].map(|names| Pair::new(names));
    let arguments: Vec<_> = pairs.iter().flat_map(Pair::arguments).collect();
    let program = Program::forward(echo("127.0.0.1:0"), &arguments);
    let served = |name: Option<&'static str>| -> CertificateDer<'static> {
        let mut client = Client::connect(&program, &Config::anything().name(name)).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
        client.certificate()
    };
    for (name, expected) in [
        (Some("first.test"), 0),
        (Some("x.wild.test"), 1),
        (Some("B.test"), 2),
        (Some("unknown.test"), 0),
        (Some("x.y.wild.test"), 0),
        (None, 0),
    ] {
        assert!(served(name) == pairs[expected].der(), "{name:?}");
    }
}

#[test]
fn an_unknown_name_may_be_refused_with_an_alert() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &["--tls-unknown-name", "refuse"]);
    for versions in [TLS12, TLS13] {
        let config = Config::anything().name(Some("b.test")).versions(versions);
        let error = Client::connect(&program, &config).err().expect("the name is unknown");
        assert!(error.to_string().contains("UnrecognisedName"), "{error}");
        let record = program.line("end=");
        assert!(
            record.contains("denied:tls_name") && record.replace('"', "").contains(" sni=b.test"),
            "{record}"
        );
    }
    // A client without a name gets the first certificate.
    let mut client = Client::connect(&program, &Config::anything().name(None)).unwrap();
    client.send(b"x");
    drop(accept(&listener));
    assert!(!was_reached(&listener));
}

#[test]
fn an_old_version_is_refused_if_the_settings_say_so() {
    let pair = Pair::new(&["a.test"]);
    let mut program = service("forward", echo("127.0.0.1:0"), &pair, &["--tls-min", "1.3"]);
    let error = Client::connect(&program, &Config::new(&pair).versions(TLS12))
        .err()
        .expect("1.2 is refused");
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    assert!(program.line("end=").contains("denied:tls_handshake"));
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
}

#[test]
fn the_server_chooses_among_the_protocols_of_a_client() {
    let pair = Pair::new(&["a.test"]);
    let arguments = ["--tls-alpn", "h2", "--tls-alpn", "http/1.1"];
    let mut program = service("forward", echo("127.0.0.1:0"), &pair, &arguments);
    for (offered, expected) in [
        (&["http/1.1", "h2"][..], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let mut client = Client::connect(&program, &Config::new(&pair).alpn(offered)).unwrap();
        assert_eq!(client.protocol().as_deref(), expected);
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
        let record = program.line("bytes_up=").replace('"', "");
        match expected {
            Some(name) => assert!(record.contains(&format!(" alpn={name} ")), "{record}"),
            None => assert!(!record.contains(" alpn="), "{record}"),
        }
    }
    let error = Client::connect(&program, &Config::new(&pair).alpn(&["imap"]))
        .err()
        .expect("no common protocol");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn a_client_resumes_its_session_with_each_version() {
    let pair = Pair::new(&["a.test"]);
    let mut program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    for versions in [TLS12, TLS13] {
        let config = Config::new(&pair).versions(versions);
        for is_resumed in [false, true, true] {
            let mut client = Client::connect(&program, &config).unwrap();
            assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
            assert_eq!(client.is_resumed(), is_resumed);
            assert_eq!(program.line("bytes_up=").contains("resumed=\"yes\""), is_resumed);
        }
    }
    assert_eq!(program.sum("spliceway_tls_handshakes_total", &["resumed=\"yes\""]), 4);
}

#[test]
fn a_header_with_the_client_comes_before_tls() {
    let pair = Pair::new(&["a.test"]);
    let mut program = service(
        "forward",
        echo("127.0.0.1:0"),
        &pair,
        &["--accept-proxy", "v1", "--proxy-from", "127.0.0.1"],
    );
    let mut socket: TcpStream = program.connect();
    socket
        .write_all(b"PROXY TCP4 192.0.2.7 192.0.2.8 1234 443\r\n")
        .unwrap();
    let mut client = Client::over(socket, &Config::new(&pair)).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    let record = program.line("bytes_up=").replace('"', "");
    assert!(
        record.contains("192.0.2.7:1234") && record.contains(" tls=1.3"),
        "{record}"
    );
    // TLS without the header is refused.
    let mut socket = program.connect();
    socket.write_all(b"\x16\x03\x01\x00\x05hello").unwrap();
    assert!(is_closed(&mut socket));
    assert!(program.line("end=").contains("denied:proxy_"));
}

#[test]
fn a_pipe_with_a_fault_is_read_once() {
    let (pair, folder) = (Pair::new(&["a.test"]), Folder::new("pipe-with-a-fault"));
    let path = folder.0.join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (der, written) = (pair.der().to_vec(), path.clone());
    let writer = thread::spawn(move || fs::write(written, der));
    let [_, _, _, key] = pair.arguments();
    let pipe = path.to_str().unwrap();
    let target = refusing().to_string();
    let arguments = ["forward", "-l", "127.0.0.1:0", "-r", &target];
    let stderr = refused_to_start(&[&arguments[..], &["--tls-cert", pipe, "--tls-key", key]].concat());
    assert!(stderr.contains("the file is DER and not PEM"), "{stderr}");
    writer.join().unwrap().unwrap();
}

#[test]
fn files_that_do_not_belong_together_are_named_at_the_start() {
    let (pair, other) = (Pair::new(&["a.test"]), Pair::new(&["a.test"]));
    let target = refusing().to_string();
    let arguments = ["forward", "-l", "127.0.0.1:0", "-r", &target];
    let [_, certificate, _, _] = pair.arguments();
    let [_, _, _, key] = other.arguments();
    let stderr = refused_to_start(&[&arguments[..], &["--tls-cert", certificate, "--tls-key", key]].concat());
    for part in ["--tls-key", key, certificate, "does not belong"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let stderr = refused_to_start(&[&arguments[..], &["--tls-cert", certificate]].concat());
    assert!(stderr.contains("give --tls-key too, or one file with both"), "{stderr}");
    let stderr = refused_to_start(&[&arguments[..], &["--tls-key", key]].concat());
    assert!(
        stderr.contains("--tls-key: needs a certificate: expected --tls-cert FILE, --tls-dir FOLDER or --acme NAME"),
        "{stderr}"
    );
}
