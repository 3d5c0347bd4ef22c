//! Names, as the C library resolves them: each row of the tables in docs/names.md.
//!
//! A row runs on a machine of its own (network and mount namespaces), with its own `/etc` and with
//! name servers on 127.0.0.2 and 127.0.0.3 that answer as a script says. getent(1) shows what glibc
//! finds, and the servers' logs show what each of them was asked.

mod changes;
mod families;
mod files;
mod servers;
mod zones;

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use spliceway_net::{Net, Offloads, has_tool};

use crate::clients::{SUCCEEDED, greeted, name_request};
use crate::harness::{Folder, PATIENCE, Program, accept, read_exactly};

/// The addresses of the name servers.
const FIRST: &str = "127.0.0.2";
const SECOND: &str = "127.0.0.3";
/// The lines of resolv.conf(5) that name both, with short time-outs.
const BOTH: &str = "nameserver 127.0.0.2\nnameserver 127.0.0.3\noptions timeout:1 attempts:1\n";

/// The answer of a server to a query.
#[derive(Clone)]
pub(crate) enum Says {
    /// These addresses, as far as they are of the type.
    Has(Vec<IpAddr>),
    Code(ResponseCode),
    Nothing,
}

/// What a query was about: A, AAAA or SRV, and the name.
pub(crate) type Question = (RecordType, String);

type Script = HashMap<(String, Option<RecordType>), Says>;

/// A name server. It knows no other names.
#[derive(Clone, Default)]
pub(crate) struct NameServer {
    /// Answers by name, and by type if there is one.
    script: Arc<Mutex<Script>>,
    asked: Arc<Mutex<Vec<Question>>>,
}

impl NameServer {
    pub(crate) fn start(address: &str) -> Self {
        let server = Self::default();
        let udp = UdpSocket::bind((address.parse::<IpAddr>().unwrap(), 53)).unwrap();
        let tcp = TcpListener::bind((address.parse::<IpAddr>().unwrap(), 53)).unwrap();
        server.serve(udp, tcp);
        server
    }

    fn serve(&self, udp: UdpSocket, tcp: TcpListener) {
        let server = self.clone();
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = udp.recv_from(&mut buffer) {
                if let Some(answer) = server.answer(&buffer[..length]) {
                    udp.send_to(&answer, from).unwrap();
                }
            }
        });
        let server = self.clone();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = tcp.accept() {
                let mut length = [0; 2];
                // A client may close the connection without a query.
                while stream.read_exact(&mut length).is_ok() {
                    let mut question = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut question).unwrap();
                    if let Some(answer) = server.answer(&question) {
                        let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
                        stream.write_all(&[&length, &answer[..]].concat()).unwrap();
                    }
                }
            }
        });
    }

    pub(crate) fn says(&self, name: &str, answer: Says) {
        self.script.lock().unwrap().insert((name.into(), None), answer);
    }

    fn says_of(&self, name: &str, record_type: RecordType, answer: Says) {
        let key = (name.into(), Some(record_type));
        self.script.lock().unwrap().insert(key, answer);
    }

    pub(crate) fn has(&self, name: &str, addresses: &[&str]) {
        self.says(
            name,
            Says::Has(addresses.iter().map(|text| text.parse().unwrap()).collect()),
        );
    }

    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).unwrap();
        let query = question.queries[0].clone();
        let name = query.name().to_lowercase().to_ascii();
        self.asked.lock().unwrap().push((query.query_type(), name.clone()));
        let script = self.script.lock().unwrap();
        let of_type = script.get(&(name.clone(), Some(query.query_type())));
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        match of_type.or_else(|| script.get(&(name, None))) {
            Some(Says::Nothing) => return None,
            Some(Says::Code(code)) => answer.metadata.response_code = *code,
            Some(Says::Has(addresses)) => {
                let records = addresses
                    .iter()
                    .map(|ip| Record::from_rdata(query.name().clone(), 0, RData::from(*ip)));
                answer.add_answers(records.filter(|record| record.record_type() == query.query_type()));
            }
            None => answer.metadata.response_code = ResponseCode::NXDomain,
        }
        Some(answer.to_vec().unwrap())
    }

    /// Returns the queries since the last call, sorted.
    pub(crate) fn take(&self) -> Vec<Question> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort_by_key(|(record_type, name)| (name.clone(), record_type.to_string()));
        asked
    }
}

/// A machine with two name servers, and a target on all of its addresses.
struct Machine {
    net: Net,
    etc: Folder,
    first: NameServer,
    second: NameServer,
    target: TcpListener,
}

/// What came of a lookup: the addresses, and the queries to each server.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    addresses: BTreeSet<IpAddr>,
    asked: [Vec<Question>; 2],
}

impl Machine {
    /// Returns `None`, after a message, if this machine lacks what the tests need.
    fn new(name: &str) -> Option<Self> {
        if !has_tool("getent", "libc-bin") || !has_tool("mount", "mount") {
            return None;
        }
        let net = Net::chain(1, Offloads::On)?;
        let node = net.node(0);
        node.ip(&[
            "link add outer type veth peer name other".into(),
            "link set other up".into(),
            "link set outer up".into(),
            "address add fe80::53/64 dev outer nodad".into(),
            "address add 2001:db8::1/128 dev lo nodad".into(),
            "address add 2001:db8::2/128 dev lo nodad".into(),
            "address add 192.0.2.1/32 dev lo".into(),
            "address add 192.0.2.2/32 dev lo".into(),
        ])
        .unwrap();
        let (first, second, target) = node.inside(|| {
            let target = TcpListener::bind("[::]:0").unwrap();
            (NameServer::start(FIRST), NameServer::start(SECOND), target)
        });
        let etc = Folder::new(&format!("etc-{name}"));
        etc.file("nsswitch.conf", "hosts: files dns\n");
        etc.file("host.conf", "multi on\n");
        etc.file("hosts", "127.0.0.1 localhost\n::1 localhost\n");
        etc.file("resolv.conf", BOTH);
        Some(Self {
            net,
            etc,
            first,
            second,
            target,
        })
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.etc.0.join(file), text).unwrap();
    }

    fn port(&self) -> u16 {
        self.target.local_addr().unwrap().port()
    }

    fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.net.node(0).inside(work)
    }

    /// Returns a command that sees this machine's `/etc`.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let script = "mount --bind \"$0\" /etc && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&self.etc.0)
            .arg(program);
        command
            .args(arguments)
            .env_remove("LOCALDOMAIN")
            .env_remove("RES_OPTIONS");
        command
    }

    fn start(&self, arguments: &[&str]) -> Program {
        let arguments = [arguments, &["--metrics", "127.0.0.1:0"]].concat();
        let command = self.command(env!("CARGO_BIN_EXE_spliceway"), &arguments);
        self.inside(|| Program::spawn(command, true))
    }

    fn socks5(&self, arguments: &[&str]) -> Program {
        self.start(&[&["socks5", "-l", "127.0.0.1:0"], arguments].concat())
    }

    fn take(&self) -> [Vec<Question>; 2] {
        [self.first.take(), self.second.take()]
    }

    /// Returns what glibc finds.
    fn glibc(&self, name: &str) -> Outcome {
        self.take();
        let mut command = self.command("getent", &["ahosts", name]);
        let output = self.inside(|| command.output().unwrap());
        // It prints names as they are in the file.
        let text = String::from_utf8_lossy(&output.stdout);
        let addresses = text
            .lines()
            .filter_map(|line| line.split(' ').next()?.parse::<IpAddr>().ok());
        Outcome {
            addresses: addresses.map(|ip| ip.to_canonical()).collect(),
            asked: self.take(),
        }
    }

    /// Returns the address that a new program connects to, and the queries for this.
    fn ours(&self, name: &str) -> Outcome {
        let program = self.socks5(&[]);
        self.take();
        let addresses = self.connected(&program, name).into_iter().collect();
        Outcome {
            addresses,
            asked: self.take(),
        }
    }

    /// Connects through the program. Returns the address that it has used.
    fn connected(&self, program: &Program, name: &str) -> Option<IpAddr> {
        let mut client = self.inside(|| greeted(program));
        self.asks(&mut client, name)
    }

    fn asks(&self, client: &mut TcpStream, name: &str) -> Option<IpAddr> {
        client.write_all(&name_request(name, self.port())).unwrap();
        (read_exactly(client, 4)[1] == SUCCEEDED).then(|| {
            let address = accept(&self.target).local_addr().unwrap();
            address.ip().to_canonical()
        })
    }

    /// Checks that this program connects to an address that glibc finds, or fails as glibc does.
    fn same(&self, name: &str, expected: &[&str]) -> [Outcome; 2] {
        let (theirs, ours) = (self.glibc(name), self.ours(name));
        assert_eq!(theirs.addresses, ips(expected), "glibc, {name}");
        self.is_one_of(name, &ours, expected);
        [theirs, ours]
    }

    /// Does the same, and checks that each server got the same queries.
    fn same_queries(&self, name: &str, expected: &[&str]) {
        let [theirs, ours] = self.same(name, expected);
        assert_eq!(theirs.asked, ours.asked, "{name}");
    }

    /// Checks a deliberate difference: what glibc finds, and what this program finds.
    fn differs(&self, name: &str, theirs: &[&str], ours: &[&str]) {
        assert_eq!(self.glibc(name).addresses, ips(theirs), "glibc, {name}");
        self.is_one_of(name, &self.ours(name), ours);
    }

    fn is_one_of(&self, name: &str, outcome: &Outcome, expected: &[&str]) {
        let (have, expected) = (&outcome.addresses, ips(expected));
        assert!(
            have.is_subset(&expected) && have.is_empty() == expected.is_empty(),
            "{name}: {have:?}, not {expected:?}"
        );
    }
}

fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn datagrams(address: impl std::net::ToSocketAddrs) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}
