//! Pairs of connected non-blocking sockets, and the calls that peers make on them.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::audit;
use crate::plan::{Family, PeerPlan};

/// The smallest buffer size. The kernel raises it to 4,608 bytes.
const SMALL_BYTES: usize = 1;

/// State that outlives a scenario. Only one scenario uses it at a time, because descriptors belong
/// to the whole process.
pub(crate) struct Stage {
    /// One listener for all connections. A new port for each connection would use up the ports.
    listener: TcpListener,
    pub(crate) runtime: Runtime,
    /// Descriptors open between scenarios.
    pub(crate) descriptors: usize,
}

impl Stage {
    /// Gives the caller exclusive use of the stage until the guard is dropped.
    pub(crate) fn enter() -> MutexGuard<'static, Self> {
        static STAGE: LazyLock<Mutex<Stage>> = LazyLock::new(|| Mutex::new(Stage::new()));
        // A panic in one scenario does not affect the next.
        STAGE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
        let inside = runtime.enter();
        // Rust's start-up code ignores SIGPIPE, which splicing to a reset socket raises. A fuzzer
        // has libFuzzer's start-up code, which does not.
        let _heard = signal(SignalKind::pipe()).expect("SIGPIPE is heard, and does nothing");
        drop(inside);
        Self {
            listener,
            runtime,
            descriptors: audit::descriptors(),
        }
    }

    /// Returns a peer's socket and the relay's end of it.
    pub(crate) fn pair(&self, plan: &PeerPlan) -> (OwnedFd, OwnedFd) {
        let (peer, end) = match plan.family {
            Family::Tcp => self.tcp_pair(),
            Family::Unix => {
                let (peer, end) = UnixStream::pair().expect("socketpair");
                (OwnedFd::from(peer), OwnedFd::from(end))
            }
        };
        for (socket, small) in [(&peer, plan.small), (&end, plan.relay_small)] {
            rustix::io::ioctl_fionbio(socket, true).expect("FIONBIO");
            if small {
                sockopt::set_socket_send_buffer_size(socket, SMALL_BYTES).expect("SO_SNDBUF");
            }
        }
        (peer, end)
    }

    /// Returns a pair without Nagle's delay, like the connections of every relay and its clients.
    fn tcp_pair(&self) -> (OwnedFd, OwnedFd) {
        let near = TcpStream::connect(self.listener.local_addr().expect("address")).expect("connect");
        let (far, peer) = self.listener.accept().expect("accept");
        assert_eq!(peer, near.local_addr().expect("address"), "a stranger connected");
        for end in [&near, &far] {
            end.set_nodelay(true).expect("TCP_NODELAY");
            acknowledge(end);
        }
        (near.into(), far.into())
    }
}

pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)
}

pub(crate) fn send_urgent(socket: impl AsFd, byte: u8) -> io::Result<usize> {
    Ok(rustix::net::send(
        socket,
        &[byte],
        SendFlags::NOSIGNAL | SendFlags::OOB,
    )?)
}

pub(crate) fn recv(socket: impl AsFd, buf: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buf, RecvFlags::empty())?.1)
}

pub(crate) fn finish(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// Sends the acknowledgement that TCP would delay for 40 ms. (Unix sockets send none.)
pub(crate) fn acknowledge(socket: impl AsFd) {
    let _ = sockopt::set_tcp_quickack(socket, true);
}

/// Closes the socket so that a TCP peer gets a reset. (On a Unix socket, this is a normal close.)
pub(crate) fn reset(socket: OwnedFd) {
    // A socket whose connection is over may refuse this option. It does not need a reset.
    let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}
