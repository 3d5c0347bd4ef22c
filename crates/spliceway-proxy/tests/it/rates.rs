use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Program, assert_same, connect, echo, pattern, read_all, send_and_finish};

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
