//! The program under attack as a child process, and the kernel's figures about it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::attacks::Attack;
use crate::place::Place;
use crate::servers::Servers;
use crate::tls;

/// The password of every user.
pub(crate) const SECRET: &str = "correct horse";

/// The number of users who have not logged in before, so that the program must check their hashes.
pub(crate) const NEWCOMERS: usize = 1000;

/// The program's descriptor limit: 1/8 for pipes, 1/8 for lookups, and the rest for about 1,500
/// sessions.
const DESCRIPTORS: u64 = 4096;
/// The limit beside a service that terminates TLS, for about 6,000 sessions, and the sessions of
/// each client address. Attackers have four addresses.
const DESCRIPTORS_WITH_TLS: u64 = 16_384;
const PER_ADDRESS: u64 = 1_250;

/// The longest wait for a start or an exit. Both take milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The destination of the program's stderr, which carries the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    /// To a file with enough room.
    Kept,
    /// To an unread pipe.
    Stalled,
    /// To a pipe whose reader is gone.
    Closed,
    /// To a device that is always full.
    Full,
    /// To a file on a file system that fills up.
    FullDisk,
}

/// The kernel's figures about the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) rss_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) cpu: Duration,
}

/// The running program. Dropping it kills it.
pub(crate) struct Program {
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    /// The service that terminates TLS, if the attack needs one.
    pub(crate) tls: SocketAddr,
    process: Mutex<Child>,
    pid: Pid,
    /// The read end of the program's stderr, which stays open and unread.
    _unread: Option<OwnedFd>,
}

impl Program {
    pub(crate) async fn start(
        path: Option<&str>,
        servers: &Servers,
        attack: &Attack,
        place: &Place,
    ) -> io::Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("spliceway");
        let path = path.map_or(beside, Into::into);
        let users = place.folder.join("users");
        write_users(&path, &users)?;
        // The program's log cannot supply these addresses, because some attacks break it from the
        // start.
        let [address, metrics, tls] = unused_addresses().await?;
        let log = attack.log;
        let (stderr, unread) = log.open(place)?;
        let mut command = Command::new(&path);
        if attack.is_tls() {
            let config = place.folder.join("config.toml");
            fs::write(&config, with_tls(address, metrics, tls, servers, place)?)?;
            command.arg("run").arg("--config").arg(&config);
        } else {
            command.args(["mixed", "--handshake-timeout", "3s", "--connect-timeout", "5s"]);
            command.args(["--listen", &address.to_string(), "--metrics", &metrics.to_string()]);
            command.args([
                "--dns",
                &servers.names.to_string(),
                "--nofile",
                &DESCRIPTORS.to_string(),
            ]);
            command.arg("--auth-file").arg(&users);
        }
        if log != Log::Kept {
            // Fewer connections than attackers, so that the accept task logs too.
            command.args(["--max-conns", "24"]);
        }
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn();
        let process = process.map_err(|error| io::Error::other(format!("cannot start {}: {error}", path.display())))?;
        let program = Self {
            address,
            metrics,
            tls,
            pid: Pid::from_child(&process),
            process: Mutex::new(process),
            _unread: unread,
        };
        let addresses = [address, metrics, tls];
        for address in &addresses[..if attack.is_tls() { 3 } else { 2 }] {
            program.listens(*address).await?;
        }
        Ok(program)
    }

    /// Starts the program with this configuration, and waits until it listens on these addresses.
    pub(crate) async fn start_with(
        path: Option<&str>,
        place: &Place,
        config: &str,
        addresses: &[SocketAddr],
    ) -> io::Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("spliceway");
        let (path, file) = (path.map_or(beside, Into::into), place.folder.join("config.toml"));
        fs::write(&file, config)?;
        let mut command = Command::new(&path);
        command.arg("run").arg("--config").arg(&file).stdin(Stdio::null());
        command
            .stdout(Stdio::null())
            .stderr(File::create(place.folder.join("log"))?);
        let process = command.spawn();
        let process = process.map_err(|error| io::Error::other(format!("cannot start {}: {error}", path.display())))?;
        let first = *addresses.first().ok_or_else(|| io::Error::other("no address"))?;
        let program = Self {
            address: first,
            metrics: first,
            tls: first,
            pid: Pid::from_child(&process),
            process: Mutex::new(process),
            _unread: None,
        };
        for address in addresses {
            program.listens(*address).await?;
        }
        Ok(program)
    }

    async fn listens(&self, address: SocketAddr) -> io::Result<()> {
        let started = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            if let Some(status) = self.process.lock().expect("nobody panics").try_wait()? {
                return Err(io::Error::other(format!("the program ended at its start: {status}")));
            }
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("the program does not listen on {address}")));
            }
            // Sleeps because a program that cannot write its log cannot announce that it listens.
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> io::Result<Usage> {
        let folder = format!("/proc/{}", self.pid.as_raw_nonzero());
        let status = fs::read_to_string(format!("{folder}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rss| rss.split_whitespace().next()?.parse().ok());
        let stat = fs::read_to_string(format!("{folder}/stat"))?;
        // User and system time are fields 14 and 15 in proc_pid_stat(5). The second field may
        // contain blanks.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let ticks: u64 = fields
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        Ok(Usage {
            rss_kib: rss_kib.ok_or_else(|| io::Error::other("the program has ended"))?,
            descriptors: fs::read_dir(format!("{folder}/fd"))?.count(),
            cpu: Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100),
        })
    }

    /// Asks the program to exit, as a service manager does. Returns the time that the exit took.
    /// Returns a description of the outcome if the program did not exit in time with code 0, or
    /// with code 3 because it had to cut the sessions of attackers.
    pub(crate) async fn end(&self) -> io::Result<Result<Duration, String>> {
        let asked = Instant::now();
        // The program may already have exited. Its exit code shows that.
        let _ = kill_process(self.pid, Signal::TERM);
        let ended = async {
            loop {
                if let Some(status) = self.process.lock().expect("nobody panics").try_wait()? {
                    return Ok::<_, io::Error>(status);
                }
                // Sleeps because a child's exit does not cause an event without a SIGCHLD handler.
                sleep(Duration::from_millis(10)).await;
            }
        };
        Ok(match timeout(PATIENCE, ended).await {
            Ok(status) => match status? {
                status if matches!(status.code(), Some(0 | 3)) => Ok(asked.elapsed()),
                status => Err(status.to_string()),
            },
            Err(_) => Err(format!("still running {} s after TERM", PATIENCE.as_secs())),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(process) = self.process.get_mut() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Log {
    fn open(self, place: &Place) -> io::Result<(Stdio, Option<OwnedFd>)> {
        let file = |path: &std::path::Path| File::create(path).map(|file| (file.into(), None));
        match (self, &place.small) {
            (Self::Kept, _) => file(&place.folder.join("log")),
            (Self::FullDisk, Some(small)) => file(&small.join("log")),
            (Self::FullDisk, None) | (Self::Full, _) => {
                let full = OpenOptions::new().write(true).open("/dev/full")?;
                Ok((full.into(), None))
            }
            (Self::Stalled | Self::Closed, _) => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                // The smallest pipe size, so that the pipe fills up soon.
                fcntl_setpipe_size(&writer, 4096)?;
                Ok((writer.into(), (self == Self::Stalled).then_some(reader)))
            }
        }
    }
}

/// Writes a file of users who all have the same password, so that one hash is enough.
fn write_users(program: &std::path::Path, path: &std::path::Path) -> io::Result<()> {
    let mut command = Command::new(program);
    let mut child = command
        .arg("hash-password")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    writeln!(child.stdin.take().expect("piped"), "{SECRET}")?;
    let output = child.wait_with_output()?;
    let hash = String::from_utf8_lossy(&output.stdout);
    let names = (0..NEWCOMERS).map(|number| format!("newcomer{number}"));
    let names = names.chain(["probe".to_owned(), "attacker".to_owned()]);
    let lines: String = names.map(|name| format!("{name}:{}\n", hash.trim())).collect();
    fs::write(path, lines)
}

/// Returns a configuration with the service for the probes, and one that terminates TLS. 10,000
/// attackers with four addresses would take every session, so a client address has a limit.
fn with_tls(
    address: SocketAddr,
    metrics: SocketAddr,
    tls: SocketAddr,
    servers: &Servers,
    place: &Place,
) -> io::Result<String> {
    let [certificate, key] = tls::write_pair(&place.folder)?;
    let authority = tls::write_authority(&place.folder)?;
    let users = place.folder.join("users");
    let (names, echo) = (servers.names, servers.echo);
    Ok(format!(
        "[admin]\nmetrics = \"{metrics}\"\n\
         [timeouts]\nhandshake = \"3s\"\nconnect = \"5s\"\n\
         [limits]\nnofile = {DESCRIPTORS_WITH_TLS}\nmax_conns_per_ip = {PER_ADDRESS}\n\
         [[service]]\nname = \"plain\"\nkind = \"mixed\"\nlisten = \"{address}\"\ndns = \"{names}\"\nauth_file = {users:?}\n\
         [[service]]\nname = \"tls\"\nkind = \"forward\"\nlisten = \"{tls}\"\nto = \"{echo}\"\n\
         tls_cert = {certificate:?}\ntls_key = {key:?}\n\
         tls_client_ca = {authority:?}\ntls_client_verify = \"optional\"\n"
    ))
}

/// Returns different addresses on which nothing listens.
///
/// Connections that the attackers and the program open have the source address 127.0.0.1, so none
/// of them takes such a port before the program binds it.
pub(crate) async fn unused_addresses<const N: usize>() -> io::Result<[SocketAddr; N]> {
    let mut listeners = Vec::with_capacity(N);
    for _ in 0..N {
        listeners.push(TcpListener::bind("127.0.0.2:0").await?);
    }
    let mut addresses = [SocketAddr::from(([0; 4], 0)); N];
    for (address, listener) in addresses.iter_mut().zip(&listeners) {
        *address = listener.local_addr()?;
    }
    Ok(addresses)
}
