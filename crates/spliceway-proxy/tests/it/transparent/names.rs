//! Rules by name for redirected clients: a hostile client reaches nothing that no rule allows.

mod egress;
mod learning;
mod networks;
mod reasons;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use socket2::SockRef;

use super::{CLIENT, Network, TARGET};
use crate::harness::{
    PATIENCE, Program, accept, connect, is_closed, read_all, read_exactly, send_and_finish, was_reached,
};
use crate::names::NameServer;
use crate::sni::{HELLOS, HIDDEN, alert, followed_name, hello, named, records};

/// The servers of the allowed names, and the port of TLS.
pub(super) const GOOD: &str = "10.77.1.10";
pub(super) const GOOD_V6: &str = "2001:db8:1::10";
/// A server that no rule allows.
pub(super) const OTHER: &str = "10.77.1.20";
const OTHER_V6: &str = "2001:db8:1::20";
/// A server that a rule allows by its address, on port 22.
const LISTED: &str = "10.77.1.30";

const RULES: &str = "good.test:80,443 good6.test:443 *.wild.test:443 xn--bcher-kva.test:443 example.com:443 \
                     rebind.test 10.77.1.30:22";

/// A network in which the gateway knows names, and redirects all connections of the client.
pub(super) struct Guarded {
    pub(super) network: Network,
    pub(super) names: NameServer,
}

impl Guarded {
    pub(super) fn new() -> Option<Self> {
        let network = Network::new()?;
        let addresses = [GOOD, OTHER, LISTED].map(|ip| format!("address add {ip}/24 dev left"));
        let addresses_v6 = [GOOD_V6, OTHER_V6].map(|ip| format!("address add {ip}/64 dev left nodad"));
        network
            .0
            .node(TARGET)
            .ip(&[&addresses[..], &addresses_v6].concat())
            .unwrap();
        let names = network.at_gateway(|| NameServer::start("127.0.0.2"));
        for name in ["good.test.", "a.wild.test.", "xn--bcher-kva.test.", "example.com."] {
            names.has(name, &[GOOD]);
        }
        names.has("good6.test.", &[GOOD_V6]);
        names.has("rebind.test.", &["127.0.0.1"]);
        names.has("evil.test.", &[OTHER]);
        Some(Self { network, names })
    }

    pub(super) fn start(&self, arguments: &[&str]) -> Program {
        let common = [
            "transparent",
            "-l",
            ":0",
            "--metrics",
            "127.0.0.1:0",
            "--allow-private=10.77.1.0/24",
            "--allow-private=2001:db8:1::/64",
            "--open",
            "--dns",
            "127.0.0.2",
        ];
        self.network
            .at_gateway(|| Program::start(&[&common[..], arguments].concat()))
    }

    /// Starts the program behind a rule with REDIRECT.
    fn program(&self, arguments: &[&str]) -> Program {
        let program = self.start(arguments);
        let rule = format!("iifname left meta l4proto tcp redirect to :{}", program.address.port());
        self.network
            .rule("redirected", "nat hook prerouting priority dstnat", &rule);
        program
    }

    /// Starts the program with [`RULES`].
    fn guard(&self, arguments: &[&str]) -> Program {
        let rules: Vec<&str> = RULES.split_whitespace().flat_map(|rule| ["--to-allow", rule]).collect();
        self.program(&[&["--names"], &rules[..], arguments].concat())
    }

    pub(super) fn listen(&self, ip: &str, port: u16) -> TcpListener {
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        let listener = self
            .network
            .0
            .node(TARGET)
            .inside(|| TcpListener::bind(address).unwrap());
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        listener
    }

    pub(super) fn connect(&self, address: &str) -> TcpStream {
        let client = self.network.0.node(CLIENT).inside(|| connect(address.parse().unwrap()));
        client.set_nodelay(true).unwrap();
        client
    }
}

/// What comes of a connection.
enum Expected {
    /// The server of the good name gets these bytes.
    Good(Vec<u8>),
    /// The server of the good name gets a request with this start, and nothing after it.
    Request(&'static str),
    /// The server whose address is listed gets these bytes.
    Listed(Vec<u8>),
    /// The client is refused for this reason, and gets an answer with this start.
    Refused(&'static str, Vec<u8>),
}

use Expected::{Good, Listed, Refused, Request};

/// What a client dials, what it sends, and what comes of it.
type Case = (&'static str, String, Vec<u8>, Expected);

/// Clients of TLS that reach the server of the name that they state.
fn tls_cases() -> Vec<Case> {
    let good = named("good.test");
    let mut cases: Vec<Case> = Vec::new();
    for (what, ip, sent) in [
        ("an allowed name", GOOD, good.clone()),
        ("an allowed name, another address", OTHER, good.clone()),
        ("an address without a server", "203.0.113.1", good.clone()),
        ("records of one byte", OTHER, records(&good[5..], 1)),
    ] {
        cases.push((what, format!("{ip}:443"), sent.clone(), Good(sent)));
    }
    for name in ["GOOD.test", "good.test.", "a.wild.test", "xn--bcher-kva.test"] {
        cases.push((name, format!("{OTHER}:443"), named(name), Good(named(name))));
    }
    for (client, bytes) in HELLOS {
        cases.push((client, format!("{OTHER}:443"), bytes.to_vec(), Good(bytes.to_vec())));
    }
    cases
}

fn refused_tls_cases() -> Vec<Case> {
    let good = named("good.test");
    let header = [&b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n"[..], &good].concat();
    let too_long = hello(Some(b"good.test"), &[], 20 << 10);
    let mut cases: Vec<Case> = Vec::new();
    for (what, port, sent, reason, description) in [
        ("an allowed name, another port", 8443, good, "target_rule", Some(112)),
        ("the outer name of ECH", 443, HIDDEN.to_vec(), "target_rule", Some(112)),
        ("no name", 443, hello(None, &["h2"], 0), "name_missing", Some(109)),
        ("an address as a name", 443, named(GOOD), "name_missing", Some(109)),
        (
            "a name in UTF-8",
            443,
            named("b\u{fc}cher.test"),
            "name_missing",
            Some(47),
        ),
        ("a NUL", 443, named("good.test\0.evil.test"), "name_missing", Some(47)),
        ("a hello that is too long", 443, too_long, "name_missing", Some(50)),
        ("two dots", 443, named("good.test.."), "name_missing", Some(47)),
        ("a byte after the names", 443, followed_name(), "name_missing", Some(50)),
        ("a header before the hello", 443, header, "name_missing", None),
        ("a name of this machine", 443, named("rebind.test"), "loopback", None),
    ] {
        let answer = description.map_or_else(Vec::new, |description| alert(description).into());
        cases.push((what, format!("{GOOD}:{port}"), sent, Refused(reason, answer)));
    }
    for name in [
        "evil.test",
        "good.test.evil.test",
        "xgood.test",
        "wild.test",
        "test",
        "localhost",
    ] {
        let refused = Refused("target_rule", alert(112).into());
        cases.push((name, format!("{OTHER}:443"), named(name), refused));
    }
    cases
}

/// The start of a request for the server of the good name.
const GOOD_REQUEST: &str = "GET / HTTP/1.1\r\nHost: good.test\r\n";

/// Clients of HTTP that reach the server that they name.
fn http_cases() -> Vec<Case> {
    let dialled = || format!("{OTHER}:80");
    let good = GOOD_REQUEST;
    let all = [
        ("an allowed host", format!("{good}\r\n"), Request(good)),
        (
            "capitals and a dot",
            "GET / HTTP/1.1\r\nHost: GOOD.test.\r\n\r\n".into(),
            Request("GET / HTTP/1.1\r\nHost: GOOD.test.\r\n"),
        ),
        (
            "a host with another port",
            "GET / HTTP/1.1\r\nHost: good.test:22\r\n\r\n".into(),
            Request("GET / HTTP/1.1\r\nHost: good.test:22\r\n"),
        ),
        (
            "an absolute form",
            "GET http://good.test/x HTTP/1.1\r\nHost: Good.test.\r\n\r\n".into(),
            Request("GET /x HTTP/1.1\r\nHost: good.test\r\n"),
        ),
        (
            "an empty line first",
            format!("\r\n{good}\r\n"),
            Request("GET / HTTP/1.1\r\nHost: good.test\r\nVia: "),
        ),
        (
            "a question about the server",
            "OPTIONS * HTTP/1.1\r\nHost: good.test\r\nMax-Forwards: 0\r\n\r\n".into(),
            Request("OPTIONS * HTTP/1.1\r\nHost: good.test\r\nMax-Forwards: 0\r\n"),
        ),
        (
            "an upgrade to a tunnel",
            format!("{good}Connection: Upgrade\r\nUpgrade: connect-udp\r\n\r\n"),
            Request("GET / HTTP/1.1\r\nHost: good.test\r\nVia: "),
        ),
        (
            "a second request",
            format!("{good}\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
            Request(good),
        ),
        (
            "CONNECT after a request",
            format!("{good}\r\nCONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
            Request(good),
        ),
        (
            "an upgrade to HTTP/2",
            format!("{good}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n"),
            Request(good),
        ),
    ];
    all.map(|(what, sent, expected)| (what, dialled(), sent.into_bytes(), expected))
        .into()
}

fn refused_http_cases() -> Vec<Case> {
    let refused = |reason, status: &str| Refused(reason, format!("HTTP/1.1 {status} ").into());
    let two_meanings = || refused("name_missing", "400");
    let dialled = || format!("{OTHER}:80");
    let good = GOOD_REQUEST;
    let all = [
        (
            "an unlisted host",
            "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n".into(),
            refused("target_rule", "403"),
        ),
        ("two hosts", format!("{good}Host: evil.test\r\n\r\n"), two_meanings()),
        (
            "another host in the URI",
            "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n".into(),
            two_meanings(),
        ),
        ("no host", "GET / HTTP/1.0\r\n\r\n".into(), two_meanings()),
        (
            "a host with two dots",
            "GET / HTTP/1.1\r\nHost: good.test..\r\n\r\n".into(),
            two_meanings(),
        ),
        (
            "a head that is too large",
            format!("{good}X: {}\r\n\r\n", "x".repeat(16 << 10)),
            refused("name_missing", "431"),
        ),
        (
            "a length and chunks",
            format!("{good}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            two_meanings(),
        ),
        (
            "CONNECT",
            "CONNECT good.test:80 HTTP/1.1\r\nHost: good.test\r\n\r\n".into(),
            refused("name_missing", "403"),
        ),
    ];
    all.map(|(what, sent, expected)| (what, dialled(), sent.into_bytes(), expected))
        .into()
}

fn other_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, sent) in [
        ("HTTP/2", &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..]),
        ("SSH", b"SSH-2.0-x\r\n"),
        ("PostgreSQL", b"\0\0\0\x08\x04\xd2\x16\x2f"),
        ("SOCKS5", b"\x05\x01\0"),
        ("anything", b"\x01\x02"),
    ] {
        let refused = Refused("name_missing", Vec::new());
        cases.push((what, format!("{OTHER}:80"), sent.to_vec(), refused));
        cases.push((what, format!("{LISTED}:22"), sent.to_vec(), Listed(sent.to_vec())));
    }
    for host in [OTHER.to_owned(), format!("[::ffff:{GOOD}]")] {
        let sent = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let refused = Refused("name_missing", b"HTTP/1.1 403 ".into());
        cases.push(("an address in Host", format!("{OTHER}:80"), sent, refused));
    }
    let six = named("good6.test");
    cases.push(("IPv6", format!("[{OTHER_V6}]:443"), six.clone(), Good(six)));
    let refused = Refused("target_rule", alert(112).into());
    cases.push((
        "an unlisted name over IPv6",
        format!("[{OTHER_V6}]:443"),
        named("evil.test"),
        refused,
    ));
    let good = named("good.test");
    cases.push((
        "a name for a listed address",
        format!("{LISTED}:22"),
        good.clone(),
        Listed(good),
    ));
    cases
}

#[test]
fn a_hostile_client_reaches_nothing_that_is_not_listed() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.guard(&[]);
    let good = [(GOOD, 443), (GOOD, 80), (GOOD_V6, 443)].map(|(ip, port)| guarded.listen(ip, port));
    let listed = guarded.listen(LISTED, 22);
    let others = [(OTHER, 443), (OTHER, 80), (OTHER_V6, 443), (GOOD, 8443), (GOOD, 22)];
    let others = others.map(|(ip, port)| guarded.listen(ip, port));
    let cases = [
        tls_cases(),
        refused_tls_cases(),
        http_cases(),
        refused_http_cases(),
        other_cases(),
    ];
    for (what, dialled, sent, expected) in cases.into_iter().flatten() {
        for size in [sent.len(), 1] {
            println!("{what}, {size} bytes at once");
            let mut client = guarded.connect(&dialled);
            // The program may refuse the client before it has sent everything.
            let has_sent = sent.chunks(size).all(|piece| client.write_all(piece).is_ok());
            let of_good = match &*dialled {
                dialled if dialled.ends_with(":80") => &good[1],
                dialled if dialled.starts_with('[') => &good[2],
                _ => &good[0],
            };
            match &expected {
                Good(bytes) => assert_eq!(&read_exactly(&mut accept(of_good), bytes.len()), bytes, "{what}"),
                Listed(bytes) => assert_eq!(&read_exactly(&mut accept(&listed), bytes.len()), bytes, "{what}"),
                Request(start) => {
                    let server = accept(of_good);
                    send_and_finish(&server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    let answer = String::from_utf8(read_all(&client)).unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{what}: {answer}");
                    drop(client);
                    let request = String::from_utf8(read_all(&server)).unwrap();
                    assert!(request.starts_with(start), "{what}: {request}");
                    let one_head = request.ends_with("\r\nConnection: close\r\n\r\n") && !request.contains("evil");
                    assert!(one_head && request.matches("HTTP/").count() == 1, "{what}: {request}");
                }
                Refused(reason, answer) => {
                    let mut got = Vec::new();
                    let ended = client.read_to_end(&mut got).map_err(|error| error.kind());
                    assert!(got.starts_with(answer), "{what}: {got:?}");
                    // A write that fails takes the error of the reset away.
                    let is_reset = ended == Err(ErrorKind::ConnectionReset) || !has_sent;
                    assert!(is_reset || !answer.is_empty(), "{what}: {ended:?}");
                    assert_eq!(got.is_empty(), answer.is_empty(), "{what}: {got:?}");
                    drop(client);
                    let record = program.line("end=denied");
                    let is_refused = record.contains(&format!("end=denied:{reason} "));
                    assert!(is_refused && record.contains(" target="), "{what}: {record}");
                    let has_rule = record.contains("no rule allows") || *reason == "loopback";
                    assert!(has_rule, "{what}: {record}");
                }
            }
        }
    }
    for other in others {
        assert!(!was_reached(&other), "{:?}", other.local_addr());
    }
    let asked = guarded.names.take();
    assert!(asked.iter().all(|(_, name)| !name.contains("evil")), "{asked:?}");
}

#[test]
fn a_silent_client_reaches_only_an_address_that_is_listed() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.guard(&["--handshake-timeout", "1s"]);
    let other = guarded.listen(OTHER, 443);
    let listed = guarded.listen(LISTED, 22);
    // The server speaks first, and need not wait for the timeout.
    let mut client = guarded.connect(&format!("{LISTED}:22"));
    accept(&listed).write_all(b"220 ready\r\n").unwrap();
    assert_eq!(read_exactly(&mut client, 11), b"220 ready\r\n");
    // These clients send nothing, and half of a hello.
    for sent in [&b""[..], &named("good.test")[..20]] {
        let mut client = guarded.connect(&format!("{OTHER}:443"));
        client.write_all(sent).unwrap();
        assert!(is_closed(&mut client));
        let record = program.line("end=denied:name_missing");
        assert!(record.contains(&format!("target={OTHER}:443 ")), "{record}");
    }
    assert!(!was_reached(&other));
}

#[test]
fn a_refused_name_does_not_reach_a_listed_address() {
    let Some(guarded) = Guarded::new() else { return };
    let rules = [
        "--names",
        "--to-allow",
        "10.77.1.0/24",
        "--to-deny",
        "evil.test",
        "--to-deny",
        ":25",
    ];
    let mut program = guarded.program(&rules);
    let (good, other) = (guarded.listen(GOOD, 443), guarded.listen(OTHER, 443));
    for (dialled, name) in [(OTHER, "EVIL.test."), (GOOD, "evil.test")] {
        let mut client = guarded.connect(&format!("{dialled}:443"));
        client.write_all(&named(name)).unwrap();
        assert_eq!(read_all(&client), alert(112));
        drop(client);
        let record = program.line("end=denied:target_rule");
        assert!(
            record.contains("evil.test:443 is refused by --to-deny evil.test"),
            "{record}"
        );
    }
    assert!(!was_reached(&good) && !was_reached(&other));
    // No rule has this name, so the address decides, and nothing is looked up.
    good.set_nonblocking(false).unwrap();
    let client = guarded.connect(&format!("{GOOD}:443"));
    (&client).write_all(&named("good.test")).unwrap();
    assert_eq!(
        read_exactly(&mut accept(&good), named("good.test").len()),
        named("good.test")
    );
    // The bytes of HTTP pass unchanged, too.
    let client = guarded.connect(&format!("{GOOD}:443"));
    let request = b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n";
    (&client).write_all(request).unwrap();
    let mut server = accept(&good);
    assert_eq!(read_exactly(&mut server, request.len()), request);
    send_and_finish(&client, b"");
    assert!(read_all(&server).is_empty());
    assert_eq!(guarded.names.take(), []);
}

#[test]
fn names_work_behind_tproxy_with_the_source_of_the_client() {
    let Some(guarded) = Guarded::new() else { return };
    let network = &guarded.network;
    let program = guarded.start(&["--names", "--to-allow", "good.test", "--tproxy", "--transparent-source"]);
    let rule = format!(
        "iifname left meta l4proto tcp tproxy to :{} meta mark set 1",
        program.address.port()
    );
    network
        .local_if_marked()
        .rule("intercepted", "filter hook prerouting priority mangle", &rule);
    network.answers_to_sources();
    let good = guarded.listen(GOOD, 443);
    let client = guarded.connect(&format!("{OTHER}:443"));
    (&client).write_all(&named("good.test")).unwrap();
    let mut server = accept(&good);
    assert_eq!(read_exactly(&mut server, named("good.test").len()), named("good.test"));
    assert_eq!(server.peer_addr().unwrap().ip(), client.local_addr().unwrap().ip());
}

#[test]
fn an_upstream_proxy_gets_the_name_and_the_port_of_the_client() {
    let Some(guarded) = Guarded::new() else { return };
    let proxy = guarded.listen(GOOD, 3128);
    let upstream = format!("http://{GOOD}:3128");
    let _program = guarded.guard(&["-x", &upstream]);
    let request = b"GET / HTTP/1.1\r\nHost: good.test:22\r\n\r\n";
    for (port, sent) in [(443, &named("good.test")[..]), (80, request)] {
        let mut client = guarded.connect(&format!("{OTHER}:{port}"));
        client.write_all(sent).unwrap();
        let mut upstream = accept(&proxy);
        let asked = format!("CONNECT good.test:{port} HTTP/1.1\r\n");
        assert_eq!(String::from_utf8(read_exactly(&mut upstream, asked.len())), Ok(asked));
        upstream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    }
    assert_eq!(guarded.names.take(), []);
}
