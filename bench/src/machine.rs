//! What a run needs of the machine: a core each for relay and load, cubic, and the kernel's own accounting.

use std::env;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::net::sockopt::tcp_congestion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The relay has this core to itself, the load the other.
pub(crate) const RELAY_CORE: usize = 0;
pub(crate) const LOAD_CORE: usize = 1;

/// Pins the calling thread, and threads it starts, to one core.
pub(crate) fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Set in the process that [`isolate`] starts.
const ISOLATED: &str = "SPLICEWAY_BENCH_ISOLATED";

/// Runs this program again in a network namespace of its own, whose loopback uses cubic. Pacing (bbr, some hosts' default)
/// costs several times what a relay does and would be all one measures.
///
/// Returns what it runs under, in the process that is to measure; `None` in the one that has waited for it.
pub(crate) fn isolate() -> io::Result<Option<String>> {
    if env::var_os(ISOLATED).is_some() {
        ip("link set lo up")?;
        // The address has a route of its own beside its network's, and goes before it.
        for destination in ["127.0.0.0/8", "127.0.0.1"] {
            let route = "dev lo table local proto kernel scope host src 127.0.0.1 congctl cubic";
            ip(&format!("route replace local {destination} {route}"))?;
        }
        return Ok(Some(format!(
            "{}, in a network namespace of this run",
            congestion_control()?
        )));
    }
    if !namespaces_permitted() {
        return Ok(Some(format!(
            "{}, as no network namespace could be made",
            congestion_control()?
        )));
    }
    let again = Command::new("unshare")
        .args(["--net", "--"])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(ISOLATED, "1")
        .status()?;
    match again.success() {
        true => Ok(None),
        false => Err(io::Error::other(format!("the run in its network namespace: {again}"))),
    }
}

/// Asked apart from the run, so that a run that fails is not taken for a namespace that could not be made.
fn namespaces_permitted() -> bool {
    Command::new("unshare")
        .args(["--net", "--", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What a connection over loopback really uses.
fn congestion_control() -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    Ok(tcp_congestion(&socket)?)
}

fn ip(arguments: &str) -> io::Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("ip {arguments}: {status}")))
    }
}

/// Whether somebody in this network namespace listens on a port of IPv4. A connection, to find that out, would be a session.
pub(crate) fn is_listening(port: u16) -> io::Result<bool> {
    // proc_net_tcp(5): local address, remote address, state; 0A is LISTEN.
    let listening = format!(":{port:04X} 00000000:0000 0A");
    Ok(fs::read_to_string("/proc/net/tcp")?.contains(&listening))
}

/// Lets this process, and those it starts, open as many descriptors as it may.
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// One line on the machine, for whoever reads the numbers elsewhere.
pub(crate) fn describe() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("");
    // All of them, and not those that the caller has pinned itself to.
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "{}, {cores} cores, Linux {}",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    )
}
