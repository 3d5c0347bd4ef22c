//! Upstream proxies behind TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;

use rustls::{ServerConnection, StreamOwned};

use super::client::Pair;
use super::server::{ANY, Authority, Server, Speaks};
use super::{LARGE, socks5};
use crate::harness::{
    Program, accept, assert_same, listen, pattern, read_all, read_exactly, refused_to_start, refusing, send_and_finish,
};

/// Starts a proxy of this kind behind TLS.
fn proxy(kind: &str, pair: &Pair) -> Program {
    Program::proxy(kind, &pair.arguments())
}

fn connect(program: &Program, kind: &str, target: std::net::SocketAddr) -> TcpStream {
    let mut client = program.connect();
    if kind == "socks5" {
        client.write_all(&socks5(target)).unwrap();
        assert_eq!(read_exactly(&mut client, 12)[..4], [5, 0, 5, 0]);
    }
    client
}

#[test]
fn a_proxy_behind_tls_carries_every_kind_of_client() {
    let pair = Pair::new(&["127.0.0.1"]);
    for (scheme, proxy_kind) in [("https", "http"), ("socks5+tls", "socks5"), ("socks5h+tls", "mixed")] {
        let upstream = proxy(proxy_kind, &pair);
        let url = format!("{scheme}://{}", upstream.address);
        let (listener, target) = listen();
        let arguments = ["-x", &url, "--target-tls-ca", pair.certificate.path()];
        for kind in ["forward", "socks5"] {
            let program = if kind == "forward" {
                Program::forward(target, &arguments)
            } else {
                Program::proxy(kind, &arguments)
            };
            let client = connect(&program, kind, target);
            let target = accept(&listener);
            thread::scope(|scope| {
                scope.spawn(|| send_and_finish(&client, &pattern(1, LARGE)));
                scope.spawn(|| send_and_finish(&target, &pattern(2, LARGE)));
                scope.spawn(|| assert_same(&read_all(&client), &pattern(2, LARGE)));
                assert_same(&read_all(&target), &pattern(1, LARGE));
            });
        }
    }
}

#[test]
fn a_chain_of_proxies_and_a_target_may_all_speak_tls() {
    let pairs = [(); 2].map(|()| Pair::new(&["127.0.0.1"]));
    let (first, second) = (proxy("http", &pairs[0]), proxy("socks5", &pairs[1]));
    let authority = Authority::new("Test CA");
    let server = Server::new(&authority.issue(&["127.0.0.1"]));
    let ca = authority.file();
    let all = pairs
        .iter()
        .map(|pair| std::fs::read_to_string(&pair.certificate.0).unwrap());
    ca.write(&(authority.file_text() + &all.collect::<String>()));
    let urls = [
        format!("https://{}", first.address),
        format!("socks5+tls://{}", second.address),
    ];
    let arguments = ["-x", &urls[0], "-x", &urls[1]];
    let mut program = super::originate::forward(&[&server.target()], &ca, &arguments);
    let client = program.connect();
    let mut target = server.accept();
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &pattern(1, LARGE)));
        scope.spawn(|| assert_same(&target.exchange(&pattern(2, LARGE)).unwrap(), &pattern(1, LARGE)));
        assert_same(&read_all(&client), &pattern(2, LARGE));
    });
    assert!(program.line("bytes_up=").contains("target_tls="));
}

/// TLS in TLS, at the end of the proxy and the target.
type Nested = StreamOwned<ServerConnection, StreamOwned<ServerConnection, TcpStream>>;

fn accept_nested(proxy: &Server, target: &Server) -> Nested {
    let serve = |server: &Server| ServerConnection::new(Arc::clone(&server.config)).unwrap();
    let mut outer = StreamOwned::new(serve(proxy), accept(&proxy.listener));
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        outer.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"CONNECT "), "{head:?}");
    outer.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    outer.flush().unwrap();
    StreamOwned::new(serve(target), outer)
}

#[test]
fn a_proxy_that_speaks_after_the_end_of_the_target_loses_no_byte() {
    const UP: usize = 256 << 10;
    let authority = Authority::new("Test CA");
    let [proxy, target] = [(); 2].map(|()| Server::new(&authority.issue(&["127.0.0.1"])));
    // The proxy reads little, so that the last bytes wait in the program's socket.
    socket2::SockRef::from(&proxy.listener)
        .set_recv_buffer_size(4096)
        .unwrap();
    let url = format!("https://{}", proxy.address);
    let program = super::originate::forward(&[&target.target()], &authority.file(), &["-x", &url]);
    let client = program.connect();
    let mut nested = accept_nested(&proxy, &target);
    nested.write_all(b"answer").unwrap();
    nested.conn.send_close_notify();
    nested.flush().unwrap();
    assert_eq!(read_all(&client), b"answer");
    // More than the program reads of TLS at once, so its socket has unread bytes.
    nested.sock.write_all(&[0; 32 << 10]).unwrap();
    nested.sock.flush().unwrap();
    send_and_finish(&client, &pattern(1, UP));
    program.await_sum("spliceway_bytes_total", &["direction=\"up\""], UP as u64);
    let mut received = Vec::new();
    nested.read_to_end(&mut received).unwrap();
    assert_same(&received, &pattern(1, UP));
}

#[test]
fn a_request_of_http_passes_a_proxy_behind_tls() {
    let pair = Pair::new(&["127.0.0.1"]);
    // This program refuses requests that have passed it, so another server stands for the proxy.
    let authority = Authority::new("Test CA");
    let (server, ca) = (Server::new(&authority.issue(&["127.0.0.1"])), authority.file());
    let url = format!("https://{}", server.address);
    for arguments in [&[][..], &pair.arguments()] {
        let all = [&["-x", &url, "--target-tls-ca", ca.path()], arguments].concat();
        let program = Program::proxy("http", &all);
        let head = "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n";
        for (framing, body) in [
            ("Content-Length: 9\r\n\r\n", "some body"),
            ("Transfer-Encoding: chunked\r\n\r\n", "9\r\nsome body\r\n0\r\n\r\n"),
            ("Content-Length: 0\r\n\r\n", ""),
        ] {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer";
            let talk = |client: &mut dyn FnMut(&[u8])| client(format!("{head}{framing}{body}").as_bytes());
            let serve = || {
                let mut proxy = server.accept();
                let received = proxy.receive_head();
                assert!(received.starts_with("POST http://a.test/ HTTP/1.1\r\n"), "{received}");
                assert_eq!(proxy.receive(body.len()), body.as_bytes());
                proxy.send(answer.as_bytes());
                proxy.finish();
            };
            let received = if arguments.is_empty() {
                let mut client = program.connect();
                talk(&mut |bytes| client.write_all(bytes).unwrap());
                serve();
                read_all(&client)
            } else {
                let config = super::client::Config::anything();
                let mut client = super::client::Client::connect(&program, &config).unwrap();
                talk(&mut |bytes| client.send(bytes));
                serve();
                client.rest().unwrap()
            };
            let received = String::from_utf8(received).unwrap();
            assert!(
                received.starts_with("HTTP/1.1 200") && received.ends_with("answer"),
                "{received}"
            );
        }
    }
}

#[test]
fn a_proxy_that_is_not_trusted_is_named_in_the_record() {
    let (pair, other) = (Pair::new(&["127.0.0.1"]), Pair::new(&["127.0.0.1"]));
    let upstream = proxy("http", &pair);
    let url = format!("https://{}", upstream.address);
    let arguments = ["-x", &url, "--target-tls-ca", other.certificate.path()];
    let mut program = Program::forward(refusing(), &arguments);
    let mut client = program.connect();
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    let line = program.line("end=");
    for part in ["connect_failed:upstream_tls", &url, "self-signed"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_proxy_that_wants_a_certificate_is_named_in_the_record() {
    let authority = Authority::new("Test CA");
    let speaks = Speaks {
        clients_of: Some(&authority),
        ..ANY
    };
    let server = Server::speaking(&authority.issue(&["127.0.0.1"]), speaks);
    let ca = authority.file();
    for scheme in ["https", "socks5+tls"] {
        let url = format!("{scheme}://{}", server.address);
        let mut program = Program::forward(refusing(), &["-x", &url, "--target-tls-ca", ca.path()]);
        let mut client = program.connect();
        server.try_accept().err().expect("the client has no certificate");
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        let line = program.line("end=");
        for part in [
            "WARN",
            "connect_failed:upstream_tls",
            &url,
            "give one as target_tls_cert",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn a_proxy_without_tls_needs_no_certificates() {
    let pair = Pair::new(&["a.test"]);
    let url = format!("http://{}", refusing());
    let proxy = ["socks5", "-l", "127.0.0.1:0", "-x", &url];
    let stderr = refused_to_start(&[&proxy[..], &["--target-tls-ca", pair.certificate.path()]].concat());
    assert!(stderr.contains("--upstream-proxy https://…"), "{stderr}");
}
