use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use crate::clients::{AGREED, GREETING, ip_request, read_head};
use crate::harness::{
    PATIENCE, Program, accept, assert_same, connect, echo, listen, pattern, read_all, read_exactly, send_and_finish,
};

const MB: usize = 1_000_000;

/// Returns the time until every client has sent a megabyte and received it back.
fn time_of(program: &Program, clients: usize) -> Duration {
    let (started, address) = (Instant::now(), program.address);
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let (client, sent) = (connect(address), pattern(3, MB));
                thread::scope(|scope| {
                    scope.spawn(|| send_and_finish(&client, &sent));
                    assert_same(&read_all(&client), &sent);
                });
            });
        }
    });
    started.elapsed()
}

/// Returns the shortest possible time for this number of bytes. Each bucket starts with the bytes
/// of a tenth of a second.
fn least(bytes: usize, bytes_per_second: usize) -> Duration {
    Duration::from_secs_f64((bytes - bytes_per_second / 10) as f64 / bytes_per_second as f64)
}

#[test]
fn rates_hold_per_scope_and_bytes_are_spliced() {
    for (rates, clients, least) in [
        ("--rate-in 1MB:connection", 1, least(MB, MB)),
        ("--rate-out 1MB:connection", 2, least(MB, MB)),
        ("--rate-in 2MB:client", 2, least(2 * MB, 2 * MB)),
        ("--rate-out 2MB", 2, least(2 * MB, 2 * MB)),
        // In these cases, the scopes are nested, and the lowest rate applies.
        (
            "--rate-in 9MB:connection --rate-in 2MB:client --rate-in 8MB",
            2,
            least(2 * MB, 2 * MB),
        ),
        (
            "--rate-out 9MB:connection --rate-out 8MB:client --rate-out 2MB",
            2,
            least(2 * MB, 2 * MB),
        ),
    ] {
        let arguments: Vec<_> = ["--splice", "on"].into_iter().chain(rates.split(' ')).collect();
        let program = Program::forward(echo("127.0.0.1:0"), &arguments);
        let took = time_of(&program, clients);
        assert!(took >= least, "{rates}: {clients} took {took:?}");
        assert!(took < least + PATIENCE / 2, "{rates}: {clients} took {took:?}");
        let spliced = program.sum("spliceway_bytes_total", &["path=\"splice\""]);
        assert!(spliced >= (95 * 2 * clients * MB / 100) as u64, "{spliced}");
    }
}

/// The limit owes what a session has used, and the next session of the same client waits for it.
#[test]
fn many_short_sessions_pass_no_faster_than_the_rate_of_their_client() {
    const RATE: usize = 20_000;
    const SESSIONS: usize = 20;
    let bytes = pattern(4, 600);
    for (kind, argument, rate) in [
        ("forward", "--rate-out", "20KB:client"),
        ("forward", "--rate-in", "20KB"),
        ("socks5", "--rate-out", "20KB"),
        ("socks5", "--rate-in", "20KB:client"),
        ("http", "--rate-out", "20KB:client"),
        ("http", "--rate-in", "20KB:client"),
    ] {
        let (listener, address) = listen();
        let program = match kind {
            "forward" => Program::forward(address, &[argument, rate]),
            kind => Program::proxy(kind, &[argument, rate]),
        };
        let is_out = argument == "--rate-out";
        let started = Instant::now();
        for _ in 0..SESSIONS {
            let mut client = program.connect();
            let mut request = match kind {
                "socks5" => {
                    client.write_all(&GREETING).unwrap();
                    assert_eq!(read_exactly(&mut client, 2), AGREED);
                    ip_request(address)
                }
                "http" => format!("CONNECT {address} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
                _ => Vec::new(),
            };
            if !is_out {
                // The first bytes come together with the request.
                request.extend(&bytes);
            }
            client.write_all(&request).unwrap();
            let mut target = accept(&listener);
            match kind {
                "socks5" => drop(read_exactly(&mut client, 10)),
                "http" => drop(read_head(&mut client)),
                _ => {}
            }
            if is_out {
                target.write_all(&bytes).unwrap();
                assert_same(&read_exactly(&mut client, bytes.len()), &bytes);
            } else {
                assert_same(&read_exactly(&mut target, bytes.len()), &bytes);
            }
        }
        let (took, before) = (started.elapsed(), (SESSIONS - 1) * bytes.len());
        assert!(took >= least(before, RATE), "{kind} {argument}: {took:?}");
    }
}
