//! What the old process knows about its backends is known in the new one.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use super::upgrade;
use crate::admin::Socket;
use crate::balance::names::{dns, two_on_one_port};
use crate::balance::{backend, shares};
use crate::harness::{Program, TextFile, address_in, connect, refusing};

fn set_weight(socket: &Socket, backend: &str, weight: &str) {
    let path = format!("/v1/services/forward/backends/{backend}/weight");
    let (code, answer) = socket.ask_with("PUT", &path, &format!("{{\"weight\": {weight}}}"));
    assert_eq!(code, 200, "{answer}");
}

fn states(socket: &Socket) -> Vec<String> {
    let (_, status) = socket.ask("GET", "/v1/status");
    let backends = status["services"][0]["backends"].as_array().unwrap().iter();
    backends.map(|one| one["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn ejected_and_drained_backends_get_no_clients_after_an_upgrade() {
    let (socket, dead) = (Socket::new(), refusing());
    let backends = [dead, backend(b'b'), backend(b'c')].map(|address| address.to_string());
    let file = TextFile::new(&format!(
        "[timeouts]\nhandshake = \"1m\"\n[admin]\nmetrics = \"127.0.0.1:0\"\nsocket = \"{}\"\n\
         [[service]]\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nbalance = \"round-robin\"\neject_after = 1\neject_time = \"1h\"\n\
         to = {backends:?}\n[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n",
        socket.address()
    ));
    let mut program = Program::run(&file);
    let proxy = address_in(&program.line("socks5 listening on "));
    set_weight(&socket, &backends[1], "0");
    assert_eq!(shares(&program, 4), BTreeMap::from([('c', 4)]));
    assert_eq!(states(&socket), ["ejected", "draining", "up"]);

    // A session that cannot move keeps the old process alive.
    let silent = connect(proxy);
    program.await_sum("spliceway_connections_active", &["socks5"], 1);
    let first = upgrade(&mut program, None);
    assert_eq!(states(&socket), ["ejected", "draining", "up"]);
    assert_eq!(shares(&program, 4), BTreeMap::from([('c', 4)]));
    set_weight(&socket, &backends[1], "3");
    assert!(!program.has_ended());
    drop(silent);
    assert!(program.exit().success());
    // The old process has not known the new weight at its end.
    assert_eq!(shares(&program, 8), BTreeMap::from([('b', 6), ('c', 2)]));

    let _second = upgrade(&mut program, Some(&first));
    assert_eq!(states(&socket), ["ejected", "up", "up"]);
    assert_eq!(shares(&program, 8), BTreeMap::from([('b', 6), ('c', 2)]));
    let dead = format!("backend=\"{dead}\"");
    assert_eq!(program.sum("spliceway_backend_failures_total", &[&dead]), 1);
}

#[test]
fn a_name_has_its_backends_after_an_upgrade_without_dns() {
    let socket = Socket::new();
    let addresses = Arc::new(Mutex::new(vec![
        Ipv4Addr::new(127, 0, 0, 1),
        Ipv4Addr::new(127, 0, 0, 2),
    ]));
    let (dns, port) = (dns(&addresses), two_on_one_port());
    let file = TextFile::new(&format!(
        "[timeouts]\nhandshake = \"1m\"\n[admin]\nmetrics = \"127.0.0.1:0\"\nsocket = \"{}\"\n\
         [[service]]\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nbalance = \"round-robin\"\neach_address = true\ndns = \"{dns}\"\nto = \"web.example.:{port}\"\n",
        socket.address()
    ));
    let mut program = Program::run(&file);
    assert_eq!(shares(&program, 4), BTreeMap::from([('a', 2), ('b', 2)]));
    set_weight(&socket, &format!("127.0.0.2:{port}"), "0");
    addresses.lock().unwrap().clear();
    let _process = upgrade(&mut program, None);
    assert_eq!(states(&socket), ["up", "draining"]);
    assert_eq!(shares(&program, 4), BTreeMap::from([('a', 4)]));
}
