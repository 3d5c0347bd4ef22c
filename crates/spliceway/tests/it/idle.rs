//! After each of 10,000 relays has moved 256 KiB, each idle relay holds two descriptors and no
//! pipe.
//!
//! There are two relay processes with 5,000 relays each, and one process of peers for each of them.
//! A descriptor limit of 20,000 is therefore enough for every process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::{fs, thread};

use crate::role::{self, Role, heard, raise_descriptor_limit, say};

const PROCESSES: usize = 2;
const RELAYS: usize = 5_000;
const BYTES: usize = 256 << 10;
/// The most memory per relay, in bytes. It includes the relay's task, but not the kernel's memory
/// for the sockets. A debug build measured 1,700 bytes. A pipe or a buffer would be much larger.
const MEMORY_PER_RELAY: usize = 2_048;
const ROLES: &str = "idle::role_of_a_child_process";

#[test]
fn ten_thousand_idle_relays_hold_two_descriptors_each_and_no_pipe() {
    let mut pairs: Vec<_> = (0..PROCESSES)
        .map(|_| (Role::start(ROLES, "peers", None), Role::start(ROLES, "relays", None)))
        .collect();
    for (peers, relays) in &mut pairs {
        let upstream = peers.line();
        relays.say(&upstream);
        let address = relays.line();
        peers.say(&address);
    }
    for (peers, _) in &mut pairs {
        assert_eq!(peers.line(), "idle");
    }
    for (_, relays) in &mut pairs {
        relays.say("report");
        let [relays, descriptors, lent, idle, bytes] = relays.numbers()[..] else {
            panic!("five figures")
        };
        assert_eq!(relays, RELAYS);
        assert_eq!(lent, 0, "an idle relay holds no pipe");
        assert_eq!(
            descriptors,
            2 * relays + 2 * idle,
            "two sockets each, and what the pool keeps for a while"
        );
        assert!(
            bytes / relays <= MEMORY_PER_RELAY,
            "{} bytes of memory per relay",
            bytes / relays
        );
    }
}

/// Plays the role of a process that the test started. Does nothing in the test's own process.
#[test]
fn role_of_a_child_process() {
    match role::own().as_deref() {
        Some("peers") => peers(),
        Some("relays") => relays(),
        _ => {}
    }
}

/// Runs clients and servers. Each client sends through its relay, its server receives, and both
/// stay connected.
fn peers() {
    raise_descriptor_limit();
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    say(&server.local_addr().unwrap().to_string());
    let relay: SocketAddr = heard().parse().unwrap();
    // The maximum number of connections in flight. It is less than the backlog of a listener,
    // beyond which the kernel drops connections.
    let (start, started) = mpsc::sync_channel(64);
    let receiving = thread::spawn(move || {
        let (mut received, sent) = (vec![0; BYTES], vec![7; BYTES]);
        (0..RELAYS)
            .map(|_| {
                let (mut socket, _) = server.accept().unwrap();
                socket.read_exact(&mut received).unwrap();
                assert!(received == sent, "byte-exact");
                received.fill(0);
                started.recv().unwrap();
                socket
            })
            .collect::<Vec<_>>()
    });
    let sent = vec![7; BYTES];
    let clients: Vec<_> = (0..RELAYS)
        .map(|_| {
            start.send(()).unwrap();
            let mut socket = TcpStream::connect(relay).unwrap();
            socket.write_all(&sent).unwrap();
            socket
        })
        .collect();
    let servers = receiving.join().unwrap();
    say("idle");
    heard();
    drop((clients, servers));
}

fn relays() {
    raise_descriptor_limit();
    let upstream: SocketAddr = heard().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let (asked, mut ask) = tokio::sync::mpsc::channel::<()>(1);
    thread::spawn(move || {
        heard();
        asked.blocking_send(()).unwrap();
    });
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (descriptors, memory) = (open_descriptors(), resident_bytes());
        say(&listener.local_addr().unwrap().to_string());
        let mut started = 0;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (mut client, _) = accepted.unwrap();
                    started += 1;
                    tokio::spawn(async move {
                        let mut upstream = tokio::net::TcpStream::connect(upstream).await.unwrap();
                        let _ = spliceway::copy_bidirectional(&mut client, &mut upstream).await;
                    });
                }
                _ = ask.recv() => break,
            }
        }
        let pool = spliceway::PipePool::global().stats();
        say(&format!(
            "{started} relays: {} descriptors, {} pipes lent, {} pipes idle, {} bytes of memory",
            open_descriptors() - descriptors,
            pool.lent,
            pool.idle,
            resident_bytes() - memory,
        ));
    });
}

fn open_descriptors() -> usize {
    // Reading the directory opens one more descriptor, in every call.
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the resident memory without the pages of the program file, whose number depends on the
/// size of the program.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
