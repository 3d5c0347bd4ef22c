//! A SOCKS5 server (RFC 1928: CONNECT, no authentication) that reads the handshake with a buffer. A
//! client need not wait for the answers, so its first data may follow its request. The relay sends
//! the bytes that were read ahead first. Run the server and a client:
//!
//! ```text
//! cargo run -p spliceway --example socks_handshake_prefix -- 127.0.0.1:1080
//! curl -x socks5h://127.0.0.1:1080 http://example.com/
//! ```
//!
//! The server connects every client to every target. Do not listen on an address that strangers can
//! reach.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use spliceway::{Relay, RelayOptions, RelaySummary};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xFF;
const CONNECT: u8 = 1;
/// The size of the buffer. It is larger than any message of the handshake (at most 262 bytes), and
/// it limits how much is read ahead.
const BUFFER_BYTES: usize = 1024;

/// The time limit for the whole handshake, and for the connection to the target.
const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> io::Result<()> {
    let Some(listen) = std::env::args().nth(1) else {
        return Err(invalid("usage: socks_handshake_prefix LISTEN"));
    };
    let listener = TcpListener::bind(&listen).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (client, from) = listener.accept().await?;
        tokio::spawn(async move {
            match serve(client).await {
                Ok(summary) => eprintln!("{from}: {:?}, {:?}", summary.end, summary.b_to_a),
                Err(error) => eprintln!("{from}: {error}"),
            }
        });
    }
}

async fn serve(client: TcpStream) -> io::Result<RelaySummary> {
    let mut input = Input {
        stream: client,
        read: Vec::with_capacity(BUFFER_BYTES),
    };
    let target = timeout(PATIENCE, handshake(&mut input)).await??;
    let Input { mut stream, read } = input;
    let connected = timeout(PATIENCE, TcpStream::connect(&target)).await;
    let upstream = match connected.unwrap_or_else(|late| Err(late.into())) {
        Ok(upstream) => upstream,
        Err(error) => {
            let refused = error.kind() == io::ErrorKind::ConnectionRefused;
            stream.write_all(&reply(if refused { 5 } else { 1 })).await?;
            return Err(error);
        }
    };
    stream.write_all(&reply(0)).await?;
    let relay = Relay::with_options(
        stream,
        upstream,
        RelayOptions::new().a_to_b_prefix(read).idle_timeout(SILENCE),
    );
    Ok(relay.await?)
}

/// Reads the client's request and returns its target, a host and a port. Later bytes stay in the
/// buffer.
async fn handshake(input: &mut Input) -> io::Result<(String, u16)> {
    let [version, methods] = input.array().await?;
    if version != VERSION {
        return Err(invalid("this is not SOCKS5"));
    }
    if !input.take(methods.into()).await?.contains(&NO_AUTHENTICATION) {
        input.stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(invalid("the client wants to authenticate itself"));
    }
    input.stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;

    let [version, command, _, address_type] = input.array().await?;
    if (version, command) != (VERSION, CONNECT) {
        input.stream.write_all(&reply(7)).await?;
        return Err(invalid("a request other than CONNECT"));
    }
    let host = match address_type {
        1 => Ipv4Addr::from(input.array::<4>().await?).to_string(),
        3 => {
            let [length] = input.array().await?;
            String::from_utf8(input.take(length.into()).await?).map_err(|_| invalid("a host name that is no text"))?
        }
        4 => Ipv6Addr::from(input.array::<16>().await?).to_string(),
        _ => {
            input.stream.write_all(&reply(8)).await?;
            return Err(invalid("an unknown type of address"));
        }
    };
    Ok((host, u16::from_be_bytes(input.array().await?)))
}

/// Builds the answer to a request. The code 0 means success. The address is left empty, although
/// some programs want to know it.
fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// A stream, and the bytes that were read from it and not yet used.
struct Input {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Input {
    /// Returns the next `count` bytes. Reads no more than the buffer has room for.
    async fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.read.len() < count {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.read.drain(..count).collect())
    }

    async fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.take(N).await?;
        Ok(bytes.try_into().expect("so many were asked for"))
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
