//! Serves `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;

use super::Metrics;
use crate::admission::{Admission, Permit};
use crate::listener::{self, Accepted, Listener};

/// Scrapers are few; more than this at once is a mistake or an attack, and the rest waits.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request's head, and how long a kept connection may wait for the next one: longer than usual scrape intervals.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest head of a request: these need a line and a few fields.
const HEAD_MAX_BYTES: usize = 16 << 10;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Answers until the process ends; while it drains, too, so that its last counts can be read.
pub(crate) async fn serve(listener: Listener, metrics: Arc<Metrics>, draining: watch::Receiver<bool>) {
    let admission = Admission::new("scrapers", CONNECTIONS_MAX, None);
    let serve = |accepted: Accepted, permit: Permit| {
        let (metrics, draining) = (Arc::clone(&metrics), draining.clone());
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let response = answer(&request, &metrics, *draining.borrow());
                async { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_MAX_BYTES)
                .serve_connection(TokioIo::new(accepted.stream), answer);
            // A scraper that goes away in the middle is its own affair.
            let _ = connection.await;
            drop(permit);
        });
    };
    listener::accept(listener, &admission, &metrics, std::future::pending(), serve).await;
}

fn answer<B>(request: &Request<B>, metrics: &Metrics, draining: bool) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET or HEAD\n");
        refused
            .headers_mut()
            .insert(ALLOW, "GET, HEAD".parse().expect("a constant"));
        return refused;
    }
    match (request.uri().path(), draining) {
        ("/metrics", _) => match metrics.text() {
            Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
        },
        ("/healthz", _) => response(StatusCode::OK, PLAIN, "alive\n"),
        ("/readyz", false) => response(StatusCode::OK, PLAIN, "ready\n"),
        ("/readyz", true) => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "draining\n"),
        _ => response(StatusCode::NOT_FOUND, PLAIN, "/metrics, /healthz or /readyz\n"),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, content_type.parse().expect("a constant"));
    response
}
