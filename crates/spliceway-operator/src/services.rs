//! The commands `spliceway service` and `spliceway backend`: list and change the services of a
//! running program.

use std::fmt::{self, Write as _};
use std::path::Path;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::IF_NONE_MATCH;
use serde_json::{Map, Value as Json};

use crate::api::{ListedService, ServiceList};
use crate::client::{self, Error, PATIENCE};
use crate::orders::RELOAD_PATIENCE;
use crate::status::escaped;
use crate::users::encoded;

/// A change of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name of the service.
    pub service: String,
    /// What to change.
    pub edit: Edit,
    /// Whether to find out what would change, and to change nothing.
    pub is_dry_run: bool,
    /// Whether to write the service to the folder of the configuration.
    pub persists: bool,
}

/// What to change in a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Add the service with this table. There must be no such service.
    Add(Map<String, Json>),
    /// Change these keys of its table. A null removes a key.
    Set(Map<String, Json>),
    /// Remove the service.
    Remove,
    /// Add a target, or give it other options.
    AddBackend(String),
    /// Remove a target.
    RemoveBackend(String),
}

/// Returns a table of all services, or the JSON of the answer.
pub(crate) async fn list(socket: &Path, json: bool) -> Result<String, Error> {
    let body = client::request(socket, Method::GET, "/v1/services", PATIENCE).await?;
    let unexpected = |error: &dyn fmt::Display| Error::unexpected(socket, error);
    let list: ServiceList = client::parse(&body).map_err(|error| unexpected(&error))?;
    if json {
        let text = String::from_utf8(body.into()).map_err(|error| unexpected(&error))?;
        return Ok(escaped(&text));
    }
    Ok(table(&list.services))
}

/// Changes a service, and returns what changed.
pub(crate) async fn change(socket: &Path, change: &Change) -> Result<String, Error> {
    let mut path = format!("/v1/services/{}", encoded(&change.service));
    if let Edit::AddBackend(to) | Edit::RemoveBackend(to) = &change.edit {
        path += &format!("/backends/{}", encoded(to));
    }
    path += &format!("?dry-run={}&persist={}", change.is_dry_run, change.persists);
    let (method, table) = match &change.edit {
        Edit::Add(table) => (Method::PUT, Some(table)),
        Edit::Set(table) => (Method::PATCH, Some(table)),
        Edit::AddBackend(_) => (Method::PUT, None),
        Edit::Remove | Edit::RemoveBackend(_) => (Method::DELETE, None),
    };
    let mut head = client::head(method, &path);
    if matches!(change.edit, Edit::Add(_)) {
        head = head.header(IF_NONE_MATCH, "*");
    }
    let body = table.map(serde_json::to_vec).transpose();
    let body = body.map_err(|error| Error::new(&error.to_string()))?;
    let body = Bytes::from(body.unwrap_or_default());
    Ok(client::order_with(socket, head, body, RELOAD_PATIENCE).await? + "\n")
}

/// Returns one line for each service. A column is as wide as its longest cell.
fn table(services: &[ListedService]) -> String {
    let mut rows = vec![["NAME", "KIND", "FROM", "LISTEN", "TO"].map(str::to_owned)];
    rows.extend(services.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        line += &row[4];
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn row(service: &ListedService) -> [String; 5] {
    let table = &service.table;
    let backends = table["backend"].as_array().into_iter().flatten();
    let mut targets: Vec<_> = backends.map(|backend| words(&backend["to"])).collect();
    targets.extend([&table["to"], &table["route"]].map(words));
    targets.retain(|target| !target.is_empty());
    let from = service.file.as_ref().unwrap_or(&service.place);
    [
        service.name.clone(),
        words(&table["kind"]),
        from.clone(),
        words(&table["listen"]),
        targets.join(" "),
    ]
}

/// Returns the words of a text, or of an array of texts.
fn words(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(values) => values.iter().map(words).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_has_one_aligned_line_for_each_service() {
        let service = |name: &str, place: &str, file: Option<&str>, table| ListedService {
            name: name.to_owned(),
            place: place.to_owned(),
            file: file.map(str::to_owned),
            etag: String::new(),
            table,
        };
        let services = [
            service(
                "web",
                "memory",
                None,
                json!({"kind": "forward", "listen": ":80", "to": ["a:1", "b:2"]}),
            ),
            service(
                "office-proxy",
                "file",
                Some("/etc/spliceway/main.toml"),
                json!({"kind": "socks5", "listen": ["127.0.0.1:1080", "[::1]:1080"]}),
            ),
            service(
                "db",
                "command-line",
                None,
                json!({"kind": "forward", "listen": ":5432", "backend": [{"to": "c:3", "weight": 2}, {"to": "d:4"}]}),
            ),
        ];
        let expected = "\
NAME          KIND     FROM                      LISTEN                     TO
web           forward  memory                    :80                        a:1 b:2
office-proxy  socks5   /etc/spliceway/main.toml  127.0.0.1:1080 [::1]:1080
db            forward  command-line              :5432                      c:3 d:4
";
        assert_eq!(table(&services), expected);
    }
}
