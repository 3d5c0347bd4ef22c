use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::admin::Socket;
use crate::clients::ip_request;
use crate::handover::upgrade;
use crate::harness::{
    PATIENCE, Program, TextFile, accept, address_in, connect, echo, is_closed, let_pass, listen, pattern, read_exactly,
    with_patience,
};
use crate::listen::{SocketPath, connect_to_path};

const ADMIN: &str = "[admin]\nmetrics = \"127.0.0.1:0\"\n";

/// Returns the table of a forwarder with this name.
fn forward(name: &str, target: SocketAddr, rest: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n{rest}\n")
}

fn file(services: &[String]) -> String {
    format!("{ADMIN}{}", services.concat())
}

/// Asserts that bytes pass in both directions.
fn exchange(client: &mut TcpStream, target: &mut TcpStream, seed: u64) {
    let (up, down) = (pattern(seed, 1000), pattern(seed + 1, 1000));
    client.write_all(&up).unwrap();
    assert_eq!(read_exactly(target, 1000), up);
    target.write_all(&down).unwrap();
    assert_eq!(read_exactly(client, 1000), down);
}

#[test]
fn a_reload_adds_changes_and_removes_services_and_cuts_no_session() {
    let (listener, target) = listen();
    let config = TextFile::new(&file(&[forward("a", target, ""), forward("b", target, "")]));
    let mut program = Program::run(&config);
    let (a, b) = (program.address, address_in(&program.line("b listening on ")));
    let (mut on_a, mut target_a) = (connect(a), accept(&listener));
    let (mut on_b, mut target_b) = (connect(b), accept(&listener));
    exchange(&mut on_a, &mut target_a, 1);
    exchange(&mut on_b, &mut target_b, 3);

    config.write(&file(&[
        forward("b", target, "deny = \"127.0.0.0/8\""),
        forward("c", target, ""),
    ]));
    program.signal(Signal::HUP);
    let c = address_in(&program.line("c listening on "));
    let report = program.line("reloaded: ");
    for part in ["added c; changed b; removed a; ", &format!("listens on {c}")] {
        assert!(report.contains(part), "{part}: {report}");
    }
    exchange(&mut on_a, &mut target_a, 5);
    exchange(&mut on_b, &mut target_b, 7);
    assert!(
        is_closed(&mut with_patience(TcpStream::connect(b).unwrap())),
        "b denies clients now"
    );
    let (mut on_c, mut target_c) = (connect(c), accept(&listener));
    exchange(&mut on_c, &mut target_c, 9);
    drop((on_a, target_a, on_b, target_b, on_c, target_c));
    let sum = |service: &str| format!("service=\"{service}\"");
    for (service, sessions) in [("a", 1), ("b", 2), ("c", 1)] {
        let series = format!("spliceway_lost_bytes_total{{{},direction=\"up\"}}", sum(service));
        assert_eq!(program.get("/metrics").matches(&series).count(), 1, "{series}");
        program.await_sum("spliceway_connections_total", &[&sum(service)], sessions);
    }
    assert_eq!(
        program.sum("spliceway_bytes_total", &[&sum("a"), "direction=\"up\""]),
        2000
    );
    // The listener of `a` is closed at some time after the log line.
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(a).is_ok() {
        assert!(Instant::now() < until, "it still listens");
    }
}

#[test]
fn a_refused_file_leaves_the_old_settings_in_force_and_is_counted() {
    let (listener, target) = listen();
    let config = TextFile::new(&file(&[forward("a", target, "")]));
    let mut program = Program::run(&config);
    let (taken, busy) = listen();
    let busy = forward("b", target, "").replace("127.0.0.1:0", &busy.to_string());
    for (wrong, expected) in [
        ("[[service]]\n".to_owned(), "kind: is missing"),
        (file(&[forward("c", target, ""), busy]), "Address already in use"),
    ] {
        config.write(&wrong);
        let line = program.reload();
        assert!(
            line.contains("the previous settings stay in force") && line.contains(expected),
            "{line}"
        );
        let (mut client, mut target) = (program.connect(), accept(&listener));
        exchange(&mut client, &mut target, 1);
    }
    assert_eq!(program.sum("spliceway_reloads_total", &["refused"]), 2);
    assert_eq!(program.sum("spliceway_last_reload_refused", &[]), 1);
    assert_eq!(program.lines_with("c listening on "), 0);
    drop(taken);
    config.write(&file(&[forward("a", target, "")]));
    assert!(program.reload().contains("reloaded: nothing has changed"));
    assert_eq!(program.sum("spliceway_reloads_total", &["\"ok\""]), 1);
    assert_eq!(program.sum("spliceway_last_reload_refused", &[]), 0);
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let (_listener, target) = listen();
    let config = TextFile::new(&file(&[forward("a", target, "")]));
    let mut program = Program::run(&config);
    let head = "[engine]\nworkers = 7\n[limits]\nnofile = 512\nmax_conns = 5\n";
    config.write(&format!("{head}{}", file(&[forward("a", target, "")])));
    let line = program.reload();
    assert!(
        line.ends_with("needs an upgrade or a restart for limits.nofile, engine.workers"),
        "{line}"
    );
    assert_eq!(program.sum("spliceway_connections_max", &[]), 5);
}

#[test]
fn a_restart_stays_needed_until_the_file_is_what_runs() {
    let (_listener, target) = listen();
    let before = file(&[forward("a", target, "")]);
    let config = TextFile::new(&before);
    let mut program = Program::run(&config);
    config.write(&format!("[engine]\nworkers = 7\n{before}"));
    for _ in 0..2 {
        let line = program.reload();
        assert!(
            line.ends_with("reloaded: needs an upgrade or a restart for engine.workers"),
            "{line}"
        );
    }
    config.write(&before);
    let line = program.reload();
    assert!(line.ends_with("reloaded: nothing has changed"), "{line}");
    // A new process runs with the file as it is.
    config.write(&format!("[engine]\nworkers = 7\n{before}"));
    let process = upgrade(&mut program, None);
    process.signal(Signal::HUP);
    let line = program.line("reloaded: ");
    assert!(line.ends_with("reloaded: nothing has changed"), "{line}");
}

#[test]
fn a_reload_changes_how_often_open_sessions_are_recorded() {
    let (listener, target) = listen();
    let before = file(&[forward("a", target, "")]);
    let config = TextFile::new(&before);
    let mut program = Program::run(&config);
    let (mut client, mut server) = (program.connect(), accept(&listener));
    exchange(&mut client, &mut server, 1);
    config.write(&format!("[log]\nrecord_interval = \"1s\"\n{before}"));
    let line = program.reload();
    assert!(line.ends_with("reloaded: nothing has changed"), "{line}");
    let record = program.line("end=\"open\"");
    assert!(record.contains(" bytes_up=1000 bytes_down=1000 "), "{record}");
}

/// Returns the message of RFC 1929.
fn credentials(name: &str, password: &str) -> Vec<u8> {
    let mut message = vec![1, name.len() as u8];
    message.extend(name.bytes());
    message.push(password.len() as u8);
    message.extend(password.bytes());
    message
}

/// Sends a user and a password to a SOCKS5 proxy. Returns whether they are right.
fn logs_in(address: SocketAddr, name: &str, password: &str) -> bool {
    let mut client = connect(address);
    client.write_all(&[5, 1, 2]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 2]);
    client.write_all(&credentials(name, password)).unwrap();
    let mut answer = Vec::new();
    client.take(2).read_to_end(&mut answer).unwrap();
    answer == [1, 0]
}

/// Opens a session of a SOCKS5 proxy for this user.
fn opened(proxy: SocketAddr, name: &str, password: &str, target: SocketAddr) -> TcpStream {
    let mut client = connect(proxy);
    client.write_all(&[5, 1, 2]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 2]);
    client.write_all(&credentials(name, password)).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [1, 0]);
    client.write_all(&ip_request(target)).unwrap();
    assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
    client
}

fn private(lines: &str) -> TextFile {
    let file = TextFile::new(lines);
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    file
}

#[test]
fn users_are_read_again_with_and_without_a_file() {
    for has_file in [true, false] {
        let users = private("ann:wonderland\nbob:builder\n");
        let config = TextFile::new(&format!(
            "{ADMIN}[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{}\"\n",
            users.path()
        ));
        let mut program = match has_file {
            true => Program::run(&config),
            false => Program::socks5(&["--auth-file", users.path()]),
        };
        assert!(logs_in(program.address, "ann", "wonderland"));
        users.write("bob:builder\ncat:hat\n");
        let line = program.reload();
        assert!(
            line.contains("reloaded: changed socks5; removed users ann of socks5"),
            "{line}"
        );
        assert!(!logs_in(program.address, "ann", "wonderland"));
        assert!(logs_in(program.address, "cat", "hat") && logs_in(program.address, "bob", "builder"));
        users.write("bob\n");
        let line = program.reload();
        assert!(
            line.contains(&format!("{}:1: expected NAME:HASH", users.path())),
            "{line}"
        );
        assert!(logs_in(program.address, "cat", "hat"));
    }
}

#[test]
fn a_penalty_continues_if_its_setting_is_unchanged() {
    let users = private("ann:wonderland\n");
    let service = |rest: &str| {
        let path = users.path();
        format!("{ADMIN}[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{path}\"\n{rest}")
    };
    let config = TextFile::new(&service(""));
    let mut program = Program::run(&config);
    for _ in 0..4 {
        assert!(!logs_in(program.address, "ann", "guess"));
    }
    for (rest, expected) in [("rate_out = \"1MB\"", "auth_penalty"), ("auth_penalty = 0", "auth\"")] {
        config.write(&service(rest));
        assert!(program.reload().contains("changed socks5"));
        assert!(!logs_in(program.address, "ann", "guess"));
        program.await_sum("spliceway_refused_total", &[&format!("reason=\"{expected}")], 1);
    }
}

/// Connects, and sends and receives a message, until `stop` is set. Returns the number of clients.
fn clients(address: SocketAddr, stop: &AtomicBool, done: &AtomicU64) {
    let message = pattern(1, 3000);
    while !stop.load(Ordering::Relaxed) {
        let mut client = connect(address);
        client.write_all(&message).unwrap();
        assert_eq!(read_exactly(&mut client, message.len()), message);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// `SPLICEWAY_RELOADS=999` makes this test longer.
#[test]
fn reloads_under_load_lose_no_connection_and_leave_nothing_behind() {
    let reloads = std::env::var("SPLICEWAY_RELOADS").map_or(60_usize, |count| count.parse().unwrap());
    assert_eq!(reloads % 3, 0, "the last file is the one of the first measurement");
    let target = echo("127.0.0.1:0");
    let users = private("ann:wonderland\n");
    let path = users.path();
    let socks = format!("[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{path}\"\n");
    let variants = [
        file(&[forward("a", target, ""), forward("b", target, "rate_in = \"1GB\"")]),
        file(&[forward("a", target, "rate_out = \"1GB:client\""), socks]),
        file(&[forward("c", target, ""), forward("a", target, "")]),
    ];
    let config = TextFile::new(&variants[0]);
    let mut program = Program::run(&config);
    let (stop, done, address) = (AtomicBool::new(false), AtomicU64::new(0), program.address);
    let reload = |count: usize, program: &mut Program| {
        config.write(&variants[count % variants.len()]);
        let line = program.reload();
        assert!(line.contains("reloaded: "), "{line}");
    };
    // The first rounds use memory that later rounds use again.
    (1..=30).for_each(|count| reload(count, &mut program));
    let before = (program.descriptors(), program.resident_bytes());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| clients(address, &stop, &done));
        }
        (1..=reloads).for_each(|count| reload(count, &mut program));
        stop.store(true, Ordering::Relaxed);
    });
    let until = Instant::now() + PATIENCE;
    while program.sum("spliceway_connections_active", &[]) > 0 || program.descriptors() > before.0 {
        assert!(
            Instant::now() < until,
            "{} descriptors, {} before",
            program.descriptors(),
            before.0
        );
        let_pass(Duration::from_millis(2));
    }
    let (clients, growth) = (done.into_inner(), program.resident_bytes().saturating_sub(before.1));
    println!("{reloads} reloads, {clients} clients, memory grew by {growth} bytes");
    assert!(clients > 100 && growth < 16 << 20, "{clients} clients, {growth} bytes");
    program.await_sum("spliceway_connections_total", &["service=\"a\""], clients);
    assert_eq!(program.sum("spliceway_reloads_total", &["\"ok\""]), reloads as u64 + 30);
}

#[test]
fn a_reload_of_the_admin_socket_says_what_it_did_and_ends_sessions() {
    let (listener, target) = listen();
    let users = private("ann:wonderland\nbob:builder\n");
    let socket = Socket::new();
    let config = TextFile::new(&format!(
        "[admin]\nsocket = \"{}\"\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"socks5\"\n\
         listen = \"127.0.0.1:0\"\nauth_file = \"{}\"\n",
        socket.address(),
        users.path()
    ));
    let program = Program::run(&config);
    let mut sessions: Vec<_> = [("ann", "wonderland"), ("bob", "builder")]
        .map(|(name, password)| {
            let mut client = opened(program.address, name, password, target);
            let mut target = accept(&listener);
            exchange(&mut client, &mut target, 1);
            (client, target)
        })
        .into();
    users.write("bob:builder\n");
    let reload = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["reload", "--admin", &socket.address()]).args(arguments);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), said.concat())
    };
    let warning = |said: &str| said.contains("\nwarning: ") && said.contains(" (bob) is a clear-text password;");
    let (code, said) = reload(&[]);
    assert!(
        said.starts_with("reloaded: changed socks5; removed users ann of socks5\n"),
        "{said}"
    );
    assert!(code == Some(0) && warning(&said), "{said}");
    for (client, target) in &mut sessions {
        exchange(client, target, 3);
    }
    let (code, said) = reload(&["--end-sessions"]);
    assert!(
        said.starts_with("reloaded: nothing has changed; ended 1 session\n"),
        "{said}"
    );
    assert!(code == Some(0) && warning(&said), "{said}");
    assert!(is_closed(&mut sessions[0].0), "the session of ann");
    let (client, target) = &mut sessions[1];
    exchange(client, target, 5);
    program.await_end("closed_by_admin");
    assert_eq!(socket.ask("GET", "/v1/status").1["services"][0]["name"], "socks5");
    users.write("bob\n");
    let (code, said) = reload(&[]);
    assert_eq!(code, Some(1));
    let refused = "spliceway: the reload is refused, and the previous settings stay in force: ";
    assert!(
        said.starts_with(refused) && said.contains(":1: expected NAME:HASH"),
        "{said}"
    );
}

#[test]
fn a_drained_service_accepts_clients_again_after_a_reload() {
    let (listener, target) = listen();
    let socket = Socket::new();
    let config = TextFile::new(&format!(
        "[admin]\nsocket = \"{}\"\nmetrics = \"127.0.0.1:0\"\n{}",
        socket.address(),
        forward("a", target, "")
    ));
    let mut program = Program::run(&config);
    assert_eq!(socket.ask("POST", "/v1/services/a/drain").0, 200);
    let until = Instant::now() + PATIENCE;
    while TcpListener::bind(program.address).is_err() {
        assert!(Instant::now() < until, "it still listens");
    }
    assert!(program.get("/readyz").contains("503"));
    program.signal(Signal::HUP);
    let a = address_in(&program.line("a listening on "));
    assert!(program.line("reloaded").contains("listens on"), "it is in the report");
    exchange(&mut connect(a), &mut accept(&listener), 1);
    assert!(program.get("/readyz").contains("200"));
}

#[test]
fn a_listener_moves_to_another_service_without_being_closed() {
    let ((first, to_first), (second, to_second)) = (listen(), listen());
    let path = SocketPath::new();
    let service = |name: &str, target, mode: &str| {
        let listen = format!("[\"127.0.0.1:0\", \"{},mode={mode}\"]", path.address());
        file(&[forward(name, target, "").replace("\"127.0.0.1:0\"\nto", &format!("{listen}\nto"))])
    };
    let config = TextFile::new(&service("a", to_first, "0600"));
    let mut program = Program::run(&config);
    program.line("a listening on unix:");
    let reached = |listener: &TcpListener| {
        let mut client = connect_to_path(&path.0);
        client.write_all(b"x").unwrap();
        assert_eq!(read_exactly(&mut accept(listener), 1), b"x");
        std::fs::symlink_metadata(&path.0).unwrap()
    };
    let before = reached(&first);
    config.write(&service("b", to_second, "0660"));
    assert!(program.reload().contains("reloaded: added b; removed a"));
    let after = reached(&second);
    assert_eq!((before.ino(), before.mode() & 0o777), (after.ino(), 0o600));
    assert_eq!(after.mode() & 0o777, 0o660);
}
