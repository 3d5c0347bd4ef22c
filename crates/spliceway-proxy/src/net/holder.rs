//! Finds the process that holds an address, by what the kernel tells in `/proc`. It connects to
//! nothing, so a program that listens there notices nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fmt, fs};

use spliceway_protocol::address::ListenAddress;

/// The state of a listening TCP socket in `/proc/net/tcp`, and of a bound UDP socket.
const LISTENS: &str = "0A";
const BOUND: &str = "07";
/// The flag of a listening Unix socket in `/proc/net/unix` (`__SO_ACCEPTCON`).
const ACCEPTS: u32 = 0x1_0000;
/// The name of this program's processes.
const PROGRAM: &str = "spliceway";

/// The process that holds an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// An instance of this program.
    Instance(u32),
    Other {
        pid: u32,
        name: String,
    },
    /// A process of another user, whose descriptors are not visible. There is an instance of this
    /// program, too, which may be the one.
    UnknownBesideInstance(u32),
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(pid) => write!(f, "a running instance of this program (process {pid})"),
            Self::Other { pid, name } => write!(f, "{name} (process {pid})"),
            Self::UnknownBesideInstance(pid) => write!(
                f,
                "a process of another user, perhaps the running instance of this program ({pid})"
            ),
            Self::Unknown => f.write_str("a process of another user"),
        }
    }
}

/// Returns the process that holds this address, for connections or for datagrams.
pub(crate) fn holder(address: &ListenAddress, is_for_datagrams: bool) -> Holder {
    let sockets: Vec<_> = inodes(address, is_for_datagrams)
        .into_iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let holds = |pid: &u32| descriptors(*pid).any(|target| sockets.contains(&target));
    let all: Vec<u32> = processes().filter(holds).collect();
    // Processes of one program may share a socket. This one has started the others.
    let first = all
        .iter()
        .find(|pid| parent(**pid).is_none_or(|parent| !all.contains(&parent)));
    match first.map(|pid| (*pid, name(*pid))) {
        Some((pid, name)) if name == PROGRAM => Holder::Instance(pid),
        Some((pid, name)) => Holder::Other { pid, name },
        None => match processes().find(|pid| name(*pid) == PROGRAM) {
            Some(instance) => Holder::UnknownBesideInstance(instance),
            None => Holder::Unknown,
        },
    }
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))?
        .trim()
        .parse()
        .ok()
}

/// Returns whether a process listens on the Unix socket at this path.
pub(super) fn has_listener(path: &Path) -> bool {
    !at_path(path).is_empty()
}

/// Returns the other processes, in the order of the kernel.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id())
}

/// Returns what the descriptors of a process refer to. It is empty for a process of another user.
fn descriptors(pid: u32) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok())
}

fn inodes(address: &ListenAddress, is_for_datagrams: bool) -> Vec<u64> {
    let (ip, port) = match address {
        ListenAddress::Every(port) | ListenAddress::Name(_, port) => (None, *port),
        ListenAddress::Ip(address) => (Some(address.ip()), address.port()),
        ListenAddress::Unix { path, .. } => return at_path(path),
        ListenAddress::Inherited(_) => return Vec::new(),
    };
    let (files, state) = if is_for_datagrams {
        (["udp", "udp6"], BOUND)
    } else {
        (["tcp", "tcp6"], LISTENS)
    };
    let tables = files.map(|file| fs::read_to_string(format!("/proc/net/{file}")).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let found = lines.filter_map(|line| {
        let (at, its_state, inode) = entry(line)?;
        let is_wanted = at.1 == port && its_state == state && ip.is_none_or(|ip| conflict(ip, at.0));
        is_wanted.then_some(inode)
    });
    found.collect()
}

/// Returns whether a socket at one of these addresses can be in the way of one at the other.
fn conflict(wanted: IpAddr, there: IpAddr) -> bool {
    wanted.to_canonical() == there.to_canonical() || wanted.is_unspecified() || there.is_unspecified()
}

/// Returns the address, the state and the inode in a line of `/proc/net/tcp`.
fn entry(line: &str) -> Option<((IpAddr, u16), &str, u64)> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields[..] else {
        return None;
    };
    let (ip, port) = local.split_once(':')?;
    Some((
        (parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?),
        state,
        inode.parse().ok()?,
    ))
}

/// Parses an address as the kernel prints it: each word of 32 bits in the order of this machine.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        u32::from_str_radix(text.get(at..at + 8)?, 16)
            .ok()
            .map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut octets = [0; 16];
            octets.copy_from_slice(words.as_flattened());
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Returns the inodes of the listening Unix sockets at a path, or with the name of an abstract one.
fn at_path(path: &Path) -> Vec<u64> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let lines = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        let start = line.find(['/', '@'])?;
        (flags & ACCEPTS != 0).then_some((inode, line.get(start..)?))
    });
    lines
        .filter(|(_, at)| Path::new(at) == path)
        .map(|(inode, _)| inode)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn addresses_of_the_kernel_are_read() {
        assert_eq!(parse_ip("0100007F"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(
            parse_ip("00000000000000000000000001000000"),
            Some(Ipv6Addr::LOCALHOST.into())
        );
        assert_eq!(parse_ip("010000"), None);
    }

    #[test]
    fn a_socket_is_found_by_its_address_and_by_a_wildcard() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("[::1]:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        for text in [
            format!("127.0.0.1:{port}"),
            format!(":{port}"),
            format!("0.0.0.0:{port}"),
        ] {
            assert_eq!(inodes(&text.parse().unwrap(), false).len(), 1, "{text}");
        }
        let other = format!("127.0.0.2:{port}").parse().unwrap();
        assert_eq!(inodes(&other, false), [0; 0]);
        let udp = ListenAddress::Ip(udp.local_addr().unwrap());
        assert_eq!(inodes(&udp, true).len(), 1);
    }

    #[test]
    fn only_a_listening_unix_socket_counts() {
        let path = std::env::temp_dir().join(format!("spliceway holder {}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(has_listener(&path) && !has_listener(Path::new("/nowhere")));
        drop(listener);
        assert!(!has_listener(&path));
        fs::remove_file(&path).unwrap();
    }
}
