//! What a refused client and the operator read, and what the rules for names leave open.

use std::io::Write;
use std::net::Shutdown;
use std::process::Command;

use super::{GOOD, Guarded, OTHER};
use crate::harness::{
    Program, TextFile, accept, connect, has_level, is_closed, read_all, read_exactly, send_and_finish, was_reached,
};
use crate::sni::{followed_name, hello, named};

/// Sends bytes to a server that is not listed, and returns the answer and the record.
fn refused(guarded: &Guarded, program: &mut Program, sent: &[u8]) -> (String, String) {
    let mut client = guarded.connect(&format!("{OTHER}:80"));
    // The program may refuse the client before it has sent everything.
    let _ = client.write_all(sent);
    let _ = client.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut client, &mut answer);
    (String::from_utf8_lossy(&answer).into_owned(), program.line("end="))
}

#[test]
fn the_record_says_why_a_client_has_no_name() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.guard(&[]);
    let get = "GET / HTTP/1.1\r\n";
    let tls = |bytes: Vec<u8>, why| (bytes, why);
    let http = |text: String, why| (text.into_bytes(), why);
    let partial = "the client has ended its stream before it stated a name";
    for (sent, why) in [
        http(format!("{get}\r\n"), "the request names no host"),
        http(
            format!("{get}Host: good.test\r\nHost: good.test\r\n\r\n"),
            "the request is not valid HTTP/1.0 or HTTP/1.1",
        ),
        http(
            format!("{get}Host: good.test..\r\n\r\n"),
            "the request does not name one valid host and port",
        ),
        http(
            "GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n".into(),
            "the URI of the request is not an http:// URI",
        ),
        http(
            format!("{get}Host: good.test\r\nContent-Length: 1, 2\r\n\r\n"),
            "the end of the request body is ambiguous",
        ),
        http(
            "CONNECT good.test:80 HTTP/1.1\r\nHost: good.test\r\n\r\n".into(),
            "CONNECT is a request to a proxy",
        ),
        http(format!("{get}Host: {GOOD}\r\n\r\n"), "`Host` has an address"),
        http(format!("{get}Host: good.te"), partial),
        tls(named("good.test")[..20].to_vec(), partial),
        tls(followed_name(), "the ClientHello is malformed"),
        tls(hello(None, &[], 20 << 10), "the ClientHello has more than 20 KiB"),
        tls(
            named("a..test"),
            "the client states a name in TLS that no host can have",
        ),
        tls(hello(None, &[], 0), "the client states no name in TLS"),
    ] {
        let (answer, record) = refused(&guarded, &mut program, &sent);
        let cause = format!("cause=\"{why}, and no rule allows {OTHER}:80\"");
        assert!(
            record.contains("end=denied:name_missing") && record.contains(&cause),
            "{why}: {record}"
        );
        // The client does not know that there is a proxy.
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        assert!(
            !body.to_lowercase().contains("prox") && !body.contains("CONNECT"),
            "{answer}"
        );
        assert_eq!(body.is_empty(), !answer.starts_with("HTTP"), "{answer}");
    }
    // A client that only opens and closes a connection is not refused.
    let (answer, record) = refused(&guarded, &mut program, b"");
    assert!(answer.is_empty() && record.contains("end=client_eof"), "{record}");
}

#[test]
fn an_upgrade_to_websocket_is_a_tunnel_to_the_named_server() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.guard(&[]);
    let good = guarded.listen(GOOD, 80);
    let mut client = guarded.connect(&format!("{OTHER}:80"));
    let head = "GET /chat HTTP/1.1\r\nHost: good.test\r\n";
    write!(
        client,
        "{head}Connection: Upgrade\r\nUpgrade: connect-udp, websocket\r\n\r\n"
    )
    .unwrap();
    let mut server = accept(&good);
    assert_eq!(read_exactly(&mut server, head.len()), head.as_bytes());
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    send_and_finish(&server, format!("{switched}down").as_bytes());
    assert_eq!(read_all(&client), format!("{switched}down").into_bytes());
    send_and_finish(&client, b"up");
    let rest = String::from_utf8(read_all(&server)).unwrap();
    assert!(
        rest.ends_with("\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nup"),
        "{rest}"
    );
    drop((client, server));
    let record = program.line("end=");
    assert!(record.contains("protocol=\"http\" target=good.test:80 "), "{record}");
}

/// A client could fill the log with names that do not exist.
#[test]
fn names_that_do_not_exist_are_one_warning_in_10_s() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.guard(&[]);
    for level in ["WARN", "INFO", "INFO"] {
        let mut client = guarded.connect(&format!("{OTHER}:443"));
        client.write_all(&named("missing.wild.test")).unwrap();
        assert!(is_closed(&mut client));
        let record = program.line("end=connect_failed:unresolved");
        assert!(has_level(&record, level), "{level}: {record}");
    }
}

/// Clients of this machine could reach private addresses by themselves. A rule for a name still
/// opens none, because others choose the addresses of the name.
#[test]
fn a_name_with_a_private_address_is_refused_on_loopback_too() {
    let Some(guarded) = Guarded::new() else { return };
    let network = &guarded.network;
    let good = guarded.listen(GOOD, 443);
    for (private, expected) in [
        (&[][..], "end=denied:private"),
        (&["--allow-private=10.77.1.0/24"], "end=client_eof"),
        (&["--allow-private"], "end=client_eof"),
    ] {
        let common = [
            "transparent",
            "-l",
            "127.0.0.1:0",
            "--names",
            "--to-allow",
            "good.test",
            "--dns",
            "127.0.0.2",
        ];
        let (mut program, mut client, name) = network.at_gateway(|| {
            let program = Program::start(&[&common[..], private, &["--mark", "1"]].concat());
            let port = program.address.port();
            let (name, rule) = (
                format!("own{port}"),
                format!("meta mark != 1 tcp dport 443 redirect to :{port}"),
            );
            network.rule(&name, "nat hook output priority -100", &rule);
            (program, connect(format!("{OTHER}:443").parse().unwrap()), name)
        });
        client.write_all(&named("good.test")).unwrap();
        if expected == "end=client_eof" {
            let mut server = accept(&good);
            assert_eq!(read_exactly(&mut server, named("good.test").len()), named("good.test"));
            client.shutdown(Shutdown::Write).unwrap();
            assert!(read_all(&server).is_empty());
        } else {
            assert!(is_closed(&mut client));
        }
        drop(client);
        let record = program.line("end=");
        assert!(record.contains(expected), "{private:?}: {record}");
        network.load(&format!("delete table inet {name}\n"));
    }
    assert!(!was_reached(&good));
}

/// A guard that only refuses is a legal wish, and an easy mistake.
#[test]
fn names_without_an_allow_list_are_a_warning() {
    let warning = "without to_allow, clients reach every name that to_deny does not refuse";
    let check = |rules: &str| {
        let text = format!("[[service]]\nkind = \"transparent\"\nlisten = \":9040\"\nopen = true\n{rules}\n");
        let file = TextFile::new(&text);
        let mut spliceway = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let output = spliceway.args(["check", "-c", file.path()]).output().unwrap();
        assert!(output.status.success(), "{rules}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains(&format!(":5:9: names: {warning}"))
    };
    assert!(check("names = true\nto_deny = \"evil.test\""));
    assert!(check("names = true"));
    assert!(!check("names = true\nto_allow = \"good.test\""));
    assert!(!check("names_learn = true"));
    // Each client that is served has a list.
    let client = |name: &str, network: &str, list: &str| {
        format!("[[client]]\nname = \"{name}\"\nfrom = \"{network}\"\n{list}\n")
    };
    let build = client("build", "10.1.0.0/16", "to_allow = \"good.test\"");
    let (listed, unlisted) = (
        client("ci", "10.2.0.0/16", "to_allow = \"*.test\""),
        client("ci", "10.2.0.0/16", ""),
    );
    for (clients, other, is_warned) in [
        ("required", &listed, false),
        ("required", &unlisted, true),
        ("optional", &listed, true),
    ] {
        let rules = format!("names = true\nclients = \"{clients}\"\n{build}{other}");
        assert_eq!(check(&rules), is_warned, "{rules}");
    }
    let mut program = Program::start(&["transparent", "-l", "127.0.0.1:0", "--names", "--to-deny", "evil.test"]);
    let lines = program.lines_so_far();
    assert!(
        lines
            .iter()
            .any(|line| has_level(line, "WARN") && line.contains("--names: without --to-allow, ")),
        "{lines:?}"
    );
}
