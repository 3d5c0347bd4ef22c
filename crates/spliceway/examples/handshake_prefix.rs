//! A handshake read with a buffer, whose client has sent more than that: what was read too far goes first.

use std::io;

use spliceway::Relay;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A protocol of one line: where to.
const LONGEST_LINE: usize = 256;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (listener, target) = (
        TcpListener::bind("127.0.0.1:0").await?,
        TcpListener::bind("127.0.0.1:0").await?,
    );
    // The client does not wait for anything: its first bytes come right behind the line.
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let line = format!("{}\nand data at once", target.local_addr()?);
    client.write_all(line.as_bytes()).await?;
    client.shutdown().await?;

    let (mut accepted, _) = listener.accept().await?;
    let (address, too_far) = read_line(&mut accepted).await?;
    let upstream = TcpStream::connect(address).await?;
    let relay = tokio::spawn(Relay::new(accepted, upstream).a_to_b_prefix(too_far));

    let (mut server, _) = target.accept().await?;
    let mut received = String::new();
    server.read_to_string(&mut received).await?;
    drop(server);
    assert_eq!(received, "and data at once");
    eprintln!("{received:?} arrived: {:?}", relay.await??.a_to_b);
    Ok(())
}

/// The first line, and what was read behind it.
async fn read_line(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.iter().position(|byte| *byte == b'\n') {
            let too_far = read.split_off(end + 1);
            let line = String::from_utf8_lossy(&read).trim().to_owned();
            return Ok((line, too_far));
        }
        if read.len() > LONGEST_LINE || stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "expected a line"));
        }
    }
}
