//! Commands for the running program: its log, drains, weights, reloads and upgrades.

use std::sync::Arc;

use clap::ValueEnum;
use hyper::StatusCode;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use spliceway_operator::api::Reply;

use super::answer::{Answered, Failed, no_service, ok};
use super::query::flags;
use super::route::{Context, Request};
use crate::monitor::control::{By, Order};
use crate::reach::balance::WEIGHT_MAX;
use crate::settings::config::LogLevelArg;

const LEVELS: &str = "off, error, warn, info, debug or trace";

/// The body of `/v1/log-level`.
#[derive(Serialize, Deserialize, JsonSchema)]
pub(super) struct Level {
    #[schemars(schema_with = "levels")]
    level: String,
}

/// The body of `/v1/services/NAME/backends/BACKEND/weight`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Weight {
    /// `null` is the weight of the configuration.
    // Without this, a body without the key would mean null.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schemars(range(max = WEIGHT_MAX))]
    weight: Option<u32>,
}

fn levels(_: &mut SchemaGenerator) -> Schema {
    let levels = LogLevelArg::value_variants().iter();
    let names = levels.filter_map(|level| Some(level.to_possible_value()?.get_name().to_owned()));
    json_schema!({"type": "string", "enum": names.collect::<Vec<_>>()})
}

pub(super) async fn drain(context: &Context, request: &Request) -> Answered {
    let (name, services) = (&*request.names[0], context.overview.services());
    let mut names = services.iter().map(|served| &served.service.name);
    match names.find(|one| ***one == *name) {
        Some(name) => order(context, request, Order::Drain(Arc::clone(name))).await,
        None => Err(no_service(name)),
    }
}

pub(super) async fn set_weight(context: &Context, request: &Request) -> Answered {
    let wrong = || {
        let why = format!("expected {{\"weight\": N}}, where N is from 0 to {WEIGHT_MAX}, or null");
        Failed(StatusCode::BAD_REQUEST, why)
    };
    let Weight { weight } = serde_json::from_slice(&request.body).map_err(|_| wrong())?;
    if weight.is_some_and(|weight| weight > WEIGHT_MAX) {
        return Err(wrong());
    }
    if context.overview.is_draining() {
        let why = "the program ends: another process may already choose the backends".to_owned();
        return Err(Failed(StatusCode::CONFLICT, why));
    }
    let (service, backend) = (&*request.names[0], &*request.names[1]);
    let services = context.overview.services();
    let mut served = services.iter().filter(|served| *served.service.name == *service);
    let served = served.next().ok_or_else(|| no_service(service))?;
    let balancer = served.service.balancer.as_ref();
    if !balancer.is_some_and(|balancer| balancer.set_weight(backend, weight)) {
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
    tracing::info!(service, "admin: {what}{}", request.by);
    ok(&Reply::Done(what))
}

pub(super) async fn level(_: &Context, _: &Request) -> Answered {
    ok(&Level {
        level: crate::log::level(),
    })
}

pub(super) async fn set_level(context: &Context, request: &Request) -> Answered {
    let wrong = || {
        let why = format!("expected {{\"level\": LEVEL}}, where LEVEL is {LEVELS}");
        Failed(StatusCode::BAD_REQUEST, why)
    };
    let Level { level: new } = serde_json::from_slice(&request.body).map_err(|_| wrong())?;
    let new = LogLevelArg::from_str(&new, true).map_err(|_| wrong())?;
    if !crate::log::set_level(new.into()) {
        let why = "the log of this program has no level to change".to_owned();
        return Err(Failed(StatusCode::INTERNAL_SERVER_ERROR, why));
    }
    tracing::info!(level = crate::log::level(), "admin: sets the log level{}", request.by);
    level(context, request).await
}

pub(super) async fn reload(context: &Context, request: &Request) -> Answered {
    let flags = flags(request.query(), ["end-sessions"]);
    let [end_sessions] = flags.map_err(|wrong| Failed(StatusCode::BAD_REQUEST, wrong))?;
    order(context, request, Order::Reload { end_sessions }).await
}

pub(super) async fn reopen(_: &Context, request: &Request) -> Answered {
    let done = crate::log::reopen().await;
    let done = done.map_err(|why| Failed(StatusCode::CONFLICT, why))?;
    // The log says itself that the file was opened.
    if request.by != By::default() {
        tracing::info!("admin: {done}{}", request.by);
    }
    ok(&Reply::Done(done))
}

pub(super) async fn upgrade(context: &Context, request: &Request) -> Answered {
    order(context, request, Order::Upgrade).await
}

async fn order(context: &Context, request: &Request, order: Order) -> Answered {
    let done = context.control.order(order, request.by.clone()).await?;
    ok(&Reply::Done(done.text))
}
