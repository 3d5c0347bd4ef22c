use std::io::Write;
use std::time::Duration;

use crate::harness::{Program, let_pass, read_exactly};

/// Enough for the program itself, and for a few clients.
const DESCRIPTORS: usize = 24;

fn exhausted() -> (Program, Vec<std::net::TcpStream>) {
    let arguments = [
        "socks5",
        "-l",
        "127.0.0.1:0",
        "--handshake-timeout",
        "1h",
        "--drain-timeout",
        "0",
    ];
    let mut program = Program::start_with_descriptors(DESCRIPTORS, &arguments);
    // The kernel accepts them all; the program can take some.
    let clients = (0..2 * DESCRIPTORS).map(|_| program.connect()).collect();
    assert!(program.line("cannot accept").contains("Too many open files"));
    (program, clients)
}

#[test]
fn without_descriptors_it_neither_ends_nor_spins_and_serves_again_when_there_are_some() {
    let (mut program, clients) = exhausted();
    let before = program.ticks();
    let_pass(Duration::from_millis(1500));
    let ticks = program.ticks() - before;
    assert!(ticks <= 5, "{ticks} ticks of 10 ms in 1.5 s of waiting");
    assert_eq!(program.lines_with("cannot accept"), 1, "one line in ten seconds");
    drop(clients);
    let mut client = program.connect();
    client.write_all(&[5, 1, 0]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 0]);
}

#[test]
fn the_wait_for_descriptors_does_not_delay_the_end() {
    let (mut program, _clients) = exhausted();
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
}

#[test]
fn failures_of_accept_are_counted_by_errno() {
    let arguments = [
        "socks5",
        "-l",
        "127.0.0.1:0",
        "--handshake-timeout",
        "1h",
        "--metrics",
        "127.0.0.1:0",
    ];
    let mut program = Program::start_with_descriptors(DESCRIPTORS, &arguments);
    let clients: Vec<_> = (0..2 * DESCRIPTORS).map(|_| program.connect()).collect();
    program.line("cannot accept");
    drop(clients);
    program.await_sum("spliceway_accept_errors_total", &["errno=\"EMFILE\""], 1);
}
