use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;

use socket2::{Domain, Socket, Type};

use crate::harness::{
    Program, accept, assert_same, connect, listen, pattern, read_all, read_exactly, send_and_finish, with_patience,
};

const LARGE: usize = 32 << 20;
const SPLICED: &str = "path=\"splice\"";

/// Downloads [`LARGE`] bytes. Returns the number of spliced bytes and the total number of bytes.
fn download(arguments: &[&str]) -> (u64, u64) {
    let (listener, address) = listen();
    let program = Program::forward(address, arguments);
    let client = program.connect();
    let target = accept(&listener);
    let sent = pattern(1, LARGE);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&target, &sent));
        assert_same(&read_all(&client), &sent);
    });
    drop(client);
    program.await_sum("spliceway_connections_total", &[], 1);
    let down = |label| {
        program.sum(
            "spliceway_bytes_total",
            &["service=\"forward\"", "direction=\"down\"", label],
        )
    };
    if arguments.contains(&"off") {
        assert_eq!(program.sum("spliceway_fallback_total", &["reason=\"disabled\""]), 2);
        assert_eq!(program.sum("spliceway_pool_total", &["event=\"created\""]), 0);
    }
    (down(SPLICED), down(SPLICED) + down("path=\"copy\""))
}

#[test]
fn nearly_all_bytes_of_a_large_transfer_are_spliced() {
    for arguments in [
        &[][..],
        &["--splice", "on"],
        &["--pipe-size", "64k"],
        &["--workers", "1"],
    ] {
        let (spliced, bytes) = download(arguments);
        assert_eq!(bytes, LARGE as u64);
        assert!(spliced * 100 >= bytes * 95, "{arguments:?}: {spliced} of {bytes}");
    }
}

#[test]
fn limits_counting_and_logging_do_not_switch_splicing_off() {
    let limits = [
        "--idle-timeout",
        "10s",
        "--half-close-timeout",
        "10s",
        "--log-level",
        "trace",
    ];
    let (spliced, bytes) = download(&limits);
    assert_eq!(bytes, LARGE as u64);
    assert!(spliced * 100 >= bytes * 95, "{spliced} of {bytes}");
}

#[test]
fn no_byte_is_spliced_if_splicing_is_off() {
    assert_eq!(download(&["--splice", "off"]), (0, LARGE as u64));
}

#[test]
fn bytes_are_counted_once_and_while_the_relay_runs() {
    let (listener, address) = listen();
    let program = Program::forward(address, &[]);
    let (mut client, mut target) = (program.connect(), accept(&listener));
    let mut sent = 0;
    for round in 1..=10 {
        let bytes = pattern(round, 100_000);
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&bytes).unwrap());
            assert_same(&read_exactly(&mut target, bytes.len()), &bytes);
        });
        sent += bytes.len() as u64;
        program.await_sum("spliceway_bytes_total", &["direction=\"up\""], sent);
        assert_eq!(program.sum("spliceway_bytes_total", &[]), sent);
        assert_eq!(program.sum("spliceway_connections_active", &["service=\"forward\""]), 1);
    }
    drop((client, target));
    program.await_sum("spliceway_connections_total", &[], 1);
    assert_eq!(program.sum("spliceway_bytes_total", &[]), sent);
}

#[test]
fn every_series_is_exported_under_its_name() {
    let (listener, address) = listen();
    let program = Program::forward(address, &[]);
    drop((program.connect(), accept(&listener)));
    program.await_sum("spliceway_connections_total", &[], 1);
    let answer = program.get("/metrics");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    for series in [
        "spliceway_bytes_total{service=\"forward\",direction=\"up\",path=\"splice\"}",
        "spliceway_connections_active{service=\"forward\"}",
        "spliceway_connections_total{service=\"forward\",end=\"",
        "spliceway_connect_seconds_count",
        "spliceway_pipes{state=\"lent\"}",
        "spliceway_pipes{state=\"idle\"}",
        "spliceway_pipe_pages",
        "spliceway_pool_total{event=\"reused\"}",
        "spliceway_fallback_total{reason=\"emfile\"}",
    ] {
        assert!(answer.contains(&format!("\n{series}")), "{series} is not in\n{answer}");
    }
    for line in [
        "# TYPE spliceway_bytes_total counter",
        "# TYPE spliceway_build_info gauge",
    ] {
        assert!(answer.contains(line), "{line}");
    }
    assert!(!answer.contains("# EOF") && !answer.contains("# UNIT"), "{answer}");
    let answer = program.get_as("/metrics", "Accept: application/openmetrics-text;version=1.0.0");
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    assert!(answer.contains("# TYPE spliceway_bytes counter"), "{answer}");
    assert!(answer.ends_with("# EOF\n"));
}

#[test]
fn every_counter_exists_as_0_before_its_first_event() {
    let program = Program::socks5(&[]);
    let answer = program.get("/metrics");
    let refusals = [
        "version",
        "method",
        "command",
        "address_type",
        "name",
        "handshake_timeout",
    ];
    let refusals = refusals.map(|reason| format!("spliceway_refused_total{{service=\"socks5\",reason=\"{reason}\"}}"));
    let denials = [
        "eperm",
        "enosys",
        "enomem",
        "emfile",
        "enfile",
        "pipe_budget",
        "page_budget",
        "undersized",
    ];
    let denials = denials.map(|reason| format!("spliceway_pool_total{{event=\"denied_{reason}\"}}"));
    let lost =
        ["up", "down"].map(|way| format!("spliceway_lost_bytes_total{{service=\"socks5\",direction=\"{way}\"}}"));
    for series in refusals.iter().chain(&denials).chain(&lost) {
        assert!(
            answer.contains(&format!("\n{series} 0\n")),
            "{series} 0 is not in\n{answer}"
        );
    }
}

#[test]
fn health_is_answered_and_other_paths_are_not() {
    let (_listener, address) = listen();
    let program = Program::forward(address, &[]);
    for (path, status) in [
        ("/healthz", "200"),
        ("/readyz", "200"),
        ("/", "404"),
        ("/metrics/x", "404"),
    ] {
        assert!(program.get(path).starts_with(&format!("HTTP/1.1 {status} ")), "{path}");
    }
}

/// A number of connections that exceeds the limit of the metrics listener.
const FLOOD: usize = 150;

#[test]
fn silent_connections_do_not_block_a_probe() {
    let (_listener, address) = listen();
    let program = Program::forward(address, &[]);
    let before = program.descriptors();
    let metrics = program.metrics();
    for said in [
        &b""[..],
        b"GET /healthz HTTP/1.1\r\nHo",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        // The clients of the last case never read the answer.
        let silent: Vec<_> = (0..FLOOD)
            .map(|_| {
                let mut silent = connect(metrics);
                // The listener may already have closed this connection.
                let _ = silent.write_all(said);
                silent
            })
            .collect();
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert!(program.get(path).starts_with("HTTP/1.1 200 "), "{path}, {said:?}");
        }
        assert!(program.descriptors() <= before + 64 + 2, "{said:?}");
        drop(silent);
    }
}

/// Returns a connection to `to` from another address of this machine.
fn connect_from(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    with_patience(socket.into())
}

#[test]
fn a_flood_from_one_address_closes_no_connection_of_another() {
    let (_listener, address) = listen();
    let program = Program::forward(address, &[]);
    let mut probe = connect(program.metrics());
    let silent: Vec<_> = (0..FLOOD)
        .map(|_| connect_from([127, 0, 0, 2], program.metrics()))
        .collect();
    // The listener accepts connections in order of arrival.
    assert!(program.get("/healthz").starts_with("HTTP/1.1 200 "));
    probe.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_all(&probe).starts_with(b"HTTP/1.1 200 "));
    drop(silent);
}
