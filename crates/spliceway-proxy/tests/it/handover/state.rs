//! What the old process knows about its clients is known in the new one.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use super::{ask, upgrade};
use crate::admin::Socket;
use crate::auth::authenticated;
use crate::harness::{
    PATIENCE, Program, TextFile, assert_same, connect, echo, let_pass, pattern, read_all, send_and_finish,
};

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

#[test]
fn the_status_and_the_times_of_sessions_continue_after_an_upgrade() {
    let (socket, echo) = (Socket::new(), echo("127.0.0.1:0"));
    let mut program = Program::forward(echo, &["--admin", &socket.address()]);
    let mut client = program.connect();
    ask(&mut client, 1);
    ask(&mut program.connect(), 2);
    let session = || {
        let (_, page) = socket.ask("GET", "/v1/sessions");
        let sessions = page["sessions"].as_array().unwrap().clone();
        let of_client = sessions.into_iter().find(|session| session["id"] == 1).unwrap();
        ["idle_ms", "duration_ms"].map(|key| of_client[key].as_u64())
    };
    let status = || {
        let (_, status) = socket.ask("GET", "/v1/status");
        let service = &status["services"][0];
        assert_eq!(status["sessions"]["total"], service["sessions"]["total"]);
        let counts = ["bytes_up", "bytes_down", "spliced_up"].map(|key| service[key].as_u64().unwrap());
        (service["sessions"]["total"].as_u64().unwrap(), counts)
    };
    // The program looks at the sessions once in a second.
    let until = Instant::now() + PATIENCE;
    while session()[0] < Some(1) {
        assert!(Instant::now() < until, "no idle time");
        let_pass(Duration::from_millis(5));
    }
    // A relay counts bytes when it has written them, so the client may have them earlier.
    let await_status = |expected| {
        while status() != expected {
            assert!(Instant::now() < until, "{:?} instead of {expected:?}", status());
            let_pass(Duration::from_millis(2));
        }
    };
    await_status((2, [1800, 1800, 0]));
    let times = session();
    let process = upgrade(&mut program, None);
    let now = session();
    assert!(now >= times && now[1] >= times[1], "{now:?} after {times:?}");
    assert_eq!(status(), (2, [1800, 1800, 0]));
    ask(&mut client, 3);
    await_status((2, [2700, 2700, 0]));
    // The counts of two processes before are in the third.
    assert!(program.exit().success());
    let _process = upgrade(&mut program, Some(&process));
    ask(&mut connect(program.address), 4);
    await_status((3, [3600, 3600, 0]));
}

/// The metrics of 10,240 backends do not fit into one message.
#[test]
fn a_program_with_10_mib_of_metrics_hands_over_with_all_counters() {
    let echo = echo("127.0.0.1:0");
    let mut services = "[admin]\nmetrics = \"127.0.0.1:0\"\n".to_owned();
    for service in 0..40 {
        services += &format!(
            "[[service]]\nname = \"service-with-quite-a-long-name-{service:02}\"\nkind = \"forward\"\n\
             listen = \"127.0.0.1:0\"\nbalance = \"first\"\n[[service.backend]]\nto = \"{echo}\"\n"
        );
        let backends = (0..255).map(|number| format!("[[service.backend]]\nto = \"192.0.2.{number}:65000\"\n"));
        services.extend(backends);
    }
    let config = TextFile::new(&services);
    let mut program = Program::run(&config);
    let mut client = program.connect();
    ask(&mut client, 1);
    let bytes = program.get("/metrics").len();
    assert!(bytes > 8 << 20, "{bytes}");
    let connections = |program: &Program| program.sum("spliceway_backend_connections_total", &[]);
    assert_eq!(connections(&program), 1);
    let _process = upgrade(&mut program, None);
    assert_eq!(connections(&program), 1);
    ask(&mut client, 2);
}
