//! Other people's programs through the forwarder.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::{alone, forward, free};
use crate::harness::{Program, TextFile};
use spliceway_net::has_tool;

/// A program that is killed when this value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dig_gets_the_answer_of_dnsmasq() {
    if has_tool("dig", "bind9-dnsutils") && has_tool("dnsmasq", "dnsmasq-base") {
        alone(ask_dnsmasq);
    }
}

fn ask_dnsmasq() {
    let target = free();
    let mut dnsmasq = Command::new("dnsmasq");
    dnsmasq.args([
        "--keep-in-foreground",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--conf-file=/dev/null",
    ]);
    dnsmasq.args([
        "--user=root",
        "--pid-file=",
        "--log-facility=-",
        "--listen-address=127.0.0.1",
    ]);
    dnsmasq.args([
        format!("--port={}", target.port()),
        "--address=/a.test/192.0.2.7".to_owned(),
    ]);
    let mut dnsmasq = Running(dnsmasq.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(dnsmasq.0.stderr.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("started")))
        .unwrap()
        .unwrap();
    let program = forward(target, &[]);
    let mut dig = Command::new("dig");
    dig.args([
        "+short",
        "+tries=3",
        "@127.0.0.1",
        "-p",
        &program.address.port().to_string(),
        "a.test",
    ]);
    let answer = dig.output().unwrap().stdout;
    assert_eq!(String::from_utf8(answer).unwrap(), "192.0.2.7\n");
}

#[test]
fn socat_sends_datagrams_and_gets_their_answers() {
    if !has_tool("socat", "socat") {
        return;
    }
    let program = forward(super::marking("127.0.0.1:0", b'a'), &[]);
    let to = format!("UDP4:{}", program.address);
    let mut socat = Command::new("socat");
    let socat = socat
        .args(["-t", "20", "-", &to])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut socat = Running(socat.spawn().unwrap());
    std::io::Write::write_all(socat.0.stdin.as_mut().unwrap(), b"by socat").unwrap();
    let mut answer = [0; 9];
    socat.0.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"aby socat");
}

/// iperf3 needs TCP and UDP on one port.
#[test]
fn iperf3_measures_datagrams_through_two_services_of_one_port() {
    if has_tool("iperf3", "iperf3") {
        alone(measure);
    }
}

fn measure() {
    let (target, listen) = (free(), free());
    let mut server = Command::new("iperf3");
    server.args([
        "-s",
        "-1",
        "--forceflush",
        "-B",
        "127.0.0.1",
        "-p",
        &target.port().to_string(),
    ]);
    let mut server = Running(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("listening")))
        .unwrap()
        .unwrap();
    let service = |name: &str, more: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"{listen}\"\nto = \"{target}\"\n{more}\n"
        )
    };
    let file = format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n{}{}",
        service("tcp", ""),
        service("udp", "udp = true")
    );
    let program = Program::run(&TextFile::new(&file));
    let mut client = Command::new("iperf3");
    client.args([
        "-c",
        "127.0.0.1",
        "-p",
        &listen.port().to_string(),
        "-u",
        "-k",
        "200",
        "-b",
        "20M",
        "-l",
        "1200",
    ]);
    let output = client.arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["end"]["sum"]["packets"], 200, "{report}");
    // One datagram begins the test, and its answer ends the beginning.
    program.await_sum("spliceway_datagrams_total", &["direction=\"up\""], 201);
}
