//! Active checks of backends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use spliceway_net::has_tool;

use super::{backend, forward, greeted, shares};
use crate::forward::KilledAtEnd;
use crate::harness::{is_closed, listen, refusing};

/// A backend whose answer to HTTP says whether it is healthy.
pub(super) fn http(letter: u8) -> (SocketAddr, Arc<AtomicBool>) {
    let (listener, address) = listen();
    let is_healthy = Arc::new(AtomicBool::new(true));
    let healthy = Arc::clone(&is_healthy);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let healthy = Arc::clone(&healthy);
            thread::spawn(move || {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap_or(0);
                let status = if healthy.load(Ordering::Relaxed) {
                    "200 OK"
                } else {
                    "503 Busy"
                };
                let answer = match request[..length].starts_with(b"GET /up ") {
                    true => format!("HTTP/1.1 {status}\r\n\r\n"),
                    false => char::from(letter).to_string(),
                };
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    (address, is_healthy)
}

pub(super) fn letter(program: &crate::harness::Program) -> char {
    let mut client = program.connect();
    client.write_all(b"?").unwrap();
    let mut letter = [0];
    client.read_exact(&mut letter).unwrap();
    letter[0].into()
}

#[test]
fn a_backend_whose_checks_fail_gets_no_clients_until_they_succeed() {
    let ((a, a_is_healthy), (b, _)) = (http(b'a'), http(b'b'));
    let backends = [a.to_string(), b.to_string()];
    let mut program = forward(
        &backends,
        &[
            "--balance",
            "first",
            "--check",
            "http:/up",
            "--check-interval",
            "200ms",
            "--check-fall",
            "2",
        ],
    );
    assert_eq!(letter(&program), 'a');
    a_is_healthy.store(false, Ordering::Relaxed);
    let line = program.line("a backend is down");
    assert!(line.contains(&a.to_string()) && line.contains("HTTP/1.1 503"), "{line}");
    assert_eq!((letter(&program), letter(&program)), ('b', 'b'));
    assert_eq!(program.sum("spliceway_backend_up", &[]), 1);
    a_is_healthy.store(true, Ordering::Relaxed);
    program.line("a backend is up again");
    assert_eq!(letter(&program), 'a');
}

#[test]
fn a_client_is_refused_at_once_if_every_backend_is_down() {
    let backends = [refusing().to_string(), refusing().to_string()];
    let mut program = forward(&backends, &["--check", "connect", "--check-interval", "1s"]);
    for _ in 0..2 {
        program.line("a backend is down");
    }
    assert!(is_closed(&mut program.connect()));
    let record = program.line(" end=");
    assert!(
        record.contains("end=denied:no_backend") && !record.contains("target="),
        "{record}"
    );
}

#[test]
fn a_backend_that_checks_cannot_reach_gets_no_clients_from_the_start() {
    let (dead, alive) = (refusing(), backend(b'a'));
    let backends = [dead.to_string(), alive.to_string()];
    let mut program = forward(&backends, &["--balance", "round-robin", "--check", "connect"]);
    program.line("a backend is down");
    assert_eq!(shares(&program, 4), BTreeMap::from([('a', 4)]));
    assert!(!program.line(" end=").contains("retries"));
}

#[test]
fn a_tls_server_passes_a_check_with_a_hello() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let folder = crate::harness::Folder::new("tls-check");
    let path = |name: &str| folder.0.join(name).display().to_string();
    let (key, certificate) = (path("key"), path("certificate"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "1",
        ])
        .args(["-keyout", &key, "-out", &certificate])
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    for version in ["-tls1_2", "-tls1_3"] {
        let mut server = Command::new("openssl");
        server.args([
            "s_server",
            "-accept",
            "127.0.0.1:0",
            "-key",
            &key,
            "-cert",
            &certificate,
            version,
        ]);
        let server = server
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = KilledAtEnd(server);
        let mut lines = BufReader::new(server.0.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        // `ACCEPT 127.0.0.1:43210`
        let address = lines
            .find_map(|line| Some(line.strip_prefix("ACCEPT ")?.to_owned()))
            .unwrap();
        let plain = backend(b'a').to_string();
        let mut program = forward(
            &[address.clone(), plain.clone()],
            &["--check", "tls-hello", "--check-interval", "5s", "--balance", "first"],
        );
        let line = program.line("a backend is down");
        assert!(line.contains(&plain), "{line}");
        let labels = [&*format!("backend=\"{address}\""), "result=\"good\""];
        program.await_sum("spliceway_backend_checks_total", &labels, 1);
    }
    std::fs::remove_dir_all(&folder.0).unwrap_or(());
}

#[test]
fn a_reload_without_checks_ends_them() {
    let dead = refusing();
    let text = |check: &str| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n{check}\n\
             [[service.backend]]\nto = \"{dead}\"\n[[service.backend]]\nto = \"{}\"\nbackup = true\n",
            backend(b'b')
        )
    };
    let file = crate::harness::TextFile::new(&text("check = \"connect\""));
    let mut program = crate::harness::Program::run(&file);
    program.line("a backend is down");
    assert_eq!(greeted(&program).1, 'b');
    file.write(&text("eject_after = 0"));
    assert!(program.reload().contains("changed forward"));
    let up = |program: &crate::harness::Program| program.sum("spliceway_backend_up", &[&format!("backend=\"{dead}\"")]);
    assert_eq!(up(&program), 1, "it is not checked");
    assert!(
        program.get("/readyz").starts_with("HTTP/1.1 200"),
        "the tasks have not failed"
    );
}

/// Otherwise, all backends would be down at the same time, and none of them is at fault.
#[test]
fn a_check_that_this_machine_prevents_does_not_count() {
    let backends = [b'a', b'b'].map(|letter| backend(letter).to_string());
    let checks = ["--check", "connect", "--check-interval", "500ms", "--check-fall", "1"];
    let mut program = forward(&backends, &[&checks[..], &["--log-level", "debug"]].concat());
    let checks = |program: &crate::harness::Program, result: &str, count| {
        let result = format!("result=\"{result}\"");
        program.await_sum("spliceway_backend_checks_total", &[&result], count);
    };
    checks(&program, "good", 2);
    // Every descriptor that it has is one too many.
    program.limit_descriptors(3);
    for _ in &backends {
        assert!(program.line("a check cannot run").contains("error="));
    }
    program.limit_descriptors(1024);
    checks(&program, "good", 4);
    assert_eq!(program.lines_with("a backend is down"), 0);
    assert_eq!(shares(&program, 4).len(), 2);
}
