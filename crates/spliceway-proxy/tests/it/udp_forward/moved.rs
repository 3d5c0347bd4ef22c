//! Clients that never pause, while their target changes. Their targets never answer.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{client, socket};
use crate::admin::Socket;
use crate::balance::names::dns;
use crate::harness::{PATIENCE, Program, TextFile};

/// A session asks after a quarter of this time. The pauses of the clients are shorter.
const TIMEOUT: &str = "2s";
const PAUSE: Duration = Duration::from_millis(20);

/// Sends datagrams until `target` receives one.
fn send_until_received(client: &UdpSocket, target: &UdpSocket) {
    target.set_read_timeout(Some(PAUSE)).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        client.send(b"line").unwrap();
        if target.recv(&mut [0; 16]).is_ok() {
            return;
        }
        assert!(Instant::now() < until, "the target receives nothing");
    }
}

/// Returns a target on one port of two addresses.
fn two_on_one_port() -> ([UdpSocket; 2], u16) {
    loop {
        let (one, address) = socket("127.0.0.1:0");
        // Another program may use the port on the second address.
        if let Ok(two) = UdpSocket::bind(("127.0.0.2", address.port())) {
            return ([one, two], address.port());
        }
    }
}

#[test]
fn after_a_reload_a_client_that_never_pauses_reaches_the_new_target() {
    let [(old, old_address), (new, new_address)] = [(); 2].map(|()| socket("127.0.0.1:0"));
    let text = |to: SocketAddr| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[timeouts]\nudp = \"{TIMEOUT}\"\n[[service]]\nname = \"syslog\"\nkind = \"forward\"\nudp = true\n\
             listen = \"127.0.0.1:0\"\nto = \"{to}\"\n"
        )
    };
    let file = TextFile::new(&text(old_address));
    let mut program = Program::run(&file);
    let client = client(&program);
    send_until_received(&client, &old);
    file.write(&text(new_address));
    assert!(program.reload().contains("changed syslog"));
    send_until_received(&client, &new);
    assert!(program.line("end=").contains("end=idle"));
}

#[test]
fn a_client_that_never_pauses_follows_the_address_of_a_name() {
    for each_address in [&[][..], &["--each-address"]] {
        let ([old, new], port) = two_on_one_port();
        let addresses = Arc::new(Mutex::new(vec![Ipv4Addr::new(127, 0, 0, 1)]));
        let dns = dns(&addresses).to_string();
        let options = ["--udp", "--udp-timeout", TIMEOUT, "--dns", &dns];
        let name = format!("log.example.:{port}");
        let start = ["forward", "-l", "127.0.0.1:0", "-r", &name, "--metrics", "127.0.0.1:0"];
        let program = Program::start(&[&start[..], &options, each_address].concat());
        let client = client(&program);
        send_until_received(&client, &old);
        *addresses.lock().unwrap() = vec![Ipv4Addr::new(127, 0, 0, 2)];
        send_until_received(&client, &new);
    }
}

#[test]
fn a_client_that_never_pauses_leaves_a_backend_that_drains() {
    let admin = Socket::new();
    let [(old, old_address), (new, new_address)] = [(); 2].map(|()| socket("127.0.0.1:0"));
    let other = new_address.to_string();
    let options = ["--udp", "--udp-timeout", TIMEOUT, "-r", &other, "--balance", "first"];
    let program = Program::forward(old_address, &[&options[..], &["--admin", &admin.address()]].concat());
    let client = client(&program);
    send_until_received(&client, &old);
    let path = format!("/v1/services/udp/backends/{old_address}/weight");
    assert_eq!(admin.ask_with("PUT", &path, "{\"weight\": 0}").0, 200);
    send_until_received(&client, &new);
}
