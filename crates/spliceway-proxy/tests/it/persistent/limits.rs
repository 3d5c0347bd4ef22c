use std::io::Write;
use std::net::TcpStream;

use super::{DONE, assert_done, get, kept, serve};
use crate::admin::Socket;
use crate::clients::{read_head, read_message};
use crate::handover::upgrade;
use crate::harness::{Program, TextFile, accept, is_closed, listen, read_all, read_exactly, was_reached};

#[test]
fn a_drain_ends_idle_connections_and_lets_answers_finish() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (idle, target) = kept(&program, &listener);
    let (mut busy, mut busy_target) = kept(&program, &listener);
    busy.write_all(get(address, "/late").as_bytes()).unwrap();
    read_head(&mut busy_target);
    program.terminate();
    assert_eq!((read_all(&idle), read_all(&target)), (vec![], vec![]));
    drop(idle);
    program.line("draining");
    busy_target.write_all(DONE.as_bytes()).unwrap();
    let answer = read_message(&mut busy);
    assert!(
        answer.contains("\r\nConnection: close\r\n") && answer.ends_with("done"),
        "{answer}"
    );
    assert_eq!(read_all(&busy), b"");
    drop(busy);
    assert_eq!(program.exit().code(), Some(0));
    assert_eq!(program.lines_with("end=answered"), 3);
    assert_eq!(program.lines_with("end="), 3, "an idle connection is no session");
}

#[test]
fn a_client_that_sends_its_body_during_a_drain_learns_of_it() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    write!(
        client,
        "PUT http://{address}/x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello"
    )
    .unwrap();
    read_head(&mut target);
    assert_eq!(read_exactly(&mut target, 5), b"hello");
    program.terminate();
    program.line("draining");
    client.write_all(b"world").unwrap();
    assert_eq!(read_exactly(&mut target, 5), b"world");
    target.write_all(DONE.as_bytes()).unwrap();
    let answer = read_message(&mut client);
    assert!(
        answer.contains("\r\nConnection: close\r\n") && answer.ends_with("done"),
        "{answer}"
    );
    assert_eq!(read_all(&client), b"");
}

#[test]
fn an_upgrade_ends_idle_connections_and_lets_answers_finish() {
    let mut program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (idle, _) = kept(&program, &listener);
    let (mut busy, mut busy_target) = kept(&program, &listener);
    busy.write_all(get(address, "/late").as_bytes()).unwrap();
    read_head(&mut busy_target);
    let _next = upgrade(&mut program, None);
    assert_eq!(read_all(&idle), b"");
    busy_target.write_all(DONE.as_bytes()).unwrap();
    let answer = read_message(&mut busy);
    assert!(
        answer.contains("\r\nConnection: close\r\n") && answer.ends_with("done"),
        "{answer}"
    );
    drop((idle, busy));
    assert!(program.exit().success(), "the old process");
    // The new process serves the client's next connection.
    kept(&program, &listener);
}

#[test]
fn a_drained_service_ends_its_idle_connections() {
    let socket = Socket::new();
    let program = Program::proxy("http", &["--admin", &socket.address()]);
    let (listener, _) = listen();
    let (idle, target) = kept(&program, &listener);
    assert_eq!(socket.ask("POST", "/v1/services/http/drain").0, 200);
    assert_eq!((read_all(&idle), read_all(&target)), (vec![], vec![]));
}

/// Returns a configuration that refuses this target.
fn denying(target: &str) -> String {
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"web\"\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         to_deny = [\"{target}\"]\n"
    )
}

/// A request that began later would be served by the old rules.
#[test]
fn a_reload_that_changes_a_service_ends_its_idle_connections() {
    let settings = TextFile::new(&denying("192.0.2.1"));
    let mut program = Program::run(&settings);
    let (listener, address) = listen();
    let (mut idle, mut target) = kept(&program, &listener);
    assert!(program.reload().contains("nothing"), "a reload without a change");
    idle.write_all(get(address, "/next").as_bytes()).unwrap();
    serve(&mut target, "/next");
    assert_done(&mut idle);
    // The target has the request when the settings change.
    idle.write_all(get(address, "/late").as_bytes()).unwrap();
    read_head(&mut target);
    let (other, _) = kept(&program, &listener);
    settings.write(&denying("127.0.0.1"));
    assert!(program.reload().contains("reloaded"));
    assert_eq!(read_all(&other), b"");
    target.write_all(DONE.as_bytes()).unwrap();
    assert!(read_message(&mut idle).contains("\r\nConnection: close\r\n"));
    assert_eq!(read_all(&idle), b"");
}

/// The client was told that its connection stays open, and its next request is there already.
#[test]
fn a_request_that_waits_for_an_answer_is_not_served_by_rules_of_before() {
    let settings = TextFile::new(&denying("192.0.2.1"));
    let mut program = Program::run(&settings);
    let (listener, address) = listen();
    let mut client = program.connect();
    client
        .write_all([get(address, "/long"), get(address, "/next")].concat().as_bytes())
        .unwrap();
    let mut target = accept(&listener);
    assert!(read_head(&mut target).starts_with("GET /long "));
    target
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
        .unwrap();
    assert!(read_head(&mut client).contains("\r\nConnection: keep-alive\r\n"));
    settings.write(&denying("127.0.0.1"));
    assert!(program.reload().contains("reloaded"));
    target.write_all(b"rest").unwrap();
    assert_eq!(read_all(&client), b"halfrest");
    assert_eq!(read_all(&target), b"", "the next request");
    assert!(!was_reached(&listener));
}

#[test]
fn an_idle_connection_ends_with_the_idle_timeout() {
    let program = Program::proxy("http", &["--idle-timeout", "200ms"]);
    let (listener, _) = listen();
    let (client, target) = kept(&program, &listener);
    assert_eq!((read_all(&client), read_all(&target)), (vec![], vec![]));
    assert_eq!(program.sum("spliceway_connections_total", &[]), 1);
}

#[test]
fn a_connection_carries_a_thousand_requests() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    let request = get(address, "/x");
    for _ in 0..998 {
        client.write_all(request.as_bytes()).unwrap();
        serve(&mut target, "/x");
        assert_done(&mut client);
    }
    client.write_all(request.as_bytes()).unwrap();
    serve(&mut target, "/x");
    assert!(read_message(&mut client).contains("\r\nConnection: close\r\n"));
    assert_eq!(read_all(&client), b"");
}

#[test]
fn at_the_limit_on_sessions_connections_are_not_kept() {
    let program = Program::proxy("http", &["--max-conns", "2"]);
    let (listener, address) = listen();
    let (_first, _) = kept(&program, &listener);
    let mut second = program.connect();
    second.write_all(get(address, "/x").as_bytes()).unwrap();
    serve(&mut accept(&listener), "/x");
    assert!(read_message(&mut second).contains("\r\nConnection: close\r\n"));
    assert_eq!(read_all(&second), b"");
}

#[test]
fn the_connection_that_is_idle_for_longest_makes_room_at_the_limit() {
    let program = Program::proxy("http", &["--max-conns", "3"]);
    let (listener, address) = listen();
    let (first, _) = kept(&program, &listener);
    let (mut second, mut target) = kept(&program, &listener);
    let mut other = program.connect();
    other.write_all(get(address, "/x").as_bytes()).unwrap();
    let mut other_target = accept(&listener);
    assert_eq!(read_all(&first), b"");
    second.write_all(get(address, "/next").as_bytes()).unwrap();
    serve(&mut target, "/next");
    assert!(read_message(&mut second).ends_with("\r\n\r\ndone"));
    serve(&mut other_target, "/x");
    assert!(read_message(&mut other).ends_with("\r\n\r\ndone"));
}

#[test]
fn a_kept_connection_counts_towards_the_limit_of_its_client() {
    let program = Program::proxy("http", &["--max-conns-per-ip", "1"]);
    let (listener, _) = listen();
    let (_first, _) = kept(&program, &listener);
    assert!(is_closed(&mut program.connect()));
    program.await_end("denied:max_conns_per_ip");
}

#[test]
fn a_kept_connection_speaks_no_other_protocol() {
    let program = Program::proxy("mixed", &[]);
    let (listener, _) = listen();
    for said in [&[5, 1, 0][..], &[4, 1, 0, 80, 127, 0, 0, 1, 0], b"\x16\x03\x01"] {
        let (mut client, _) = kept(&program, &listener);
        client.write_all(said).unwrap();
        assert!(read_message(&mut client).starts_with("HTTP/1.1 400 "));
        assert!(is_closed(&mut client));
    }
}

#[test]
fn an_empty_line_after_a_body_begins_no_request() {
    let program = Program::proxy("http", &["--handshake-timeout", "300ms"]);
    let (listener, address) = listen();
    let (mut client, mut target) = kept(&program, &listener);
    client.write_all(b"\r\n").unwrap();
    // The request that the empty line would have begun is late after this time.
    crate::harness::let_pass(std::time::Duration::from_millis(600));
    client
        .write_all(["\r\n", &get(address, "/next")].concat().as_bytes())
        .unwrap();
    serve(&mut target, "/next");
    assert_done(&mut client);
}

#[test]
fn a_late_request_on_a_kept_connection_gets_a_408() {
    let program = Program::proxy("http", &["--handshake-timeout", "200ms"]);
    let (listener, _) = listen();
    let (mut client, _) = kept(&program, &listener);
    client.write_all(b"GET http://192.0.2.1/ HTTP/1.1\r\nHost:").unwrap();
    assert!(read_message(&mut client).starts_with("HTTP/1.1 408 "));
    assert!(is_closed(&mut client));
}

/// Each request is checked by itself, whoever has sent the one before.
#[test]
fn each_request_has_its_own_user_and_the_rules_of_that_user() {
    let (listener, address) = listen();
    let users = TextFile::new("ann:wonder\neve:apple\n");
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"web\"\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         auth_file = \"{}\"\n[[user]]\nname = \"eve\"\nto_deny = [\"{address}\"]\n",
        users.path()
    ));
    let mut program = Program::run(&file);
    let mut client = program.connect();
    // ann:wonder, eve:apple, eve:wonder
    let (ann, eve, wrong) = ("YW5uOndvbmRlcg==", "ZXZlOmFwcGxl", "ZXZlOndvbmRlcg==");
    let request = |credentials: &str| {
        format!(
            "POST http://{address}/x HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic {credentials}\r\n\
             Content-Length: 2\r\n\r\nhi"
        )
    };
    let mut target: Option<TcpStream> = None;
    for (credentials, status, end) in [
        (ann, 200, "user=\"ann\" protocol=\"http\" target="),
        ("", 407, "end=denied:auth_required"),
        (eve, 403, "end=denied:target_rule"),
        (wrong, 407, "end=denied:auth"),
        (ann, 200, "user=\"ann\" protocol=\"http\" target="),
    ] {
        client.write_all(request(credentials).as_bytes()).unwrap();
        if status == 200 {
            let target = target.get_or_insert_with(|| accept(&listener));
            assert!(read_head(target).starts_with("POST /x "));
            assert_eq!(read_exactly(target, 2), b"hi");
            target.write_all(DONE.as_bytes()).unwrap();
        }
        let answer = read_message(&mut client);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\nConnection: keep-alive\r\n"), "{answer}");
        program.line(end);
        if credentials == eve {
            // The refused request had no use for the connection that ann's request has opened.
            assert!(is_closed(target.as_mut().unwrap()));
            target = None;
        }
    }
    assert!(!was_reached(&listener), "no other request has reached the target");
}

#[test]
fn a_client_that_leaves_ends_the_connection_of_its_target() {
    let program = Program::proxy("http", &[]);
    let (listener, address) = listen();
    let (client, target) = kept(&program, &listener);
    drop(client);
    assert_eq!(read_all(&target), b"");
    // A client that has ended its side still gets its answer.
    let (mut client, mut target) = kept(&program, &listener);
    client.write_all(get(address, "/x").as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    serve(&mut target, "/x");
    assert_done(&mut client);
    assert_eq!((read_all(&client), read_all(&target)), (vec![], vec![]));
}
