//! The memory of the process during and after a storm of clients.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Program, let_pass};

const CLIENTS: usize = 2000;
/// The bytes of an unfinished handshake that each client sends.
const SENT_BYTES: usize = 14_000;
/// The memory of a client whose handshake has not ended, beyond the bytes that it has sent.
const CLIENT_BYTES: usize = 8 << 10;

/// Waits until the resident memory meets the condition, and returns it.
fn await_memory(program: &Program, what: &str, is_met: impl Fn(usize) -> bool) -> usize {
    // The last session of a storm ends late on a machine with other work, and the memory goes back
    // seconds after that.
    let until = Instant::now() + 3 * PATIENCE;
    loop {
        let resident = usize::try_from(program.resident_bytes()).unwrap();
        if is_met(resident) {
            return resident;
        }
        assert!(Instant::now() < until, "{what}: {resident} bytes");
        let_pass(Duration::from_millis(20));
    }
}

/// Opens many clients that each send the beginning of a handshake, and closes them.
fn storm(kind: &str, arguments: &[&str], beginning: &[u8]) {
    // No client is refused before the last one is there.
    let program = Program::proxy(kind, &[arguments, &["--handshake-timeout", "10m"]].concat());
    program.get("/metrics");
    let idle = usize::try_from(program.resident_bytes()).unwrap();
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = program.connect();
            client.write_all(beginning).unwrap();
            client
        })
        .collect();
    let read = idle + CLIENTS * beginning.len();
    let during = await_memory(&program, "during the storm", |resident| resident >= read);
    let each = (during - idle) / CLIENTS;
    assert!(
        each <= beginning.len() + CLIENT_BYTES,
        "{kind}: {each} bytes per client"
    );
    program.await_sum("spliceway_connections_active", &[], CLIENTS as u64);
    drop(clients);
    await_memory(&program, "after the storm", |resident| {
        resident <= idle + (during - idle) / 8
    });
}

#[test]
fn memory_returns_after_a_storm_of_unfinished_client_hellos() {
    // A handshake record, and a ClientHello of 16,000 bytes in it.
    let mut hello = vec![22, 3, 1];
    hello.extend(16_000_u16.to_be_bytes());
    hello.extend([1, 0]);
    hello.extend(15_996_u16.to_be_bytes());
    hello.resize(SENT_BYTES, 0);
    // Port because nothing connects to it.
    storm("sni", &["--route", "example.com=127.0.0.1:1"], &hello);
}

#[test]
fn memory_returns_after_a_storm_of_unfinished_request_heads() {
    let field = format!("Field: {}\r\n", "v".repeat(200));
    // Port because nothing connects to it.
    let mut head = b"GET http://127.0.0.1:1/ HTTP/1.1\r\n".to_vec();
    head.extend(field.bytes().cycle().take(SENT_BYTES - head.len()));
    storm("http", &[], &head);
    storm("mixed", &[], &head);
}
