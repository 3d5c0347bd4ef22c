//! Targets that a service does not trust, or that do not speak TLS, and checks of them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, SystemTime};

use rcgen::date_time_ymd;

use super::client::{Client, Pair, TLS12, TLS13};
use super::originate::forward;
use super::server::{ANY, Authority, Issued, Server, Speaks};
use crate::harness::{Program, TextFile, accept, is_closed, listen, read_all, refused_to_start, refusing, was_reached};

/// Connects, and returns the record of the failure. The client gets no byte.
fn record(program: &mut Program, server: impl FnOnce() + Send) -> String {
    let mut client = program.connect();
    thread::scope(|scope| {
        scope.spawn(server);
        assert!(is_closed(&mut client));
    });
    program.line("end=").replace("\\\"", "'").replace('"', "")
}

fn assert_refused(issued: &Issued, ca: &TextFile, expected: &[&str]) {
    let server = Server::new(issued);
    let mut program = forward(&[&server.target()], ca, &[]);
    let record = record(&mut program, || {
        server.try_accept().err().expect("the certificate is refused");
    });
    for part in expected {
        assert!(record.contains(part), "{part}: {record}");
    }
    let reason = format!("end=\"{}\"", expected[0].trim_start_matches("end="));
    assert_eq!(program.sum("spliceway_connections_total", &[&reason]), 1);
}

#[test]
fn each_wrong_certificate_has_its_reason_and_its_message() {
    let authority = Authority::new("Test CA");
    let (ca, name) = (authority.file(), &["127.0.0.1"]);
    let expired = authority.issue_with(name, |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 2, 3));
    });
    assert_refused(
        &expired,
        &ca,
        &["end=connect_failed:tls_expired", "valid until 2021-02-03T00:00:00Z"],
    );
    let early = authority.issue_with(name, |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2090, 4, 5), date_time_ymd(2091, 1, 1));
    });
    assert_refused(
        &early,
        &ca,
        &[
            "end=connect_failed:tls_not_yet_valid",
            "valid from 2090-04-05T00:00:00Z",
        ],
    );
    let other = authority.issue(&["a.test", "*.b.test", "192.0.2.1"]);
    let names = "is not for 127.0.0.1: it is for a.test, *.b.test, 192.0.2.1";
    assert_refused(&other, &ca, &["end=connect_failed:tls_wrong_name", names]);
    let own = Issued::self_signed(name);
    assert_refused(
        &own,
        &ca,
        &[
            "end=connect_failed:tls_self_signed",
            "give it, or that of its CA, as target_tls_ca",
        ],
    );
    let stranger = Authority::new("Strange CA");
    let strange = stranger.issue(name).with(&stranger);
    let why = "the CA 'CN=Strange CA' is not trusted";
    assert_refused(&strange, &ca, &["end=connect_failed:tls_unknown_issuer", why]);
    let same_name = Authority::new("Test CA").issue(name);
    let why = "the trusted CA 'CN=Test CA' has another key";
    assert_refused(&same_name, &ca, &["end=connect_failed:tls_unknown_issuer", why]);
    let intermediate = authority.intermediate("Middle CA");
    let why = "the issuer 'CN=Middle CA' is unknown: give its certificate as target_tls_ca, or let the server send it";
    assert_refused(
        &intermediate.issue(name),
        &ca,
        &["end=connect_failed:tls_missing_issuer", why],
    );
}

#[test]
fn an_authority_limits_the_authorities_below_it() {
    let authority = Authority::last("Test CA");
    let intermediate = authority.intermediate("Middle CA");
    assert_refused(
        &intermediate.issue(&["127.0.0.1"]).with(&intermediate),
        &authority.file(),
        &[
            "end=connect_failed:tls_certificate",
            "a CA of the chain allows fewer certificates of CAs below it (pathlen)",
        ],
    );
}

#[test]
fn a_whole_chain_and_a_certificate_in_the_file_are_trusted() {
    let authority = Authority::new("Test CA");
    let intermediate = authority.intermediate("Middle CA");
    let own = Issued::self_signed(&["127.0.0.1"]);
    for (issued, ca) in [
        (intermediate.issue(&["127.0.0.1"]).with(&intermediate), authority.file()),
        (intermediate.issue(&["127.0.0.1"]), intermediate.file()),
        (Issued::self_signed(&["127.0.0.1"]), TextFile::new("")),
        (own, TextFile::new("")),
    ] {
        if ca.path().is_empty() || std::fs::read(&ca.0).unwrap().is_empty() {
            ca.write(&issued.pem);
        }
        let server = Server::new(&issued);
        let program = forward(&[&server.target()], &ca, &[]);
        let mut client = program.connect();
        let mut target = server.accept();
        client.write_all(b"abc").unwrap();
        assert_eq!(target.receive(3), b"abc");
    }
}

#[test]
fn a_server_learns_by_an_alert_that_it_is_not_trusted() {
    let ca = Authority::new("Test CA").file();
    let server = Server::new(&Authority::new("other CA").issue(&["127.0.0.1"]));
    let program = forward(&[&server.target()], &ca, &[]);
    let _client = program.connect();
    let error = Client::serve(accept(&server.listener), &server.config)
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("received fatal alert"), "{error}");
}

#[test]
fn what_a_server_in_the_file_has_issued_is_not_trusted() {
    let server = Authority::server(&["127.0.0.1"]);
    for file in [
        server.file_text(),
        server.file_text() + &Authority::new("Test CA").file_text(),
    ] {
        assert_refused(
            &server.issue(&["127.0.0.1"]),
            &TextFile::new(&file),
            &[
                "end=connect_failed:tls_unknown_issuer",
                "is that of a server and not of a CA",
            ],
        );
    }
}

#[test]
fn a_trusted_certificate_in_the_file_needs_its_name_and_its_time() {
    let other = Issued::self_signed(&["a.test"]);
    assert_refused(
        &other,
        &TextFile::new(&other.pem),
        &["end=connect_failed:tls_wrong_name", "it is for a.test"],
    );
    let old = Authority::new("Test CA").issue_with(&["127.0.0.1"], |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 2, 3));
    });
    assert_refused(
        &old,
        &TextFile::new(&old.pem),
        &["end=connect_failed:tls_expired", "valid until 2021-02-03"],
    );
}

/// Answers each hello of a target with these bytes.
fn answer(listener: &TcpListener, answer: &[u8]) {
    let mut socket = accept(listener);
    socket.read_exact(&mut [0; 5]).unwrap();
    let _ = socket.write_all(answer);
    // The client of this target closes first.
    let _ = socket.read_to_end(&mut Vec::new());
}

#[test]
fn a_target_without_tls_or_an_answer_is_named() {
    let authority = Authority::new("Test CA");
    let ca = authority.file();
    let (listener, address) = listen();
    let target = format!("tls://{address}");
    let mut program = forward(&[&target], &ca, &["--connect-timeout", "1s"]);
    for greeting in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"220 mail.test ESMTP\r\n",
        b"SSH-2.0-test\r\n",
    ] {
        let line = record(&mut program, || answer(&listener, greeting));
        assert!(
            line.contains("connect_failed:tls_missing") && line.contains("does not speak TLS on this port"),
            "{line}"
        );
    }
    let line = record(&mut program, || {
        accept(&listener).read_exact(&mut [0; 600]).unwrap();
    });
    assert!(line.contains("connect_failed:tls_"), "{line}");
    let line = record(&mut program, || answer(&listener, b"\x15\x03\x03\x00\x02\x02\x28"));
    assert!(
        line.contains("connect_failed:tls_alert") && line.contains("(alert handshake failure): it shares no suite"),
        "{line}"
    );
    let line = record(&mut program, || answer(&listener, b""));
    assert!(
        line.contains("connect_failed:tls_timeout") && line.contains("within the connect timeout"),
        "{line}"
    );
}

#[test]
fn a_target_that_is_not_trusted_makes_room_for_another_backend() {
    let authority = Authority::new("Test CA");
    let ca = authority.file();
    let bad = Server::new(&Issued::self_signed(&["127.0.0.1"]));
    let good = Server::new(&authority.issue(&["127.0.0.1"]));
    let arguments = ["--balance", "first", "--eject-after", "1"];
    let mut program = forward(&[&bad.target(), &good.target()], &ca, &arguments);
    let mut client = program.connect();
    bad.try_accept().err().expect("the certificate is refused");
    let mut target = good.accept();
    client.write_all(b"abc").unwrap();
    assert_eq!(target.receive(3), b"abc");
    target.finish();
    assert_eq!(read_all(&client), b"");
    drop(client);
    assert!(program.line("bytes_up=").contains("retries=1"));
    let backend = format!("backend=\"{}\"", bad.target());
    assert_eq!(program.sum("spliceway_backend_failures_total", &[&backend]), 1);
    // It is ejected.
    let _client = program.connect();
    good.accept();
    assert!(!was_reached(&bad.listener));
}

#[test]
fn handshakes_that_fail_leave_no_descriptor() {
    const CLIENTS: usize = 20;
    let authority = Authority::new("Test CA");
    let server = Server::new(&Issued::self_signed(&["127.0.0.1"]));
    let program = forward(&[&server.target()], &authority.file(), &[]);
    let before = program.descriptors();
    let clients: Vec<_> = (0..CLIENTS).map(|_| program.connect()).collect();
    for _ in &clients {
        server.try_accept().err().expect("the certificate is refused");
    }
    let end = "end=\"connect_failed:tls_self_signed\"";
    program.await_sum("spliceway_connections_total", &[end], CLIENTS as u64);
    // Asking for the metrics needs one descriptor.
    assert!(program.descriptors() <= before + 1, "{before}");
}

#[test]
fn verification_can_be_off_and_says_so() {
    let server = Server::new(&Issued::self_signed(&["a.test"]));
    let target = server.target();
    let text = format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
         to = \"{target}\"\ntarget_tls_verify = \"off\"\n"
    );
    let file = TextFile::new(&text);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let checked = command.args(["check", "-c", file.path()]).output().unwrap();
    let printed = String::from_utf8([checked.stdout, checked.stderr].concat()).unwrap();
    assert!(
        checked.status.success() && printed.contains("target_tls_verify: is off"),
        "{printed}"
    );
    let mut program = Program::run(&file);
    assert_eq!(program.lines_with("target_tls_verify: is off"), 1);
    let client = program.connect();
    let mut target = server.accept();
    target.finish();
    assert_eq!(read_all(&client), b"");
    drop(client);
    assert!(program.line("bytes_up=").contains("target_verified=\"no\""));
}

#[test]
fn a_check_of_tls_verifies_and_the_others_are_inside_of_tls() {
    let authority = Authority::new("Test CA");
    let ca = authority.file();
    let (listener, plain) = listen();
    let old = authority.issue_with(&["127.0.0.1"], |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 2, 3));
    });
    let old = Server::new(&old);
    let arguments = ["--check", "tls", "--check-interval", "200ms"];
    // The clients of this backend bring their own TLS.
    let mut program = forward(&[&old.address.to_string(), &plain.to_string()], &ca, &arguments);
    let line = thread::scope(|scope| {
        scope.spawn(|| old.try_accept().err().expect("the certificate has expired"));
        scope.spawn(|| answer(&listener, b"no TLS"));
        [program.line("is down"), program.line("is down")].concat()
    });
    for part in ["has expired", "does not speak TLS", &plain.to_string()] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let arguments = [
        "--check",
        "http:/healthz",
        "--check-interval",
        "10s",
        "--send-proxy",
        "v1",
    ];
    let _program = forward(&[&server.target()], &ca, &arguments);
    let mut socket = accept(&server.listener);
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    assert_eq!(line, b"PROXY UNKNOWN\r\n");
    let mut target = Client::serve(socket, &server.config).unwrap();
    assert!(target.receive_head().starts_with("GET /healthz HTTP/1.1\r\n"));
    target.send(b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(target.rest().unwrap(), b"");
}

#[test]
fn a_check_warns_of_a_certificate_that_expires_soon() {
    let authority = Authority::new("Test CA");
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let [soon, later] = [4, 30].map(|days| {
        let issued = authority.issue_with(&["127.0.0.1"], |params| {
            params.not_after = date_time_ymd(1970, 1, 1) + now + day * days;
        });
        Server::new(&issued)
    });
    let targets = [&soon, &later].map(|server| server.address.to_string());
    let mut program = forward(
        &targets.each_ref().map(|target| &**target),
        &authority.file(),
        &["--check", "tls"],
    );
    for server in [&later, &soon] {
        server.accept().rest().unwrap();
    }
    let line = program.line("the certificate of a backend expires in 3 days");
    assert!(line.contains(&targets[0]), "{line}");
}

#[test]
fn a_check_verifies_the_certificate_every_time() {
    let authority = Authority::new("Test CA");
    let speaks = Speaks { versions: TLS12, ..ANY };
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), speaks);
    let arguments = ["--check", "tls", "--check-interval", "300ms"];
    let _program = forward(&[&server.target()], &authority.file(), &arguments);
    for _ in 0..3 {
        let mut target = server.accept();
        assert!(!target.is_resumed());
        target.rest().unwrap();
    }
}

#[test]
fn a_check_of_a_hello_accepts_any_certificate() {
    let server = Server::new(&Issued::self_signed(&["other.test"]));
    let (listener, plain) = listen();
    let (ca, plain) = (Authority::new("Test CA").file(), plain.to_string());
    let mut program = forward(&[&server.target(), &plain], &ca, &["--check", "tls-hello"]);
    thread::scope(|scope| {
        scope.spawn(|| server.try_accept());
        scope.spawn(|| answer(&listener, b"no TLS"));
        let line = program.line("is down");
        assert!(line.contains(&plain), "{line}");
    });
}

#[test]
fn a_client_certificate_that_is_missing_fails_the_handshake() {
    let authority = Authority::new("Test CA");
    let speaks = Speaks {
        clients_of: Some(&authority),
        // With TLS 1.3, the client's end of the handshake is over before the target has decided.
        versions: TLS12,
        ..ANY
    };
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), speaks);
    let mut program = forward(&[&server.target()], &authority.file(), &[]);
    let line = record(&mut program, || {
        server.try_accept().err().expect("the client has no certificate");
    });
    // The target may close the connection before its alert is read.
    assert!(
        line.contains("connect_failed:tls_alert") || line.contains("connect_failed:tls_closed"),
        "{line}"
    );
}

#[test]
fn a_client_certificate_that_is_missing_or_unknown_is_a_warning() {
    let authority = Authority::new("Test CA");
    let (ca, other) = (authority.file(), Authority::new("Other CA"));
    let [chain, key] = other.issue(&["a.test"]).files();
    let own = ["--target-tls-cert", chain.path(), "--target-tls-key", key.path()];
    let speaks = Speaks {
        clients_of: Some(&authority),
        versions: TLS13,
        ..ANY
    };
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), speaks);
    for (arguments, cause) in [
        (
            &[][..],
            "(alert certificate required): it wants a certificate: give one as target_tls_cert",
        ),
        (
            &own[..],
            "(alert unknown CA): it does not trust the CA of the certificate",
        ),
    ] {
        let mut program = forward(&[&server.target()], &ca, arguments);
        let line = record(&mut program, || {
            server.try_accept().err().expect("the certificate is refused");
        });
        for part in ["WARN", "end=connect_failed:tls_alert", cause] {
            assert!(line.contains(part), "{part}: {line}");
        }
        // A client that has sent something gets no answer, and the record is the same.
        let reason = "end=\"connect_failed:tls_alert\"";
        let mut client = program.connect();
        thread::scope(|scope| {
            scope.spawn(|| server.try_accept());
            let _ = client.write_all(b"a request");
            assert!(is_closed(&mut client));
        });
        assert!(program.line("end=").contains(cause));
        assert_eq!(program.sum("spliceway_connections_total", &[reason]), 2);
    }
}

#[test]
fn files_and_keys_that_do_not_fit_are_named_at_the_start() {
    let pair = Pair::new(&["a.test"]);
    let (ca, key) = (pair.certificate.path(), pair.key.path());
    let (plain, tls) = (refusing().to_string(), format!("tls://{}", refusing()));
    for (target, arguments, expected) in [
        (
            &*tls,
            &["--target-tls-ca", "/nonexistent"][..],
            "cannot read /nonexistent",
        ),
        (
            &*tls,
            &["--target-tls-ca", key],
            "there is a private key, and no certificate",
        ),
        (
            &*tls,
            &["--target-tls-ca", ca, "--target-tls-cert", key, "--target-tls-key", key],
            "--target-tls-cert: ",
        ),
        (
            &*tls,
            &[
                "--target-tls-ca",
                ca,
                "--target-tls-cert",
                ca,
                "--target-tls-key",
                "/nonexistent",
            ],
            "--target-tls-key: cannot read /nonexistent",
        ),
        (&*plain, &["--target-tls-ca", ca], "needs a server that speaks TLS"),
        (
            "tls://unix:/run/a",
            &["--target-tls-ca", ca],
            "expected --target-tls-name",
        ),
        (
            "tls://srv:_a._tcp.a.test",
            &["--target-tls-ca", ca],
            "expected --target-tls-name",
        ),
        (
            &*tls,
            &["--target-tls-ca", ca, "--target-tls-alpn", "pass"],
            "clients speak no TLS",
        ),
        (
            &*tls,
            &["--target-tls-ca", ca, "--target-tls-verify", "off"],
            "remove one of them",
        ),
        (&*tls, &["--target-tls-ca", ca, "--udp"], "is not for udp"),
        (
            &*tls,
            &["--target-tls-ca", ca, "--target-tls-name", "a b"],
            "expected the name of a host",
        ),
    ] {
        let all = [&["forward", "-l", "127.0.0.1:0", "-r", target], arguments].concat();
        let stderr = refused_to_start(&all);
        assert!(stderr.contains(expected), "{all:?}: {stderr}");
    }
}
