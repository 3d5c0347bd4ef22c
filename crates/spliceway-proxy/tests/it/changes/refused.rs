//! Changes that are refused, and what the answers tell.

use std::process::Command;

use super::*;
use crate::harness::{Folder, refusing};

#[test]
fn an_address_that_another_one_contains_is_free_after_its_service() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let mut table = forward(target);
    table["listen"] = json!("0.0.0.0:0");
    assert_eq!(send(&socket, "PUT /v1/services/web", &[], &table).status, 201);
    let port = address(&socket, "web").unwrap().port();
    let one = format!("127.0.0.1:{port}");
    let refused = send(&socket, "PATCH /v1/services/web", &[], &json!({"listen": one}));
    let why = format!(
        "cannot listen on {one} while the service `web` listens on 0.0.0.0:{port}: first remove that service, or \
         change its port, and then use {one}"
    );
    assert_eq!((refused.status, refused.text()), (409, &*why));
    let at_one: SocketAddr = one.parse().unwrap();
    exchange(&with_patience(TcpStream::connect(at_one).unwrap()));
    assert_eq!(send(&socket, "DELETE /v1/services/web", &[], &Value::Null).status, 200);
    assert!(is_free(at_one));
    table["listen"] = json!(one);
    assert_eq!(send(&socket, "PUT /v1/services/web", &[], &table).status, 201);
    exchange(&with_patience(TcpStream::connect(at_one).unwrap()));
}

/// Starts the program with two variables in its environment, one of them for a service in a file.
fn start_with_variables(folder: &Folder, socket: &Socket, target: SocketAddr, busy: SocketAddr) -> Program {
    let used = r#"check = "send:${SECRET}""#;
    folder.file("main.toml", &format!("{}{used}\n", config(socket, target)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["run", "-c"]).arg(&folder.0);
    command.envs([("SECRET", "hunter2 a:Wonderland"), ("BUSY", &busy.to_string())]);
    Program::spawn(command, true)
}

#[test]
fn an_answer_shows_the_name_of_a_variable_and_not_its_value() {
    let (folder, socket, target) = (Folder::new("hidden"), Socket::new(), echo("127.0.0.1:0"));
    let (_listener, busy) = listen();
    let mut program = start_with_variables(&folder, &socket, target, busy);
    for (key, value, status, expected) in [
        (
            "to",
            json!("x${SECRET}"),
            422,
            "service `web`: to: the port is missing: write x${SECRET}:PORT",
        ),
        ("listen", json!(["${SECRET}"]), 422, "service `web`: listen: "),
        ("backend", json!("${SECRET}"), 422, "string \"${SECRET}\""),
        ("tls_cert", json!("${SECRET}"), 422, "/${SECRET}: No such file"),
        ("listen", json!("${BUSY}"), 409, "cannot listen on ${BUSY}: "),
    ] {
        let mut table = forward(target);
        table[key] = value;
        let refused = send(&socket, "PUT /v1/services/web", &[], &table);
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(refused.text().contains(expected), "{refused:?}");
        let text = refused.text().to_lowercase();
        assert!(!text.contains("hunter2") && !text.contains("wonderland") && !text.contains(&busy.to_string()));
    }
    folder.file(
        "main.toml",
        &config(&socket, target).replace(&target.to_string(), "${SECRET}"),
    );
    let reloaded = socket.ask("POST", "/v1/reload").1;
    let text = reloaded["error"].as_str().unwrap();
    assert!(text.contains("to: the port is missing: write ${SECRET}:PORT"), "{text}");
    assert!(
        program
            .line("the reload is refused, and the previous settings stay in force")
            .contains("${SECRET}")
    );
}

#[test]
fn a_password_in_a_table_is_refused_beside_a_variable_too() {
    let (folder, socket, target) = (Folder::new("inline"), Socket::new(), echo("127.0.0.1:0"));
    let _program = start_with_variables(&folder, &socket, target, refusing());
    for (key, value) in [
        ("auth", "ann:secret${SECRET}"),
        ("auth", "${SECRET}:secret"),
        ("upstream_proxy", "http://ann:secret${BUSY}@127.0.0.1:1"), // Port because nothing connects.
        ("upstream_proxy", "http://${BUSY}:secret@127.0.0.1:1"),    // Port because nothing connects.
    ] {
        let table = json!({"kind": "http", "listen": "127.0.0.1:0", key: value});
        let refused = send(&socket, "PUT /v1/services/web", &[], &table);
        assert_eq!(refused.status, 422, "{refused:?}");
        let text = refused.text();
        assert!(
            text.contains("a file must not contain a password") && !text.contains(":secret"),
            "{text}"
        );
    }
    for (key, value) in [
        ("auth", "ann:${BUSY}"),
        ("auth", "${SECRET}"),
        ("upstream_proxy", "http://ann:${BUSY}@127.0.0.1:1"), // Port because nothing connects.
    ] {
        let table = json!({"kind": "http", "listen": "127.0.0.1:0", key: value});
        let changed = send(&socket, "PUT /v1/services/web", &[], &table);
        assert!(changed.status < 300, "{changed:?}");
    }
}

#[test]
fn a_table_is_searched_for_faults_only_until_an_answer_is_full() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let mut table = forward(target);
    table["deny"] = json!(vec!["x"; 3000]);
    let refused = send(&socket, "PUT /v1/services/web", &[], &table);
    assert_eq!(
        (refused.status, refused.text().lines().count()),
        (422, 51),
        "{refused:?}"
    );
    assert!(
        refused.text().ends_with("\nand 1 more: correct these first"),
        "{refused:?}"
    );
}
