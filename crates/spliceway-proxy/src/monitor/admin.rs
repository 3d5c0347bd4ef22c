//! The admin socket: HTTP and JSON on a Unix socket, for the operator of this program.

mod answer;
mod query;
mod services;
pub(crate) mod view;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL};
use hyper::{Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spliceway_operator::api::{Reply, SessionPage, UserPage};
use tokio::time::Instant;

use crate::monitor::control::{Control, Order};
use crate::monitor::http_server::{Answer, Answers, set};
use crate::monitor::overview::Overview;
use crate::reach::balance::WEIGHT_MAX;
use crate::session::Session;
use crate::settings::config::LogLevelArg;
use answer::{Answered, Failed, decoded, json, no_service, ok};
use query::{Query, UserQuery};

/// The longest body of a request. A body is a log level or a weight.
const BODY_MAX_BYTES: usize = 4 << 10;
const PATHS: &str = "/v1/status, /v1/sessions, /v1/sessions/ID, /v1/users, /v1/users/NAME/reset, /v1/services, /v1/services/NAME, /v1/services/NAME/drain, /v1/services/NAME/backends/BACKEND, /v1/services/NAME/backends/BACKEND/weight, /v1/log-level, /v1/reopen, /v1/reload or /v1/upgrade";
const LEVELS: &str = "off, error, warn, info, debug or trace";

/// Answers the operator.
pub(super) struct Admin {
    pub(super) overview: Arc<Overview>,
    pub(super) control: Control,
}

/// The body of `/v1/log-level`.
#[derive(Serialize, Deserialize)]
struct Level {
    level: String,
}

/// The body of `/v1/services/NAME/backends/BACKEND/weight`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weight {
    // Without this, a body without the key would mean null.
    #[serde(deserialize_with = "Option::deserialize")]
    weight: Option<u32>,
}

impl Answers for Admin {
    /// An upgrade waits for a new process to start.
    const DEADLINE: Duration = Duration::from_secs(60);

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let answered = self.route(request).await;
        let mut answer = answered.unwrap_or_else(|Failed(status, why)| json(status, &Reply::Error(why)));
        set(&mut answer, CACHE_CONTROL, "no-store");
        answer
    }
}

impl Admin {
    async fn route(&self, request: Request<Incoming>) -> Answered {
        let (head, body) = request.into_parts();
        let path: Vec<&str> = head.uri.path().trim_start_matches('/').split('/').collect();
        match (&head.method, &path[..]) {
            (&Method::GET, ["v1", "status"]) => ok(&self.overview.status().await),
            (&Method::GET, ["v1", "sessions"]) => self.list(head.uri.query().unwrap_or_default()).await,
            (&Method::GET, ["v1", "sessions", id]) => {
                let session = self.find(id).await?;
                ok(&view::session(&session, Instant::now()))
            }
            (&Method::DELETE, ["v1", "sessions", id]) => self.close(id).await,
            (&Method::GET, ["v1", "users"]) => self.users(head.uri.query().unwrap_or_default()),
            (&Method::POST, ["v1", "users", user, "reset"]) => self.reset(user),
            (&Method::GET, ["v1", "services"]) => services::list(&self.overview),
            (&Method::PATCH, ["v1", "services"]) => services::change_all(&self.control, &head, body).await,
            (&Method::GET, ["v1", "services", name]) => services::show(&self.overview, name),
            (&Method::PUT | &Method::PATCH | &Method::DELETE, ["v1", "services", name]) => {
                services::change_one(&self.control, &head, name, body).await
            }
            (&Method::PUT | &Method::DELETE, ["v1", "services", name, "backends", backend]) => {
                services::change_backend(&self.control, &head, name, backend).await
            }
            (&Method::POST, ["v1", "services", name, "drain"]) => self.drain(name).await,
            (&Method::PUT, ["v1", "services", name, "backends", backend, "weight"]) => {
                self.set_weight(name, backend, body).await
            }
            (&Method::GET, ["v1", "log-level"]) => Ok(level()),
            (&Method::PUT, ["v1", "log-level"]) => set_level(body).await,
            (&Method::POST, ["v1", "reload"]) => match head.uri.query() {
                None => self.order(Order::Reload { end_sessions: false }).await,
                Some("end-sessions") => self.order(Order::Reload { end_sessions: true }).await,
                Some(_) => {
                    let why = "the only query of a reload is `end-sessions`".to_owned();
                    Err(Failed(StatusCode::BAD_REQUEST, why))
                }
            },
            (&Method::POST, ["v1", "reopen"]) => match crate::log::reopen().await {
                Ok(done) => ok(&Reply::Done(done)),
                Err(why) => Err(Failed(StatusCode::CONFLICT, why)),
            },
            (&Method::POST, ["v1", "upgrade"]) => self.order(Order::Upgrade).await,
            (_, path) => refuse(path),
        }
    }

    /// Lists sessions.
    async fn list(&self, query: &str) -> Answered {
        let query = Query::parse(query).map_err(|wrong| Failed(StatusCode::BAD_REQUEST, wrong))?;
        let (now, mut page) = (Instant::now(), SessionPage::default());
        let visit = |slot, session: &Arc<Session>| {
            if !query.selects(session) {
                return ControlFlow::Continue(());
            }
            if page.sessions.len() == query.limit {
                return ControlFlow::Break(slot);
            }
            page.sessions.push(view::session(session, now));
            ControlFlow::Continue(())
        };
        let sessions = &self.overview.process.sessions;
        page.next = sessions.visit(query.after, visit).await.break_value();
        ok(&page)
    }

    async fn find(&self, id: &str) -> Result<Arc<Session>, Failed> {
        let found = match id.parse() {
            Ok(id) => self.overview.process.sessions.find(id).await,
            Err(_) => None,
        };
        found.ok_or_else(|| {
            let why = format!("no session {} is open", id.escape_debug());
            Failed(StatusCode::NOT_FOUND, why)
        })
    }

    async fn close(&self, id: &str) -> Answered {
        let session = self.find(id).await?;
        if session.close() {
            tracing::info!(
                session = session.id,
                service = &*session.service,
                "admin: closes a session"
            );
        }
        let what = format!("session {} is closing", session.id);
        Ok(json(StatusCode::ACCEPTED, &Reply::Done(what)))
    }

    /// Lists users with limits, in the order of their names.
    fn users(&self, query: &str) -> Answered {
        let query = UserQuery::parse(query).map_err(|wrong| Failed(StatusCode::BAD_REQUEST, wrong))?;
        let mut users = self.overview.process.accounts.statuses(&query.after, query.limit + 1);
        let has_more = users.len() > query.limit;
        users.truncate(query.limit);
        let next = users.last().filter(|_| has_more).map(|last| last.user.clone());
        ok(&UserPage { users, next })
    }

    /// Sets what a user has used to 0.
    fn reset(&self, user: &str) -> Answered {
        let user = decoded(user);
        let Some(was) = self.overview.process.accounts.reset(&user) else {
            let why = format!("there is no user `{}` with a limit", user.escape_debug());
            return Err(Failed(StatusCode::NOT_FOUND, why));
        };
        tracing::info!(%user, %was, "admin: resets what a user has used");
        let what = format!("reset {user}: was {was}");
        ok(&Reply::Done(what))
    }

    async fn drain(&self, name: &str) -> Answered {
        let (name, services) = (decoded(name), self.overview.services());
        let mut names = services.iter().map(|served| &served.service.name);
        match names.find(|one| ***one == *name) {
            Some(name) => self.order(Order::Drain(Arc::clone(name))).await,
            None => Err(no_service(&name)),
        }
    }

    async fn set_weight(&self, service: &str, backend: &str, body: Incoming) -> Answered {
        let wrong = || {
            let why = format!("expected {{\"weight\": N}}, where N is from 0 to {WEIGHT_MAX}, or null");
            Failed(StatusCode::BAD_REQUEST, why)
        };
        let Weight { weight } = read(body).await.ok_or_else(wrong)?;
        if weight.is_some_and(|weight| weight > WEIGHT_MAX) {
            return Err(wrong());
        }
        if self.overview.is_draining() {
            let why = "the program ends: another process may already choose the backends".to_owned();
            return Err(Failed(StatusCode::CONFLICT, why));
        }
        let (service, backend) = (decoded(service), decoded(backend));
        let services = self.overview.services();
        let mut served = services.iter().filter(|served| *served.service.name == *service);
        let served = served.next().ok_or_else(|| no_service(&service))?;
        let balancer = served.service.balancer.as_ref();
        if !balancer.is_some_and(|balancer| balancer.set_weight(&backend, weight)) {
            let why = format!(
                "service `{}` has no backend `{}`",
                service.escape_debug(),
                backend.escape_debug()
            );
            return Err(Failed(StatusCode::NOT_FOUND, why));
        }
        let what = match weight {
            Some(weight) => format!("backend {backend} has the weight {weight}"),
            None => format!("backend {backend} has the weight of the configuration"),
        };
        tracing::info!(service = &*service, "admin: {what}");
        ok(&Reply::Done(what))
    }

    async fn order(&self, order: Order) -> Answered {
        let done = self.control.order(order).await?;
        ok(&Reply::Done(done.text))
    }
}

/// Returns the body of a request, or `None` if it is too long or malformed.
async fn read<T: DeserializeOwned>(body: Incoming) -> Option<T> {
    let body = Limited::new(body, BODY_MAX_BYTES).collect().await.ok()?;
    serde_json::from_slice(&body.to_bytes()).ok()
}

fn level() -> Answer {
    let level = crate::log::level();
    json(StatusCode::OK, &Level { level })
}

async fn set_level(body: Incoming) -> Answered {
    let wrong = || {
        let why = format!("expected {{\"level\": LEVEL}}, where LEVEL is {LEVELS}");
        Failed(StatusCode::BAD_REQUEST, why)
    };
    let asked: Level = read(body).await.ok_or_else(wrong)?;
    let asked = LogLevelArg::from_str(&asked.level, true).map_err(|_| wrong())?;
    if !crate::log::set_level(asked.into()) {
        let why = "the log of this program has no level to change".to_owned();
        return Err(Failed(StatusCode::INTERNAL_SERVER_ERROR, why));
    }
    tracing::info!(level = crate::log::level(), "admin: sets the log level");
    Ok(level())
}

/// Refuses a request: the path is unknown, or has other methods.
fn refuse(path: &[&str]) -> Answered {
    let methods = match path {
        ["v1", "status" | "sessions" | "users"] => "GET",
        ["v1", "services"] => "GET, PATCH",
        ["v1", "services", _] => "GET, PUT, PATCH, DELETE",
        ["v1", "services", _, "backends", _] => "PUT, DELETE",
        ["v1", "sessions", _] => "GET, DELETE",
        ["v1", "services", _, "drain"] | ["v1", "users", _, "reset"] | ["v1", "reload" | "reopen" | "upgrade"] => {
            "POST"
        }
        ["v1", "services", _, "backends", _, "weight"] => "PUT",
        ["v1", "log-level"] => "GET, PUT",
        _ => {
            let why = format!("there is nothing at this path: use {PATHS}");
            return Err(Failed(StatusCode::NOT_FOUND, why));
        }
    };
    let why = Reply::Error(format!("this path has the methods {methods}"));
    let mut answer = json(StatusCode::METHOD_NOT_ALLOWED, &why);
    set(&mut answer, ALLOW, methods);
    Ok(answer)
}
