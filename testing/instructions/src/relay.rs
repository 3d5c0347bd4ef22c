//! The relays whose instructions are counted. None reads its own clock, because a slow run would
//! see more clock ticks.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use spliceway::{Relay, RelayOptions};
use tokio::net::{TcpListener, TcpStream};

/// How sessions are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// With `copy_bidirectional`.
    Spliceway,
    /// With a `Relay` that has an idle and a half-close timeout.
    Timeouts,
}

/// Relays one session after the other, on one thread. Prints the address that it listens on.
#[expect(clippy::print_stdout, reason = "the parent reads the address from it")]
pub(crate) fn serve(kind: Kind, upstream: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (client, _) = listener.accept().await?;
            tokio::spawn(async move {
                // A session that ends in an error causes a wrong count at the load, which reports
                // the error.
                let _ = session(kind, client, upstream).await;
            });
        }
    })
}

async fn session(kind: Kind, mut client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
    let mut upstream = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    match kind {
        Kind::Spliceway => spliceway::copy_bidirectional(&mut client, &mut upstream)
            .await
            .map(drop),
        Kind::Timeouts => {
            let options = RelayOptions::new()
                .idle_timeout(Duration::from_secs(300))
                .half_close_timeout(Duration::from_secs(30));
            Relay::with_options(client, upstream, options)
                .await
                .map(drop)
                .map_err(io::Error::from)
        }
    }
}
