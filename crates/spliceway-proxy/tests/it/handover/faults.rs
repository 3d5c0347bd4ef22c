//! Faults of a hand-over. A session is never corrupted, and it ends only with the process that owns
//! it. With `--nocapture`, each test prints its rows of the table of faults, and the test of deaths
//! prints a table of its own.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use spliceway_net::has_tool;

use super::{Process, ask, upgrade};
use crate::harness::{Folder, PATIENCE, Program, TextFile, accept, echo, let_pass, listen, with_patience};

/// The first message with a session, of those that the old process sends: greeting, listener,
/// preparation, order to serve, state of the service, state of the program.
const SESSION: usize = 7;

const FAILED: &str = "the upgrade failed, and this process serves on: ";

/// Prints a row of the table of faults.
#[expect(clippy::print_stdout, reason = "people read the table")]
pub(super) fn fault(fault: &str, effect: &str) {
    println!("| {fault} | {effect} |");
}

/// Returns whether the session works. If not, it must have been closed, and not corrupted.
fn survives(client: &mut TcpStream, seed: u64) -> bool {
    let bytes = crate::harness::pattern(seed, 900);
    let mut answer = Vec::new();
    let sent = client.write_all(&bytes);
    let read = Read::by_ref(client).take(900).read_to_end(&mut answer);
    assert!(bytes.starts_with(&answer), "wrong bytes");
    for error in [sent.err(), read.err()].into_iter().flatten() {
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
    answer.len() == 900
}

#[test]
fn a_process_that_cannot_take_over_leaves_the_old_one_serving() {
    let target = echo("127.0.0.1:0");
    let service = format!("[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n");
    let config = TextFile::new(&service);
    let link = TextFile::new("");
    let replace = |program: &str| {
        fs::remove_file(&link.0).unwrap();
        std::os::unix::fs::symlink(program, &link.0).unwrap();
    };
    replace(env!("CARGO_BIN_EXE_spliceway"));
    let mut command = Command::new(&link.0);
    command.args(["run", "-c", config.path()]);
    let mut program = Program::spawn(command, false);
    let mut client = program.connect();
    for (binary, text, expected) in [
        (
            "/bin/false",
            &*service,
            "the new process did not become ready: exit status: 1",
        ),
        (
            "/bin/cat",
            &service,
            "the new process did not become ready: exit status: ",
        ),
        ("/nowhere", &service, "cannot start /tmp/"),
        (env!("CARGO_BIN_EXE_spliceway"), "[[service]]\n", "kind: is missing"),
    ] {
        replace(binary);
        config.write(text);
        program.signal(Signal::USR2);
        let line = program.line(FAILED);
        assert!(line.contains(expected), "{line}");
        ask(&mut client, 1);
        ask(&mut program.connect(), 2);
        fault(
            &format!("the new process cannot start: {expected}"),
            "the old process serves on",
        );
    }
    config.write(&service);
    let _process = upgrade(&mut program, None);
    ask(&mut client, 3);
}

#[test]
fn sessions_that_the_new_process_cannot_take_stay_in_the_old_one() {
    let target = echo("127.0.0.1:0");
    let file = |name: &str, nofile: usize| {
        format!(
            "[limits]\nnofile = {nofile}\n[[service]]\nname = \"{name}\"\nkind = \"forward\"\n\
            listen = \"127.0.0.1:0\"\nto = \"{target}\"\n"
        )
    };
    for (next, expected) in [
        (file("a", 64), "of 2 sockets arrived"),
        (file("b", 4096), "there is no service a"),
    ] {
        let config = TextFile::new(&file("a", 4096));
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["run", "-c", config.path()]);
        let mut program = Program::spawn(command, false);
        let mut clients: Vec<_> = (0..60).map(|_| program.connect()).collect();
        clients.iter_mut().for_each(|client| ask(client, 1));
        config.write(&next);
        program.signal(Signal::USR2);
        let line = program.line("handed over: ");
        let _process = Process::in_line(&line);
        assert!(line.contains(expected) && line.contains("; could not move "), "{line}");
        clients.iter_mut().for_each(|client| ask(client, 2));
        drop(clients);
        assert!(program.exit().success(), "the old process ends with its last session");
        fault(
            &format!("the new process cannot take a session: {expected}"),
            "the session finishes in the old process",
        );
    }
}

/// Returns the program as the process that hands over would start it, with this socket.
fn as_new(program: &Path, socket: impl Into<Stdio>) -> Command {
    let mut command = Command::new(program);
    // Port because no client comes that would be relayed there.
    command.args(["forward", "-l", "127.0.0.1:0", "-r", "127.0.0.1:9"]);
    command
        .env("SPLICEWAY_HANDOVER", "1")
        .stdin(socket)
        .stderr(Stdio::piped());
    command
}

#[test]
fn another_version_or_another_process_is_refused() {
    let (mut old, new) = UnixStream::pair().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_spliceway"));
    let child = as_new(program, OwnedFd::from(new)).spawn().unwrap();
    let hello = br#"{"hello":{"version":99}}"#;
    old.write_all(&[&[hello.len() as u8, 0, 0, 0, 0, 0, 0, 0], &hello[..]].concat())
        .unwrap();
    let mut answer = Vec::new();
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    old.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(
        answer.contains(r#"{"refused":{"why":"the old process hands over in version 99"#),
        "{answer}"
    );
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));

    let output = as_new(program, Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("standard input is no socket of a running spliceway"),
        "{stderr}"
    );
    assert_eq!(output.status.code(), Some(2));
    fault(
        "another version, or no process that hands over",
        "the new process ends, and says why",
    );
}

#[test]
fn a_process_of_another_user_is_refused() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can start a process of another user");
    }
    // Another user may not be able to reach the program where it is.
    let folder = Folder::new("handover-user");
    let program = folder.0.join("spliceway");
    fs::copy(env!("CARGO_BIN_EXE_spliceway"), &program).unwrap();
    for path in [&folder.0, &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (_old, new) = UnixStream::pair().unwrap();
    let output = as_new(&program, OwnedFd::from(new)).uid(NOBODY).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let expected = "its other end has another user";
    assert!(stderr.contains(expected), "{stderr}");
    assert_eq!(output.status.code(), Some(2));
    fault("another user", expected);
}

#[test]
fn process_1_of_a_container_refuses_to_hand_over() {
    if !has_tool("unshare", "util-linux") {
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]);
    if !unshare.arg("true").output().unwrap().status.success() {
        return println!("skipped: this user may not create a PID namespace");
    }
    let target = echo("127.0.0.1:0").to_string();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["forward", "-l", "127.0.0.1:0", "-r", &target]);
    let mut program = Program::spawn(command, false);
    let mut client = program.connect();
    ask(&mut client, 1);
    kill_process(program.only_child(), Signal::USR2).unwrap();
    let line = program.line(FAILED);
    assert!(line.contains("process 1 cannot hand over"), "{line}");
    ask(&mut client, 2);
    ask(&mut program.connect(), 3);
    fault("process 1 of a container", "it refuses, and serves on");
}

/// Returns a forwarder in which strace changes this system call of the old process.
fn forward_with(inject: &str, target: &str) -> Program {
    let (call, _) = inject.split_once(':').unwrap();
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e"]);
    strace.args([&format!("trace={call}"), "-e", &format!("inject={inject}")]);
    strace.arg(env!("CARGO_BIN_EXE_spliceway"));
    strace.args(["forward", "-l", "127.0.0.1:0", "-r", target, "--workers", "1"]);
    Program::spawn(strace, false)
}

#[test]
fn a_session_stays_if_too_many_descriptors_are_in_flight() {
    if !has_tool("strace", "strace") {
        return;
    }
    // Only the old process calls it.
    let target = echo("127.0.0.1:0").to_string();
    for (error, number) in [("ETOOMANYREFS", SESSION), ("ENOBUFS", SESSION + 1)] {
        let mut program = forward_with(&format!("sendmsg:error={error}:when={number}"), &target);
        let mut clients: Vec<_> = (0..3).map(|_| program.connect()).collect();
        clients.iter_mut().for_each(|client| ask(client, 1));
        program.signal(Signal::USR2);
        let line = program.line("handed over: ");
        let _process = Process::in_line(&line);
        assert!(
            line.contains("moved 2 sessions") && line.contains("; could not move 1 session: "),
            "{line}"
        );
        clients.iter_mut().for_each(|client| ask(client, 2));
        // The session moves at the next attempt.
        assert!(program.exit().success());
        clients.iter_mut().for_each(|client| ask(client, 3));
        fault(error, "the session stays, and moves at the next attempt");
    }
}

/// Which process dies, and at which of its calls.
struct Death {
    call: &'static str,
    number: usize,
}

/// Runs an upgrade in which one process dies. Returns how many of the sessions survive, whether a
/// process serves new clients, and whether the upgrade was complete before.
fn upgrade_with(death: &Death, sessions: usize) -> (usize, bool, bool) {
    let target = echo("127.0.0.1:0").to_string();
    let inject = format!("{}:signal=KILL:when={}", death.call, death.number);
    let mut program = forward_with(&inject, &target);
    let mut clients: Vec<_> = (0..sessions).map(|_| program.connect()).collect();
    clients.iter_mut().for_each(|client| ask(client, 1));
    program.signal(Signal::USR2);
    // Either process ends, or the hand-over does.
    let until = Instant::now() + PATIENCE;
    while !program.has_ended() && program.lines_with(FAILED) == 0 && program.lines_with("handed over: ") == 0 {
        assert!(Instant::now() < until);
        let_pass(Duration::from_millis(2));
    }
    let survivors = clients
        .iter_mut()
        .filter_map(|client| survives(client, 2).then_some(()))
        .count();
    let serves = TcpStream::connect(program.address).is_ok_and(|client| survives(&mut with_patience(client), 3));
    kill_all_with(&target);
    (survivors, serves, program.lines_with("handed over: ") > 0)
}

/// Kills the processes with this argument, which no other test has. A process that died may not
/// have said which one it had started.
fn kill_all_with(argument: &str) {
    for process in fs::read_dir("/proc").unwrap().map_while(Result::ok) {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let has_it = arguments.split(|byte| *byte == 0).any(|one| one == argument.as_bytes());
        if let Some(pid) = pid.and_then(Pid::from_raw).filter(|_| has_it) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn the_death_of_either_process_at_any_step_ends_only_what_it_owns() {
    if !has_tool("strace", "strace") {
        return;
    }
    const SESSIONS: usize = 3;
    let mut seen = BTreeSet::new();
    println!("| killed | at call | sessions that survive, of {SESSIONS} | new clients served | complete before |");
    println!("|---|---|---|---|---|");
    for (who, call, last) in [("old", "sendmsg", SESSION + 6), ("new", "recvmsg", SESSION + 6)] {
        for number in 1..=last {
            let (survivors, serves, is_complete) = upgrade_with(&Death { call, number }, SESSIONS);
            println!("| {who} | {call} {number} | {survivors} | {serves} | {is_complete} |");
            seen.insert((who, survivors, serves));
            // A new process that dies before it has taken a session changes nothing.
            assert!(who == "old" || serves || is_complete, "{call} {number}");
            // An old process that dies before the new one is ready takes its sessions with it.
            assert!(who == "new" || serves || survivors == 0, "{call} {number}");
        }
    }
    assert!(seen.contains(&("new", SESSIONS, true)), "{seen:?}");
    assert!(
        seen.iter()
            .any(|(who, survivors, serves)| *who == "old" && *serves && *survivors < SESSIONS)
    );
}

#[test]
fn a_session_whose_pipe_cannot_be_read_has_that_end_and_no_other() {
    if !has_tool("strace", "strace") {
        return;
    }
    let (listener, target) = listen();
    let (target, any) = (target.to_string(), "127.0.0.1:0");
    let mut program = Program::start(&["forward", "-l", any, "-r", &target, "--workers", "1", "--splice", "on"]);
    let (mut client, target) = (program.connect(), accept(&listener));
    let sent = super::fill(&mut client, &crate::harness::pattern(7, super::PERIOD));
    // A pipe has bytes now. The program calls read(2) only to read it out.
    let mut strace = Command::new("strace");
    strace.args(["-p", &program.pid().to_string(), "-o", "/dev/null"]);
    strace.args(["-e", "trace=read", "-e", "inject=read:error=EIO"]);
    let mut strace = strace.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(strace.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    if line.contains("attached") {
        program.signal(Signal::USR2);
        let record = program.line("end=drained");
        assert!(
            record.contains("cause=\"cannot read out a pipe for a hand-over: "),
            "{record}"
        );
        let (_, lost) = record.split_once("lost_up=").unwrap();
        let lost: usize = lost.split(' ').next().unwrap().parse().unwrap();
        let arrived = crate::harness::read_all(&target).len();
        // The rest was in the socket of the client.
        assert!(
            lost > 0 && arrived + lost <= sent,
            "{lost} {arrived} of {sent}: {record}"
        );
        let _process = Process::in_line(&program.line("handed over: "));
        fault("a pipe cannot be read", "the session ends, and its record says why");
    } else {
        println!("skipped: this user may not trace the program: {line}");
    }
    let _ = strace.kill();
    let _ = strace.wait();
}
