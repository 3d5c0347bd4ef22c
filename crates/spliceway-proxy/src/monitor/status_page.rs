//! The status page: one HTML page with live charts, and the sums that it draws.
//!
//! The metrics listener has no login, so the page shows no client, no user and no target. A page of
//! another site cannot read it: no answer allows that, and the name of the host is checked.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, StatusCode};
use serde::Serialize;
use spliceway_operator::api::Status;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::monitor::history::Point;
use crate::monitor::http_server::{Answer, PLAIN, response, set};
use crate::monitor::overview::Overview;

const PAGE: &str = include_str!("status_page.html");
/// The place in [`PAGE`] of the number that allows its script and its style.
const NONCE: &str = "{nonce}";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// Answers browsers.
pub(super) struct StatusPage {
    /// The names by which browsers may reach the page, besides `localhost` and addresses.
    hosts: Vec<Box<str>>,
    overview: Arc<Overview>,
    sums: Cached,
    history: Cached,
}

/// An answer that is written once per second at most, for all readers.
#[derive(Default)]
struct Cached(Mutex<Option<(Instant, Bytes)>>);

/// The sums of one second.
#[derive(Serialize)]
struct Sums {
    #[serde(flatten)]
    status: Status,
    /// The last second of the charts.
    point: Option<Point>,
}

impl Cached {
    /// Returns the answer of this second. Other readers wait while one of them lets it be written,
    /// and their workers do other work.
    async fn of(&self, second: Option<Instant>, write: impl Future<Output = Vec<u8>>) -> Bytes {
        let mut cached = self.0.lock().await;
        match (&*cached, second) {
            (Some((at, json)), Some(second)) if *at == second => json.clone(),
            _ => {
                let json = Bytes::from(write.await);
                *cached = second.map(|second| (second, json.clone()));
                json
            }
        }
    }
}

impl StatusPage {
    pub(super) fn new(hosts: Vec<Box<str>>, overview: Arc<Overview>) -> Self {
        Self {
            hosts,
            overview,
            sums: Cached::default(),
            history: Cached::default(),
        }
    }

    pub(super) async fn answer<B>(&self, request: &Request<B>) -> Answer {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| is_own(host, &self.hosts)) {
            let why = "the status page has another name: use an address, localhost, or a name of --status-host\n";
            return response(StatusCode::MISDIRECTED_REQUEST, PLAIN, why);
        }
        let mut answer = match request.uri().path() {
            "/" => page(),
            "/history.json" => json(self.history().await),
            _ => json(self.sums().await),
        };
        set(&mut answer, CACHE_CONTROL, "no-store");
        set(&mut answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(&mut answer, REFERRER_POLICY, "no-referrer");
        answer
    }

    async fn sums(&self) -> Bytes {
        let write = async {
            let sums = Sums {
                status: self.overview.aggregates().await,
                point: self.overview.last_point(),
            };
            written(&sums)
        };
        self.sums.of(self.overview.sampled(), write).await
    }

    async fn history(&self) -> Bytes {
        let write = async { written(&self.overview.points()) };
        self.history.of(self.overview.sampled(), write).await
    }
}

fn json(body: Bytes) -> Answer {
    response(StatusCode::OK, JSON, body)
}

fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("these types have only text and numbers")
}

fn page() -> Answer {
    // Two values of the system's random keys. Nobody else can put text into the page, so the number
    // need not withstand an attack.
    let random = || RandomState::new().hash_one(0);
    let nonce = format!("{:016x}{:016x}", random(), random());
    let mut answer = response(StatusCode::OK, HTML, PAGE.replace(NONCE, &nonce));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    set(&mut answer, CONTENT_SECURITY_POLICY, &policy);
    answer
}

/// Returns whether `host` is a name of this page. A site that lets its own name point to this
/// machine must not read the page, and only names can be pointed.
fn is_own(host: &str, names: &[Box<str>]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(ipv6) => ipv6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is = |own: &str| own.eq_ignore_ascii_case(name.trim_end_matches('.'));
    name.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|own| is(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_localhost_and_given_names_are_own() {
        let names = ["status.example.com".into()];
        for host in [
            "127.0.0.1:9100",
            "192.0.2.1",
            "[::1]:9100",
            "[::1]",
            "LOCALHOST:1",
            "Status.Example.com:80",
        ] {
            assert!(is_own(host, &names), "{host}");
        }
        for host in [
            "",
            "example.com",
            "127.0.0.1.example.com",
            "localhost.example.com",
            "[example.com]",
            ":80",
        ] {
            assert!(!is_own(host, &names), "{host}");
        }
    }

    #[test]
    fn the_page_has_no_outside_resource_and_each_part_has_the_nonce() {
        assert_eq!(PAGE.matches(NONCE).count(), 2);
        assert_eq!(PAGE.matches("<script").count() + PAGE.matches("<style").count(), 2);
        for outside in [
            "http://",
            "https://",
            "src=",
            "url(",
            " style=",
            "onclick=",
            "innerHTML",
        ] {
            let found = PAGE.replace("http://www.w3.org/2000/svg", "").contains(outside);
            assert!(!found, "{outside}");
        }
    }
}
