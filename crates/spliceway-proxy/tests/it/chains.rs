//! Services whose targets are services of the same program.

use std::io::{Read, Write};
use std::net::SocketAddr;

use crate::clients::exchange;
use crate::harness::{Folder, Program, TextFile, address_in, echo, is_closed, refusing};

fn services(parts: &[(&str, &str, &str)]) -> String {
    let service = |(name, to, more): &(&str, &str, &str)| {
        format!("[[service]]\nkind = \"forward\"\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n{more}\n")
    };
    let services: String = parts.iter().map(service).collect();
    format!("admin.metrics = \"127.0.0.1:0\"\n{services}")
}

/// Starts services without targets, and returns their addresses. A reload brings the targets.
fn started(names: &[&str]) -> (Program, TextFile, Vec<SocketAddr>) {
    let nowhere = refusing().to_string();
    let parts: Vec<_> = names.iter().map(|name| (*name, nowhere.as_str(), "")).collect();
    let config = TextFile::new(&services(&parts));
    let mut program = Program::run(&config);
    // The start has read the line of the first service.
    let first = program.address;
    let listening = |name: &&str| address_in(&program.line(&format!("{name} listening on")));
    let others = names[1..].iter().map(listening).collect::<Vec<_>>();
    (program, config, [vec![first], others].concat())
}

#[test]
fn services_of_one_program_may_be_chained() {
    let (mut program, config, at) = started(&["first", "second", "third"]);
    let [second, third, target] = [at[1], at[2], echo("127.0.0.1:0")].map(|address| address.to_string());
    config.write(&services(&[
        ("first", &second, "send_proxy = \"v2\""),
        ("second", &third, "accept_proxy = \"v2\"\nproxy_from = [\"127.0.0.1\"]"),
        ("third", &target, ""),
    ]));
    assert!(program.reload().contains("changed first"));
    exchange(crate::harness::connect(at[0]));
    program.await_sum("spliceway_connections_total", &["end=\"client_eof\""], 3);
    assert_eq!(program.sum("spliceway_refused_total", &["reason=\"loop\""]), 0);
}

#[test]
fn a_loop_of_services_ends_after_a_few_hops() {
    let (mut program, config, at) = started(&["first", "second"]);
    let to = |port: u16| format!("127.0.0.1:{port}");
    // The ports are not in the configuration, so only the hops show the loop.
    let (first, second) = (to(at[1].port()), to(at[0].port()));
    config.write(&services(&[("first", &first, ""), ("second", &second, "")]));
    assert!(program.reload().contains("changed first"));
    let mut client = crate::harness::connect(at[0]);
    assert!(is_closed(&mut client));
    drop(client);
    program.await_end("denied:loop");
    program.await_sum("spliceway_connections_total", &[], 5);
    assert_eq!(program.sum("spliceway_connections_total", &[]), 5);
    assert_eq!(program.sum("spliceway_connections_total", &["end=\"denied:loop\""]), 1);
}

#[test]
fn a_hop_may_use_a_unix_socket_and_its_loop_ends() {
    let folder = Folder::new("chains");
    let path = folder.0.join("s").display().to_string();
    let target = echo("127.0.0.1:0").to_string();
    let config = |to: &str| {
        format!(
            "admin.metrics = \"127.0.0.1:0\"\n\
             [[service]]\nkind = \"forward\"\nname = \"first\"\nlisten = \"127.0.0.1:0\"\nto = \"unix:{path}\"\n\
             [[service]]\nkind = \"forward\"\nname = \"second\"\nlisten = \"unix:{path}\"\nto = \"{to}\"\n"
        )
    };
    let file = TextFile::new(&config(&target));
    let mut program = Program::run(&file);
    let first = program.address;
    exchange(crate::harness::connect(first));
    file.write(&config(&first.to_string()));
    assert!(program.reload().contains("changed second"));
    assert!(is_closed(&mut crate::harness::connect(first)));
    program.await_end("denied:loop");
}

/// A proxy on loopback asks nobody for a password. Its clients over a hop may be on other machines.
#[test]
fn a_hop_makes_no_client_of_another_machine_a_local_one() {
    let nowhere = refusing().to_string();
    let config = |to: [&str; 2]| {
        format!(
            "admin.metrics = \"127.0.0.1:0\"\n\
             [[service]]\nkind = \"forward\"\nname = \"open\"\nlisten = \"0.0.0.0:0\"\nto = \"{}\"\n\
             [[service]]\nkind = \"forward\"\nname = \"second\"\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\n\
             [[service]]\nkind = \"socks5\"\nname = \"proxy\"\nlisten = \"127.0.0.1:0\"\n",
            to[0], to[1]
        )
    };
    let file = TextFile::new(&config([&nowhere, &nowhere]));
    let mut program = Program::run(&file);
    let port = program.address.port();
    let [second, proxy] = ["second", "proxy"].map(|name| address_in(&program.line(&format!("{name} listening on"))));
    // The ports are not in the configuration, so that only the hops show the way to the proxy.
    file.write(&config([&second.to_string(), &proxy.to_string()]));
    assert!(program.reload().contains("changed open"));
    let agrees = |address: SocketAddr| {
        let mut client = crate::harness::connect(address);
        let mut answer = [0; 2];
        // A refused client may see the reset before it has written.
        let has_answer = client
            .write_all(&[5, 1, 0])
            .and_then(|()| client.read_exact(&mut answer));
        has_answer.is_ok() && answer == [5, 0]
    };
    assert!(agrees(second), "a client of a service on loopback");
    assert!(!agrees(([127, 0, 0, 1], port).into()));
    program.await_end("denied:client");
}
