//! Running relays. Each is a separate process, so that the kernel accounts for its CPU time
//! separately.

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal};
use socket2::{Domain, Socket, Type};

use spliceway_machine as machine;
use spliceway_machine::accounts::{self, Resources};

use crate::kind::{self, Kind};
use crate::servers::{self, Folder};
use crate::{LOAD_CORE, RELAY_CORE};

/// The core of a normal relay, and the cores of a relay that runs on both.
const OWN: &[usize] = &[RELAY_CORE];
const BOTH: &[usize] = &[RELAY_CORE, LOAD_CORE];

/// A running relay. Dropping it stops it.
pub(crate) struct Relay {
    /// `None` if clients connect directly to the server.
    process: Option<Process>,
    /// The address that clients connect to.
    pub(crate) address: SocketAddr,
    /// Reserves the port on which the relay was told to listen.
    _port: Option<Socket>,
}

/// The relay's process. Dropping it ends the process.
struct Process {
    child: Child,
    cores: &'static [usize],
    /// The kernel's time for packets on the relay's cores before the relay started.
    softirq_before: Duration,
    /// The relay's configuration files, which are removed after it has ended.
    _files: Option<Folder>,
}

impl Relay {
    /// Starts a relay on its core. Its connections take turns on the targets.
    pub(crate) fn start(kind: Kind, listen: IpAddr, targets: &[SocketAddr]) -> io::Result<Self> {
        Self::start_under(&[], kind, listen, targets)
    }

    /// Starts a relay under an instrument: the words before its command line.
    pub(crate) fn start_under(
        instrument: &[String],
        kind: Kind,
        listen: IpAddr,
        targets: &[SocketAddr],
    ) -> io::Result<Self> {
        if kind == Kind::Direct {
            return Ok(Self {
                process: None,
                address: targets[0],
                _port: None,
            });
        }
        if let Some(server) = kind.server() {
            return Self::start_program(kind.name(), listen, |address, folder| {
                Ok(servers::under(instrument, &server.command(address, targets, folder)?))
            });
        }
        let (build, kind) = match kind {
            Kind::Before => (kind::build_before().ok_or(io::ErrorKind::NotFound)?, Kind::Spliceway),
            _ => (std::env::current_exe()?, kind),
        };
        let name = kind.to_possible_value().expect("all others can be typed");
        let mut command = Command::new(build);
        // Older builds, which may be contenders too, know only the first target.
        command.args(["relay", name.get_name(), &targets[0].to_string(), &listen.to_string()]);
        command.args(targets[1..].iter().map(SocketAddr::to_string));
        let mut command = servers::under(instrument, &command);
        let cores = if kind.shares_cores() { BOTH } else { OWN };
        let mut process = Process::spawn(command.stdout(Stdio::piped()), cores, None)?;
        let mut line = String::new();
        BufReader::new(process.child.stdout.take().expect("piped")).read_line(&mut line)?;
        let address = line.trim().parse();
        Ok(Self {
            process: Some(process),
            address: address.map_err(|_| io::Error::other(format!("the relay {} did not start", kind.name())))?,
            _port: None,
        })
    }

    /// Starts a program on the relay's core, and waits until it listens. `command` gets the address
    /// for clients and a folder for files.
    pub(crate) fn start_program(
        name: &str,
        listen: IpAddr,
        command: impl FnOnce(SocketAddr, &Path) -> io::Result<Command>,
    ) -> io::Result<Self> {
        let files = Folder::new()?;
        let (port, address) = reserve_port(listen)?;
        let mut pinned = servers::on_core(RELAY_CORE, &command(address, files.path())?);
        let mut process = Process::spawn(pinned.stdout(Stdio::null()).stderr(Stdio::null()), OWN, Some(files))?;
        let patience = Instant::now() + Duration::from_secs(20);
        while !machine::is_listening(address.port())? {
            if let Some(status) = process.child.try_wait()? {
                return Err(io::Error::other(format!("{name}: {status}")));
            }
            if Instant::now() > patience {
                return Err(io::Error::other(format!("{name} does not listen")));
            }
            std::thread::yield_now();
        }
        Ok(Self {
            process: Some(process),
            address,
            _port: Some(port),
        })
    }

    /// Returns the relay's CPU time so far, including its children and the kernel's time for
    /// packets on its cores.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        let Some(process) = &self.process else {
            return Ok(Duration::ZERO);
        };
        let softirq = softirq_time(process.cores) - process.softirq_before;
        Ok(accounts::cpu_time(process.child.id())? + softirq)
    }

    /// Returns the resources that the relay holds now.
    pub(crate) fn resources(&self) -> io::Result<Resources> {
        match &self.process {
            Some(process) => accounts::resources(process.child.id()),
            None => Ok(Resources::default()),
        }
    }
}

fn softirq_time(cores: &[usize]) -> Duration {
    cores.iter().map(|core| accounts::softirq_time(*core)).sum()
}

/// Reserves a port that the kernel chooses, with a socket that does not listen. No connection's
/// source port and no `bind(0)` gets this port. A server gets it by requesting the number with
/// `SO_REUSEADDR`, as servers do.
fn reserve_port(at: IpAddr) -> io::Result<(Socket, SocketAddr)> {
    let wanted = SocketAddr::new(at, 0);
    let held = Socket::new(Domain::for_address(wanted), Type::STREAM, None)?;
    held.set_reuse_address(true)?;
    held.bind(&wanted.into())?;
    let address = held.local_addr()?.as_socket().expect("bound to an address");
    Ok((held, address))
}

impl Process {
    fn spawn(command: &mut Command, cores: &'static [usize], files: Option<Folder>) -> io::Result<Self> {
        Ok(Self {
            cores,
            softirq_before: softirq_time(cores),
            child: command.spawn()?,
            _files: files,
        })
    }

    /// Asks the process to exit, because only it can end its own child processes. Kills it after 2
    /// s.
    fn end(&mut self) -> io::Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let patience = Instant::now() + Duration::from_secs(2);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > patience {
                self.child.kill()?;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have exited, which is fine.
        let _ = self.end();
    }
}
