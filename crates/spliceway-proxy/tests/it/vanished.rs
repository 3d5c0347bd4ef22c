//! A peer that vanishes without a FIN, while both directions carry bulk data. Only the idle timeout
//! detects this.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use spliceway_net::{Family, Net, Offloads, address};

use crate::harness::{PATIENCE, Program, accept, connect, let_pass};

const BULK: usize = 1 << 20;

#[test]
fn a_vanished_peer_ends_at_the_idle_timeout_without_a_leak() {
    for client_vanishes in [true, false] {
        let Some(net) = Net::of_three(Offloads::On) else { return };
        // The program and the code that queries it run on the node between client and target.
        net.node(1).inside(|| vanishes(&net, client_vanishes));
    }
}

fn vanishes(net: &Net, client_vanishes: bool) {
    let target = address(1, true, Family::V4);
    let listener = net.node(2).inside(|| TcpListener::bind((target, 0)).unwrap());
    let program = between(address(0, true, Family::V4), listener.local_addr().unwrap());
    let before = program.descriptors();

    let listens = program.address;
    let client = net.node(0).inside(|| connect(listens));
    let target = accept(&listener);
    let (stays, goes, cut) = if client_vanishes {
        (target, client, 0)
    } else {
        (client, target, 2)
    };
    let writers = [&stays, &goes].map(|peer| {
        let peer = peer.try_clone().unwrap();
        thread::spawn(move || write_until_closed(peer))
    });
    for mut peer in [&stays, &goes] {
        peer.read_exact(&mut vec![0; BULK]).unwrap();
    }

    let device = if client_vanishes { "right" } else { "left" };
    net.node(cut).ip(&[format!("link set {device} down")]).unwrap();
    // EOF or a reset follows the bytes that were in flight.
    let _ = io::copy(&mut &stays, &mut io::sink());
    program.await_end("idle");
    let until = Instant::now() + PATIENCE;
    let idle_pipes = || program.sum("spliceway_pipes", &["state=\"idle\""]) as usize;
    while program.descriptors() != before + 2 * idle_pipes() {
        assert!(
            Instant::now() < until,
            "{} descriptors, {before} before",
            program.descriptors()
        );
        let_pass(Duration::from_millis(2));
    }
    assert_eq!(program.sum("spliceway_pipes", &["state=\"lent\""]), 0);
    goes.shutdown(Shutdown::Both).unwrap();
    for writer in writers {
        writer.join().unwrap();
    }
}

/// Starts the program, which relays from any port on `listens` to `target`.
fn between(listens: IpAddr, target: SocketAddr) -> Program {
    let (listens, target) = (SocketAddr::new(listens, 0).to_string(), target.to_string());
    let metrics = ["--metrics", "127.0.0.1:0", "--idle-timeout", "1s"];
    Program::start(&[&["forward", "-l", &listens, "-r", &target], &metrics[..]].concat())
}

fn write_until_closed(mut to: TcpStream) {
    while to.write_all(&[b'x'; 64 << 10]).is_ok() {}
}
