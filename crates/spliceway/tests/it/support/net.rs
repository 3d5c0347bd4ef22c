//! Network namespaces in a row, joined by veth pairs of MTU 1500: real segments, with the kernel's offloads or without.
//!
//! ```text
//!   node 0 ── right ═══ left ── node 1 ── right ═══ left ── node 2 …
//!        10.77.0.1     10.77.0.2      10.77.1.1     10.77.1.2
//! ```
//!
//! No namespace has a name: each lives as long as a child that reads from a pipe of ours, and the sockets in it. So it goes with
//! the test that made it, whether that passes, panics or is killed, and runs at the same time never meet.
#![allow(clippy::print_stdout)] // A skipped test says why.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::net::sockopt::tcp_congestion;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Payload of a full segment: 1,500 bytes less the headers of IPv4 and TCP, with its timestamps.
pub(crate) const SEGMENT: usize = 1448;

/// What both ends of a link do with large sends and with trains of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// The default of a veth: what a sender writes crosses in pieces of up to 64 KiB.
    On,
    /// Every segment crosses alone, and is received alone.
    Off,
    /// Every segment crosses alone, and the receiver puts trains together, as behind a network card.
    Gro,
}

impl Offloads {
    pub(crate) const ALL: [Self; 3] = [Self::On, Self::Off, Self::Gro];

    fn switches(self) -> Option<&'static str> {
        match self {
            Self::On => None,
            Self::Off => Some("tso off gso off gro off"),
            Self::Gro => Some("tso off gso off gro on"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Namespaces in a row.
pub(crate) struct Net {
    nodes: Vec<Node>,
}

/// One of them.
pub(crate) struct Node {
    namespace: File,
    keeper: Child,
}

impl Net {
    /// So many nodes, each linked to the next, and cubic on every route. `None` where the privilege is missing; says so.
    pub(crate) fn chain(count: usize, offloads: Offloads) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make network namespaces");
            return None;
        }
        let nodes: Option<Vec<Node>> = (0..count).map(|_| Node::new()).collect();
        let net = Self { nodes: nodes? };
        for link in 0..count - 1 {
            net.join(link, offloads);
        }
        Some(net)
    }

    /// Client, relay and server.
    pub(crate) fn of_three(offloads: Offloads) -> Option<Self> {
        Self::chain(3, offloads)
    }

    /// Bounds what a receiver lets on the way to itself, to a few dozen segments. Else a sender may have more of them on the way
    /// than a veth queues (256 with GRO, 1,000 without), and a test waits for timers of TCP.
    pub(crate) fn with_small_windows(self) -> Self {
        for node in &self.nodes {
            node.inside(|| std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 131072").unwrap());
        }
        self
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        &self.nodes[index]
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A connection that one node opens to a neighbour: both ends, the caller's first, without `NODELAY`.
    pub(crate) fn connect(&self, from: usize, to: usize, family: Family) -> (TcpStream, TcpStream) {
        assert_eq!(from.abs_diff(to), 1, "only neighbours are joined");
        let address = address(from.min(to), to > from, family);
        let listener = self.node(to).inside(|| TcpListener::bind((address, 0)).unwrap());
        let target = listener.local_addr().unwrap();
        let connected = self.node(from).inside(|| TcpStream::connect(target).unwrap());
        let (accepted, _) = listener.accept().unwrap();
        for end in [&connected, &accepted] {
            // The host's own choice may be one that paces, which no route of another namespace inherits.
            assert_eq!(tcp_congestion(end).unwrap(), "cubic");
        }
        (connected, accepted)
    }

    /// From now on each end of each link loses one in a hundred of the packets it receives, and sends one in twenty by a slow
    /// queue, so that later ones overtake it: classifiers of classic BPF roll the dice. An error is what a kernel lacks.
    pub(crate) fn lose_and_reorder(&self) -> Result<(), String> {
        // ld rand; mod 100; jeq 0, lose; ret
        let lose = "5,32 0 0 4294963256,148 0 0 100,21 0 1 0,6 0 0 2,6 0 0 0";
        // ld rand; mod 20; jeq 0, class 1:2; default class
        let overtake = "5,32 0 0 4294963256,148 0 0 20,21 0 1 0,6 0 0 65538,6 0 0 4294967295";
        for (index, node) in self.nodes.iter().enumerate() {
            let links = [("left", index > 0), ("right", index + 1 < self.nodes.len())];
            for (device, _) in links.iter().filter(|(_, is_there)| *is_there) {
                let commands = [
                    format!("qdisc add dev {device} clsact"),
                    format!("filter add dev {device} ingress protocol all bpf da bytecode \"{lose}\""),
                    format!("qdisc add dev {device} root handle 1: htb default 1"),
                    format!("class add dev {device} parent 1: classid 1:1 htb rate 10gbit burst 256k quantum 60000"),
                    format!("class add dev {device} parent 1: classid 1:2 htb rate 50mbit burst 1600 quantum 3000"),
                    format!("filter add dev {device} parent 1: protocol all bpf bytecode \"{overtake}\""),
                ];
                node.feed("tc", "-batch -", &commands.join("\n"))?;
            }
        }
        Ok(())
    }

    fn join(&self, link: usize, offloads: Offloads) {
        let (left, right) = (self.node(link), self.node(link + 1));
        let veth = format!(
            "link add right mtu 1500 type veth peer name left mtu 1500 netns {}",
            right.keeper.id()
        );
        left.ip(&[veth]);
        for (node, device, is_right) in [(left, "right", false), (right, "left", true)] {
            let (v4, v6) = (address(link, is_right, Family::V4), address(link, is_right, Family::V6));
            node.ip(&[
                format!("address add {v4}/24 dev {device}"),
                format!("address add {v6}/64 dev {device} nodad"),
                format!("link set {device} up"),
                format!("route replace 10.77.{link}.0/24 dev {device} src {v4} congctl cubic"),
                // Before the route that came with the address, which it does not replace.
                format!("route replace 2001:db8:{link}::/64 dev {device} metric 1 congctl cubic"),
            ]);
            if let Some(switches) = offloads.switches() {
                node.run("ethtool", &format!("-K {device} {switches}"));
            }
        }
    }
}

/// The address of one end of a link.
pub(crate) fn address(link: usize, is_right: bool, family: Family) -> IpAddr {
    let (link, host) = (u8::try_from(link).unwrap(), 1 + u8::from(is_right));
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, link, host).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, link.into(), 0, 0, 0, 0, host.into()).into(),
    }
}

impl Node {
    /// `None` where that is not allowed; says so.
    fn new() -> Option<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo made && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("unshare, of util-linux: {error}"));
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        if said != "made\n" {
            let output = keeper.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(why.contains("Operation not permitted"), "no network namespace: {why}");
            println!("skipped: {}", why.trim_end());
            return None;
        }
        let namespace = File::open(format!("/proc/{}/ns/net", keeper.id())).unwrap();
        Some(Self { namespace, keeper })
    }

    /// Runs `work` on a thread in this namespace. Sockets made there belong to it, whoever uses them later; so do programs
    /// started there.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let entered = || {
            move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        let done = thread::scope(|scope| scope.spawn(entered).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs commands of ip(8), in one process.
    pub(crate) fn ip(&self, commands: &[String]) {
        self.feed("ip", "-batch -", &commands.join("\n")).unwrap();
    }

    /// Runs a program with arguments split at spaces.
    pub(crate) fn run(&self, program: &str, arguments: &str) {
        self.feed(program, arguments, "").unwrap();
    }

    fn feed(&self, program: &str, arguments: &str, input: &str) -> Result<(), String> {
        let mut command = Command::new(program);
        command
            .args(arguments.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .inside(|| command.spawn())
            .unwrap_or_else(|error| panic!("{program}, which these tests need: {error}"));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {arguments}: {said}\n{input}"))
    }

    /// A counter of this namespace's IPv4 or TCP, by its name in /proc/net/snmp or /proc/net/netstat.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let read = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
        let counters = self.inside(|| read("snmp") + &read("netstat"));
        let mut lines = counters
            .lines()
            .filter(|line| line.starts_with("Ip") || line.starts_with("Tcp"));
        // A line of names, then one of values.
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let mut both = names.split(' ').zip(values.split(' '));
            if let Some((_, value)) = both.find(|(have, _)| *have == name) {
                return value.parse().unwrap();
            }
        }
        panic!("no counter {name}")
    }

    /// Frames that a device has sent: one of up to 64 KiB where it leaves cutting to another.
    pub(crate) fn frames_sent(&self, device: &str) -> u64 {
        let devices = self.inside(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(device));
        let counts: Vec<u64> = line
            .and_then(|line| line.strip_prefix(':'))
            .unwrap_or_else(|| panic!("no device {device}"))
            .split_whitespace()
            .map(|count| count.parse().unwrap())
            .collect();
        // Eight counts of what came in, then bytes and packets of what went out.
        counts[9]
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its input ends, so it does.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
