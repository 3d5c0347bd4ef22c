//! A request that ends, and an answer that is still to come: what the end of one side means is the
//! caller's choice.

use std::io;
use std::time::Duration;

use spliceway::{EndReason, HalfClose, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As TCP means it: the server gets the end of the request, and answers.
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

    // Where an end means that nobody waits any more: the first one ends both directions, with what
    // was received by then.
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
        // The client is gone altogether: what was on its way to it may come back as a reset.
        Err(error) => eprintln!("closed both: {error}: {}", error.source),
    }
    Ok(())
}

/// Two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    Ok((connected, accepted.0))
}
