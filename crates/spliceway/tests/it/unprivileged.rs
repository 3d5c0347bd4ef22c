//! 300 simultaneous bulk relays of an unprivileged user are byte-exact. They leave half of that
//! user's pipe pages for the user's other programs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::{fs, thread};

use spliceway::PipePool;
use spliceway_core::Pipe;

use crate::role::{self, Role, heard, raise_descriptor_limit, say};
use crate::support::{short_queues, unpaced};

const RELAYS: usize = 300;
const BYTES: usize = 4 << 20;
const ROLES: &str = "unprivileged::role_of_a_child_process";

#[test]
fn three_hundred_bulk_relays_leave_half_of_the_pages_free() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let soft: usize = fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    unpaced(&upstream);
    short_queues(&upstream);
    // This user has no other processes, so that neither the pipes of other programs nor those of
    // another run of this test count.
    let uid = 60_000 + std::process::id();
    let mut relays = Role::start(ROLES, "relays", Some(uid));
    relays.say(&upstream.local_addr().unwrap().to_string());
    let relay: SocketAddr = relays.line().parse().unwrap();

    // The clients send and the servers do not read yet, so the relays fill their pipes and keep
    // them.
    let reading = Arc::new(Barrier::new(RELAYS + 1));
    let peers: Vec<_> = (0..RELAYS)
        .map(|stream| {
            let client = TcpStream::connect(relay).unwrap();
            unpaced(&client);
            short_queues(&client);
            let (server, _) = upstream.accept().unwrap();
            let reading = Arc::clone(&reading);
            let sending = thread::spawn(move || send(client));
            let receiving = thread::spawn(move || {
                reading.wait();
                receive(server, stream);
            });
            (sending, receiving)
        })
        .collect();
    let pages = loop {
        relays.say("report");
        let [lent, pages, denied] = relays.numbers()[..] else {
            panic!("three figures")
        };
        assert!(pages <= soft / 2, "{pages} pages of {soft}");
        if lent + denied >= RELAYS {
            break pages;
        }
    };
    let mut other_program = Role::start(ROLES, "other program", Some(uid));
    other_program.say(&(soft / 2).to_string());
    let [granted] = other_program.numbers()[..] else {
        panic!("one figure")
    };
    assert!(
        granted >= soft / 2,
        "another program of the user got {granted} pages beside our {pages}"
    );

    reading.wait();
    for (sending, receiving) in peers {
        sending.join().unwrap();
        receiving.join().unwrap();
    }
    relays.say("report");
    let [lent, ..] = relays.numbers()[..] else {
        panic!("three figures")
    };
    assert_eq!(lent, 0);
}

/// Plays the role of a process that the test started. Does nothing in the test's own process.
#[test]
fn role_of_a_child_process() {
    match role::own().as_deref() {
        Some("relays") => relays(),
        Some("other program") => other_program(),
        _ => {}
    }
}

/// Sends a stream whose first bytes identify it, because connected and accepted sockets may not
/// pair up in order.
fn send(mut client: TcpStream) {
    let name = client.local_addr().unwrap().port();
    client.write_all(&name.to_be_bytes()).unwrap();
    let block = block_of(name);
    for _ in 0..BYTES / block.len() {
        client.write_all(&block).unwrap();
    }
}

fn receive(mut server: TcpStream, stream: usize) {
    let mut name = [0; 2];
    server.read_exact(&mut name).unwrap();
    let expected = block_of(u16::from_be_bytes(name));
    let mut block = vec![0; expected.len()];
    for number in 0..BYTES / block.len() {
        server.read_exact(&mut block).unwrap();
        assert!(block == expected, "stream {stream}: block {number} is another's");
    }
    assert_eq!(
        server.read(&mut block).unwrap(),
        0,
        "stream {stream} ends where it should"
    );
}

/// Returns 65,521 bytes of a sequence that only this stream has. The length is a prime, so that no
/// buffer size divides it.
fn block_of(name: u16) -> Vec<u8> {
    let mut state = u32::from(name) | 1 << 16;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..65_521).map(|_| next()).collect()
}

fn relays() {
    raise_descriptor_limit();
    let upstream: SocketAddr = heard().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    thread::spawn(|| {
        loop {
            if heard() != "report" {
                return;
            }
            let pool = PipePool::global().stats();
            let denied: u64 = pool.denied.iter().map(|(_, count)| count).sum();
            say(&format!(
                "{} pipes lent, {} pages, {denied} denied",
                pool.lent, pool.pages
            ));
        }
    });
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        unpaced(&listener);
        short_queues(&listener);
        say(&listener.local_addr().unwrap().to_string());
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut upstream = tokio::net::TcpStream::connect(upstream).await.unwrap();
                unpaced(&upstream);
                short_queues(&upstream);
                spliceway::copy_bidirectional(&mut client, &mut upstream).await.unwrap();
            });
        }
    });
}

/// Opens pipes of the default size until it has this many pages, or until the kernel gives a pipe
/// fewer slots than the default.
fn other_program() {
    raise_descriptor_limit();
    let wanted: usize = heard().parse().unwrap();
    let (mut pipes, mut granted) = (Vec::new(), 0);
    while granted < wanted {
        let pipe = Pipe::new().unwrap();
        if pipe.capacity() < 64 << 10 {
            break;
        }
        granted += pipe.capacity() / rustix::param::page_size();
        pipes.push(pipe);
    }
    say(&format!("{granted} pages"));
    heard();
}
