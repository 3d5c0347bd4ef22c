//! What the tests share: socket pairs, patterns that tell where a byte came from, and relays under observation.

pub(crate) mod child;
pub(crate) mod pattern;
pub(crate) mod rig;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Longer than any buffer on the way: two sockets' worth each side of the relay, and its pipe.
pub(crate) const BULK: u64 = 24 * MIB;

/// Both ways of a byte stream, sized or not.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + ?Sized> Duplex for T {}

/// Fails the test if `work` takes longer than any machine needs: a stall is a failure, not a hang.
pub(crate) async fn guard<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .expect("nothing moved for 60 s")
}

/// Two ends of a TCP connection over loopback, `NODELAY`.
pub(crate) async fn tcp() -> (TcpStream, TcpStream) {
    connect(None).await
}

/// The same with small socket buffers at both ends, so that little is parked outside the relay.
pub(crate) async fn tcp_small() -> (TcpStream, TcpStream) {
    connect(Some(16 << 10)).await
}

async fn connect(buffer_bytes: Option<u32>) -> (TcpStream, TcpStream) {
    let (listening, connecting) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
    for socket in [&listening, &connecting] {
        if let Some(bytes) = buffer_bytes {
            socket.set_recv_buffer_size(bytes).unwrap();
            socket.set_send_buffer_size(bytes).unwrap();
        }
    }
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = listening.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let (connected, accepted) = tokio::join!(connecting.connect(address), listener.accept());
    let (connected, (accepted, _)) = (connected.unwrap(), accepted.unwrap());
    connected.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (connected, accepted)
}

/// Closes with a reset instead of a FIN.
pub(crate) fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Sends `byte` as urgent data. The receiver never reads it as a normal byte.
pub(crate) fn send_urgent(stream: &impl AsFd, byte: u8) {
    assert_eq!(
        rustix::net::send(stream, &[byte], rustix::net::SendFlags::OOB).unwrap(),
        1
    );
}

/// `shutdown(SHUT_WR)` without waiting for anything.
pub(crate) fn finish(stream: &impl AsFd) {
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write).unwrap();
}

/// Lets every other task of this thread run, and the driver look for events.
pub(crate) async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Writes as much of `bytes` as the socket takes at once.
pub(crate) fn try_send(stream: &TcpStream, bytes: &[u8]) -> usize {
    match stream.try_write(bytes) {
        Ok(sent) => sent,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("cannot write: {error}"),
    }
}
