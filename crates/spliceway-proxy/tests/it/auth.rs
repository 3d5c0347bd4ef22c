use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::clients::{
    ASKED_FOR_PASSWORD, GREETING, GREETING_WITH_PASSWORD, exchange, ip_request, password, read_head, read_message,
    socks4_request,
};
use crate::harness::{
    PATIENCE, Program, TextFile, connect, echo, let_pass, listen, read_all, read_exactly, refused_to_start,
    was_reached, with_patience,
};

/// Returns a file with two users: `ann` with the password `wonderland` in clear text, and `bob`
/// with `builder`, which `hash-password` has hashed.
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

/// Returns a client that has sent its name and password, and the status that it received.
pub(crate) fn authenticated(program: &Program, name: &str, secret: &str) -> (TcpStream, u8) {
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
    assert_eq!(program.lines_with(":2 (ann) is a clear-text password"), 1);
    assert_eq!(program.lines_with("wonderland"), 0);
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

#[test]
fn an_unauthenticated_client_reaches_no_target() {
    let users = users();
    let program = Program::proxy("mixed", &["--auth-file", users.path()]);
    let (target, address) = listen();
    let request = ip_request(address);
    let long = "x".repeat(255);
    let attempts: Vec<Vec<u8>> = vec![
        [&GREETING[..], &request].concat(),
        [&[5, 0][..], &request].concat(),
        // The client skips the password, sends a wrong version, or sends an empty name.
        [&GREETING_WITH_PASSWORD[..], &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &[2, 1, b'a', 1, b'b'], &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password("", ""), &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password("ann", "builder"), &request].concat(),
        [&GREETING_WITH_PASSWORD[..], &password(&long, &long), &request].concat(),
        socks4_request(address, "ann", None),
        format!("CONNECT {address} HTTP/1.0\r\n\r\n").into_bytes(),
        // ann:builder
        format!("CONNECT {address} HTTP/1.0\r\nProxy-Authorization: Basic YW5uOmJ1aWxkZXI=\r\n\r\n").into_bytes(),
        format!("GET http://{address}/ HTTP/1.0\r\nHost: {address}\r\n\r\n").into_bytes(),
        format!("GET http://{address}/ HTTP/1.0\r\nHost: {address}\r\nProxy-Authorization: Bearer x\r\n\r\n")
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
    // The client answers each challenge on the same connection.
    let mut client = program.connect();
    write!(client, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
    let answer = read_message(&mut client);
    assert!(
        answer.starts_with("HTTP/1.1 407 ") && answer.contains("Proxy-Authenticate: Basic realm="),
        "{answer}"
    );
    assert!(
        answer.ends_with("\r\n\r\nThe proxy requires a user name and a password.\n"),
        "{answer}"
    );
    // ann:builder
    write!(
        client,
        "CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic YW5uOmJ1aWxkZXI=\r\n\r\n"
    )
    .unwrap();
    let answer = read_message(&mut client);
    assert!(
        answer.starts_with("HTTP/1.1 407 ") && answer.contains("Basic"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\nWrong user name or password.\n"), "{answer}");
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
fn guessing_gets_slower_and_the_right_password_must_wait_too() {
    let users = users();
    let mut program = Program::socks5(&["--auth-file", users.path()]);
    for _ in 0..4 {
        assert_ne!(authenticated(&program, "ann", "guess").1, 0);
    }
    // This is within the penalty of one second for the fourth failure.
    let held = Instant::now();
    assert_ne!(authenticated(&program, "ann", "wonderland").1, 0);
    while authenticated(&program, "ann", "wonderland").1 != 0 {
        assert!(held.elapsed() < PATIENCE, "it is held for ever");
        let_pass(Duration::from_millis(20));
    }
    assert!(program.line("end=denied:auth").contains("client=127.0.0.1:"));
    program.await_end("denied:auth_penalty");
}

/// Each guess waits for the result of the previous guess, even if many guesses arrive at the same
/// time.
#[test]
fn simultaneous_guesses_are_slowed_down_like_sequential_guesses() {
    let users = users();
    let program = Program::socks5(&["--auth-file", users.path()]);
    let started = Instant::now();
    let mut clients: Vec<TcpStream> = (0..60).map(|_| program.connect()).collect();
    let guess = [&GREETING_WITH_PASSWORD[..], &password("bob", "guess")].concat();
    for client in &mut clients {
        client.write_all(&guess).unwrap();
    }
    for client in &clients {
        // The guess is wrong, or the client must wait, or too many guesses from this client are
        // waiting.
        assert!(matches!(read_all(client)[..], [5, 2, 1, 1..=3]));
    }
    program.await_sum("spliceway_refused_total", &[], 60);
    let looked_at = program.sum("spliceway_refused_total", &["reason=\"auth\""]);
    // Three guesses have no penalty. The fourth guess costs one second, and each second that passes
    // allows one more guess.
    let most = 5 + started.elapsed().as_secs();
    assert!(
        (4..=most).contains(&looked_at),
        "{looked_at} looked at in {:?}",
        started.elapsed()
    );
}

#[test]
fn a_user_from_the_environment_can_log_in_and_the_secret_is_hidden() {
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
fn an_error_in_a_user_file_names_the_line_and_no_password() {
    for (lines, expected) in [
        ("ann:a\n\nbobbuilder\n", ":3: expected NAME:HASH"),
        ("ann:$argon2id$builder\n", ":1 (ann): this is not a valid argon2 hash"),
        ("# nobody\n", "the file has no users"),
        (
            "ann:$argon2id$v=19$m=4194303,t=9,p=1$c29tZXNhbHQxMjM0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n",
            ":1 (ann): this hash asks for too much memory, m=4194303: expected at most m=262144",
        ),
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

#[test]
fn the_record_of_a_failed_login_names_the_user_escaped_and_bounded() {
    let users = users();
    let mut program = Program::proxy("mixed", &["--auth-file", users.path()]);
    authenticated(&program, "mallory\n\"x", "guess");
    let record = program.line("end=denied:auth");
    assert!(
        record.contains(r#"user="mallory\\n\\\"x" protocol="socks5""#),
        "{record}"
    );
    let mut client = program.connect();
    // The name is 1000 bytes of 0xFF, and a password follows.
    let credentials = format!("{}/zp4", "/".repeat(1332));
    write!(
        client,
        "CONNECT 192.0.2.1:9 HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
    )
    .unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 407 "));
    let record = program.line("end=denied:auth");
    assert!(
        record.contains(r#"user="\\xff\\xff"#) && record.contains("protocol=\"http\""),
        "{record}"
    );
    assert!(record.len() < 1000, "{record}");
}

#[test]
fn a_user_file_open_to_other_users_causes_a_warning() {
    for (mode, warned) in [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)] {
        let users = users();
        fs::set_permissions(users.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let mut program = Program::socks5(&["--auth-file", users.path()]);
        // After a login, the program has logged every warning.
        authenticated(&program, "ann", "wonderland");
        program.line("end=client_eof");
        assert_eq!(
            program.lines_with(&format!("mode {mode:04o} lets others")),
            warned,
            "{mode:o}"
        );
    }
}

#[test]
fn a_user_file_above_4_mib_is_refused() {
    let users = TextFile::new("");
    let file = fs::File::options().write(true).open(users.path()).unwrap();
    file.set_len((4 << 20) + 1).unwrap();
    let refusal = refused_to_start(&["socks5", "-l", "127.0.0.1:0", "--auth-file", users.path()]);
    let expected = format!("{}: larger than 4 MiB, which is the limit", users.path());
    assert!(refusal.contains(&expected), "{refusal}");
}

/// Connects a client from the loopback address that belongs to this number.
fn connect_from(number: usize, program: &Program) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let [.., high, low] = number.to_be_bytes();
    let address = SocketAddr::from(([127, 1, high, low], 0));
    socket.bind(&address.into()).unwrap();
    socket.connect(&program.address.into()).unwrap();
    with_patience(socket.into())
}

/// Returns clients that have sent a wrong password, each from its own address. The program has not
/// answered these passwords yet.
fn guesses(numbers: impl IntoIterator<Item = usize>, name: &str, program: &Program) -> Vec<TcpStream> {
    let guess = [&GREETING_WITH_PASSWORD[..], &password(name, "guess")].concat();
    let mut clients: Vec<_> = numbers
        .into_iter()
        .map(|number| connect_from(number, program))
        .collect();
    for client in &mut clients {
        client.write_all(&guess).unwrap();
    }
    for client in &mut clients {
        assert_eq!(read_exactly(client, 2), ASKED_FOR_PASSWORD);
    }
    clients
}

/// A hash that matches no password. A check uses 19 MiB of memory and one pass.
const NO_SECRETS_HASH: &str =
    "$argon2id$v=19$m=19456,t=1,p=1$c29tZXNhbHQxMjM0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

#[test]
fn wrong_passwords_leave_no_memory_behind() {
    let users = TextFile::new(&format!("ann:{NO_SECRETS_HASH}\n"));
    let program = Program::proxy("mixed", &["--auth-file", users.path()]);
    let before = program.resident_bytes();
    for client in &guesses(1..13, "ann", &program) {
        assert_eq!(read_all(client), [1, 1]);
    }
    let until = Instant::now() + PATIENCE;
    // The program frees the memory after it has sent the last answer.
    while program.resident_bytes() > before + (8 << 20) {
        assert!(
            Instant::now() < until,
            "{} MiB",
            (program.resident_bytes() - before) >> 20
        );
        let_pass(Duration::from_millis(2));
    }
}

/// Returns the size of a flood: more than 20 clients for each check that can run at the same time.
fn flood_size() -> usize {
    40 + 10 * thread::available_parallelism().unwrap().get()
}

#[test]
fn a_first_login_does_not_wait_for_a_flood_of_wrong_passwords() {
    let users = users();
    let program = Program::proxy("mixed", &["--auth-file", users.path()]);
    let size = flood_size();
    let _flood = guesses(1..size, "nobody", &program);
    // This login is the first one from 127.0.0.1.
    assert_eq!(authenticated(&program, "bob", "builder").1, 0);
    let checked = program.sum("spliceway_refused_total", &["reason=\"auth\""]);
    assert!(checked < size as u64 / 2, "it came after {checked} of {size}");
}

/// Returns the line of a user whose password check is too slow for the program to serve a flood.
fn slow_to_check(memory_kib: u32, passes: u32) -> String {
    let output = "A".repeat(43);
    format!("slow:$argon2id$v=19$m={memory_kib},t={passes},p=1$c29tZXNhbHQxMjM0${output}\n")
}

#[test]
fn a_first_login_does_not_wait_for_clients_that_retry() {
    // Each check takes a third of a second. On a busy machine, unoptimized code takes up to seven
    // times as long.
    let users = TextFile::new(&format!("{}bob:{}\n", slow_to_check(65536, 9), hash("builder")));
    let program = Program::proxy("mixed", &["--auth-file", users.path(), "--handshake-timeout", "5s"]);
    let flood = guesses(1..flood_size(), "nobody", &program);
    // The program turns most clients away, the oldest ones first. The timing of the checks
    // determines which clients it checks.
    let answers: Vec<_> = flood[..30].iter().map(read_all).collect();
    let turned_away: Vec<usize> = (1..=30).filter(|number| answers[number - 1] == [1, 3]).collect();
    assert!(turned_away.len() >= 20, "{answers:?}");
    let mut first = program.connect();
    let login = [&GREETING_WITH_PASSWORD[..], &password("bob", "builder")].concat();
    first.write_all(&login).unwrap();
    assert_eq!(read_exactly(&mut first, 2), ASKED_FOR_PASSWORD);
    let _again = guesses(turned_away, "nobody", &program);
    assert_eq!(read_exactly(&mut first, 2), [1, 0]);
}

#[test]
fn a_login_that_cannot_be_checked_in_time_is_refused_immediately() {
    let users = TextFile::new(&slow_to_check(65536, 16));
    let program = Program::proxy("mixed", &["--auth-file", users.path(), "--handshake-timeout", "1s"]);
    let size = flood_size();
    let mut clients: Vec<_> = (1..=10).map(|number| connect_from(number, &program)).collect();
    for client in &mut clients {
        // ann:builder
        let credentials = "Proxy-Authorization: Basic YW5uOmJ1aWxkZXI=";
        write!(client, "CONNECT 192.0.2.1:9 HTTP/1.0\r\n{credentials}\r\n\r\n").unwrap();
    }
    let flood = guesses(11..size, "nobody", &program);
    let refused = flood.iter().filter(|client| read_all(client) == [1, 3]).count();
    let answers: Vec<_> = clients
        .iter()
        .map(|client| String::from_utf8(read_all(client)).unwrap())
        .collect();
    let told = |answer: &String| answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 1\r\n");
    assert!(refused > 0 && answers.iter().any(told), "{refused} {answers:?}");
    program.await_end("denied:auth_busy");
}

#[test]
fn a_client_that_must_wait_learns_for_how_long() {
    let users = TextFile::new("ann:wonderland\n");
    let mut program = Program::proxy("mixed", &["--auth-file", users.path()]);
    let ask = |secret: &str| {
        let mut client = program.connect();
        let credentials = match secret {
            "wonderland" => "YW5uOndvbmRlcmxhbmQ=",
            _ => "YW5uOmd1ZXNz",
        };
        write!(
            client,
            "CONNECT 192.0.2.1:9 HTTP/1.1\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
        )
        .unwrap();
        read_head(&mut client)
    };
    for _ in 0..4 {
        assert!(ask("guess").starts_with("HTTP/1.1 407 "));
    }
    // This is within the penalty of one second for the fourth failure.
    let head = ask("wonderland");
    assert!(head.starts_with("HTTP/1.1 429 "), "{head}");
    let field = head
        .lines()
        .find_map(|line| line.strip_prefix("Retry-After: "))
        .unwrap();
    assert_eq!(field, "1");
    assert_eq!(authenticated(&program, "ann", "wonderland").1, 2);
    let record = program.line("end=denied:auth_penalty");
    assert!(record.contains("user=\"ann\""), "{record}");
}

#[test]
fn penalties_can_be_switched_off() {
    let users = TextFile::new("ann:wonderland\n");
    let program = Program::socks5(&["--auth-file", users.path(), "--auth-penalty", "0"]);
    for _ in 0..20 {
        assert_eq!(authenticated(&program, "ann", "guess").1, 1);
    }
    assert_eq!(authenticated(&program, "ann", "wonderland").1, 0);
}

/// Some users behind one address guess passwords, and other users there have an accepted password.
#[test]
fn an_accepted_password_is_not_delayed_by_wrong_guesses() {
    let users = TextFile::new("ann:wonderland\nbob:builder\n");
    let program = Program::socks5(&["--auth-file", users.path()]);
    assert_eq!(authenticated(&program, "ann", "wonderland").1, 0);
    for name in ["ann", "ann", "bob", "mallory"] {
        assert_eq!(authenticated(&program, name, "guess").1, 1);
    }
    // This is within the penalty of one second for the fourth failure. A user whose password has
    // not been accepted from this address must wait.
    assert_eq!(authenticated(&program, "bob", "builder").1, 2);
    assert_eq!(authenticated(&program, "ann", "builder").1, 2, "her name is not enough");
    let (mut client, status) = authenticated(&program, "ann", "wonderland");
    assert_eq!(status, 0);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
    exchange(client);
}

/// A client that is asked for a password must send it. A client that offers both methods is served
/// without a password if the proxy does not ask for one.
#[test]
fn a_client_that_offers_an_unneeded_password_is_served() {
    let program = Program::socks5(&[]);
    let mut client = connect(program.address);
    client.write_all(&[5, 2, 0, 2]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [5, 0]);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    read_exactly(&mut client, 10);
    exchange(client);
}
