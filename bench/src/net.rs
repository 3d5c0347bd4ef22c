//! Three network namespaces in a row, joined by veth pairs of MTU 1500: real segments, with the kernel's offloads or without.
//!
//! ```text
//!   client ── right ═══ left ── relay ── right ═══ left ── server
//!        10.77.0.1     10.77.0.2    10.77.1.1     10.77.1.2
//! ```
//!
//! No namespace has a name: each lives as long as a child that reads from a pipe of ours, and the sockets in it. So it goes with the
//! run that made it, however that ends, and runs at the same time never meet.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::net::sockopt::tcp_congestion;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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
    fn switches(self) -> Option<&'static str> {
        match self {
            Self::On => None,
            Self::Off => Some("tso off gso off gro off"),
            Self::Gro => Some("tso off gso off gro on"),
        }
    }
}

/// The namespaces.
pub(crate) struct Net {
    pub(crate) client: Node,
    pub(crate) relay: Node,
    pub(crate) server: Node,
}

/// One of them.
pub(crate) struct Node {
    namespace: File,
    keeper: Child,
}

impl Net {
    /// Where clients reach what listens in the middle.
    pub(crate) const RELAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    /// Where all others reach the server; clients do by the middle, which forwards.
    pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 1, 2));

    /// Makes them, with cubic on every route.
    ///
    /// # Errors
    /// What is missing: the privilege, `ip` or `ethtool`.
    pub(crate) fn new(offloads: Offloads) -> io::Result<Self> {
        let net = Self {
            client: Node::new()?,
            relay: Node::new()?,
            server: Node::new()?,
        };
        join(0, &net.client, &net.relay, offloads)?;
        join(1, &net.relay, &net.server, offloads)?;
        net.client
            .ip(&["route add 10.77.1.0/24 via 10.77.0.2 congctl cubic".into()])?;
        net.server
            .ip(&["route add 10.77.0.0/24 via 10.77.1.1 congctl cubic".into()])?;
        net.relay
            .visit(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        net.check_congestion_control()?;
        Ok(net)
    }

    /// The host's own choice may be one that paces, and would be all one measures.
    fn check_congestion_control(&self) -> io::Result<()> {
        for (from, to, address) in [
            (&self.client, &self.relay, Self::RELAY),
            (&self.relay, &self.server, Self::SERVER),
        ] {
            let listener = to.visit(|| TcpListener::bind((address, 0)))?;
            let address = listener.local_addr()?;
            let connected = from.visit(|| TcpStream::connect(address))?;
            for end in [connected, listener.accept()?.0] {
                let used = tcp_congestion(&end)?;
                if used != "cubic" {
                    return Err(io::Error::other(format!("between namespaces connections use {used}")));
                }
            }
        }
        Ok(())
    }
}

fn join(link: u8, left: &Node, right: &Node, offloads: Offloads) -> io::Result<()> {
    left.ip(&[format!(
        "link add right mtu 1500 type veth peer name left mtu 1500 netns {}",
        right.keeper.id()
    )])?;
    for (node, device, host) in [(left, "right", 1), (right, "left", 2)] {
        let address = Ipv4Addr::new(10, 77, link, host);
        node.ip(&[
            format!("address add {address}/24 dev {device}"),
            format!("link set {device} up"),
            format!("route replace 10.77.{link}.0/24 dev {device} src {address} congctl cubic"),
        ])?;
        if let Some(switches) = offloads.switches() {
            node.run("ethtool", &format!("-K {device} {switches}"), "")?;
        }
    }
    Ok(())
}

impl Node {
    fn new() -> io::Result<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo made && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("unshare: {error}")))?;
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().expect("piped")).read_line(&mut said)?;
        if said != "made\n" {
            let why = keeper.wait_with_output()?.stderr;
            let why = String::from_utf8_lossy(&why);
            return Err(io::Error::other(format!("no network namespace: {}", why.trim_end())));
        }
        let namespace = File::open(format!("/proc/{}/ns/net", keeper.id()))?;
        Ok(Self { namespace, keeper })
    }

    /// Moves the calling thread into this namespace, for good.
    pub(crate) fn enter(&self) -> io::Result<()> {
        enter(&self.namespace)
    }

    /// Does `work` in this namespace and comes back. Sockets made there belong to it, whoever uses them later; so do programs started
    /// there.
    pub(crate) fn visit<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let home = File::open("/proc/thread-self/ns/net")?;
        self.enter()?;
        let done = work();
        enter(&home)?;
        done
    }

    /// Runs commands of ip(8), in one process.
    fn ip(&self, commands: &[String]) -> io::Result<()> {
        self.run("ip", "-batch -", &commands.join("\n"))
    }

    /// Runs a program with arguments split at spaces.
    fn run(&self, program: &str, arguments: &str, input: &str) -> io::Result<()> {
        let mut command = Command::new(program);
        command
            .args(arguments.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = self
            .visit(|| command.spawn())
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        child.stdin.take().expect("piped").write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "{program} {arguments}: {}; {input}",
            said.trim_end()
        )))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its input ends, so it does.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reaches_the_relay_and_by_it_the_server_and_a_thread_comes_home() {
        let home = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let net = match Net::new(Offloads::Gro) {
            Ok(net) => net,
            Err(why) => return println!("skipped: {why}"),
        };
        let listener = net.server.visit(|| TcpListener::bind((Net::SERVER, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = net.client.visit(|| TcpStream::connect(address)).unwrap();
        client.write_all(b"across\n").unwrap();
        let mut said = String::new();
        BufReader::new(listener.accept().unwrap().0)
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "across\n");
        assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), home);
    }
}
