//! A minimal TCP forwarder:
//!
//! ```text
//! cargo run -p spliceway --example simple_forward -- 127.0.0.1:8080 example.com:80
//! ```

use std::io;

use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> io::Result<()> {
    let (Some(listen), Some(remote)) = (std::env::args().nth(1), std::env::args().nth(2)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: simple_forward LISTEN REMOTE",
        ));
    };
    let listener = TcpListener::bind(&listen).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (mut client, from) = listener.accept().await?;
        let remote = remote.clone();
        tokio::spawn(async move {
            let relayed = async {
                let mut upstream = TcpStream::connect(&remote).await?;
                spliceway::copy_bidirectional(&mut client, &mut upstream).await
            };
            match relayed.await {
                Ok((up, down)) => eprintln!("{from}: {up} bytes up, {down} down"),
                Err(error) => eprintln!("{from}: {error}"),
            }
        });
    }
}
