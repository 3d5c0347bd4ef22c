//! The admin socket whose requests need a token.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::json;

use crate::admin::Socket;
use crate::handover::Process;
use crate::harness::{Folder, PATIENCE, Program, TextFile, connect, echo, refused_to_start, refusing};
use crate::openapi::document;

const SCOPES: [&str; 4] = ["read", "sessions", "drain", "write"];

/// A folder with a file of tokens, and a socket that needs them.
struct Remote {
    folder: Folder,
    socket: Socket,
}

impl Remote {
    fn new(name: &str) -> Self {
        Self {
            folder: Folder::new(name),
            socket: Socket::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.0.join("tokens")
    }

    fn command(&self, command: &str, arguments: &[&str]) -> Output {
        let mut program = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        program.args(["token", command]).arg(self.file()).args(arguments);
        program.output().unwrap()
    }

    /// Adds a token, and returns it.
    fn add(&self, name: &str, scopes: &str) -> String {
        let output = self.command("add", &[name, "--scope", scopes]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn remove(&self, name: &str) {
        assert!(self.command("del", &[name]).status.success());
    }

    fn start(&self, target: SocketAddr, arguments: &[&str]) -> Program {
        let (address, file) = (self.socket.address(), self.file());
        let own = ["--admin-remote", &address, "--admin-tokens", file.to_str().unwrap()];
        Program::forward(target, &[&own, arguments].concat())
    }

    /// Sends a request with these lines in its head. Returns the status and the whole answer.
    fn send(&self, request: &str, fields: &[&[u8]], body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let length = format!("Content-Length: {}", body.len());
        let head = [request.as_bytes(), b" HTTP/1.1\r\nHost: a\r\n", length.as_bytes()].concat();
        let fields: Vec<u8> = fields.iter().flat_map(|field| [b"\r\n", *field].concat()).collect();
        // The program may answer before it has read a long head.
        let _ = stream.write_all(&[&head[..], &fields, b"\r\n\r\n", body.as_bytes()].concat());
        answer(stream)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn ask(&self, request: &str, token: &str) -> (u16, String) {
        self.send(request, &[bearer(token).as_bytes()], "")
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn answer(mut stream: UnixStream) -> (u16, String) {
    let mut answer = Vec::new();
    // A connection that is reset has its answer before.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

/// Returns each request of the program with its scopes.
fn requests() -> Vec<(String, String, Vec<String>)> {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let requests = paths.iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, operation)| {
            let scopes = operation["security"][0]["token"].as_array().unwrap();
            let scopes = scopes.iter().map(|scope| scope.as_str().unwrap().to_owned()).collect();
            (method.to_uppercase(), path.clone(), scopes)
        })
    });
    requests.collect()
}

#[test]
fn each_request_needs_the_one_scope_that_the_manual_says() {
    let requests = requests();
    assert!(requests.len() >= 21, "{requests:?}");
    for (method, path, scopes) in &requests {
        let expected = match (&**method, &**path) {
            ("GET", _) => "read",
            ("DELETE", "/v1/sessions/{session}") => "sessions",
            ("POST", "/v1/services/{service}/drain") | ("PUT", "/v1/services/{service}/backends/{backend}/weight") => {
                "drain"
            }
            _ => "write",
        };
        assert_eq!(scopes[..], [expected.to_owned()], "{method} {path}");
    }
    let remote = Remote::new("tokens-scopes");
    let tokens = SCOPES.map(|scope| (scope, remote.add(scope, scope)));
    let others = SCOPES.map(|scope| {
        let others: Vec<_> = SCOPES.into_iter().filter(|other| *other != scope).collect();
        (scope, remote.add(&format!("not-{scope}"), &others.join(",")))
    });
    let _program = remote.start(refusing(), &[]);
    for (method, path, scopes) in &requests {
        let path = path.replace("{session}", "0").replace(['{', '}'], "");
        let request = format!("{method} {path}");
        for (scope, token) in &tokens {
            let is_own = *scope == scopes[0];
            // An upgrade has its own test.
            if is_own && path == "/v1/upgrade" {
                continue;
            }
            let (status, said) = remote.ask(&request, token);
            assert_eq!(![401, 403].contains(&status), is_own, "{request} with {scope}: {said}");
        }
        let (_, without) = others.iter().find(|(scope, _)| *scope == scopes[0]).unwrap();
        let (status, said) = remote.ask(&request, without);
        let why = format!("does not have the scope `{}`, which this request needs", scopes[0]);
        assert!(status == 403 && said.contains(&why), "{request}: {said}");
        assert!(
            said.contains("\r\nwww-authenticate: Bearer error=\"insufficient_scope\"\r\n"),
            "{said}"
        );
        assert_eq!(remote.send(&request, &[], "").0, 401, "{request}");
    }
}

#[test]
fn a_request_without_one_valid_token_is_refused_and_no_token_is_logged() {
    let remote = Remote::new("tokens-hostile");
    let (token, other) = (remote.add("panel", "read"), remote.add("other", "read"));
    let mut program = remote.start(refusing(), &["--log-level", "trace"]);
    let (right, long) = (bearer(&token), "x".repeat(64 << 10));
    let status = "GET /v1/status";
    for right in [
        &right,
        &format!("authorization:bearer \t {token} "),
        &format!("AUTHORIZATION: BEARER {token}"),
    ] {
        assert_eq!(remote.send(status, &[right.as_bytes()], "").0, 200, "{right}");
    }
    let texts = [
        format!("Authorization: Basic {token}"),
        format!("Authorization: {token}"),
        format!("Authorization: Bearer{token}"),
        format!("Authorization: Bearer {token} {token}"),
        format!("Authorization: Bearer {token},Bearer {other}"),
        format!("Authorization: Bearer \"{token}\""),
        format!("Authorization: Bearer {}", &token[..token.len() - 1]),
        format!("Proxy-Authorization: Bearer {token}"),
        "Authorization: Bearer".to_owned(),
        "Authorization: Bearer ".to_owned(),
        "Authorization:".to_owned(),
    ];
    for text in &texts {
        assert_eq!(remote.send(status, &[text.as_bytes()], "").0, 401, "{text}");
    }
    let two = [right.as_bytes(), right.as_bytes()];
    assert_eq!(
        remote.send(status, &two, "").0,
        401,
        "two headers, also if they are equal"
    );
    assert_eq!(
        remote
            .send(status, &[b"Authorization: Basic eA==", right.as_bytes()], "")
            .0,
        401
    );
    let not_text = [b"Authorization: Bearer ", &[0xff, 0xfe, 0x80][..], token.as_bytes()].concat();
    assert_eq!(remote.send(status, &[&not_text], "").0, 401);
    assert_eq!(remote.send(status, &[bearer(&long).as_bytes()], "").0, 431);
    assert_eq!(remote.send(&format!("{status}?access_token={token}"), &[], "").0, 401);
    // Whether a path exists is only told to holders of tokens.
    for request in ["GET /", "GET /v1/none", "TRACE /v1/status", "OPTIONS *"] {
        assert_eq!(remote.send(request, &[], "").0, 401, "{request}");
    }
    assert_eq!(remote.ask("GET /v1/none", &token).0, 404);
    let (code, said) = remote.ask("POST /v1/services", &token);
    assert!(code == 405 && said.contains("\r\nallow: GET, PATCH\r\n"), "{said}");
    assert!(said.contains("\r\ncache-control: no-store\r\n"), "{said}");
    program.line("admin: refuses a request without a valid token");
    program.terminate();
    assert!(program.exit().success());
    let lines = program.lines_so_far();
    assert!(lines.len() > 5, "{lines:?}");
    for line in &lines {
        assert!(!line.contains("spliceway_") && !line.contains(&token[10..30]), "{line}");
    }
    assert_eq!(program.lines_with("refuses a request without"), 1, "once in 10 s");
}

#[test]
fn a_removed_token_ends_at_the_reload_on_an_open_connection_too() {
    let remote = Remote::new("tokens-removed");
    let (token, kept) = (remote.add("panel", "read,write"), remote.add("kept", "read"));
    let mut program = remote.start(refusing(), &[]);
    let mut at_the_head = remote.connect();
    write!(
        at_the_head,
        "GET /v1/status HTTP/1.1\r\nHost: a\r\n{}\r\n",
        bearer(&token)
    )
    .unwrap();
    let mut at_the_body = remote.connect();
    let head = format!(
        "PUT /v1/log-level HTTP/1.1\r\nHost: a\r\n{}\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n",
        bearer(&token)
    );
    at_the_body.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    at_the_body.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    remote.remove("panel");
    assert_eq!(remote.ask("GET /v1/status", &token).0, 200, "before the reload");
    assert!(program.reload().contains("reloaded: changed the admin tokens"));
    assert_eq!(remote.ask("GET /v1/status", &token).0, 401);
    at_the_head.write_all(b"\r\n").unwrap();
    assert_eq!(answer(at_the_head).0, 401);
    at_the_body.write_all(br#"{"level": "trace"}"#).unwrap();
    assert_eq!(answer(at_the_body).0, 401);
    assert!(
        remote
            .ask("GET /v1/log-level", &kept)
            .1
            .ends_with("{\"level\":\"info\"}\n")
    );
    // A wrong file changes nothing, and the last token can be removed.
    let text = fs::read_to_string(remote.file()).unwrap();
    fs::write(remote.file(), format!("{text}nonsense\n")).unwrap();
    assert!(program.reload().contains("the reload is refused"));
    assert_eq!(remote.ask("GET /v1/status", &kept).0, 200);
    fs::write(remote.file(), &text).unwrap();
    remote.remove("kept");
    program.reload();
    assert_eq!(remote.ask("GET /v1/status", &kept).0, 401);
}

#[test]
fn each_change_has_the_name_of_its_token_in_the_log() {
    let remote = Remote::new("tokens-names");
    let token = remote.add("panel", "read,sessions,drain,write");
    let (local, target) = (Socket::new(), echo("127.0.0.1:0"));
    let records = TextFile::new("");
    let local_address = local.address();
    let log = ["--admin", &local_address, "--access-log", records.path()];
    let mut program = remote.start(target, &log);
    let _session = program.connect();
    program.await_sum("spliceway_connections_active", &[], 1);
    let service = json!({"kind": "forward", "listen": "127.0.0.1:0", "to": ["a:1", "b:1"]}).to_string();
    for (request, body, line) in [
        ("PUT /v1/services/web", &*service, "admin: added web; "),
        (
            "PATCH /v1/services/web",
            r#"{"deny": "10.0.0.1"}"#,
            "admin: changed web",
        ),
        ("PATCH /v1/services", r#"{"web": {"deny": null}}"#, "admin: changed web"),
        ("PUT /v1/services/web/backends/c:1", "", "admin: changed web"),
        ("DELETE /v1/services/web/backends/c:1", "", "admin: changed web"),
        (
            "PUT /v1/services/web/backends/b:1/weight",
            r#"{"weight": 0}"#,
            "admin: backend b:1 has the weight 0",
        ),
        (
            "POST /v1/services/web/drain",
            "",
            "admin: the service accepts no new clients",
        ),
        ("DELETE /v1/services/web", "", "admin: removed web"),
        ("DELETE /v1/sessions/1", "", "admin: closes a session"),
        (
            "PUT /v1/log-level",
            r#"{"level": "debug"}"#,
            "admin: sets the log level",
        ),
        ("POST /v1/reopen", "", "admin: "),
        ("POST /v1/reload", "", "reloaded: nothing has changed"),
    ] {
        let (status, said) = remote.send(request, &[bearer(&token).as_bytes()], body);
        assert!((200..300).contains(&status), "{request}: {said}");
        let line = program.line(line);
        assert!(line.contains(" (by panel)"), "{request}: {line}");
    }
    // The other socket needs no token, and its changes have no name.
    assert_eq!(local.ask("POST", "/v1/reload").0, 200);
    assert!(program.line("reloaded: ").ends_with("nothing has changed"));
}

#[test]
fn the_socket_and_its_tokens_stay_in_an_upgrade() {
    let remote = Remote::new("tokens-upgrade");
    let (token, gone) = (remote.add("panel", "read,write"), remote.add("gone", "read"));
    let mut program = remote.start(refusing(), &[]);
    remote.remove("gone");
    let (status, said) = remote.ask("POST /v1/upgrade", &token);
    assert!(status == 200 && said.contains("handed over"), "{said}");
    let line = program.line("handed over: process");
    assert!(line.ends_with(" (by panel)"), "{line}");
    let _process = Process::in_line(&line);
    let (status, said) = remote.ask("GET /v1/status", &token);
    assert!(status == 200 && said.contains("\"serving\""), "{said}");
    assert_eq!(
        remote.ask("GET /v1/status", &gone).0,
        401,
        "the new process reads the file"
    );
    assert_eq!(remote.send("GET /v1/status", &[], "").0, 401);
}

#[test]
fn a_change_of_services_keeps_the_tokens_and_reads_no_file() {
    let remote = Remote::new("tokens-change");
    let token = remote.add("panel", "read,write");
    let _program = remote.start(refusing(), &[]);
    fs::write(remote.file(), "nonsense\n").unwrap();
    let service = json!({"kind": "forward", "listen": "127.0.0.1:0", "to": "a:1"}).to_string();
    let (status, said) = remote.send("PUT /v1/services/web", &[bearer(&token).as_bytes()], &service);
    assert!(status == 201 && said.ends_with("\"}\n"), "{said}");
    assert_eq!(remote.ask("GET /v1/services/web", &token).0, 200);
}

#[test]
fn a_service_of_the_same_program_leads_to_the_socket() {
    let remote = Remote::new("tokens-forward");
    let token = remote.add("panel", "read");
    let _program = remote.start(refusing(), &[]);
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = {:?}\n",
        remote.socket.address()
    ));
    let other = Program::run(&file);
    let own = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\nremote = \"{0}.own\"\ntokens = {1:?}\n\
         [[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{0}.own\"\n",
        remote.socket.address(),
        remote.file()
    ));
    let own = Program::run(&own);
    for program in [&other, &own] {
        for (field, status) in [(bearer(&token), "200 OK"), (bearer("none"), "401 Unauthorized")] {
            let mut client = connect(program.address);
            write!(client, "GET /v1/status HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n").unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).unwrap();
            assert!(said.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{said}");
        }
    }
}

#[test]
fn the_commands_of_the_operator_send_a_token() {
    let remote = Remote::new("tokens-commands");
    let token = remote.add("panel", "read");
    let _program = remote.start(refusing(), &[]);
    let command = |arguments: &[&str], variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(arguments).args(["--admin", &remote.socket.address()]);
        command
            .env_remove("SPLICEWAY_TOKEN")
            .envs(variable.map(|token| ("SPLICEWAY_TOKEN", token)));
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.success(), String::from_utf8([stdout, stderr].concat()).unwrap())
    };
    let path = remote.folder.0.join("token");
    let file = path.to_str().unwrap();
    remote.folder.file("token", &format!("{token}\n"));
    assert!(command(&["status"], Some(&token)).0);
    assert!(command(&["status", "--token-file", file], Some("spliceway_other")).0);
    let (done, said) = command(&["status"], None);
    assert!(!done && said.contains("this socket needs a token"), "{said}");
    let (done, said) = command(&["reload"], Some(&token));
    assert!(
        !done && said.contains("`panel` does not have the scope `write`"),
        "{said}"
    );
    let (done, said) = command(&["status"], Some("a\nspliceway_secret"));
    assert!(
        !done && said.contains("characters that no token has") && !said.contains("secret"),
        "{said}"
    );
    let (done, said) = command(&["status", "--token-file", "/nowhere"], None);
    assert!(!done && said.contains("/nowhere: No such file"), "{said}");
}

#[test]
fn tokens_of_a_file_are_added_listed_and_removed() {
    let remote = Remote::new("tokens-life");
    let token = remote.add("panel", "write,read");
    remote.add("ops", "drain");
    let mode = fs::metadata(remote.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(
        !fs::read_to_string(remote.file()).unwrap().contains(&token[10..]),
        "the file has a hash"
    );
    let listed = |expected: &str| {
        let output = remote.command("list", &[]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    };
    listed("panel read,write\nops drain\n");
    let fails = |command: &str, arguments: &[&str], code: i32, expected: &str| {
        let output = remote.command(command, arguments);
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(
            output.status.code() == Some(code) && output.stdout.is_empty(),
            "{output:?}"
        );
        assert!(said.contains(expected), "{said}");
    };
    fails("add", &["ops", "--scope", "read"], 1, "tokens:2 (ops) is there already");
    fails(
        "add",
        &["x", "--scope", "all"],
        2,
        "out of read, sessions, drain, write",
    );
    fails("add", &["x"], 2, "--scope <SCOPES>");
    fails("add", &["a:b", "--scope", "read"], 2, "a name without `:`");
    fails(
        "del",
        &["none"],
        1,
        "there is no token `none`; `spliceway token list` shows all",
    );
    remote.remove("panel");
    listed("ops drain\n");
    assert!(remote.command("rm", &["ops"]).status.success());
    listed("");
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let remote = Remote::new("tokens-mode");
    remote.add("panel", "read");
    let (address, file) = (remote.socket.address(), remote.file());
    let file = file.to_str().unwrap();
    let start = [
        "socks5",
        "-l",
        "127.0.0.1:0",
        "--admin-remote",
        &address,
        "--admin-tokens",
    ];
    fs::set_permissions(file, fs::Permissions::from_mode(0o620)).unwrap();
    let said = refused_to_start(&[&start[..], &[file]].concat());
    assert!(
        said.contains(&format!("--admin-tokens: {file}: mode 0620 lets others add tokens")),
        "{said}"
    );
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    let said = refused_to_start(&[&start[..], &["/nowhere"]].concat());
    assert!(said.contains("--admin-tokens: /nowhere: No such file"), "{said}");
    let said = refused_to_start(&start[..5]);
    assert!(said.contains("--admin-tokens <FILE>"), "{said}");
}
