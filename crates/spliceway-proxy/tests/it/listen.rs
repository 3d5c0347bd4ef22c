use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::clients::{AGREED, GREETING, exchange, ip_request};
use crate::harness::{
    Folder, PATIENCE, Program, TextFile, accept, assert_same, assert_spliced, connect, echo, let_pass, listen, pattern,
    read_exactly, refused_to_start, was_reached,
};

/// A path for a socket, in its own folder. The folder is removed when the value is dropped.
pub(crate) struct SocketPath(pub(crate) PathBuf);

impl SocketPath {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("spliceway-listen-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder.join("a.sock"))
    }

    /// Returns the path as an address.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.0.display())
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

pub(crate) fn connect_to_path(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends 300 kB to an echo target, and compares the bytes that it returns.
fn exchange_on_path(mut client: &UnixStream) {
    let (sent, mut got) = (pattern(11, 300_000), Vec::new());
    thread::scope(|scope| {
        let (mut sender, sent) = (client, &sent);
        scope.spawn(move || {
            sender.write_all(sent).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        client.read_to_end(&mut got).unwrap();
    });
    assert_same(&got, &sent);
}

/// Starts a forwarder on a port and on a path.
fn on_path(path: &str, arguments: &[&str]) -> Program {
    let target = echo("127.0.0.1:0").to_string();
    let listen = ["forward", "-l", "127.0.0.1:0", "-l", path, "-r", &target];
    let mut program = Program::start(&[&listen, arguments].concat());
    program.line("forward listening on unix:");
    program
}

#[test]
fn clients_of_a_unix_socket_are_spliced_and_its_mode_is_0600() {
    let path = SocketPath::new();
    let mut program = on_path(&path.address(), &["--splice", "on", "--metrics", "127.0.0.1:0"]);
    let mode = std::fs::symlink_metadata(&path.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    exchange_on_path(&connect_to_path(&path.0));
    let record = program.line("end=client_eof");
    assert!(record.contains("client=unix"), "{record}");
    let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
    assert_spliced(spliced, 2 * 300_000);
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
    assert!(!path.0.exists(), "it takes its file along");
}

#[test]
fn the_mode_of_a_unix_socket_is_configurable() {
    let path = SocketPath::new();
    let _program = on_path(&format!("{},mode=0666", path.address()), &[]);
    let mode = std::fs::symlink_metadata(&path.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let path = SocketPath::new();
    let mut first = on_path(&path.address(), &[]);
    let second = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["forward", "-l", &path.address(), "-r", "unix:/nowhere"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("another program listens there"), "{stderr}");
    exchange_on_path(&connect_to_path(&path.0));
    first.kill();
    assert!(path.0.exists());
    let _third = on_path(&path.address(), &[]);
    exchange_on_path(&connect_to_path(&path.0));
}

#[test]
fn a_unix_socket_can_be_a_target() {
    let path = SocketPath::new();
    let target = UnixListener::bind(&path.0).unwrap();
    thread::spawn(move || {
        for stream in target.incoming().map_while(Result::ok) {
            let _ = std::io::copy(&mut &stream, &mut &stream);
            let _ = stream.shutdown(Shutdown::Write);
        }
    });
    let mut program = Program::start(&["forward", "-l", "127.0.0.1:0", "-r", &path.address()]);
    exchange(program.connect());
    let record = program.line("end=client_eof");
    assert!(record.contains(&format!("target={}", path.address())), "{record}");
}

/// Reserves a port on every address without listening. The kernel does not assign such a port to a
/// connection, or to a `bind` to port 0. A program can bind the port by number with `SO_REUSEADDR`.
fn held_port() -> (Socket, u16) {
    let held = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
    held.set_only_v6(false).unwrap();
    held.set_reuse_address(true).unwrap();
    held.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port();
    (held, port)
}

/// Returns the first of `count` consecutive free ports, on an address that no other test uses.
fn free_ports(count: u16) -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let number = COUNT.fetch_add(1, Ordering::Relaxed) as u8;
    let ip = Ipv4Addr::new(127, 100 + number, high, low);
    loop {
        let first = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
        if first.port().checked_add(count).is_some() {
            return first;
        }
    }
}

fn range(first: SocketAddr, count: u16) -> String {
    format!("{first}-{}", first.port() + count - 1)
}

fn on_port(first: SocketAddr, offset: u16) -> SocketAddr {
    SocketAddr::new(first.ip(), first.port() + offset)
}

#[test]
fn a_range_of_ports_is_relayed_to_another_one_to_one() {
    const PORTS: u16 = 3;
    let (first, first_target) = (free_ports(PORTS), free_ports(PORTS));
    // Each target accepts all clients and sends them its number.
    for offset in 0..PORTS {
        let target = TcpListener::bind(on_port(first_target, offset)).unwrap();
        thread::spawn(move || {
            for client in target.incoming().map_while(Result::ok) {
                let _ = (&client).write_all(&[7, offset as u8]);
            }
        });
    }
    let mut program = Program::start(&["forward", "-l", &range(first, PORTS), "-r", &range(first_target, PORTS)]);
    for _ in 1..PORTS {
        program.line("forward listening on ");
    }
    for offset in 0..PORTS {
        let mut client = connect(on_port(first, offset));
        assert_eq!(read_exactly(&mut client, 2), [7, offset as u8]);
    }
}

#[test]
fn a_range_of_ports_may_go_to_one_target() {
    const PORTS: u16 = 3;
    let first = free_ports(PORTS);
    let target = echo("127.0.0.1:0").to_string();
    let mut program = Program::start(&["forward", "-l", &range(first, PORTS), "-r", &target]);
    for _ in 1..PORTS {
        program.line("forward listening on ");
    }
    for offset in 0..PORTS {
        exchange(connect(on_port(first, offset)));
    }
}

#[test]
fn a_range_with_one_busy_port_is_not_listened_on_at_all() {
    const PORTS: u16 = 3;
    let first = free_ports(PORTS);
    let _taken = TcpListener::bind(on_port(first, PORTS - 1)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["socks5", "-l", &range(first, PORTS)])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains(&on_port(first, PORTS - 1).to_string()) && !stderr.contains("listening on"),
        "{stderr}"
    );
}

#[test]
fn a_bare_port_serves_both_families_and_both_can_share_a_port() {
    let target = echo("127.0.0.1:0").to_string();
    let program = Program::start(&["forward", "-l", ":0", "-r", &target]);
    let port = program.address.port();
    exchange(connect((Ipv4Addr::LOCALHOST, port).into()));
    exchange(connect((Ipv6Addr::LOCALHOST, port).into()));
    let (_held, port) = held_port();
    let (ipv4, ipv6) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    let mut program = Program::start(&["forward", "-l", &ipv4, "-l", &ipv6, "-r", &target]);
    program.line("forward listening on [::]:");
    exchange(connect((Ipv4Addr::LOCALHOST, port).into()));
    exchange(connect((Ipv6Addr::LOCALHOST, port).into()));
}

#[test]
fn an_inherited_socket_is_found_by_name_and_stays_open() {
    let (socket, address) = listen();
    let target = echo("127.0.0.1:0").to_string();
    for listened_on in ["fd:web", "fd:3"] {
        let passed = socket.try_clone().unwrap();
        let arguments = ["forward", "-l", listened_on, "-r", &target];
        let mut program = Program::start_with_socket(passed.into(), "web", &arguments);
        assert_eq!(program.address, address);
        exchange(program.connect());
        program.terminate();
        assert_eq!(program.exit().code(), Some(0));
        // If a client connects before the next program starts, it waits for that program.
        let waits = connect(address);
        let mut next = Program::start_with_socket(socket.try_clone().unwrap().into(), "web", &arguments);
        exchange(waits);
        next.terminate();
        next.exit();
    }
}

/// Asks the proxy on this Unix socket to connect to a loopback listener. Returns the reply code,
/// and whether the proxy reached the listener.
fn asks_on_path(path: &Path) -> (u8, bool) {
    let (target, address) = listen();
    let mut client = connect_to_path(path);
    client
        .write_all(&[&GREETING[..], &ip_request(address)].concat())
        .unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    (answer[3], was_reached(&target))
}

#[test]
fn clients_of_a_unix_socket_open_to_other_users_are_not_local() {
    let path = SocketPath::new();
    for (mode, answer) in [("0600", (0, true)), ("0660", (2, false)), ("0666", (2, false))] {
        let listen = format!("{},mode={mode}", path.address());
        let mut program = Program::start(&["socks5", "-l", "127.0.0.1:0", "-l", &listen, "--open"]);
        program.line("socks5 listening on unix:");
        assert_eq!(asks_on_path(&path.0), answer, "{mode}");
        drop(program);
        if mode != "0600" {
            let stderr = refused_to_start(&["socks5", "-l", &listen, "--allow", "127.0.0.1"]);
            assert!(stderr.contains("Unix socket"), "{stderr}");
        }
    }
    Program::start(&["socks5", "-l", "127.0.0.1:0", "-l", &path.address()]);
}

#[test]
fn an_inherited_unix_socket_open_to_other_users_has_no_local_clients() {
    let path = SocketPath::new();
    let socket = UnixListener::bind(&path.0).unwrap();
    for (mode, answer) in [(0o600, (0, true)), (0o666, (2, false))] {
        std::fs::set_permissions(&path.0, std::fs::Permissions::from_mode(mode)).unwrap();
        let arguments = ["socks5", "-l", "127.0.0.1:0", "-l", "fd:web", "--open"];
        let mut program = Program::start_with_socket(socket.try_clone().unwrap().into(), "web", &arguments);
        program.line("socks5 listening on unix:");
        assert_eq!(asks_on_path(&path.0), answer, "{mode:o}");
    }
}

#[test]
fn an_inherited_tcp_socket_has_local_clients_only_on_loopback() {
    let (target, address) = listen();
    for (answer, ip) in [(0, Ipv4Addr::LOCALHOST), (2, Ipv4Addr::UNSPECIFIED)] {
        let socket = TcpListener::bind((ip, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let _program = Program::start_with_socket(socket.into(), "web", &["socks5", "-l", "fd:web", "--open"]);
        let mut client = connect((Ipv4Addr::LOCALHOST, port).into());
        client
            .write_all(&[&GREETING[..], &ip_request(address)].concat())
            .unwrap();
        assert_eq!(read_exactly(&mut client, 4)[3], answer, "{ip}");
        assert_eq!(was_reached(&target), answer == 0, "{ip}");
    }
}

#[test]
fn a_missing_inherited_socket_is_an_error_that_names_the_passed_ones() {
    let output = Command::new("sh")
        .args([
            "-c",
            "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web; exec \"$0\" socks5 -l fd:dns 3</dev/null",
        ])
        .arg(env!("CARGO_BIN_EXE_spliceway"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("fd:dns") && stderr.contains("named web"), "{stderr}");
    let output = Command::new("sh")
        .args([
            "-c",
            "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web; exec \"$0\" socks5 -l fd:web 3</dev/null",
        ])
        .arg(env!("CARGO_BIN_EXE_spliceway"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("neither a TCP socket nor a Unix stream socket"),
        "{stderr}"
    );
}

/// A client of another user may have connected while the mode of the socket was another one.
#[test]
fn a_private_socket_serves_only_its_user_whatever_its_mode_was() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can start a client of another user");
    }
    let folder = Folder::new("listen-user");
    let tool = folder.0.join("spliceway");
    fs::copy(env!("CARGO_BIN_EXE_spliceway"), &tool).unwrap();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(&folder.0, 0o755);
    set_mode(&tool, 0o755);
    let path = SocketPath::new();
    set_mode(path.0.parent().unwrap(), 0o755);
    // The command is a client that connects and sends a request.
    let client = || {
        let mut command = Command::new(&tool);
        command.args(["status", "--admin", &path.address()]);
        command.uid(NOBODY).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut program = Program::start(&["socks5", "-l", "127.0.0.1:0", "-l", &path.address()]);
    program.line("listening on unix:");
    let serves = || {
        let mut own = connect_to_path(&path.0);
        own.write_all(&GREETING).unwrap();
        let mut answer = [0; 2];
        own.read_exact(&mut answer).unwrap();
        assert_eq!(answer, AGREED);
    };
    serves();
    set_mode(&path.0, 0o666);
    client().wait().unwrap();
    let record = program.line("end=denied:client");
    assert!(record.contains("client=unix"), "{record}");
    serves();
    program.terminate();
    program.exit();

    // Only the operator names targets here, and has changed the mode by hand.
    let (target, address) = listen();
    let arguments = [
        "forward",
        "-l",
        "127.0.0.1:0",
        "-l",
        &path.address(),
        "-r",
        &address.to_string(),
    ];
    let mut program = Program::start(&[&arguments[..], &["--max-conns", "1"]].concat());
    program.line("listening on unix:");
    set_mode(&path.0, 0o666);
    let mut other = client();
    let mut server = accept(&target);
    assert_eq!(read_exactly(&mut server, 4), b"GET ");
    // The next client waits in the queue while the mode changes back.
    let mut queued = client();
    await_queued(&path.0, 1);
    set_mode(&path.0, 0o600);
    drop(server);
    other.wait().unwrap();
    program.line("end=denied:client");
    queued.wait().unwrap();
}

/// Waits until this number of connections wait in the queue of a Unix socket. The kernel shows them
/// without a number of their own.
fn await_queued(path: &Path, count: usize) {
    let until = Instant::now() + PATIENCE;
    let name = path.to_str().unwrap();
    loop {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        // State 2 is a socket that waits for accept(2).
        let queued = sockets
            .lines()
            .filter(|line| line.ends_with(name) && line.contains(" 02 "));
        if queued.count() >= count {
            return;
        }
        assert!(Instant::now() < until, "{sockets}");
        let_pass(Duration::from_millis(2));
    }
}

/// Ends the program with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_inherited_name_may_have_sockets_of_both_transports() {
    let target = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let streams = echo("127.0.0.1:0");
    let datagrams = target.local_addr().unwrap();
    let service = |name: &str, to: SocketAddr, more: &str| {
        format!("[[service]]\nkind = \"forward\"\nname = \"{name}\"\nlisten = \"fd:dns\"\nto = \"{to}\"\n{more}")
    };
    let mut services = [service("tcp", streams, ""), service("udp", datagrams, "udp = true\n")];
    for _ in 0..2 {
        services.reverse();
        let config = TextFile::new(&services.concat());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (tcp, udp) = (listener.local_addr().unwrap(), socket.local_addr().unwrap());
        let script = "exec 3<&0 4<&1 </dev/null >/dev/null; \
            export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=dns:dns; exec \"$0\" \"$@\"";
        let _running = Running(
            Command::new("sh")
                .args([
                    "-c",
                    script,
                    env!("CARGO_BIN_EXE_spliceway"),
                    "run",
                    "-c",
                    config.path(),
                ])
                .stdin(OwnedFd::from(listener))
                .stdout(OwnedFd::from(socket))
                .spawn()
                .unwrap(),
        );
        exchange(connect(tcp));
        let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"ping", udp).unwrap();
        target.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
        let (length, _) = target.recv_from(&mut [0; 9]).unwrap();
        assert_eq!(length, 4);
    }
}

#[test]
fn abstract_sockets_are_listeners_targets_and_admin_sockets() {
    use std::os::linux::net::SocketAddrExt;

    let unique = format!("spliceway-{}", std::process::id());
    let address = |name: &str| std::os::unix::net::SocketAddr::from_abstract_name(format!("{unique}-{name}")).unwrap();
    let named = |name: &str| format!("unix:@{unique}-{name}");
    let target = UnixListener::bind_addr(&address("target")).unwrap();
    let (near, far, admin) = (named("near"), named("target"), named("admin"));
    let arguments = [
        "forward",
        "-l",
        "127.0.0.1:0",
        "-l",
        &near,
        "-r",
        &far,
        "--admin",
        &admin,
    ];
    let mut program = Program::start(&arguments);
    assert!(program.line("listening on").contains(&near));
    let mut client = UnixStream::connect_addr(&address("near")).unwrap();
    client.write_all(b"ping").unwrap();
    let (mut accepted, _) = target.accept().unwrap();
    accepted.read_exact(&mut [0; 4]).unwrap();
    let status = |launcher: &[&str]| {
        let words = [
            launcher,
            &[env!("CARGO_BIN_EXE_spliceway"), "status", "--admin", &admin],
        ]
        .concat();
        Command::new(words[0]).args(&words[1..]).output().unwrap()
    };
    let answer = status(&[]);
    assert!(answer.status.success(), "{answer:?}");
    // A second program cannot take the name.
    assert!(refused_by_system(&["forward", "-l", &near, "-r", &far]).contains("in use"));
    if !rustix::process::geteuid().is_root() || !spliceway_net::has_tool("setpriv", "util-linux") {
        return;
    }
    let stranger = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    assert!(!status(&stranger).status.success());
    let (open, admin) = (named("open"), format!("{},mode=0666", named("second")));
    let arguments = ["forward", "-l", &open, "-r", &far, "--admin", &admin];
    let _open = Running(
        Command::new(env!("CARGO_BIN_EXE_spliceway"))
            .args(arguments)
            .spawn()
            .unwrap(),
    );
    while UnixStream::connect_addr(&address("second")).is_err() {
        thread::yield_now();
    }
    let answer = Command::new(stranger[0])
        .args(&stranger[1..])
        .args([env!("CARGO_BIN_EXE_spliceway"), "status", "--admin", &named("second")])
        .output()
        .unwrap();
    assert!(answer.status.success(), "{answer:?}");
}

/// Returns what the program says if the system does not let it listen.
fn refused_by_system(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}
