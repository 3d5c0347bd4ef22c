//! One request of the admin socket: its path, what it needs and means, and what carries it out.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use hyper::http::request::Parts;
use schemars::{Schema, SchemaGenerator, json_schema};

use super::answer::{Answered, Failed, decoded};
use crate::access::auth::tokens::Scope;
use crate::monitor::control::{By, Control};
use crate::monitor::overview::Overview;

/// A request that the socket answers.
pub(in crate::monitor) struct Route {
    pub(super) method: &'static str,
    /// The path. A part in braces stands for any text.
    pub(super) path: &'static str,
    pub(super) scope: Scope,
    /// What the request does, as a sentence without its end.
    pub(super) about: &'static str,
    pub(super) query: &'static [Parameter],
    pub(super) body: Body,
    /// The codes of success.
    pub(super) done: &'static [u16],
    pub(super) answer: fn(&mut SchemaGenerator) -> Schema,
    /// Whether the request is about the version of one service: its answer has an `ETag`, and it
    /// may have a condition.
    pub(super) has_version: bool,
    /// The codes of errors, without those of tokens.
    pub(super) errors: &'static [u16],
    pub(super) run: Handler,
}

pub(super) type Handler = for<'a> fn(&'a Context, &'a Request) -> Answering<'a>;
pub(super) type Answering<'a> = Pin<Box<dyn Future<Output = Answered> + Send + 'a>>;

/// A key of the part of a URI after `?`.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) value: ParameterValue,
}

#[derive(Clone, Copy)]
pub(super) enum ParameterValue {
    Text,
    /// A number from the first one to the second one.
    Number(usize, usize),
    /// `true`, or nothing, for yes.
    Flag,
}

/// What the body of a request has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// Nothing. A body is not read.
    None,
    Level,
    Weight,
    /// The table of a service.
    Service,
    /// Keys of the table of a service. `null` removes a key.
    ServiceChanges,
    /// Keys of the tables of several services. `null` removes a service.
    AllChanges,
}

/// What requests reach.
pub(super) struct Context {
    pub(super) overview: Arc<Overview>,
    pub(super) control: Control,
}

/// A request that may be carried out.
pub(super) struct Request {
    pub(super) head: Parts,
    /// The texts at the parts of the path in braces.
    pub(super) names: Vec<String>,
    pub(super) body: Bytes,
    pub(super) by: By,
}

/// What is at a path.
pub(super) enum Found<'a> {
    Route(&'static Route, Vec<Cow<'a, str>>),
    /// The path has only these methods.
    Methods(Vec<&'static str>),
    Nothing,
}

impl Route {
    /// Returns the texts at the parts in braces, if this is the path.
    fn names<'a>(&self, path: &'a str) -> Option<Vec<Cow<'a, str>>> {
        let (mut expected, mut parts) = (self.path.split('/').skip(1), path.trim_start_matches('/').split('/'));
        let mut names = Vec::new();
        loop {
            match (expected.next(), parts.next()) {
                (None, None) => return Some(names),
                (Some(expected), Some(part)) if expected.starts_with('{') => names.push(decoded(part)),
                (Some(expected), Some(part)) if expected == part => {}
                _ => return None,
            }
        }
    }
}

/// Looks for a request.
pub(super) fn find<'a>(routes: &'static [Route], method: &str, path: &'a str) -> Found<'a> {
    let mut methods = Vec::new();
    for route in routes {
        if let Some(names) = route.names(path) {
            if route.method == method {
                return Found::Route(route, names);
            }
            methods.push(route.method);
        }
    }
    if methods.is_empty() {
        Found::Nothing
    } else {
        Found::Methods(methods)
    }
}

impl Body {
    /// Returns the size of the longest body.
    fn max_bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Level | Self::Weight => 4 << 10,
            // There is room for all services that may be given at run time.
            Self::Service | Self::ServiceChanges | Self::AllChanges => 20 << 20,
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// Returns the answer to a body that is too long.
    pub(super) async fn read(self, body: Incoming) -> Result<Bytes, Failed> {
        let max = self.max_bytes();
        if max == 0 {
            return Ok(Bytes::new());
        }
        let Ok(body) = Limited::new(body, max).collect().await else {
            let why = format!("the body is cut or too long: expected at most {} KiB", max >> 10);
            return Err(Failed(StatusCode::PAYLOAD_TOO_LARGE, why));
        };
        Ok(body.to_bytes())
    }
}

impl Request {
    pub(super) fn query(&self) -> &str {
        self.head.uri.query().unwrap_or_default()
    }
}

/// Returns the schema of the answer to a command.
pub(super) fn done(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"$ref": "#/components/schemas/Done"})
}

/// Returns the schema of the table of a service.
pub(super) fn table(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"$ref": "#/components/schemas/Service"})
}
