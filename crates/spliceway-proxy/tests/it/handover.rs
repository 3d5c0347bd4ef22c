//! A new process takes over the listeners and the sessions of a running one.

mod accepting;
mod backends;
mod failing;
mod fake;
mod faults;
mod load;
mod log_lines;
mod outside;
mod state;
mod stopped;
mod unfinished;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::admin::Socket;
use crate::harness::{
    PATIENCE, Program, TextFile, accept, assert_same, connect, echo, let_pass, listen, pattern, read_exactly,
    send_and_finish,
};
use crate::listen::{SocketPath, connect_to_path};

/// The length of the repeated pattern of a stream: a prime number, so that shifted bytes differ.
const PERIOD: usize = 65_537;

/// The process that serves now. It is killed when this value is dropped.
pub(crate) struct Process(Pid);

impl Process {
    /// Returns the new process that this line names.
    pub(crate) fn in_line(line: &str) -> Self {
        let (_, rest) = line
            .split_once("handed over: process ")
            .unwrap_or_else(|| panic!("{line}"));
        let pid = rest.split(' ').next().unwrap().parse().unwrap();
        Self(Pid::from_raw(pid).unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }

    pub(crate) fn lives(&self) -> bool {
        test_kill_process(self.0).is_ok()
    }

    pub(crate) fn id(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Waits until the process has ended.
    pub(crate) fn ends(&self) {
        let until = Instant::now() + PATIENCE;
        while self.lives() {
            assert!(Instant::now() < until, "process {} does not end", self.id());
            let_pass(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Asks the process for an upgrade, and returns the next one.
pub(crate) fn upgrade(program: &mut Program, process: Option<&Process>) -> Process {
    match process {
        None => program.signal(Signal::USR2),
        Some(process) => process.signal(Signal::USR2),
    }
    Process::in_line(&program.line("handed over: "))
}

/// Sends a stream through an echo until it is told to stop, and checks every byte that comes back.
struct Bulk {
    stop: Arc<AtomicBool>,
    sending: JoinHandle<usize>,
    receiving: JoinHandle<usize>,
}

impl Bulk {
    fn start(client: TcpStream, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let bytes = Arc::new(pattern(seed, PERIOD));
        let (mut sender, mut receiver) = (client.try_clone().unwrap(), client);
        let sending = thread::spawn({
            let (stop, bytes) = (Arc::clone(&stop), Arc::clone(&bytes));
            move || {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    sender.write_all(&bytes).unwrap();
                    sent += bytes.len();
                    // The other sessions of the test need the processors, too.
                    let_pass(Duration::from_millis(2));
                }
                sender.shutdown(Shutdown::Write).unwrap();
                sent
            }
        });
        let receiving = thread::spawn(move || {
            let (mut received, mut buffer) = (0, vec![0; PERIOD]);
            loop {
                let expected = &bytes[received % PERIOD..];
                let read = receiver.read(&mut buffer[..expected.len()]).unwrap();
                if read == 0 {
                    return received;
                }
                assert!(buffer[..read] == expected[..read], "wrong bytes after {received}");
                received += read;
            }
        });
        Self {
            stop,
            sending,
            receiving,
        }
    }

    /// Ends the stream, and returns its length.
    fn finish(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, received) = (self.sending.join().unwrap(), self.receiving.join().unwrap());
        assert_eq!(sent, received);
        sent
    }
}

fn ask(client: &mut (impl Read + Write), seed: u64) {
    let bytes = pattern(seed, 900);
    client.write_all(&bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    client.read_exact(&mut answer).unwrap();
    assert_same(&answer, &bytes);
}

/// Fills the way to a peer that does not read. Returns the number of bytes.
fn fill(sender: &mut TcpStream, bytes: &[u8]) -> usize {
    sender.set_nonblocking(true).unwrap();
    let (mut sent, mut idle) = (0, 0);
    while idle < 20 {
        match sender.write(&bytes[sent % PERIOD..]) {
            Ok(written) => (sent, idle) = (sent + written, 0),
            Err(_) => {
                idle += 1;
                let_pass(Duration::from_millis(2));
            }
        }
    }
    sender.set_nonblocking(false).unwrap();
    sent
}

/// Returns the configuration of a service for each kind of session.
fn every_kind(echo: SocketAddr, target: SocketAddr, path: &SocketPath) -> TextFile {
    let service = |name: &str, listen: &str, to: SocketAddr, rest: &str| {
        format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"{listen}\"\nto = \"{to}\"\n{rest}\n")
    };
    TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n{}{}{}{}",
        service("echo", "127.0.0.1:0", echo, ""),
        service("held", "127.0.0.1:0", target, ""),
        service("slow", "127.0.0.1:0", echo, "rate_in = [\"20MB:connection\"]"),
        service("file", &path.address(), echo, ""),
    ))
}

/// Asserts that the answer still arrives at a client that has finished, and then the end.
fn finish_half_closed(client: &TcpStream, mut target: TcpStream) {
    let answer = pattern(22, 700_000);
    target.write_all(&answer).unwrap();
    drop(target);
    assert_same(&crate::harness::read_all(client), &answer);
}

fn assert_both_directions(client: &mut TcpStream, target: &mut TcpStream) {
    client.write_all(b"late").unwrap();
    assert_eq!(read_exactly(target, 4), b"late");
    target.write_all(b"later").unwrap();
    assert_eq!(read_exactly(client, 5), b"later");
}

/// Asserts that the bytes which the relay held arrive, and the end of the stream after them.
fn finish_stuck(client: &TcpStream, target: TcpStream, stream: &[u8], bytes: usize) {
    client.shutdown(Shutdown::Write).unwrap();
    let arrived = crate::harness::read_all(&target);
    assert_eq!(arrived.len(), bytes);
    let mut expected = stream.iter().cycle();
    assert!(arrived.iter().all(|byte| Some(byte) == expected.next()));
}

#[test]
fn sessions_of_every_kind_survive_upgrades_and_lose_no_byte() {
    let (listener, target) = listen();
    let echo = echo("127.0.0.1:0");
    let path = SocketPath::new();
    let config = every_kind(echo, target, &path);
    let mut program = Program::run(&config);
    let held = crate::harness::address_in(&program.line("held listening on "));
    let slow = crate::harness::address_in(&program.line("slow listening on "));

    let bulk: Vec<_> = (0..3).map(|seed| Bulk::start(program.connect(), seed)).collect();
    let limited = Bulk::start(connect(slow), 9);
    let mut asking: Vec<_> = (0..4).map(|_| program.connect()).collect();
    let mut on_file: UnixStream = connect_to_path(&path.0);
    let (mut idle, mut idle_target) = (connect(held), accept(&listener));
    let (half, half_target) = (connect(held), accept(&listener));
    let question = pattern(20, 5000);
    send_and_finish(&half, &question);
    assert_eq!(crate::harness::read_all(&half_target), question);
    let (mut stuck, stuck_target) = (connect(held), accept(&listener));
    let stream = pattern(21, PERIOD);
    let stuck_bytes = fill(&mut stuck, &stream);

    let (mut processes, mut bytes_before) = (Vec::new(), 0);
    for round in 0..3 {
        for (seed, client) in (0..).zip(&mut asking) {
            ask(client, 100 + seed + round);
        }
        ask(&mut on_file, 200 + round);
        let next = upgrade(&mut program, processes.last());
        processes.push(next);
        let bytes = program.sum("spliceway_bytes_total", &[]);
        assert!(
            bytes >= bytes_before,
            "the counters go back: {bytes} after {bytes_before}"
        );
        bytes_before = bytes;
        asking.push(program.connect());
    }
    let process = processes.pop().unwrap();
    assert!(program.exit().success());
    for (seed, client) in (0..).zip(&mut asking) {
        ask(client, 300 + seed);
    }
    ask(&mut on_file, 299);
    ask(&mut connect_to_path(&path.0), 298);
    finish_half_closed(&half, half_target);
    assert_both_directions(&mut idle, &mut idle_target);
    finish_stuck(&stuck, stuck_target, &stream, stuck_bytes);
    let total: usize = bulk.into_iter().map(Bulk::finish).sum();
    let slowly = limited.finish();
    drop((stuck, half, idle, idle_target, asking, on_file));

    // The record of a session has the counts of all processes.
    let line = program.line("service=\"slow\"");
    let counts = format!("bytes_up={slowly} bytes_down={slowly}");
    assert!(line.contains(&counts) && line.contains("end=client_eof"), "{line}");
    program.await_sum("spliceway_connections_total", &[], 16);
    let up = program.sum("spliceway_bytes_total", &["\"echo\"", "\"up\""]);
    assert!(up >= total as u64, "{up} of {total}");
    let active = "spliceway_connections_active";
    assert_eq!(program.sum(active, &[]), 0);
    assert_eq!(program.sum("spliceway_lost_bytes_total", &[]), 0);
    // Each upgrade counts once, in whichever process.
    let upgrades = ["ok", "failed"].map(|result| program.sum("spliceway_upgrades_total", &[result]));
    assert_eq!(upgrades, [3, 0]);
    process.signal(Signal::TERM);
    program.line("drained: every session has ended");
    while process.lives() {
        let_pass(Duration::from_millis(2));
    }
    assert!(!path.0.exists(), "the last process removes the file of its socket");
}

/// A client in a handshake, and one whose request is being answered, finish in the old process. A
/// tunnel moves when its handshake is over.
#[test]
fn a_handshake_finishes_in_the_old_process_and_its_tunnel_moves() {
    let socket = Socket::new();
    let echo = echo("127.0.0.1:0");
    let mut program = Program::socks5(&["--admin", &socket.address()]);
    let mut open = program.connect();
    open.write_all(b"\x05\x01\0").unwrap();
    assert_eq!(read_exactly(&mut open, 2), b"\x05\0");
    let upgraded = socket.command(&["upgrade"]);
    let said = String::from_utf8(upgraded.stdout).unwrap();
    assert!(upgraded.status.success(), "{said}");
    assert!(said.contains("hands over 1 session\n"), "{said}");
    assert!(said.contains("moved 0 sessions; process "), "{said}");
    assert!(
        said.contains(" finishes 1 session: if it does not move later, it is cut after 30s\n"),
        "{said}"
    );
    let process = Process::in_line(&said);
    let (_, status) = socket.ask("GET", "/v1/status");
    assert_eq!(status["pid"], Value::from(process.0.as_raw_nonzero().get()));

    let SocketAddr::V4(target) = echo else { unreachable!() };
    let mut request = vec![5, 1, 0, 1];
    request.extend(target.ip().octets());
    request.extend(target.port().to_be_bytes());
    open.write_all(&request).unwrap();
    assert_eq!(read_exactly(&mut open, 10)[..2], [5, 0]);
    ask(&mut open, 1);
    // The old process ends, because its last session has moved.
    assert!(program.exit().success());
    ask(&mut open, 2);
    let (_, page) = socket.ask("GET", "/v1/sessions");
    let session = &page["sessions"][0];
    assert_eq!(session["target"], Value::from(echo.to_string()), "{page}");
    assert_eq!(session["id"], Value::from(1), "{page}");
    assert_eq!(session["bytes_up"], Value::from(1800), "{page}");
}

/// The file that the program was started with may be a link to another version.
#[test]
fn the_path_of_the_program_is_started_again_with_its_arguments() {
    let echo = echo("127.0.0.1:0").to_string();
    let folder = std::env::temp_dir().join(format!("spliceway-handover-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (link, copy) = (folder.join("spliceway"), folder.join("next version"));
    fs::copy(env!("CARGO_BIN_EXE_spliceway"), &copy).unwrap();
    symlink(env!("CARGO_BIN_EXE_spliceway"), &link).unwrap();
    let mut command = Command::new("sh");
    // The service manager expects pings of this process.
    command
        .args(["-c", "export WATCHDOG_PID=$$; exec \"$0\" \"$@\""])
        .arg(&link);
    command.args(["forward", "-l", "127.0.0.1:0", "-r", &echo, "--workers", "1"]);
    command.env("WATCHDOG_USEC", "20000");
    let manager = folder.join("notify");
    let notified = UnixDatagram::bind(&manager).unwrap();
    command.env("NOTIFY_SOCKET", &manager);
    // The queue of the socket is short, and a full one would delay what follows.
    let (sender, messages) = channel();
    thread::spawn(move || {
        let mut message = [0; 1000];
        while let Ok(length) = notified.recv(&mut message) {
            let text = String::from_utf8(message[..length].to_vec()).unwrap();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    let await_message = |expected: &str| {
        let until = Instant::now() + PATIENCE;
        while messages
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .unwrap()
            != expected
        {}
    };
    let mut program = Program::spawn(command, false);
    let mut client = program.connect();
    ask(&mut client, 1);
    fs::remove_file(&link).unwrap();
    symlink(&copy, &link).unwrap();
    let process = upgrade(&mut program, None);
    let runs = fs::read_link(format!("/proc/{}/exe", process.0.as_raw_nonzero())).unwrap();
    assert_eq!(runs, copy);
    let expected = format!("MAINPID={}", process.0.as_raw_nonzero());
    await_message(&expected);
    ask(&mut client, 2);
    ask(&mut program.connect(), 3);
    // The old process is silent, and the new one pings.
    assert_eq!(program.exit().code(), Some(0));
    let stops = |message: String| message.starts_with("STOPPING");
    assert!(!messages.try_iter().any(stops), "the service does not stop");
    await_message("WATCHDOG=1");
    fs::remove_dir_all(&folder).unwrap();
}
