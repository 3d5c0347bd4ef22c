//! Answers ACME servers that validate a name by HTTP (HTTP-01 of RFC 8555).

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use tokio::task::spawn_blocking;

use super::http_server::{Answer, Answers, PLAIN, response};
use crate::tls::acme::StateFolder;

/// What stands before the token in the path of a request.
const PREFIX: &str = "/.well-known/acme-challenge/";

/// Answers the requests for tokens of the tries that run. All others find nothing.
pub(super) struct ChallengeServer {
    folder: StateFolder,
}

impl ChallengeServer {
    pub(super) fn new(folder: StateFolder) -> Self {
        Self { folder }
    }
}

impl Answers for ChallengeServer {
    // A validation has a limit of 10 s or so.
    const DEADLINE: Duration = Duration::from_secs(10);

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let token = request.uri().path().strip_prefix(PREFIX).map(ToOwned::to_owned);
        let folder = self.folder.clone();
        let found = match token.filter(|_| request.method() == Method::GET) {
            Some(token) => spawn_blocking(move || folder.answer(&token).ok().flatten()).await,
            None => Ok(None),
        };
        match found {
            Ok(Some(answer)) => response(StatusCode::OK, PLAIN, answer),
            _ => response(StatusCode::NOT_FOUND, PLAIN, "nothing is here\n"),
        }
    }
}
