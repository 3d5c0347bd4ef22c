//! A new process that fails at any step leaves the old one as it was, and its reason reaches the
//! operator.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use spliceway_net::has_tool;

use super::fake::{New, Next, name_of};
use super::outside::Sockets;
use super::{Process, ask};
use crate::clients::{AGREED, GREETING};
use crate::harness::{PATIENCE, Program, TextFile, echo, let_pass, listen};
use crate::listen::connect_to_path;

const FAILED: &str = "the upgrade failed, and this process serves on: ";

/// What the new process says to a message of the old one. An empty text closes its socket, and
/// `ID` is the session of the message.
type Answer = (&'static str, &'static str);

const READY: Answer = ("prepare", r#""ready""#);
const SERVING: Answer = ("serve", r#""serving""#);
const CLOSES: &str = "";

/// Plays a new process until it closes its socket, or the old one does.
fn play(mut new: New, answers: &[Answer]) {
    while let Some((message, _)) = new.hear() {
        let name = name_of(&message);
        let Some((_, said)) = answers.iter().find(|(to, _)| *to == name) else {
            continue;
        };
        if said.is_empty() {
            return;
        }
        let message: Value = serde_json::from_str(&message).unwrap();
        new.say(&said.replace("ID", &message["session"]["id"].to_string()));
    }
}

/// Each new process, and the reason for which it does not take over.
const FAILURES: [(&[Answer], &str); 10] = [
    (
        &[("hello", CLOSES)],
        "the new process did not become ready: exit status: 0",
    ),
    (
        &[("prepare", r#"{"refused":{"why":"line 1:\n  a \u001b[2J\u202eb\r\n"}}"#)],
        "line 1:; a \u{fffd}[2J\u{fffd}b",
    ),
    (
        &[("prepare", r#""serving""#)],
        "the new process did not become ready: an unexpected answer: Serving. So this process has ended it",
    ),
    (
        &[("prepare", r#"{"later":1}"#)],
        "the new process did not become ready: unknown variant `later`",
    ),
    (
        &[READY, ("serve", CLOSES)],
        "the new process does not serve: exit status: 0",
    ),
    (&[READY, ("serve", r#"{"refused":{"why":"no memory"}}"#)], "no memory"),
    (
        &[READY, SERVING, ("session", CLOSES)],
        "the new process does not take sessions: exit status: 0",
    ),
    (
        &[READY, SERVING, ("session", r#""accepting""#)],
        "the new process does not take sessions: an unexpected answer: Accepting",
    ),
    (
        &[
            READY,
            SERVING,
            ("session", r#"{"not_taken":{"session":ID,"why":"full"}}"#),
            ("accept", CLOSES),
        ],
        "the new process does not accept clients: exit status: 0",
    ),
    (
        &[
            READY,
            SERVING,
            ("session", r#"{"not_taken":{"session":ID,"why":"full"}}"#),
            ("accept", r#"{"refused":{"why":"no thread"}}"#),
        ],
        "no thread",
    ),
];

#[test]
fn a_new_process_that_fails_at_any_step_is_named_and_changes_nothing() {
    let (sockets, next, echo) = (Sockets::new("failing"), Next::new("failing"), echo("127.0.0.1:0"));
    let path = sockets.address("clients");
    let mut program = next.start(&[
        "forward",
        "-l",
        "127.0.0.1:0",
        "-l",
        &path,
        "-r",
        &echo.to_string(),
        "--admin",
        &sockets.admin.address(),
        "--metrics",
        "127.0.0.1:0",
    ]);
    let mut client = program.connect();
    ask(&mut client, 1);
    let before = sockets.outside(&program);
    next.is_played();
    for (answers, expected) in FAILURES {
        program.signal(Signal::USR2);
        play(next.accept(), answers);
        let line = program.line(FAILED);
        let (_, why) = line.split_once(FAILED).unwrap();
        assert!(why.starts_with(expected), "{why:?} instead of {expected:?}");
        ask(&mut client, 2);
        sockets.await_as_before(&program, &before);
        ask(&mut program.connect(), 3);
        ask(&mut connect_to_path(&sockets.folder.0.join("clients")), 4);
        sockets.await_as_before(&program, &before);
    }
    // The command says the same, and the next upgrade succeeds.
    let output = thread::scope(|scope| {
        let upgrading = scope.spawn(|| sockets.admin.command(&["upgrade"]));
        play(next.accept(), FAILURES[1].0);
        upgrading.join().unwrap()
    });
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("spliceway: {FAILED}{}\n", FAILURES[1].1));
    assert_eq!(output.status.code(), Some(1));
    let failed = program.sum("spliceway_upgrades_total", &["failed"]);
    assert_eq!(failed, FAILURES.len() as u64 + 1);
    next.is_the_program();
    program.signal(Signal::USR2);
    let _process = Process::in_line(&program.line("handed over: "));
    ask(&mut client, 5);
}

/// The configuration of a proxy.
#[derive(Clone, Copy)]
enum Proxy<'a> {
    /// For this user alone.
    Private,
    /// For all users of the machine who have a password.
    Open,
    /// And with files that the process creates, and these tables.
    WithFiles(&'a str),
}

fn proxy(sockets: &Sockets, users: &TextFile, kind: Proxy<'_>) -> String {
    let (admin, folder) = (sockets.admin.address(), sockets.folder.0.display());
    let service = "[[service]]\nname = \"s\"\nkind = \"socks5\"\nlisten = [\"127.0.0.1:0\"";
    let admin = format!("[engine]\nworkers = 1\n[admin]\nsocket = \"{admin}\"\n");
    let (private, open) = (sockets.address("clients"), sockets.address("clients,mode=0666"));
    let (new, users) = (sockets.address("new"), users.path());
    match kind {
        Proxy::Private => format!("{admin}{service}, \"{private}\"]\n"),
        Proxy::Open => format!("{admin}{service}, \"{open}\"]\nauth_file = \"{users}\"\n"),
        Proxy::WithFiles(rest) => format!(
            "{admin}[log]\naccess = \"{folder}/records\"\n\
             [limits]\nquota_file = \"{folder}/quotas\"\n[[user]]\nname = \"ann\"\nquota = [\"1GB/day\"]\n\
             {service}, \"{open}\", \"{new}\"]\nauth_file = \"{users}\"\n{rest}"
        ),
    }
}

fn run(config: &TextFile) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["run", "-c", config.path()]);
    Program::spawn(command, false)
}

fn mode(sockets: &Sockets) -> u32 {
    let found = fs::symlink_metadata(sockets.folder.0.join("clients")).unwrap();
    found.permissions().mode() & 0o777
}

/// Waits until the new process has set the mode, which it does when the old one has given up.
fn await_open(sockets: &Sockets) {
    let until = Instant::now() + PATIENCE;
    while mode(sockets) != 0o666 {
        assert!(Instant::now() < until, "{:o}", mode(sockets));
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn an_upgrade_that_is_refused_leaves_sockets_modes_and_files_as_they_were() {
    let (sockets, users) = (Sockets::new("refused"), TextFile::new("ann:wonderland\n"));
    let config = TextFile::new(&proxy(&sockets, &users, Proxy::Private));
    let mut program = run(&config);
    let before = sockets.outside(&program);
    let (_taken, busy) = listen();
    // Port because no client comes that would be relayed there.
    let busy = format!("[[service]]\nname = \"busy\"\nkind = \"forward\"\nlisten = \"{busy}\"\nto = \"127.0.0.1:9\"\n");
    config.write(&proxy(&sockets, &users, Proxy::WithFiles(&busy)));
    for _ in 0..2 {
        let upgraded = sockets.admin.command(&["upgrade"]);
        let stderr = String::from_utf8(upgraded.stderr).unwrap();
        let refused = "spliceway: the upgrade failed, and this process serves on: cannot listen on ";
        assert!(stderr.starts_with(refused), "{stderr}");
        assert!(stderr.contains("Address already in use"), "{stderr}");
        sockets.await_as_before(&program, &before);
        assert_eq!(mode(&sockets), 0o600);
    }
    config.write(&proxy(&sockets, &users, Proxy::WithFiles("")));
    program.signal(Signal::USR2);
    let process = Process::in_line(&program.line("handed over: "));
    await_open(&sockets);
    for name in ["new", "records", "quotas"] {
        assert!(sockets.folder.0.join(name).exists(), "{name}");
    }
    assert!(program.exit().success());
    connect_to_path(&sockets.folder.0.join("clients"));
    process.signal(Signal::TERM);
    program.line("drained: every session has ended");
    while process.lives() {
        let_pass(Duration::from_millis(2));
    }
    for name in ["clients", "new"] {
        assert!(!sockets.folder.0.join(name).exists(), "{name}");
    }
    assert!(UnixStream::connect(sockets.admin.path()).is_err());
}

/// The new process is a real one, whose calls fail.
#[test]
fn a_real_new_process_that_fails_at_any_step_changes_nothing() {
    if !has_tool("strace", "strace") {
        return;
    }
    let mut completed = 0;
    for fault in ["error=EIO", "signal=KILL"] {
        for number in 1.. {
            assert!(number < 30, "no upgrade is complete");
            if is_complete_with(fault, number) {
                assert!(number > 8, "{number} messages are too few for a hand-over");
                completed += 1;
                break;
            }
        }
    }
    assert_eq!(completed, 2);
}

/// Runs an upgrade in which this call of the new process for a message fails. Returns whether the
/// new process has taken over before. If not, nothing may have changed.
fn is_complete_with(fault: &str, number: usize) -> bool {
    let name = format!("step-{number}-{}", &fault[..3]);
    let (sockets, users) = (Sockets::new(&name), TextFile::new("ann:wonderland\n"));
    let config = TextFile::new(&proxy(&sockets, &users, Proxy::Private));
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=recvmsg", "-e"]);
    strace.arg(format!("inject=recvmsg:{fault}:when={number}"));
    strace.arg(env!("CARGO_BIN_EXE_spliceway"));
    strace.args(["run", "-c", config.path()]);
    let mut program = Program::spawn(strace, false);
    let before = sockets.outside(&program);
    // A process that is killed cannot remove what it has created.
    let next = if fault.starts_with("error") {
        Proxy::WithFiles("")
    } else {
        Proxy::Open
    };
    config.write(&proxy(&sockets, &users, next));
    program.signal(Signal::USR2);
    let line = program.line(" serves");
    if !line.contains(FAILED) {
        let _process = Process::in_line(&line);
        await_open(&sockets);
        return true;
    }
    sockets.await_as_before(&program, &before);
    assert_eq!(mode(&sockets), 0o600);
    ask_for_nothing(&sockets);
    false
}

/// Asserts that the proxy serves a client without a password.
fn ask_for_nothing(sockets: &Sockets) {
    let mut client = connect_to_path(&sockets.folder.0.join("clients"));
    client.write_all(&GREETING).unwrap();
    let mut answer = [0; 2];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, AGREED);
}
