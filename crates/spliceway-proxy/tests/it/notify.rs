use std::io::Write;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram};
use std::process::Command;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::handover::Process;
use crate::harness::{PATIENCE, Program, TextFile, accept, is_closed, listen, read_exactly};

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    /// The value of `NOTIFY_SOCKET`.
    name: String,
}

impl Manager {
    fn at_path() -> Self {
        let file = TextFile::new("");
        let name = file.path().to_owned() + ".notify";
        Self::new(UnixDatagram::bind(&name).unwrap(), name)
    }

    fn abstract_one() -> Self {
        let name = format!("spliceway-manager-{}", std::process::id());
        let address = net::SocketAddr::from_abstract_name(&name).unwrap();
        Self::new(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
    }

    fn new(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, name }
    }

    /// Starts a program that this manager manages.
    fn start(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments).env("NOTIFY_SOCKET", &self.name);
        command.envs(variables.iter().copied());
        Program::spawn(command, true)
    }

    /// Starts a forwarder that must ping every 20 ms.
    fn start_forward(&self, target: SocketAddr) -> Program {
        let (any, target) = ("127.0.0.1:0", target.to_string());
        let arguments = ["forward", "-l", any, "-r", &target, "--metrics", any];
        self.start(&arguments, &[("WATCHDOG_USEC", "20000")])
    }

    /// Returns the next message, without those that come every few seconds while it serves.
    fn message(&self) -> String {
        loop {
            let mut message = [0; 4096];
            let count = self.socket.recv(&mut message).unwrap();
            let message = String::from_utf8(message[..count].to_vec()).unwrap();
            if !message.starts_with("STATUS=serving") {
                return message;
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.name);
    }
}

fn monotonic_micros() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[test]
fn a_manager_is_told_of_the_start_each_reload_and_the_stop() {
    let (listener, target) = listen();
    let config = format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n"
    );
    for manager in [Manager::at_path(), Manager::abstract_one()] {
        let file = TextFile::new(&config);
        let mut program = manager.start(&["run", "-c", file.path()], &[]);
        assert_eq!(manager.message(), "READY=1\nSTATUS=serving: 0 sessions");
        // At READY, the listeners are bound.
        let (mut client, mut server) = (program.connect(), accept(&listener));
        client.write_all(b"x").unwrap();
        assert_eq!(read_exactly(&mut server, 1), b"x");
        for (text, status) in [
            (&*config, "serving: 1 session"),
            ("nonsense", "the reload is refused: "),
        ] {
            file.write(text);
            let before = monotonic_micros();
            program.signal(Signal::HUP);
            let reloading = manager.message();
            let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            let time: i64 = time.parse().unwrap();
            assert!((before..=monotonic_micros()).contains(&time), "{time}");
            let ready = manager.message();
            assert!(ready.starts_with(&format!("READY=1\nSTATUS={status}")), "{ready}");
        }
        program.terminate();
        let stopping = manager.message();
        assert_eq!(stopping, "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=draining");
        let progress = manager.message();
        assert!(
            progress.contains("\nSTATUS=draining: 1 session, longest "),
            "{progress}"
        );
        drop((client, server));
        assert_eq!(program.exit().code(), Some(0));
        manager.socket.set_nonblocking(true).unwrap();
        assert!(manager.socket.recv(&mut [0]).is_err(), "nothing else");
    }
}

#[test]
fn the_watchdog_of_this_process_is_pinged() {
    let (_listener, target) = listen();
    let manager = Manager::at_path();
    let _program = manager.start_forward(target);
    assert!(manager.message().starts_with("READY=1\n"));
    for _ in 0..5 {
        assert_eq!(manager.message(), "WATCHDOG=1");
    }
}

/// A new process that is refused has said nothing. One that has taken over says that it is ready.
#[test]
fn a_new_process_is_silent_until_it_serves() {
    let (listener, target) = listen();
    let (busy, busy_address) = listen();
    let service = |name: &str, listen: &str| {
        format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"{listen}\"\nto = \"{target}\"\n")
    };
    let metrics = "[admin]\nmetrics = \"127.0.0.1:0\"\n";
    let (one, other) = (service("a", "127.0.0.1:0"), service("b", &busy_address.to_string()));
    let file = TextFile::new(&format!("{metrics}{one}"));
    let manager = Manager::at_path();
    let mut program = manager.start(&["run", "-c", file.path()], &[]);
    assert_eq!(manager.message(), "READY=1\nSTATUS=serving: 0 sessions");
    file.write(&format!("{metrics}{one}{other}"));
    program.signal(Signal::USR2);
    program.line("Address already in use");
    program.line("the upgrade failed");
    drop((busy, listener));
    program.signal(Signal::USR2);
    let process = Process::in_line(&program.line("handed over: "));
    // Both processes send one message at the same time.
    let mut messages = [manager.message(), manager.message()];
    messages.sort();
    assert!(messages[0].starts_with("MAINPID="), "{messages:?}");
    assert_eq!(messages[1], "READY=1\nSTATUS=serving: 0 sessions");
    assert!(program.exit().success());
    process.signal(Signal::TERM);
    assert!(manager.message().starts_with("STOPPING=1\n"));
}

/// The manager is no part of the program: without it, sessions are served as before.
#[test]
fn a_manager_that_is_not_there_causes_a_warning_and_no_more() {
    let (listener, target) = listen();
    let manager = Manager {
        socket: UnixDatagram::unbound().unwrap(),
        name: "/nowhere/notify".to_owned(),
    };
    let mut program = manager.start_forward(target);
    assert_eq!(
        program.lines_with("cannot reach the service manager at NOTIFY_SOCKET"),
        1
    );
    let (mut client, server) = (program.connect(), accept(&listener));
    drop(server);
    assert!(is_closed(&mut client));
}
