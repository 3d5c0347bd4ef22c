//! Shows the state, sessions and users. Ends sessions.

use std::ops::ControlFlow;
use std::sync::Arc;

use hyper::StatusCode;
use spliceway_operator::api::{Reply, SessionPage, UserPage};
use tokio::time::Instant;

use super::answer::{Answered, Failed, json, long, ok};
use super::query::{Query, UserQuery};
use super::route::{Context, Request};
use super::view;
use crate::session::Session;

pub(super) async fn status(context: &Context, _: &Request) -> Answered {
    let status = context.overview.status().await;
    long(move || status).await
}

/// Lists sessions.
pub(super) async fn list(context: &Context, request: &Request) -> Answered {
    let query = Query::parse(request.query()).map_err(|wrong| Failed(StatusCode::BAD_REQUEST, wrong))?;
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
    let sessions = &context.overview.process.sessions;
    page.next = sessions.visit(query.after, visit).await.break_value();
    ok(&page)
}

pub(super) async fn show(context: &Context, request: &Request) -> Answered {
    let session = find(context, request).await?;
    ok(&view::session(&session, Instant::now()))
}

pub(super) async fn close(context: &Context, request: &Request) -> Answered {
    let session = find(context, request).await?;
    if session.close() {
        tracing::info!(
            session = session.id,
            service = &*session.service,
            "admin: closes a session{}",
            request.by
        );
    }
    let what = format!("session {} is closing", session.id);
    Ok(json(StatusCode::ACCEPTED, &Reply::Done(what)))
}

async fn find(context: &Context, request: &Request) -> Result<Arc<Session>, Failed> {
    let id = &request.names[0];
    let found = match id.parse() {
        Ok(id) => context.overview.process.sessions.find(id).await,
        Err(_) => None,
    };
    found.ok_or_else(|| {
        let why = format!("no session {} is open", id.escape_debug());
        Failed(StatusCode::NOT_FOUND, why)
    })
}

/// Lists users with limits, in the order of their names.
pub(super) async fn users(context: &Context, request: &Request) -> Answered {
    let query = UserQuery::parse(request.query()).map_err(|wrong| Failed(StatusCode::BAD_REQUEST, wrong))?;
    let accounts = &context.overview.process.accounts;
    let mut users = accounts.statuses(&query.after, query.limit + 1);
    let has_more = users.len() > query.limit;
    users.truncate(query.limit);
    let next = users.last().filter(|_| has_more).map(|last| last.user.clone());
    ok(&UserPage { users, next })
}

/// Sets what a user has used to 0.
pub(super) async fn reset(context: &Context, request: &Request) -> Answered {
    let user = &request.names[0];
    let Some(was) = context.overview.process.accounts.reset(user) else {
        let why = format!("there is no user `{}` with a limit", user.escape_debug());
        return Err(Failed(StatusCode::NOT_FOUND, why));
    };
    tracing::info!(%user, %was, "admin: resets what a user has used{}", request.by);
    ok(&Reply::Done(format!("reset {user}: was {was}")))
}
