//! OpenSSL at an end of TLS: `openssl s_client` and `openssl s_server`.
//!
//! Both end their own side as soon as the other side ends, so there is no half-close here. The
//! server cannot end first: its commands close the connection without `close_notify`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use spliceway_net::has_tool;

use super::{CUT, End, Peer, SIZE, check_record, check_switched, content, exchange, finish, pass, relay, talk};
use crate::harness::{Folder, Program, TextFile, accept, assert_same, listen, read_all};
use crate::tls::client::Pair;
use crate::tls::server::Authority;

/// Every cipher that the kernel may take over.
const CIPHERS: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

/// The lines with which openssl shows new keys.
const SENT: &str = ">>> TLS 1.3, Handshake [length 0005], KeyUpdate";
const RECEIVED: &str = "<<< TLS 1.3, Handshake [length 0005], KeyUpdate";

/// Shows the messages of TLS on stderr.
const SHOWN: [&str; 3] = ["-msg", "-msgfile", "/proc/self/fd/2"];

fn is_here() -> bool {
    has_tool("openssl", "openssl")
}

/// Starts a client that checks the certificate. Its commands are letters on their own line.
fn client(program: &Program, ca: &str, more: &[&str]) -> Peer {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &program.address.to_string(), "-tls1_3"]);
    command.args(["-quiet", "-no_ign_eof", "-verify_quiet", "-verify_return_error"]);
    command.args(["-CAfile", ca, "-servername", "a.test", "-verify_hostname", "a.test"]);
    Peer::start(command.args(more))
}

/// A server and its certificate, which an authority has issued for 127.0.0.1.
struct Server {
    peer: Peer,
    target: String,
    ca: TextFile,
}

impl Server {
    fn start(more: &[&str]) -> Self {
        let authority = Authority::new("Test CA");
        let [chain, key] = authority.issue(&["127.0.0.1"]).files();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-accept", "127.0.0.1:0", "-tls1_3"]);
        command.args(["-cert", chain.path(), "-key", key.path()]);
        let mut peer = Peer::start(command.args(more));
        let target = format!("tls://{}", peer.address());
        let ca = authority.file();
        Self { peer, target, ca }
    }

    fn relay(&self, more: &[&str]) -> Program {
        relay(&self.target, &[&["--target-tls-ca", self.ca.path()], more].concat())
    }
}

/// Asks a peer for new keys: `K` if the other side shall change its keys too, else `k`. The peer
/// must see the letter first in what it reads, so it must have read everything before.
fn update_keys(peer: &mut Peer, letter: &str) {
    peer.send(format!("{letter}\n").as_bytes());
    peer.line(SENT);
}

/// Changes keys between short messages. A server reads letters only after its handshake, so the
/// first message is for the peer.
fn talk_with_updates(peer: &mut Peer, plain: &mut TcpStream, letters: &[&str]) {
    pass(plain, peer, &content(8, 700));
    for (number, letter) in (10..).step_by(2).zip(letters) {
        update_keys(peer, letter);
        talk(peer, plain, number);
        if *letter == "K" {
            peer.line(RECEIVED);
        }
    }
}

/// Changes the keys of a peer while a plain end sends.
fn receive_with_updates(peer: &mut Peer, plain: &mut TcpStream) {
    let bytes = content(3, SIZE);
    thread::scope(|scope| {
        scope.spawn(|| plain.write_all(&bytes).unwrap());
        for letter in ["K", "k", "K", "K"] {
            update_keys(peer, letter);
        }
        assert_same(&peer.receive(SIZE), &bytes);
    });
}

#[test]
fn a_client_exchanges_every_byte_with_each_cipher() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    for cipher in CIPHERS {
        for is_client_first in [true, false] {
            let mut peer = client(&program, pair.certificate.path(), &["-ciphersuites", cipher]);
            let mut plain = accept(&listener);
            exchange(&mut peer, &mut plain, SIZE);
            if is_client_first {
                peer.finish();
                assert_eq!(read_all(&plain), b"");
                drop(plain);
            } else {
                finish(&plain);
                assert_eq!(read_all(&plain), b"");
            }
            let (is_well, rest, said) = peer.end();
            assert!(is_well && rest.is_empty() && !said.contains("error"), "{said}");
            let end = if is_client_first {
                "end=client_eof"
            } else {
                "end=upstream_eof"
            };
            let cipher = format!(" cipher={cipher} ");
            check_record(&program.line("bytes_up="), "client", [SIZE; 2], &[end, &cipher]);
        }
    }
    check_switched(&program, 6);
}

#[test]
fn a_server_exchanges_every_byte_with_each_cipher() {
    if !is_here() {
        return;
    }
    for cipher in CIPHERS {
        let mut server = Server::start(&["-ciphersuites", cipher]);
        let mut program = server.relay(&[]);
        let mut plain = program.connect();
        exchange(&mut plain, &mut server.peer, SIZE);
        finish(&plain);
        assert_eq!(read_all(&plain), b"");
        let cipher = format!(" target_cipher={cipher} ");
        check_record(
            &program.line("bytes_up="),
            "target",
            [SIZE; 2],
            &["end=client_eof", &cipher],
        );
        check_switched(&program, 1);
    }
}

#[test]
fn a_client_changes_its_keys_before_and_after_the_switch() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    for before in [&[][..], &["k"], &["K"], &["K", "k", "K"]] {
        let mut peer = client(&program, pair.certificate.path(), &SHOWN);
        let mut plain = accept(&listener);
        talk_with_updates(&mut peer, &mut plain, before);
        exchange(&mut peer, &mut plain, SIZE / 4);
        talk_with_updates(&mut peer, &mut plain, &["k", "K", "K", "k", "k"]);
        receive_with_updates(&mut peer, &mut plain);
        exchange(&mut peer, &mut plain, SIZE / 4);
        finish(&plain);
        let (is_well, rest, said) = peer.end();
        assert!(is_well && rest.is_empty(), "{said}");
        let messages = before.len() + 5;
        let bytes = [SIZE / 2 + 900 * messages, SIZE / 2 + SIZE + 700 * (messages + 2)];
        check_record(&program.line("bytes_up="), "client", bytes, &["end=upstream_eof"]);
    }
    check_switched(&program, 4);
}

#[test]
fn a_server_changes_its_keys_before_and_after_the_switch() {
    if !is_here() {
        return;
    }
    let mut server = Server::start(&SHOWN);
    let mut program = server.relay(&[]);
    for before in [&[][..], &["k"], &["K"], &["K", "k", "K"]] {
        let mut plain = program.connect();
        talk_with_updates(&mut server.peer, &mut plain, before);
        exchange(&mut plain, &mut server.peer, SIZE / 4);
        talk_with_updates(&mut server.peer, &mut plain, &["k", "K", "K", "k", "k"]);
        receive_with_updates(&mut server.peer, &mut plain);
        exchange(&mut plain, &mut server.peer, SIZE / 4);
        finish(&plain);
        assert_eq!(read_all(&plain), b"");
        drop(plain);
        let messages = before.len() + 5;
        let bytes = [SIZE / 2 + SIZE + 700 * (messages + 2), SIZE / 2 + 900 * messages];
        check_record(&program.line("bytes_up="), "target", bytes, &["end=client_eof"]);
    }
    check_switched(&program, 4);
}

#[test]
fn a_client_that_changes_its_keys_33_times_without_data_is_refused() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    for letter in ["K", "k"] {
        let mut peer = client(&program, pair.certificate.path(), &SHOWN);
        let mut plain = accept(&listener);
        exchange(&mut peer, &mut plain, SIZE / 4);
        for _ in 0..2 {
            talk(&mut peer, &mut plain, 10);
            (0..32).for_each(|_| update_keys(&mut peer, letter));
        }
        peer.send(format!("{letter}\n").as_bytes());
        assert_eq!(plain.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(!peer.end().0);
        let bytes = [SIZE / 4 + 2 * 900, SIZE / 4 + 2 * 700];
        check_record(
            &program.line("bytes_up="),
            "client",
            bytes,
            &["end=reset_by_client", "too many"],
        );
    }
    check_switched(&program, 2);
}

#[test]
fn a_client_resumes_a_session_that_was_in_the_kernel() {
    if !is_here() {
        return;
    }
    let (pair, folder) = (Pair::new(&["a.test"]), Folder::new("tickets"));
    let ticket = folder.0.join("ticket");
    let ticket = ticket.to_str().unwrap();
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    for options in [&["-sess_out", ticket][..], &["-sess_in", ticket]] {
        let mut peer = client(&program, pair.certificate.path(), options);
        let mut plain = accept(&listener);
        exchange(&mut peer, &mut plain, SIZE / 2);
        peer.finish();
        assert_eq!(read_all(&plain), b"");
        drop(plain);
        assert!(peer.end().0);
        let record = program.line("bytes_up=");
        check_record(&record, "client", [SIZE / 2; 2], &["end=client_eof"]);
        let is_resumed = options[0] == "-sess_in";
        assert_eq!(record.contains(" resumed=\"yes\""), is_resumed, "{record}");
    }
    check_switched(&program, 2);
}

#[test]
fn a_session_with_a_server_is_resumed_after_one_in_the_kernel() {
    if !is_here() {
        return;
    }
    let mut server = Server::start(&[]);
    let mut program = server.relay(&[]);
    for is_resumed in [false, true] {
        let mut plain = program.connect();
        exchange(&mut plain, &mut server.peer, SIZE / 2);
        finish(&plain);
        assert_eq!(read_all(&plain), b"");
        drop(plain);
        let record = program.line("bytes_up=");
        check_record(&record, "target", [SIZE / 2; 2], &["end=client_eof"]);
        assert_eq!(record.contains(" target_resumed=\"yes\""), is_resumed, "{record}");
    }
    check_switched(&program, 2);
}

#[test]
fn a_client_that_is_killed_has_cut_its_stream() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let mut peer = client(&program, pair.certificate.path(), &[]);
    let mut plain = accept(&listener);
    exchange(&mut peer, &mut plain, SIZE / 2);
    peer.kill();
    assert_eq!(read_all(&plain), b"");
    drop(plain);
    let fields = ["end=client_eof", " truncated=yes"];
    check_record(&program.line("bytes_up="), "client", [SIZE / 2; 2], &fields);
    check_switched(&program, 1);
}

#[test]
fn a_server_that_only_closes_has_cut_its_stream() {
    if !is_here() {
        return;
    }
    let mut server = Server::start(&[]);
    let mut program = server.relay(&[]);
    for is_killed in [false, true] {
        let mut plain = program.connect();
        exchange(&mut plain, &mut server.peer, SIZE / 2);
        if is_killed {
            server.peer.kill();
        } else {
            // `q` closes the connection without `close_notify`.
            server.peer.send(b"q\n");
        }
        assert_eq!(read_all(&plain), b"");
        drop(plain);
        let fields = ["end=upstream_eof", " target_truncated=yes"];
        check_record(&program.line("bytes_up="), "target", [SIZE / 2; 2], &fields);
    }
    check_switched(&program, 2);
}

#[test]
fn a_reset_of_the_target_is_a_reset_for_a_client() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let mut peer = client(&program, pair.certificate.path(), &[]);
    let mut plain = accept(&listener);
    exchange(&mut peer, &mut plain, SIZE / 2);
    SockRef::from(&plain).set_linger(Some(Duration::ZERO)).unwrap();
    drop(plain);
    let (is_well, _, said) = peer.end();
    assert!(!is_well && said.contains("errno=104"), "{said}");
    let fields = ["end=reset_by_upstream"];
    check_record(&program.line("bytes_up="), "client", [SIZE / 2; 2], &fields);
}

#[test]
fn a_cut_stream_is_cut_for_the_peer_behind_the_relay() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let mut server = Server::start(&[]);
    let mut program = server.relay(&pair.arguments());
    for is_cut_by_server in [true, false] {
        let mut peer = client(&program, pair.certificate.path(), &[]);
        exchange(&mut peer, &mut server.peer, SIZE / 2);
        let cut = if is_cut_by_server {
            server.peer.send(b"q\n");
            let (is_well, _, said) = peer.end();
            assert!(!is_well && said.contains(CUT), "{said}");
            // OpenSSL answers with an alert.
            ["end=reset_by_client", " target_truncated=yes"]
        } else {
            peer.kill();
            server.peer.line(CUT);
            ["end=reset_by_upstream", " truncated=yes"]
        };
        check_record(&program.line("bytes_up="), "both", [SIZE / 2; 2], &cut);
    }
    check_switched(&program, 4);
}

#[test]
fn a_client_and_a_server_announce_their_ends_to_each_other() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let mut server = Server::start(&SHOWN);
    let mut program = server.relay(&pair.arguments());
    let mut peer = client(&program, pair.certificate.path(), &SHOWN);
    for letter in ["K", "k"] {
        exchange(&mut peer, &mut server.peer, SIZE / 2);
        update_keys(&mut peer, letter);
        update_keys(&mut server.peer, letter);
    }
    peer.finish();
    let (is_well, rest, said) = peer.end();
    assert!(is_well && rest.is_empty() && !said.contains(CUT), "{said}");
    check_record(&program.line("bytes_up="), "both", [SIZE; 2], &["end=client_eof"]);
    check_switched(&program, 2);
}

#[test]
fn a_client_sees_the_end_of_an_answer_that_it_waits_for() {
    if !is_here() {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let mut peer = client(&program, pair.certificate.path(), &[]);
    let mut plain = accept(&listener);
    exchange(&mut peer, &mut plain, SIZE / 2);
    // The end follows the bytes at once.
    let bytes = content(5, SIZE);
    plain.write_all(&bytes).unwrap();
    finish(&plain);
    let (is_well, rest, said) = peer.end();
    assert!(is_well && !said.contains(CUT), "{said}");
    assert_same(&rest, &bytes);
    assert_eq!(plain.read(&mut [0]).unwrap(), 0);
    check_record(
        &program.line("bytes_up="),
        "client",
        [SIZE / 2, SIZE / 2 + SIZE],
        &["end=upstream_eof"],
    );
}
