//! The admin sockets: HTTP and JSON on a Unix socket, for the operator of this program.

mod access;
mod answer;
mod openapi;
mod orders;
mod query;
mod route;
mod routes;
mod services;
mod sessions;
pub(super) mod view;

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, WWW_AUTHENTICATE};
use spliceway_operator::api::Reply;

use crate::monitor::control::Control;
use crate::monitor::http_server::{Answer, Answers, set};
use crate::monitor::overview::Overview;
pub(super) use access::Access;
use answer::{Answered, Failed, json};
pub(crate) use openapi::openapi;
use route::{Context, Found, Request, find};
use routes::ROUTES;

/// Answers the operator.
pub(super) struct Admin {
    context: Context,
    access: Access,
}

impl Answers for Admin {
    /// An upgrade waits for a new process to start.
    const DEADLINE: Duration = Duration::from_secs(60);

    async fn answer(&self, request: hyper::Request<Incoming>) -> Answer {
        let answered = self.route(request).await;
        let mut answer = answered.unwrap_or_else(|Failed(status, why)| json(status, &Reply::Error(why)));
        set(&mut answer, CACHE_CONTROL, "no-store");
        match answer.status() {
            StatusCode::UNAUTHORIZED => set(&mut answer, WWW_AUTHENTICATE, "Bearer"),
            StatusCode::FORBIDDEN => set(&mut answer, WWW_AUTHENTICATE, "Bearer error=\"insufficient_scope\""),
            _ => {}
        }
        answer
    }
}

impl Admin {
    pub(super) fn new(overview: Arc<Overview>, control: Control, access: Access) -> Self {
        Self {
            context: Context { overview, control },
            access,
        }
    }

    async fn route(&self, request: hyper::Request<Incoming>) -> Answered {
        let (head, body) = request.into_parts();
        let found = find(&ROUTES, head.method.as_str(), head.uri.path());
        let scope = match &found {
            Found::Route(route, _) => Some(route.scope),
            Found::Methods(_) | Found::Nothing => None,
        };
        let check = || self.access.check(&head.headers, scope, &self.context.overview);
        check()?;
        let (route, names) = match found {
            Found::Route(route, names) => (route, names.into_iter().map(Into::into).collect()),
            Found::Methods(methods) => return Ok(other_methods(&methods)),
            Found::Nothing => return Err(no_path()),
        };
        let body = route.body.read(body).await?;
        // The token may have been removed while the body arrived.
        let by = check()?;
        let request = Request { head, names, body, by };
        (route.run)(&self.context, &request).await
    }
}

fn no_path() -> Failed {
    let mut paths: Vec<_> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    let why = format!("there is nothing at this path: use {}", paths.join(", "));
    Failed(StatusCode::NOT_FOUND, why)
}

fn other_methods(methods: &[&str]) -> Answer {
    let methods = methods.join(", ");
    let why = Reply::Error(format!("this path has the methods {methods}"));
    let mut answer = json(StatusCode::METHOD_NOT_ALLOWED, &why);
    set(&mut answer, ALLOW, &methods);
    answer
}
