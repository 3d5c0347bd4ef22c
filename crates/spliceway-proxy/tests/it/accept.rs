use std::io::Write;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use spliceway_faults::{Call, Fault, Faults, Rule, When};

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

/// Runs the program under a filter of the thread that starts it, so that its calls of accept4 fail by `when`.
fn with_failing_accept(errno: Errno, when: When, scenario: impl FnOnce(Program, &Faults) + Send + 'static) {
    let run = move || {
        let rule = Rule::new(Call::Accept, when, Fault::Errno(errno.raw_os_error()));
        let faults = Faults::on_this_thread(vec![rule]).unwrap();
        let arguments = ["socks5", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        scenario(Program::start(&arguments), &faults);
    };
    thread::spawn(run).join().unwrap();
}

#[test]
fn whatever_accept_says_once_or_thrice_every_client_is_served_and_the_failure_counted() {
    const CLIENTS: u64 = 3;
    let errnos = [
        (Errno::MFILE, "EMFILE"),
        (Errno::NFILE, "ENFILE"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::NOBUFS, "ENOBUFS"),
        (Errno::CONNABORTED, "ECONNABORTED"),
        (Errno::PERM, "EPERM"),
        (Errno::INTR, "EINTR"),
    ];
    for (errno, name) in errnos {
        for (when, failures) in [(When::FIRST, 1), (When::Nth(3), 1), (When::Between(3, 5), 3)] {
            with_failing_accept(errno, when, move |program, faults| {
                for _ in 0..CLIENTS {
                    let mut client = program.connect();
                    client.write_all(&[5, 1, 0]).unwrap();
                    assert_eq!(read_exactly(&mut client, 2), [5, 0], "{name}, {when:?}");
                }
                let seen = faults.seen(Call::Accept);
                assert_eq!(seen.injected, failures, "{name}, {when:?}");
                // One for each client, and one that finds no more of them.
                assert!(seen.calls <= 2 * CLIENTS + failures, "{name}, {when:?}: {seen:?}");
                let label = format!("errno=\"{name}\"");
                program.await_sum("spliceway_accept_errors_total", &[&label], failures);
            });
        }
    }
}

#[test]
fn an_accept_that_always_fails_is_not_spun_on_and_does_not_delay_the_end() {
    for errno in [Errno::MFILE, Errno::NOMEM, Errno::CONNABORTED, Errno::PERM] {
        with_failing_accept(errno, When::Always, move |mut program, faults| {
            let _client = program.connect();
            faults.await_injected(1);
            // An error of a client is tried again at once a few times; each wait is twice as long as the one before.
            let_pass(Duration::from_millis(700));
            let calls = faults.seen(Call::Accept).calls;
            assert!(calls <= 40, "{errno:?}: {calls} calls in 0.7 s");
            program.terminate();
            assert_eq!(program.exit().code(), Some(0), "{errno:?}");
        });
    }
}
