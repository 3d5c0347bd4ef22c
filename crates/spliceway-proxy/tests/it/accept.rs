use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use spliceway_faults::{Call, Fault, Faults, Rule, When};

use crate::clients::{AGREED, GREETING, exchange};
use crate::drain::CUT;
use crate::harness::{PATIENCE, Program, echo, is_closed, let_pass, read_exactly, with_patience};

/// A limit on descriptors that a flood of clients can exceed.
const DESCRIPTORS: usize = 256;
/// The number of sessions that this limit allows. `limits.rs` has the calculation.
const SESSIONS: u64 = 83;
const FLOOD: usize = 300;

/// Starts a forwarder to an echo target, with few descriptors.
fn with_few_descriptors(arguments: &[&str]) -> Program {
    let target = echo("127.0.0.1:0").to_string();
    let forward = [
        "forward",
        "-l",
        "127.0.0.1:0",
        "-r",
        &target,
        "--metrics",
        "127.0.0.1:0",
    ];
    Program::start_with_descriptors(DESCRIPTORS, &[&forward, arguments].concat())
}

fn flood(program: &mut Program) -> Vec<TcpStream> {
    // The kernel accepts all of these clients.
    let clients = (0..FLOOD).map(|_| program.connect()).collect();
    program.line("the limit on sessions is reached");
    clients
}

fn says_and_hears(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    assert_eq!(read_exactly(client, bytes.len()), bytes);
}

#[test]
fn a_flood_does_not_slow_running_relays_and_every_client_is_served() {
    let mut program = with_few_descriptors(&[]);
    let mut running = program.connect();
    says_and_hears(&mut running, b"before");
    let clients = flood(&mut program);
    let before = program.ticks();
    let_pass(Duration::from_millis(1500));
    let ticks = program.ticks() - before;
    assert!(ticks <= 5, "{ticks} ticks of 10 ms in 1.5 s of waiting");
    assert_eq!(
        program.lines_with("the limit on sessions"),
        1,
        "one line in ten seconds"
    );
    assert_eq!(program.sum("spliceway_connections_active", &[]), SESSIONS);
    assert!(program.descriptors() < DESCRIPTORS);
    says_and_hears(&mut running, b"during");
    exchange(running);
    // Each client that ends makes room for a waiting client, and the program then dials the target
    // of that client.
    for mut client in clients {
        says_and_hears(&mut client, b"mine");
    }
    for (series, label) in [
        ("spliceway_accept_errors_total", ""),
        ("spliceway_refused_total", ""),
        ("spliceway_connections_total", "connect_failed"),
        ("spliceway_pool_total", "denied_emfile"),
    ] {
        assert_eq!(program.sum(series, &[label]), 0, "{series} {label}");
    }
}

#[test]
fn the_wait_for_a_free_session_does_not_delay_the_exit() {
    let mut program = with_few_descriptors(&["--drain-timeout", "0"]);
    let _clients = flood(&mut program);
    program.terminate();
    assert_eq!(program.exit().code(), Some(CUT));
}

#[test]
fn at_max_conns_clients_wait_and_are_not_refused() {
    let program = Program::forward(echo("127.0.0.1:0"), &["--max-conns", "2"]);
    let [mut first, mut second, mut third] = [(); 3].map(|()| program.connect());
    says_and_hears(&mut first, b"first");
    says_and_hears(&mut second, b"second");
    third.write_all(b"third").unwrap();
    program.await_sum("spliceway_admission_waits_total", &[], 1);
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let error = third.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "not served, not closed");
    assert_eq!(program.sum("spliceway_connections_max", &[]), 2);
    assert_eq!(program.sum("spliceway_connections_active", &[]), 2);
    drop(first);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_exactly(&mut third, 5), b"third");
    says_and_hears(&mut second, b"second");
}

#[test]
fn sessions_are_limited_by_the_available_descriptors() {
    let mut program = with_few_descriptors(&["--max-conns", "100000"]);
    assert!(program.lines_with("--max-conns 100000 is lowered to") > 0);
    assert_eq!(program.sum("spliceway_connections_max", &[]), SESSIONS);
    flood(&mut program);
}

#[test]
fn the_requested_descriptor_limit_is_applied_or_an_error() {
    let program = Program::socks5(&["--nofile", "256"]);
    assert_eq!(program.sum("spliceway_connections_max", &[]), SESSIONS);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_spliceway"))
        // This is more than any kernel allows.
        .args(["socks5", "-l", "127.0.0.1:0", "--nofile", "18446744073709551614"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot raise the limit on descriptors"), "{stderr}");
}

/// Connects a client from this address.
fn connect_from(ip: Ipv4Addr, program: &Program) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(SocketAddrV4::new(ip, 0)).into()).unwrap();
    socket.connect(&program.address.into()).unwrap();
    with_patience(socket.into())
}

#[test]
fn max_conns_per_ip_limits_one_address_and_not_the_others() {
    let mut program = Program::forward(echo("127.0.0.1:0"), &["--max-conns-per-ip", "1"]);
    let mut first = program.connect();
    says_and_hears(&mut first, b"first");
    assert!(is_closed(&mut program.connect()));
    let record = program.line("end=denied:max_conns_per_ip");
    assert!(record.contains("client=127.0.0.1:"), "{record}");
    program.await_sum("spliceway_refused_total", &["reason=\"max_conns_per_ip\""], 1);
    says_and_hears(&mut connect_from(Ipv4Addr::new(127, 0, 0, 2), &program), b"other");
    says_and_hears(&mut first, b"still");
    drop(first);
    program.await_sum("spliceway_connections_total", &["end=\"client_eof\""], 2);
    exchange(program.connect());
}

/// Returns clients that connect while no descriptor is left.
pub(crate) fn exhausted(program: &mut Program) -> Vec<TcpStream> {
    program.limit_descriptors(program.descriptors());
    // There are more clients than descriptor numbers that may have become free below the limit.
    let clients = (0..16).map(|_| program.connect()).collect();
    assert!(program.line("cannot accept").contains("Too many open files"));
    clients
}

#[test]
fn without_descriptors_the_program_waits_and_then_serves_again() {
    let mut program = Program::socks5(&["--handshake-timeout", "1h"]);
    let clients = exhausted(&mut program);
    let before = program.ticks();
    let_pass(Duration::from_millis(1500));
    let ticks = program.ticks() - before;
    assert!(ticks <= 5, "{ticks} ticks of 10 ms in 1.5 s of waiting");
    assert_eq!(program.lines_with("cannot accept"), 1, "one line in ten seconds");
    program.limit_descriptors(DESCRIPTORS);
    for mut client in clients {
        client.write_all(&GREETING).unwrap();
        assert_eq!(read_exactly(&mut client, 2), AGREED);
    }
}

#[test]
fn failures_of_accept_are_counted_by_errno() {
    let mut program = Program::socks5(&["--handshake-timeout", "1h"]);
    let _clients = exhausted(&mut program);
    program.limit_descriptors(DESCRIPTORS);
    program.await_sum("spliceway_accept_errors_total", &["errno=\"EMFILE\""], 1);
}

#[test]
fn the_wait_for_descriptors_does_not_delay_the_exit() {
    let mut program = Program::socks5(&["--handshake-timeout", "1h", "--drain-timeout", "0"]);
    // The exhausted program may accept no further client, so one session begins before.
    let mut client = program.connect();
    client.write_all(&GREETING).unwrap();
    assert_eq!(read_exactly(&mut client, 2), AGREED);
    let _clients = exhausted(&mut program);
    program.terminate();
    assert_eq!(program.exit().code(), Some(CUT));
}

/// Starts the program on a thread with a filter, which the program inherits. The program's accept4
/// calls then fail as `when` specifies.
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
fn after_any_failure_of_accept_every_client_is_served() {
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
                    client.write_all(&GREETING).unwrap();
                    assert_eq!(read_exactly(&mut client, 2), AGREED, "{name}, {when:?}");
                }
                let seen = faults.seen(Call::Accept);
                assert_eq!(seen.injected, failures, "{name}, {when:?}");
                // Each client needs one call, and a second call that finds no further client.
                assert!(seen.calls <= 2 * CLIENTS + failures, "{name}, {when:?}: {seen:?}");
                let label = format!("errno=\"{name}\"");
                program.await_sum("spliceway_accept_errors_total", &[&label], failures);
            });
        }
    }
}

#[test]
fn a_failing_accept_causes_no_busy_loop_and_does_not_delay_the_exit() {
    for errno in [Errno::MFILE, Errno::NOMEM, Errno::CONNABORTED, Errno::PERM] {
        with_failing_accept(errno, When::Always, move |mut program, faults| {
            let _client = program.connect();
            faults.await_injected(1);
            // The program retries a few times immediately if one client may have caused the error.
            // After that, each wait is twice as long as the previous one.
            let_pass(Duration::from_millis(700));
            let calls = faults.seen(Call::Accept).calls;
            assert!(calls <= 40, "{errno:?}: {calls} calls in 0.7 s");
            program.terminate();
            assert_eq!(program.exit().code(), Some(0), "{errno:?}");
        });
    }
}
