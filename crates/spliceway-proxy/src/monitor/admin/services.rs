//! Shows services, and changes them.

use std::collections::BTreeMap;

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use serde_json::{Map, Value as Json};
use spliceway_operator::api::{ListedService, Reply, ServiceList};

use super::answer::{Answered, Failed, json, long, no_service};
use super::query::flags;
use super::route::{Context, Request};
use crate::monitor::control::{Done, Order};
use crate::monitor::http_server::set;
use crate::settings::given::version;
use crate::settings::{Change, Condition, Edit, Place, Shown};

const EXPECTED: &str =
    r#"expected a JSON object with the keys of a service, such as {"kind": "forward", "listen": ":80", "to": "a:80"}"#;
const EXPECTED_ALL: &str = r#"expected a JSON object with the tables of services by their names, such as {"web": {"to": "a:80"}, "old": null}"#;

/// Lists all services with their tables.
pub(super) async fn list(context: &Context, _: &Request) -> Answered {
    let settings = context.overview.settings();
    long(move || {
        let services = settings.iter().flat_map(|settings| {
            let all = settings.services.iter();
            all.map(|service| listed(&service.name, settings.show(service)))
        });
        ServiceList {
            services: services.collect(),
        }
    })
    .await
}

/// Shows the table of one service.
pub(super) async fn show(context: &Context, request: &Request) -> Answered {
    let name = &request.names[0];
    let shown = context.overview.settings().and_then(|settings| settings.shown(name));
    let shown = shown.ok_or_else(|| no_service(name))?;
    let mut answer = json(StatusCode::OK, &shown.table);
    set(&mut answer, ETAG, &version(&shown.table));
    Ok(answer)
}

pub(super) async fn put(context: &Context, request: &Request) -> Answered {
    change_one(context, request, Edit::Put(object(request, EXPECTED)?)).await
}

pub(super) async fn merge(context: &Context, request: &Request) -> Answered {
    change_one(context, request, Edit::Merge(object(request, EXPECTED)?)).await
}

pub(super) async fn remove(context: &Context, request: &Request) -> Answered {
    change_one(context, request, Edit::Remove).await
}

pub(super) async fn add_backend(context: &Context, request: &Request) -> Answered {
    change_one(context, request, Edit::AddBackend(request.names[1].clone())).await
}

pub(super) async fn remove_backend(context: &Context, request: &Request) -> Answered {
    change_one(context, request, Edit::RemoveBackend(request.names[1].clone())).await
}

async fn change_one(context: &Context, request: &Request, edit: Edit) -> Answered {
    change(context, request, [(request.names[0].clone(), edit)].into()).await
}

/// Changes any number of services, all of them or none.
pub(super) async fn change_all(context: &Context, request: &Request) -> Answered {
    let edits = object(request, EXPECTED_ALL)?.into_iter().map(|(name, table)| {
        let edit = match table {
            Json::Null => Edit::RemoveAny,
            Json::Object(table) => Edit::MergeOrAdd(table),
            _ => return Err(bad(EXPECTED_ALL)),
        };
        Ok((name, edit))
    });
    let edits = edits.collect::<Result<_, _>>()?;
    let headers = &request.head.headers;
    if headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH) {
        return Err(bad("If-Match and If-None-Match are for requests about one service"));
    }
    change(context, request, edits).await
}

async fn change(context: &Context, request: &Request, edits: BTreeMap<String, Edit>) -> Answered {
    let [is_dry_run, persists] = flags(request.query(), ["dry-run", "persist"]).map_err(|wrong| bad(&wrong))?;
    let change = Change {
        edits,
        condition: condition(&request.head.headers)?,
        is_dry_run,
        persists,
    };
    let order = Order::Change(Box::new(change));
    let Done { text, version, is_new } = context.control.order(order, request.by.clone()).await?;
    let status = if is_new && version.is_some() {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let mut answer = json(status, &Reply::Done(text));
    if let Some(version) = version {
        set(&mut answer, ETAG, &version);
    }
    Ok(answer)
}

fn listed(name: &str, shown: Shown) -> ListedService {
    let (place, file) = match shown.place {
        Place::Memory => ("memory", None),
        Place::OwnFile(path) => ("own-file", Some(path)),
        Place::File(path) => ("file", Some(path)),
        Place::CommandLine => ("command-line", None),
    };
    ListedService {
        name: name.to_owned(),
        place: place.to_owned(),
        file: file.map(|file| file.display().to_string()),
        etag: version(&shown.table),
        table: shown.table,
    }
}

fn bad(why: &str) -> Failed {
    Failed(StatusCode::BAD_REQUEST, why.to_owned())
}

fn object(request: &Request, expected: &str) -> Result<Map<String, Json>, Failed> {
    serde_json::from_slice(&request.body).map_err(|error| bad(&format!("{error}: {expected}")))
}

fn condition(headers: &HeaderMap) -> Result<Condition, Failed> {
    let text = |name| {
        let all = headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap_or_default());
        let all: Vec<_> = all
            .flat_map(|value| value.split(','))
            .map(|one| one.trim().to_owned())
            .collect();
        (!all.is_empty()).then_some(all)
    };
    match (text(IF_MATCH), text(IF_NONE_MATCH)) {
        (None, None) => Ok(Condition::None),
        (Some(versions), None) if versions == ["*"] => Ok(Condition::Present),
        (Some(versions), None) => Ok(Condition::Versions(versions)),
        (None, Some(any)) if any == ["*"] => Ok(Condition::Absent),
        _ => Err(bad(
            "expected If-Match with the ETag of an answer or `*`, or If-None-Match: *",
        )),
    }
}
