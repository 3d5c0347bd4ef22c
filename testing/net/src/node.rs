//! One network namespace.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A namespace. It lives until this value is dropped and all sockets in it are closed.
#[derive(Debug)]
pub struct Node {
    namespace: File,
    keeper: Child,
}

impl Node {
    pub(crate) fn new() -> io::Result<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo made && exec cat"])
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().expect("piped")).read_line(&mut said)?;
        if said != "made\n" {
            let why = keeper.wait_with_output()?.stderr;
            let why = String::from_utf8_lossy(&why);
            let kind = match why.contains("Operation not permitted") {
                true => io::ErrorKind::PermissionDenied,
                false => io::ErrorKind::Other,
            };
            return Err(io::Error::new(
                kind,
                format!("no network namespace: {}", why.trim_end()),
            ));
        }
        let namespace = File::open(format!("/proc/{}/ns/net", keeper.id()))?;
        let node = Self { namespace, keeper };
        Visit::begin(&node)?;
        Ok(node)
    }

    /// Moves the calling thread into this namespace permanently.
    ///
    /// # Errors
    /// Returns the errors of setns(2).
    pub fn enter(&self) -> io::Result<()> {
        enter(&self.namespace)
    }

    /// Runs `work` in this namespace, and returns to the caller's namespace even if `work` panics.
    /// Sockets made there belong to this namespace, whichever thread uses them later. Threads and
    /// programs started there belong to it too.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        let _visit = Visit::begin(self).expect("it was entered when it was made");
        work()
    }

    /// Runs ip(8) commands in one process.
    ///
    /// # Errors
    /// Returns an error with the output of `ip`.
    pub fn ip(&self, commands: &[String]) -> io::Result<()> {
        self.run("ip", "-batch -", &commands.join("\n"))
    }

    /// Runs tc(8) commands in one process.
    pub(crate) fn tc(&self, commands: &[String]) -> io::Result<()> {
        self.run("tc", "-batch -", &commands.join("\n"))
    }

    /// Runs ethtool(8) with arguments split at spaces.
    pub(crate) fn ethtool(&self, arguments: &str) -> io::Result<()> {
        self.run("ethtool", arguments, "")
    }

    fn run(&self, program: &str, arguments: &str, input: &str) -> io::Result<()> {
        let mut command = Command::new(program);
        command
            .args(arguments.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = self
            .inside(|| command.spawn())
            .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
        child.stdin.take().expect("piped").write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!(
            "{program} {arguments}: {}\n{input}",
            said.trim_end()
        )))
    }

    /// Makes one core process everything that this namespace receives (`rps_cpus`), as a separate
    /// host's core would.
    ///
    /// # Errors
    /// Returns an error if the kernel or a program lacks a feature.
    pub fn receive_on(&self, core: usize) -> io::Result<()> {
        let mask = format!("{:x}", 1_u64 << core);
        // /sys shows the namespace of the process that mounted it.
        let script =
            "mount -t sysfs sysfs /sys && for file in /sys/class/net/*/queues/rx-*/rps_cpus; do echo $0 >$file; done";
        let output = self.inside(|| {
            Command::new("unshare")
                .args(["--mount", "sh", "-ec", script, &mask])
                .output()
        })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
            )),
        }
    }

    /// Returns the process that runs in the namespace and keeps it alive.
    pub(crate) fn process(&self) -> u32 {
        self.keeper.id()
    }

    /// Returns an IPv4 or TCP counter of this namespace, by its name in /proc/net/snmp or
    /// /proc/net/netstat.
    ///
    /// # Panics
    /// Panics if there is no counter of that name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("the kernel's counters");
        let counters = self.inside(|| read("snmp") + &read("netstat"));
        let mut lines = counters
            .lines()
            .filter(|line| line.starts_with("Ip") || line.starts_with("Tcp"));
        // A line of names precedes a line of values.
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let mut both = names.split(' ').zip(values.split(' '));
            if let Some((_, value)) = both.find(|(have, _)| *have == name) {
                return value.parse().expect("a count");
            }
        }
        panic!("no counter {name}")
    }

    /// Returns the number of frames that a device has sent. A frame has up to 64 KiB if another
    /// device cuts it into segments.
    ///
    /// # Panics
    /// Panics if there is no such device.
    #[must_use]
    pub fn frames_sent(&self, device: &str) -> u64 {
        let devices = self.inside(|| fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel's counters"));
        let line = devices.lines().find_map(|line| line.trim_start().strip_prefix(device));
        let counts: Vec<u64> = line
            .and_then(|line| line.strip_prefix(':'))
            .unwrap_or_else(|| panic!("no device {device}"))
            .split_whitespace()
            .map(|count| count.parse().expect("a count"))
            .collect();
        // Eight counts of received traffic precede the bytes and packets that were sent.
        counts[9]
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process exits when its input ends.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A visit of the calling thread to a namespace. Dropping it moves the thread back to its own.
struct Visit {
    home: File,
}

impl Visit {
    fn begin(node: &Node) -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        node.enter()?;
        Ok(Self { home })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        enter(&self.home).expect("a thread may return to where it was");
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
    use std::net::{TcpListener, TcpStream};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Family, Net, Offloads, address};

    fn here() -> std::path::PathBuf {
        fs::read_link("/proc/thread-self/ns/net").unwrap()
    }

    #[test]
    fn a_client_reaches_the_relay_and_through_it_the_server() {
        let Some(net) = Net::of_three(Offloads::Gro) else {
            return;
        };
        net.connect(0, 1, Family::V4).unwrap();
        let net = net.with_forwarding().unwrap();
        let server = address(1, true, Family::V4);
        let listener = net.node(2).inside(|| TcpListener::bind((server, 0))).unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = net.node(0).inside(|| TcpStream::connect(to)).unwrap();
        client.write_all(b"across\n").unwrap();
        let mut said = String::new();
        BufReader::new(listener.accept().unwrap().0)
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "across\n");
    }

    #[test]
    fn a_thread_returns_to_its_namespace_after_work_and_after_a_panic() {
        let Some(net) = Net::chain(1, Offloads::On) else { return };
        let home = here();
        let there = net.node(0).inside(here);
        assert_ne!(there, home);
        assert_eq!(here(), home);
        let panicked = catch_unwind(AssertUnwindSafe(|| net.node(0).inside(|| panic!("at work"))));
        assert!(panicked.is_err());
        assert_eq!(here(), home);
    }
}
