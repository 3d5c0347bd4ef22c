//! Reads the counts of a relay while it runs, and prints how many bytes it spliced and copied.

use std::io;
use std::time::Duration;

use spliceway::{EndReason, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ((mut client, mut a), (mut b, mut server)) = (pair().await?, pair().await?);
    let relay = Relay::new(&mut a, &mut b);
    let stats = relay.stats();

    let sender = tokio::spawn(async move {
        let block = vec![7; 1 << 20];
        for _ in 0..2048 {
            client.write_all(&block).await?;
        }
        client.shutdown().await
    });
    let receiver = tokio::spawn(async move {
        let mut nowhere = vec![0; 1 << 20];
        while server.read(&mut nowhere).await? > 0 {}
        io::Result::Ok(())
    });
    let watcher = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(100));
        while stats.snapshot().end == EndReason::Running {
            every.tick().await;
            eprintln!("{:>12} bytes so far", stats.snapshot().a_to_b.bytes);
        }
    });

    let summary = relay.await?.a_to_b;
    eprintln!(
        "{} bytes: {} spliced, {} copied",
        summary.bytes, summary.spliced, summary.copied
    );
    sender.await??;
    receiver.await??;
    watcher.await?;
    Ok(())
}

/// Returns the two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    Ok((connected, accepted.0))
}
