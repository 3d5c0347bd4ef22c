use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients::{
    ASKED_FOR_PASSWORD, GREETING, GREETING_WITH_PASSWORD, exchange, ip_request, password, read_head, socks4_request,
};
use crate::harness::{
    PATIENCE, Program, TextFile, connect, echo, let_pass, listen, read_all, read_exactly, was_reached,
};

/// `ann` with `wonderland`, in clear text, and `bob` with `builder`, as `hash-password` hashes it.
fn users() -> TextFile {
    TextFile::new(&format!("# users\nann:wonderland\nbob:{}\n", hash("builder")))
}

fn hash(secret: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .arg("hash-password")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{secret}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let hash = String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
    assert!(hash.starts_with("$argon2id$"), "{hash}");
    hash
}

/// A client that has said its name and secret, and the status it was told.
fn authenticated(program: &Program, name: &str, secret: &str) -> (TcpStream, u8) {
    let mut client = program.connect();
    client.write_all(&GREETING_WITH_PASSWORD).unwrap();
    assert_eq!(read_exactly(&mut client, 2), ASKED_FOR_PASSWORD);
    client.write_all(&password(name, secret)).unwrap();
    let answer = read_exactly(&mut client, 2);
    assert_eq!(answer[0], 1);
    (client, answer[1])
}

#[test]
fn users_of_a_file_are_relayed_and_their_names_are_in_the_records() {
    let (users, target) = (users(), echo("127.0.0.1:0"));
    let mut program = Program::socks5(&["--auth-file", users.path()]);
    assert!(program.lines_with("ann") == 0 && program.lines_with("not hashed") == 1);
    for (name, secret) in [("ann", "wonderland"), ("bob", "builder"), ("bob", "builder")] {
        let (mut client, status) = authenticated(&program, name, secret);
        assert_eq!(status, 0);
        client.write_all(&ip_request(target)).unwrap();
        assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
        exchange(client);
        assert!(program.line("end=client_eof").contains(&format!("user=\"{name}\"")));
    }
}

#[test]
fn early_data_may_follow_a_password_in_one_write() {
    let users = users();
    let program = Program::socks5(&["--auth-file", users.path()]);
    let mut client = program.connect();
    let target = echo("127.0.0.1:0");
    let said = [
        &GREETING_WITH_PASSWORD[..],
        &password("ann", "wonderland"),
        &ip_request(target),
        b"early",
    ];
    client.write_all(&said.concat()).unwrap();
    assert_eq!(read_exactly(&mut client, 4), [5, 2, 1, 0]);
    read_exactly(&mut client, 10);
    assert_eq!(read_exactly(&mut client, 5), b"early");
}

/// Whatever is tried, the target hears of nobody.
#[test]
fn who_is_not_authenticated_reaches_nothing() {
    let users = users();
    let program = Program::proxy("mixed", &["--auth-file", users.path()]);
    let (target, address) = listen();
    let request = ip_request(address);
    let long = "x".repeat(255);
    let attempts: Vec<Vec<u8>> = vec![
        [&GREETING[..], &request].concat(),
        [&[5, 0][..], &request].concat(),
        // The password's stage is skipped, or its version is wrong, or its name is empty.
        [&GREETING_WITH_PASSWORD[..], &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &[2, 1, b'a', 1, b'b'], &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password("", ""), &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password("ann", "builder"), &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password(&long, &long), &request].concat(),
        socks4_request(address, "ann", None),
        format!("CONNECT {address} HTTP/1.1\r\n\r\n").into_bytes(),
        // ann:builder
        format!("CONNECT {address} HTTP/1.1\r\nProxy-Authorization: Basic YW5uOmJ1aWxkZXI=\r\n\r\n").into_bytes(),
        format!("GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes(),
        format!("GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\nProxy-Authorization: Bearer x\r\n\r\n")
            .into_bytes(),
    ];
    let count = attempts.len() as u64;
    for (number, attempt) in attempts.iter().enumerate() {
        let mut client = program.connect();
        client.write_all(attempt).unwrap();
        let answer = read_all(&client);
        let refused = answer.is_empty()
            || answer.starts_with(&[5, 0xFF])
            || answer == [5, 2]
            || answer.starts_with(&[5, 2, 1, 1])
            || answer.starts_with(&[0, 91])
            || answer.starts_with(b"HTTP/1.1 407 ");
        assert!(refused, "attempt {number}: {answer:?}");
    }
    program.await_sum("spliceway_refused_total", &[], count);
    assert_eq!(program.sum("spliceway_connect_seconds_count", &[]), 0);
    assert!(!was_reached(&target));
}

#[test]
fn basic_authentication_lets_users_of_an_http_proxy_through() {
    let users = users();
    let program = Program::proxy("http", &["--auth-file", users.path()]);
    let target = echo("127.0.0.1:0");
    let mut client = program.connect();
    write!(client, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
    let head = read_head(&mut client);
    assert!(
        head.starts_with("HTTP/1.1 407 ") && head.contains("Proxy-Authenticate: Basic realm="),
        "{head}"
    );
    let mut client = program.connect();
    // bob:builder
    write!(
        client,
        "CONNECT {target} HTTP/1.1\r\nproxy-authorization: basic Ym9iOmJ1aWxkZXI=\r\n\r\n"
    )
    .unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
    exchange(client);
}

#[test]
fn guessing_is_answered_more_and_more_slowly_and_not_even_the_right_secret_helps() {
    let users = users();
    let mut program = Program::socks5(&["--auth-file", users.path()]);
    for _ in 0..4 {
        assert_ne!(authenticated(&program, "ann", "guess").1, 0);
    }
    // Within the second that the fourth failure costs.
    let held = Instant::now();
    assert_ne!(authenticated(&program, "ann", "wonderland").1, 0);
    while authenticated(&program, "ann", "wonderland").1 != 0 {
        assert!(held.elapsed() < PATIENCE, "it is held for ever");
        let_pass(Duration::from_millis(20));
    }
    assert!(program.line("end=denied:auth").contains("client=127.0.0.1:"));
    program.await_end("denied:auth_penalty");
}

/// A guess knows what came of the one before it, however many are under way.
#[test]
fn guesses_at_once_are_slowed_down_as_guesses_in_turn_are() {
    let users = users();
    let program = Program::socks5(&["--auth-file", users.path()]);
    let started = Instant::now();
    let mut clients: Vec<TcpStream> = (0..60).map(|_| program.connect()).collect();
    let guess = [&GREETING_WITH_PASSWORD[..], &password("bob", "guess")].concat();
    for client in &mut clients {
        client.write_all(&guess).unwrap();
    }
    for client in &clients {
        assert_eq!(read_all(client), [5, 2, 1, 1]);
    }
    program.await_sum("spliceway_refused_total", &[], 60);
    let looked_at = program.sum("spliceway_refused_total", &["reason=\"auth\""]);
    // Three are free, the fourth costs a second, and each second that passes lets one more through.
    let most = 5 + started.elapsed().as_secs();
    assert!(
        (4..=most).contains(&looked_at),
        "{looked_at} looked at in {:?}",
        started.elapsed()
    );
}

#[test]
fn one_user_can_be_named_in_the_environment_and_the_secret_shows_nowhere() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command
        .args(["socks5", "-l", "127.0.0.1:0"])
        .env("SPLICEWAY_AUTH", "ann:w0nderland");
    let mut program = Program::spawn(command, false);
    let (mut client, status) = authenticated(&program, "ann", "w0nderland");
    assert_eq!(status, 0);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    read_exactly(&mut client, 10);
    drop(client);
    assert!(program.line("end=").contains("user=\"ann\""));
    assert_ne!(authenticated(&program, "ann", "w0nderlanD").1, 0);
    program.line("end=denied:auth");
    assert_eq!(program.lines_with("0nderlan"), 0);
}

#[test]
fn a_file_that_is_wrong_is_refused_by_its_line_and_the_secret_is_not_repeated() {
    for (lines, expected) in [
        ("ann:a\n\nbobbuilder\n", ":3: expected NAME:HASH"),
        ("ann:$argon2id$builder\n", ":1: this hash is none of argon2's"),
        ("# nobody\n", "there is no user in it"),
    ] {
        let file = TextFile::new(lines);
        let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
            .args(["socks5", "-l", "127.0.0.1:0", "--auth-file", file.path()])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(file.path()) && stderr.contains(expected), "{stderr}");
        assert!(!stderr.contains("builder"), "{stderr}");
    }
}

/// Nobody asked for a password gets by without, but who offers both where none is asked for is served.
#[test]
fn a_client_that_offers_a_password_where_none_is_asked_for_is_served() {
    let program = Program::socks5(&[]);
    let mut client = connect(program.address);
    client.write_all(&[5, 2, 0, 2]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 0]);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    read_exactly(&mut client, 10);
    exchange(client);
}
