//! The admin socket, and the command that asks it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{
    PATIENCE, Program, TextFile, accept, connect, is_closed, let_pass, listen, read_all, read_exactly, refusing,
    send_and_finish,
};

/// The path of an admin socket for one test.
pub(crate) struct Socket(PathBuf);

impl Socket {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("spliceway-admin-{}-{number}", std::process::id())))
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.0.display())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Sends a request. Returns the status and the JSON of the answer.
    pub(crate) fn ask_with(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = UnixStream::connect(&self.0).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: application/json"), "{head}");
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    pub(crate) fn ask(&self, method: &str, path: &str) -> (u16, Value) {
        self.ask_with(method, path, "")
    }

    fn sessions(&self, query: &str) -> Vec<Value> {
        let (status, mut page) = self.ask("GET", &format!("/v1/sessions?{query}"));
        assert_eq!(status, 200, "{page}");
        page["sessions"].as_array_mut().unwrap().drain(..).collect()
    }

    /// Waits until the list of sessions meets the condition.
    pub(crate) fn await_sessions(&self, is_met: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let sessions = self.sessions("");
            if is_met(&sessions) {
                return sessions;
            }
            assert!(Instant::now() < until, "{sessions:?}");
            let_pass(Duration::from_millis(2));
        }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments).args(["--admin", &self.address()]);
        command.output().unwrap()
    }
}

/// Sends the request of a SOCKS5 client for `target`, without waiting for answers.
fn request_socks5(client: &mut TcpStream, port: u16) {
    client.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1]).unwrap();
    client.write_all(&port.to_be_bytes()).unwrap();
}

#[test]
fn the_sessions_are_listed_in_every_state_with_their_counts() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let program = Program::socks5(&["--admin", &socket.address()]);
    assert_eq!(fs::metadata(&socket.0).unwrap().permissions().mode() & 0o777, 0o600);
    let silent = program.connect();
    let mut client = program.connect();
    request_socks5(&mut client, target.port());
    let mut server = accept(&listener);
    read_exactly(&mut client, 12);
    client.write_all(b"request").unwrap();
    read_exactly(&mut server, 7);
    server.write_all(b"an answer").unwrap();
    read_exactly(&mut client, 9);
    let sessions = socket.await_sessions(|sessions| sessions.len() == 2 && sessions[1]["bytes_down"] == 9);
    let (waits, relays) = (&sessions[0], &sessions[1]);
    assert_eq!(waits["state"], "handshake");
    assert_eq!(waits["client"], silent.local_addr().unwrap().to_string());
    assert_eq!(waits["target"], Value::Null);
    assert_eq!(relays["state"], "relay");
    assert_eq!(relays["service"], "socks5");
    assert_eq!(relays["target"], target.to_string());
    assert_eq!(relays["dialled"], target.to_string());
    assert_eq!(relays["bytes_up"], 7);
    // One session by its number, and by its client.
    let id = &relays["id"];
    let (status, one) = socket.ask("GET", &format!("/v1/sessions/{id}"));
    assert_eq!((status, &one["client"]), (200, &relays["client"]));
    let client_address = client.local_addr().unwrap();
    assert_eq!(socket.sessions(&format!("client={client_address}")).len(), 1);
    assert_eq!(socket.sessions("client=127.0.0.0/8").len(), 2);
    assert_eq!(socket.sessions("service=http").len(), 0);
    // A list in pages of one session.
    let (_, first) = socket.ask("GET", "/v1/sessions?limit=1");
    let second = socket.sessions(&format!("limit=1&after={}", first["next"]));
    assert_eq!((&first["sessions"][0]["id"], &second[0]["id"]), (&waits["id"], id));
    let (_, status) = socket.ask("GET", "/v1/status");
    assert_eq!(status["sessions"]["active"], 2);
    assert_eq!(status["services"][0]["bytes_down"], 9);
    assert_eq!(status["services"][0]["listen"][0], program.address.to_string());
    drop((silent, client, server));
    socket.await_sessions(<[Value]>::is_empty);
}

#[test]
fn a_session_can_be_closed_in_every_state() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let mut program = Program::socks5(&["--admin", &socket.address()]);
    let mut silent = program.connect();
    let mut relays = program.connect();
    request_socks5(&mut relays, target.port());
    let server = accept(&listener);
    read_exactly(&mut relays, 12);
    let sessions = socket.await_sessions(|sessions| sessions.len() == 2 && sessions[1]["state"] == "relay");
    for session in &sessions {
        let path = format!("/v1/sessions/{}", session["id"]);
        assert_eq!(socket.ask("DELETE", &path).0, 202);
    }
    assert!(is_closed(&mut silent) && is_closed(&mut relays));
    assert!(read_all(&server).is_empty());
    socket.await_sessions(<[Value]>::is_empty);
    program.await_sum("spliceway_connections_total", &["end=\"closed_by_admin\""], 2);
    assert_eq!(
        socket.ask("DELETE", &format!("/v1/sessions/{}", sessions[0]["id"])).0,
        404
    );
    program.line("end=closed_by_admin");
}

#[test]
fn a_closed_relay_delivers_the_bytes_that_it_holds() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let program = Program::forward(target, &["--admin", &socket.address()]);
    let (client, server) = (program.connect(), accept(&listener));
    // The server writes until the relay stops reading. The client reads only after the command.
    let writer = thread::spawn(move || {
        let (piece, mut sent) = (vec![7; 1 << 16], 0);
        while let Ok(count) = (&server).write(&piece) {
            sent += count as u64;
        }
        sent
    });
    program.await_sum("spliceway_pipes", &["state=\"lent\""], 1);
    let id = socket.sessions("")[0]["id"].clone();
    assert_eq!(socket.ask("DELETE", &format!("/v1/sessions/{id}")).0, 202);
    let received = read_until_end(&client);
    program.await_end("closed_by_admin");
    assert_eq!(program.sum("spliceway_bytes_total", &["direction=\"down\""]), received);
    assert_eq!(program.sum("spliceway_lost_bytes_total", &[]), 0);
    let sent = writer.join().unwrap();
    assert!(received < sent, "the relay stopped reading: {received} of {sent}");
}

/// Reads until the connection ends. Returns the number of bytes.
fn read_until_end(mut client: &TcpStream) -> u64 {
    let (mut buffer, mut received) = (vec![0; 1 << 16], 0);
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        received += count as u64;
    }
    received
}

#[test]
fn a_drained_service_accepts_no_client_and_its_sessions_finish() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let mut program = Program::forward(target, &["--admin", &socket.address()]);
    let (mut client, mut server) = (program.connect(), accept(&listener));
    assert_eq!(socket.ask("POST", "/v1/services/other/drain").0, 404);
    // Names are decoded, as those of backends are.
    assert_eq!(socket.ask("POST", "/v1/services/forwar%64/drain").0, 200);
    assert!(TcpStream::connect(program.address).is_err(), "the listener is closed");
    client.write_all(b"still here").unwrap();
    assert_eq!(read_exactly(&mut server, 10), b"still here");
    let (_, status) = socket.ask("GET", "/v1/status");
    assert_eq!(status["services"][0]["state"], "draining");
    assert_eq!((&status["state"], &status["ready"]), (&"serving".into(), &false.into()));
    assert!(program.get("/readyz").contains("503"), "the only service drains");
    assert!(program.get("/healthz").contains("200"));
    drop((client, server));
    program.terminate();
    assert!(program.exit().success());
}

#[test]
fn the_address_of_a_drained_service_is_free_at_the_answer() {
    const SERVICES: usize = 25;
    let (socket, target) = (Socket::new(), refusing());
    let service = |index| {
        format!("[[service]]\nname = \"s{index}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n")
    };
    let services: String = (0..SERVICES).map(service).collect();
    let admin = format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\nsocket = \"{}\"\n",
        socket.address()
    );
    let _program = Program::run(&TextFile::new(&(admin + &services)));
    // The socket answers before the services listen.
    let until = Instant::now() + PATIENCE;
    let status = loop {
        let (_, status) = socket.ask("GET", "/v1/status");
        if status["ready"] == true {
            break status;
        }
        assert!(Instant::now() < until, "{status}");
        let_pass(Duration::from_millis(2));
    };
    for index in 0..SERVICES {
        let address = status["services"][index]["listen"][0].as_str().unwrap();
        let (code, said) = socket.ask("POST", &format!("/v1/services/s{index}/drain"));
        let done = format!("s{index} accepts no new clients");
        assert_eq!((code, said["done"].as_str()), (200, Some(&*done)), "{said}");
        TcpListener::bind(address).unwrap();
    }
}

#[test]
fn a_client_that_closes_its_side_after_the_request_gets_its_answer() {
    let socket = Socket::new();
    let program = Program::socks5(&["--admin", &socket.address()]);
    let mut admin = UnixStream::connect(&socket.0).unwrap();
    admin.set_read_timeout(Some(PATIENCE)).unwrap();
    admin.write_all(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    admin.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    admin.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    let metrics = connect(program.metrics());
    send_and_finish(
        &metrics,
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n",
    );
    assert!(read_all(&metrics).ends_with(b"# EOF\n"));
}

#[test]
fn the_log_level_changes_while_the_program_runs() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let mut program = Program::forward(target, &["--admin", &socket.address(), "--log-level", "error"]);
    let run = |end: &str, count| {
        drop((program.connect(), accept(&listener)));
        program.await_sum("spliceway_connections_total", &[end], count);
    };
    run("", 1);
    let (status, level) = socket.ask_with("PUT", "/v1/log-level", r#"{"level": "info"}"#);
    assert_eq!((status, &level["level"]), (200, &Value::from("info")));
    run("", 2);
    program.line("session");
    assert_eq!(program.lines_with(" session "), 1, "the first session left no record");
    assert_eq!(socket.ask("GET", "/v1/log-level").1["level"], "info");
    let (status, wrong) = socket.ask_with("PUT", "/v1/log-level", r#"{"level": "loud"}"#);
    assert_eq!(status, 400);
    assert_eq!(
        wrong["error"],
        r#"expected {"level": LEVEL}, where LEVEL is off, error, warn, info, debug or trace"#
    );
}

#[test]
fn wrong_requests_get_a_sentence() {
    let socket = Socket::new();
    let _program = Program::socks5(&["--admin", &socket.address()]);
    for (method, path, status, sentence) in [
        ("GET", "/v1/sessions/7", 404, "no session 7 is open"),
        ("GET", "/v1/sessions/x%22", 404, "no session x\\\" is open"),
        (
            "POST",
            "/v1/reload?all",
            400,
            "the query has no `all`: use end-sessions",
        ),
        ("PUT", "/v1/status", 405, "this path has the methods GET"),
        (
            "GET",
            "/v1/sessions?limit=0",
            400,
            "`limit` is `0`: expected a number from 1 to 1000",
        ),
    ] {
        let (have, answer) = socket.ask(method, path);
        assert_eq!(
            (have, &answer["error"]),
            (status, &Value::from(sentence)),
            "{method} {path}"
        );
    }
    let (status, answer) = socket.ask("GET", "/metrics");
    assert_eq!(status, 404);
    assert!(answer["error"].as_str().unwrap().contains("use /v1/status"), "{answer}");
    let long = "x".repeat(5000);
    assert_eq!(socket.ask_with("PUT", "/v1/log-level", &long).0, 413);
}

#[test]
fn a_second_program_with_the_same_admin_socket_does_not_start() {
    let socket = Socket::new();
    let _program = Program::socks5(&["--admin", &socket.address()]);
    let second = socket.command(&["socks5", "-l", "127.0.0.1:0"]);
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("another program listens there"), "{stderr}");
    assert_eq!(socket.ask("GET", "/v1/status").0, 200);
}

#[test]
fn the_status_command_prints_the_state_and_exits_by_it() {
    let (socket, (listener, target)) = (Socket::new(), listen());
    let nobody = socket.command(&["status"]);
    assert_eq!(nobody.status.code(), Some(1));
    let stderr = String::from_utf8(nobody.stderr).unwrap();
    assert!(
        stderr.contains(": no program has its admin socket here. If the program runs with another one"),
        "{stderr}"
    );
    let program = Program::forward(target, &["--admin", &socket.address()]);
    let _session = (program.connect(), accept(&listener));
    let ready = socket.command(&["status"]);
    let text = String::from_utf8(ready.stdout).unwrap();
    assert_eq!(ready.status.code(), Some(0), "{text}");
    assert!(text.contains("serving, ready"), "{text}");
    assert!(text.contains("sessions   1 active"), "{text}");
    assert!(text.contains(&format!("on {}", program.address)), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let json = socket.command(&["status", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["sessions"]["active"], 1);
    program.terminate();
    let until = Instant::now() + PATIENCE;
    loop {
        let drains = socket.command(&["status"]);
        if drains.status.code() == Some(1) {
            assert!(
                String::from_utf8(drains.stdout)
                    .unwrap()
                    .contains("draining, not ready")
            );
            break;
        }
        assert!(Instant::now() < until, "it is still ready");
    }
}

/// Answers one request with this body, as a program that lies.
fn answering(socket: &Socket, body: &str) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(&socket.0).unwrap();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        client.write_all(answer.as_bytes()).unwrap();
    })
}

#[test]
fn the_status_command_prints_nothing_that_a_terminal_obeys() {
    // The second name has these characters themselves, and JSON allows them.
    let body = r#"{"version": "1\u001b[2J", "state": "\u202eserving\r", "ready": true, "uptime_seconds": 1e300,
        "services": [{"name": "a\u0007", "listen": ["\u009b0m"], "bytes_up": 18446744073709551615, "bytes_down": 1},
        {"name": "\u{202e}\u{9b}2J\u{7f}"}]}"#;
    let body = body
        .replace("\\u{202e}", "\u{202e}")
        .replace("\\u{9b}", "\u{9b}")
        .replace("\\u{7f}", "\u{7f}");
    for arguments in [&["status"][..], &["status", "--json"]] {
        let socket = Socket::new();
        let server = answering(&socket, &body);
        let output = socket.command(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let is_harmful = |char: char| char != '\n' && (char.is_control() || ('\u{202a}'..='\u{202e}').contains(&char));
        assert!(!text.contains(is_harmful), "{text:?}");
        match arguments.len() {
            1 => assert!(
                text.contains("\u{fffd}serving\u{fffd}, ready  up 213503982334601d07h"),
                "{text}"
            ),
            _ => {
                let json: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(json, serde_json::from_str::<Value>(&body).unwrap(), "the same values");
            }
        }
        server.join().unwrap();
        fs::remove_file(&socket.0).unwrap();
    }
}

#[test]
fn no_secret_is_in_any_answer() {
    let socket = Socket::new();
    let program = Program::public(
        "http",
        &[
            "--admin",
            &socket.address(),
            "--auth",
            "ann:sesame-1",
            "-x",
            // Port because the upstream proxy is never reached.
            "http://bob:sesame-2@127.0.0.1:1",
        ],
    );
    let mut client = program.connect();
    // The head is incomplete, so that the session stays open.
    client
        .write_all(b"GET http://eve:sesame-3@192.0.2.1/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic YW5uOnNlc2FtZS0x\r\n")
        .unwrap();
    socket.await_sessions(|sessions| sessions.len() == 1);
    for path in ["/v1/status", "/v1/sessions", "/v1/sessions/1", "/v1/log-level"] {
        let (_, answer) = socket.ask("GET", path);
        assert!(!answer.to_string().contains("sesame"), "{path}: {answer}");
    }
    assert!(!program.get("/metrics").contains("sesame"));
}
