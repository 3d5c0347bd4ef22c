//! Shared parts of the tests: socket pairs, patterns that show where a byte came from, and observed
//! relays.

pub(crate) mod child;
pub(crate) mod pattern;
pub(crate) mod rig;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// More than all buffers on the way hold: two sockets on each side of the relay, and its pipe.
pub(crate) const BULK: u64 = 24 * MIB;

/// A bidirectional byte stream, sized or not.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + ?Sized> Duplex for T {}

/// Fails the test if `work` takes longer than any machine needs. A stall becomes a failure, not a
/// hang.
pub(crate) async fn guard<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .expect("nothing moved for 60 s")
}

/// Returns two ends of a TCP connection over loopback, with `NODELAY`.
pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    connect(None).await
}

/// Returns a peer with a small receive buffer, and the relay's end with a small send buffer. In the
/// other direction, the buffers are large.
pub(crate) async fn tcp_small() -> (TcpStream, TcpStream) {
    connect(Some(16 << 10)).await
}

async fn connect(buffer_bytes: Option<u32>) -> (TcpStream, TcpStream) {
    let (listening, connecting) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
    if let Some(bytes) = buffer_bytes {
        connecting.set_recv_buffer_size(bytes).unwrap();
        listening.set_send_buffer_size(bytes).unwrap();
    }
    unpaced(&listening);
    unpaced(&connecting);
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = listening.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = tokio::join!(connecting.connect(address), listener.accept());
    let (connected, (accepted, _)) = (connected.unwrap(), accepted.unwrap());
    connected.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (connected, accepted)
}

/// Prevents a socket, and sockets accepted from it, from using bbr, if that is the default. bbr
/// paces at the bandwidth that it measured while other tests used the processors. This was 2 MiB in
/// 240 ms, for the life of the connection. Every kernel has reno.
pub(crate) fn unpaced(socket: &impl AsFd) {
    sockopt::set_tcp_congestion(socket, "reno").unwrap();
}

/// Limits the queues of a socket, and of sockets accepted from it. If many connections are blocked
/// at the same time, full queues of the default size use all memory of TCP (`net.ipv4.tcp_mem`).
/// The kernel then resets connections of any process.
pub(crate) fn short_queues(socket: &impl AsFd) {
    sockopt::set_socket_send_buffer_size(socket, 128 << 10).unwrap();
    sockopt::set_socket_recv_buffer_size(socket, 128 << 10).unwrap();
}

/// Closes with a reset instead of a FIN.
pub(crate) fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Sends a byte as urgent data, as soon as the socket has room. The receiver must have passed the
/// previous urgent byte. TCP has only one urgent byte at a time, so an older one that is still
/// queued becomes a normal byte.
pub(crate) async fn send_urgent(stream: &impl AsFd) {
    loop {
        match rustix::net::send(stream, b"!", SendFlags::OOB) {
            Ok(sent) => return assert_eq!(sent, 1),
            Err(Errno::AGAIN) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Calls `shutdown(SHUT_WR)` without waiting for anything.
pub(crate) fn finish(stream: &impl AsFd) {
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write).unwrap();
}

/// Lets every other task of this thread run, and lets the driver poll for events, this many times.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Writes `bytes` in pieces of `len` that are not contiguous in memory, so that each piece needs
/// its own slot of a pipe. Between two pieces, it writes to another socket, which uses the next
/// bytes of the thread's current page. A new thread does this, because it starts with a new block
/// of pages. Nothing else runs in this thread meanwhile, so a relay of this thread finds all pieces
/// together.
pub(crate) fn write_apart(socket: &TcpStream, bytes: &[u8], len: usize) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    other.set_nodelay(true).unwrap();
    let send = |socket: &dyn AsFd, bytes: &[u8]| {
        let sent = rustix::net::send(socket.as_fd(), bytes, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()), "the socket has no room");
    };
    let write = || {
        for piece in bytes.chunks(len) {
            send(socket, piece);
            send(&other, b"gap");
        }
    };
    std::thread::scope(|scope| scope.spawn(write).join()).unwrap();
}

/// Writes as much of `bytes` as the socket accepts in one call.
pub(crate) fn try_send(stream: &TcpStream, bytes: &[u8]) -> usize {
    match stream.try_write(bytes) {
        Ok(sent) => sent,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("cannot write: {error}"),
    }
}
