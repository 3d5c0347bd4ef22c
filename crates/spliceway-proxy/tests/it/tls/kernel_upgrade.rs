//! Sessions whose TLS is in the kernel move to a new process. Where the kernel has no TLS, they
//! stay in the old process.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::client::{Client, Config, Pair, TLS13};
use super::kernel::{PROBED, arguments, can_switch, refuses_sockets, switched, switching};
use super::renewed::config;
use super::server::{ANY, Authority, Server, Speaks};
use crate::handover::{Process, upgrade};
use crate::harness::{
    Program, accept, assert_same, echo, let_pass, listen, pattern, read_all, read_exactly, send_and_finish,
};

const PART: usize = 30_000;

/// Sends parts through an echo until it is told to stop, and checks what comes back. Returns the
/// number of bytes.
fn pass_parts(mut client: Client, seed: u64, stop: &AtomicBool) -> u64 {
    let part = pattern(seed, PART);
    let mut parts = 0;
    while parts == 0 || !stop.load(Ordering::Relaxed) {
        if (seed + parts).is_multiple_of(4) {
            client.update_keys();
        }
        client.send(&part);
        assert_same(&client.receive(part.len()), &part);
        parts += 1;
        // The other sessions and the new processes need the processor.
        let_pass(Duration::from_millis(5));
    }
    client.finish();
    assert_eq!(client.rest().unwrap(), b"");
    parts * part.len() as u64
}

fn wait_until_switched(program: &Program, ends: u64) {
    program.await_sum("spliceway_kernel_tls_total", &["result=\"switched\""], ends);
}

/// Upgrades once, and waits until the process before has ended. All its sessions have moved then.
fn upgrade_and_leave(program: &mut Program, process: Option<Process>) -> Process {
    let next = upgrade(program, process.as_ref());
    match process {
        None => assert!(program.exit().success()),
        Some(process) => process.ends(),
    }
    next
}

#[test]
fn fifty_sessions_in_mid_transfer_survive_twenty_upgrades() {
    const SESSIONS: u64 = 50;
    let pair = Pair::new(&["a.test"]);
    let target = echo("127.0.0.1:0").to_string();
    let Some(mut program) = switching(&target, "100000B", &pair.arguments()) else {
        return;
    };
    let (stop, config) = (AtomicBool::new(false), Config::new(&pair).versions(TLS13));
    let mut process = None;
    let bytes: u64 = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|seed| {
                let client = Client::connect(&program, &config).unwrap();
                let stop = &stop;
                scope.spawn(move || pass_parts(client, seed, stop))
            })
            .collect();
        wait_until_switched(&program, SESSIONS);
        for _ in 0..20 {
            process = Some(upgrade_and_leave(&mut program, process.take()));
        }
        stop.store(true, Ordering::Relaxed);
        let bytes = sessions.into_iter().map(|session| session.join().unwrap()).sum();
        // The records have the bytes of all processes.
        let mut recorded = 0;
        for _ in 0..SESSIONS {
            let record = program.line("bytes_up=").replace('"', "");
            for field in [" kernel_tls=client ", " tls=1.3 ", " cipher=TLS_AES_256_GCM_SHA384 "] {
                assert!(record.contains(field), "{field}: {record}");
            }
            assert!(!record.contains("truncated="), "{record}");
            let (_, count) = record.split_once(" bytes_up=").unwrap();
            recorded += count.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
        assert_eq!(recorded, bytes);
        bytes
    });
    assert!(
        bytes >= SESSIONS * 20 * 50_000,
        "{bytes} bytes are few for mid-transfer"
    );
    assert_eq!(switched(&program), SESSIONS);
}

/// Exchanges messages between two ends of TLS.
fn talk(client: &mut Client, target: &mut Client) {
    for _ in 0..3 {
        client.send(b"question");
        assert_eq!(target.receive(8), b"question");
        target.send(b"answer");
        assert_eq!(client.receive(6), b"answer");
    }
}

#[test]
fn a_stream_that_is_cut_after_an_upgrade_stays_cut_at_the_other_end() {
    let authority = Authority::new("Test CA");
    let (issued, ca, pair) = (
        authority.issue(&["127.0.0.1"]),
        authority.file(),
        Pair::new(&["a.test"]),
    );
    let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
    let more = [&pair.arguments()[..], &["--target-tls-ca", ca.path()]].concat();
    for is_announced in [true, false] {
        let Some(mut program) = switching(&server.target(), "1B", &more) else {
            return;
        };
        let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
        let mut target = server.accept();
        talk(&mut client, &mut target);
        wait_until_switched(&program, 2);
        let process = upgrade_and_leave(&mut program, None);
        let _process = upgrade_and_leave(&mut program, Some(process));
        client.update_keys();
        target.update_keys();
        talk(&mut client, &mut target);
        if is_announced {
            client.finish();
            assert_eq!(target.rest().unwrap(), b"");
            target.send(b"after the end of the client");
            target.finish();
            assert_eq!(client.rest().unwrap(), b"after the end of the client");
        } else {
            drop(client.into_socket());
            target.rest().unwrap_err();
            drop(target);
        }
        let record = program.line("bytes_up=").replace('"', "");
        for field in [" kernel_tls=both ", " tls=1.3 ", " target_tls=1.3 "] {
            assert!(record.contains(field), "{field}: {record}");
        }
        assert_eq!(record.contains(" truncated=yes"), !is_announced, "{record}");
    }
}

#[test]
fn a_session_that_has_not_switched_does_so_in_an_upgrade() {
    let authority = Authority::new("Test CA");
    let (issued, ca, pair) = (
        authority.issue(&["127.0.0.1"]),
        authority.file(),
        Pair::new(&["a.test"]),
    );
    let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
    let more = [&pair.arguments()[..], &["--target-tls-ca", ca.path()]].concat();
    let Some(mut program) = switching(&server.target(), "1000000000B", &more) else {
        return;
    };
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    let mut target = server.accept();
    talk(&mut client, &mut target);
    assert_eq!(switched(&program), 0);
    // No byte moves until the session is in the new process.
    let _process = upgrade_and_leave(&mut program, None);
    assert_eq!(switched(&program), 2);
    talk(&mut client, &mut target);
    client.finish();
    assert_eq!(target.rest().unwrap(), b"");
    target.finish();
    assert_eq!(client.rest().unwrap(), b"");
    assert!(program.line("bytes_up=").contains("kernel_tls=\"both\""));
}

#[test]
fn a_session_that_the_new_process_refuses_continues_in_the_old_one() {
    if !can_switch() {
        return;
    }
    let (pair, (listener, target)) = (Pair::new(&["a.test"]), listen());
    let file = config(target, &pair);
    let text = fs::read_to_string(&file.0).unwrap() + "[engine]\nktls = \"on\"\nktls_after = \"1B\"\n";
    file.write(&text);
    let mut program = Program::run(&file);
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    let mut target: TcpStream = accept(&listener);
    let mut talk = || {
        for _ in 0..3 {
            client.send(b"question");
            assert_eq!(read_exactly(&mut target, 8), b"question");
            target.write_all(b"answer").unwrap();
            assert_eq!(client.receive(6), b"answer");
        }
    };
    talk();
    wait_until_switched(&program, 1);
    // A session belongs to the service with its name.
    file.write(&text.replace("\"a\"", "\"b\""));
    program.signal(Signal::USR2);
    let line = program.line("handed over: ");
    let _process = Process::in_line(&line);
    let said =
        "finishes 1 session that cannot move: it is cut after 30s; could not move 1 session: there is no service a";
    assert!(line.contains(said), "{line}");
    talk();
    client.finish();
    assert_eq!(read_all(&target), b"");
    send_and_finish(&target, b"last");
    assert_eq!(client.rest().unwrap(), b"last");
    let record = program.line("bytes_up=").replace('"', "");
    assert!(
        record.contains(" kernel_tls=client ") && record.contains(" bytes_up=48 "),
        "{record}"
    );
    assert!(program.exit().success());
}

#[test]
fn a_client_that_has_finished_gets_its_answer_after_an_upgrade() {
    let (pair, (listener, target)) = (Pair::new(&["a.test"]), listen());
    let Some(mut program) = switching(&target.to_string(), "1B", &pair.arguments()) else {
        return;
    };
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    let mut target: TcpStream = accept(&listener);
    client.send(b"question");
    assert_eq!(read_exactly(&mut target, 8), b"question");
    target.write_all(b"answer").unwrap();
    assert_eq!(client.receive(6), b"answer");
    client.send(b"more");
    assert_eq!(read_exactly(&mut target, 4), b"more");
    wait_until_switched(&program, 1);
    client.finish();
    assert_eq!(read_all(&target), b"");
    let _process = upgrade_and_leave(&mut program, None);
    let answer = pattern(3, 300_000);
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&target, &answer));
        assert_same(&client.rest().unwrap(), &answer);
    });
    let record = program.line("bytes_up=").replace('"', "");
    assert!(
        record.contains(" kernel_tls=client ") && !record.contains("truncated="),
        "{record}"
    );
}

#[test]
fn a_session_that_the_kernel_refuses_finishes_in_the_old_process() {
    if !refuses_sockets() {
        return;
    }
    let (pair, (listener, target)) = (Pair::new(&["a.test"]), listen());
    let mut program = Program::start_with(&[PROBED], &arguments(&target.to_string(), "1MiB", &pair.arguments()));
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
    let mut target = accept(&listener);
    let mut talk = || {
        client.send(b"question");
        assert_eq!(read_exactly(&mut target, 8), b"question");
        target.write_all(b"answer").unwrap();
        assert_eq!(client.receive(6), b"answer");
    };
    talk();
    program.signal(Signal::USR2);
    let line = program.line("handed over: ");
    let _process = Process::in_line(&line);
    assert!(
        line.contains("moved 0 sessions") && line.contains(" finishes 1 session"),
        "{line}"
    );
    talk();
    client.finish();
    assert_eq!(read_all(&target), b"");
    send_and_finish(&target, b"last");
    assert_eq!(client.rest().unwrap(), b"last");
    let record = program.line("bytes_up=").replace('"', "");
    assert!(!record.contains("kernel_tls="), "{record}");
    assert!(program.exit().success());
}
