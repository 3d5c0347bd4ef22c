//! The kernel, its settings, and what this process may do.

use std::io::{self, Read, Write};
use std::thread;
use std::time::Instant;
use std::{fs, str};

use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};

use spliceway::{KernelTls, TlsCipher};

use super::finding::{Check, Finding};
use super::loopback;

/// A version of Linux.
pub(super) type Version = (u32, u32, u32);

/// Returns whether Linux of this version has CVE-2022-0847 (Dirty Pipe): a local user can overwrite
/// files by splice.
fn has_dirty_pipe(version: Version) -> bool {
    let is_corrected = [(5, 10, 102), (5, 15, 25), (5, 16, 11)]
        .iter()
        .any(|fixed: &Version| (fixed.0, fixed.1) == (version.0, version.1) && version.2 >= fixed.2);
    ((5, 8, 0)..(5, 17, 0)).contains(&version) && !is_corrected
}

pub(super) fn checks(sessions: usize) -> Vec<Check> {
    vec![
        Check::new("kernel", "a known bug of splice", kernel),
        Check::new("descriptors", "the limit on descriptors", move || {
            Ok(descriptor_limit(sessions))
        }),
        Check::new("tcp-buffers", "the buffers of TCP", tcp_buffers),
        Check::new("congestion", "congestion control over loopback", congestion),
        Check::new("ktls", "TLS in the kernel (--ktls)", || Ok(kernel_tls())),
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
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = kernel_version();
    let is_affected = has_dirty_pipe(version);
    // Many distributions keep the last number at 0, and correct bugs all the same.
    if is_affected && version.2 == 0 && release.contains('-') {
        return Ok(Finding::unknown(format!(
            "the version {release} does not show whether CVE-2022-0847 (Dirty Pipe) is corrected"
        )));
    }
    Ok(Finding::judged(
        !is_affected,
        "a version without CVE-2022-0847 (Dirty Pipe)",
        format!("Linux {release}"),
    )
    .so(
        "This check compares version numbers only.",
        "A local user can overwrite files by splice, unless the distribution has corrected this version.",
    )
    .advise("update the kernel"))
}

fn descriptor_limit(sessions: usize) -> Finding {
    /// The sessions that a busy proxy has at once.
    const MANY: usize = 1000;
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
    /// At most 1 Gbit/s over a round trip of 33 ms.
    const ENOUGH: usize = 4 << 20;
    let (Some(read), Some(write)) = (proc_net("tcp_rmem"), proc_net("tcp_wmem")) else {
        return Ok(Finding::unknown("net.ipv4.tcp_rmem cannot be read"));
    };
    let mut missing = Vec::new();
    for (name, sizes) in [("tcp_rmem", &read), ("tcp_wmem", &write)] {
        if let [least, default, most] = sizes.split(' ').collect::<Vec<_>>()[..]
            && most.parse::<usize>().is_ok_and(|most| most < ENOUGH)
        {
            missing.push(format!("net.ipv4.{name}='{least} {default} {ENOUGH}'"));
        }
    }
    Ok(Finding::judged(
        missing.is_empty(),
        format!("a third number of at least {ENOUGH} bytes in both"),
        format!("tcp_rmem {read}; tcp_wmem {write}"),
    )
    .so(
        "The kernel sizes the buffers of a connection up to the third number.",
        "Connections over long distances are slower than they could be, with any relay.",
    )
    .advise(format!("sysctl -w {}", missing.join(" "))))
}

fn congestion() -> io::Result<Finding> {
    let Some(default) = proc_net("tcp_congestion_control") else {
        return Ok(Finding::unknown("net.ipv4.tcp_congestion_control cannot be read"));
    };
    let mut observed = format!("{default}: {:.1} GB/s", loopback_rate(&default)?);
    let paces = default.starts_with("bbr");
    if paces && let Ok(rate) = loopback_rate("cubic") {
        observed = format!("{observed}; cubic: {rate:.1} GB/s");
    }
    Ok(
        Finding::judged(!paces, "an algorithm without pacing, such as cubic", observed)
            .so(
                "Measurements over loopback show what relays cost.",
                "This is no fault. But over loopback, the timers of bbr use CPU time, which hides the cost of a relay.",
            )
            .advise("for measurements only: sysctl -w net.ipv4.tcp_congestion_control=cubic"),
    )
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
        let send = move || {
            let block = vec![0; 256 << 10];
            let deadline = Instant::now() + loopback::PATIENCE / 4;
            let mut left = BYTES / block.len();
            while left > 0 && Instant::now() < deadline && near.write_all(&block).is_ok() {
                left -= 1;
            }
        };
        thread::Builder::new().spawn_scoped(scope, send)?;
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
    Ok(Finding::info(
        held,
        format!(
            "Splicing needs none. Ports below {first_port} need CAP_NET_BIND_SERVICE, --mark, --tproxy and --transparent-source need CAP_NET_ADMIN, and --bind-interface may need CAP_NET_RAW."
        ),
    ))
}

/// Tries each cipher of TLS 1.3, and a second key.
fn kernel_tls() -> Finding {
    let (mut possible, mut refused) = (Vec::new(), Vec::new());
    for (cipher, name) in [
        (TlsCipher::Aes128Gcm, "AES-128-GCM"),
        (TlsCipher::Aes256Gcm, "AES-256-GCM"),
        (TlsCipher::ChaCha20Poly1305, "ChaCha20-Poly1305"),
    ] {
        match KernelTls::probe(cipher) {
            Ok(()) => possible.push(name),
            Err(error) => refused.push(error),
        }
    }
    let observed = match (refused.first(), possible.is_empty()) {
        (None, _) => possible.join(", "),
        (Some(error), true) => format!("no cipher: {error}"),
        (Some(error), false) => format!("only {}: {error}", possible.join(", ")),
    };
    // Nothing else needs it, so its absence is no fault.
    Finding::info(
        observed,
        if refused.is_empty() {
            "`--ktls` lets the kernel take TLS connections over."
        } else {
            "Other TLS connections stay in the program with `--ktls`. It needs the module `tls` (modprobe tls), and \
             Linux 6.14, which accepts a second key."
        },
    )
}

fn seccomp() -> io::Result<Finding> {
    let Some(mode) = status_field("Seccomp") else {
        return Ok(Finding::unknown("/proc/self/status does not say"));
    };
    let observed = match mode.as_str() {
        "0" => "no filter".to_owned(),
        _ => format!(
            "number of filters: {}",
            status_field("Seccomp_filters").unwrap_or_else(|| "unknown".to_owned())
        ),
    };
    Ok(Finding::info(
        observed,
        "The check [splice] shows whether splice is allowed.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_with_dirty_pipe_are_known() {
        for (release, is_affected) in [
            ("5.7.19", false),
            ("5.8.0", true),
            ("5.10.101-12-amd64", true),
            ("5.10.102", false),
            ("5.11.5", true),
            ("5.15.24", true),
            ("5.15.25+", false),
            ("5.16.11", false),
            ("5.17.0-rc1", false),
            ("6.18.44-fc-v595", false),
        ] {
            assert_eq!(has_dirty_pipe(parse_version(release)), is_affected, "{release}");
        }
    }
}
