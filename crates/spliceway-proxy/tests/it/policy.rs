use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use spliceway_net::{Net, Offloads};

use crate::clients::{
    NOT_ALLOWED, SUCCEEDED, code, exchange, greeted, ip_request, name_request, read_head, socks4_request,
};
use crate::harness::{Program, connect, echo, is_closed, listen, read_all, read_exactly, was_reached};

/// The proxy itself refuses every target. Without the policy, other hosts would refuse most of
/// these connections or would not answer.
#[test]
fn remote_clients_reach_no_private_target() {
    let program = Program::public("mixed", &["--open"]);
    let (target, address) = listen();
    let port = address.port();
    let literal = [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ];
    for ip in literal {
        let target = SocketAddr::new(ip.parse().unwrap(), port);
        assert_eq!(code(&program, &ip_request(target)), NOT_ALLOWED, "{ip}");
        assert_eq!(code(&program, &name_request(ip, port)), NOT_ALLOWED, "{ip} as a name");
    }
    for name in ["localhost", "LocalHost", "localhost.", "LOCALHOST.", "foo.localhost"] {
        assert_eq!(code(&program, &name_request(name, port)), NOT_ALLOWED, "{name}");
    }
    for name in [None, Some("localhost"), Some("127.0.0.1")] {
        let mut client = program.connect();
        client.write_all(&socks4_request(address, "", name)).unwrap();
        assert_eq!(read_all(&client)[..2], [0, 91]);
    }
    for request in [
        format!("CONNECT localhost:{port} HTTP/1.1\r\n\r\n"),
        format!("CONNECT [::ffff:7f00:1]:{port} HTTP/1.1\r\n\r\n"),
        format!("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET http://LOCALHOST.:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let mut client = program.connect();
        client.write_all(request.as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 403 "), "{request}");
    }
    assert!(!was_reached(&target));
    assert_eq!(program.sum("spliceway_connect_seconds_count", &[]), 0);
    program.await_sum("spliceway_refused_total", &["reason=\"loopback\""], 1);
}

/// A firewall in front of this machine does not protect services that listen on the machine's own
/// address from the proxy.
#[test]
fn remote_clients_cannot_reach_this_machine_s_public_address() {
    let Some(net) = Net::chain(1, Offloads::On) else { return };
    let node = net.node(0);
    node.ip(&["link set lo up".to_owned(), "address add 8.8.4.4/32 dev lo".to_owned()])
        .unwrap();
    node.inside(|| {
        let target = TcpListener::bind("8.8.4.4:0").unwrap();
        let address = target.local_addr().unwrap();
        let open = Program::start(&["socks5", "-l", "8.8.4.4:0", "--open"]);
        assert_eq!(code(&open, &ip_request(address)), NOT_ALLOWED);
        assert!(!was_reached(&target));
        let private = Program::start(&["socks5", "-l", "8.8.4.4:0", "--open", "--allow-private"]);
        assert_eq!(code(&private, &ip_request(address)), SUCCEEDED);
        assert!(was_reached(&target));
    });
}

#[test]
fn private_targets_need_local_clients_or_allow_private() {
    let target = echo("127.0.0.1:0");
    for program in [
        Program::public("socks5", &["--open", "--allow-private"]),
        Program::socks5(&[]),
    ] {
        let mut client = greeted(&program);
        client.write_all(&ip_request(target)).unwrap();
        assert_eq!(read_exactly(&mut client, 10)[1], 0);
        exchange(client);
    }
}

#[test]
fn a_proxy_is_not_a_target_for_its_own_clients() {
    for program in [
        Program::socks5(&[]),
        Program::public("socks5", &["--open", "--allow-private"]),
    ] {
        let port = program.address.port();
        let mut own = vec![ip_request(program.address), name_request("localhost", port)];
        own.push(ip_request(SocketAddr::new([0, 0, 0, 0].into(), port)));
        for request in own {
            assert_eq!(code(&program, &request), NOT_ALLOWED, "{request:?}");
        }
        program.await_sum("spliceway_connections_total", &["end=\"denied:loop\""], 3);
    }
}

#[test]
fn an_open_proxy_starts_only_with_an_explicit_option() {
    for kind in ["socks5", "http", "mixed"] {
        let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
            .args([kind, "-l", "0.0.0.0:0"])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        for way_out in ["--auth-file", "--allow", "--open"] {
            assert!(stderr.contains(way_out), "{stderr}");
        }
    }
    Program::public("socks5", &["--allow", "127.0.0.0/8"]);
}

#[test]
fn clients_are_admitted_by_address_before_they_send_a_byte() {
    let target = echo("127.0.0.1:0");
    let admits = |arguments: &[&str]| {
        let program = Program::socks5(arguments);
        let mut client = connect(program.address);
        let _ = client.write_all(&[5, 1, 0]);
        if is_closed(&mut client) {
            program.await_end("denied:client");
            return false;
        }
        client.write_all(&ip_request(target)).unwrap();
        read_exactly(&mut client, 11);
        true
    };
    assert!(admits(&["--allow", "127.0.0.1"]));
    assert!(admits(&["--allow", "10.0.0.0/8", "--allow", "127.0.0.0/8"]));
    assert!(admits(&["--deny", "10.0.0.0/8"]));
    assert!(!admits(&["--allow", "10.0.0.0/8"]));
    assert!(!admits(&["--deny", "127.0.0.1"]));
    assert!(!admits(&["--allow", "127.0.0.0/8", "--deny", "127.0.0.1/32"]));
}
