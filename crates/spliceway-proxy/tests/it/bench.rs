//! What `spliceway bench` prints, and that it leaves nothing behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::{env, fs};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use spliceway::{KernelTls, TlsCipher};
use spliceway_net::has_tool;

use crate::harness::{Program, accept, address_in, listen, read_exactly, refusing, with_patience};

const BENCH: &str = env!("CARGO_BIN_EXE_spliceway");
/// The shortest run that is allowed. It shows that everything works, and not how fast it is.
const SHORT: [&str; 5] = ["bench", "--rounds", "3", "--time", "10ms"];

fn run(arguments: &[&str]) -> Output {
    Command::new(BENCH).args(SHORT).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    let failed = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {failed}"))
}

/// Returns the rows of a measurement, by figure.
fn row<'a>(result: &'a Value, measurement: &str, figure: &str) -> &'a Value {
    let mut rows = result["rows"].as_array().unwrap().iter();
    rows.find(|row| row["measurement"] == measurement && row["figure"] == figure)
        .unwrap_or_else(|| panic!("no {figure} of {measurement} in {result}"))
}

#[test]
fn bench_compares_all_contenders_draws_them_and_leaves_no_process() {
    let svg = env::temp_dir().join(format!("spliceway-bench-{}.svg", std::process::id()));
    let child = Command::new(BENCH)
        .args(SHORT)
        .args(["--only", "bulk,requests,pool", "--json", "--svg"])
        .arg(&svg)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = Pid::from_child(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(test_kill_process_group(group), Err(Errno::SRCH), "a relay is left");
    let drawn = fs::read_to_string(&svg).unwrap();
    if has_tool("python3", "python3") {
        let parse = "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])";
        let parsed = Command::new("python3").args(["-c", parse]).arg(&svg).status();
        assert!(parsed.unwrap().success());
    }
    fs::remove_file(&svg).unwrap();
    assert!(drawn.contains("<polyline") && drawn.contains("Latency of a request"));
    assert!(output.status.success(), "{output:?}");
    let result = json(&output);
    // On a busy machine, a relay may move nothing in such a short run. Requests get more time.
    for (figure, unit) in [("rate", "GiB/s"), ("cpu", "s/GiB")] {
        assert_eq!(row(&result, "bulk", figure)["unit"], unit);
    }
    for (measurement, figure, contenders) in [
        ("requests", "p50", &["direct", "tokio", "tuned", "splice"][..]),
        ("requests", "cpu", &["tokio", "tuned", "splice"]),
        ("pool", "time", &["create", "pool"]),
    ] {
        let row = row(&result, measurement, figure);
        let number = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
        assert!(number(&row["ratio"]["low"]) && number(&row["control"]), "{row}");
        for contender in contenders {
            let mut values = row["values"].as_array().unwrap().iter();
            assert!(
                values.any(|one| one["contender"] == *contender && number(&one["value"])),
                "{contender}: {row}"
            );
        }
    }
}

#[test]
fn the_text_of_bench_has_at_most_80_columns_and_no_colours_in_a_file() {
    let output = run(&["--only", "connections,pool"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("splice / tokio") && text.contains("\nResult\n"), "{text}");
    assert!(!text.contains('\x1b') && output.stderr.is_empty(), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn kernel_tls_is_judged_or_refused_with_the_remedy() {
    let arguments = ["bench", "--tls", "--rounds", "3", "--time", "100ms"];
    let output = Command::new(BENCH).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    if let Err(refused) = KernelTls::probe(TlsCipher::Aes256Gcm) {
        assert_eq!((output.status.code(), &*text), (Some(1), ""), "{error}");
        assert!(
            error.contains("--tls: the kernel refuses TLS (") && error.contains(&refused.to_string()),
            "{error}"
        );
        assert!(
            error.contains("modprobe tls") || error.contains("Linux 6.14"),
            "{error}"
        );
        return;
    }
    assert!(output.status.success() && error.is_empty(), "{text}{error}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "rustls ktls-rw ktls ktls-rw / rustls",
        "rustls ktls-rw ktls ktls / rustls",
        "One download: the relay encrypts. Kernel TLS has ",
        "One upload: the relay decrypts. Kernel TLS has ",
        "With its TLS in the kernel after the handshake, a connection takes ",
    ] {
        assert!(words.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('–'), "something was not measured: {text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn bench_measures_through_a_relay_that_runs_elsewhere() {
    // A socket that does not listen reserves the port until bench listens there.
    let reserved = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    reserved.set_reuse_address(true).unwrap();
    reserved.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let server = reserved.local_addr().unwrap().as_socket().unwrap();
    let program = Program::forward(server, &["--log-level", "warn"]);
    let (server, relay) = (server.to_string(), program.address.to_string());
    let output = run(&[
        "--listen",
        &server,
        "--against",
        &relay,
        "--only",
        "requests,connections",
        "--json",
    ]);
    let result = json(&output);
    assert!(output.status.success(), "{result}");
    assert_eq!(
        (&result["subject"], &result["reference"]),
        (&"A".into(), &"direct".into())
    );
    for (measurement, figure) in [("requests", "p50"), ("connections", "p50")] {
        assert!(
            row(&result, measurement, figure)["ratio"]["value"].as_f64().unwrap() > 0.0,
            "{result}"
        );
    }
    assert!(
        row(&result, "requests", "cpu")["ratio"].is_null(),
        "the CPU time of another process is unknown"
    );
    assert!(program.sum("spliceway_connections_total", &[]) >= 6);
}

#[test]
fn bench_refuses_what_cannot_work_before_it_measures() {
    let refused = refusing().to_string();
    for (arguments, expected) in [
        (
            &["--svg", "/nonexistent/bench.svg"][..],
            "--svg /nonexistent/bench.svg: No such file",
        ),
        (
            &["--listen", "127.0.0.1:0", "--against", &refused],
            "--against 127.0.0.1:",
        ),
        (&["--against", &refused], "--listen"),
        (&["--time", "1h"], "10ms to 10s"),
        (&["--only", "everything"], "possible values"),
        (&["--tls", "--only", "bulk"], "cannot be used with"),
    ] {
        let output = Command::new(BENCH).arg("bench").args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.contains(expected),
            "{arguments:?}: {text}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_relay_of_bench_tells_its_cpu_time_and_ends_with_its_parent() {
    let (listener, upstream) = listen();
    let mut relay = Command::new(BENCH)
        .args(["bench-relay", "splice", &upstream.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (
        relay.stdin.take().unwrap(),
        BufReader::new(relay.stdout.take().unwrap()),
    );
    let mut line = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let mut client = with_patience(TcpStream::connect(address_in(&line())).unwrap());
    let mut target = accept(&listener);
    client.write_all(b"bytes").unwrap();
    assert_eq!(read_exactly(&mut target, 5), b"bytes");
    let times = [0; 2].map(|_: u64| {
        stdin.write_all(b"?").unwrap();
        line().parse::<u64>().unwrap()
    });
    assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    drop(stdin);
    assert!(relay.wait().unwrap().success());
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
}
