//! The relays to compare. Each is a process of its own, so that the kernel accounts for its CPU
//! time separately. It is this program with the hidden command `bench-relay`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use spliceway::Engine;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

use super::conditions::{self, Conditions};
use super::tls::{Acceptor, TlsPlace};

/// The buffers of a tuned copy. Larger ones do not fit into the cache of a core together.
const TUNED: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RelayKind {
    /// tokio's `copy_bidirectional`, with its buffers of 8 KiB.
    Tokio,
    /// tokio's `copy_bidirectional_with_sizes`, with buffers of [`TUNED`] bytes.
    Tuned,
    /// The `copy_bidirectional` of spliceway.
    Splice,
    /// TLS in user space.
    Rustls,
    /// TLS in the kernel, without splice.
    KtlsRw,
    /// TLS in the kernel, with splice.
    Ktls,
}

impl RelayKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Tuned => "tuned",
            Self::Splice => "splice",
            Self::Rustls => "rustls",
            Self::KtlsRw => "ktls-rw",
            Self::Ktls => "ktls",
        }
    }

    pub(super) fn description(self) -> String {
        match self {
            Self::Tokio => "tokio's copy_bidirectional, with its buffers of 8 KiB".to_owned(),
            Self::Tuned => format!("copy_bidirectional_with_sizes, with buffers of {} KiB", TUNED >> 10),
            Self::Splice => "spliceway's copy_bidirectional".to_owned(),
            Self::Rustls => "TLS of the relay in user space (rustls)".to_owned(),
            Self::KtlsRw => "TLS of the relay in the kernel, with reads and writes instead of splice".to_owned(),
            Self::Ktls => "TLS of the relay in the kernel from the first byte, with splice".to_owned(),
        }
    }

    /// Returns where the TLS of the relay is, if it terminates TLS.
    fn tls_place(self) -> Option<TlsPlace> {
        match self {
            Self::Tokio | Self::Tuned | Self::Splice => None,
            Self::Rustls => Some(TlsPlace::UserSpace),
            Self::KtlsRw => Some(TlsPlace::Kernel(Engine::Copy)),
            Self::Ktls => Some(TlsPlace::Kernel(Engine::Auto)),
        }
    }
}

/// The relay that a child process is.
#[derive(Args, Debug)]
pub struct RelayCommand {
    kind: RelayKind,
    upstream: SocketAddr,
    #[arg(long)]
    core: Option<usize>,
    #[arg(long)]
    congestion_control: Option<String>,
}

/// Prints the address that it listens on, and its certificate if it terminates TLS. Then it relays
/// until the end of standard input. The parent holds the other end of standard input, so that the
/// relay never outlives it. For each byte there, the relay prints its CPU time. (What /proc says
/// about a running thread is late by a tick.)
///
/// # Errors
/// Returns an error if the relay cannot listen.
pub fn serve(command: &RelayCommand) -> io::Result<()> {
    let (ends, ended) = oneshot::channel::<()>();
    // This thread stays on the core of the parent, which waits for the answer.
    thread::spawn(move || {
        let _ = answer();
        drop(ends);
    });
    if let Some(core) = command.core {
        conditions::pin_to(core);
    }
    let listener = conditions::listener((Ipv4Addr::LOCALHOST, 0).into(), command.congestion_control.as_deref())?;
    let acceptor = command.kind.tls_place().map(Acceptor::new).transpose()?.map(Arc::new);
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    if let Some(acceptor) = &acceptor {
        write!(io::stdout(), "{}", acceptor.certificate)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        tokio::select! {
            _ = ended => Ok(()),
            failed = accept(command, listener, acceptor) => failed,
        }
    })
}

/// Prints the CPU time of this process, in nanoseconds, for each byte of standard input.
fn answer() -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    while stdin.read(&mut [0])? == 1 {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let time = Duration::try_from(time).map_err(io::Error::other)?;
        writeln!(io::stdout(), "{}", time.as_nanos())?;
    }
    Ok(())
}

async fn accept(command: &RelayCommand, listener: TcpListener, acceptor: Option<Arc<Acceptor>>) -> io::Result<()> {
    let (kind, upstream) = (command.kind, command.upstream);
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        let name = command.congestion_control.clone();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let connect = connect(upstream, name.as_deref());
            // A session that fails loses bytes, which the load notices.
            let _ = match acceptor {
                Some(acceptor) => acceptor.session(client, connect).await,
                None => session(kind, client, connect).await,
            };
        });
    }
}

async fn connect(upstream: SocketAddr, congestion_control: Option<&str>) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    conditions::choose(&socket, congestion_control)?;
    let upstream = socket.connect(upstream).await?;
    upstream.set_nodelay(true)?;
    Ok(upstream)
}

async fn session(
    kind: RelayKind,
    mut client: TcpStream,
    connect: impl Future<Output = io::Result<TcpStream>>,
) -> io::Result<()> {
    let mut upstream = connect.await?;
    let (a, b) = (&mut client, &mut upstream);
    // The future is on the heap, so that a session uses only the memory of its own kind.
    let copied = match kind {
        RelayKind::Tokio => Box::pin(tokio::io::copy_bidirectional(a, b)).await,
        RelayKind::Tuned => Box::pin(tokio::io::copy_bidirectional_with_sizes(a, b, TUNED, TUNED)).await,
        _ => Box::pin(spliceway::copy_bidirectional(a, b)).await,
    };
    copied.map(drop)
}

/// A running relay. Dropping it ends it.
pub(super) struct Relay {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The address that clients connect to.
    pub(super) address: SocketAddr,
    /// The certificate of a relay that speaks TLS, in PEM.
    pub(super) certificate: Option<String>,
}

impl Relay {
    pub(super) fn start(kind: RelayKind, upstream: SocketAddr, conditions: &Conditions) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench-relay", kind.name(), &upstream.to_string()]);
        if let Some([core, _]) = conditions.cores {
            command.args(["--core", &core.to_string()]);
        }
        if let Some(name) = conditions.chosen {
            command.args(["--congestion-control", name]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut relay = Self {
            child,
            stdin,
            stdout: BufReader::new(stdout),
            address: (Ipv4Addr::UNSPECIFIED, 0).into(),
            certificate: None,
        };
        relay.address = relay.line()?;
        if kind.tls_place().is_some() {
            relay.certificate = Some(relay.pem()?);
        }
        Ok(relay)
    }

    /// Returns the CPU time so far, of all threads. It includes the kernel's work for the packets
    /// that the relay sends.
    pub(super) fn cpu_time(&mut self) -> io::Result<Duration> {
        self.stdin.write_all(b"?")?;
        self.line().map(Duration::from_nanos)
    }

    fn pem(&mut self) -> io::Result<String> {
        let mut pem = String::new();
        while !pem.contains("-----END") {
            if self.stdout.read_line(&mut pem)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(pem)
    }

    fn line<T: FromStr>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let value = line.trim().parse();
        value.map_err(|_| io::Error::other("the relay process has failed"))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use crate::bench::measurement::Kind;
    use crate::bench::tls::Load;

    const WINDOW: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(300));

    #[test]
    fn each_load_passes_a_relay_with_tls_in_user_space() {
        let conditions = Conditions::apply().unwrap();
        let (of_relay, of_server) = (conditions.listener().unwrap(), conditions.listener().unwrap());
        let acceptor = Acceptor::new(TlsPlace::UserSpace).unwrap();
        let (certificate, relay) = (acceptor.certificate.clone(), of_relay.local_addr().unwrap());
        let command = RelayCommand {
            kind: RelayKind::Rustls,
            upstream: of_server.local_addr().unwrap(),
            core: None,
            congestion_control: None,
        };
        let serve = move |stopped: oneshot::Receiver<()>| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::from_std(of_relay).unwrap();
                tokio::select! {
                    _ = stopped => {}
                    failed = accept(&command, listener, Some(Arc::new(acceptor))) => failed.unwrap(),
                }
            });
        };
        thread::scope(|scope| {
            let (_stop, stopped) = oneshot::channel();
            scope.spawn(move || serve(stopped));
            let load = Load::new(&certificate, relay, of_server, &conditions).unwrap();
            for kind in [Kind::Encrypt, Kind::Decrypt, Kind::Handshakes] {
                let mut looks = Vec::new();
                let done = load.run(kind, WINDOW, |opens| {
                    looks.push(opens);
                    Ok(())
                });
                let done = done.unwrap();
                assert!(done.bytes + done.completed > 0, "{kind:?}");
                assert_eq!(looks, [true, false]);
            }
        });
    }
}
