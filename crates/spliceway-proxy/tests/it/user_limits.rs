use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::auth::authenticated;
use crate::clients::{ip_request, read_head};
use crate::harness::{
    PATIENCE, Program, TextFile, assert_same, echo, let_pass, pattern, read_all, read_exactly, send_and_finish,
};
use crate::udp::{associated_by, received, shouting, socket, wrapped};

const MB: usize = 1_000_000;

/// Returns a file of the users `ann` and `bob`.
pub(crate) fn users() -> TextFile {
    TextFile::new("ann:wonderland\nbob:builder\n")
}

/// Returns a configuration with the tables `limits`, and a service for users.
pub(crate) fn file(kind: &str, users: &TextFile, limits: &str) -> String {
    let users = users.path();
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n{limits}\n\
         [[service]]\nkind = \"{kind}\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{users}\"\n"
    )
}

/// Asks for a session of this user. Returns the client, and the status of its request.
pub(crate) fn ask(program: &Program, user: &str, target: SocketAddr) -> (TcpStream, u8) {
    let secret = if user == "ann" { "wonderland" } else { "builder" };
    let (mut client, status) = authenticated(program, user, secret);
    assert_eq!(status, 0);
    client.write_all(&ip_request(target)).unwrap();
    let answer = read_exactly(&mut client, 10);
    (client, answer[1])
}

pub(crate) fn session(program: &Program, user: &str, target: SocketAddr) -> TcpStream {
    let (client, status) = ask(program, user, target);
    assert_eq!(status, 0);
    client
}

#[test]
fn each_user_has_its_own_limit_on_sessions_in_all_services() {
    let (users, target) = (users(), echo("127.0.0.1:0"));
    let limits = "[defaults.user]\nmax_conns = 1\n[[user]]\nname = \"ann\"\nmax_conns = 2\n";
    let config = TextFile::new(&file("mixed", &users, limits));
    let mut program = Program::run(&config);
    let ann = [session(&program, "ann", target), session(&program, "ann", target)];
    let bob = session(&program, "bob", target);
    for user in ["ann", "bob"] {
        assert_eq!(ask(&program, user, target).1, 1, "{user}: a general failure");
        let record = program.line("end=denied:user_max_conns");
        assert!(record.contains(&format!("user=\"{user}\"")), "{record}");
    }
    let mut client = program.connect();
    // bob:builder
    write!(
        client,
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic Ym9iOmJ1aWxkZXI=\r\n\r\n"
    )
    .unwrap();
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    program.await_sum("spliceway_refused_total", &["reason=\"user_max_conns\""], 3);
    drop((ann, bob));
    // A session leaves its account after its client has left.
    let until = Instant::now() + PATIENCE;
    while ask(&program, "bob", target).1 != 0 {
        assert!(Instant::now() < until, "the place stays taken");
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn the_sessions_of_a_user_share_one_rate_and_others_do_not() {
    let (users, target) = (users(), echo("127.0.0.1:0"));
    let limits = "[[user]]\nname = \"ann\"\nrate_in = \"4MB\"\nrate_out = \"none\"\n";
    let config = TextFile::new(&file("socks5", &users, limits));
    let mut program = Program::run(&config);
    let clients = ["ann", "ann", "bob"].map(|user| session(&program, user, target));
    let (started, bytes) = (Instant::now(), pattern(5, MB));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| send_and_finish(client, &bytes));
            scope.spawn(|| assert_same(&read_all(client), &bytes));
        }
    });
    // The bucket starts with the bytes of a tenth of a second.
    let least = Duration::from_secs_f64((2 * MB - 400_000) as f64 / 4e6);
    assert!(started.elapsed() >= least, "{:?}", started.elapsed());
    for _ in &clients {
        let record = program.line("end=client_eof");
        let is_ann = record.contains("user=\"ann\"");
        assert_eq!(record.contains(" limited_up_ms="), is_ann, "{record}");
        assert!(!record.contains(" limited_down_ms="), "{record}");
    }
}

/// A rate of 10 bytes in a second owes the first datagram for longer than the test takes.
#[test]
fn associations_share_the_rate_of_their_user() {
    let users = users();
    let limits = "[[user]]\nname = \"ann\"\nrate_in = \"10B\"\nrate_out = \"none\"\n";
    let config = TextFile::new(&file("socks5", &users, limits));
    let program = Program::run(&config);
    let target = shouting("127.0.0.1:0");
    let clients = [("ann", "wonderland"), ("ann", "wonderland"), ("bob", "builder")].map(|(user, secret)| {
        let (client, status) = authenticated(&program, user, secret);
        assert_eq!(status, 0);
        (associated_by(client), socket("127.0.0.1:0").0)
    });
    let datagram = wrapped(target, &[b'a'; 1_000]);
    for (number, ((_, relay), socket)) in clients.iter().enumerate() {
        for _ in 0..2 {
            socket.send_to(&datagram, relay).unwrap();
        }
        let lost = [1, 3, 3][number];
        program.await_sum("spliceway_datagrams_dropped_total", &["reason=\"rate\""], lost);
        for _ in 0..[1, 0, 2][number] {
            assert_eq!(received(socket), wrapped(target, &[b'A'; 1_000]));
        }
    }
    assert_eq!(program.sum("spliceway_datagrams_total", &["direction=\"up\""]), 3);
}

#[test]
fn a_reload_changes_the_limits_of_users() {
    let (users, target) = (users(), echo("127.0.0.1:0"));
    let limits = |max| format!("[defaults.user]\nmax_conns = {max}\n");
    let config = TextFile::new(&file("socks5", &users, &limits(1)));
    let mut program = Program::run(&config);
    let _first = session(&program, "ann", target);
    assert_eq!(ask(&program, "ann", target).1, 1);
    config.write(&file("socks5", &users, &limits(2)));
    let report = program.reload();
    assert!(report.contains("reloaded: changed the limits of users"), "{report}");
    let _second = session(&program, "ann", target);
    assert_eq!(ask(&program, "ann", target).1, 1);
    config.write(&file("socks5", &users, "[[user]]\nname = \"eve\"\n"));
    program.signal(rustix::process::Signal::HUP);
    let warning = program.line("no service has the user");
    assert!(warning.contains("no service has the user eve"), "{warning}");
    program.line("reloaded: ");
    let _third = session(&program, "ann", target);
}
