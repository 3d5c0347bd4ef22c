//! DNS for redirected clients: they learn the addresses of names that a rule allows, and no others.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Output};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use spliceway_net::has_tool;

use super::names::{GOOD, GOOD_V6, Guarded, OTHER};
use super::{CLIENT, GATEWAY};
use crate::handover::upgrade;
use crate::harness::{Folder, PATIENCE, Program, TextFile, connect, is_closed, let_pass};
use crate::names::Says;

/// Where the gateway answers.
const AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), 53);
const DNS: [&str; 3] = ["--names", "--dns-listen", "10.77.0.2:53"];

/// A client of the name server of the gateway.
pub(super) struct Asker<'a> {
    guarded: &'a Guarded,
    socket: UdpSocket,
}

impl<'a> Asker<'a> {
    fn new(guarded: &'a Guarded) -> Self {
        Self::of(guarded, "10.77.0.1:0", AT)
    }

    pub(super) fn of(guarded: &'a Guarded, from: &str, server: SocketAddr) -> Self {
        let client = guarded.network.0.node(CLIENT);
        Self::with(guarded, client.inside(|| UdpSocket::bind(from).unwrap()), server)
    }

    pub(super) fn with(guarded: &'a Guarded, socket: UdpSocket, server: SocketAddr) -> Self {
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { guarded, socket }
    }

    /// Returns the answer, which has the question as it was.
    fn ask(&self, name: &str, record_type: RecordType) -> Message {
        let query = query(name, record_type);
        let bytes = query.to_vec().unwrap();
        self.socket.send(&bytes).unwrap();
        let received = self.receive();
        let answer = Message::from_vec(&received).unwrap();
        assert_eq!(answer.metadata.id, query.metadata.id);
        // Byte for byte: also the case of letters.
        let question = 12..12 + name.len() + 4;
        assert_eq!(received[question.clone()], bytes[question], "{name}");
        answer
    }

    pub(super) fn send(&self, name: &str) {
        let query = query(name, RecordType::A).to_vec().unwrap();
        self.socket.send(&query).unwrap();
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).unwrap();
        assert!(length <= 1232);
        buffer[..length].to_vec()
    }

    fn connect(&self) -> TcpStream {
        self.guarded.network.0.node(CLIENT).inside(|| connect(AT))
    }

    /// Returns the addresses of a name, by UDP.
    pub(super) fn addresses(&self, name: &str) -> Vec<String> {
        addresses(&self.ask(name, RecordType::A))
    }
}

pub(super) fn query(name: &str, record_type: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), record_type));
    message
}

pub(super) fn addresses(answer: &Message) -> Vec<String> {
    let addresses = answer.answers.iter().filter_map(|record| record.data.ip_addr());
    addresses.map(|ip| ip.to_string()).collect()
}

/// Waits until nothing listens here.
fn closes(address: SocketAddr) {
    while TcpStream::connect(address).is_ok() {
        let_pass(Duration::from_millis(2));
    }
}

/// Asks by TCP.
pub(super) fn exchange(stream: &mut TcpStream, query: &Message) -> Message {
    let bytes = query.to_vec().unwrap();
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], &bytes].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer).unwrap();
    let answer = Message::from_vec(&answer).unwrap();
    assert_eq!(
        (answer.metadata.id, &answer.queries),
        (query.metadata.id, &query.queries)
    );
    answer
}

impl Guarded {
    /// Returns the number of queries with this result.
    pub(super) fn count(&self, program: &Program, result: &str) -> u64 {
        let label = format!("result=\"{result}\"");
        let sum = || program.sum("spliceway_dns_queries_total", &[&label]);
        self.network.at_gateway(sum)
    }

    fn await_count(&self, program: &Program, result: &str, count: u64) {
        let label = format!("result=\"{result}\"");
        let sum = || program.await_sum("spliceway_dns_queries_total", &[&label], count);
        self.network.at_gateway(sum);
    }
}

#[test]
fn a_client_learns_the_addresses_of_listed_names_only() {
    use RecordType::{A, AAAA, ANY, HTTPS, NS, TXT};
    use ResponseCode::{NXDomain, NoError, ServFail};
    let Some(guarded) = Guarded::new() else { return };
    guarded
        .names
        .has("both.test.", &[OTHER, "127.0.0.1", GOOD, GOOD_V6, "::1"]);
    guarded
        .names
        .says("broken.wild.test.", Says::Code(ResponseCode::ServFail));
    let rules = "good.test:80,443 good6.test *.wild.test:443 both.test rebind.test xn--bcher-kva.test \
                 *.half.test:443 gone.test";
    let rules: Vec<&str> = rules.split_whitespace().flat_map(|rule| ["--to-allow", rule]).collect();
    // The second rule has all ports of the name on which another one allows it.
    // The third rule leaves some ports of an address.
    let denied = ["no.half.test:1-65535", "not.wild.test", "10.77.1.20:1-100"].map(|rule| ["--to-deny", rule]);
    let mut program = guarded.start(&[&DNS[..], &rules, denied.as_flattened()].concat());
    let asker = Asker::new(&guarded);
    let mut stream = asker.connect();
    for (name, record_type, code, expected) in [
        ("good.test.", A, NoError, &[GOOD][..]),
        ("gOOd.TeSt.", A, NoError, &[GOOD]),
        ("good.test.", AAAA, NoError, &[]),
        ("good6.test.", AAAA, NoError, &[GOOD_V6]),
        ("a.wild.test.", A, NoError, &[GOOD]),
        ("xn--bcher-kva.test.", A, NoError, &[GOOD]),
        // Addresses that the program itself would not connect to.
        ("both.test.", A, NoError, &[OTHER, GOOD]),
        ("both.test.", AAAA, NoError, &[GOOD_V6]),
        ("rebind.test.", A, NoError, &[]),
        // Keys of ECH, texts and others.
        ("good.test.", HTTPS, NoError, &[]),
        ("good.test.", TXT, NoError, &[]),
        ("good.test.", ANY, NoError, &[]),
        // A rule allows the name, but it does not exist.
        ("gone.test.", A, NXDomain, &[]),
        // The server of the name fails.
        ("broken.wild.test.", A, ServFail, &[]),
        // No rule allows these names.
        ("evil.test.", A, NXDomain, &[]),
        ("evil.test.", HTTPS, NXDomain, &[]),
        ("wild.test.", A, NXDomain, &[]),
        ("good.test.evil.test.", A, NXDomain, &[]),
        ("not.wild.test.", A, NXDomain, &[]),
        ("no.half.test.", AAAA, NXDomain, &[]),
        ("test.", A, NXDomain, &[]),
        ("localhost.", A, NXDomain, &[]),
        (".", NS, NXDomain, &[]),
    ] {
        for answer in [
            asker.ask(name, record_type),
            exchange(&mut stream, &query(name, record_type)),
        ] {
            let what = format!("{name} {record_type}");
            assert_eq!(answer.metadata.response_code, code, "{what}");
            assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
            assert_eq!(addresses(&answer), expected, "{what}");
            assert!(answer.answers.iter().all(|record| record.ttl <= 5), "{what}");
            assert!(answer.authorities.is_empty() && answer.additionals.is_empty(), "{what}");
        }
    }
    let counts = ["answered", "filtered", "refused", "failed", "malformed", "dropped"];
    assert_eq!(
        counts.map(|result| guarded.count(&program, result)),
        [24, 2, 18, 2, 0, 0]
    );
    let asked = guarded.names.take();
    let outside = ["evil", "not.", "no.", "localhost", "test."];
    let is_outside = |name: &str| outside.iter().any(|start| name.starts_with(start) || name == ".");
    assert!(asked.iter().all(|(_, name)| !is_outside(name)), "{asked:?}");
    program.terminate();
    assert!(program.exit().success());
    assert_records(&program.lines_so_far());
}

/// Each refused name has one record, which says what to do.
fn assert_records(lines: &[String]) {
    for (name, cause) in [
        ("evil.test", "no rule allows evil.test"),
        ("not.wild.test", "not.wild.test is refused by --to-deny not.wild.test"),
        ("no.half.test", "no.half.test is refused by --to-deny no.half.test:443"),
        (
            "rebind.test",
            "rebind.test has the address 127.0.0.1, an address of this machine",
        ),
    ] {
        let records: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains(&format!("target={name} ")))
            .collect();
        assert!(records.len() == 1 && records[0].contains(cause), "{name}: {records:?}");
        assert!(records[0].contains(" client=10.77.0.1:") && records[0].contains("protocol=dns"));
    }
    // An operator learns that a name server fails, and not once for each query.
    let failures = lines
        .iter()
        .filter(|line| line.contains("cannot look up a name for a client"));
    assert_eq!(failures.count(), 1);
}

#[test]
fn a_long_answer_arrives_by_tcp_unless_the_client_takes_more() {
    let Some(guarded) = Guarded::new() else { return };
    let many: Vec<String> = (31..=50).map(|host| format!("10.77.1.{host}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let name = ["a", "b", "c"].map(|letter| letter.repeat(63)).join(".") + &format!(".{}.test.", "d".repeat(50));
    guarded.names.has(&name, &many);
    let _program = guarded.start(&[&DNS[..], &["--to-allow", "*.test"]].concat());
    let asker = Asker::new(&guarded);
    // As many as the program itself would try.
    let expected = &many[..16];
    let cut = asker.ask(&name, RecordType::A);
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    let mut stream = asker.connect();
    // A connection may have several queries.
    for _ in 0..2 {
        let whole = exchange(&mut stream, &query(&name, RecordType::A));
        assert!(!whole.metadata.truncation);
        assert_eq!(addresses(&whole), expected);
    }
    let mut with_edns = query(&name, RecordType::A);
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    with_edns.set_edns(edns);
    asker.socket.send(&with_edns.to_vec().unwrap()).unwrap();
    let whole = Message::from_vec(&asker.receive()).unwrap();
    assert_eq!(addresses(&whole), expected);
    assert_eq!(whole.edns.map(|edns| edns.max_payload()), Some(1232));
}

#[test]
fn what_is_no_query_has_no_effect_on_the_next_one() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = ["--to-allow", "good.test", "--handshake-timeout", "1h"];
    let program = guarded.start(&[&DNS[..], &arguments].concat());
    let asker = Asker::new(&guarded);
    let good = query("good.test.", RecordType::A).to_vec().unwrap();
    let with = |index: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[index] = byte;
        bytes
    };
    // Each of these has a code as its answer, or none.
    for (bytes, code) in [
        (Vec::new(), None),
        (vec![0; 11], None),
        (with(2, 0x81), None),
        (with(5, 2), Some(ResponseCode::FormErr)),
        (with(12, 0xC0), Some(ResponseCode::FormErr)),
        (with(2, 0x29), Some(ResponseCode::NotImp)),
        (good[..20].to_vec(), Some(ResponseCode::FormErr)),
        (vec![0xFF; 60_000], None),
    ] {
        asker.socket.send(&bytes).unwrap();
        if let Some(code) = code {
            let answer = Message::from_vec(&asker.receive()).unwrap();
            assert_eq!(answer.metadata.response_code, code);
        }
        assert_eq!(asker.addresses("good.test."), [GOOD]);
    }
    assert_eq!(guarded.count(&program, "malformed"), 8);
    // A connection ends after the first such message.
    for bytes in [&b"\0\x02xx"[..], b"\xff\xff", &[&b"\0\x0c"[..], &[0xFF; 12]].concat()] {
        let mut stream = asker.connect();
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream));
    }
    assert_eq!(
        guarded.count(&program, "malformed"),
        10,
        "a length that is refused has no message"
    );
    let mut stream = asker.connect();
    assert_eq!(
        addresses(&exchange(&mut stream, &query("good.test.", RecordType::A))),
        [GOOD]
    );
}

#[test]
fn a_client_that_is_not_allowed_gets_nothing() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = ["--to-allow", "good.test", "--deny", "10.77.0.1", "--dns-listen", ":54"];
    let program = guarded.start(&[&DNS[..], &arguments].concat());
    let asker = Asker::new(&guarded);
    asker
        .socket
        .send(&query("good.test.", RecordType::A).to_vec().unwrap())
        .unwrap();
    let refused = asker.connect().read(&mut [0]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
    guarded.await_count(&program, "dropped", 2);
    assert_eq!(guarded.names.take(), []);
    // The answer comes from the address that the client has asked, which is one of several.
    let client = guarded.network.0.node(CLIENT);
    client.ip(&["address add 10.77.0.9/24 dev right".into()]).unwrap();
    guarded
        .network
        .0
        .node(GATEWAY)
        .ip(&["address add 10.77.0.8/24 dev left".into()])
        .unwrap();
    let other = Asker::of(&guarded, "10.77.0.9:0", "10.77.0.8:54".parse().unwrap());
    assert_eq!(other.addresses("good.test."), [GOOD]);
    asker.socket.set_nonblocking(true).unwrap();
    assert!(asker.socket.recv(&mut [0; 512]).is_err());
}

#[test]
fn a_client_has_64_lookups_at_once_and_refusals_do_not_wait() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = ["--to-allow", "*.wild.test", "--connect-timeout", "1h"];
    let program = guarded.start(&[&DNS[..], &arguments].concat());
    let asker = Asker::new(&guarded);
    for index in 0..70 {
        let name = format!("silent{index}.wild.test.");
        guarded.names.says(&name, Says::Nothing);
        asker
            .socket
            .send(&query(&name, RecordType::A).to_vec().unwrap())
            .unwrap();
    }
    guarded.await_count(&program, "dropped", 6);
    // The name has no rule, so it needs no lookup.
    assert_eq!(
        asker.ask("evil.test.", RecordType::A).metadata.response_code,
        ResponseCode::NXDomain
    );
    assert!(is_closed(&mut asker.connect()));
    assert_eq!(guarded.count(&program, "dropped"), 7);
}

#[test]
fn a_connection_for_dns_counts_as_a_session_of_its_client() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = ["--to-allow", "good.test", "--max-conns-per-ip", "1"];
    let program = guarded.start(&[&DNS[..], &arguments].concat());
    let asker = Asker::new(&guarded);
    let good = query("good.test.", RecordType::A);
    let mut stream = asker.connect();
    assert_eq!(addresses(&exchange(&mut stream, &good)), [GOOD]);
    let other = asker.connect().read(&mut [0]).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::ConnectionReset);
    assert_eq!(guarded.count(&program, "dropped"), 1);
    assert_eq!(addresses(&exchange(&mut stream, &good)), [GOOD]);
}

#[test]
fn each_query_of_a_connection_has_the_time_of_a_handshake() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = ["--to-allow", "good.test", "--handshake-timeout", "200ms"];
    let _program = guarded.start(&[&DNS[..], &arguments].concat());
    let asker = Asker::new(&guarded);
    for begun in [&b""[..], b"\0\x20half"] {
        let mut stream = asker.connect();
        stream.write_all(begun).unwrap();
        assert!(is_closed(&mut stream), "{begun:?}");
    }
}

#[test]
fn a_reload_changes_the_names_and_keeps_the_sockets() {
    let Some(guarded) = Guarded::new() else { return };
    let config = |rules: &str, more: &str| {
        format!(
            "[[service]]\nkind = \"transparent\"\nlisten = \":0\"\nopen = true\nnames = true\n\
             to_allow = {rules}\nallow_private = \"10.77.1.0/24\"\ndns = \"127.0.0.2\"\n{more}\n\
             [admin]\nmetrics = \"127.0.0.1:0\"\n[timeouts]\nhandshake = \"1h\"\n"
        )
    };
    // Port because only this network has it.
    let listens = "dns_listen = [\"10.77.0.2:53\", \"[::]:54\"]";
    let file = TextFile::new(&config("\"good.test\"", listens));
    let mut program = guarded.network.at_gateway(|| Program::run(&file));
    let asker = Asker::new(&guarded);
    let mut stream = asker.connect();
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    assert_eq!(asker.addresses("a.wild.test."), [""; 0]);
    file.write(&config("[\"*.wild.test\"]", listens));
    program.reload();
    assert_eq!(asker.addresses("good.test."), [""; 0]);
    assert_eq!(asker.addresses("a.wild.test."), [GOOD]);
    assert!(is_closed(&mut stream), "it has the earlier rules");
    let mut stream = asker.connect();
    assert_eq!(
        addresses(&exchange(&mut stream, &query("a.wild.test.", RecordType::A))),
        [GOOD]
    );
    assert_eq!(
        program.lines_with("answering DNS on 10.77.0.2:53"),
        2,
        "both sockets were opened once"
    );
    // Port because only this network has it.
    file.write(&config("\"good.test\"", "dns_listen = \"[::]:54\""));
    program.reload();
    guarded.network.0.node(CLIENT).inside(|| closes(AT));
    assert_eq!(guarded.count(&program, "refused"), 2, "counts continue");
}

#[test]
fn a_hand_over_passes_the_sockets_on() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.start(&[&DNS[..], &["--to-allow", "good.test"]].concat());
    let asker = Asker::new(&guarded);
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    let next = upgrade(&mut program, None);
    assert!(program.exit().success());
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    let mut stream = asker.connect();
    assert_eq!(
        addresses(&exchange(&mut stream, &query("good.test.", RecordType::A))),
        [GOOD]
    );
    assert!(next.lives());
}

#[test]
fn a_service_that_learns_answers_all_names_and_counts_them() {
    let Some(guarded) = Guarded::new() else { return };
    let arguments = [
        "--names-learn",
        "--dns-listen",
        "10.77.0.2:53",
        "--to-allow",
        "good.test",
        "--to-deny",
        "*.wild.test",
    ];
    let program = guarded.start(&arguments);
    let asker = Asker::new(&guarded);
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    assert_eq!(asker.addresses("evil.test."), [OTHER]);
    // A private address stays refused.
    assert_eq!(asker.addresses("rebind.test."), [""; 0]);
    assert_eq!(asker.ask("evil.test.", RecordType::HTTPS).answers, []);
    // What a rule refuses stays refused.
    let refused = asker.ask("a.wild.test.", RecordType::A);
    assert_eq!(refused.metadata.response_code, ResponseCode::NXDomain);
    let counts = ["answered", "would_refuse", "filtered", "refused"];
    assert_eq!(counts.map(|result| guarded.count(&program, result)), [1, 2, 1, 1]);
}

/// Runs a command whose only name server is that of the gateway.
fn run_with_dns(guarded: &Guarded, arguments: &[&str]) -> Output {
    let etc = Folder::new("etc-dns");
    etc.file("resolv.conf", "nameserver 10.77.0.2\nsearch wild.test\n");
    etc.file("nsswitch.conf", "hosts: dns\n");
    let script = "mount --bind \"$0\" /etc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(&etc.0)
        .args(arguments);
    let client = guarded.network.0.node(CLIENT);
    client.inside(|| command.output().unwrap())
}

#[test]
fn glibc_finds_listed_names_and_asks_once_for_others() {
    if !has_tool("getent", "libc-bin") || !has_tool("mount", "mount") {
        return;
    }
    let Some(guarded) = Guarded::new() else { return };
    let rules = ["--to-allow", "good.test", "--to-allow", "*.wild.test"];
    let program = guarded.start(&[&DNS[..], &rules].concat());
    for name in ["good.test", "GOOD.test.", "a", "a.wild.test"] {
        let output = run_with_dns(&guarded, &["getent", "ahosts", name]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(GOOD), "{name}: {text}");
    }
    // One query for each family and no more: the search ends.
    let before = guarded.count(&program, "refused");
    let output = run_with_dns(&guarded, &["getent", "ahosts", "evil.test."]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]));
    assert_eq!(guarded.count(&program, "refused"), before + 2);
}

#[test]
fn dig_reads_the_answers_and_why_a_name_is_blocked() {
    if !has_tool("dig", "bind9-dnsutils") {
        return;
    }
    let Some(guarded) = Guarded::new() else { return };
    let _program = guarded.start(&[&DNS[..], &["--to-allow", "good.test"]].concat());
    for arguments in [
        &["+short", "good.test"][..],
        &["+short", "+tcp", "good.test"],
        &["+short", "+noedns", "gOOD.test"],
        &["+short", "+cookie", "+bufsize=512", "good.test"],
    ] {
        let output = run_with_dns(&guarded, &[&["dig", "@10.77.0.2"], arguments].concat());
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("{GOOD}\n"),
            "{arguments:?}"
        );
    }
    let output = run_with_dns(&guarded, &["dig", "@10.77.0.2", "evil.test"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("status: NXDOMAIN"), "{text}");
    assert!(text.contains("EDE: 15 (Blocked): (no rule allows this name)"), "{text}");
    assert!(!text.contains("WARNING"), "{text}");
    // dig asks again without EDNS only if the server does not know it.
    let output = run_with_dns(&guarded, &["dig", "@10.77.0.2", "+edns=1", "+noednsneg", "good.test"]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("status: BADVERS"));
}
