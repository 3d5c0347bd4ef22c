//! curl as the client of a relay in front of an HTTP server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use spliceway_net::has_tool;

use super::{SIZE, check_record, check_switched, relay};
use crate::harness::{Folder, Program, accept, assert_same, listen, pattern, read_exactly};
use crate::tls::client::Pair;

/// The bytes of one of many answers.
const SMALL: usize = 20_000;

/// The number of requests on one connection.
const MANY: usize = 100;

/// The number of bytes with which a request asks for an answer.
fn asked_bytes(head: &str) -> usize {
    let path = head.split(' ').nth(1).unwrap();
    path.rsplit('/').next().unwrap().parse().unwrap()
}

/// Serves requests on a connection until its client ends it. `PUT` stores its body, and every
/// answer is a pattern.
fn serve(mut stream: TcpStream, stored: &mut Vec<u8>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap() == 0 {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        if let Some(length) = length {
            stored.extend(read_exactly(&mut stream, length.parse().unwrap()));
        }
        let body = pattern(3, asked_bytes(&head));
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
        stream.write_all(&body).unwrap();
    }
}

/// Runs curl with these arguments. Returns its output, and what the server has stored.
fn run(program: &Program, listener: &TcpListener, ca: &str, arguments: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let at = format!("a.test:{}:127.0.0.1", program.address.port());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--cacert", ca, "--resolve", &at]);
    curl.args(["--noproxy", "*", "--tlsv1.3", "--http1.1", "--header", "Expect:"])
        .args(arguments);
    let connections = AtomicUsize::new(0);
    let mut stored = Vec::new();
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            serve(accept(listener), &mut stored);
            connections.fetch_add(1, Ordering::Relaxed);
        });
        curl.output().unwrap()
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(connections.into_inner(), 1);
    (output.stdout, stored)
}

/// Returns a relay, the listener of its target, the certificate, and how addresses begin.
fn start() -> Option<(Program, TcpListener, Pair, String)> {
    has_tool("curl", "curl").then(|| {
        let pair = Pair::new(&["a.test"]);
        let (listener, target) = listen();
        let program = relay(&target.to_string(), &pair.arguments());
        let base = format!("https://a.test:{}", program.address.port());
        (program, listener, pair, base)
    })
}

/// Returns both byte counts of a record.
fn bytes_in(record: &str) -> [usize; 2] {
    ["bytes_up=", "bytes_down="].map(|field| {
        let (_, value) = record.split_once(field).unwrap();
        value.split(' ').next().unwrap().parse().unwrap()
    })
}

#[test]
fn a_file_passes_in_each_direction() {
    let Some((mut program, listener, pair, base)) = start() else {
        return;
    };
    let (folder, up) = (Folder::new("upload"), pattern(1, SIZE));
    let file = folder.0.join("up");
    std::fs::write(&file, &up).unwrap();
    let url = format!("{base}/{SIZE}");
    for arguments in [
        &[url.as_str()][..],
        &["--limit-rate", "4M", &url],
        &["--upload-file", file.to_str().unwrap(), &url],
    ] {
        let (answer, stored) = run(&program, &listener, pair.certificate.path(), arguments);
        assert_same(&answer, &pattern(3, SIZE));
        let uploads = arguments[0] == "--upload-file";
        assert_same(&stored, if uploads { &up } else { &[] });
        let record = program.line("bytes_up=");
        let [up, down] = bytes_in(&record);
        assert!(down > SIZE && (up > SIZE) == uploads, "{record}");
    }
}

#[test]
fn many_requests_pass_on_one_connection() {
    let Some((mut program, listener, pair, base)) = start() else {
        return;
    };
    let url = format!("{base}/[1-{MANY}]/{SMALL}");
    let (answers, _) = run(&program, &listener, pair.certificate.path(), &[&url]);
    assert_same(&answers, &pattern(3, SMALL).repeat(MANY));
    let record = program.line("bytes_up=");
    check_record(&record, "client", bytes_in(&record), &["end=client_eof"]);
    check_switched(&program, 1);
}

#[test]
fn many_uploads_pass_on_one_connection() {
    let Some((mut program, listener, pair, base)) = start() else {
        return;
    };
    let (folder, up) = (Folder::new("uploads"), pattern(1, SMALL));
    let file = folder.0.join("up");
    std::fs::write(&file, &up).unwrap();
    let url = format!("{base}/[1-{MANY}]/{SMALL}");
    let arguments = ["--upload-file", file.to_str().unwrap(), &url];
    let (answers, stored) = run(&program, &listener, pair.certificate.path(), &arguments);
    assert_same(&answers, &pattern(3, SMALL).repeat(MANY));
    assert_same(&stored, &up.repeat(MANY));
    let record = program.line("bytes_up=");
    check_record(&record, "client", bytes_in(&record), &["end=client_eof"]);
    check_switched(&program, 1);
}
