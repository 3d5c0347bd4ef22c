use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::clients::{GREETING, exchange, ip_request};
use crate::harness::{
    Program, accept, assert_same, echo, is_closed, listen, pattern, read_all, read_exactly, refused_to_start,
    send_and_finish, was_reached,
};

const BELIEVING: [&str; 4] = ["--accept-proxy", "any", "--proxy-from", "127.0.0.0/8"];
const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";

fn binary(command: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, 0x11]);
    header.extend((payload.len() as u16).to_be_bytes());
    header.extend(payload);
    header
}

const ADDRESSES: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xDC, 0x04, 0x01, 0xBB];

/// Starts a forwarder. Returns the forwarder and the listener of its target.
fn forward_with(arguments: &[&str]) -> (Program, TcpListener) {
    let (listener, target) = listen();
    (Program::forward(target, arguments), listener)
}

fn send_in_parts(client: &mut TcpStream, bytes: &[u8], size: usize) {
    client.set_nodelay(true).unwrap();
    for part in bytes.chunks(size) {
        client.write_all(part).unwrap();
    }
}

#[test]
fn a_header_names_the_client_and_later_bytes_reach_the_target() {
    let with_tlv = [&ADDRESSES[..], &[0x04, 0, 2, 9, 9]].concat();
    for header in [LINE.to_vec(), binary(0x21, &ADDRESSES), binary(0x21, &with_tlv)] {
        for size in [1, 7, usize::MAX] {
            let (mut program, listener) = forward_with(&BELIEVING);
            let (mut client, early) = (program.connect(), pattern(5, 1000));
            send_in_parts(&mut client, &[&header[..], &early].concat(), size);
            client.shutdown(Shutdown::Write).unwrap();
            let target = accept(&listener);
            assert_same(&read_all(&target), &early);
            drop(target);
            let record = program.line("end=client_eof");
            assert!(record.contains("client=192.0.2.1:56324"), "{record}");
        }
    }
}

#[test]
fn a_local_or_unknown_header_means_the_balancer_itself() {
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        binary(0x20, &[]),
        binary(0x20, &ADDRESSES),
    ] {
        let (mut program, listener) = forward_with(&BELIEVING);
        let client = program.connect();
        send_and_finish(&client, &[&header[..], b"early"].concat());
        assert_eq!(read_all(&accept(&listener)), b"early");
        let record = program.line("end=client_eof");
        let address = client.local_addr().unwrap();
        assert!(record.contains(&format!("client={address}")), "{record}");
    }
}

#[test]
fn a_client_without_a_valid_proxy_header_reaches_no_target() {
    for (version, bytes, reason) in [
        ("any", &b"GET / HTTP/1.1\r\n"[..], "proxy_header_missing"),
        ("v2", LINE, "proxy_header_version"),
        ("v1", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "proxy_header_version"),
        ("any", b"PROXY TCP4 nonsense\r\n", "proxy_header_malformed"),
        ("any", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0B", "proxy_header_malformed"),
        (
            "any",
            &[&b"PROXY UNKNOWN"[..], &[b'x'; 100]].concat(),
            "proxy_header_too_long",
        ),
    ] {
        let (program, listener) = forward_with(&["--accept-proxy", version, "--proxy-from", "127.0.0.0/8"]);
        let mut client = program.connect();
        client.write_all(bytes).unwrap();
        assert!(is_closed(&mut client), "{reason}");
        program.await_sum("spliceway_refused_total", &[&format!("reason=\"{reason}\"")], 1);
        assert!(!was_reached(&listener), "{reason}");
    }
}

#[test]
fn a_proxy_header_from_an_untrusted_peer_is_refused() {
    let (program, listener) = forward_with(&["--accept-proxy", "any", "--proxy-from", "10.0.0.0/8"]);
    let mut client = program.connect();
    // The program may close the connection before it has read the line.
    let _ = client.write_all(LINE);
    assert!(is_closed(&mut client));
    program.await_sum("spliceway_refused_total", &["reason=\"proxy_from\""], 1);
    assert!(!was_reached(&listener));
}

/// Sends `header`, then a request for `target`. Returns the reply code, and whether the proxy
/// connected to `target`.
fn asks(program: &Program, header: &[u8], target: &TcpListener) -> (u8, bool) {
    let mut client = program.connect();
    let request = [header, &GREETING, &ip_request(target.local_addr().unwrap())].concat();
    client.write_all(&request).unwrap();
    (read_exactly(&mut client, 4)[3], was_reached(target))
}

const NOT_ALLOWED: u8 = 2;

#[test]
fn clients_behind_a_balancer_on_this_host_reach_no_private_target() {
    let (target, _) = listen();
    let headers = [
        LINE,
        b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n", // Port because it is only parsed.
        b"PROXY UNKNOWN\r\n",
        &binary(0x21, &ADDRESSES),
        &binary(0x20, &[]),
    ];
    for kind in ["socks5", "mixed"] {
        let program = Program::proxy(kind, &[&BELIEVING[..], &["--open"]].concat());
        for header in headers {
            assert_eq!(asks(&program, header, &target), (NOT_ALLOWED, false), "{header:?}");
        }
    }
    let program = Program::socks5(&[&BELIEVING[..], &["--open", "--allow-private"]].concat());
    for header in headers {
        assert_eq!(asks(&program, header, &target), (0, true), "{header:?}");
    }
}

#[test]
fn a_proxy_behind_a_balancer_starts_only_with_an_access_rule() {
    for kind in ["socks5", "http", "mixed"] {
        let stderr = refused_to_start(&[&[kind, "-l", "127.0.0.1:0"], &BELIEVING[..]].concat());
        assert!(
            stderr.contains("--accept-proxy") && stderr.contains("--open"),
            "{stderr}"
        );
    }
    for guard in [["--allow", "192.0.2.0/24"], ["--auth", "ann:secret"]] {
        Program::socks5(&[&BELIEVING[..], &guard].concat());
    }
}

#[test]
fn a_proxy_header_has_a_deadline() {
    let arguments = [&["--handshake-timeout", "1s", "--open"], &BELIEVING[..]].concat();
    let program = Program::socks5(&arguments);
    let mut client = program.connect();
    client.write_all(&LINE[..LINE.len() - 1]).unwrap();
    assert!(is_closed(&mut client));
    program.await_sum("spliceway_refused_total", &["reason=\"handshake_timeout\""], 1);
}

#[test]
fn access_rules_and_limits_apply_to_the_client_in_the_header() {
    let limits = ["--deny", "192.0.2.0/24", "--max-conns-per-ip", "1"];
    let (program, listener) = forward_with(&[&BELIEVING[..], &limits].concat());
    let mut denied = program.connect();
    denied.write_all(LINE).unwrap();
    assert!(is_closed(&mut denied));
    program.await_sum("spliceway_refused_total", &["reason=\"client\""], 1);
    let mut targets = Vec::new();
    let mut first = program.connect();
    first.write_all(b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n").unwrap();
    targets.push(accept(&listener));
    let mut same_network = program.connect();
    same_network
        .write_all(b"PROXY TCP6 2001:db8::ffff 2001:db8::2 1 2\r\n")
        .unwrap();
    assert!(is_closed(&mut same_network));
    let mut other = program.connect();
    other
        .write_all(b"PROXY TCP6 2001:db8:0:1::1 2001:db8::2 1 2\r\n")
        .unwrap();
    targets.push(accept(&listener));
    program.await_sum("spliceway_refused_total", &["reason=\"max_conns_per_ip\""], 1);
}

#[test]
fn a_target_receives_the_header_before_the_first_byte() {
    for version in ["v1", "v2"] {
        let (program, listener) = forward_with(&["--send-proxy", version]);
        let mut client = program.connect();
        send_and_finish(&client, b"hello");
        let mut target = accept(&listener);
        let (from, to) = (client.local_addr().unwrap(), program.address);
        let expected = match version {
            "v1" => format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", from.port(), to.port()).into_bytes(),
            _ => {
                let (from, to) = (from.port().to_be_bytes(), to.port().to_be_bytes());
                binary(0x21, &[&[127, 0, 0, 1, 127, 0, 0, 1][..], &from, &to].concat())
            }
        };
        assert_eq!(read_exactly(&mut target, expected.len()), expected);
        assert_eq!(read_all(&target), b"hello");
        target.write_all(b"answer").unwrap();
        drop(target);
        assert_eq!(read_exactly(&mut client, 6), b"answer");
    }
}

#[test]
fn a_header_carries_the_client_from_one_program_to_the_next() {
    let target = echo("127.0.0.1:0");
    for version in ["v1", "v2"] {
        let mut last = Program::socks5(&[&BELIEVING[..], &["--open", "--allow-private"]].concat());
        let first = Program::forward(last.address, &[&["--send-proxy", version], &BELIEVING[..]].concat());
        let mut client = first.connect();
        let request = [LINE, &GREETING, &ip_request(target)].concat();
        client.write_all(&request).unwrap();
        assert_eq!(read_exactly(&mut client, 4), [5, 0, 5, 0]);
        read_exactly(&mut client, 8);
        exchange(client);
        let record = last.line("end=client_eof");
        assert!(record.contains("client=192.0.2.1:56324"), "{record}");
    }
}

#[test]
fn tlvs_from_a_balancer_are_passed_on_to_targets() {
    let authority = b"\x02\0\x0Bexample.com";
    let (checksum, padding) = (b"\x03\0\x04\x93\xB9\x41\x00", b"\x04\0\x02\0\0");
    let said = [&ADDRESSES[..], checksum, authority, padding].concat();
    for version in ["v1", "v2"] {
        let (program, listener) = forward_with(&[&BELIEVING[..], &["--send-proxy", version]].concat());
        let client = program.connect();
        send_and_finish(&client, &[&binary(0x21, &said)[..], b"hello"].concat());
        let mut target = accept(&listener);
        let expected = match version {
            "v1" => LINE.to_vec(),
            _ => binary(0x21, &[&ADDRESSES[..], authority].concat()),
        };
        assert_eq!(read_exactly(&mut target, expected.len()), expected, "{version}");
        assert_eq!(read_all(&target), b"hello");
    }
}
