//! Name servers that answer about one family only.

use std::time::{Duration, Instant};

use super::*;
use crate::harness::let_pass;
use crate::udp::associated_by;

/// Every lookup must be done before a server's time for an answer (5 s) has ended.
const SOON: Duration = Duration::from_secs(4);

/// Returns a machine whose server never answers about AAAA.
fn silent(name: &str) -> Option<Machine> {
    let machine = Machine::new(name)?;
    machine.write("resolv.conf", "nameserver 127.0.0.2\nsearch none.example\n");
    machine.first.has("a.example.", &["192.0.2.1"]);
    for name in ["a.example.", "short.none.example.", "short."] {
        machine.first.says_of(name, RecordType::AAAA, Says::Nothing);
    }
    machine.first.has("short.", &["192.0.2.1"]);
    Some(machine)
}

#[test]
fn silence_about_aaaa_does_not_delay_a_connection() {
    let Some(machine) = silent("tcp") else { return };
    let program = machine.socks5(&[]);
    let upstream = machine.socks5(&[]);
    let chain = machine.socks5(&["-x", &format!("socks5://{}", upstream.address)]);
    for name in ["a.example", "short"] {
        for program in [&program, &chain] {
            let start = Instant::now();
            assert_eq!(machine.connected(program, name), "192.0.2.1".parse().ok(), "{name}");
            assert!(start.elapsed() < SOON, "{name}: {:?}", start.elapsed());
        }
    }
}

#[test]
fn silence_about_aaaa_does_not_stop_datagrams() {
    let Some(machine) = silent("udp") else { return };
    let (target, address) = machine.inside(|| datagrams("192.0.2.1:0"));
    let to = format!("a.example:{}", address.port());
    let program = machine.start(&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &to]);
    let start = Instant::now();
    let (client, _) = machine.inside(|| datagrams("127.0.0.1:0"));
    client.send_to(b"one", program.address).unwrap();
    let mut bytes = [0; 64];
    assert_eq!(target.recv(&mut bytes).unwrap(), 3);
    let program = machine.socks5(&[]);
    let (_connection, relay) = machine.inside(|| associated_by(greeted(&program)));
    let header = [&[0, 0][..], &name_request("a.example", address.port())[2..]].concat();
    client.send_to(&[&header, &b"two!"[..]].concat(), relay).unwrap();
    assert_eq!(target.recv(&mut bytes).unwrap(), 4);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn an_address_that_changed_is_followed_whatever_aaaa_says() {
    for (name, answer) in [
        ("each-silent", Says::Nothing),
        ("each-servfail", Says::Code(ResponseCode::ServFail)),
        ("each-notimp", Says::Code(ResponseCode::NotImp)),
    ] {
        let Some(machine) = Machine::new(name) else { return };
        machine.write("resolv.conf", "nameserver 127.0.0.2\n");
        machine.first.has("a.example.", &["192.0.2.1"]);
        machine.first.says_of("a.example.", RecordType::AAAA, answer);
        let to = format!("a.example:{}", machine.port());
        let mut program = machine.start(&["forward", "-l", "127.0.0.1:0", "-r", &to, "--each-address"]);
        let backend = |ip: &str| format!("backend=\"{ip}:{}\"", machine.port());
        let is_member = |ip: &str| machine.inside(|| program.get("/metrics")).contains(&backend(ip));
        let until = Instant::now() + PATIENCE;
        while !is_member("192.0.2.1") {
            assert!(Instant::now() < until, "{name}: no member");
            let_pass(Duration::from_millis(20));
        }
        machine.first.has("a.example.", &["192.0.2.2"]);
        while is_member("192.0.2.1") || !is_member("192.0.2.2") {
            assert!(Instant::now() < until, "{name}: the address stays");
            let_pass(Duration::from_millis(20));
        }
        // The first lookup may fail before the service listens.
        let warning = "a part of the lookup of a name failed";
        if program.lines_with(warning) == 0 {
            program.line(warning);
        }
    }
}
