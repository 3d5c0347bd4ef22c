//! An HTTP CONNECT proxy on hyper, whose tunnels are spliced. Run the proxy and a client:
//!
//! ```text
//! cargo run -p spliceway --example hyper_connect -- 127.0.0.1:8080
//! curl --proxytunnel -x 127.0.0.1:8080 http://example.com/
//! ```
//!
//! The proxy connects every client to every target. Do not listen on an address that strangers can
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

/// The time limit for a request's head, and for the connection to a target.
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

/// Answers one request. A tunnel begins when hyper has sent the answer.
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
        // Bytes that the client sent after its request, without waiting for the answer, go first.
        Ok(Ok((client, early))) => Relay::with_options(client, upstream, options.a_to_b_prefix(early)).await,
        // This does not happen here, because every client is a `TcpStream`. With TLS it would, and
        // the relay would copy.
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
