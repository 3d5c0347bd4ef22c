//! Shows both reactions to a half-close: the request ends first, and the answer may still follow.

use std::io;
use std::time::Duration;

use spliceway::{EndReason, HalfClose, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As TCP intends: the server receives the end of the request, and answers.
    let ((mut client, a), (b, mut server)) = (pair().await?, pair().await?);
    let relay = tokio::spawn(Relay::with_options(
        a,
        b,
        RelayOptions::new().half_close_timeout(Duration::from_secs(30)),
    ));
    client.write_all(b"all I have to say").await?;
    client.shutdown().await?;
    let mut request = String::new();
    server.read_to_string(&mut request).await?;
    server.write_all(b"an answer").await?;
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    let summary = relay.await??;
    eprintln!("propagated: {request:?}, {answer:?}, {:?}", summary.end);

    // This suits protocols in which an end means that no peer waits any more. The first end ends
    // both directions, after they have delivered the bytes received by then.
    let ((client, a), (b, mut server)) = (pair().await?, pair().await?);
    let relay = tokio::spawn(Relay::with_options(
        a,
        b,
        RelayOptions::new().half_close(HalfClose::CloseBoth),
    ));
    server.write_all(b"news nobody asked for").await?;
    drop(client);
    match relay.await? {
        Ok(summary) => assert_eq!(summary.end, EndReason::Ended),
        // The client has closed its socket. The bytes that were sent to it may cause a reset.
        Err(error) => eprintln!("closed both: {error}: {}", error.source),
    }
    Ok(())
}

/// Returns the two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    Ok((connected, accepted.0))
}
