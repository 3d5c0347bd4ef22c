//! The program as a child process, targets for it, and its metrics.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use socket2::{Domain, Socket, Type};

mod files;

pub(crate) use files::{Folder, TextFile};

/// The time after which a test that waits for an event fails. No step takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running `spliceway`, which is killed when this value is dropped.
pub(crate) struct Program {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    /// The address of the first listener.
    pub(crate) address: SocketAddr,
    metrics: Option<SocketAddr>,
}

impl Program {
    /// Starts the program and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments);
        Self::spawn(command, arguments.contains(&"--metrics"))
    }

    /// Starts the program with these environment variables.
    pub(crate) fn start_with(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments).envs(variables.iter().copied());
        Self::spawn(command, arguments.contains(&"--metrics"))
    }

    /// Starts the program with at most `descriptors` descriptors.
    pub(crate) fn start_with_descriptors(descriptors: usize, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_spliceway"),
        ]);
        command.args(arguments);
        Self::spawn(command, arguments.contains(&"--metrics"))
    }

    /// Starts a forwarder through `env` with this option for SIGHUP. The option overrides the
    /// disposition that the test inherited.
    pub(crate) fn forward_with_hangup(option: &str, target: SocketAddr) -> Self {
        let mut command = Command::new("env");
        command.args([option, env!("CARGO_BIN_EXE_spliceway"), "-l", "127.0.0.1:0", "-r"]);
        command.args([&target.to_string(), "--metrics", "127.0.0.1:0"]);
        Self::spawn(command, true)
    }

    /// Starts a forwarder on its own terminal. Dropping the returned descriptor closes the
    /// terminal.
    pub(crate) fn on_terminal(target: SocketAddr) -> (Self, OwnedFd) {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let stdin = std::fs::File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "env", "--default-signal=HUP", env!("CARGO_BIN_EXE_spliceway")]);
        command.args([
            "-l",
            "127.0.0.1:0",
            "-r",
            &target.to_string(),
            "--metrics",
            "127.0.0.1:0",
        ]);
        (Self::spawn_with_stdin(command, stdin.unwrap().into(), true), terminal)
    }

    /// Starts the program with a configuration file that has a metrics listener.
    pub(crate) fn run(file: &TextFile) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["run", "-c", file.path()]);
        Self::spawn(command, true)
    }

    /// Asks for a reload, and returns the line about its result.
    pub(crate) fn reload(&mut self) -> String {
        self.signal(Signal::HUP);
        self.line("reload")
    }

    /// Returns whether the program ignores a signal.
    pub(crate) fn ignores(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
    }

    pub(crate) fn forward(target: SocketAddr, arguments: &[&str]) -> Self {
        let target = target.to_string();
        Self::start(
            &[
                &[
                    "forward",
                    "-l",
                    "127.0.0.1:0",
                    "-r",
                    &target,
                    "--metrics",
                    "127.0.0.1:0",
                ],
                arguments,
            ]
            .concat(),
        )
    }

    pub(crate) fn socks5(arguments: &[&str]) -> Self {
        Self::proxy("socks5", arguments)
    }

    /// Starts a proxy of this kind for clients on this machine.
    pub(crate) fn proxy(kind: &str, arguments: &[&str]) -> Self {
        Self::start(&[&[kind, "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], arguments].concat())
    }

    /// Starts a proxy of this kind on every address of this machine, as if for clients on other
    /// machines.
    pub(crate) fn public(kind: &str, arguments: &[&str]) -> Self {
        let mut program = Self::start(&[&[kind, "-l", "0.0.0.0:0", "--metrics", "127.0.0.1:0"], arguments].concat());
        program.address.set_ip([127, 0, 0, 1].into());
        program
    }

    /// Starts the program with an inherited socket of this name, as a service manager does.
    pub(crate) fn start_with_socket(socket: OwnedFd, name: &str, arguments: &[&str]) -> Self {
        Self::start_with_socket_by(&[], socket, name, arguments)
    }

    /// Does the same by a launcher, such as setpriv(1), with its arguments.
    pub(crate) fn start_with_socket_by(launcher: &[&str], socket: OwnedFd, name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let script = format!(
            "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name}; exec \"$0\" \"$@\""
        );
        command.args(["-c", &script]).args(launcher);
        command.arg(env!("CARGO_BIN_EXE_spliceway")).args(arguments);
        Self::spawn_with_stdin(command, socket.into(), arguments.contains(&"--metrics"))
    }

    /// Starts the program with metrics, and waits until it listens. Only the caller reads its log.
    pub(crate) fn start_unread(arguments: &[&str]) -> (Self, BufReader<ChildStderr>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments).args(["--metrics", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut listening = || {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            assert!(line.contains("listening on "), "{line}");
            address_in(line.trim_end())
        };
        let (metrics, address) = (Some(listening()), listening());
        let program = Self {
            child,
            lines: channel().1,
            seen: Vec::new(),
            address,
            metrics,
        };
        (program, log)
    }

    pub(crate) fn spawn(command: Command, has_metrics: bool) -> Self {
        Self::spawn_with_stdin(command, Stdio::null(), has_metrics)
    }

    fn spawn_with_stdin(mut command: Command, stdin: Stdio, has_metrics: bool) -> Self {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut program = Self {
            child,
            lines,
            seen: Vec::new(),
            address: nowhere,
            metrics: None,
        };
        if has_metrics {
            program.metrics = Some(address_in(&program.line("metrics listening on ")));
        }
        let mut line = program.line("listening on ");
        while line.contains(" admin") || line.contains(" acme listening") {
            line = program.line("listening on ");
        }
        program.address = address_in(&line);
        program
    }

    /// Returns the next line on stderr that contains `text`.
    pub(crate) fn line(&mut self, text: &str) -> String {
        self.line_with_any(&[text])
    }

    /// Returns the next line on stderr that contains one of these texts.
    pub(crate) fn line_with_any(&mut self, texts: &[&str]) -> String {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.seen.push(line.clone());
            if texts.iter().any(|text| line.contains(text)) {
                return line;
            }
        }
        panic!("no line with {texts:?} in {:#?}", self.seen);
    }

    /// Returns the number of lines so far, read or not, that contain `text`.
    pub(crate) fn lines_with(&mut self, text: &str) -> usize {
        self.seen.extend(self.lines.try_iter());
        self.seen.iter().filter(|line| line.contains(text)).count()
    }

    /// Returns the lines so far, read or not.
    pub(crate) fn lines_so_far(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.try_iter());
        self.seen.clone()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        self.connect_to(self.address)
    }

    fn connect_to(&self, address: SocketAddr) -> TcpStream {
        let refused = |error| -> ! {
            let state = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
            let log: Vec<String> = self.seen.iter().cloned().chain(self.lines.try_iter()).collect();
            panic!(
                "{address}: {error}; log {log:#?}, state {state:?}, address {}, metrics {:?}",
                self.address, self.metrics
            )
        };
        with_patience(TcpStream::connect(address).unwrap_or_else(|error| refused(error)))
    }

    /// Returns the address of the metrics listener.
    pub(crate) fn metrics(&self) -> SocketAddr {
        self.metrics.expect("started with --metrics")
    }

    /// Returns the head and the body of the answer to `GET path` on the metrics listener.
    pub(crate) fn get(&self, path: &str) -> String {
        self.get_as(path, "Connection: close")
    }

    /// Does the same with a further field.
    pub(crate) fn get_as(&self, path: &str, field: &str) -> String {
        let mut stream = self.connect_to(self.metrics());
        write!(stream, "GET {path} HTTP/1.1\r\nHost: spliceway\r\n{field}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Returns the sum of the samples of `series` that have all of `labels`.
    pub(crate) fn sum(&self, series: &str, labels: &[&str]) -> u64 {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            let (name, have) = name.split_once('{').unwrap_or((name, ""));
            (name == series && labels.iter().all(|label| have.contains(label))).then(|| value.parse::<u64>().unwrap())
        };
        self.get("/metrics").lines().filter_map(sample).sum()
    }

    /// Waits until [`Self::sum`] is at least `count`.
    pub(crate) fn await_sum(&self, series: &str, labels: &[&str], count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.sum(series, labels) < count {
            assert!(
                Instant::now() < until,
                "{series} {labels:?} stays under {count}:\n{}",
                self.get("/metrics")
            );
            let_pass(Duration::from_millis(2));
        }
    }

    /// Waits until at least one session has ended with this `end`.
    pub(crate) fn await_end(&self, end: &str) {
        self.await_sum("spliceway_connections_total", &[&format!("end=\"{end}\"")], 1);
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process that the started one has started.
    pub(crate) fn only_child(&self) -> Pid {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the program ends.
    pub(crate) fn exit(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it does not end: {:#?}", self.seen);
            let_pass(Duration::from_millis(2));
        }
    }

    /// Returns the processor time so far, in clock ticks of 10 ms.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Returns the resident memory of the program, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
        kib << 10
    }

    /// Changes the limit on the program's descriptors.
    pub(crate) fn limit_descriptors(&self, limit: usize) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let limit = Rlimit {
            current: Some(limit as u64),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    }

    /// Kills the program with SIGKILL, which it cannot handle.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.exit();
    }

    /// Returns the path of the program's root folder, with what is mounted for the program alone.
    pub(crate) fn root(&self) -> std::path::PathBuf {
        format!("/proc/{}/root", self.child.id()).into()
    }

    /// Returns the number of descriptors that the program has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether a line of the log has a time and this level, as text or as JSON.
pub(crate) fn has_level(line: &str, level: &str) -> bool {
    let json = format!("\"level\":\"{level}\"");
    let text = line
        .split_once('Z')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with(level));
    text || line.contains(&json) && line.starts_with("{\"time\":")
}

pub(crate) fn address_in(line: &str) -> SocketAddr {
    // A line of JSON ends with the end of its message.
    let line = line.trim_end_matches("\"}").trim_end_matches("/udp");
    line.rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("no address at the end of {line:?}"))
}

/// Returns the path of a file in `contrib`.
pub(crate) fn contrib(path: &str) -> std::path::PathBuf {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib")).join(path)
}

/// Returns the program's stderr. The program must refuse to start with these arguments.
pub(crate) fn refused_to_start(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let mut child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= until {
            child.kill().unwrap();
        }
        let_pass(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    stderr
}

/// Returns whether a connection to this listener waits to be accepted.
pub(crate) fn was_reached(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    listener.accept().is_ok()
}

/// Returns a connection on which no read or write takes longer than [`PATIENCE`].
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    with_patience(TcpStream::connect(address).unwrap())
}

pub(crate) fn with_patience(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    with_patience(listener.accept().unwrap().0)
}

/// Starts a target that returns the bytes that it receives, and closes its side after the client
/// does. The target serves any number of clients.
pub(crate) fn echo(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = std::io::copy(&mut &stream, &mut &stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

/// Returns an address of this machine on which no program listens. A program may still listen on
/// it, but the kernel gives its port to none that asks for any port, until the tests end.
pub(crate) fn refusing() -> SocketAddr {
    static HOLDERS: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
    let holder = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    holder.set_reuse_address(true).unwrap();
    holder.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = holder.local_addr().unwrap().as_socket().unwrap();
    HOLDERS.lock().unwrap().push(holder);
    address
}

/// Returns `length` bytes that differ for each `seed`.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

pub(crate) fn read_exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn send_and_finish(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
}

pub(crate) fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Returns whether the other side ended the connection with EOF or a reset, without sending a byte.
pub(crate) fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Asserts that at least half of `bytes` were spliced, on a relay that splices from the first byte.
///
/// The relay may have copied the other bytes. After a splice that finds no bytes, a receive call
/// finds the reason. This call copies the bytes that arrived between the two calls, up to 64 KiB.
pub(crate) fn assert_spliced(spliced: u64, bytes: u64) {
    assert!(2 * spliced >= bytes, "{spliced} of {bytes}");
}

/// Asserts that the bytes are equal, without printing megabytes if they differ.
pub(crate) fn assert_same(have: &[u8], expected: &[u8]) {
    let differ = have.iter().zip(expected).position(|(have, expected)| have != expected);
    assert!(
        have == expected,
        "{} bytes, {} expected, first difference at {differ:?}",
        have.len(),
        expected.len()
    );
}

/// Waits for this time. Tests need this function for claims about time itself: that nothing happens
/// in the meantime, or that a limit on silence counts silence. The function also waits between two
/// checks of a state that causes no event. Each such loop has a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the only function that sleeps; its documentation gives the reasons"
)]
pub(crate) fn let_pass(time: Duration) {
    // Sleeps because the absence of an event is not an event.
    thread::sleep(time);
}
