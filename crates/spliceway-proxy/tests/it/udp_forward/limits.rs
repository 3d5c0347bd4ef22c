//! Clients that are refused, and numbers of clients.

use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex};

use rustix::process::{Resource, getrlimit};

use super::{alone, assert_answered, client, client_at, forward, free, marking, received, received_from, socket};
use crate::balance::names::dns;
use crate::harness::{Program, TextFile, address_in, connect, echo, read_exactly, refused_to_start};

const DROPPED: &str = "spliceway_datagrams_dropped_total";

#[test]
fn at_the_limit_new_clients_are_dropped_and_sessions_continue() {
    let mut program = forward(marking("127.0.0.1:0", b'a'), &["--max-conns", "2"]);
    let clients = [client(&program), client(&program)];
    clients.iter().for_each(|client| assert_answered(client, 'a', "1"));
    let third = client(&program);
    third.send(b"1").unwrap();
    third.send(b"2").unwrap();
    program.await_sum(DROPPED, &["reason=\"max_conns\""], 2);
    clients.iter().for_each(|client| assert_answered(client, 'a', "2"));
    program.line("the limit on sessions is reached: datagrams of new clients are dropped");
    assert_eq!(program.sum("spliceway_connections_active", &[]), 2);
}

/// Anybody can forge addresses of clients, and each of them begins a session.
#[test]
fn forged_clients_leave_places_for_clients_with_connections() {
    let (stream, datagrams) = (echo("127.0.0.1:0"), marking("127.0.0.1:0", b'a'));
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[limits]\nmax_conns = 4\n\
         [[service]]\nkind = \"forward\"\nudp = true\nlisten = \"127.0.0.1:0\"\nto = \"{datagrams}\"\n\
         [[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{stream}\"\n"
    ));
    let mut program = Program::run(&file);
    let connections = address_in(&program.line("listening on"));
    let answered = [client(&program), client(&program)];
    answered.iter().for_each(|client| assert_answered(client, 'a', "1"));
    let forged: Vec<_> = (0..8).map(|_| client(&program)).collect();
    for client in &forged {
        client.send(b"forged").unwrap();
    }
    program.await_sum(DROPPED, &["reason=\"max_conns\""], 8);
    let mut connected = [connect(connections), connect(connections)];
    for client in &mut connected {
        client.write_all(b"stream").unwrap();
        assert_eq!(read_exactly(client, 6), b"stream");
    }
    answered.iter().for_each(|client| assert_answered(client, 'a', "2"));
    assert_eq!(program.sum("spliceway_connections_active", &[]), 4);
}

#[test]
fn a_client_above_its_limit_is_dropped_and_others_are_served() {
    let program = forward(marking("127.0.0.1:0", b'a'), &["--max-conns-per-ip", "1"]);
    assert_answered(&client(&program), 'a', "first");
    client(&program).send(b"second").unwrap();
    program.await_sum(DROPPED, &["reason=\"max_conns_per_ip\""], 1);
    assert_answered(&client_at("127.0.0.2:0", &program), 'a', "another");
}

#[test]
fn a_client_that_is_not_allowed_has_no_session_and_no_record() {
    let mut program = forward(
        marking("127.0.0.1:0", b'a'),
        &["--allow", "127.0.0.8/29", "--deny", "127.0.0.9"],
    );
    for address in ["127.0.0.1:0", "127.0.0.9:0"] {
        client_at(address, &program).send(b"no").unwrap();
    }
    program.await_sum(DROPPED, &["reason=\"client\""], 2);
    assert_answered(&client_at("127.0.0.10:0", &program), 'a', "yes");
    assert_eq!(program.sum("spliceway_connections_active", &[]), 1);
    assert_eq!(program.lines_with("end="), 0);
}

/// A rate of 10 bytes in a second owes the first datagram for longer than the test takes.
#[test]
fn datagrams_above_a_rate_are_dropped_in_each_direction() {
    let (target, address) = socket("127.0.0.1:0");
    let rates = ["--rate-in", "10B:client", "--rate-out", "10B:connection"];
    let program = forward(address, &rates);
    let clients = [client(&program), client(&program), client_at("127.0.0.2:0", &program)];
    for client in &clients {
        (0..2).for_each(|number| assert_eq!(client.send(&[number; 9_000]).unwrap(), 9_000));
    }
    program.await_sum(DROPPED, &["reason=\"rate\""], 4);
    for _ in ["127.0.0.1", "127.0.0.2"] {
        let (data, session) = received_from(&target);
        assert_eq!(data, [0; 9_000], "the first one of each address");
        (2..4).for_each(|number| assert_eq!(target.send_to(&[number; 9_000], session).unwrap(), 9_000));
    }
    program.await_sum(DROPPED, &["reason=\"rate\""], 6);
    for client in [&clients[0], &clients[2]] {
        assert_eq!(received(client), [2; 9_000]);
    }
    for direction in ["direction=\"up\"", "direction=\"down\""] {
        assert_eq!(program.sum("spliceway_datagrams_total", &[direction]), 2);
    }
}

#[test]
fn the_next_session_avoids_an_address_at_which_nothing_receives() {
    let target = marking("127.0.0.1:0", b'a');
    let server = dns(&Arc::new(Mutex::new(vec![
        Ipv4Addr::new(127, 0, 0, 66),
        Ipv4Addr::LOCALHOST,
    ])));
    let (name, server) = (format!("two.example:{}", target.port()), server.to_string());
    let mut program = Program::start(&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &name, "--dns", &server]);
    let client = client(&program);
    client.send(b"lost").unwrap();
    program.line("end=connect_failed:ECONNREFUSED");
    assert_answered(&client, 'a', "another");
}

/// A stranger can forge the address of the target. Each answer would be the next question.
#[test]
fn a_target_is_no_client_of_itself() {
    let (target, address) = socket("127.0.0.1:0");
    let program = forward(address, &[]);
    target.send_to(b"forged", program.address).unwrap();
    program.await_sum(DROPPED, &["reason=\"client\""], 1);
    let client = client(&program);
    client.send(b"question").unwrap();
    let (data, session) = received_from(&target);
    assert_eq!(data, b"question", "nothing came before it");
    target.send_to(b"answer", session).unwrap();
    assert_eq!(received(&client), b"answer");
}

#[test]
fn a_backend_is_a_client_of_the_others_and_a_name_of_none() {
    let [(a, first), (b, second)] = [socket("127.0.0.1:0"), socket("127.0.0.1:0")];
    let second = second.to_string();
    let mut program = forward(first, &["-r", &second, "--balance", "first"]);
    a.send_to(b"a", program.address).unwrap();
    assert_eq!(received(&b), b"a");
    b.send_to(b"b", program.address).unwrap();
    assert_eq!(received(&a), b"b");
    assert_eq!(program.lines_with("end="), 0);

    let name = format!("localhost:{}", first.port());
    let mut program = Program::start(&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &name]);
    a.send_to(b"a", program.address).unwrap();
    program.line("end=denied:loop");
}

#[test]
fn the_own_listeners_are_no_targets() {
    alone(|| {
        let own = free();
        let own_text = own.to_string();
        let refused = refused_to_start(&["forward", "--udp", "-l", &own_text, "-r", &own_text]);
        assert!(refused.contains("leads back to the same service"), "{refused}");
        // The start does not look up names.
        let server = dns(&Arc::new(Mutex::new(vec![Ipv4Addr::LOCALHOST]))).to_string();
        let name = format!("own.test:{}", own.port());
        let mut program = Program::start(&["forward", "--udp", "-l", &own_text, "-r", &name, "--dns", &server]);
        client(&program).send(b"a").unwrap();
        program.line("end=denied:loop");
    });
}

#[test]
fn a_listener_for_connections_is_no_loop_of_datagrams() {
    alone(|| {
        let target = marking("127.0.0.1:0", b'a');
        let listens = ["forward", "--udp", "-l", "127.0.0.1:0", "-r"];
        let metrics = target.to_string();
        let program = Program::start(&[&listens[..], &[&metrics, "--metrics", &metrics]].concat());
        assert_answered(&client(&program), 'a', "1");
    });
}

#[test]
fn ten_thousand_clients_have_small_sessions() {
    // Other tests need ports, too.
    alone(serve_ten_thousand);
}

fn serve_ten_thousand() {
    const MAX: u64 = 10_000;
    const EACH_BYTES: u64 = 16 << 10;
    // A quarter of the descriptors is for other purposes, and a session may need two of the rest.
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) / 8 * 3 - 64;
    let clients = u32::try_from(most.min(MAX)).unwrap();
    let (target, address) = socket("127.0.0.1:0");
    let program = forward(address, &["--udp-timeout", "10m", "--log-level", "warn"]);
    let resident = program.resident_bytes();
    for number in 0..clients {
        let ip = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 1).to_bits() + number);
        let client = UdpSocket::bind((ip, 0)).unwrap();
        client.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
        client.connect(program.address).unwrap();
        client.send(&number.to_be_bytes()).unwrap();
        let (data, session) = received_from(&target);
        assert_eq!(data, number.to_be_bytes());
        target.send_to(&data, session).unwrap();
        assert_eq!(received(&client), data);
    }
    let active = u64::from(clients);
    assert_eq!(program.sum("spliceway_connections_active", &[]), active);
    assert!(program.descriptors() >= clients as usize);
    let each = program.resident_bytes().saturating_sub(resident) / active;
    assert!(each < EACH_BYTES, "{each} bytes for each session");
}
