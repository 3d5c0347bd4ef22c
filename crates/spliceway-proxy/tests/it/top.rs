//! `spliceway top` in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize};
use spliceway_net::has_tool;

use crate::admin::Socket;
use crate::harness::{PATIENCE, Program, accept, let_pass, listen};

/// A running `top`, both sides of its terminal, and what it has shown.
struct Top {
    child: Child,
    terminal: File,
    side: OwnedFd,
}

impl Top {
    /// Starts `top` in a terminal of 80 × 24, and waits until it has shown an answer. Until the
    /// next answer, it waits for keys. The terminal does not control it, so the kernel sends no
    /// SIGHUP.
    fn start(socket: &Socket) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let side = rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&side, size).unwrap();
        let standard = || Stdio::from(side.as_fd().try_clone_to_owned().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["top", "--admin", &socket.address()]).env("TERM", "xterm");
        let child = command.stdin(standard()).stdout(standard()).stderr(Stdio::null());
        let mut top = Self {
            child: child.spawn().unwrap(),
            terminal: terminal.into(),
            side,
        };
        top.shows("serving, ready");
        top
    }

    /// Reads until the screen has this text.
    fn shows(&mut self, text: &str) {
        let mut screen = Vec::new();
        while !String::from_utf8_lossy(&screen).contains(text) {
            let mut more = [0; 4096];
            let count = self.terminal.read(&mut more).unwrap();
            screen.extend_from_slice(&more[..count]);
        }
    }

    fn ended(child: &mut Child) {
        let until = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= until {
                child.kill().unwrap();
                panic!("top still runs");
            }
            let_pass(Duration::from_millis(2));
        }
    }
}

#[test]
fn top_ends_when_its_terminal_disappears() {
    let socket = Socket::new();
    let _program = Program::socks5(&["--admin", &socket.address()]);
    // The second terminal disappears while crossterm waits for the rest of a key.
    for typed in [&b""[..], b"\x1b["] {
        let mut top = Top::start(&socket);
        top.terminal.write_all(typed).unwrap();
        let Top {
            mut child,
            terminal,
            side,
        } = top;
        drop((terminal, side));
        Top::ended(&mut child);
    }
}

#[test]
fn top_ends_at_a_signal_although_nobody_reads_its_terminal() {
    let socket = Socket::new();
    let _program = Program::socks5(&["--admin", &socket.address()]);
    let mut top = Top::start(&socket);
    tcflow(&top.side, Action::OOff).unwrap();
    assert!(!tcgetattr(&top.side).unwrap().local_modes.contains(LocalModes::ICANON));
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
    Top::ended(&mut top.child);
    let modes = tcgetattr(&top.side).unwrap().local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "restored");
}

#[test]
fn top_shows_a_session_in_a_terminal_and_restores_the_terminal() {
    if !has_tool("script", "bsdutils") {
        return;
    }
    let (socket, (listener, target)) = (Socket::new(), listen());
    let program = Program::forward(target, &["--admin", &socket.address()]);
    let (client, _server) = (program.connect(), accept(&listener));
    // `script` runs its command in a terminal of its own, and passes on what the terminal shows.
    let command = format!(
        "stty rows 24 cols 80; {} top --admin {}; stty -a",
        env!("CARGO_BIN_EXE_spliceway"),
        socket.address()
    );
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut shown, mut screen) = (terminal.stdout.take().unwrap(), Vec::new());
    let session = client.local_addr().unwrap().to_string();
    while !String::from_utf8_lossy(&screen).contains(&session) {
        let mut more = [0; 4096];
        let count = shown.read(&mut more).unwrap();
        assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&screen));
        screen.extend_from_slice(&more[..count]);
    }
    terminal.stdin.take().unwrap().write_all(b"q").unwrap();
    shown.read_to_end(&mut screen).unwrap();
    assert!(terminal.wait().unwrap().success());
    let screen = String::from_utf8_lossy(&screen);
    let (_, after) = screen.split_once("\x1b[?1049l").expect("the ordinary screen is back");
    assert!(after.contains(" icanon ") && after.contains(" echo "), "{after}");
}

#[test]
fn top_without_a_terminal_or_a_program_ends_with_a_sentence() {
    let socket = Socket::new();
    let top = socket.command(&["top"]);
    assert_eq!(top.status.code(), Some(1));
    let stderr = String::from_utf8(top.stderr).unwrap();
    assert_eq!(
        stderr,
        "spliceway: top needs a terminal: use `spliceway status --json`\n"
    );
}
