//! Sends standard input through a proxy with tokio-socks, and writes the reply to standard output.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;

use tokio::io::{self, AsyncReadExt, AsyncWriteExt};
use tokio_socks::tcp::{Socks4Stream, Socks5Stream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [kind, proxy_host, proxy_port, user, password, host, port] = words.as_slice() else {
        return Err("expected: KIND PROXY-HOST PROXY-PORT USER PASSWORD HOST PORT".into());
    };
    let proxy = (proxy_host.as_str(), proxy_port.parse()?);
    let target = (host.as_str(), port.parse()?);
    let mut stream = match (kind.as_str(), user.as_str()) {
        ("socks4", "") => Socks4Stream::connect(proxy, target).await?.into_inner(),
        ("socks4", user) => Socks4Stream::connect_with_userid(proxy, target, user)
            .await?
            .into_inner(),
        ("socks5", "") => Socks5Stream::connect(proxy, target).await?.into_inner(),
        ("socks5", user) => Socks5Stream::connect_with_password(proxy, target, user, password)
            .await?
            .into_inner(),
        (other, _) => return Err(format!("tokio-socks does not speak {other}").into()),
    };
    let mut upload = Vec::new();
    io::stdin().read_to_end(&mut upload).await?;
    stream.write_all(&upload).await?;
    stream.shutdown().await?;
    let mut output = io::stdout();
    io::copy(&mut stream, &mut output).await?;
    output.flush().await?;
    Ok(())
}
