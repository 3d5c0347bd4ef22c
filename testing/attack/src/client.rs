//! A client of the program: its source address, and its SOCKS5 request for a target.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// The source address of the probes. No attacker uses it.
pub(crate) const PROBE: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

/// Returns a newcomer's address. Each newcomer has its own, and no attacker uses it.
pub(crate) fn newcomer(number: usize) -> Ipv4Addr {
    // 127.10.0.0 to 127.10.255.255.
    Ipv4Addr::from_bits(0x7f0a_0000 + u32::try_from(number % 0x1_0000).expect("small"))
}

/// The target of a request.
pub(crate) enum Target {
    Address(SocketAddr),
    Name(String, u16),
}

/// Returns an attacker's address. Each number has its own.
pub(crate) fn attacker(number: u64) -> Ipv4Addr {
    // 127.1.0.0 to 127.8.255.255.
    Ipv4Addr::from_bits(0x7f01_0000 + u32::try_from(number % 0x8_0000).expect("small"))
}

pub(crate) async fn connect(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends everything up to the request in one call, as a client may.
pub(crate) async fn request(stream: &mut TcpStream, name: &str, secret: &str, target: &Target) -> io::Result<()> {
    let mut message = vec![5, 1, 2, 1];
    for text in [name, secret] {
        message.push(u8::try_from(text.len()).expect("a short name"));
        message.extend(text.as_bytes());
    }
    message.extend([5, 1, 0]);
    let port = match target {
        Target::Address(SocketAddr::V4(address)) => {
            message.push(1);
            message.extend(address.ip().octets());
            address.port()
        }
        Target::Address(SocketAddr::V6(_)) => unreachable!("every target is on IPv4 loopback"),
        Target::Name(host, port) => {
            message.extend([3, u8::try_from(host.len()).expect("a short name")]);
            message.extend(host.as_bytes());
            *port
        }
    };
    message.extend(port.to_be_bytes());
    stream.write_all(&message).await
}

/// Reads the answers to [`request`]. Returns an error unless the program reached the target.
pub(crate) async fn accepted(stream: &mut TcpStream) -> io::Result<()> {
    let mut answers = [0; 4];
    stream.read_exact(&mut answers).await?;
    if answers != [5, 2, 1, 0] {
        return Err(io::Error::other(format!("login refused: {answers:?}")));
    }
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).await?;
    match reply[1] {
        0 => Ok(()),
        code => Err(io::Error::other(format!("reply {code}"))),
    }
}
