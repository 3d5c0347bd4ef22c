//! The kernel, its settings, and what this process may do.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Instant;
use std::{fs, str};

use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};

use super::finding::{Check, Finding};
use super::loopback;
use crate::limits::Descriptors;

/// A version of Linux.
pub(super) type Version = (u32, u32, u32);

/// A bug of the kernel that a relay meets, or that splice makes dangerous.
struct Bug {
    since: Version,
    /// The first versions without it: of each series that got a correction, and of the main line.
    fixed: &'static [Version],
    what: &'static str,
    source: &'static str,
}

const BUGS: [Bug; 2] = [
    Bug {
        since: (5, 8, 0),
        fixed: &[(5, 10, 102), (5, 15, 25), (5, 16, 11), (5, 17, 0)],
        what: "a local user can overwrite files by splice",
        source: "CVE-2022-0847 (Dirty Pipe)",
    },
    Bug {
        since: (6, 5, 0),
        fixed: &[(6, 5, 10), (6, 6, 0)],
        what: "splice to a full non-blocking socket waits",
        source: "the commit \"splice, net: Fix splice_to_socket() for O_NONBLOCK socket\"",
    },
];

impl Bug {
    fn is_in(&self, version: Version) -> bool {
        let (series, mainline) = self.fixed.split_at(self.fixed.len() - 1);
        let is_corrected = |fixed: &Version| (fixed.0, fixed.1) == (version.0, version.1) && version.2 >= fixed.2;
        version >= self.since && version < mainline[0] && !series.iter().any(is_corrected)
    }
}

pub(super) fn checks(descriptors: usize) -> Vec<Check> {
    vec![
        Check::new("kernel", "known bugs of this version", kernel),
        Check::new("descriptors", "the limit on descriptors", move || {
            Ok(descriptor_limit(descriptors))
        }),
        Check::new("tcp-buffers", "the buffers of TCP", tcp_buffers),
        Check::new("congestion", "congestion control over loopback", congestion),
        Check::new("capabilities", "capabilities", capabilities),
        Check::new("seccomp", "filters of system calls", seccomp),
    ]
}

/// Returns the version of the running kernel.
pub(super) fn kernel_version() -> Version {
    parse_version(&rustix::system::uname().release().to_string_lossy())
}

fn parse_version(release: &str) -> Version {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Reads a setting of sysctl(8) that is a number.
pub(super) fn setting(name: &str) -> Option<usize> {
    sysctl(name)?.parse().ok()
}

fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Reads a setting of `net.ipv4`.
pub(super) fn proc_net(name: &str) -> Option<String> {
    sysctl(&format!("net.ipv4.{name}"))
}

/// Returns a field of `/proc/self/status`.
fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns the effective capabilities as bits.
fn effective_capabilities() -> Option<u64> {
    u64::from_str_radix(&status_field("CapEff")?, 16).ok()
}

const CAPABILITIES: [(u32, &str); 5] = [
    (10, "CAP_NET_BIND_SERVICE"),
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (21, "CAP_SYS_ADMIN"),
    (24, "CAP_SYS_RESOURCE"),
];

/// Returns whether the limits on pipe pages do not apply: see `pipe_is_unprivileged_user()` in
/// fs/pipe.c of the kernel. The capabilities of a container's root do not count.
pub(super) fn is_exempt_from_pipe_limits() -> bool {
    let bits = effective_capabilities().unwrap_or(0);
    let is_first_namespace =
        fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    bits & (1 << 21 | 1 << 24) != 0 && is_first_namespace
}

fn kernel() -> io::Result<Finding> {
    let version = kernel_version();
    let found: Vec<String> = BUGS
        .iter()
        .filter(|bug| bug.is_in(version))
        .map(|bug| format!("{} ({})", bug.what, bug.source))
        .collect();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let observed = match found.is_empty() {
        true => format!("Linux {release}: none of {}", BUGS.len()),
        false => format!("Linux {release}: {}", found.join("; ")),
    };
    Ok(Finding::judged(found.is_empty(), "none of the known bugs", observed)
        .so(
            "The table knows the numbers of versions only.",
            "A distribution may have corrected this without changing the number. Its security tracker knows.",
        )
        .advise("update the kernel"))
}

fn descriptor_limit(descriptors: usize) -> Finding {
    /// The sessions that a busy proxy has at once.
    const MANY: usize = 1000;
    let sessions = Descriptors::of(descriptors, 1).sessions();
    let hard = getrlimit(Resource::Nofile).maximum;
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    Finding::judged(
        sessions >= MANY,
        format!("enough for {MANY} sessions"),
        format!("hard limit {hard}: {sessions} sessions"),
    )
    .so(
        "The program raises its soft limit to the hard limit. A session needs two descriptors, and pipes get an eighth.",
        "More clients have to wait until sessions end.",
    )
    .advise("LimitNOFILE=1048576 in the unit, or: ulimit -Hn 1048576 as root")
}

fn tcp_buffers() -> io::Result<Finding> {
    /// Fills 1 Gbit/s over 40 ms.
    const ENOUGH: usize = 4 << 20;
    let (Some(read), Some(write)) = (proc_net("tcp_rmem"), proc_net("tcp_wmem")) else {
        return Ok(Finding::unknown("net.ipv4.tcp_rmem cannot be read"));
    };
    let most = |text: &str| text.split(' ').nth(2).and_then(|most| most.parse::<usize>().ok());
    let is_enough = most(&read) >= Some(ENOUGH) && most(&write) >= Some(ENOUGH);
    Ok(Finding::judged(
        is_enough,
        format!("at most {ENOUGH} bytes or more"),
        format!("tcp_rmem {read}; tcp_wmem {write}"),
    )
    .so(
        "The kernel sizes the buffers of a connection up to the third number.",
        "Connections over long distances are slower than they could be, with any relay.",
    )
    .advise("sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456' net.ipv4.tcp_wmem='4096 16384 4194304'"))
}

fn congestion() -> io::Result<Finding> {
    let Some(default) = proc_net("tcp_congestion_control") else {
        return Ok(Finding::unknown("net.ipv4.tcp_congestion_control cannot be read"));
    };
    let mut observed = format!("{default}: {:.1} GB/s", loopback_rate(&default)?);
    let is_plain = default == "cubic" || default == "reno";
    if !is_plain && let Ok(rate) = loopback_rate("cubic") {
        observed = format!("{observed}; cubic: {rate:.1} GB/s");
    }
    Ok(Finding::judged(is_plain, "cubic or reno", observed).so(
        "Measurements over loopback show what relays cost.",
        "This is no fault. But over loopback, the timers of this algorithm cost more than a relay, and hide its cost.",
    ))
}

/// Returns the rate of one connection over loopback, in GB/s.
fn loopback_rate(algorithm: &str) -> io::Result<f64> {
    const BYTES: usize = 128 << 20;
    let (mut near, mut far) = loopback::tcp()?;
    for end in [&near, &far] {
        end.set_nonblocking(false)?;
        end.set_read_timeout(Some(loopback::PATIENCE))?;
        end.set_write_timeout(Some(loopback::PATIENCE))?;
    }
    sockopt::set_tcp_congestion(&near, algorithm)?;
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || {
            let block = vec![0; 256 << 10];
            let deadline = Instant::now() + loopback::PATIENCE / 4;
            let mut left = BYTES / block.len();
            while left > 0 && Instant::now() < deadline && near.write_all(&block).is_ok() {
                left -= 1;
            }
        });
        let (mut buffer, mut received) = (vec![0; 1 << 20], 0);
        loop {
            match far.read(&mut buffer)? {
                0 => return Ok(received as f64 / started.elapsed().as_secs_f64() / 1e9),
                bytes => received += bytes,
            }
        }
    })
}

fn capabilities() -> io::Result<Finding> {
    let Some(bits) = effective_capabilities() else {
        return Ok(Finding::unknown("/proc/self/status cannot be read"));
    };
    let held: Vec<&str> = CAPABILITIES
        .into_iter()
        .filter(|(bit, _)| bits & (1 << bit) != 0)
        .map(|(_, name)| name)
        .collect();
    let held = if held.is_empty() {
        "none".to_owned()
    } else {
        held.join(" ")
    };
    let first_port = setting("net.ipv4.ip_unprivileged_port_start").unwrap_or(1024);
    Ok(Finding::judged(true, "none is needed", held).so(
        format!(
            "Ports below {first_port} need CAP_NET_BIND_SERVICE, --mark needs CAP_NET_ADMIN, --bind-interface may need CAP_NET_RAW."
        ),
        "",
    ))
}

fn seccomp() -> io::Result<Finding> {
    let Some(mode) = status_field("Seccomp") else {
        return Ok(Finding::unknown("/proc/self/status does not say"));
    };
    let observed = match mode.as_str() {
        "0" => "no filter".to_owned(),
        _ => format!(
            "{} filters",
            status_field("Seccomp_filters").unwrap_or_else(|| "some".to_owned())
        ),
    };
    Ok(Finding::judged(true, "any, if it allows splice", observed)
        .so("The checks above show whether splice is allowed.", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_known_by_the_numbers_of_versions() {
        let [pipe, socket] = &BUGS;
        for (release, has_pipe, has_socket) in [
            ("5.7.19", false, false),
            ("5.8.0", true, false),
            ("5.10.101-12-amd64", true, false),
            ("5.10.102", false, false),
            ("5.11.5", true, false),
            ("5.16.11", false, false),
            ("5.17.0-rc1", false, false),
            ("6.4.16", false, false),
            ("6.5.9+", false, true),
            ("6.5.10", false, false),
            ("6.18.44-fc-v595", false, false),
        ] {
            let version = parse_version(release);
            assert_eq!(
                (pipe.is_in(version), socket.is_in(version)),
                (has_pipe, has_socket),
                "{release}"
            );
        }
    }
}
