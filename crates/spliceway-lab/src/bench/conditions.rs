//! The cores and the congestion control of a measurement.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::os::fd::AsFd;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use socket2::{Domain, Socket, Type};

/// Congestion controls that do not pace. Over loopback, pacing (bbr) costs several times as much
/// CPU time as a relay. Everybody may use reno.
const UNPACED: [&str; 2] = ["cubic", "reno"];
/// No measurement opens this many connections at the same time.
const BACKLOG: i32 = 4096;

pub(super) struct Conditions {
    /// The core of the relay and the core of the load, if there are two.
    pub(super) cores: Option<[usize; 2]>,
    /// The cores for a load that has several threads. They share no physical core with the relay
    /// if possible.
    pub(super) load_cores: Vec<usize>,
    /// The congestion control of the sockets of this program. `None` if it cannot be chosen.
    pub(super) chosen: Option<&'static str>,
    /// The congestion control that these sockets really have.
    pub(super) congestion_control: String,
}

impl Conditions {
    /// Finds the conditions, and pins this thread to the core of the load.
    pub(super) fn apply() -> io::Result<Self> {
        let (relay, load_cores) = relay_and_load();
        let cores = relay.zip(load_cores.first()).map(|(relay, load)| [relay, *load]);
        if let Some([_, load]) = cores {
            pin_to(load);
        }
        // The default slack would make the load up to 50 µs late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let probe = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let chosen = UNPACED
            .into_iter()
            .find(|name| set_tcp_congestion(&probe, name).is_ok());
        Ok(Self {
            cores,
            load_cores,
            chosen,
            congestion_control: tcp_congestion(&probe)?,
        })
    }

    pub(super) fn is_paced(&self) -> bool {
        !UNPACED.contains(&self.congestion_control.as_str())
    }

    /// Returns a listener on loopback, at a port that the kernel chooses.
    pub(super) fn listener(&self) -> io::Result<TcpListener> {
        listener((Ipv4Addr::LOCALHOST, 0).into(), self.chosen)
    }
}

/// Returns a listener whose connections have this congestion control.
pub(super) fn listener(address: SocketAddr, congestion_control: Option<&str>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    choose(&socket, congestion_control)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Sets the congestion control of a socket, if one is given.
pub(super) fn choose(socket: impl AsFd, congestion_control: Option<&str>) -> io::Result<()> {
    match congestion_control {
        Some(name) => Ok(set_tcp_congestion(socket, name)?),
        None => Ok(()),
    }
}

/// Pins this thread to one core. A sandbox may refuse that. The scheduler then chooses the core.
pub(super) fn pin_to(core: usize) {
    pin_to_any(&[core]);
}

/// Pins this thread to these cores, if there are any.
pub(super) fn pin_to_any(cores: &[usize]) {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    if !cores.is_empty() {
        let _ = sched_setaffinity(None, &set);
    }
}

/// Returns the core for the relay and the cores for the load. This process may use them. They share
/// no physical core if possible.
fn relay_and_load() -> (Option<usize>, Vec<usize>) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return (None, Vec::new());
    };
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let relay = cores.next();
    let others: Vec<usize> = cores.collect();
    let path = format!(
        "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list",
        relay.unwrap_or_default()
    );
    let siblings = listed(&fs::read_to_string(path).unwrap_or_default());
    let apart: Vec<usize> = others.iter().filter(|core| !siblings.contains(core)).copied().collect();
    (relay, if apart.is_empty() { others } else { apart })
}

/// Returns the numbers in a list of the kernel, such as `0-1,4`.
fn listed(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse().ok()?..=to.parse().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_understood() {
        assert_eq!(listed("0-2,4\n"), [0, 1, 2, 4]);
        assert_eq!(listed("7"), [7]);
        assert!(listed("").is_empty());
    }
}
