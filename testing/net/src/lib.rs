//! Network namespaces in a row, joined by veth pairs of MTU 1500. They carry real segments, with or
//! without the kernel's offloads.
//!
//! ```text
//!   node 0 ── right ═══ left ── node 1 ── right ═══ left ── node 2 …
//!        10.77.0.1     10.77.0.2      10.77.1.1     10.77.1.2
//! ```
//!
//! A namespace does not have a name. It lives as long as a child process, which reads from a pipe
//! of this process, or as long as the last socket in it. So it disappears when the process that
//! made it exits, panics or is killed. Concurrent runs never meet.
//!
//! A link may instead be a delay line ([`Line`]) between TUN devices, with a delay, a rate and a
//! loss rate.
//!
//! The crate needs the right to make namespaces, and `unshare`, `ip`, `ethtool` and `tc` on `PATH`.
//! Without them, tests are skipped.
mod delay;
mod node;
mod packet;
mod tool;
mod tun;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

use delay::Running;
use rustix::net::sockopt::tcp_congestion;

pub use delay::{Carried, Line};
pub use node::Node;
pub use tool::{has_localhost, has_tool};

/// Payload of a full segment: 1,500 bytes minus the IPv4 header and the TCP header with timestamps.
pub const SEGMENT: usize = 1448;

/// How both ends of a link treat large writes and trains of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloads {
    /// The default of a veth pair: a sender's writes cross in pieces of up to 64 KiB.
    On,
    /// Every segment crosses alone, and the receiver gets it alone.
    Off,
    /// Every segment crosses alone. The receiver joins trains of segments, as it does with a
    /// network card.
    Gro,
}

impl Offloads {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::On, Self::Off, Self::Gro];

    fn switches(self) -> Option<&'static str> {
        match self {
            Self::On => None,
            Self::Off => Some("tso off gso off gro off"),
            Self::Gro => Some("tso off gso off gro on"),
        }
    }
}

/// The link between two neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// A veth pair.
    Veth(Offloads),
    /// A delay line, over IPv4.
    Far(Line),
}

impl Link {
    fn switches(self) -> Option<&'static str> {
        match self {
            Self::Veth(offloads) => offloads.switches(),
            Self::Far(_) => None,
        }
    }
}

/// The version of IP.
#[derive(Clone, Copy, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Namespaces in a row.
#[derive(Debug)]
pub struct Net {
    nodes: Vec<Node>,
    /// The delay lines, by link. A veth pair has none.
    lines: Vec<Option<Running>>,
}

impl Net {
    /// Makes this many nodes and links each one to the next. Every route uses cubic.
    ///
    /// # Errors
    /// Returns `PermissionDenied` if the privilege is missing, and `NotFound` if a program is
    /// missing.
    pub fn new(count: usize, offloads: Offloads) -> io::Result<Self> {
        Self::joined_by(&vec![Link::Veth(offloads); count - 1])
    }

    /// Makes the nodes that these links join, in order. Every route uses cubic.
    ///
    /// # Errors
    /// Returns `PermissionDenied` if the privilege is missing, and `NotFound` if a program is
    /// missing.
    pub fn joined_by(links: &[Link]) -> io::Result<Self> {
        let programs = [("unshare", "util-linux"), ("ip", "iproute2"), ("ethtool", "ethtool")];
        let used = if links.iter().any(|link| link.switches().is_some()) {
            3
        } else {
            2
        };
        for (program, package) in &programs[..used] {
            if let Some(lacking) = tool::lacking(program, package) {
                return Err(io::Error::new(io::ErrorKind::NotFound, lacking));
            }
        }
        let nodes: io::Result<Vec<Node>> = (0..=links.len()).map(|_| Node::new()).collect();
        let mut net = Self {
            nodes: nodes?,
            lines: Vec::new(),
        };
        for (index, link) in links.iter().enumerate() {
            let line = match *link {
                Link::Veth(offloads) => {
                    net.join(index, offloads)?;
                    None
                }
                Link::Far(line) => Some(net.join_far(index, line)?),
            };
            net.lines.push(line);
        }
        Ok(net)
    }

    /// Calls [`Net::new`] for a test. If the privilege or a program is missing, prints that the
    /// test is skipped and returns `None`.
    ///
    /// # Panics
    /// Panics if anything else fails.
    #[must_use]
    pub fn chain(count: usize, offloads: Offloads) -> Option<Self> {
        Self::chain_of(&vec![Link::Veth(offloads); count - 1])
    }

    /// Calls [`Net::joined_by`] for a test, in the same way.
    ///
    /// # Panics
    /// Panics if anything else fails.
    #[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
    #[must_use]
    pub fn chain_of(links: &[Link]) -> Option<Self> {
        match Self::joined_by(links) {
            Ok(net) => Some(net),
            Err(why) if matches!(why.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) => {
                println!("skipped: {why}");
                None
            }
            Err(why) => panic!("{why}"),
        }
    }

    /// Makes a net of client, relay and server for a test, as [`Net::chain`] does.
    #[must_use]
    pub fn of_three(offloads: Offloads) -> Option<Self> {
        Self::chain(3, offloads)
    }

    /// Limits the receive windows to a few dozen segments. Otherwise a sender may have more
    /// segments in flight than a veth pair queues (256 with GRO, 1,000 without). A test then waits
    /// for TCP timers.
    ///
    /// # Errors
    /// Returns the error of a file below `/proc/sys`.
    pub fn with_small_windows(self) -> io::Result<Self> {
        for node in &self.nodes {
            node.inside(|| std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 131072"))?;
        }
        Ok(self)
    }

    /// Makes nodes forward IPv4 packets, so that nodes that are not neighbours reach each other.
    ///
    /// # Errors
    /// Returns the error of `ip`, or of a file below `/proc/sys`.
    pub fn with_forwarding(self) -> io::Result<Self> {
        for (index, node) in self.nodes.iter().enumerate() {
            let routes: Vec<String> = (0..self.nodes.len() - 1)
                .filter_map(|link| {
                    let via = match link {
                        _ if link > index => address(index, true, Family::V4),
                        _ if link + 1 < index => address(index - 1, false, Family::V4),
                        _ => return None, // The node is at that link's end.
                    };
                    Some(format!("route add 10.77.{link}.0/24 via {via} congctl cubic"))
                })
                .collect();
            node.ip(&routes)?;
            node.inside(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        }
        Ok(self)
    }

    /// Returns one node, counted from 0.
    ///
    /// # Panics
    /// Panics if there is no such node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    /// Returns all nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Opens a connection from one node to a neighbour. Returns both ends, without `NODELAY`. The
    /// caller's end comes first.
    ///
    /// # Errors
    /// Returns the socket errors, and an error if the sockets do not use cubic. The host's own
    /// congestion control may be one that paces. A route in another namespace does not inherit that
    /// setting.
    ///
    /// # Panics
    /// Panics if the nodes are not neighbours.
    pub fn connect(&self, from: usize, to: usize, family: Family) -> io::Result<(TcpStream, TcpStream)> {
        assert_eq!(from.abs_diff(to), 1, "only neighbours are joined");
        let address = address(from.min(to), to > from, family);
        let listener = self.node(to).inside(|| TcpListener::bind((address, 0)))?;
        let target = listener.local_addr()?;
        let connected = self.node(from).inside(|| TcpStream::connect(target))?;
        let (accepted, _) = listener.accept()?;
        for end in [&connected, &accepted] {
            let used = tcp_congestion(end)?;
            if used != "cubic" {
                return Err(io::Error::other(format!("between namespaces connections use {used}")));
            }
        }
        Ok((connected, accepted))
    }

    /// Makes each end of each link lose 1 in 100 of the packets that it receives. Each end sends 1
    /// in 20 packets through a slow queue, so that later packets overtake them. Classic BPF
    /// classifiers choose the packets at random.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks a feature.
    pub fn lose_and_reorder(&self) -> io::Result<()> {
        // ld rand; mod 100; jeq 0, lose; ret
        let lose = "5,32 0 0 4294963256,148 0 0 100,21 0 1 0,6 0 0 2,6 0 0 0";
        // ld rand; mod 20; jeq 0, class 1:2; default class
        let overtake = "5,32 0 0 4294963256,148 0 0 20,21 0 1 0,6 0 0 65538,6 0 0 4294967295";
        for (index, node) in self.nodes.iter().enumerate() {
            let links = [("left", index > 0), ("right", index + 1 < self.nodes.len())];
            for (device, _) in links.iter().filter(|(_, is_there)| *is_there) {
                node.tc(&[
                    format!("qdisc add dev {device} clsact"),
                    format!("filter add dev {device} ingress protocol all bpf da bytecode \"{lose}\""),
                    format!("qdisc add dev {device} root handle 1: htb default 1"),
                    format!("class add dev {device} parent 1: classid 1:1 htb rate 10gbit burst 256k quantum 60000"),
                    format!("class add dev {device} parent 1: classid 1:2 htb rate 50mbit burst 1600 quantum 3000"),
                    format!("filter add dev {device} parent 1: protocol all bpf bytecode \"{overtake}\""),
                ])?;
            }
        }
        Ok(())
    }

    /// Returns the counts of a delay line so far.
    ///
    /// # Panics
    /// Panics if that link is not a delay line.
    #[must_use]
    pub fn carried(&self, link: usize) -> Carried {
        self.lines[link].as_ref().expect("a delay line").carried()
    }

    fn join_far(&self, link: usize, line: Line) -> io::Result<Running> {
        let mut ends = Vec::new();
        for (node, device, is_right) in [(link, "right", false), (link + 1, "left", true)] {
            let node = self.node(node);
            ends.push(node.inside(|| tun::open(device))?);
            let v4 = address(link, is_right, Family::V4);
            node.ip(&[
                format!("address add {v4}/24 dev {device}"),
                format!("link set {device} mtu 1500 txqueuelen 10000 up"),
                format!("route replace 10.77.{link}.0/24 dev {device} src {v4} congctl cubic"),
            ])?;
        }
        let ends = ends.try_into().expect("two ends");
        Running::start(line, ends)
    }

    fn join(&self, link: usize, offloads: Offloads) -> io::Result<()> {
        let (left, right) = (self.node(link), self.node(link + 1));
        left.ip(&[format!(
            "link add right mtu 1500 type veth peer name left mtu 1500 netns {}",
            right.process()
        )])?;
        for (node, device, is_right) in [(left, "right", false), (right, "left", true)] {
            let (v4, v6) = (address(link, is_right, Family::V4), address(link, is_right, Family::V6));
            node.ip(&[
                format!("address add {v4}/24 dev {device}"),
                format!("address add {v6}/64 dev {device} nodad"),
                format!("link set {device} up"),
                format!("route replace 10.77.{link}.0/24 dev {device} src {v4} congctl cubic"),
                // This route precedes the one that came with the address, but does not replace it.
                format!("route replace 2001:db8:{link}::/64 dev {device} metric 1 congctl cubic"),
            ])?;
            if let Some(switches) = offloads.switches() {
                node.ethtool(&format!("-K {device} {switches}"))?;
            }
        }
        Ok(())
    }
}

/// Returns the address of one end of a link.
///
/// # Panics
/// Panics if there are more than 256 links.
#[must_use]
pub fn address(link: usize, is_right: bool, family: Family) -> IpAddr {
    let (link, host) = (u8::try_from(link).expect("a link's number"), 1 + u8::from(is_right));
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, link, host).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, link.into(), 0, 0, 0, 0, host.into()).into(),
    }
}
