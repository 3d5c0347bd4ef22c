//! The machine for tests and measurements: one core for the relay and one for the load, cubic, and
//! the kernel's own accounting.

#![forbid(unsafe_code)]

pub mod accounts;

use std::env;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::net::sockopt::tcp_congestion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread, and the threads that it starts, to one core.
pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread, and the threads that it starts, run on the first two cores.
pub fn use_all_cores() -> io::Result<()> {
    let mut set = CpuSet::new();
    (0..2).for_each(|core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run only when no other thread wants to run. Any other thread preempts it
/// immediately (`SCHED_IDLE`, sched(7)). The lowest nice level does not do that, because each
/// thread may use its slice of a few milliseconds.
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

/// Runs this program again in its own network namespace, where loopback uses cubic. Pacing (bbr,
/// the default on some hosts) costs several times as much CPU time as a relay. It would dominate
/// the measurement.
///
/// In the process that is to measure, returns the conditions of the run. In the process that has
/// waited for it, returns `None`.
pub fn isolate() -> io::Result<Option<String>> {
    if env::var_os(ISOLATED).is_some() {
        ip("link set lo up")?;
        provide_ports();
        // The address has its own route, which precedes the route of its network.
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

/// Returns whether this process may make a network namespace. This check is separate from the run.
/// A failed run is then not mistaken for a namespace that could not be made.
fn namespaces_permitted() -> bool {
    Command::new("unshare")
        .args(["--net", "--", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Provides ports for many short connections, each of which keeps its port for a minute. Lets
/// connections to one address reuse a port after a second. The defaults are enough for most runs.
/// So a run without permission to change the settings continues with the defaults.
fn provide_ports() {
    for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let _ = fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
    }
}

/// Returns the congestion control that a loopback connection actually uses.
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

/// Returns whether a program in this thread's network namespace listens on this IPv4 port. A check
/// by connecting would start a session.
pub fn is_listening(port: u16) -> io::Result<bool> {
    // proc_net_tcp(5): local address, remote address, state; 0A is LISTEN.
    let listening = format!(":{port:04X} 00000000:0000 0A");
    Ok(fs::read_to_string("/proc/thread-self/net/tcp")?.contains(&listening))
}

/// Like [`is_listening`], for IPv4 and IPv6, whichever address the listener has.
pub fn is_listening_any(port: u16) -> io::Result<bool> {
    let listening = format!(":{port:04X} 00000000000000000000000000000000:0000 0A");
    Ok(is_listening(port)? || fs::read_to_string("/proc/thread-self/net/tcp6")?.contains(&listening))
}

/// Raises the descriptor limit of this process, and of the processes that it starts, to the hard
/// limit. Raises the hard limit too if it is lower than needed, which only root may.
///
/// # Errors
/// Returns an error if the hard limit is lower than needed and cannot be raised.
pub fn raise_descriptor_limit(needed: u64) -> io::Result<()> {
    let permitted = getrlimit(Resource::Nofile).maximum;
    let limit = permitted.map(|most| most.max(needed));
    let raised = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, raised).map_err(|error| match permitted {
        Some(most) if needed > most => {
            io::Error::other(format!("{needed} descriptors are needed and {most} permitted: {error}"))
        }
        _ => error.into(),
    })
}

/// Returns the memory of the kernel's own objects, such as sockets and pipes: `Slab` in
/// proc_meminfo(5).
pub fn slab_kib() -> io::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let slab = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"));
    slab.and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or_else(|| io::Error::other("no Slab in /proc/meminfo"))
}

/// Returns one line that describes the machine, for people who read the numbers elsewhere.
pub fn describe() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("");
    // All cores, not only those that the caller has pinned itself to.
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "{}, {cores} cores, Linux {}",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim()
    )
}
