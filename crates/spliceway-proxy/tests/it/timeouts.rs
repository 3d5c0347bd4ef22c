use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Program, accept, is_closed, let_pass, listen, read_all, read_exactly};

fn session(arguments: &[&str]) -> (Program, TcpStream, TcpStream) {
    let (listener, address) = listen();
    let program = Program::forward(address, arguments);
    let client = program.connect();
    (program, client, accept(&listener))
}

/// Sends a byte every 50 ms for `time`. Each byte must arrive.
fn trickle(from: &mut TcpStream, to: &mut TcpStream, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        from.write_all(b".").unwrap();
        assert_eq!(read_exactly(to, 1), b".");
        let_pass(Duration::from_millis(50));
    }
}

#[test]
fn silence_ends_a_session_at_the_idle_timeout() {
    let (program, mut client, mut target) = session(&["--idle-timeout", "1s"]);
    client.write_all(b"x").unwrap();
    assert_eq!(read_exactly(&mut target, 1), b"x");
    let started = Instant::now();
    assert!(is_closed(&mut client) && is_closed(&mut target));
    let took = started.elapsed();
    assert!(
        took >= Duration::from_millis(980) && took < Duration::from_secs(5),
        "{took:?}"
    );
    program.await_end("idle");
}

#[test]
fn the_idle_timeout_frees_a_filled_pipe_and_records_its_bytes_as_lost() {
    let (listener, address) = listen();
    // The timeout is long enough to check the state before it expires, even on a busy machine.
    let mut program = Program::forward(address, &["--idle-timeout", "4s", "--splice", "on", "--workers", "1"]);
    let lent = |program: &Program| program.sum("spliceway_pipes", &["state=\"lent\""]);
    let before = program.descriptors();
    let (client, mut target) = (program.connect(), accept(&listener));
    // The client does not read, and neither side closes. The relay waits for the client and holds a
    // pipe.
    target.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    // On a busy machine, a write may time out before the relay has read.
    let until = Instant::now() + PATIENCE;
    while target.write(&[7; 1 << 16]).is_ok() || lent(&program) == 0 {
        assert!(Instant::now() < until, "no pipe is lent");
    }
    program.await_end("idle");
    assert_eq!(lent(&program), 0);
    let lost = program.sum("spliceway_lost_bytes_total", &["direction=\"down\""]);
    assert!(lost > 0);
    let record = program.line("end=idle");
    assert!(
        record.contains(&format!("lost_down={lost} ")) && !record.contains("lost_up"),
        "{record}"
    );
    drop((client, target));
    let until = Instant::now() + PATIENCE;
    // The pool keeps some idle pipes for a while. A scrape holds a descriptor until both sides have
    // closed the connection.
    while program.descriptors() > before + 2 * program.sum("spliceway_pipes", &["state=\"idle\""]) as usize {
        assert!(
            Instant::now() < until,
            "{} descriptors, {before} before",
            program.descriptors()
        );
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn one_way_traffic_outlives_the_idle_timeout_in_each_direction() {
    let (program, mut client, mut target) = session(&["--idle-timeout", "1s"]);
    trickle(&mut target, &mut client, Duration::from_millis(2500));
    trickle(&mut client, &mut target, Duration::from_millis(2500));
    drop((client, target));
    program.await_sum("spliceway_connections_total", &[], 1);
    assert_eq!(program.sum("spliceway_connections_total", &["end=\"idle\""]), 0);
}

#[test]
fn a_half_closed_session_ends_when_its_open_side_is_silent() {
    let (program, mut client, target) = session(&["--half-close-timeout", "1s"]);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"");
    let started = Instant::now();
    assert!(is_closed(&mut client));
    let took = started.elapsed();
    assert!(
        took >= Duration::from_millis(980) && took < Duration::from_secs(5),
        "{took:?}"
    );
    program.await_end("half_close_timeout");
}

#[test]
fn a_busy_session_ends_after_the_longest_time_for_sessions() {
    let (program, mut client, mut target) = session(&["--max-session", "1s"]);
    let (mut answer, deadline) = ([0; 1], Instant::now() + PATIENCE);
    while client.write_all(b"?").is_ok() && matches!(target.read(&mut answer), Ok(1)) {
        assert!(Instant::now() < deadline, "the session does not end");
        let_pass(Duration::from_millis(2));
    }
    program.await_end("max_session");
    assert_eq!(program.sum("spliceway_lost_bytes_total", &[]), 0);
}

#[test]
fn a_live_download_outlives_the_half_close_timeout_and_the_idle_timeout() {
    let (program, mut client, mut target) = session(&["--half-close-timeout", "1s", "--idle-timeout", "1s"]);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&target), b"");
    trickle(&mut target, &mut client, Duration::from_millis(2500));
    target.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), b"");
    program.await_end("client_eof");
}

#[test]
fn the_half_close_timeout_does_not_affect_a_fully_open_session() {
    let (program, mut client, mut target) = session(&["--half-close-timeout", "100ms"]);
    let_pass(Duration::from_millis(500));
    client.write_all(b"x").unwrap();
    assert_eq!(read_exactly(&mut target, 1), b"x");
    drop(program);
}
