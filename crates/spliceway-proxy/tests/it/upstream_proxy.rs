use std::io::Write;
use std::process::Command;

use crate::clients::{exchange, greeted, ip_request, name_request, read_head, read_message};
use crate::harness::{Program, accept, assert_spliced, echo, listen, read_exactly, refusing};

const USER: &[&str] = &["--auth", "ann:wonder/land@"];

fn url(scheme: &str, proxy: &Program, user: bool) -> String {
    // These characters must be escaped in a URL.
    let user = if user { "ann:wonder%2Fland%40@" } else { "" };
    format!("{scheme}://{user}{}", proxy.address)
}

#[test]
fn each_kind_of_upstream_proxy_works_and_the_relay_splices() {
    let target = echo("127.0.0.1:0");
    for (kind, scheme) in [("socks5", "socks5"), ("socks5", "socks5h"), ("http", "http")] {
        for user in [false, true] {
            let upstream = Program::proxy(kind, if user { USER } else { &[] });
            let url = url(scheme, &upstream, user);
            let mut program = Program::proxy("mixed", &["--splice", "on", "-x", &url]);
            for request in [ip_request(target), name_request("localhost", target.port())] {
                let mut client = greeted(&program);
                client.write_all(&request).unwrap();
                assert_eq!(read_exactly(&mut client, 4)[..2], [5, 0], "{url}");
                read_exactly(&mut client, 6);
                exchange(client);
                program.line("end=client_eof");
            }
            let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
            assert_spliced(spliced, 4 * 300_000);
            assert_eq!(program.lines_with("wonder"), 0);
        }
    }
}

#[test]
fn a_chain_of_three_ends_at_the_target() {
    let target = echo("127.0.0.1:0");
    let last = Program::proxy("http", &[]);
    let middle = Program::proxy("socks5", USER);
    let program = Program::forward(
        target,
        &["-x", &url("socks5h", &middle, true), "-x", &url("http", &last, false)],
    );
    exchange(program.connect());
    for proxy in [&middle, &last] {
        proxy.await_sum("spliceway_connections_total", &["end=\"client_eof\""], 1);
    }
}

#[test]
fn failures_behind_an_upstream_proxy_have_the_usual_codes() {
    let upstream = Program::proxy("socks5", &[]);
    let program = Program::socks5(&["-x", &url("socks5", &upstream, false)]);
    let mut client = greeted(&program);
    client.write_all(&ip_request(refusing())).unwrap();
    assert_eq!(read_exactly(&mut client, 2)[1], 5, "refused by the target");

    let gone = refusing();
    let program = Program::proxy("http", &["-x", &format!("http://{gone}")]);
    let mut client = program.connect();
    write!(client, "CONNECT {} HTTP/1.1\r\n\r\n", refusing()).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 502 "));

    let guarded = Program::proxy("socks5", USER);
    let program = Program::socks5(&["-x", &url("socks5", &guarded, false)]);
    let mut client = greeted(&program);
    client.write_all(&ip_request(refusing())).unwrap();
    assert_ne!(read_exactly(&mut client, 2)[1], 0);
    assert_eq!(guarded.sum("spliceway_connect_seconds_count", &[]), 0);
}

#[test]
fn the_wait_for_a_silent_upstream_ends_at_the_connect_timeout() {
    let (_silent, address) = listen();
    let program = Program::socks5(&["--connect-timeout", "300ms", "-x", &format!("socks5://{address}")]);
    let mut client = greeted(&program);
    client.write_all(&ip_request(refusing())).unwrap();
    assert_eq!(read_exactly(&mut client, 2)[1], 6);
}

#[test]
fn an_invalid_url_is_refused_and_not_printed() {
    for url in [
        "ftp://ann:secret@a:1",
        "socks5://ann:secret@",
        "http://ann:secret@a:1/path",
        "ann:secret@a:1",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
            .args(["socks5", "-l", "127.0.0.1:0", "-x", url])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("socks5://") && !stderr.contains("secret"), "{stderr}");
    }
}

#[test]
fn two_socks_proxies_that_name_each_other_stop_at_a_limit() {
    const MAX: u64 = 8;
    let (socket, second) = crate::harness::listen();
    let limit = ["--max-dials-per-ip", "8"];
    let (metrics, to_second) = (["--metrics", "127.0.0.1:0"], format!("socks5://{second}"));
    let first = Program::socks5(&[&limit[..], &["-x", &to_second]].concat());
    let to_first = format!("socks5://{}", first.address);
    let arguments = [&["socks5", "-l", "fd:web", "-x", &to_first], &limit[..], &metrics[..]].concat();
    let second = Program::start_with_socket(socket.into(), "web", &arguments);
    let mut client = crate::clients::greeted(&first);
    client
        .write_all(&crate::clients::ip_request(([192, 0, 2, 1], 80).into()))
        .unwrap();
    assert_ne!(crate::harness::read_exactly(&mut client, 4)[1], 0);
    let sum = |series| first.sum(series, &[]) + second.sum(series, &[]);
    let sessions = sum("spliceway_connections_total") + sum("spliceway_connections_active");
    assert!(sessions <= 2 * MAX + 1, "{sessions}");
    first.await_sum("spliceway_refused_total", &["reason=\"max_dials_per_ip\""], 1);
}

#[test]
fn a_client_at_its_dial_limit_does_not_block_other_clients() {
    let (_silent, silent) = crate::leaving::silent();
    let target = crate::harness::echo("127.0.0.1:0");
    let program = Program::socks5(&["--max-dials-per-ip", "2"]);
    let asks = |from: u8, target| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let own = std::net::SocketAddr::from(([127, 0, 0, from], 0));
        socket.bind(&own.into()).unwrap();
        socket.connect(&program.address.into()).unwrap();
        let mut client = crate::harness::with_patience(socket.into());
        client.write_all(&crate::clients::GREETING).unwrap();
        assert_eq!(crate::harness::read_exactly(&mut client, 2), [5, 0]);
        client.write_all(&crate::clients::ip_request(target)).unwrap();
        client
    };
    let _dialling = [asks(1, silent), asks(1, silent)];
    // Once the program refuses a third dial, it has counted the first two.
    let until = std::time::Instant::now() + crate::harness::PATIENCE;
    while crate::harness::read_exactly(&mut asks(1, target), 4)[1] == 0 {
        assert!(std::time::Instant::now() < until, "nobody is refused");
    }
    assert_eq!(crate::harness::read_exactly(&mut asks(2, target), 4)[1], 0);
}

/// A demand for credentials, which must not reach the client.
const DEMAND: &[u8] = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
    Content-Length: 2\r\n\r\nno";

#[test]
fn an_http_proxy_gets_plain_requests_in_absolute_form() {
    let chained = Program::socks5(&[]);
    for before in [None, Some(format!("socks5://{}", chained.address))] {
        let (listener, address) = listen();
        let last = format!("http://ann:pw@{address}");
        let chain: Vec<_> = before.iter().chain([&last]).flat_map(|url| ["-x", url]).collect();
        let program = Program::proxy("mixed", &chain);
        for (sent, expected) in [
            (
                "GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic YTpi\r\n\r\n",
                "GET http://a.test/x?y HTTP/1.1\r\nHost: a.test\r\nProxy-Authorization: Basic YW5uOnB3\r\n",
            ),
            (
                "POST http://a.test:81 HTTP/1.1\r\nHost: b\r\nContent-Length: 4\r\n\r\nbody",
                "POST http://a.test:81/ HTTP/1.1\r\nHost: a.test:81\r\nProxy-Authorization: Basic YW5uOnB3\r\n\
                 Content-Length: 4\r\n",
            ),
            (
                "POST http://a.test/ HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
                "POST http://a.test/ HTTP/1.1\r\n",
            ),
        ] {
            let mut client = program.connect();
            client.write_all(sent.as_bytes()).unwrap();
            let mut proxy = accept(&listener);
            let head = read_head(&mut proxy);
            assert!(head.starts_with(expected) && !head.contains("YTpi"), "{head}");
            let (_, body) = sent.split_once("\r\n\r\n").unwrap();
            assert_eq!(read_exactly(&mut proxy, body.len()), body.as_bytes());
            proxy.write_all(DEMAND).unwrap();
            drop(proxy);
            let answer = read_message(&mut client);
            assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nno") && !answer.contains("Proxy-"), "{answer}");
        }
        for (sent, expected) in [
            ("CONNECT a.test:443 HTTP/1.1\r\n\r\n", "CONNECT a.test:443 HTTP/1.1\r\n"),
            // The proxy would not pass the upgrade on.
            (
                "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                "CONNECT a.test:80 HTTP/1.1\r\n",
            ),
        ] {
            let mut client = program.connect();
            client.write_all(sent.as_bytes()).unwrap();
            let head = read_head(&mut accept(&listener));
            assert!(head.starts_with(expected), "{head}");
        }
    }
}
