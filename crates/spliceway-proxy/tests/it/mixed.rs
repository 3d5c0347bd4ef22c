use std::io::Write;

use crate::clients::{AGREED, GREETING, exchange, ip_request, read_head, socks4_request};
use crate::harness::{Program, assert_spliced, echo, read_all, read_exactly};

#[test]
fn one_port_serves_all_protocols_and_the_records_name_them() {
    let mut program = Program::proxy("mixed", &[]);
    let target = echo("127.0.0.1:0");

    let mut client = program.connect();
    client.write_all(&GREETING).unwrap();
    assert_eq!(read_exactly(&mut client, 2), AGREED);
    client.write_all(&ip_request(target)).unwrap();
    read_exactly(&mut client, 10);
    exchange(client);
    assert!(program.line("end=client_eof").contains("protocol=\"socks5\""));

    let mut client = program.connect();
    client.write_all(&socks4_request(target, "", None)).unwrap();
    read_exactly(&mut client, 8);
    exchange(client);
    assert!(program.line("end=client_eof").contains("protocol=\"socks4\""));

    let mut client = program.connect();
    write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    exchange(client);
    assert!(program.line("end=client_eof").contains("protocol=\"http\""));
}

#[test]
fn an_unknown_protocol_is_closed_without_an_answer() {
    let program = Program::proxy("mixed", &[]);
    // These are a TLS handshake, a version 2 PROXY header, and arbitrary bytes.
    for first in [
        &[0x16, 3, 1, 0, 5][..],
        b"\r\n\r\n\0\r\nQUIT\n",
        &[0; 20],
        &[6],
        &[0xFF; 3],
    ] {
        let mut client = program.connect();
        client.write_all(first).unwrap();
        assert_eq!(read_all(&client), b"");
    }
    program.await_sum("spliceway_refused_total", &["reason=\"version\""], 5);
}

/// Some clients send an empty line after the body before, and so before a request.
#[test]
fn an_empty_line_before_a_request_is_ignored() {
    let program = Program::proxy("mixed", &[]);
    let target = echo("127.0.0.1:0");
    for request in ["\r\nCONNECT", "\nCONNECT"] {
        let mut client = program.connect();
        write!(client, "{request} {target} HTTP/1.1\r\n\r\n").unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "), "{request:?}");
        exchange(client);
    }
}

/// A relay splices in every mode.
#[test]
fn a_tunnel_is_spliced_in_every_protocol() {
    let program = Program::proxy("mixed", &["--splice", "on"]);
    let target = echo("127.0.0.1:0");
    let mut client = program.connect();
    write!(client, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
    read_head(&mut client);
    exchange(client);
    let mut client = program.connect();
    client.write_all(&socks4_request(target, "", None)).unwrap();
    read_exactly(&mut client, 8);
    exchange(client);
    program.await_sum("spliceway_connections_total", &["end=\"client_eof\""], 2);
    let sum = |path: &str| program.sum("spliceway_bytes_total", &[path]);
    let (spliced, copied) = (sum("path=\"splice\""), sum("path=\"copy\""));
    assert_eq!(spliced + copied, 4 * 300_000);
    assert_spliced(spliced, spliced + copied);
}
