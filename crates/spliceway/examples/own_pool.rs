//! A service with its own pool of pipes and its own limits. Its pipes do not count towards the
//! limits of the pool that other services of the process share.

use std::io;

use spliceway::{Limits, PipePool, Relay, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The pool has at most 8 pipes. If a ninth direction has bulk data at the same time, it copies,
    // and the summary has the reason.
    let pool = PipePool::new(Limits::of_this_process().with_max_pipes(8));
    let mut relays = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let ((mut client, a), (b, mut server)) = (pair().await?, pair().await?);
        relays.spawn(Relay::with_options(a, b, RelayOptions::new().pool(&pool)));
        tokio::spawn(async move {
            client.write_all(&vec![7; 8 << 20]).await?;
            client.shutdown().await
        });
        tokio::spawn(async move {
            let mut nowhere = vec![0; 1 << 20];
            while server.read(&mut nowhere).await? > 0 {}
            io::Result::Ok(())
        });
    }
    while let Some(ended) = relays.join_next().await {
        let summary = ended??.a_to_b;
        eprintln!(
            "{} spliced, {} copied: {:?}",
            summary.spliced, summary.copied, summary.fallback
        );
    }
    eprintln!("{:#?}", pool.stats());
    Ok(())
}

/// Returns the two ends of a connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (connected, accepted) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
    Ok((connected, accepted.0))
}
