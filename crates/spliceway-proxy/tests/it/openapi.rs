//! The OpenAPI document of the admin socket.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::admin::Socket;
use crate::auth::authenticated;
use crate::harness::{Program, echo, read_exactly};

/// Returns the document that the program prints.
pub(crate) fn document() -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(["schema", "--openapi"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Calls `visit` for each operation with its method and path.
fn operations(document: &Value, mut visit: impl FnMut(&str, &str, &Value)) {
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            visit(method, path, operation);
        }
    }
}

/// Returns all values of the key `$ref`.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get("$ref").map(|to| to.as_str().unwrap()));
            object.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn the_document_has_every_request_of_the_program() {
    let (socket, document) = (Socket::new(), document());
    let _program = Program::socks5(&["--admin", &socket.address()]);
    assert_eq!(document["openapi"], "3.1.0");
    let said = socket.ask("GET", "/").1["error"].as_str().unwrap().to_owned();
    let (_, paths) = said.split_once(": use ").unwrap();
    let described = document["paths"].as_object().unwrap().keys();
    assert_eq!(
        paths.split(", ").collect::<BTreeSet<_>>(),
        described.map(String::as_str).collect()
    );
    for (path, methods) in document["paths"].as_object().unwrap() {
        let (status, said) = socket.ask("TRACE", path);
        let described: BTreeSet<_> = methods
            .as_object()
            .unwrap()
            .keys()
            .map(|one| one.to_uppercase())
            .collect();
        let (_, methods) = said["error"].as_str().unwrap().split_once("the methods ").unwrap();
        let methods = methods.split(", ").map(str::to_owned);
        assert_eq!((status, methods.collect()), (405, described), "{path}");
    }
}

#[test]
fn the_document_is_complete_in_itself() {
    let document = document();
    let (mut found, mut ids) = (BTreeSet::new(), BTreeSet::new());
    references(&document, &mut found);
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for name in schemas.keys() {
        let reference = format!("#/components/schemas/{name}");
        assert!(found.contains(&*reference), "{name} is not used");
    }
    operations(&document, |method, path, operation| {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id} occurs twice");
        let parameters = operation["parameters"].as_array().unwrap().iter();
        let of_path = parameters.filter(|parameter| parameter["in"] == "path");
        let of_path: Vec<_> = of_path
            .map(|parameter| format!("{{{}}}", parameter["name"].as_str().unwrap()))
            .collect();
        let expected: Vec<_> = path.split('/').filter(|part| part.starts_with('{')).collect();
        assert_eq!(of_path, expected, "{id}");
        let responses = operation["responses"].as_object().unwrap();
        for code in ["401", "403"] {
            assert!(responses.contains_key(code), "{id} lacks {code}");
        }
        assert!(responses.keys().any(|code| code.starts_with('2')), "{id}");
        assert!(!(method == "get" && operation.get("requestBody").is_some()), "{id}");
    });
}

/// Returns where a value does not fit its schema. It knows the rules that answers use.
fn misfit(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return misfit(document, document.pointer(&reference[1..]).unwrap(), value, at);
    }
    for one_of in ["anyOf", "oneOf"] {
        if let Some(options) = schema[one_of].as_array() {
            let fits = |option| misfit(document, option, value, at).is_none();
            return (!options.iter().any(fits)).then(|| format!("{at}: {value} fits no option"));
        }
    }
    if let Some(expected) = schema.get("const") {
        return (expected != value).then(|| format!("{at}: {value}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
    };
    let types = [&schema["type"]]
        .into_iter()
        .chain(schema["type"].as_array().into_iter().flatten());
    let is_of = |one: &Value| one == kind || (one == "number" && kind == "integer");
    if !types.clone().any(is_of) {
        return Some(format!("{at}: {kind} instead of {}", schema["type"]));
    }
    let required = schema["required"].as_array().into_iter().flatten();
    if let Some(missing) = required
        .map(|key| key.as_str().unwrap())
        .find(|key| value.get(key).is_none())
    {
        return Some(format!("{at}: has no {missing}"));
    }
    let fields = value.as_object().into_iter().flatten();
    let mut of_fields = fields.map(|(key, value)| match schema["properties"].get(key) {
        Some(schema) => misfit(document, schema, value, &format!("{at}.{key}")),
        None if schema["additionalProperties"] == true => None,
        None => Some(format!("{at}: {key} is not described")),
    });
    let mut of_items = value.as_array().into_iter().flatten();
    let of_items = of_items.find_map(|item| misfit(document, &schema["items"], item, &format!("{at}[]")));
    of_fields.find_map(|misfit| misfit).or(of_items)
}

#[test]
fn the_answers_fit_their_schemas() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (address, backend) = (socket.address(), echo("127.0.0.1:0").to_string());
    let admin = ["--admin", &address];
    let program = Program::forward(target, &[&admin[..], &["-r", &backend, "--rate-in", "1MB"]].concat());
    let _session = program.connect();
    program.await_sum("spliceway_connections_active", &[], 1);
    check_answers(&socket, "forward");
    drop(program);
    let limits = ["--auth", "ann:wonderland", "--user-max-conns", "7"];
    let program = Program::socks5(&[&admin[..], &limits].concat());
    let _session = program.connect();
    let (mut client, _) = authenticated(&program, "ann", "wonderland");
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &target.port().to_be_bytes()].concat();
    client.write_all(&request).unwrap();
    assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
    let users = socket.ask("GET", "/v1/users").1;
    assert_eq!(users["users"][0]["max_conns"], 7);
    check_answers(&socket, "socks5");
}

/// Compares the answers to requests that read with what the document says about them.
fn check_answers(socket: &Socket, service: &str) {
    let (document, mut checked) = (document(), 0);
    operations(&document, |method, path, operation| {
        if method != "get" {
            return;
        }
        let path = path.replace("{session}", "1").replace("{service}", service);
        let (status, answer) = socket.ask("GET", &path);
        assert_eq!(status, 200, "{path}: {answer}");
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        assert_eq!(misfit(&document, schema, &answer, &path), None, "{answer}");
        let error = &operation["responses"]["401"]["content"]["application/json"]["schema"];
        assert!(
            misfit(&document, error, &answer, &path).is_some(),
            "the test sees differences"
        );
        checked += 1;
    });
    assert!(checked >= 7, "{checked}");
}
