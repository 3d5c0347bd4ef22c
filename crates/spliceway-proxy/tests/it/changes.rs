//! Services that are added, changed and removed while the program runs, by the admin socket.

mod churn;
mod commands;
mod discovery;
mod refused;
mod saved;
mod write_faults;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::admin::Socket;
use crate::handover::upgrade;
use crate::harness::{PATIENCE, Program, TextFile, accept, echo, is_closed, listen, read_exactly, with_patience};

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    etag: Option<String>,
    body: Value,
}

impl Answer {
    /// Returns the sentence about what was done, or about what is wrong.
    fn text(&self) -> &str {
        self.body["done"]
            .as_str()
            .or(self.body["error"].as_str())
            .unwrap_or_default()
    }
}

/// Sends a request with these header fields.
fn send(socket: &Socket, request: &str, fields: &[&str], body: &Value) -> Answer {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let mut stream = UnixStream::connect(socket.path()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{fields}\r\n");
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: "));
    Answer {
        status: head[9..12].parse().unwrap(),
        etag: etag.map(str::to_owned),
        body: serde_json::from_str(body).unwrap(),
    }
}

/// Starts the program with one service from a file, `first`, and an admin socket.
fn start(socket: &Socket, target: SocketAddr) -> (Program, TextFile) {
    let file = TextFile::new(&config(socket, target));
    (Program::run(&file), file)
}

fn config(socket: &Socket, target: SocketAddr) -> String {
    format!(
        "[admin]\nsocket = {:?}\nmetrics = \"127.0.0.1:0\"\n\
         [[service]]\nname = \"first\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n",
        socket.address()
    )
}

fn forward(target: SocketAddr) -> Value {
    json!({"kind": "forward", "listen": "127.0.0.1:0", "to": target.to_string()})
}

/// Returns the address of the only listener of a service, if there is such a service.
fn address(socket: &Socket, name: &str) -> Option<SocketAddr> {
    let status = socket.ask("GET", "/v1/status").1;
    let services = status["services"].as_array().unwrap();
    let service = services.iter().find(|service| service["name"] == name)?;
    service["listen"][0].as_str()?.parse().ok()
}

fn reach(socket: &Socket, name: &str) -> TcpStream {
    with_patience(TcpStream::connect(address(socket, name).unwrap()).unwrap())
}

/// Sends bytes through an echo.
fn exchange(mut client: &TcpStream) {
    client.write_all(b"message").unwrap();
    assert_eq!(read_exactly(&mut client.try_clone().unwrap(), 7), b"message");
}

#[test]
fn a_service_is_added_changed_and_removed_and_sessions_continue() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let added = send(&socket, "PUT /v1/services/web", &[], &forward(target));
    assert_eq!(added.status, 201, "{added:?}");
    let listen = address(&socket, "web").unwrap();
    assert_eq!(added.text(), format!("added web; listens on {listen}"));
    let before = reach(&socket, "web");
    exchange(&before);
    let (other, other_target) = crate::harness::listen();
    let changed = send(
        &socket,
        "PATCH /v1/services/web",
        &[],
        &json!({"to": other_target.to_string()}),
    );
    assert_eq!((changed.status, changed.text()), (200, "changed web"));
    assert_eq!(address(&socket, "web"), Some(listen));
    let mut after = reach(&socket, "web");
    accept(&other).write_all(b"other").unwrap();
    assert_eq!(read_exactly(&mut after, 5), b"other");
    exchange(&before);
    let removed = send(&socket, "DELETE /v1/services/web", &[], &Value::Null);
    let expected = format!("removed web; no longer listens on {listen}");
    assert_eq!(
        (
            removed.status,
            removed.text().replace("127.0.0.1:0", &listen.to_string())
        ),
        (200, expected)
    );
    exchange(&before);
    assert_eq!(send(&socket, "DELETE /v1/services/web", &[], &Value::Null).status, 404);
    assert!(is_free(listen));
}

/// Returns whether the address is free, after its listener has closed.
fn is_free(address: SocketAddr) -> bool {
    let until = std::time::Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        if std::time::Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_change_of_several_services_takes_effect_whole_or_not_at_all() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let wrong = json!({"a": forward(target), "b": {"kind": "forward", "listen": "127.0.0.1:0"}});
    let refused = send(&socket, "PATCH /v1/services", &[], &wrong);
    let why = "service `b`: to: is missing: expected the target, such as to = \"example.com:80\"";
    assert_eq!((refused.status, refused.text()), (422, why));
    let (busy, taken) = listen();
    let wrong = json!({"a": forward(target), "b": {"kind": "socks5", "listen": taken.to_string()}});
    let refused = send(&socket, "PATCH /v1/services", &[], &wrong);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text().contains("cannot listen on"), "{refused:?}");
    assert!(address(&socket, "a").is_none());
    drop(busy);
    let right = json!({"a": forward(target), "b": forward(target)});
    assert_eq!(send(&socket, "PATCH /v1/services", &[], &right).status, 200);
    exchange(&reach(&socket, "a"));
    let right = json!({"a": null, "none": null, "b": {"deny": "127.0.0.1"}, "c": forward(target)});
    let changed = send(&socket, "PATCH /v1/services", &[], &right);
    assert!(
        changed.text().starts_with("added c; changed b; removed a; "),
        "{changed:?}"
    );
    assert!(is_closed(&mut reach(&socket, "b")));
    exchange(&reach(&socket, "c"));
}

#[test]
fn a_lost_update_is_refused_and_a_dry_run_changes_nothing() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let put = "PUT /v1/services/web";
    let added = send(&socket, put, &["If-None-Match: *"], &forward(target));
    assert_eq!(added.status, 201);
    let again = send(&socket, put, &["If-None-Match: *"], &forward(target));
    let why = "there is a service `web` already: change it (`spliceway service set`), or remove it before";
    assert_eq!((again.status, again.text()), (412, why));
    let shown = send(&socket, "GET /v1/services/web", &[], &Value::Null);
    assert_eq!(shown.etag, added.etag);
    let mut table = shown.body;
    assert_eq!(table["name"], "web");
    let field = format!("If-Match: {}", shown.etag.unwrap());
    table["deny"] = json!(["10.0.0.0/8"]);
    let dry = send(&socket, &format!("{put}?dry-run"), &[&field], &table);
    assert_eq!((dry.status, dry.text()), (200, "dry run: changed web"));
    let changed = send(&socket, put, &[&field], &table);
    assert_eq!((changed.status, changed.text()), (200, "changed web"));
    let lost = send(&socket, put, &[&field], &table);
    let why = "service `web` has changed meanwhile: read it again";
    assert_eq!((lost.status, lost.text()), (412, why));
    let absent = send(&socket, "PUT /v1/services/none", &["If-Match: *"], &forward(target));
    assert_eq!(absent.status, 412);
    let same = send(&socket, put, &["If-Match: *"], &table);
    assert_eq!((same.text(), &same.etag), ("nothing has changed", &changed.etag));
}

#[test]
fn a_reload_and_an_upgrade_keep_the_services_and_a_restart_forgets_them() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (mut program, file) = start(&socket, target);
    assert_eq!(send(&socket, "PUT /v1/services/web", &[], &forward(target)).status, 201);
    let listen = address(&socket, "web");
    let client = reach(&socket, "web");
    exchange(&client);
    assert!(program.reload().contains("nothing has changed"));
    assert_eq!(address(&socket, "web"), listen);
    let clash = config(&socket, target).replace("first", "web");
    file.write(&clash);
    let line = program.reload();
    assert!(line.contains("service `web`: name: the service at "), "{line}");
    file.write(&config(&socket, target));
    let next = upgrade(&mut program, None);
    assert_eq!(address(&socket, "web"), listen);
    exchange(&client);
    exchange(&reach(&socket, "web"));
    // The new process can change what the old one was given.
    let changed = send(&socket, "PATCH /v1/services/web", &[], &json!({"deny": "127.0.0.1"}));
    assert_eq!(changed.text(), "changed web");
    let last = upgrade(&mut program, Some(&next));
    assert!(is_closed(&mut reach(&socket, "web")));
    drop((client, last));
    next.ends();
    let _program = Program::run(&file);
    assert_eq!(address(&socket, "web"), None);
    assert!(address(&socket, "first").is_some());
}

#[test]
fn backends_are_added_and_removed_one_by_one() {
    let (socket, (one, first), (two, second)) = (Socket::new(), listen(), listen());
    let (_program, _file) = start(&socket, first);
    send(&socket, "PUT /v1/services/web", &[], &forward(first));
    let path = format!("/v1/services/web/backends/{second}");
    let added = send(&socket, &format!("PUT {path},weight=5"), &[], &Value::Null);
    assert_eq!((added.status, added.text()), (200, "changed web"));
    let shown = send(&socket, "GET /v1/services/web", &[], &Value::Null);
    assert_eq!(
        shown.body["to"],
        json!([first.to_string(), format!("{second},weight=5")])
    );
    let removed = send(
        &socket,
        &format!("DELETE /v1/services/web/backends/{first}"),
        &[],
        &Value::Null,
    );
    assert_eq!(removed.status, 200);
    let _client = reach(&socket, "web");
    accept(&two);
    assert!(!crate::harness::was_reached(&one));
    let missing = send(
        &socket,
        &format!("DELETE /v1/services/web/backends/{first}"),
        &[],
        &Value::Null,
    );
    let why = format!("service `web` has no backend `{first}`");
    assert_eq!((missing.status, missing.text()), (404, &*why));
    let last = send(&socket, &format!("DELETE {path}"), &[], &Value::Null);
    assert_eq!(last.status, 422, "{last:?}");
    // A service with tables of backends keeps them.
    let tables =
        json!({"kind": "forward", "listen": "127.0.0.1:0", "backend": [{"to": first.to_string(), "weight": 3}]});
    assert_eq!(send(&socket, "PUT /v1/services/web", &[], &tables).status, 200);
    assert_eq!(send(&socket, &format!("PUT {path}"), &[], &Value::Null).status, 200);
    let shown = send(&socket, "GET /v1/services/web", &[], &Value::Null);
    let expected = json!([{"to": first.to_string(), "weight": 3}, {"to": second.to_string()}]);
    assert_eq!(shown.body["backend"], expected);
}

#[test]
fn services_of_files_and_of_the_command_line_are_shown_and_not_changed() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (program, file) = start(&socket, target);
    let refused = send(&socket, "DELETE /v1/services/first", &[], &Value::Null);
    let why = format!("first comes from {}: edit it there, and reload", file.path());
    assert_eq!((refused.status, refused.text()), (409, &*why));
    let shown = send(&socket, "GET /v1/services/first", &[], &Value::Null);
    assert_eq!(shown.body["to"], json!([target.to_string()]));
    let listed = send(&socket, "GET /v1/services", &[], &Value::Null);
    assert_eq!(listed.body["services"][0]["file"], file.path());
    drop(program);
    let target = target.to_string();
    let address = socket.address();
    let _program = Program::start(&["-l", "127.0.0.1:0", "-r", &target, "--admin", &address]);
    let refused = send(&socket, "PATCH /v1/services/forward", &[], &json!({"to": "a:80"}));
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(
        send(&socket, "PUT /v1/services/web", &[], &forward(target.parse().unwrap())).status,
        201
    );
    exchange(&reach(&socket, "web"));
    let reloaded = socket.ask("POST", "/v1/reload").1;
    assert_eq!(reloaded["done"], "reloaded: nothing has changed");
}

#[test]
fn a_fault_names_the_service_and_the_key() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let listen = json!("127.0.0.1:0");
    for (table, status, expected) in [
        (
            json!([1]),
            400,
            "invalid type: sequence, expected a map at line 1 column 0: expected a JSON object",
        ),
        (json!({}), 422, "service `web`: kind: is missing"),
        (
            json!({"kind": "forwarder"}),
            422,
            "service `web`: kind: expected one of",
        ),
        (
            json!({"kind": "socks5", "lisen": listen}),
            422,
            "unknown key `lisen` in [[service]]: did you mean `listen`?",
        ),
        (
            json!({"kind": "socks5", "listen": {"log": {}}}),
            422,
            "service `web`: listen: expected text",
        ),
        (
            json!({"kind": "socks5", "listen": listen, "log": {"level": "off"}}),
            422,
            "log: expected text",
        ),
        (
            json!({"kind": "socks5", "listen": listen, "open": null}),
            422,
            "without a value, leave the key out",
        ),
        (
            json!({"kind": "socks5", "listen": ":1080"}),
            422,
            "would serve everybody",
        ),
        (
            json!({"kind": "socks5", "listen": listen, "auth": "ann:secret"}),
            422,
            "must not contain a password",
        ),
        (
            json!({"kind": "socks5", "listen": listen, "allow": ["x"]}),
            422,
            "service `web`: allow: expected",
        ),
        (
            json!({"kind": "socks5", "listen": listen, "name": "other"}),
            422,
            "name: is `other`",
        ),
        (
            json!({"kind": "socks5", "listen": "x".repeat(200_000)}),
            422,
            "the table is too long",
        ),
    ] {
        let refused = send(&socket, "PUT /v1/services/web", &[], &table);
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(refused.text().contains(expected), "{refused:?}");
    }
}

#[test]
fn a_fault_that_a_file_cannot_have_is_found_too() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let refused = send(&socket, "PUT /v1/services/a%20b", &[], &forward(target));
    assert!(refused.text().contains("name: expected 1 to"), "{refused:?}");
    let refused = send(&socket, "PUT /v1/services/web?force", &[], &forward(target));
    assert_eq!(
        (refused.status, refused.text()),
        (400, "the query has no `force`: use dry-run and persist")
    );
    // A target that is the service itself is found as in a file.
    let looped = json!({"kind": "forward", "listen": "127.0.0.1:1", "to": "127.0.0.1:1"}); // Port because it is only parsed.
    let refused = send(&socket, "PUT /v1/services/web", &[], &looped);
    assert!(
        refused.text().contains("leads back to the same service (web, web)"),
        "{refused:?}"
    );
}

#[test]
fn a_change_leaves_a_service_drained_that_it_does_not_name() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    send(&socket, "PUT /v1/services/web", &[], &forward(target));
    let listen = address(&socket, "web").unwrap();
    socket.ask("POST", "/v1/services/web/drain");
    assert!(is_free(listen));
    for name in ["a", "b", "c"] {
        assert_eq!(
            send(&socket, &format!("PUT /v1/services/{name}"), &[], &forward(target)).status,
            201
        );
        assert!(TcpStream::connect(listen).is_err());
    }
    // A change of the service itself opens it again.
    let changed = send(&socket, "PATCH /v1/services/web", &[], &json!({"deny": "10.0.0.0/8"}));
    assert_eq!(changed.status, 200);
    exchange(&reach(&socket, "web"));
}

#[test]
fn a_program_without_services_is_ready_for_the_first_one() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (mut program, file) = start(&socket, target);
    let config = config(&socket, target);
    file.write(config.split_once("[[service]]").unwrap().0);
    assert!(program.reload().contains("removed first"));
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(send(&socket, "PUT /v1/services/web", &[], &forward(target)).status, 201);
    exchange(&reach(&socket, "web"));
    assert_eq!(send(&socket, "DELETE /v1/services/web", &[], &Value::Null).status, 200);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_variable_is_shown_by_its_name_and_not_by_its_value() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let config = config(&socket, target) + "check = 'send:AUTH ${PATH}\\r\\n'\n";
    let file = TextFile::new(&config);
    let _program = Program::run(&file);
    let shown = send(&socket, "GET /v1/services/first", &[], &Value::Null);
    assert_eq!(shown.body["check"], r"send:AUTH ${PATH}\r\n", "{shown:?}");
    let all = send(&socket, "GET /v1/services", &[], &Value::Null);
    assert!(!all.body.to_string().contains(&std::env::var("PATH").unwrap()));
}
