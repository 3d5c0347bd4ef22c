//! Clients behind TLS that leave before the program has reached their target.

use std::net::SocketAddr;

use super::client::{Client, Config, Pair, TLS12, TLS13};
use crate::harness::Program;
use crate::leaving::{await_descriptors, silent};

/// A connect timeout that is longer than the test's own deadlines, so it never ends a wait.
const PATIENT: [&str; 2] = ["--connect-timeout", "60s"];
const CLIENTS: u64 = 20;
const LEFT: &str = "end=\"client_eof\"";

/// Returns a greeting and a request.
fn request(command: u8, target: SocketAddr) -> Vec<u8> {
    let mut words = super::socks5(target);
    words[4] = command;
    words
}

#[test]
fn a_client_that_announces_its_end_while_it_waits_frees_its_session() {
    let pair = Pair::new(&["a.test"]);
    let (_silent, address) = silent();
    for versions in [TLS12, TLS13] {
        for (command, answered) in [(1, 2), (2, 12)] {
            let program = Program::socks5(&[&pair.arguments()[..], &PATIENT].concat());
            let config = Config::new(&pair).versions(versions);
            let before = program.descriptors();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    let mut client = Client::connect(&program, &config).unwrap();
                    client.send(&request(command, address));
                    client.receive(answered);
                    client
                })
                .collect();
            program.await_sum("spliceway_connections_active", &[], CLIENTS);
            for mut client in clients {
                client.finish();
            }
            program.await_sum("spliceway_connections_total", &[LEFT], CLIENTS);
            await_descriptors(&program, before);
        }
    }
}

#[test]
fn a_client_that_finishes_with_early_data_unread_waits_for_its_answer() {
    let pair = Pair::new(&["a.test"]);
    let (_silent, address) = silent();
    for versions in [TLS12, TLS13] {
        let program = Program::socks5(&[&pair.arguments()[..], &["--connect-timeout", "1s"]].concat());
        let mut client = Client::connect(&program, &Config::new(&pair).versions(versions)).unwrap();
        client.send(&request(1, address));
        client.receive(2);
        client.send(b"early");
        client.finish();
        // The timeout ends the session, and the client gets its answer.
        assert_eq!(client.receive(2)[0], 5);
        assert_eq!(program.sum("spliceway_connections_total", &[LEFT]), 0);
    }
}
