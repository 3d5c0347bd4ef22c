//! Describes all requests as an OpenAPI document, from the table of requests and the types of
//! answers.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value as Json, json};

use super::orders::{Level, Weight};
use super::route::{Body, Parameter, ParameterValue, Route};
use super::routes::ROUTES;

/// Where the document has the schemas of bodies and answers.
const SCHEMAS: &str = "/components/schemas";
const ABOUT: &str = "Programs with `--admin` answer these requests on a Unix socket. With `--admin-remote`, \
                     they also answer them on a second one, where each request needs a token with a scope.";

/// Returns the document. `service` is the schema of the table of a service.
pub(crate) fn openapi(service: Json) -> Json {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = SCHEMAS.into();
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in &ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(route, &mut generator);
    }
    let mut schemas = generator.take_definitions(true);
    schemas.values_mut().for_each(without_defaults);
    schemas.insert("ServiceChanges".to_owned(), changes(&service));
    schemas.insert("Service".to_owned(), service);
    for (name, key) in [("Done", "done"), ("Error", "error")] {
        let schema = json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
        schemas.insert(name.to_owned(), schema);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "spliceway",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "http://localhost", "description": "the Unix socket"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Json {
    let scope = route.scope.as_str();
    let mut responses = Map::new();
    let answer = (route.answer)(generator);
    for code in route.done {
        let mut response = response(meaning(*code), answer.as_value());
        if route.has_version {
            response["headers"] = json!({"ETag": {
                "description": "The version of the service",
                "schema": {"type": "string"},
            }});
        }
        responses.insert(code.to_string(), response);
    }
    for code in route.errors.iter().chain(&[401, 403]) {
        responses.insert(code.to_string(), response(meaning(*code), &component("Error")));
    }
    let mut operation = json!({
        "operationId": id(route),
        // Generators make a module for each.
        "tags": [route.path.split('/').nth(2)],
        "summary": route.about,
        "description": format!("A token needs the scope `{scope}`."),
        "parameters": parameters(route),
        "responses": responses,
        "security": [{"token": [scope]}, {}],
    });
    if let Some(schema) = body(route.body, generator) {
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// Removes what fields are if an answer does not have them. The program always sends them.
fn without_defaults(schema: &mut Json) {
    let fields = schema.get_mut("properties").and_then(Json::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut) {
        if let Some(field) = field.as_object_mut() {
            field.remove("default");
        }
    }
}

/// Returns the name of a request, such as `put_service_backend`.
fn id(route: &Route) -> String {
    let (mut words, mut parts) = (
        vec![route.method.to_lowercase()],
        route.path.split('/').skip(2).peekable(),
    );
    while let Some(part) = parts.next() {
        // Of `sessions/{session}`, the second one is enough.
        if parts.peek().is_none_or(|next| !next.starts_with('{')) {
            words.push(part.trim_matches(['{', '}']).replace('-', "_"));
        }
    }
    words.join("_")
}

fn parameters(route: &Route) -> Vec<Json> {
    let of_path = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let of_path = of_path.map(|name| {
        let schema = match name {
            "session" => json!({"type": "integer", "minimum": 0}),
            _ => json!({"type": "string", "minLength": 1}),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let of_query = route.query.iter().map(|Parameter { name, about, value }| {
        let schema = match value {
            ParameterValue::Text => json!({"type": "string"}),
            ParameterValue::Number(min, usize::MAX) => json!({"type": "integer", "minimum": min}),
            ParameterValue::Number(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
            ParameterValue::Flag => json!({"type": "boolean"}),
        };
        let may_be_empty = matches!(value, ParameterValue::Flag);
        json!({
            "name": name,
            "in": "query",
            "description": about,
            "schema": schema,
            "allowEmptyValue": may_be_empty,
        })
    });
    let conditions = [
        ("If-Match", "Only if the service has this `ETag`"),
        ("If-None-Match", "`*`: only if there is no such service"),
    ];
    let conditions = conditions
        .into_iter()
        .filter(|_| route.has_version && route.method != "GET");
    let conditions = conditions
        .map(|(name, about)| json!({"name": name, "in": "header", "description": about, "schema": {"type": "string"}}));
    of_path.chain(of_query).chain(conditions).collect()
}

fn body(body: Body, generator: &mut SchemaGenerator) -> Option<Json> {
    fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Json {
        generator.subschema_for::<T>().to_value()
    }
    Some(match body {
        Body::None => return None,
        Body::Level => of::<Level>(generator),
        Body::Weight => of::<Weight>(generator),
        Body::Service => component("Service"),
        Body::ServiceChanges => component("ServiceChanges"),
        Body::AllChanges => {
            let change = json!({"anyOf": [component("ServiceChanges"), {"type": "null"}]});
            json!({"type": "object", "additionalProperties": change})
        }
    })
}

/// Returns the schema of changes of a table: no key is required, and `null` removes one.
fn changes(table: &Json) -> Json {
    let mut changes = table.clone();
    if let Some(table) = changes.as_object_mut() {
        table.remove("required");
    }
    let keys = changes.get_mut("properties").and_then(Json::as_object_mut);
    for schema in keys.into_iter().flat_map(Map::values_mut) {
        *schema = json!({"anyOf": [schema.take(), {"type": "null"}]});
    }
    changes
}

fn component(name: &str) -> Json {
    json!({"$ref": format!("#{SCHEMAS}/{name}")})
}

fn response(description: &str, schema: &Json) -> Json {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn meaning(code: u16) -> &'static str {
    match code {
        200 => "Done",
        201 => "The service is new",
        202 => "The session is closing",
        400 => "The request is wrong",
        401 => "The socket needs a token, and the request has no valid one",
        403 => "The token does not have the scope",
        404 => "There is no such session, user, service or backend",
        409 => "The program refuses the command",
        412 => "The version of the service is another one",
        413 => "The body is too long",
        422 => "The service has faults",
        500 => "The program cannot do this",
        _ => "Another reload or upgrade runs, or the program ends",
    }
}
