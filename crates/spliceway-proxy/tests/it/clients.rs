//! The messages of proxy clients, byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;

use crate::harness::{Program, assert_same, pattern, read_all, read_exactly, send_and_finish};

/// The SOCKS5 greeting without authentication, and the answer to it.
pub(crate) const GREETING: [u8; 3] = [5, 1, 0];
pub(crate) const AGREED: [u8; 2] = [5, 0];

pub(crate) fn ip_request(target: SocketAddr) -> Vec<u8> {
    let mut request = match target {
        SocketAddr::V4(target) => [&[5, 1, 0, 1][..], &target.ip().octets()].concat(),
        SocketAddr::V6(target) => [&[5, 1, 0, 4][..], &target.ip().octets()].concat(),
    };
    request.extend(target.port().to_be_bytes());
    request
}

pub(crate) fn name_request(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [&[5, 1, 0, 3, length][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// Returns a client whose greeting the program has answered.
pub(crate) fn greeted(program: &Program) -> TcpStream {
    let mut client = program.connect();
    client.write_all(&GREETING).unwrap();
    assert_eq!(read_exactly(&mut client, 2), AGREED);
    client
}

/// Codes of replies.
pub(crate) const SUCCEEDED: u8 = 0;
pub(crate) const NOT_ALLOWED: u8 = 2;

/// Sends a request after a greeting, and returns the code of the reply.
pub(crate) fn code(program: &Program, request: &[u8]) -> u8 {
    let mut client = greeted(program);
    client.write_all(request).unwrap();
    read_exactly(&mut client, 4)[1]
}

/// The greeting of a client that offers only a password, and the answer to it.
pub(crate) const GREETING_WITH_PASSWORD: [u8; 3] = [5, 1, 2];
pub(crate) const ASKED_FOR_PASSWORD: [u8; 2] = [5, 2];

/// Returns the message with a name and a password (RFC 1929).
pub(crate) fn password(name: &str, secret: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [
        &[1, length(name)],
        name.as_bytes(),
        &[length(secret)],
        secret.as_bytes(),
    ]
    .concat()
}

/// Returns a SOCKS4 request, or a SOCKS4a request if there is a `name`.
pub(crate) fn socks4_request(target: SocketAddr, user: &str, name: Option<&str>) -> Vec<u8> {
    let SocketAddr::V4(target) = target else {
        panic!("SOCKS4 has no IPv6");
    };
    let mut request = vec![4, 1];
    request.extend(target.port().to_be_bytes());
    request.extend(if name.is_some() {
        [0, 0, 0, 7]
    } else {
        target.ip().octets()
    });
    request.extend(user.as_bytes());
    request.push(0);
    if let Some(name) = name {
        request.extend(name.as_bytes());
        request.push(0);
    }
    request
}

/// Reads the head of an HTTP message, up to its blank line.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(read_exactly(stream, 1));
    }
    String::from_utf8(head).unwrap()
}

/// Reads an HTTP message: its head, and as many bytes as its length says. Reads less if the
/// connection ends before.
pub(crate) fn read_message(stream: &mut TcpStream) -> String {
    let (mut message, mut missing, mut byte) = (Vec::new(), None, [0]);
    while missing != Some(0) && stream.read(&mut byte).unwrap() > 0 {
        message.extend(byte);
        missing = missing.map(|bytes: usize| bytes - 1);
        if missing.is_none() && message.ends_with(b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&message).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            missing = Some(length.map_or(0, |length| length.parse().unwrap()));
        }
    }
    String::from_utf8(message).unwrap()
}

/// Sends 300 kB to an echo target, and compares the bytes that it returns.
pub(crate) fn exchange(client: TcpStream) {
    let sent = pattern(7, 300_000);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &sent));
        assert_same(&read_all(&client), &sent);
    });
}
