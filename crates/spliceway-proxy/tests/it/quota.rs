mod clock;
mod file;
mod shared;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::admin::Socket;
use crate::auth::authenticated;
use crate::clients::{read_head, read_message};
use crate::harness::{Folder, PATIENCE, Program, TextFile, echo, is_closed, let_pass, pattern, read_exactly};
use crate::udp::{associated_by, received, shouting, socket, wrapped};
use crate::user_limits::{ask, file, session, users};

const MB: u64 = 1_000_000;

/// A program with a quota file, in a folder of its own.
struct Quotas {
    users: TextFile,
    config: TextFile,
    folder: Folder,
    socket: Socket,
    kind: &'static str,
}

impl Quotas {
    fn new(name: &str, kind: &'static str, limits: &str) -> Self {
        let quotas = Self {
            users: users(),
            config: TextFile::new(""),
            folder: Folder::new(&format!("quota-{name}")),
            socket: Socket::new(),
            kind,
        };
        quotas.write(limits);
        quotas
    }

    fn write(&self, limits: &str) {
        let (socket, path) = (self.socket.address(), self.path());
        let tables = format!(
            "socket = \"{socket}\"\n[limits]\nquota_file = \"{}\"\n{limits}",
            path.display()
        );
        self.config.write(&file(self.kind, &self.users, &tables));
    }

    fn path(&self) -> PathBuf {
        self.folder.0.join("quotas")
    }

    fn run(&self) -> Program {
        Program::run(&self.config)
    }
}

fn ann(quota: &str) -> String {
    format!("[[user]]\nname = \"ann\"\nquota = {quota}\n")
}

/// Returns what ann has used.
fn used(program: &Program) -> u64 {
    program.sum("spliceway_user_quota_used_bytes", &["user=\"ann\"", "period=\"day\""])
}

fn await_that(program: &Program, what: &str, is_met: impl Fn(&Program) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_met(program) {
        assert!(Instant::now() < until, "{what}:\n{}", program.get("/metrics"));
        let_pass(Duration::from_millis(2));
    }
}

/// Waits until the file has everything that was counted.
fn await_saved(program: &Program, bytes: u64) {
    await_that(program, "saved", |program| {
        used(program) == bytes && program.sum("spliceway_quota_unsaved_bytes", &[]) == 0
    });
}

/// Sends bytes through an echo. They count twice, because they move in both directions.
fn exchange(client: &mut TcpStream, bytes: usize) {
    let sent = pattern(3, bytes);
    client.write_all(&sent).unwrap();
    assert_eq!(read_exactly(client, bytes), sent);
}

/// Returns a target that serves each client in this way.
fn target(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(client));
        }
    });
    address
}

/// Sends to a client from its first byte until the connection ends.
fn flood(mut client: TcpStream) {
    let bytes = vec![7; 256 << 10];
    let _ = client.read_exact(&mut [0]);
    while client.write_all(&bytes).is_ok() {}
}

/// Receives from a client until the connection ends.
fn swallow(mut client: TcpStream) {
    let _ = std::io::copy(&mut client, &mut std::io::sink());
}

fn endless() -> SocketAddr {
    target(flood)
}

/// Returns the number in this field of a record.
fn field(record: &str, name: &str) -> u64 {
    let (_, rest) = record
        .split_once(&format!(" {name}="))
        .unwrap_or_else(|| panic!("{record}"));
    let digits = rest.split(' ').next().unwrap();
    digits.parse().unwrap_or_else(|_| panic!("{record}"))
}

/// Sends the head of a request by ann. `fields` are further lines of the head.
fn http(program: &Program, request: &str, fields: &str) -> TcpStream {
    let mut client = program.connect();
    // ann:wonderland
    let head =
        format!("{request} HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic YW5uOndvbmRlcmxhbmQ=\r\n{fields}\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client
}

/// Asks for one connection from a peer, which is served in this way.
fn bound(program: &Program, serve: fn(TcpStream)) -> TcpStream {
    let (mut client, _) = authenticated(program, "ann", "wonderland");
    client.write_all(&[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let reply = read_exactly(&mut client, 10);
    let port = u16::from_be_bytes([reply[8], reply[9]]);
    let peer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    thread::spawn(move || serve(peer));
    assert_eq!(read_exactly(&mut client, 10)[1], 0);
    client
}

#[test]
fn each_kind_of_session_and_direction_counts_and_is_cut() {
    const QUOTA: u64 = 3 * MB;
    const LARGE: &str = "Content-Length: 1000000000\r\n";
    let quotas = Quotas::new("each-kind", "mixed", &ann("\"3MB/day\""));
    let mut program = quotas.run();
    let to = [flood, swallow].map(target);
    let tunnel = |program: &Program, to: SocketAddr| {
        let mut client = http(program, &format!("CONNECT {to}"), "");
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        client
    };
    let forward =
        |program: &Program, method: &str, to, field: &str| http(program, &format!("{method} http://{to}/"), field);
    type Open<'a> = &'a dyn Fn(&Program) -> TcpStream;
    let kinds: [(&str, bool, Open<'_>); 9] = [
        ("SOCKS5", false, &|program| session(program, "ann", to[0])),
        ("SOCKS5", true, &|program| session(program, "ann", to[1])),
        ("BIND", false, &|program| bound(program, flood)),
        ("BIND", true, &|program| bound(program, swallow)),
        ("CONNECT", false, &|program| tunnel(program, to[0])),
        ("CONNECT", true, &|program| tunnel(program, to[1])),
        ("GET", false, &|program| forward(program, "GET", to[0], "")),
        ("POST", true, &|program| forward(program, "POST", to[1], LARGE)),
        ("chunks", true, &|program| {
            forward(program, "POST", to[1], "Transfer-Encoding: chunked\r\n")
        }),
    ];
    let chunk = [&b"10000\r\n"[..], &[7; 0x10000], b"\r\n"].concat();
    for (kind, is_upload, open) in kinds {
        let mut client = open(&program);
        match is_upload {
            true => while client.write_all(&chunk).is_ok() {},
            false => {
                let _ = client.write_all(b"x");
                swallow(client);
            }
        }
        let record = program.line("end=quota");
        let [up, down, spliced_up, spliced_down] =
            ["bytes_up", "bytes_down", "spliced_up", "spliced_down"].map(|name| field(&record, name));
        let moved = if is_upload { up } else { down };
        // A poll that has not used up its budget of 1 MiB may splice up to 1 MiB more.
        assert!((QUOTA..=QUOTA + (2 << 20)).contains(&(up + down)), "{kind}: {record}");
        assert!(moved > QUOTA / 100 * 99, "{kind}: {record}");
        if kind != "chunks" {
            assert!(spliced_up + spliced_down > QUOTA / 10 * 9, "{kind}: {record}");
        }
        await_that(&program, kind, |program| used(program) == up + down);
        assert_eq!(quotas.socket.ask("POST", "/v1/users/ann/reset").0, 200, "{kind}");
    }
}

#[test]
fn a_reload_changes_the_quota_of_sessions_that_run() {
    let quotas = Quotas::new("reload", "socks5", &ann("\"1MB/day\""));
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let (mut busy, mut idle) = (session(&program, "ann", target), session(&program, "ann", target));
    exchange(&mut busy, 400_000);
    quotas.write(&ann("[\"1GB/day\", \"2MB/month\"]"));
    program.reload();
    exchange(&mut busy, 400_000);
    quotas.write("");
    program.reload();
    exchange(&mut busy, 600_000);
    assert_eq!(program.sum("spliceway_user_quota_bytes", &[]), 0);
    // What was used without a quota counts, too.
    quotas.write(&ann("\"2MB/month\""));
    program.reload();
    for client in [&mut busy, &mut idle] {
        assert!(is_closed(client));
        program.line("end=quota");
    }
    assert_eq!(ask(&program, "ann", target).1, 2);
}

#[test]
fn a_used_up_quota_ends_the_sessions_of_its_user_and_refuses_more() {
    let quotas = Quotas::new("used-up", "mixed", &ann("\"1MB/day\""));
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let mut idle = session(&program, "ann", target);
    let mut bob = session(&program, "bob", target);
    let mut client = session(&program, "ann", endless());
    client.write_all(b"x").unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    assert!(is_closed(&mut idle));
    for _ in 0..2 {
        let record = program.line("end=quota");
        assert!(record.contains("user=\"ann\""), "{record}");
    }
    assert_eq!(ask(&program, "ann", target).1, 2, "not allowed");
    program.line("end=denied:quota");
    let mut client = http(&program, &format!("CONNECT {target}"), "");
    assert!(read_head(&mut client).starts_with("HTTP/1.1 403 "));
    program.await_sum("spliceway_refused_total", &["reason=\"quota\""], 2);
    exchange(&mut bob, 1000);
    drop(session(&program, "bob", target));
    // With a higher quota, the user has what is left of it.
    quotas.write(&ann("\"100MB/day\""));
    program.reload();
    exchange(&mut session(&program, "ann", target), 1000);
    quotas.write(&ann("\"1MB/day\""));
    program.reload();
    assert_eq!(ask(&program, "ann", target).1, 2);
}

#[test]
fn datagrams_use_up_a_quota_in_both_directions() {
    const EACH: u64 = 1_000;
    let quotas = Quotas::new("datagrams", "socks5", &ann("\"10KB/day\""));
    let (mut program, target) = (quotas.run(), shouting("127.0.0.1:0"));
    let [(mut idle, _), (mut client, relay)] = [(); 2].map(|()| {
        let (client, status) = authenticated(&program, "ann", "wonderland");
        assert_eq!(status, 0);
        associated_by(client)
    });
    let (socket, _) = socket("127.0.0.1:0");
    for number in 1..=4 {
        socket.send_to(&wrapped(target, &[b'a'; EACH as usize]), relay).unwrap();
        assert_eq!(received(&socket), wrapped(target, &[b'A'; EACH as usize]));
        program.await_sum("spliceway_user_bytes_total", &["user=\"ann\""], 2 * number * EACH);
    }
    // Datagrams that are refused do not count.
    socket.send_to(&wrapped(program.address, b"loop"), relay).unwrap();
    // The quota is used up by the first of these.
    for _ in 0..100 {
        let _ = socket.send_to(&wrapped(target, &[b'a'; 2 * EACH as usize]), relay);
    }
    assert!(is_closed(&mut idle) && is_closed(&mut client));
    let records = [program.line("end=quota"), program.line("end=quota")];
    let moved = |record: &String| field(record, "datagram_bytes_up") + field(record, "datagram_bytes_down");
    let moved: u64 = records.iter().map(moved).sum();
    assert!(moved >= 10 * EACH, "{moved}");
    await_saved(&program, moved);
    assert_eq!(ask(&program, "ann", target).1, 2, "not allowed");
    program.line("end=denied:quota");
}

#[test]
fn many_sessions_exceed_a_quota_by_at_most_one_poll_budget_each() {
    const SESSIONS: u64 = 16;
    const QUOTA: u64 = 24 * MB;
    for (splice, budget) in [("on", 2 << 20), ("off", 320 << 10)] {
        let limits = ann("[\"24MB/day\", \"1TB/month\"]") + &format!("[engine]\nsplice = \"{splice}\"\n");
        let quotas = Quotas::new(&format!("many-{splice}"), "socks5", &limits);
        let (mut program, target) = (quotas.run(), endless());
        let mut clients: Vec<_> = (0..SESSIONS).map(|_| session(&program, "ann", target)).collect();
        thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| {
                    client.write_all(b"x").unwrap();
                    let _ = std::io::copy(client, &mut std::io::sink());
                });
            }
        });
        let records: Vec<_> = (0..SESSIONS).map(|_| program.line("end=quota")).collect();
        let moved: u64 = records
            .iter()
            .map(|record| field(record, "bytes_up") + field(record, "bytes_down"))
            .sum();
        println!("splice {splice}: {} bytes above the quota", moved - QUOTA);
        assert!(
            (QUOTA..=QUOTA + SESSIONS * budget).contains(&moved),
            "{splice}: {moved}"
        );
        await_saved(&program, moved);
        let labels = ["user=\"ann\""];
        assert_eq!(program.sum("spliceway_user_bytes_total", &labels), moved);
        assert_eq!(
            program.sum("spliceway_user_quota_used_bytes", &["period=\"month\""]),
            moved
        );
    }
}

#[test]
fn an_operator_sees_users_and_resets_them() {
    let limits = ann("\"1MB/day\"") + "max_conns = 9\nrate_in = \"5MB\"\n";
    let quotas = Quotas::new("reset", "socks5", &limits);
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let mut client = session(&program, "ann", endless());
    client.write_all(b"x").unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    program.line("end=quota");
    assert_eq!(ask(&program, "ann", target).1, 2);
    let (status, page) = quotas.socket.ask("GET", "/v1/users");
    assert_eq!((status, &page["users"][0]["user"]), (200, &"ann".into()));
    let limits = ["max_conns", "rate_in", "rate_out"].map(|limit| page["users"][0][limit].as_u64());
    assert_eq!(limits, [Some(9), Some(5 * MB), None]);
    let day = &page["users"][0]["used"][0];
    assert_eq!((day["period"].as_str(), day["quota"].as_u64()), (Some("day"), Some(MB)));
    assert_eq!(day["bytes"].as_u64(), Some(used(&program)));
    assert!(day["resets"].as_str().unwrap().ends_with("T00:00:00Z"));
    let shown = |arguments: &[&str]| {
        let output = quotas.socket.command(arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for text in [shown(&["status"]), shown(&["users"])] {
        let line = text
            .lines()
            .find(|line| line.starts_with("ann "))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("/9 ") && line.contains(" 100 %"), "{line}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    let was = format!("reset ann: was {:.1} MB today\n", used(&program) as f64 / 1e6);
    assert_eq!(shown(&["users", "--reset", "ann"]), was);
    assert_eq!(shown(&["users", "--reset", "ann"]), "reset ann: was 0 B today\n");
    let unknown = quotas.socket.command(&["users", "--reset", "eve"]);
    let told = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(told.contains("there is no user `eve` with a limit"), "{told}");
    assert_eq!(quotas.socket.ask("POST", "/v1/users/a%2fb/reset").0, 404);
    let mut client = session(&program, "ann", target);
    exchange(&mut client, 1000);
    await_saved(&program, 2000);
    let (_, page) = quotas.socket.ask("GET", "/v1/sessions?user=ann");
    let mut sessions = page["sessions"].as_array().unwrap().iter();
    assert!(
        sessions.any(|session| session["quota_used"].as_f64() == Some(0.002)),
        "{page}"
    );
    program.kill();
    assert_eq!(used(&quotas.run()), 2000);
}

#[test]
fn http_requests_count_as_their_records_say() {
    let quotas = Quotas::new("kinds", "mixed", &ann("\"1GB/day\""));
    let mut program = quotas.run();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for (method, field, body) in [("GET", "", ""), ("POST", "Content-Length: 5\r\n", "12345")] {
        let mut client = http(&program, &format!("{method} http://{address}/"), field);
        client.write_all(body.as_bytes()).unwrap();
        let mut target = crate::harness::accept(&listener);
        read_head(&mut target);
        read_exactly(&mut target, body.len());
        target
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
            .unwrap();
        drop(target);
        assert!(read_message(&mut client).ends_with("abc"));
    }
    // A target that gives no answer has received the request, too.
    let mut client = http(&program, &format!("GET http://{address}/silent"), "");
    let mut target = crate::harness::accept(&listener);
    let head = read_head(&mut target);
    drop(target);
    assert!(read_head(&mut client).starts_with("HTTP/1.1 502 "));
    drop(client);
    let records = [(); 3].map(|()| program.line_with_any(&["end=answered", "end=upstream_eof"]));
    let silent = records.iter().find(|record| record.contains("bytes_down=0"));
    assert_eq!(field(silent.unwrap(), "bytes_up"), head.len() as u64);
    let moved = records
        .iter()
        .map(|record| field(record, "bytes_up") + field(record, "bytes_down"));
    await_saved(&program, moved.sum());
}
