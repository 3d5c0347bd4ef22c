//! Relays that run, each as a process of its own so that the kernel accounts its CPU time apart.

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;

use crate::arms::Arm;
use crate::machine;

/// A running relay. Dropping it ends it.
pub(crate) struct Relay {
    /// None where clients connect to the server.
    process: Option<Child>,
    /// What clients connect to.
    pub(crate) address: SocketAddr,
}

impl Relay {
    /// Starts `arm` on the relay's core, towards `upstream`, on the same address.
    pub(crate) fn start(arm: Arm, upstream: SocketAddr) -> io::Result<Self> {
        Self::start_at(arm, upstream.ip(), upstream)
    }

    /// The same, on an address of its own.
    pub(crate) fn start_at(arm: Arm, listen: IpAddr, upstream: SocketAddr) -> io::Result<Self> {
        if arm == Arm::Direct {
            return Ok(Self {
                process: None,
                address: upstream,
            });
        }
        let name = arm.to_possible_value().expect("no arm is skipped");
        let mut process = Command::new(std::env::current_exe()?)
            .args(["relay", name.get_name(), &upstream.to_string(), &listen.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(address) => Ok(Self {
                process: Some(process),
                address,
            }),
            Err(_) => {
                process.kill()?;
                process.wait()?;
                Err(io::Error::other(format!("the relay {} did not start", arm.name())))
            }
        }
    }

    /// Starts `program` on the relay's core, which takes the address to listen on and the one to connect to as its arguments.
    pub(crate) fn start_program(program: &Path, upstream: SocketAddr) -> io::Result<Self> {
        // The kernel's choice of a free port, free again by then.
        let address = std::net::TcpListener::bind((upstream.ip(), 0))?.local_addr()?;
        let mut process = Command::new("taskset")
            .args(["-c", &machine::RELAY_CORE.to_string()])
            .arg(program)
            .args([address.to_string(), upstream.to_string()])
            .stdout(Stdio::null())
            .spawn()?;
        while !machine::is_listening(address.port())? {
            if let Some(status) = process.try_wait()? {
                return Err(io::Error::other(format!("{}: {status}", program.display())));
            }
            std::thread::yield_now();
        }
        Ok(Self {
            process: Some(process),
            address,
        })
    }

    /// CPU time of the relay so far, the system calls it made included.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        let Some(process) = &self.process else {
            return Ok(Duration::ZERO);
        };
        machine::cpu_time(process.id())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended by itself, which is just as well.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
