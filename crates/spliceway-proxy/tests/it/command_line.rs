use std::net::TcpListener;
use std::process::{Command, Output};

use spliceway_net::{has_localhost, has_tool};

use crate::harness::{Program, TextFile, listen};

/// What is typed, with `_` for a space within a word, and what the answer has.
const HABITS: &str = include_str!("command_line/habits.txt");

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    (output, stderr)
}

#[test]
fn a_mistake_on_the_command_line_has_its_remedy() {
    for (arguments, tip) in [
        (&["forwrd", "-l", ":80"][..], "a similar subcommand exists: 'forward'"),
        (&["forward", "--lisen", ":80"], "a similar argument exists: '--listen'"),
        (&["-c", "main.toml"], "type spliceway run FILE"),
        (&["--config", "main.toml"], "type spliceway run FILE"),
        // Port because nothing listens there.
        (&["socks5", "127.0.0.1:1080"], "type -l 127.0.0.1:1080"),
        (&["http", ":3128"], "type -l :3128"),
        // Port because nothing listens there.
        (&["forward", "[::1]:80"], "type -l [::1]:80"),
        (&["run"], "<--config <PATH>|PATH>"),
        // Port because nothing listens there.
        (&["socks5", "-l", ":1,:2"], "repeat the flag for each of"),
        (&["socks5", "--tls-alpn", "h2,http/1.1"], "each of h2 http/1.1"),
        (
            &["http", "--allow", "10.0.0.0/8,192.0.2.1"],
            "repeat the flag for each of",
        ),
        (&["http", "--idle-timeout", "5"], "expected a time such as 500ms, 10s"),
        (&["http", "--idle-timeout"], "a value is required"),
        (
            &["http", "--rate-in", "10Mbit"],
            "expected bytes per second such as 10MB",
        ),
        (&["http", "--max-conns", "0"], "expected a number, 1 or more"),
        (
            &["http", "-l", "1080"],
            // Port because the program refuses it before it listens.
            "write 127.0.0.1:1080 for this machine, or :1080",
        ),
        (&["http", "-l", ":99999"], "ports end at 65535"),
        (
            &["-l", ":0", "-r", "a.example"],
            "the port is missing: write a.example:PORT",
        ),
        (&["-l", ":0", "-r", "http://a.example"], "no scheme: write a.example:80"),
        (&["-l", ":0"], "--remote"),
        (&["http", "--send-proxy", "v3"], "--send-proxy"),
        (
            &["-l", ":0", "-r", "a:1", "--send-proxy", "v3"],
            "expected v1, v2 or v2-tls",
        ),
        (
            &["http", "--auth-file", "/nowhere/users"],
            "create it, or correct the path",
        ),
        (&["http", "--upstream-proxy", "ftp://a:1"], "--upstream-proxy"),
        (&["socks5", "--udp"], "--udp"),
        (&["sni", "-l", ":0", "--route", "a.example"], "--route"),
        (&["http", "-listen", ":0"], "-listen"),
        (&["check", "main.toml", "-l", ":0"], "-l"),
        (&["run", "-c"], "a value is required"),
        (&["http", "--log-level", "loud"], "off, error, warn, info, debug, trace"),
    ] {
        let (output, stderr) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(tip), "{tip}: {stderr}");
    }
}

#[test]
fn a_configuration_file_needs_no_flag() {
    let file = TextFile::new("[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n");
    for arguments in [&["check", file.path()][..], &["check", "-c", file.path()]] {
        let (output, stderr) = run(arguments);
        assert!(output.status.success(), "{stderr}");
        assert!(
            output
                .stdout
                .starts_with(format!("{}: valid, 1 service", file.path()).as_bytes())
        );
    }
    let mut program = Program::start(&["run", file.path()]);
    program.terminate();
    assert!(program.exit().success());
}

#[test]
fn a_busy_port_is_an_error_that_names_the_address_and_the_cause() {
    let (_listener, address) = listen();
    let address = address.to_string();
    for arguments in [
        &["socks5", "-l", &address][..],
        // Port because the program never dials it: the listener fails first.
        &["-l", "127.0.0.1:0", "-l", &address, "-r", "127.0.0.1:1"],
        &["socks5", "-l", "127.0.0.1:0", "--metrics", &address],
    ] {
        let (output, stderr) = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(&address) && stderr.contains("Address already in use"),
            "{stderr}"
        );
        let holder = format!(" (process {})", std::process::id());
        assert!(stderr.contains(": in use by ") && stderr.contains(&holder), "{stderr}");
        assert!(!stderr.contains("listening on"), "all or none: {stderr}");
    }
}

#[test]
fn an_unresolvable_name_to_listen_on_is_an_error() {
    let name = format!("{}.invalid:0", "x".repeat(64));
    let (output, stderr) = run(&["socks5", "-l", &name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains(&format!("cannot listen on {name}")), "{stderr}");
}

#[test]
fn bad_usage_exits_with_2_and_prints_the_expected_form() {
    for (arguments, expected) in [
        (&["socks5", "--no-such-flag"][..], "--no-such-flag"),
        (
            &["socks5", "-l", "a b"],
            "expected :PORT, IP:PORT, [IPV6]:PORT or NAME:PORT",
        ),
        (&["-l", ":0", "-r", "$"], "expected HOST:PORT"),
        (&["-l", ":0", "-r", "http://example.com:80"], "write example.com:80"),
        (&["-l", ":0"], "--remote"),
        (
            &["socks5", "--idle-timeout", "10"],
            "expected a time such as 500ms, 10s, 1m or 1h30m, in ms, s, m, h or d",
        ),
        // Port because the program refuses it before it listens.
        (&["-l", ":0", "-r", "example.com:0"], "expected a port from 1 to 65535"),
        (&["-l", ":0", "-r", "127.0.0.1:0"], "expected a port from 1 to 65535"),
        (&["-l", ":0", "-r", "example.com:70000"], "ports end at 65535"),
        (&["socks5", "-l", ":65536"], "ports end at 65535"),
        (
            &["socks5", "-x", "socks6://example.com"],
            "--upstream-proxy: unknown scheme, expected socks5://",
        ),
        (&["socks5", "--connect-timeout", "0"], "longer than 0"),
        (&["socks5", "--splice", "maybe"], "auto, on, off"),
        (&["socks5", "--workers", "0"], "--workers"),
        (&["socks5", "--max-conns", "0"], "1 or more"),
        (&["socks5", "--max-conns-per-ip", "many"], "1 or more"),
        (&["socks5", "--nofile", "63"], "64 or more"),
        (&["socks5", "--mark", "0xabg"], "100 or 0x64"),
        (&["socks5", "--rate-in", "0"], "at least 1 byte per second"),
        (
            &["socks5", "-l", "unix:/run/a,mode=9"],
            "expected ,mode= with octal digits",
        ),
        (&["socks5", "--auth", "ann"], "Usage: spliceway socks5"),
        // Port because the program refuses it before it listens.
        (&["-l", ":8000-8001", "-r", "127.0.0.1:8000-8002"], "Usage: spliceway"),
        (&[], "Usage"),
    ] {
        let (output, stderr) = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn help_and_version_end_with_0() {
    for arguments in [&["--help"][..], &["socks5", "--help"], &["--version"]] {
        assert_eq!(run(arguments).0.status.code(), Some(0));
    }
}

/// Operators of HAProxy, nginx, gost, realm, microsocks, stunnel and socat type these.
#[test]
fn habits_of_other_programs_have_their_remedies() {
    let mut count = 0;
    for line in HABITS.lines() {
        let (typed, tip) = line.split_once(" => ").unwrap();
        // No flag has `_` in it.
        let words: Vec<_> = typed.split(' ').map(|word| word.replace('_', " ")).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let (output, stderr) = run(&words);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains(tip), "{line}: {stderr}");
        assert!(!stderr.contains("a similar"), "one tip: {stderr}");
        count += 1;
    }
    assert!(count >= 65, "{count}");
}

#[test]
fn a_folder_that_is_missing_is_named_with_the_remedy() {
    for arguments in [
        &["-l", "unix:/nowhere/a", "-r", "a:1"][..],
        &["http", "-l", "127.0.0.1:0", "--admin", "unix:/nowhere/a"],
    ] {
        let (output, stderr) = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let expected = "cannot listen on unix:/nowhere/a: No such file or directory (os error 2): create its folder, \
                        or correct the path";
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn a_missing_interface_is_named_and_does_not_stop_the_start() {
    let mut program = Program::socks5(&["--bind-interface", "nosuch0"]);
    let line = "targets cannot be reached yet failed=--bind-interface nosuch0: no such interface";
    assert_eq!(program.lines_with(line), 1);
}

/// A Python program that runs `argv[2:]` on its own terminal. It types a line whenever echo is off.
/// At the end, it prints everything that appeared on the terminal.
pub(crate) const TYPIST: &str = r#"
import os, pty, sys, termios, time
lines = sys.argv[1].split(',')
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen = b''
for prompt, line in zip((b'Password: ', b'Repeat it: '), lines):
    while not seen.endswith(prompt):
        seen += os.read(terminal, 1024)
    while termios.tcgetattr(terminal)[3] & termios.ECHO:
        time.sleep(0.001) # Sleeps because a change of a terminal's mode is not an event.
    os.write(terminal, line.encode() + b'\n')
while True:
    try:
        more = os.read(terminal, 1024)
    except OSError:
        break
    if not more:
        break
    seen += more
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn on_a_terminal_a_secret_is_asked_for_twice_and_never_shown() {
    if !has_tool("python3", "python3") {
        return;
    }
    for (typed, code, expected) in [
        ("s3cret,s3cret", 0, "$argon2id$"),
        ("s3cret,s3crat", 2, "the two passwords differ"),
    ] {
        let spliceway = env!("CARGO_BIN_EXE_spliceway");
        let output = Command::new("python3")
            .args(["-c", TYPIST, typed, spliceway, "hash-password"])
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{shown} {:?}", output.stderr);
        assert!(shown.contains(expected) && !shown.contains("s3cr"), "{shown}");
        assert_eq!(shown.contains("$argon2"), code == 0, "{shown}");
    }
}

#[test]
fn a_secret_longer_than_a_client_can_send_is_not_hashed() {
    for (bytes, code) in [(255, 0), (256, 2), (9000, 2)] {
        let secret = TextFile::new(&format!("{}\r\n", "x".repeat(bytes)));
        let output = Command::new(env!("CARGO_BIN_EXE_spliceway"))
            .arg("hash-password")
            .stdin(std::fs::File::open(secret.path()).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{bytes}");
        assert_eq!(output.stdout.is_empty(), code != 0, "{bytes}");
    }
}

#[test]
fn listeners_are_announced_even_if_the_log_is_off() {
    let program = Program::socks5(&["--log-level", "off"]);
    assert_ne!(program.address.port(), 0);
    assert!(TcpListener::bind(program.address).is_err(), "it is the real address");
}

#[test]
fn a_name_listens_on_its_addresses() {
    if !has_localhost() {
        return;
    }
    let program = Program::start(&["socks5", "-l", "localhost:0"]);
    assert!(program.address.ip().is_loopback());
    program.connect();
}
