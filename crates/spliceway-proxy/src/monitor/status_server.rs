//! Answers on the metrics listener: `/metrics`, `/healthz`, `/readyz`, and the status page if the
//! settings ask for it.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, VARY};
use hyper::{Method, Request, StatusCode};

use crate::kit::health::State;
use crate::metrics::Exposition;
use crate::monitor::http_server::{Answer, Answers, PLAIN, response, set};
use crate::monitor::overview::Overview;
use crate::monitor::status_page::StatusPage;

/// Answers scrapers, probes and browsers.
pub(super) struct StatusServer {
    pub(super) overview: Arc<Overview>,
    pub(super) page: Option<StatusPage>,
}

impl Answers for StatusServer {
    /// Prometheus also waits this long by default.
    const DEADLINE: Duration = Duration::from_secs(10);

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "use GET or HEAD\n");
            set(&mut refused, ALLOW, "GET, HEAD");
            return refused;
        }
        match (request.uri().path(), &self.page) {
            // This path does not check `Host`, unlike the status page: a scraper may use any name
            // of this machine, and a list of them would break scrapes.
            ("/metrics", _) => self.metrics(Exposition::accepted_by(request.headers())).await,
            ("/healthz", _) => response(StatusCode::OK, PLAIN, "alive\n"),
            ("/readyz", _) => self.readiness(),
            ("/" | "/status.json" | "/history.json", Some(page)) => page.answer(&request).await,
            (_, Some(_)) => not_found("try /, /metrics, /healthz or /readyz\n"),
            (_, None) => not_found("try /metrics, /healthz or /readyz\n"),
        }
    }
}

impl StatusServer {
    async fn metrics(&self, exposition: Exposition) -> Answer {
        let process = Arc::clone(&self.overview.process);
        // The kernel may take long to answer, and a worker must not wait.
        let of_kernel = tokio::task::spawn_blocking(move || process.metrics.process()).await;
        match self.overview.process.metrics.text(of_kernel.unwrap_or_default()).await {
            Ok(text) => {
                let mut answer = response(StatusCode::OK, exposition.content_type(), exposition.write(text));
                set(&mut answer, VARY, "Accept");
                answer
            }
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
        }
    }

    fn readiness(&self) -> Answer {
        match self.overview.process.health.state() {
            State::Serving if self.overview.is_ready() => response(StatusCode::OK, PLAIN, "ready\n"),
            State::Serving if self.overview.services().is_empty() => {
                response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "starting\n")
            }
            State::Serving => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "draining\n"),
            // The log and the admin socket say which part has failed. This listener has no login.
            state => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{}\n", state.name())),
        }
    }
}

fn not_found(text: &'static str) -> Answer {
    response(StatusCode::NOT_FOUND, PLAIN, text)
}
