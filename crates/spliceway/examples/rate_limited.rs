//! A forwarder that limits all its clients together to a rate, and still splices:
//!
//! ```text
//! cargo run -p spliceway --example rate_limited -- 127.0.0.1:8080 example.com:80 1000000
//! ```

use std::io;
use std::time::Duration;

use spliceway::{RateLimit, Relay, RelayOptions};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, remote, rate] = &words[..] else {
        return Err(usage("three words, please"));
    };
    let rate: u64 = rate
        .parse()
        .map_err(|_| usage("the rate is a number of bytes per second"))?;
    if rate == 0 {
        return Err(usage("a rate of 0 lets nothing through"));
    }
    // One bucket limits both directions of every relay that is made with these options.
    let options = RelayOptions::new()
        .rate_limit(&RateLimit::new(rate))
        .idle_timeout(Duration::from_secs(300));
    let listener = TcpListener::bind(listen).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (client, from) = listener.accept().await?;
        let (remote, options) = (remote.clone(), options.clone());
        tokio::spawn(async move {
            match TcpStream::connect(&remote).await {
                Ok(upstream) => match Relay::with_options(client, upstream, options).await {
                    Ok(summary) => eprintln!("{from}: {:?}, {:?}", summary.end, summary.b_to_a),
                    Err(error) => eprintln!("{from}: {error}: {}", error.source),
                },
                Err(error) => eprintln!("{from}: {remote}: {error}"),
            }
        });
    }
}

fn usage(what: &str) -> io::Error {
    let message = format!("{what}\nusage: rate_limited LISTEN REMOTE BYTES_PER_SECOND");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
