//! Certificates that an ACME server issues. The server is Pebble, the test server of Let's Encrypt.

mod revocation;
mod servers;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hickory_proto::op::{Message, OpCode};
use hickory_proto::rr::{RData, Record, RecordType, rdata};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use spliceway_net::has_tool;

use super::client::{Client, Config, Pair};
use super::client_cert::Authority;
use crate::admin::Socket;
use crate::handover::upgrade;
use crate::harness::{
    Folder, PATIENCE, Program, TextFile, connect, echo, let_pass, listen, read_all, refused_to_start, refusing,
};

/// A certificate that lasts long.
const LONG: u32 = 86_400;
/// A lifetime, in seconds, that leaves time for a look at the files before the renewal.
const SHORT: u32 = 24;
const ORDER: &str = "POST /order-plz";
const ISSUED: &str = "has a certificate until";
const READ: &str = "read the changed TLS files";

/// A running Pebble, which is killed when this value is dropped.
struct Pebble {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
    authority: Pair,
    _config: TextFile,
}

impl Pebble {
    /// Starts a server that validates names on these ports. Returns `None` if it is not installed.
    fn start(tls_port: u16, http_port: u16, lifetime: u32) -> Option<Self> {
        if !has_tool("pebble", "pebble") {
            return None;
        }
        let (authority, address) = (Pair::new(&["localhost"]), refusing());
        let config = TextFile::new(&format!(
            r#"{{"pebble": {{"listenAddress": "{address}", "certificate": "{}", "privateKey": "{}",
                "tlsPort": {tls_port}, "httpPort": {http_port}, "keyAlgorithm": "ecdsa",
                "profiles": {{"only": {{"description": "", "validityPeriod": {lifetime}}}}}}}}}"#,
            authority.certificate.path(),
            authority.key.path()
        ));
        let mut child = Command::new("pebble")
            .args(["-config", config.path(), "-strict", "-dnsserver"])
            .arg(name_server().to_string())
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdout, log) = (child.stdout.take().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let lines = Arc::clone(&log);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "{:#?}", log.lock().unwrap());
            let_pass(Duration::from_millis(10));
        }
        Some(Self {
            child,
            log,
            address,
            authority,
            _config: config,
        })
    }

    /// Checks that there was this number of requests. The log may be behind the answers.
    fn expect(&self, request: &str, count: usize) {
        let until = Instant::now() + PATIENCE;
        let requests = || {
            let log = self.log.lock().unwrap();
            log.iter().filter(|line| line.contains(request)).count()
        };
        while requests() < count && Instant::now() < until {
            let_pass(Duration::from_millis(10));
        }
        assert_eq!(requests(), count, "{request}");
    }

    fn arguments(&self, name: &str, state: &State) -> Vec<String> {
        arguments(name, state, self.address, &self.authority)
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the arguments of a service with this name, for which this server issues certificates.
fn arguments(name: &str, state: &State, server: SocketAddr, authority: &Pair) -> Vec<String> {
    let directory = format!("https://localhost:{}/dir", server.port());
    let arguments = [
        ["--acme", name],
        ["--acme-state", state.path()],
        ["--acme-directory", &directory],
        ["--acme-ca", authority.certificate.path()],
        ["--acme-email", "admin@a.test"],
    ];
    let mut arguments: Vec<_> = arguments.concat().into_iter().map(ToOwned::to_owned).collect();
    arguments.push("--acme-accept-terms".to_owned());
    arguments
}

/// Starts a name server, which Pebble asks over TCP. Every name has the address of this machine.
fn name_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut question = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut question).unwrap();
                    let answer = answer(&Message::from_vec(&question).unwrap());
                    let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                    stream.write_all(&[&length, &answer[..]].concat()).unwrap();
                }
            });
        }
    });
    address
}

fn answer(question: &Message) -> Vec<u8> {
    let query = question.queries[0].clone();
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.add_query(query.clone());
    if query.query_type() == RecordType::A {
        let data = RData::A(rdata::A(Ipv4Addr::LOCALHOST));
        answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
    }
    answer.to_vec().unwrap()
}

/// A folder of the program, which the program creates.
struct State {
    path: PathBuf,
    _parent: Folder,
}

impl State {
    fn new(name: &str) -> Self {
        let parent = Folder::new(name);
        Self {
            path: parent.0.join("state"),
            _parent: parent,
        }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Returns a file in the folder of the only server.
    fn file(&self, name: &str) -> PathBuf {
        let mut folders = fs::read_dir(&self.path).unwrap();
        let folder = folders.next().unwrap().unwrap().path();
        assert!(folders.next().is_none());
        folder.join(name)
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.file(&format!("{name}.pem"))).unwrap()
    }

    /// Forgets when the next try is allowed.
    fn allow_a_try(&self, name: &str) {
        fs::remove_file(self.file(&format!("{name}.json"))).unwrap();
    }
}

/// Starts a forwarder to an echo.
fn forward(address: SocketAddr, arguments: &[String]) -> Program {
    let (address, target) = (address.to_string(), echo("127.0.0.1:0").to_string());
    let mut all = vec!["forward", "-l", &address, "-r", &target, "--metrics", "127.0.0.1:0"];
    all.extend(arguments.iter().map(String::as_str));
    Program::start(&all)
}

fn client(address: SocketAddr, name: &'static str) -> Client {
    let config = Config::anything().name(Some(name));
    let mut client = Client::over(connect(address), &config).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    client
}

#[test]
fn a_certificate_is_issued_and_renewed_on_the_listener_itself() {
    let (address, state) = (refusing(), State::new("acme-alpn"));
    let Some(pebble) = Pebble::start(address.port(), 1, SHORT) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("a.test", &state));
    program.line(ISSUED);
    program.line(READ);
    let mut old = Client::over(connect(address), &Config::anything()).unwrap();
    let first = state.certificate("a.test");
    assert!(old.certificate() == first);
    old.send(b"abc");
    assert_eq!(old.receive(3), b"abc");
    program.line(ISSUED);
    program.line(READ);
    let second = state.certificate("a.test");
    assert!(second != first && client(address, "a.test").certificate() == second);
    // A session outlives the certificate that it began with.
    assert_eq!(old.exchange(b"def").unwrap(), b"def");
    pebble.expect(ORDER, 2);
    pebble.expect("POST /sign-me-up", 1);
    assert_eq!(program.sum("spliceway_acme_tries_total", &["result=\"ok\""]), 2);
    assert_eq!(program.sum("spliceway_acme_tries_total", &["result=\"failed\""]), 0);
    // The validations are no sessions of clients.
    assert!(program.lines_with("the client has validated a.test for ACME") >= 2);
}

#[test]
fn a_certificate_is_issued_through_a_listener_for_http() {
    let (address, http, state) = (refusing(), refusing(), State::new("acme-http"));
    let Some(pebble) = Pebble::start(1, http.port(), LONG) else {
        return;
    };
    let mut arguments = pebble.arguments("token-b.test", &state);
    arguments.extend(["--acme-http".to_owned(), http.to_string()]);
    let mut program = forward(address, &arguments);
    program.line(ISSUED);
    program.line(READ);
    // The name is like that of a file with an answer.
    assert!(client(address, "token-b.test").certificate() == state.certificate("token-b.test"));
    for path in [
        "/",
        "/.well-known/acme-challenge/none",
        "/.well-known/acme-challenge/../_account.json",
    ] {
        let mut request = connect(http);
        write!(request, "GET {path} HTTP/1.1\r\nHost: b.test\r\n\r\n").unwrap();
        let answer = String::from_utf8(read_all(&request)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
}

#[test]
fn a_failed_try_is_not_repeated_before_its_time_even_by_a_restart() {
    let (address, state) = (refusing(), State::new("acme-failing"));
    // Nothing listens where the server validates the name.
    let Some(pebble) = Pebble::start(refusing().port(), 1, LONG) else {
        return;
    };
    let (mut arguments, socket) = (pebble.arguments("c.test", &state), Socket::new());
    arguments.extend(["--admin".to_owned(), socket.address()]);
    for restart in 0..3 {
        let mut program = forward(address, &arguments);
        if restart == 0 {
            let line = program.line("no new certificate for c.test");
            assert!(
                line.contains("could not validate the name") && line.contains("The next try is at"),
                "{line}"
            );
            assert_eq!(program.sum("spliceway_acme_tries_total", &["result=\"failed\""]), 1);
        } else {
            let line = program.line("the last try for c.test failed: ");
            assert!(line.contains("/c.test.json is removed"), "{line}");
        }
        let refused = Client::over(connect(address), &Config::anything().name(Some("c.test")));
        assert!(refused.err().unwrap().to_string().contains("InternalError"));
        assert!(program.line("end=").contains("denied:tls_no_certificate"));
        // The claim is that nothing happens meanwhile.
        let_pass(Duration::from_secs(2));
        pebble.expect(ORDER, 1);
        assert!(program.get("/readyz").starts_with("HTTP/1.1 200 "));
        let (_, status) = socket.ask("GET", "/v1/status");
        let name = &status["services"][0]["tls"]["acme"][0];
        assert!(name["name"] == "c.test" && name["expires"].is_null(), "{status}");
        let why = name["why"].as_str().unwrap();
        assert!(
            why.contains("could not validate the name") && name["next_try"].is_string(),
            "{why}"
        );
    }
}

#[test]
fn two_processes_with_one_folder_order_once() {
    let (address, state) = (refusing(), State::new("acme-two"));
    let Some(pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let arguments = pebble.arguments("d.test", &state);
    // The server reaches only the first one, which answers for the other one too.
    let mut programs = [address, refusing()].map(|address| forward(address, &arguments));
    for program in &mut programs {
        program.line(READ);
        assert!(client(program.address, "d.test").certificate() == state.certificate("d.test"));
    }
    pebble.expect(ORDER, 1);
    let sums = programs.map(|program| program.sum("spliceway_acme_tries_total", &["result=\"ok\""]));
    assert_eq!(sums.iter().sum::<u64>(), 1);
}

#[test]
fn after_an_upgrade_the_new_process_serves_and_renews_the_certificate() {
    let (address, state) = (refusing(), State::new("acme-upgrade"));
    let Some(pebble) = Pebble::start(address.port(), 1, SHORT) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("h.test", &state));
    program.line(READ);
    let next = upgrade(&mut program, None);
    let first = state.certificate("h.test");
    assert!(client(address, "h.test").certificate() == first);
    program.line(ISSUED);
    program.line(READ);
    let second = state.certificate("h.test");
    assert!(second != first && client(address, "h.test").certificate() == second);
    pebble.expect("POST /sign-me-up", 1);
    drop(next);
}

#[test]
fn a_server_that_is_down_leaves_the_old_certificate_in_force() {
    let (address, state) = (refusing(), State::new("acme-down"));
    let Some(mut pebble) = Pebble::start(address.port(), 1, SHORT) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("e.test", &state));
    program.line(READ);
    pebble.stop();
    let line = program.line("no new certificate for e.test");
    for part in ["/dir failed", "An old certificate, if there is one, stays in force"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(client(address, "e.test").certificate() == state.certificate("e.test"));
}

/// Starts a server that answers one request with this, and counts requests.
fn busy_server(pair: &Pair, answer: &'static str) -> (SocketAddr, Arc<Mutex<usize>>) {
    let (listener, address) = listen();
    let key = PrivateKeyDer::from_pem_file(&pair.key.0).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.der()], key)
        .unwrap();
    let (config, count) = (Arc::new(config), Arc::new(Mutex::new(0)));
    let requests = Arc::clone(&count);
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            *requests.lock().unwrap() += 1;
            stream.write_all(answer.as_bytes()).unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    });
    (address, count)
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let (authority, state) = (Pair::new(&["localhost"]), State::new("acme-busy"));
    let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7200\r\nContent-Length: 2\r\n\r\n{}";
    let (server, count) = busy_server(&authority, answer);
    let arguments = arguments("g.test", &state, server, &authority);
    for restart in 0..2 {
        let mut program = forward(refusing(), &arguments);
        if restart == 0 {
            let line = program.line("no new certificate for g.test");
            assert!(line.contains("429 Too Many Requests"), "{line}");
        } else {
            let_pass(Duration::from_secs(2));
        }
    }
    let tries = fs::read_to_string(state.file("g.test.json")).unwrap();
    let tries: serde_json::Value = serde_json::from_str(&tries).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert!(
        tries["order"]["not_before"].as_u64().unwrap() > now.as_secs() + 7000,
        "{tries}"
    );
    assert_eq!(*count.lock().unwrap(), 1);
}

#[test]
fn a_router_passes_the_validation_to_the_service_that_owns_the_name() {
    let (router, state) = (refusing(), State::new("acme-sni"));
    let Some(pebble) = Pebble::start(router.port(), 1, LONG) else {
        return;
    };
    let address = refusing();
    let (listen, route) = (router.to_string(), format!("f.test={address}"));
    let _router = Program::start(&["sni", "-l", &listen, "--route", &route]);
    let mut program = forward(address, &pebble.arguments("f.test", &state));
    program.line(READ);
    assert!(client(router, "f.test").certificate() == state.certificate("f.test"));
}

#[test]
fn a_router_answers_for_the_names_whose_tls_it_ends() {
    let (router, state) = (refusing(), State::new("acme-sni-end"));
    let Some(pebble) = Pebble::start(router.port(), 1, LONG) else {
        return;
    };
    let (listen, route) = (
        router.to_string(),
        format!("g.test={},tls=terminate", echo("127.0.0.1:0")),
    );
    let acme = pebble.arguments("g.test", &state);
    let mut all = vec!["sni", "-l", &listen, "--route", &route, "--metrics", "127.0.0.1:0"];
    all.extend(acme.iter().map(String::as_str));
    let mut program = Program::start(&all);
    program.line(READ);
    assert!(client(router, "g.test").certificate() == state.certificate("g.test"));
}

#[test]
fn a_service_for_clients_with_certificates_answers_the_server_without_one() {
    let (address, state) = (refusing(), State::new("acme-client-ca"));
    let Some(pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let authority = Authority::new("CA");
    let file = TextFile::new(&authority.pem);
    let mut arguments = pebble.arguments("k.test", &state);
    arguments.extend(["--tls-client-ca".to_owned(), file.path().to_owned()]);
    let mut program = forward(address, &arguments);
    program.line(READ);
    let issued = authority.host("ann.test", 1);
    let config = Config::anything().name(Some("k.test"));
    let mut stranger = Client::over(connect(address), &config).unwrap();
    stranger.exchange(b"abc").unwrap_err();
    assert!(program.line("end=denied:").contains("denied:tls_client_none"));
    let config = Config::anything()
        .name(Some("k.test"))
        .client_cert(&issued.chain, &issued.key);
    let mut client = Client::over(connect(address), &config).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    assert!(client.certificate() == state.certificate("k.test"));
    assert!(program.line("bytes_up=3").contains("user=\"ann.test\""));
}

#[test]
fn what_contradicts_or_lacks_is_named_at_the_start() {
    let state = State::new("acme-faults");
    let target = refusing().to_string();
    let start = ["forward", "-l", "127.0.0.1:0", "-r", &target];
    let folder = ["--acme-state", state.path()];
    let terms = ["--acme-accept-terms"];
    for (arguments, expected) in [
        ([&["--acme", "*.a.test"][..], &folder, &terms].concat(), "without `*`"),
        (
            [&["--acme", "127.0.0.1"][..], &folder, &terms].concat(),
            "www.example.com",
        ),
        ([&["--acme", "a.test"][..], &folder].concat(), "--acme-accept-terms"),
        ([&["--acme", "a.test"][..], &terms].concat(), "--acme-state"),
        (
            [&["--acme", "a.test", "--tls-cert", "a", "--tls-key", "b"][..], &folder].concat(),
            "cannot be used with",
        ),
        (
            [
                &["--acme", "a.test", "--acme-directory", "http://a.test/"][..],
                &folder,
                &terms,
            ]
            .concat(),
            "https://acme.example.com",
        ),
        (
            [&["--acme", "a.test", "--acme-ca", "/nothing.pem"][..], &folder, &terms].concat(),
            "--acme-ca: cannot read /nothing.pem",
        ),
    ] {
        let stderr = refused_to_start(&[&start[..], &arguments].concat());
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    fs::create_dir(&state.path).unwrap();
    fs::set_permissions(&state.path, PermissionsExt::from_mode(0o755)).unwrap();
    let stderr = refused_to_start(&[&start[..], &["--acme", "a.test"], &folder, &terms].concat());
    assert!(stderr.contains("chmod go= "), "{stderr}");
}
