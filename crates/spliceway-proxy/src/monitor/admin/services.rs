//! Shows services, and changes them.

use std::collections::BTreeMap;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ETAG, HeaderMap, IF_MATCH, IF_NONE_MATCH};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value as Json};
use spliceway_operator::api::{ListedService, Reply, ServiceList};

use super::answer::{Answered, Failed, decoded, json, no_service, ok};
use crate::monitor::control::{Control, Done, Order};
use crate::monitor::http_server::set;
use crate::monitor::overview::Overview;
use crate::settings::given::version;
use crate::settings::{Change, Condition, Edit, Place, Shown};

/// The longest body. It has room for all services that may be given at run time.
const BODY_MAX_BYTES: usize = 20 << 20;
const EXPECTED: &str =
    r#"expected a JSON object with the keys of a service, such as {"kind": "forward", "listen": ":80", "to": "a:80"}"#;
const EXPECTED_ALL: &str = r#"expected a JSON object with the tables of services by their names, such as {"web": {"to": "a:80"}, "old": null}"#;

/// Lists all services with their tables.
pub(super) fn list(overview: &Overview) -> Answered {
    let settings = overview.settings();
    let services = settings.iter().flat_map(|settings| {
        let all = settings.services.iter();
        all.map(|service| listed(&service.name, settings.show(service)))
    });
    ok(&ServiceList {
        services: services.collect(),
    })
}

/// Shows the table of one service.
pub(super) fn show(overview: &Overview, name: &str) -> Answered {
    let name = decoded(name);
    let shown = overview.settings().and_then(|settings| settings.shown(&name));
    let shown = shown.ok_or_else(|| no_service(&name))?;
    let mut answer = json(StatusCode::OK, &shown.table);
    set(&mut answer, ETAG, &version(&shown.table));
    Ok(answer)
}

/// Changes one service.
pub(super) async fn change_one(control: &Control, head: &Parts, name: &str, body: Incoming) -> Answered {
    let edit = match head.method {
        Method::PUT => Edit::Put(object(body, EXPECTED).await?),
        Method::PATCH => Edit::Merge(object(body, EXPECTED).await?),
        _ => Edit::Remove,
    };
    change(control, head, [(decoded(name).into_owned(), edit)].into()).await
}

/// Adds or removes a backend of a service.
pub(super) async fn change_backend(control: &Control, head: &Parts, name: &str, backend: &str) -> Answered {
    let backend = decoded(backend).into_owned();
    let edit = if head.method == Method::PUT {
        Edit::AddBackend(backend)
    } else {
        Edit::RemoveBackend(backend)
    };
    change(control, head, [(decoded(name).into_owned(), edit)].into()).await
}

/// Changes any number of services, all of them or none.
pub(super) async fn change_all(control: &Control, head: &Parts, body: Incoming) -> Answered {
    let edits = object(body, EXPECTED_ALL).await?.into_iter().map(|(name, table)| {
        let edit = match table {
            Json::Null => Edit::RemoveAny,
            Json::Object(table) => Edit::MergeOrAdd(table),
            _ => return Err(bad(EXPECTED_ALL)),
        };
        Ok((name, edit))
    });
    let edits = edits.collect::<Result<_, _>>()?;
    if head.headers.contains_key(IF_MATCH) || head.headers.contains_key(IF_NONE_MATCH) {
        return Err(bad("If-Match and If-None-Match are for requests about one service"));
    }
    change(control, head, edits).await
}

async fn change(control: &Control, head: &Parts, edits: BTreeMap<String, Edit>) -> Answered {
    let mut change = Change {
        edits,
        condition: condition(&head.headers)?,
        is_dry_run: false,
        persists: false,
    };
    let query = head.uri.query().unwrap_or_default();
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let is_set = match &*value {
            "" | "true" => true,
            "false" => false,
            _ => return Err(bad("expected true or false in the query")),
        };
        match &*key {
            "dry-run" => change.is_dry_run = is_set,
            "persist" => change.persists = is_set,
            _ => {
                let key = key.escape_debug();
                return Err(bad(&format!("the query has no `{key}`: use dry-run and persist")));
            }
        }
    }
    let Done { text, version, is_new } = control.order(Order::Change(Box::new(change))).await?;
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

async fn object(body: Incoming, expected: &str) -> Result<Map<String, Json>, Failed> {
    let Ok(body) = Limited::new(body, BODY_MAX_BYTES).collect().await else {
        let why = format!(
            "the body is cut or too long: expected at most {} MiB",
            BODY_MAX_BYTES >> 20
        );
        return Err(Failed(StatusCode::PAYLOAD_TOO_LARGE, why));
    };
    serde_json::from_slice(&body.to_bytes()).map_err(|error| bad(&format!("{error}: {expected}")))
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
