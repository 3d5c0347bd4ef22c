//! Several backends of one forwarder.

mod checks;
mod failures;
mod faults;
pub(crate) mod names;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::admin::Socket;
use crate::harness::{Program, TextFile, is_closed, listen, read_exactly, refused_to_start, refusing, with_patience};

/// A backend that greets each client with its letter, and then returns what it receives.
pub(crate) fn backend(letter: u8) -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || serve(&listener, letter));
    address
}

fn serve(listener: &TcpListener, letter: u8) {
    for stream in listener.incoming().map_while(Result::ok) {
        thread::spawn(move || {
            let mut stream = with_patience(stream);
            let _ = stream.write_all(&[letter]);
            let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        });
    }
}

/// Starts a forwarder to these backends, each in the form of the flag.
pub(crate) fn forward(backends: &[String], arguments: &[&str]) -> Program {
    let mut all = vec!["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    all.extend(backends.iter().flat_map(|backend| ["-r", backend]));
    all.extend(arguments);
    Program::start(&all)
}

/// Connects, and returns the letter of the backend.
pub(crate) fn greeted(program: &Program) -> (TcpStream, char) {
    let mut client = program.connect();
    let letter = read_exactly(&mut client, 1)[0];
    (client, letter.into())
}

/// Connects this number of clients, one after another. Returns how many each backend greets.
pub(crate) fn shares(program: &Program, clients: usize) -> BTreeMap<char, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..clients {
        *shares.entry(greeted(program).1).or_default() += 1;
    }
    shares
}

#[test]
fn clients_are_spread_over_real_backends_by_weight() {
    let [a, b, c] = [b'a', b'b', b'c'].map(backend);
    let backends = [format!("{a},weight=2"), b.to_string(), format!("{c},backup")];
    let program = forward(&backends, &["--balance", "round-robin"]);
    assert_eq!(shares(&program, 30), BTreeMap::from([('a', 20), ('b', 10)]));
    let program = forward(&backends, &["--balance", "first"]);
    assert_eq!(shares(&program, 10), BTreeMap::from([('a', 10)]));
    let program = forward(&backends, &["--balance", "source-hash"]);
    assert_eq!(shares(&program, 10).len(), 1, "one client");
    let program = forward(&backends, &["--balance", "p2c"]);
    let shares = shares(&program, 30);
    assert!(!shares.contains_key(&'c'), "{shares:?}");
}

#[test]
fn by_default_each_backend_has_as_many_open_sessions_as_the_others() {
    let backends = [b'a', b'b', b'c'].map(|letter| backend(letter).to_string());
    let program = forward(&backends, &[]);
    let mut open: Vec<_> = (0..12).map(|_| greeted(&program)).collect();
    open.retain(|(_, letter)| *letter != 'b');
    // The records are written after the places are given back.
    program.await_sum("spliceway_connections_total", &[], 4);
    open.extend((0..4).map(|_| greeted(&program)));
    for letter in ['a', 'b', 'c'] {
        assert_eq!(open.iter().filter(|(_, have)| *have == letter).count(), 4);
    }
}

#[test]
fn a_client_of_a_dead_backend_gets_another_one_and_every_byte() {
    let alive = backend(b'a');
    let backends = [refusing(), refusing(), alive].map(|address| address.to_string());
    let mut program = forward(&backends, &["--balance", "round-robin"]);
    for _ in 0..6 {
        let mut client = program.connect();
        client.write_all(b"early").unwrap();
        assert_eq!(read_exactly(&mut client, 6), b"aearly");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_closed(&mut client));
        let record = program.line(" end=");
        assert!(
            record.contains(&format!("target={alive} upstream={alive} ")),
            "{record}"
        );
    }
}

#[test]
fn a_client_whose_backends_are_all_dead_is_closed() {
    let backends = [refusing(), refusing()].map(|address| address.to_string());
    let mut program = forward(&backends, &[]);
    let mut client = program.connect();
    assert!(is_closed(&mut client));
    program.line("end=connect_failed:ECONNREFUSED");
}

#[test]
fn a_reload_changes_backends_and_keeps_sessions() {
    let [a, b] = [b'a', b'b'].map(backend);
    let text = |backends: &str| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
             balance = \"round-robin\"\n{backends}"
        )
    };
    let table = |address, rest| format!("[[service.backend]]\nto = \"{address}\"\n{rest}\n");
    let file = TextFile::new(&text(&(table(a, "weight = 3") + &table(b, ""))));
    let mut program = Program::run(&file);
    assert_eq!(shares(&program, 8), BTreeMap::from([('a', 6), ('b', 2)]));
    let (mut client, _) = greeted(&program);
    file.write(&text(&(table(a, "backup = true") + &table(b, ""))));
    assert!(program.reload().contains("changed forward"));
    assert_eq!(shares(&program, 8), BTreeMap::from([('b', 8)]));
    client.write_all(b"still here").unwrap();
    assert_eq!(read_exactly(&mut client, 10), b"still here");
}

#[test]
fn the_operator_drains_a_backend_and_changes_its_weight() {
    let socket = Socket::new();
    let [a, b] = [b'a', b'b'].map(backend);
    let backends = [a, b].map(|backend| backend.to_string());
    let admin = ["--balance", "round-robin", "--admin", &socket.address()];
    let mut program = forward(&backends, &admin);
    let path = |backend: &str| format!("/v1/services/forward/backends/{backend}/weight");
    let set = |weight: &str| {
        socket
            .ask_with("PUT", &path(&backends[0]), &format!("{{\"weight\": {weight}}}"))
            .0
    };
    let (mut client, _) = greeted(&program);

    assert_eq!(set("0"), 200);
    assert_eq!(shares(&program, 6), BTreeMap::from([('b', 6)]));
    client.write_all(b"still here").unwrap();
    assert_eq!(read_exactly(&mut client, 10), b"still here");
    let (_, status) = socket.ask("GET", "/v1/status");
    let drained = &status["services"][0]["backends"][0];
    assert_eq!((&drained["state"], &drained["weight"]), (&"draining".into(), &0.into()));
    program.line(&format!("admin: backend {a} has the weight 0"));

    assert_eq!(set("3"), 200);
    assert_eq!(shares(&program, 8), BTreeMap::from([('a', 6), ('b', 2)]));
    assert_eq!(set("null"), 200);
    assert_eq!(shares(&program, 8), BTreeMap::from([('a', 4), ('b', 4)]));

    for wrong in ["257", "-1", "\"1\"", "0, \"more\": 1"] {
        assert_eq!(set(wrong), 400, "{wrong}");
    }
    assert_eq!(socket.ask_with("PUT", &path(&backends[0]), "{}").0, 400);
    for (method, path, code) in [
        ("PUT", path("nowhere"), 404),
        ("PUT", "/v1/services/other/backends/a/weight".to_owned(), 404),
        ("GET", path(&backends[0]), 405),
    ] {
        assert_eq!(
            socket.ask_with(method, &path, "{\"weight\": 1}").0,
            code,
            "{method} {path}"
        );
    }
}

#[test]
fn a_drained_backend_gets_no_clients_with_any_policy() {
    for policy in ["least-conn", "round-robin", "p2c", "source-hash", "first"] {
        let socket = Socket::new();
        let [a, b] = [b'a', b'b'].map(backend);
        let admin = ["--balance", policy, "--admin", &socket.address()];
        let program = forward(&[a.to_string(), b.to_string()], &admin);
        // The backend that the policy prefers drains.
        let (preferred, other) = match greeted(&program).1 {
            'a' => (a, 'b'),
            _ => (b, 'a'),
        };
        let path = format!("/v1/services/forward/backends/{preferred}/weight");
        assert_eq!(socket.ask_with("PUT", &path, "{\"weight\": 0}").0, 200);
        assert_eq!(shares(&program, 6), BTreeMap::from([(other, 6)]), "{policy}");
    }
}

#[test]
fn a_wrong_backend_is_refused_with_what_was_expected() {
    let target = refusing().to_string();
    for (options, expected) in [
        (",weight=0", "expected a weight from 1 to 256"),
        (",wieght=2", "and then only ,weight=N"),
        ("", "twice: give one of them a higher weight"),
    ] {
        let remote = format!("{target}{options}");
        let message = refused_to_start(&["-l", "127.0.0.1:0", "-r", &target, "-r", &remote]);
        assert!(message.contains(expected), "{message}");
    }
}
