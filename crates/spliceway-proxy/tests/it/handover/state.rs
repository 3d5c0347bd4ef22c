//! What the old process knows about its clients is known in the new one.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use super::upgrade;
use crate::auth::authenticated;
use crate::harness::{Program, TextFile, assert_same, echo, pattern, read_all, send_and_finish};

#[test]
fn a_client_that_guessed_passwords_is_still_penalised_after_an_upgrade() {
    const PENALTIES: (&str, &[&str]) = ("spliceway_connections_total", &["end=\"denied:auth_penalty\""]);
    let users = TextFile::new("ann:right\n");
    let mut program = Program::socks5(&["--auth-file", users.path()]);
    let guess = |program: &Program| {
        let (mut client, status) = authenticated(program, "ann", "wrong");
        assert_ne!(status, 0);
        // The session ends before the next guess.
        let _ = client.read_to_end(&mut Vec::new());
    };
    // The fourth failure has a penalty.
    (0..4).for_each(|_| guess(&program));
    assert_eq!(program.sum(PENALTIES.0, PENALTIES.1), 0);
    let _process = upgrade(&mut program, None);
    // Three guesses of a new client have no penalty. If a penalty is over because this machine is
    // slow, the next failure has one of twice the time.
    (0..3).for_each(|_| guess(&program));
    program.await_sum(PENALTIES.0, PENALTIES.1, 1);
}

#[test]
fn an_upgrade_gives_no_second_burst_to_a_limited_service() {
    const BYTES: usize = 500_000;
    let target = echo("127.0.0.1:0");
    let mut program = Program::forward(target, &["--rate-in", "9MB:connection", "--rate-in", "1MB"]);
    let (client, sent) = (program.connect(), pattern(1, BYTES));
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| send_and_finish(&client, &sent));
        let receives = scope.spawn(|| read_all(&client));
        let first = upgrade(&mut program, None);
        let _second = upgrade(&mut program, Some(&first));
        assert_same(&receives.join().unwrap(), &sent);
    });
    // One burst is the bytes of a tenth of a second, and each further burst would save as much.
    assert!(
        started.elapsed() >= Duration::from_millis(400),
        "{:?}",
        started.elapsed()
    );
}
