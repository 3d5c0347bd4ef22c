//! What tests and measurements need of the machine: a core each for relay and load, cubic, and the kernel's own accounting.

#![forbid(unsafe_code)]

pub mod accounts;
mod random;

use std::env;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::net::sockopt::tcp_congestion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

pub use random::Random;

/// Pins the calling thread, and threads it starts, to one core.
pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Has the calling thread, and threads it starts, run on the first two cores.
pub fn use_all_cores() -> io::Result<()> {
    let mut set = CpuSet::new();
    (0..2).for_each(|core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}

/// Has the calling thread run only where no other wants to, and interrupted as soon as one does (`SCHED_IDLE`, sched(7)): the lowest
/// priority among others does not do that, as each may use up its slice of some milliseconds.
pub fn give_way_to_all() -> io::Result<()> {
    let thread = rustix::thread::gettid().to_string();
    let status = Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("chrt: {status}")))
    }
}

/// Set in the process that [`isolate`] starts.
const ISOLATED: &str = "SPLICEWAY_BENCH_ISOLATED";

/// Runs this program again in a network namespace of its own, whose loopback uses cubic. Pacing (bbr, some hosts' default)
/// costs several times what a relay does and would be all one measures.
///
/// Returns what it runs under, in the process that is to measure; `None` in the one that has waited for it.
pub fn isolate() -> io::Result<Option<String>> {
    if env::var_os(ISOLATED).is_some() {
        ip("link set lo up")?;
        provide_ports();
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

/// Ports for a churn of connections, each of which keeps its own for a minute; and for connections to one address, again after a second.
/// The defaults do for most runs, so one that may not change them goes on with them.
fn provide_ports() {
    for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let _ = fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    }
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

/// Whether somebody in this thread's network namespace listens on a port of IPv4. A connection, to find that out, would be a session.
pub fn is_listening(port: u16) -> io::Result<bool> {
    // proc_net_tcp(5): local address, remote address, state; 0A is LISTEN.
    let listening = format!(":{port:04X} 00000000:0000 0A");
    Ok(fs::read_to_string("/proc/thread-self/net/tcp")?.contains(&listening))
}

/// The same for IPv4 and IPv6, whichever address the listener has.
pub fn is_listening_any(port: u16) -> io::Result<bool> {
    let listening = format!(":{port:04X} 00000000000000000000000000000000:0000 0A");
    Ok(is_listening(port)? || fs::read_to_string("/proc/thread-self/net/tcp6")?.contains(&listening))
}

/// Permits this process, and those it starts, as many descriptors as the hard limit has.
///
/// # Errors
/// These are fewer than needed.
pub fn raise_descriptor_limit(needed: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised)?;
    match limit.maximum {
        Some(most) if needed > most => Err(io::Error::other(format!(
            "{needed} descriptors are needed and {most} permitted"
        ))),
        _ => Ok(()),
    }
}

/// Memory of the kernel's own objects, of which sockets and pipes are some: `Slab` of proc_meminfo(5).
pub fn slab_kib() -> io::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let slab = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"));
    slab.and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or_else(|| io::Error::other("no Slab in /proc/meminfo"))
}

/// One line on the machine, for whoever reads the numbers elsewhere.
pub fn describe() -> String {
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
