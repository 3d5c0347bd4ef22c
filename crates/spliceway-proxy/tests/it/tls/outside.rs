//! What OpenSSL may ask for after its handshake.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use spliceway_net::has_tool;

use super::client::Pair;
use super::service;
use crate::harness::{PATIENCE, Program, echo};

/// A running `openssl s_client`, which shows its messages. Its commands are letters on their own
/// line.
struct Openssl {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Openssl {
    fn connect(program: &Program, arguments: &[&str]) -> Self {
        let mut child = Command::new("openssl")
            .args(["s_client", "-msg", "-connect", &program.address.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, stdin, lines }
    }

    /// Writes a line, and reads up to the next line with this text.
    fn say(&mut self, said: &str, expected: &str) {
        self.stdin.write_all(format!("{said}\n").as_bytes()).unwrap();
        self.hear(expected);
    }

    fn hear(&self, expected: &str) {
        let until = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(expected) {
                return;
            }
            seen.push(line);
        }
        panic!("{expected}: {seen:#?}");
    }

    /// Returns its errors when it has ended by itself.
    fn errors(mut self) -> String {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        errors
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_client_that_wants_to_renegotiate_is_refused_at_once() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let mut program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    for option in [&[][..], &["-legacy_renegotiation"], &["-legacy_server_connect"]] {
        let mut client = Openssl::connect(&program, &[&["-tls1_2"], option].concat());
        client.say("before", "before");
        client.say("R", "<<< TLS 1.2, Alert [length 0002], warning no_renegotiation");
        let errors = client.errors();
        assert!(errors.contains("no renegotiation"), "{errors}");
        let record = program.line("bytes_up=");
        assert!(record.contains("bytes_up=7 bytes_down=7"), "{record}");
    }
}

#[test]
fn a_key_update_is_answered_before_the_next_data() {
    const SENT: &str = ">>> TLS 1.3, Handshake [length 0005], KeyUpdate";
    const ANSWERED: &str = "<<< TLS 1.3, Handshake [length 0005], KeyUpdate";
    if !has_tool("openssl", "openssl") {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let program = service("forward", echo("127.0.0.1:0"), &pair, &[]);
    let mut client = Openssl::connect(&program, &["-tls1_3"]);
    client.say("before", "before");
    // The first one asks for no answer.
    client.say("k", SENT);
    client.say("between", "between");
    client.say("K", SENT);
    client.say("after", ANSWERED);
    client.hear("after");
}
