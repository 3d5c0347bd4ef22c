//! A service that speaks TLS to its targets.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use super::LARGE;
use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::server::{ANY, Authority, Server, Speaks};
use crate::handover::upgrade;
use crate::harness::{
    Folder, Program, TextFile, accept, assert_same, echo, listen, pattern, read_all, read_exactly, send_and_finish,
};

/// Starts a forwarder to these targets, which trusts the authority in this file.
pub(crate) fn forward(targets: &[&str], ca: &TextFile, arguments: &[&str]) -> Program {
    let mut all = vec!["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    all.extend(targets.iter().flat_map(|target| ["-r", target]));
    all.extend(["--target-tls-ca", ca.path()]);
    Program::start(&[&all, arguments].concat())
}

fn trusted() -> (Authority, TextFile) {
    let authority = Authority::new("Test CA");
    let file = authority.file();
    (authority, file)
}

/// Closes a connection with a reset.
fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

#[test]
fn plain_clients_reach_a_tls_target_with_each_version() {
    let (authority, ca) = trusted();
    let issued = authority.issue(&["127.0.0.1"]);
    for (versions, version) in [(TLS12, "1.2"), (TLS13, "1.3")] {
        let server = Server::speaking(&issued, Speaks { versions, ..ANY });
        let mut program = forward(&[&server.target()], &ca, &[]);
        for is_resumed in [false, true] {
            let client = program.connect();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut target = server.accept();
                    assert_eq!(target.is_resumed(), is_resumed);
                    assert_eq!(target.stated_name(), None);
                    assert_same(&target.exchange(&pattern(2, LARGE)).unwrap(), &pattern(1, LARGE));
                });
                scope.spawn(|| send_and_finish(&client, &pattern(1, LARGE)));
                assert_same(&read_all(&client), &pattern(2, LARGE));
            });
            let record = program.line("bytes_up=").replace('"', "");
            let fields = [
                format!(" target_tls={version} target_cipher=TLS"),
                format!(" bytes_up={LARGE} "),
            ];
            for field in fields {
                assert!(record.contains(&field), "{record}");
            }
            assert_eq!(record.contains("target_resumed=yes"), is_resumed, "{record}");
            assert!(!record.contains("truncated="), "{record}");
        }
    }
}

#[test]
fn either_side_of_a_tls_target_may_end_first() {
    let (authority, ca) = trusted();
    let issued = authority.issue(&["127.0.0.1"]);
    for (versions, is_client_first) in [(TLS12, true), (TLS12, false), (TLS13, true), (TLS13, false)] {
        let server = Server::speaking(&issued, Speaks { versions, ..ANY });
        let mut program = forward(&[&server.target()], &ca, &[]);
        let client = program.connect();
        let mut target = server.accept();
        let (up, down) = (pattern(3, 70_000), pattern(4, 70_000));
        if is_client_first {
            send_and_finish(&client, &up);
            assert_same(&target.rest().unwrap(), &up);
            target.send(&down);
            target.finish();
            assert_same(&read_all(&client), &down);
        } else {
            target.send(&down);
            target.finish();
            assert_same(&read_all(&client), &down);
            send_and_finish(&client, &up);
            assert_same(&target.rest().unwrap(), &up);
        }
        let record = program.line("bytes_up=");
        assert!(!record.contains("truncated="), "{record}");
    }
}

/// Starts two forwarders: plain, TLS, plain.
fn tunnel(target: SocketAddr) -> (Program, Program) {
    let pair = Pair::new(&["tunnel.test"]);
    let far = Program::forward(target, &pair.arguments());
    let near = forward(
        &[&format!("tls://{}", far.address)],
        &pair.certificate,
        &["--target-tls-name", "tunnel.test"],
    );
    (near, far)
}

#[test]
fn two_programs_make_an_encrypted_tunnel() {
    let (listener, target) = listen();
    let (near, mut far) = tunnel(target);
    let client = near.connect();
    let target = accept(&listener);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &pattern(1, LARGE)));
        scope.spawn(|| send_and_finish(&target, &pattern(2, LARGE)));
        scope.spawn(|| assert_same(&read_all(&client), &pattern(2, LARGE)));
        assert_same(&read_all(&target), &pattern(1, LARGE));
    });
    let record = far.line("bytes_up=").replace('"', "");
    assert!(
        record.contains("sni=tunnel.test") && !record.contains("truncated="),
        "{record}"
    );
}

#[test]
fn a_reset_passes_through_a_tunnel_in_both_directions() {
    let (listener, target) = listen();
    let (near, _far) = tunnel(target);
    for is_client in [true, false] {
        let mut client = near.connect();
        client.write_all(b"part").unwrap();
        let mut target = accept(&listener);
        assert_eq!(read_exactly(&mut target, 4), b"part");
        target.write_all(b"part").unwrap();
        assert_eq!(read_exactly(&mut client, 4), b"part");
        let (first, mut other) = if is_client { (client, target) } else { (target, client) };
        reset(first);
        let end = other.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{is_client}");
    }
}

#[test]
fn tls_clients_reach_a_tls_target_and_a_cut_answer_stays_cut() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let pair = Pair::new(&["a.test"]);
    let mut program = forward(&[&server.target()], &ca, &pair.arguments());
    for is_cut in [false, true] {
        let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
        let mut target = server.accept();
        client.send(b"question");
        assert_eq!(target.receive(8), b"question");
        target.send(b"answer");
        if is_cut {
            target.into_socket().shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.receive(6), b"answer");
            assert_eq!(client.rest().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        } else {
            target.finish();
            assert_eq!(client.rest().unwrap(), b"answer");
        }
        client.finish();
        drop(client);
        let record = program.line("bytes_up=").replace('"', "");
        assert_eq!(record.contains("target_truncated=yes"), is_cut, "{record}");
        assert!(
            record.contains(" tls=1.3") && record.contains(" target_tls=1.3"),
            "{record}"
        );
    }
}

#[test]
fn a_cut_question_of_a_tls_client_stays_cut() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let pair = Pair::new(&["a.test"]);
    let mut program = forward(&[&server.target()], &ca, &pair.arguments());
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut target = server.accept();
    client.send(b"part");
    assert_eq!(target.receive(4), b"part");
    client.into_socket().shutdown(Shutdown::Write).unwrap();
    assert_eq!(target.rest().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    drop(target);
    assert!(program.line("bytes_up=").contains(" truncated="));
}

/// An attacker can forge a reset as well as a FIN.
#[test]
fn a_stream_cut_by_a_reset_is_not_announced_as_complete() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let pair = Pair::new(&["a.test"]);
    let program = forward(&[&server.target()], &ca, &pair.arguments());
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut target = server.accept();
    target.send(b"part");
    assert_eq!(client.receive(4), b"part");
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            client.send(&pattern(1, LARGE));
            client.rest()
        });
        // The relay still has bytes for the target.
        target.receive(LARGE / 2);
        reset(target.into_socket());
        assert!(client.join().unwrap().is_err());
    });
}

#[test]
fn a_cut_answer_for_a_plain_client_is_recorded() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let mut program = forward(&[&server.target()], &ca, &[]);
    let client = program.connect();
    let mut target = server.accept();
    target.send(b"part");
    target.into_socket().shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"part");
    drop(client);
    assert!(program.line("bytes_up=").contains("target_truncated=\"yes\""));
}

#[test]
fn a_proxy_header_is_in_clear_text_before_the_handshake() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    for version in ["v1", "v2"] {
        let program = forward(&[&server.target()], &ca, &["--send-proxy", version]);
        let mut client = program.connect();
        let mut socket = accept(&server.listener);
        if version == "v1" {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.extend(read_exactly(&mut socket, 1));
            }
            let ports = format!("{} {}", client.local_addr().unwrap().port(), program.address.port());
            assert_eq!(
                String::from_utf8(line).unwrap(),
                format!("PROXY TCP4 127.0.0.1 127.0.0.1 {ports}\r\n")
            );
        } else {
            let head = read_exactly(&mut socket, 16);
            assert_eq!(head[..13], *b"\r\n\r\n\0\r\nQUIT\n\x21");
            read_exactly(&mut socket, u16::from_be_bytes([head[14], head[15]]).into());
        }
        let mut target = Client::serve(socket, &server.config).unwrap();
        client.write_all(b"abc").unwrap();
        assert_eq!(target.receive(3), b"abc");
    }
}

#[test]
fn a_target_that_asks_for_a_certificate_gets_it() {
    let (authority, ca) = trusted();
    let clients_of = Some(&authority);
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), Speaks { clients_of, ..ANY });
    let [certificate, key] = authority.issue(&["client.test"]).files();
    let both = [certificate.path(), key.path()].map(|path| fs::read_to_string(path).unwrap());
    let both = TextFile::new(&both.concat());
    fs::set_permissions(both.path(), PermissionsExt::from_mode(0o600)).unwrap();
    for arguments in [
        &["--target-tls-cert", certificate.path(), "--target-tls-key", key.path()][..],
        &["--target-tls-cert", both.path()],
    ] {
        let program = forward(&[&server.target()], &ca, arguments);
        let mut client = program.connect();
        let mut target = server.accept();
        assert!(target.has_certificate());
        client.write_all(b"abc").unwrap();
        assert_eq!(target.receive(3), b"abc");
    }
}

#[test]
fn a_target_is_offered_a_list_of_protocols_or_that_of_the_client() {
    let (authority, ca) = trusted();
    let alpn = &["h2", "http/1.1"];
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), Speaks { alpn, ..ANY });
    let fixed = forward(&[&server.target()], &ca, &["--target-tls-alpn", "http/1.1"]);
    let _client = fixed.connect();
    assert_eq!(server.accept().protocol().as_deref(), Some("http/1.1"));
    let pair = Pair::new(&["a.test"]);
    let arguments = [
        "--tls-alpn",
        "h2",
        "--tls-alpn",
        "http/1.1",
        "--target-tls-alpn",
        "pass",
    ];
    let folder = Folder::new("originate-pass");
    fs::copy(&pair.certificate.0, folder.0.join("a.crt")).unwrap();
    fs::copy(&pair.key.0, folder.0.join("a.key")).unwrap();
    let in_folder = ["--tls-dir", folder.0.to_str().unwrap()];
    for certificates in [&pair.arguments()[..], &in_folder] {
        let program = forward(&[&server.target()], &ca, &[certificates, &arguments].concat());
        for offered in [&["h2"][..], &["http/1.1"], &[]] {
            let client = Client::connect(&program, &Config::new(&pair).alpn(offered)).unwrap();
            assert_eq!(client.protocol().as_deref(), offered.first().copied());
            assert_eq!(server.accept().protocol().as_deref(), offered.first().copied());
        }
    }
}

#[test]
fn a_target_without_the_protocol_of_the_client_is_refused() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let pair = Pair::new(&["a.test"]);
    let alpn = ["--tls-alpn=h2", "--tls-alpn=http/1.1", "--target-tls-alpn=pass"];
    let mut program = forward(&[&server.target()], &ca, &[&pair.arguments()[..], &alpn].concat());
    let client = Client::connect(&program, &Config::new(&pair).alpn(&["h2"])).unwrap();
    let _ = server.try_accept();
    let record = program.line("end=");
    let why = "the server does not speak ";
    assert!(
        record.contains("end=connect_failed:tls_handshake") && record.contains(why),
        "{record}"
    );
    drop(client);
    // Servers speak this one without ALPN.
    let _client = Client::connect(&program, &Config::new(&pair).alpn(&["http/1.1"])).unwrap();
    server.accept();
}

#[test]
fn the_name_of_the_target_or_a_given_one_is_stated_and_verified() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["localhost", "other.test"]));
    let by_name = format!("tls://localhost:{}", server.address.port());
    for (target, name, stated) in [
        (&by_name, None, "localhost"),
        (&by_name, Some("other.test"), "other.test"),
        (&server.target(), Some("other.test"), "other.test"),
    ] {
        let arguments: Vec<_> = name.into_iter().flat_map(|name| ["--target-tls-name", name]).collect();
        let program = forward(&[target], &ca, &arguments);
        let _client = program.connect();
        assert_eq!(server.accept().stated_name().as_deref(), Some(stated));
    }
}

#[test]
fn a_route_and_a_unix_socket_may_be_tls_targets() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1", "unix.test"]));
    let arguments = [
        "--target-tls-ca",
        ca.path(),
        "--metrics",
        "127.0.0.1:0",
        "-l",
        "127.0.0.1:0",
    ];
    let (route, plain) = (format!("a.test={}", echo("127.0.0.1:0")), server.target());
    let routed = Program::start(&[&["sni", "--route", &route, "--not-tls", &plain], &arguments[..]].concat());
    let mut client = routed.connect();
    client.write_all(b"SSH-2.0-test\r\n").unwrap();
    assert_eq!(server.accept().receive(14), b"SSH-2.0-test\r\n");
    let socket = std::env::temp_dir().join(format!("spliceway-tls-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let target = format!("tls://unix:{}", socket.display());
    let program = Program::start(
        &[
            &["forward", "-r", &target, "--target-tls-name", "unix.test"],
            &arguments[..],
        ]
        .concat(),
    );
    let _client = program.connect();
    let (stream, _) = listener.accept().unwrap();
    std::fs::remove_file(&socket).unwrap();
    let mut session = rustls::ServerConnection::new(server.config.clone()).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut &stream).unwrap();
    }
    assert_eq!(session.server_name(), Some("unix.test"));
}

/// Returns a configuration of a forwarder to this target.
fn config(target: &str, ca: &TextFile) -> TextFile {
    TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"a\"\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nto = \"{target}\"\ntarget_tls_ca = \"{}\"\n",
        ca.path()
    ))
}

#[test]
fn a_reload_trusts_other_authorities_and_a_broken_file_changes_nothing() {
    let ((old, ca), new) = (trusted(), Authority::new("New CA"));
    let before = Server::new(&old.issue(&["127.0.0.1"]));
    let file = config(&before.target(), &ca);
    let mut program = Program::run(&file);
    let exchange = |program: &Program, server: &Server| {
        let mut client = program.connect();
        let mut target = server.accept();
        client.write_all(b"abc").unwrap();
        assert_eq!(target.receive(3), b"abc");
        target.is_resumed()
    };
    assert!(!exchange(&program, &before));
    assert!(program.reload().contains("nothing has changed"));
    assert!(exchange(&program, &before));
    ca.write("broken");
    let line = program.reload();
    for part in ["the previous settings stay in force", ca.path(), "BEGIN CERTIFICATE"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(exchange(&program, &before));
    ca.write(&new.file_text());
    assert!(program.reload().contains("changed a"));
    // The session from before is not resumed, because another authority vouched for it.
    let _client = program.connect();
    before
        .try_accept()
        .err()
        .expect("the authority is not trusted any more");
    assert!(program.line("end=").contains("connect_failed:tls_missing_issuer"));
}

#[test]
fn a_changed_file_is_read_within_ten_seconds() {
    let ((old, ca), new) = (trusted(), Authority::new("New CA"));
    let server = Server::new(&new.issue(&["127.0.0.1"]));
    let mut program = forward(&[&server.target()], &ca, &[]);
    let _client = program.connect();
    server.try_accept().err().expect("the authority is not trusted yet");
    ca.write(&(old.file_text() + &new.file_text()));
    program.line("read the changed TLS files for targets");
    let _client = program.connect();
    server.accept();
    ca.write("broken");
    let line = program.line("the previous TLS files for targets stay in force");
    assert!(line.contains(ca.path()), "{line}");
    let _client = program.connect();
    server.accept();
}

#[test]
fn an_open_session_with_a_tls_target_keeps_its_process() {
    let (authority, ca) = trusted();
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let file = config(&server.target(), &ca);
    let mut program = Program::run(&file);
    let mut old = (program.connect(), server.accept());
    old.0.write_all(b"one").unwrap();
    assert_eq!(old.1.receive(3), b"one");
    let _next = upgrade(&mut program, None);
    let mut new = (program.connect(), server.accept());
    for (client, target) in [&mut old, &mut new] {
        client.write_all(b"two").unwrap();
        assert_eq!(target.receive(3), b"two");
        target.send(b"answer");
        assert_eq!(read_exactly(client, 6), b"answer");
    }
    assert!(!program.has_ended());
    old.1.finish();
    assert_eq!(read_all(&old.0), b"");
    drop(old);
    assert!(program.exit().success());
}
