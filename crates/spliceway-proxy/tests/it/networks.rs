use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::admin::Socket as AdminSocket;
use crate::clients::{GREETING, NOT_ALLOWED, SUCCEEDED, ip_request, read_head, read_message};
use crate::handover::upgrade;
use crate::harness::{
    Folder, Program, TextFile, accept, assert_same, echo, is_closed, let_pass, listen, pattern, read_all, read_exactly,
    send_and_finish, was_reached, with_patience,
};

/// Returns a configuration with these tables, and a service that uses them.
fn file(kind: &str, clients: &str, tables: &str, service: &str) -> String {
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n{tables}\n\
         [[service]]\nkind = \"{kind}\"\nlisten = \"127.0.0.1:0\"\nclients = \"{clients}\"\n{service}\n"
    )
}

/// Returns a table of clients.
fn table(name: &str, from: &str, keys: &str) -> String {
    format!("[[client]]\nname = \"{name}\"\nfrom = \"{from}\"\n{keys}\n")
}

/// Connects from this address of loopback.
fn connect_from(program: &Program, ip: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let own = SocketAddrV4::new(Ipv4Addr::from(ip), 0);
    socket.bind(&SocketAddr::from(own).into()).unwrap();
    socket.connect(&program.address.into()).unwrap();
    with_patience(socket.into())
}

/// Asks for a session from this address. Returns the client and the code of the reply.
fn ask(program: &Program, ip: [u8; 4], target: SocketAddr) -> (TcpStream, u8) {
    let mut client = connect_from(program, ip);
    client.write_all(&GREETING).unwrap();
    read_exactly(&mut client, 2);
    client.write_all(&ip_request(target)).unwrap();
    let code = read_exactly(&mut client, 10)[1];
    (client, code)
}

fn session(program: &Program, ip: [u8; 4], target: SocketAddr) -> TcpStream {
    let (client, code) = ask(program, ip, target);
    assert_eq!(code, SUCCEEDED, "{ip:?}");
    client
}

/// Sends bytes through an echo and compares what comes back, until both sides have ended.
fn exchange(client: &TcpStream, bytes: usize) {
    let sent = pattern(9, bytes);
    std::thread::scope(|scope| {
        scope.spawn(|| send_and_finish(client, &sent));
        assert_same(&read_all(client), &sent);
    });
}

fn request(target: SocketAddr) -> String {
    format!("GET http://{target}/ HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Asks for a refused target, on a connection that stays open.
fn assert_forbidden(client: &mut TcpStream, target: SocketAddr) {
    client.write_all(request(target).as_bytes()).unwrap();
    let answer = read_message(client);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// Waits until users with these labels have no session.
fn await_no_session(program: &Program, labels: &[&str]) {
    while program.sum("spliceway_user_sessions", labels) > 0 {
        let_pass(Duration::from_millis(2));
    }
}

const BUILD: [u8; 4] = [127, 1, 2, 3];
const OFFICE: [u8; 4] = [127, 1, 9, 9];
const OTHER: [u8; 4] = [127, 0, 0, 1];

#[test]
fn the_smallest_network_of_a_client_decides_about_its_targets() {
    let targets = [(); 3].map(|()| echo("127.0.0.1:0"));
    let [build, office, others] = targets.map(|target| format!("to_allow = \":{}\"", target.port()));
    let tables = table("office", "127.1.0.0/16", &office) + &table("build", "127.1.2.0/24", &build);
    let config = TextFile::new(&file("socks5", "optional", &tables, &others));
    let mut program = Program::run(&config);
    for (ip, name, allowed) in [(BUILD, "build", 0), (OFFICE, "office", 1), (OTHER, "", 2)] {
        let of_user = format!(" user=\"{name}\" ");
        let is_named = |record: &str| record.contains(&of_user) || name.is_empty() && !record.contains(" user=");
        for (index, target) in targets.iter().enumerate() {
            if index == allowed {
                exchange(&session(&program, ip, *target), 300_000);
                let record = program.line("end=client_eof");
                assert!(is_named(&record), "{record}");
            } else {
                assert_eq!(ask(&program, ip, *target).1, NOT_ALLOWED, "{ip:?} {index}");
                let record = program.line("end=denied:target_rule");
                assert!(is_named(&record) && record.contains("--to-allow"), "{record}");
            }
        }
    }
    for name in ["build", "office"] {
        let label = [&*format!("user=\"{name}\"")];
        program.await_sum("spliceway_user_refused_total", &label, 2);
        program.await_sum("spliceway_user_bytes_total", &label, 600_000);
        await_no_session(&program, &label);
    }
}

#[test]
fn a_key_that_a_table_lacks_comes_from_the_defaults_and_the_service() {
    let targets = [(); 3].map(|()| echo("127.0.0.1:0"));
    let [a, b, c] = targets.map(|target| format!("\":{}\"", target.port()));
    let tables = "[defaults.user]\nmax_conns = 1\n".to_owned()
        + &table("build", "127.1.2.0/24", &format!("to_deny = {a}"))
        + &table("office", "127.1.0.0/16", &format!("to_allow = [{a}, {b}, {c}]"));
    let service = format!("to_allow = [{a}, {b}]\nto_deny = {b}");
    let config = TextFile::new(&file("socks5", "required", &tables, &service));
    let mut program = Program::run(&config);
    for (ip, codes) in [
        (BUILD, [NOT_ALLOWED, SUCCEEDED, NOT_ALLOWED]),
        (OFFICE, [SUCCEEDED, NOT_ALLOWED, SUCCEEDED]),
    ] {
        for (target, code) in targets.into_iter().zip(codes) {
            let (client, got) = ask(&program, ip, target);
            assert_eq!(got, code, "{ip:?} {target}");
            if code == SUCCEEDED {
                assert_eq!(ask(&program, ip, target).1, 1, "one session at a time");
                program.line("end=denied:user_max_conns");
            }
            // A refused session counts until it has ended, and only one may be open.
            drop(client);
            await_no_session(&program, &[]);
        }
    }
}

#[test]
fn a_service_may_refuse_clients_whose_network_has_no_table() {
    let (listener, target) = listen();
    let tables = table("build", "127.1.2.0/24", "");
    for kind in ["socks5", "http", "mixed", "forward"] {
        let to = match kind {
            "forward" => format!("to = \"{target}\""),
            _ => String::new(),
        };
        let config = TextFile::new(&file(kind, "required", &tables, &to));
        let mut program = Program::run(&config);
        for ip in [OTHER, OFFICE] {
            assert!(is_closed(&mut connect_from(&program, ip)), "{kind}");
            let record = program.line("end=denied:client");
            let cause = format!("no table [[client]] has the network of {}", Ipv4Addr::from(ip));
            assert!(record.contains(&cause) && !record.contains("user="), "{record}");
        }
        assert!(!was_reached(&listener), "{kind}");
        assert_eq!(program.sum("spliceway_refused_total", &["reason=\"client\""]), 2);
    }
    // The network of a table is served.
    let (listener, target) = listen();
    let config = TextFile::new(&file("forward", "required", &tables, &format!("to = \"{target}\"")));
    let program = Program::run(&config);
    let client = connect_from(&program, BUILD);
    let served = accept(&listener);
    send_and_finish(&client, b"up");
    send_and_finish(&served, b"down");
    assert_eq!(
        (read_all(&client), read_all(&served)),
        (b"down".to_vec(), b"up".to_vec())
    );
}

#[test]
fn the_clients_of_a_network_share_its_limits_in_all_services() {
    let target = echo("127.0.0.1:0");
    let tables = table("build", "127.1.2.0/24", "max_conns = 2") + &table("office", "127.1.0.0/16", "rate_in = \"1B\"");
    let second = format!(
        "[[service]]\nname = \"second\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\nclients = \"optional\"\n"
    );
    let config = TextFile::new(&file("socks5", "optional", &tables, &second));
    let mut program = Program::run(&config);
    let first = session(&program, BUILD, target);
    let second = session(&program, [127, 1, 2, 200], target);
    assert_eq!(ask(&program, [127, 1, 2, 77], target).1, 1, "a general failure");
    let record = program.line("end=denied:user_max_conns");
    assert!(record.contains("user=\"build\""), "{record}");
    // Other networks have limits of their own.
    let others = [session(&program, OFFICE, target), session(&program, OTHER, target)];
    program.await_sum("spliceway_user_sessions", &["user=\"build\""], 2);
    program.await_sum("spliceway_user_sessions", &["user=\"office\""], 1);
    program.await_sum("spliceway_user_refused_total", &["user=\"build\""], 1);
    drop((first, second, others));
    await_no_session(&program, &[]);
    session(&program, BUILD, target);
}

#[test]
fn each_request_of_a_kept_connection_has_the_rules_of_its_network() {
    let ((listener, allowed), (other, refused)) = (listen(), listen());
    let tables = table("build", "127.1.2.0/24", &format!("to_allow = \":{}\"", allowed.port()));
    let config = TextFile::new(&file("http", "required", &tables, ""));
    let mut program = Program::run(&config);
    let mut client = connect_from(&program, BUILD);
    for _ in 0..2 {
        assert_forbidden(&mut client, refused);
        let record = program.line("end=denied:target_rule");
        assert!(record.contains("user=\"build\""), "{record}");
    }
    client.write_all(request(allowed).as_bytes()).unwrap();
    let mut server = accept(&listener);
    assert!(read_head(&mut server).starts_with("GET / HTTP/1.1\r\n"));
    server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 204 "));
    let record = program.line("end=answered");
    assert!(record.contains("user=\"build\""), "{record}");
    assert!(!was_reached(&other));
    program.await_sum("spliceway_user_refused_total", &["user=\"build\""], 2);
}

#[test]
fn the_address_in_a_proxy_header_has_the_network_and_not_the_balancer() {
    let (listener, target) = listen();
    let tables = table("balancer", "127.0.0.0/8", "") + &table("build", "10.1.2.0/24", "");
    let service = format!("to = \"{target}\"\naccept_proxy = \"v1\"\nproxy_from = \"127.0.0.0/8\"");
    let config = TextFile::new(&file("forward", "required", &tables, &service));
    let mut program = Program::run(&config);
    let header = |ip: &str| format!("PROXY TCP4 {ip} 198.51.100.2 56324 443\r\n");
    let client = program.connect();
    send_and_finish(&client, header("10.1.2.3").as_bytes());
    drop(accept(&listener));
    assert_eq!(read_all(&client), b"");
    let record = program.line("end=");
    assert!(record.contains("client=10.1.2.3:56324 user=\"build\""), "{record}");
    let client = program.connect();
    (&client).write_all(header("10.9.9.9").as_bytes()).unwrap();
    let record = program.line("end=denied:client");
    assert!(
        !record.contains("user=") && record.contains("the network of 10.9.9.9"),
        "{record}"
    );
    assert!(!was_reached(&listener));
}

/// The load balancer states the address once for each connection.
#[test]
fn each_request_behind_a_balancer_has_the_user_of_the_stated_address() {
    let (_listener, target) = listen();
    let rules = format!("allow_private = true\nto_deny = \":{}\"", target.port());
    let tables = table("build", "10.1.2.0/24", &rules);
    let service = "accept_proxy = \"v1\"\nproxy_from = \"127.0.0.0/8\"";
    let config = TextFile::new(&file("http", "required", &tables, service));
    let mut program = Program::run(&config);
    let mut client = program.connect();
    client
        .write_all(b"PROXY TCP4 10.1.2.3 198.51.100.2 56324 443\r\n")
        .unwrap();
    for _ in 0..2 {
        assert_forbidden(&mut client, target);
        let record = program.line("end=denied:target_rule");
        assert!(record.contains("user=\"build\""), "{record}");
    }
}

#[test]
fn a_reload_replaces_tables_and_keeps_sessions_and_quotas() {
    let (target, folder, socket) = (echo("127.0.0.1:0"), Folder::new("networks-reload"), AdminSocket::new());
    let limits = format!(
        "socket = \"{}\"\n[limits]\nquota_file = \"{}\"\n",
        socket.address(),
        folder.0.join("quotas").display()
    );
    let service = |tables: &str| file("socks5", "required", &(limits.clone() + tables), "");
    let quota = "quota = \"1MB/day\"";
    let config = TextFile::new(&service(&table("build", "127.1.2.0/24", quota)));
    let mut program = Program::run(&config);
    let mut kept = session(&program, BUILD, target);
    let sent = pattern(3, 100_000);
    kept.write_all(&sent).unwrap();
    assert_same(&read_exactly(&mut kept, sent.len()), &sent);
    // The network moves to another table, and the table has another network.
    config.write(&service(
        &(table("build", "127.1.9.0/24", quota) + &table("test", "127.1.2.0/24", "")),
    ));
    let report = program.reload();
    assert!(report.contains("reloaded: changed socks5"), "{report}");
    exchange(&session(&program, BUILD, target), 10);
    let record = program.line("end=client_eof");
    assert!(record.contains("user=\"test\""), "{record}");
    // What the name has used counts for its new network.
    exchange(&session(&program, OFFICE, target), 100_000);
    let record = program.line("end=client_eof");
    assert!(record.contains("user=\"build\""), "{record}");
    let used = ["user=\"build\"", "period=\"day\""];
    program.await_sum("spliceway_user_quota_used_bytes", &used, 400_000);
    // The session goes on under the name with which it began.
    kept.write_all(&sent).unwrap();
    assert_same(&read_exactly(&mut kept, sent.len()), &sent);
    program.await_sum("spliceway_user_quota_used_bytes", &used, 600_000);
    // A table that has a fault changes nothing.
    config.write(&service(
        &(table("build", "127.1.2.0/24", quota) + &table("test", "127.1.2.9/24", "")),
    ));
    let report = program.reload();
    assert!(report.contains("127.1.2.0/24 is also a network of build"), "{report}");
    exchange(&session(&program, OFFICE, target), 10);
    // Without its table, a user is removed, and an operator may end its sessions.
    config.write(&service(&table("test", "127.1.0.0/16", "")));
    let report = program.reload();
    assert!(report.contains("removed users build of socks5"), "{report}");
    let output = socket.command(&["reload", "--end-sessions"]);
    assert!(output.status.success(), "{output:?}");
    assert!(is_closed(&mut kept));
}

#[test]
fn an_upgrade_keeps_the_name_and_the_account_of_a_session() {
    let target = echo("127.0.0.1:0");
    let tables = table("build", "127.1.2.0/24", "max_conns = 1");
    let config = TextFile::new(&file("socks5", "required", &tables, ""));
    let mut program = Program::run(&config);
    let mut client = session(&program, BUILD, target);
    let sent = pattern(3, 100_000);
    client.write_all(&sent).unwrap();
    assert_same(&read_exactly(&mut client, sent.len()), &sent);
    let next = upgrade(&mut program, None);
    assert!(program.exit().success());
    assert_eq!(ask(&program, BUILD, target).1, 1, "the session that moved counts");
    client.write_all(&sent).unwrap();
    assert_same(&read_exactly(&mut client, sent.len()), &sent);
    drop(client);
    let record = program.line("end=client_eof");
    assert!(record.contains("user=\"build\""), "{record}");
    drop(next);
}

/// Runs `spliceway check` on a file.
fn check(text: &str) -> (bool, String) {
    let config = TextFile::new(text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(["check", "-c", config.path()]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn a_check_counts_the_tables_and_warns_if_no_service_uses_them() {
    let tables = table("build", "127.1.2.0/24", "") + &table("office", "127.1.0.0/16", "");
    let (is_valid, text) = check(&file("socks5", "required", &tables, ""));
    assert!(is_valid && text.contains("2 users by network"), "{text}");
    assert!(!text.contains("no service has the user"), "{text}");
    let unused = file("socks5", "required", &tables, "").replace("clients = \"required\"\n", "");
    let (is_valid, text) = check(&unused);
    assert!(
        is_valid && text.matches("no service has the key `clients`").count() == 1,
        "{text}"
    );
}

/// In memory, the names of each table would be ten million.
#[test]
fn ten_thousand_tables_share_the_names_of_their_files() {
    let folder = Folder::new("networks-many");
    let names: String = (0..1000)
        .map(|number| format!("host{number}.example.com:443\n"))
        .collect();
    folder.file("names", &names);
    let tables = (0..10_000).map(|number| {
        let own = format!("to_allow = [\"@names\", \"own{number}.example.com\"]");
        table(
            &format!("client-{number}"),
            &format!("10.{}.{}.0/24", number / 256, number % 256),
            &own,
        )
    });
    let tables: String = tables.collect();
    let path = folder.0.join("spliceway.toml");
    std::fs::write(&path, file("http", "optional", &tables, "")).unwrap();
    let program = Program::run(&TextFile(path));
    // Ten million names need a gigabyte.
    let resident = program.resident_bytes();
    assert!(resident < 200 << 20, "{resident}");
}
