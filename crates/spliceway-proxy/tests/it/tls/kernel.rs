//! TLS in the kernel, where the kernel has none: sessions stay in user space.

use std::thread;

use super::LARGE;
use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::server::{ANY, Authority, Server, Speaks};
use crate::harness::{
    Program, accept, assert_same, listen, pattern, read_all, read_exactly, refused_to_start, send_and_finish,
};

/// The kernel seems to have TLS until it gets a socket, which it refuses.
const PROBED: (&str, &str) = ("SPLICEWAY_TEST_KTLS_PROBED", "1");

fn has_module() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").is_ok_and(|all| all.contains("tls"))
}

/// The arguments of a forwarder that may give TLS to the kernel.
fn arguments<'a>(target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let all = ["forward", "-l", "127.0.0.1:0", "-r", target, "--metrics", "127.0.0.1:0"];
    [&all[..], &["--ktls", "on"], more].concat()
}

#[test]
fn a_kernel_without_tls_is_refused_or_not_used() {
    if has_module() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let said = refused_to_start(&arguments(&target.to_string(), &pair.arguments()));
    for part in ["ktls", "is on, and the kernel refuses TLS", "modprobe tls", "\"auto\""] {
        assert!(said.contains(part), "{said}");
    }
    let more = [&pair.arguments()[..], &["--ktls", "auto"]].concat();
    let mut program = Program::forward(target, &more);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let target = thread::spawn(move || {
        let target = accept(&listener);
        assert_same(&read_all(&target), &pattern(1, LARGE));
        send_and_finish(&target, &pattern(2, LARGE));
    });
    assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
    target.join().unwrap();
    let record = program.line("bytes_up=");
    assert!(!record.contains("kernel_tls="), "{record}");
    assert_eq!(program.sum("spliceway_kernel_tls_total", &[]), 0);
}

#[test]
fn a_client_whose_socket_the_kernel_refuses_continues_exactly() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let target = target.to_string();
    for (after, splice) in [("1", "auto"), ("1000000", "off"), ("5000000", "auto")] {
        let after = ("SPLICEWAY_TEST_KTLS_AFTER", after);
        let more = [&pair.arguments()[..], &["--splice", splice]].concat();
        let program = Program::start_with(&[PROBED, after], &arguments(&target, &more));
        let tries = 3;
        for _ in 0..tries {
            let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
            let mut target = accept(&listener);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let head = pattern(3, 70_000);
                    assert_same(&read_exactly(&mut target, head.len()), &head);
                    thread::scope(|scope| {
                        scope.spawn(|| send_and_finish(&target, &pattern(2, LARGE)));
                        assert_same(&read_all(&target), &pattern(1, LARGE));
                    });
                });
                for part in pattern(3, 70_000).chunks(35_000) {
                    client.update_keys();
                    client.send(part);
                }
                assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
            });
        }
        assert_eq!(refused(&program), tries, "{after:?}");
    }
}

fn refused(program: &Program) -> u64 {
    program.sum("spliceway_kernel_tls_total", &["result=\"refused\""])
}

#[test]
fn a_target_whose_socket_the_kernel_refuses_continues_exactly() {
    let pair = Pair::new(&["a.test"]);
    let authority = Authority::new("Test CA");
    let (issued, ca) = (authority.issue(&["127.0.0.1"]), authority.file());
    for ends_client_tls in [false, true] {
        let server = Server::speaking(&issued, Speaks { versions: TLS13, ..ANY });
        let target = server.target();
        let of_client = pair.arguments();
        let mut more = vec!["--target-tls-ca", ca.path()];
        if ends_client_tls {
            more.extend(of_client);
        }
        let after = ("SPLICEWAY_TEST_KTLS_AFTER", "300000");
        let program = Program::start_with(&[PROBED, after], &arguments(&target, &more));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut target = server.accept();
                assert_same(&target.exchange(&pattern(2, LARGE)).unwrap(), &pattern(1, LARGE));
            });
            if ends_client_tls {
                let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS13)).unwrap();
                assert_same(&client.exchange(&pattern(1, LARGE)).unwrap(), &pattern(2, LARGE));
            } else {
                let client = program.connect();
                scope.spawn({
                    let client = client.try_clone().unwrap();
                    move || send_and_finish(&client, &pattern(1, LARGE))
                });
                assert_same(&read_all(&client), &pattern(2, LARGE));
            }
        });
        assert_eq!(refused(&program), 1 + u64::from(ends_client_tls));
    }
}

#[test]
fn a_client_of_tls_1_2_stays_in_user_space() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let after = ("SPLICEWAY_TEST_KTLS_AFTER", "0");
    let program = Program::start_with(&[PROBED, after], &arguments(&target.to_string(), &pair.arguments()));
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS12)).unwrap();
    let target = accept(&listener);
    client.send(b"question");
    client.finish();
    assert_eq!(read_all(&target), b"question");
    send_and_finish(&target, b"answer");
    assert_eq!(client.rest().unwrap(), b"answer");
    assert_eq!(program.sum("spliceway_kernel_tls_total", &["result=\"version\""]), 1);
}
