//! Validates the instruments: the delay line and the generator, against third-party tools.

use std::io;
use std::process::{Command, Stdio};

use crate::contender;
use crate::load::{Load, Profile};
use crate::servers::unless_installed;
use crate::site::{CLIENT, SERVER, Site};
use spliceway_load::Histogram;

/// Prints a table with the configured values, the values that another tool measured, and their
/// differences.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
pub(crate) fn run() -> io::Result<()> {
    for (tool, package) in [("ping", "iputils-ping"), ("iperf3", "iperf3"), ("sockperf", "sockperf")] {
        if unless_installed(tool).is_some() {
            return Err(io::Error::other(format!("needs {tool} (Debian package {package})")));
        }
    }
    println!("| what | expected | found | ratio |\n|---|---|---|---|");
    delay_line()?;
    generator()
}

#[expect(clippy::print_stdout, reason = "this is the program's result")]
fn row(what: &str, expected: f64, found: f64, unit: &str) {
    println!(
        "| {what} | {expected:.3} {unit} | {found:.3} {unit} | {:.3} |",
        found / expected
    );
}

fn delay_line() -> io::Result<()> {
    for (profile, millis) in [
        (Profile::City, 2.0),
        (Profile::Continent, 20.0),
        (Profile::Ocean, 100.0),
    ] {
        let site = Site::new(profile)?;
        let name = profile.name();
        row(&format!("{name}: round trip by ping"), millis, ping(&site)?, "ms");
        row(
            &format!("{name}: round trip by TCP_INFO"),
            millis,
            tcp_info(&site)?,
            "ms",
        );
        match profile {
            Profile::Continent => {
                let found = iperf3(&site, &["-O", "2", "-P", "4"])?;
                // A segment of 1,500 bytes carries a payload of 1,448 bytes.
                row(
                    &format!("{name}: rate by iperf3 of TCP"),
                    1_000.0 * 1448.0 / 1500.0,
                    found,
                    "Mbit/s",
                );
            }
            Profile::Ocean => {
                // The test uses UDP, because TCP does not fill a path with loss. A datagram has 28
                // bytes of headers on the line.
                let found = iperf3(&site, &["-u", "-b", "400M", "-l", "1400"])?;
                row(
                    &format!("{name}: rate by iperf3 of UDP"),
                    200.0 * 1400.0 / 1428.0,
                    found,
                    "Mbit/s",
                );
                let before = site.net.carried(0);
                iperf3(&site, &["-u", "-b", "100M", "-l", "1400", "-t", "10"])?;
                let after = site.net.carried(0);
                let (lost, delivered) = (after.lost - before.lost, after.delivered - before.delivered);
                let part = 100.0 * lost as f64 / (lost + delivered) as f64;
                row(
                    &format!("{name}: loss by counters, {lost} of {delivered}"),
                    0.1,
                    part,
                    "%",
                );
            }
            _ => {}
        }
    }
    Ok(())
}

fn generator() -> io::Result<()> {
    let site = Site::new(Profile::Rack)?;
    let run = site.run(&Load::paced(400.0), &contender::direct(), 0)?;
    let found = run.bytes as f64 / run.wall / 1e6;
    row(
        "generator: rate that arrives, of 400 MB/s offered",
        400.0,
        found,
        "MB/s",
    );
    let by_iperf3 = iperf3(&site, &["-b", "3200M", "-l", "64K"])? / 8.0;
    row("the same offered by iperf3", found, by_iperf3, "MB/s");
    let (generated, others) = latencies(&site)?;
    row(
        "generator: p50 of a request of 64 B, against sockperf's",
        others[0],
        generated[0],
        "µs",
    );
    row(
        "generator: p90 of a request of 64 B, against sockperf's",
        others[1],
        generated[1],
        "µs",
    );
    Ok(())
}

fn words(site: &Site, node: usize, program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stderr(Stdio::null());
    let output = site.node(node).inside(|| command.output())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the average round-trip time in milliseconds.
fn ping(site: &Site) -> io::Result<f64> {
    let (relay, _) = site.addresses();
    // "rtt min/avg/max/mdev = 2.1/2.2/…"
    let said = words(
        site,
        CLIENT,
        "ping",
        &["-q", "-c", "20", "-i", "0.05", &relay.to_string()],
    )?;
    let average = said
        .lines()
        .find_map(|line| line.strip_prefix("rtt ")?.split('/').nth(4)?.parse().ok());
    average.ok_or_else(|| io::Error::other(format!("ping: {said}")))
}

/// Returns the round-trip time in milliseconds of a connection that has carried some bytes.
fn tcp_info(site: &Site) -> io::Result<f64> {
    let (mut client, mut server) = site.net.connect(0, 1, spliceway_net::Family::V4)?;
    for _ in 0..20 {
        io::Write::write_all(&mut client, b"a")?;
        io::Read::read_exact(&mut server, &mut [0])?;
        io::Write::write_all(&mut server, b"b")?;
        io::Read::read_exact(&mut client, &mut [0])?;
    }
    // There is no safe wrapper for TCP_INFO, so ss(8) reads it: "rtt:2.1/0.1".
    let said = words(site, CLIENT, "ss", &["-tinH", "state", "established"])?;
    let rtt = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("rtt:")?.split('/').next()?.parse().ok());
    rtt.ok_or_else(|| io::Error::other(format!("ss: {said}")))
}

/// Returns the Mbit/s that arrive at the server, or at the relay if that is the far end.
fn iperf3(site: &Site, options: &[&str]) -> io::Result<f64> {
    let (_, server) = site.addresses();
    let mut listening = Command::new("iperf3");
    listening
        .args(["-s", "-1", "-p", "5001"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut listening = site.node(SERVER).inside(|| listening.spawn())?;
    while !site.node(SERVER).inside(|| spliceway_machine::is_listening_any(5001))? {
        std::thread::yield_now();
    }
    let server = server.to_string();
    let base = ["-c", &server, "-p", "5001", "-t", "3", "-J"];
    let said = words(site, CLIENT, "iperf3", &[&base, options].concat());
    let _ = listening.kill();
    listening.wait()?;
    let said = said?;
    let report: serde_json::Value = serde_json::from_str(&said).map_err(io::Error::other)?;
    let end = &report["end"];
    let received = end["sum_received"]["bits_per_second"].as_f64();
    // For UDP, older versions report the sending rate and the fraction of it that was lost.
    let sent = end["sum"]["bits_per_second"]
        .as_f64()
        .zip(end["sum"]["lost_percent"].as_f64());
    let found = received.or(sent.map(|(sent, lost)| sent * (1.0 - lost / 100.0)));
    found
        .map(|bits| bits / 1e6)
        .ok_or_else(|| io::Error::other(format!("iperf3: {said}")))
}

/// Returns p50 and p90 of round trips in microseconds, from the generator and from sockperf. Each
/// trip has 64 bytes, at 1,000 trips per second on one connection.
fn latencies(site: &Site) -> io::Result<([f64; 2], [f64; 2])> {
    let mut own = Histogram::default();
    for round in 0..3 {
        own.add(
            &site
                .run(&Load::one_by_one(1_000.0), &contender::direct(), round)?
                .exchanges,
        );
    }
    let (_, server) = site.addresses();
    let server = server.to_string();
    let mut listening = Command::new("sockperf");
    listening
        .args(["server", "--tcp", "-i", &server, "-p", "5002"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut listening = site.node(SERVER).inside(|| listening.spawn())?;
    while !site.node(SERVER).inside(|| spliceway_machine::is_listening(5002))? {
        std::thread::yield_now();
    }
    let options = [
        "under-load",
        "--tcp",
        "-i",
        &server,
        "-p",
        "5002",
        "-m",
        "64",
        "-t",
        "3",
        "--mps",
        "1000",
        "--reply-every",
        "1",
        "--full-rtt",
    ];
    let said = words(site, CLIENT, "sockperf", &options);
    listening.kill()?;
    listening.wait()?;
    let said = said?;
    // "---> percentile 50.000 = 32.123"
    let of = |part: &str| {
        let line = said.lines().find(|line| line.contains(&format!("percentile {part}")))?;
        line.rsplit('=').next()?.trim().parse().ok()
    };
    match (own.quantile(0.5), own.quantile(0.9), of("50.000"), of("90.000")) {
        (Some(p50), Some(p90), Some(theirs), Some(theirs90)) => Ok(([p50, p90], [theirs, theirs90])),
        _ => Err(io::Error::other(format!("sockperf: {said}"))),
    }
}
