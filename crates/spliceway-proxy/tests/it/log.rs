//! A log that fails or stalls affects nothing else.

use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{PATIENCE, Program, assert_same, connect, echo, let_pass, pattern, read_exactly, refusing};
use crate::listen::{SocketPath, connect_to_path};

/// Returns a command that runs the program with this shell redirection.
fn redirected(arguments: &[&str], redirection: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")]);
    command.arg(env!("CARGO_BIN_EXE_spliceway")).args(arguments);
    command
}

/// A program that is killed when its test ends, even if the test fails.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a connection as soon as the program listens on this path.
fn reach(path: &SocketPath) -> UnixStream {
    let until = Instant::now() + PATIENCE;
    while UnixStream::connect(&path.0).is_err() {
        assert!(Instant::now() < until, "it does not listen");
        let_pass(Duration::from_millis(2));
    }
    connect_to_path(&path.0)
}

fn get(path: &SocketPath, what: &str) -> String {
    let (mut stream, mut answer) = (reach(path), String::new());
    write!(
        stream,
        "GET {what} HTTP/1.1\r\nHost: spliceway\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn exit_code(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() >= until {
            child.kill().unwrap();
            panic!("it does not end");
        }
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    for (redirection, is_counted) in [
        ("2>/dev/full", true),
        // The reader of the log is gone.
        ("", true),
        // The standard library opens /dev/null in place of stderr.
        ("2>&-", false),
    ] {
        let (clients, metrics) = (SocketPath::new(), SocketPath::new());
        let (at, metrics_at) = (clients.address(), metrics.address());
        let arguments = [
            "socks5",
            "-l",
            &at,
            "--open",
            "--max-conns",
            "2",
            "--metrics",
            &metrics_at,
        ];
        let child = redirected(&arguments, redirection).stderr(Stdio::piped()).spawn();
        let mut child = Started(child.unwrap());
        drop(child.0.stderr.take());
        for round in 0..6 {
            // The third session must wait. The program logs this wait, and the end of each session.
            let mut sessions = [(); 3].map(|()| reach(&clients));
            for session in &mut sessions[..2] {
                session.write_all(b"\x05\x01\x00").unwrap();
                let mut answer = [0; 2];
                session.read_exact(&mut answer).unwrap();
                assert_eq!(answer, *b"\x05\x00", "{redirection}, round {round}");
            }
        }
        let until = Instant::now() + PATIENCE;
        // Clients are accepted a moment before the program says that it is ready.
        while !get(&metrics, "/readyz").starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < until, "{redirection}: not ready");
            let_pass(Duration::from_millis(2));
        }
        let none_dropped =
            || get(&metrics, "/metrics").contains("\nspliceway_log_lines_dropped_total{log=\"main\"} 0\n");
        // The log thread counts a line after its write has failed.
        while is_counted && none_dropped() {
            assert!(Instant::now() < until, "{redirection}: nothing is counted");
            let_pass(Duration::from_millis(2));
        }
        assert_eq!(none_dropped(), !is_counted, "{redirection}");
        kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
        assert_eq!(exit_code(&mut child.0), Some(0), "{redirection}");
    }
}

/// Starts a SOCKS5 session that asks for a target. Also returns the reply code.
fn ask(program: &Program, target: std::net::SocketAddr) -> (std::net::TcpStream, u8) {
    let mut session = connect(program.address);
    let std::net::IpAddr::V4(ip) = target.ip() else {
        panic!("IPv4")
    };
    let request = [
        &b"\x05\x01\x00\x05\x01\x00\x01"[..],
        &ip.octets(),
        &target.port().to_be_bytes(),
    ]
    .concat();
    session.write_all(&request).unwrap();
    let answer = read_exactly(&mut session, 12);
    (session, answer[3])
}

const SESSIONS: usize = 60;

/// Starts a proxy whose log is not read. The proxy has more lines than fit into the pipe.
fn with_a_stalled_reader() -> (Program, std::io::BufReader<std::process::ChildStderr>) {
    const PIPE_BYTES: usize = 4096;
    let (program, log) = Program::start_unread(&["socks5", "-l", "127.0.0.1:0"]);
    rustix::pipe::fcntl_setpipe_size(log.get_ref().as_fd(), PIPE_BYTES).unwrap();
    let nobody = refusing();
    for _ in 0..SESSIONS {
        // The record of this session has more than 100 bytes.
        assert_eq!(ask(&program, nobody).1, 5);
    }
    program.await_sum("spliceway_connections_total", &[], SESSIONS as u64);
    let until = Instant::now() + PATIENCE;
    // The lines do not fit into the pipe. A write of several lines waits until all of them fit.
    while rustix::io::ioctl_fionread(log.get_ref().as_fd()).unwrap() == 0 {
        assert!(Instant::now() < until, "the pipe is empty");
        let_pass(Duration::from_millis(2));
    }
    (program, log)
}

#[test]
fn an_unread_log_delays_neither_a_client_nor_the_exit() {
    const BYTES: usize = 8 << 20;
    let (mut program, _log) = with_a_stalled_reader();
    let (session, reply) = ask(&program, echo("127.0.0.1:0"));
    assert_eq!(reply, 0);
    let sent = pattern(1, BYTES);
    thread::scope(|scope| {
        scope.spawn(|| (&session).write_all(&sent).unwrap());
        assert_same(&read_exactly(&mut session.try_clone().unwrap(), BYTES), &sent);
    });
    assert!(program.get("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(program.sum("spliceway_log_lines_dropped_total", &[]), 0);
    drop(session);
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
}

#[test]
fn a_log_reader_that_reads_again_gets_every_line_that_fits() {
    let (mut program, log) = with_a_stalled_reader();
    program.terminate();
    let lines: Vec<_> = log.lines().map(Result::unwrap).collect();
    let records = lines
        .iter()
        .filter(|line| line.contains("end=connect_failed:ECONNREFUSED"));
    assert_eq!(records.count(), SESSIONS, "{lines:#?}");
    assert!(lines.last().unwrap().contains("drained"), "{lines:#?}");
    assert_eq!(program.exit().code(), Some(0));
}

#[test]
fn a_hash_that_cannot_be_printed_is_a_failure_and_not_a_panic() {
    for (arguments, redirection, code) in [
        ("hash-password", ">/dev/full", 1),
        ("hash-password", ">/dev/full 2>/dev/full", 1),
        ("hash-password", ">/dev/full 2>&-", 1),
        ("hash-password", ">&- 2>&-", 0),
        ("--help", ">/dev/full 2>/dev/full", 0),
        ("--no-such-option", ">/dev/full 2>/dev/full", 2),
    ] {
        let mut child = redirected(&[arguments], redirection)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The program may end before it reads its input.
        let _ = child.stdin.take().unwrap().write_all(b"secret\n");
        assert_eq!(exit_code(&mut child), Some(code), "{arguments} {redirection}");
    }
}
