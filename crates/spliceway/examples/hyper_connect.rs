//! An HTTP proxy for CONNECT, on hyper, whose tunnels are spliced:
//! `cargo run -p spliceway --example hyper_connect -- 127.0.0.1:8080`, then
//! `curl --proxytunnel -x 127.0.0.1:8080 http://example.com/`.
//!
//! It connects whoever reaches it to whatever they ask for: not for an address that others can
//! reach.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use spliceway::{Relay, RelayOptions, upgraded};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// For a request's head, and for a target to accept.
const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> io::Result<()> {
    let Some(listen) = std::env::args().nth(1) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: hyper_connect LISTEN",
        ));
    };
    let listener = TcpListener::bind(&listen).await?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (client, from) = listener.accept().await?;
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(client), service_fn(connect))
                .with_upgrades();
            if let Err(error) = connection.await {
                eprintln!("{from}: {error}");
            }
        });
    }
}

/// The answer to one request. A tunnel begins when hyper has sent it.
async fn connect(mut request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let target = match (request.method(), request.uri().authority()) {
        (&Method::CONNECT, Some(target)) => target.to_string(),
        _ => return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, "CONNECT alone\n")),
    };
    match timeout(PATIENCE, TcpStream::connect(&target)).await {
        Ok(Ok(upstream)) => {
            tokio::spawn(tunnel(hyper::upgrade::on(&mut request), upstream, target));
            Ok(answer(StatusCode::OK, ""))
        }
        Ok(Err(error)) => Ok(answer(StatusCode::BAD_GATEWAY, &format!("{target}: {error}\n"))),
        Err(_) => Ok(answer(StatusCode::GATEWAY_TIMEOUT, &format!("{target}: no answer\n"))),
    }
}

async fn tunnel(client: OnUpgrade, upstream: TcpStream, target: String) {
    let options = RelayOptions::new().idle_timeout(SILENCE);
    let ended = match client.await.map(upgraded::into_tcp) {
        // What the client sent behind its request, without waiting for the answer, goes first.
        Ok(Ok((client, early))) => Relay::with_options(client, upstream, options.a_to_b_prefix(early)).await,
        // Not here, where every client is a TcpStream; behind TLS it would be, and copied.
        Ok(Err(client)) => Relay::with_options(TokioIo::new(client), upstream, options).await,
        Err(error) => return eprintln!("{target}: {error}"),
    };
    match ended {
        Ok(summary) => eprintln!("{target}: {:?}, {:?}", summary.end, summary.b_to_a),
        Err(error) => eprintln!("{target}: {error}: {}", error.source),
    }
}

fn answer(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    response
}
