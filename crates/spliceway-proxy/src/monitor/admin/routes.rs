//! All requests of the admin socket, each with its scope beside what carries it out.

use schemars::SchemaGenerator;
use spliceway_operator::api::{ServiceList, SessionPage, SessionView, Status, UserPage};

use super::orders::{self, Level};
use super::query::LIMIT_MAX;
use super::route::{Body, Parameter, ParameterValue, Route, done, table};
use super::{services, sessions};
use crate::access::auth::tokens::Scope;

/// Returns what carries out a request.
macro_rules! run {
    ($handler:path) => {
        |context, request| Box::pin($handler(context, request))
    };
}

const fn parameter(name: &'static str, value: ParameterValue, about: &'static str) -> Parameter {
    Parameter { name, about, value }
}

const LIMIT: Parameter = parameter(
    "limit",
    ParameterValue::Number(1, LIMIT_MAX),
    "The most entries of the page",
);
const CHANGE: &[Parameter] = &[
    parameter(
        "dry-run",
        ParameterValue::Flag,
        "Only check the change, and say what it would do",
    ),
    parameter(
        "persist",
        ParameterValue::Flag,
        "Also write the service to the configuration folder",
    ),
];
const CHANGE_ERRORS: &[u16] = &[400, 404, 409, 412, 413, 422, 503];

/// A request that reads the state of the program.
const READ: Route = Route {
    method: "GET",
    path: "/v1/status",
    scope: Scope::Read,
    about: "The state of the program",
    query: &[],
    body: Body::None,
    done: &[200],
    answer: SchemaGenerator::subschema_for::<Status>,
    has_version: false,
    errors: &[],
    run: run!(sessions::status),
};
/// A request that changes a service.
const WRITE: Route = Route {
    method: "PUT",
    path: "/v1/services/{service}",
    scope: Scope::Write,
    about: "Add a service, or replace it",
    query: CHANGE,
    body: Body::Service,
    done: &[200, 201],
    answer: done,
    has_version: true,
    errors: CHANGE_ERRORS,
    run: run!(services::put),
};

/// The order is that of messages.
pub(super) static ROUTES: [Route; 21] = [
    READ,
    Route {
        path: "/v1/sessions",
        about: "A page of open sessions",
        query: &[
            parameter("service", ParameterValue::Text, "Only sessions of this service"),
            parameter("user", ParameterValue::Text, "Only sessions of this user"),
            parameter(
                "client",
                ParameterValue::Text,
                "Only sessions of this address, address and port, network, or `unix`",
            ),
            LIMIT,
            parameter(
                "after",
                ParameterValue::Number(0, usize::MAX),
                "The `next` of the page before",
            ),
        ],
        answer: SchemaGenerator::subschema_for::<SessionPage>,
        errors: &[400],
        run: run!(sessions::list),
        ..READ
    },
    Route {
        path: "/v1/sessions/{session}",
        about: "One session",
        answer: SchemaGenerator::subschema_for::<SessionView>,
        errors: &[404],
        run: run!(sessions::show),
        ..READ
    },
    Route {
        method: "DELETE",
        path: "/v1/sessions/{session}",
        scope: Scope::Sessions,
        about: "End a session",
        query: &[],
        body: Body::None,
        done: &[202],
        errors: &[404],
        has_version: false,
        run: run!(sessions::close),
        ..WRITE
    },
    Route {
        path: "/v1/users",
        about: "A page of users with limits",
        query: &[
            LIMIT,
            parameter("after", ParameterValue::Text, "The `next` of the page before"),
        ],
        answer: SchemaGenerator::subschema_for::<UserPage>,
        errors: &[400],
        run: run!(sessions::users),
        ..READ
    },
    Route {
        method: "POST",
        path: "/v1/users/{user}/reset",
        about: "Set what a user has used of quotas to 0",
        query: &[],
        body: Body::None,
        done: &[200],
        errors: &[404],
        has_version: false,
        run: run!(sessions::reset),
        ..WRITE
    },
    Route {
        path: "/v1/services",
        about: "All services with their tables",
        answer: SchemaGenerator::subschema_for::<ServiceList>,
        run: run!(services::list),
        ..READ
    },
    Route {
        method: "PATCH",
        path: "/v1/services",
        about: "Change several services: all of them, or none",
        body: Body::AllChanges,
        done: &[200],
        has_version: false,
        errors: &[400, 409, 413, 422, 503],
        run: run!(services::change_all),
        ..WRITE
    },
    Route {
        path: "/v1/services/{service}",
        about: "The table of a service, with its version in the header `ETag`",
        answer: table,
        has_version: true,
        errors: &[404],
        run: run!(services::show),
        ..READ
    },
    WRITE,
    Route {
        method: "PATCH",
        about: "Change keys of a service",
        body: Body::ServiceChanges,
        done: &[200],
        run: run!(services::merge),
        ..WRITE
    },
    Route {
        method: "DELETE",
        about: "Remove a service. Its sessions may finish",
        body: Body::None,
        done: &[200],
        run: run!(services::remove),
        ..WRITE
    },
    Route {
        method: "POST",
        path: "/v1/services/{service}/drain",
        scope: Scope::Drain,
        about: "Close the listeners of a service. Its sessions may finish",
        query: &[],
        body: Body::None,
        done: &[200],
        errors: &[404, 503],
        has_version: false,
        run: run!(orders::drain),
        ..WRITE
    },
    Route {
        path: "/v1/services/{service}/backends/{backend}",
        about: "Add a target to a service",
        body: Body::None,
        done: &[200],
        run: run!(services::add_backend),
        ..WRITE
    },
    Route {
        method: "DELETE",
        path: "/v1/services/{service}/backends/{backend}",
        about: "Remove a target of a service",
        body: Body::None,
        done: &[200],
        run: run!(services::remove_backend),
        ..WRITE
    },
    Route {
        path: "/v1/services/{service}/backends/{backend}/weight",
        scope: Scope::Drain,
        about: "Set the weight of a backend. 0 drains it, and null is the weight of the configuration",
        query: &[],
        body: Body::Weight,
        done: &[200],
        errors: &[400, 404, 409, 413],
        has_version: false,
        run: run!(orders::set_weight),
        ..WRITE
    },
    Route {
        path: "/v1/log-level",
        about: "The level of the log",
        answer: SchemaGenerator::subschema_for::<Level>,
        run: run!(orders::level),
        ..READ
    },
    Route {
        path: "/v1/log-level",
        about: "Set the level of the log",
        query: &[],
        body: Body::Level,
        done: &[200],
        answer: SchemaGenerator::subschema_for::<Level>,
        errors: &[400, 413, 500],
        has_version: false,
        run: run!(orders::set_level),
        ..WRITE
    },
    Route {
        method: "POST",
        path: "/v1/reopen",
        about: "Open the file of the access log again",
        query: &[],
        body: Body::None,
        done: &[200],
        errors: &[409],
        has_version: false,
        run: run!(orders::reopen),
        ..WRITE
    },
    Route {
        method: "POST",
        path: "/v1/reload",
        about: "Read the configuration again, and put it into force",
        query: &[parameter(
            "end-sessions",
            ParameterValue::Flag,
            "Then end the sessions of users that their service no longer has",
        )],
        body: Body::None,
        done: &[200],
        errors: &[400, 409, 503],
        has_version: false,
        run: run!(orders::reload),
        ..WRITE
    },
    Route {
        method: "POST",
        path: "/v1/upgrade",
        about: "Hand over to a new process",
        query: &[],
        body: Body::None,
        done: &[200],
        errors: &[409, 503],
        has_version: false,
        run: run!(orders::upgrade),
        ..WRITE
    },
];
