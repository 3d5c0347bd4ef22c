use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::clients::{GREETING, exchange, greeted, ip_request};
use crate::harness::{Program, echo, is_closed, let_pass, read_exactly};

const SLOW: usize = 1000;
const DEADLINE: Duration = Duration::from_secs(3);

/// Each slow client sends one byte per second. A timeout between two bytes would never end these
/// handshakes.
#[test]
fn a_thousand_slow_handshakes_time_out_while_others_are_served() {
    let program = Program::proxy("mixed", &["--handshake-timeout", "3s"]);
    let target = echo("127.0.0.1:0");
    let started = Instant::now();
    let slow: Vec<TcpStream> = (0..SLOW).map(|_| program.connect()).collect();
    let begins = [
        &GREETING[..],
        b"GET http://a/",
        &[4, 1, 0, 80, 127, 0, 0, 1, b'x', b'x', b'x'],
    ];
    thread::scope(|scope| {
        scope.spawn(|| {
            for second in 0..DEADLINE.as_secs() as usize {
                for (number, mut client) in slow.iter().enumerate() {
                    // The write fails after the client's deadline.
                    let _ = client.write_all(&begins[number % begins.len()][second..=second]);
                }
                let_pass(Duration::from_secs(1));
            }
        });
        let mut served = 0;
        while started.elapsed() < DEADLINE - Duration::from_secs(1) {
            let mut client = greeted(&program);
            client.write_all(&ip_request(target)).unwrap();
            read_exactly(&mut client, 10);
            exchange(client);
            served += 1;
        }
        assert!(served >= 10, "{served} served in two seconds");
    });
    for mut client in slow {
        while !is_closed(&mut client) {}
    }
    program.await_sum(
        "spliceway_refused_total",
        &["reason=\"handshake_timeout\""],
        SLOW as u64,
    );
    let took = started.elapsed();
    assert!(
        took >= DEADLINE && took < DEADLINE + Duration::from_secs(10),
        "{took:?}"
    );
}
