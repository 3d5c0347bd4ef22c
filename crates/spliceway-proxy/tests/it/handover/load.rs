//! Upgrades under load: no connection is refused or reset, and every byte arrives.
//!
//! `SPLICEWAY_UPGRADES=20 SPLICEWAY_SESSIONS=1000 cargo test --release -p spliceway-proxy --test it
//! handover::load -- --nocapture` runs the long form.

use std::env;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bulk, PERIOD, ask, fill, upgrade};
use crate::harness::{
    Program, TextFile, accept, address_in, assert_same, connect, echo, let_pass, listen, pattern, read_all,
    read_exactly, send_and_finish,
};

fn asked(name: &str, default: usize) -> usize {
    env::var(name)
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(default)
}

fn service(name: &str, to: &str, rest: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n{rest}\n")
}

/// Sessions that do nothing during the upgrades. Each pair is a client and its target.
struct Held {
    idle: Vec<(TcpStream, TcpStream)>,
    /// The clients have sent their end of stream.
    half_closed: Vec<(TcpStream, TcpStream)>,
    /// The targets do not read, and the relay holds bytes for them. The number is what was sent.
    stuck: Vec<(TcpStream, TcpStream, usize)>,
}

impl Held {
    fn open(address: SocketAddr, listener: &TcpListener, count: usize) -> Self {
        let open = || (connect(address), accept(listener));
        let half_closed = || {
            let (client, target) = open();
            send_and_finish(&client, b"question");
            assert_eq!(read_all(&target), b"question");
            (client, target)
        };
        let stuck = || {
            let (mut client, target) = open();
            let sent = fill(&mut client, &pattern(7, PERIOD));
            (client, target, sent)
        };
        Self {
            idle: (0..count).map(|_| open()).collect(),
            half_closed: (0..count).map(|_| half_closed()).collect(),
            // Each one fills several MB of the kernel's memory.
            stuck: (0..4).map(|_| stuck()).collect(),
        }
    }

    /// Checks that every session still works, and ends it.
    fn finish(self) {
        for (mut client, mut target) in self.idle {
            client.write_all(b"late").unwrap();
            assert_eq!(read_exactly(&mut target, 4), b"late");
            target.write_all(b"later").unwrap();
            assert_eq!(read_exactly(&mut client, 5), b"later");
        }
        for (client, mut target) in self.half_closed {
            target.write_all(b"answer").unwrap();
            drop(target);
            assert_eq!(read_all(&client), b"answer");
        }
        let bytes = pattern(7, PERIOD);
        for (client, target, sent) in self.stuck {
            client.shutdown(Shutdown::Write).unwrap();
            let arrived = read_all(&target);
            assert_eq!(arrived.len(), sent);
            for part in arrived.chunks(PERIOD) {
                assert_same(part, &bytes[..part.len()]);
            }
        }
    }
}

#[test]
fn upgrades_under_load_refuse_reset_and_lose_nothing() {
    let (upgrades, sessions) = (asked("SPLICEWAY_UPGRADES", 3), asked("SPLICEWAY_SESSIONS", 100));
    let (listener, target) = listen();
    let echo = echo("127.0.0.1:0").to_string();
    let config = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[timeouts]\nhalf_close = \"1h\"\n{}{}{}",
        service("echo", &echo, ""),
        service("held", &target.to_string(), ""),
        service("slow", &echo, "rate_in = [\"20MB:connection\"]"),
    ));
    let mut program = Program::run(&config);
    let held = address_in(&program.line("held listening on "));
    let slow = address_in(&program.line("slow listening on "));
    let address = program.address;
    let stop = Arc::new(AtomicBool::new(false));
    let connections = Arc::new(AtomicU64::new(0));
    // 200 new connections each second, each with one request.
    let arriving = thread::spawn({
        let (stop, connections) = (Arc::clone(&stop), Arc::clone(&connections));
        move || {
            let start = Instant::now();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                ask(&mut connect(address), number);
                connections.fetch_add(1, Ordering::Relaxed);
                let next = start + Duration::from_millis(5 * (number + 1));
                let_pass(next.saturating_duration_since(Instant::now()));
            }
        }
    });
    // A quarter of the sessions is idle, a quarter is half-closed, and a half sends requests.
    let held = Held::open(held, &listener, sessions / 4);
    let mut clients: Vec<_> = (0..sessions / 2).map(|_| connect(address)).collect();
    let bulk: Vec<_> = (0..8)
        .map(|seed| Bulk::start(connect(if seed < 4 { address } else { slow }), seed))
        .collect();
    for client in &mut clients {
        ask(client, 1);
    }
    // An earlier process may still have sessions that have just begun.
    let mut processes = Vec::new();
    for round in 0..upgrades as u64 {
        let next = upgrade(&mut program, processes.last());
        processes.push(next);
        for client in &mut clients {
            ask(client, round);
        }
    }
    stop.store(true, Ordering::Relaxed);
    arriving.join().unwrap();
    let bytes: usize = bulk.into_iter().map(Bulk::finish).sum();
    held.finish();
    println!(
        "{upgrades} upgrades, {sessions} sessions, {} new connections, {bytes} bytes of bulk: nothing was refused, reset or lost",
        connections.load(Ordering::Relaxed)
    );
    assert!(connections.load(Ordering::Relaxed) > 0);
}
