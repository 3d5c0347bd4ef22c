//! The files of contrib/egress: the rules let nothing out that the program does not allow.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hickory_proto::rr::RecordType;
use spliceway_net::has_tool;

use super::dns::{Asker, addresses, exchange, query};
use super::names::{GOOD, Guarded, OTHER};
use super::{CLIENT, GATEWAY, TARGET};
use crate::harness::{Program, TextFile, accept, connect, contrib, read_all, read_exactly, was_reached};
use crate::kubernetes::file_in;
use crate::sni::{alert, named};

fn text(path: &str) -> String {
    fs::read_to_string(contrib(path)).unwrap()
}

/// Returns a configuration with the addresses and a name of the test.
fn adapted(config: &str) -> TextFile {
    let config = config
        .replace("192.168.0.0/16", "10.77.0.0/24")
        .replace("pypi.org", "good.test")
        .replace(
            "names = true",
            "names = true\nallow_private = \"10.77.1.0/24\"\ndns = \"127.0.0.2\"",
        );
    TextFile::new(&config)
}

#[test]
fn a_network_behind_a_gateway_reaches_only_listed_names() {
    let Some(guarded) = Guarded::new() else { return };
    let file = adapted(&(text("egress/spliceway.toml") + "[admin]\nmetrics = \"127.0.0.1:0\"\n"));
    let program = guarded.network.at_gateway(|| Program::run(&file));
    guarded
        .network
        .load(&text("egress/egress.nft").replace("\"lan\"", "\"left\""));
    let net = &guarded.network.0;
    net.node(GATEWAY)
        .inside(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
        .unwrap();
    let (good, other) = (guarded.listen(GOOD, 443), guarded.listen(OTHER, 443));
    let udp = |ip: &str, port: u16| {
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        net.node(TARGET).inside(|| UdpSocket::bind(address).unwrap())
    };
    let (quic, dns) = (udp(GOOD, 443), udp(OTHER, 53));
    let client = net.node(CLIENT).inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    client.send_to(b"quic", (GOOD, 443)).unwrap();
    // Whatever server the client asks, the gateway answers.
    let asker = Asker::of(&guarded, "10.77.0.1:0", SocketAddr::new(OTHER.parse().unwrap(), 53));
    assert_eq!(asker.addresses("good.test."), [GOOD]);
    assert_eq!(asker.addresses("evil.test."), [""; 0]);
    let mut stream = guarded.connect(&format!("{OTHER}:53"));
    assert_eq!(
        addresses(&exchange(&mut stream, &query("good.test.", RecordType::A))),
        [GOOD]
    );
    assert_eq!(
        (guarded.count(&program, "answered"), guarded.count(&program, "refused")),
        (2, 1)
    );
    // The first datagram would have arrived before the query.
    assert!(has_received_nothing(&quic) && has_received_nothing(&dns));
    let mut tls = guarded.connect(&format!("{OTHER}:443"));
    tls.write_all(&named("good.test")).unwrap();
    assert_eq!(
        read_exactly(&mut accept(&good), named("good.test").len()),
        named("good.test")
    );
    let mut refused = guarded.connect(&format!("{OTHER}:443"));
    refused.write_all(&named("evil.test")).unwrap();
    assert_eq!(read_all(&refused), alert(112));
    assert!(!was_reached(&other));
}

/// The gateway is the pod here: the program and this test share its network.
struct Pod {
    guarded: Guarded,
    program: Program,
    _file: TextFile,
}

impl Pod {
    fn new() -> Option<Self> {
        if !has_tool("setpriv", "util-linux") {
            return None;
        }
        let guarded = Guarded::new()?;
        let file = adapted(&file_in(&text("egress/sidecar.yaml"), "spliceway.toml"));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        guarded.network.load(&text("egress/shared.nft"));
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65532",
            "--regid=65532",
            "--clear-groups",
            "--bounding-set=-all",
        ]);
        command.args([env!("CARGO_BIN_EXE_spliceway"), "run", "-c", file.path()]);
        let program = guarded.network.at_gateway(|| Program::spawn(command, true));
        Some(Self {
            guarded,
            program,
            _file: file,
        })
    }

    fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.guarded.network.at_gateway(work)
    }

    fn connect(&self, address: &str) -> TcpStream {
        self.inside(|| connect(address.parse().unwrap()))
    }

    fn count(&self, result: &str) -> u64 {
        self.guarded.count(&self.program, result)
    }

    /// Asks a server, which is not that of the pod, by TCP.
    fn finds_the_good_name(&self) {
        let mut stream = self.connect(&format!("{OTHER}:53"));
        let answer = exchange(&mut stream, &query("good.test.", RecordType::A));
        assert_eq!(addresses(&answer), [GOOD]);
    }
}

fn has_received_nothing(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    socket.recv(&mut [0; 512]).is_err()
}

#[test]
fn containers_that_share_a_network_reach_only_listed_names() {
    let Some(pod) = Pod::new() else { return };
    let (good, other) = (pod.guarded.listen(GOOD, 443), pod.guarded.listen(OTHER, 443));
    let mut tls = pod.connect(&format!("{OTHER}:443"));
    let sent = named("good.test");
    tls.write_all(&sent).unwrap();
    assert_eq!(read_exactly(&mut accept(&good), sent.len()), sent);
    let mut refused = pod.connect(&format!("{OTHER}:443"));
    refused.write_all(&named("evil.test")).unwrap();
    assert_eq!(read_all(&refused), alert(112));
    let target = pod.guarded.network.0.node(TARGET);
    let quic = target.inside(|| UdpSocket::bind((GOOD, 443)).unwrap());
    let socket = pod.inside(|| UdpSocket::bind("10.77.1.1:0").unwrap());
    assert!(socket.send_to(b"quic", (GOOD, 443)).is_err(), "the rules refuse it");
    assert!(has_received_nothing(&quic) && !was_reached(&other));
}

#[test]
fn containers_that_share_a_network_have_no_other_name_server() {
    let Some(pod) = Pod::new() else { return };
    // The first one is that of the program itself.
    for server in ["127.0.0.2", OTHER] {
        let answers = pod.inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            let asker = Asker::with(&pod.guarded, socket, SocketAddr::new(server.parse().unwrap(), 53));
            ["good.test.", "evil.test."].map(|name| asker.addresses(name))
        });
        assert_eq!(answers, [vec![GOOD.to_owned()], vec![]], "{server}");
    }
    pod.finds_the_good_name();
    assert_eq!((pod.count("answered"), pod.count("refused")), (3, 2));
    // The name server of a container engine has this address.
    let engine = pod.inside(|| UdpSocket::bind("127.0.0.11:0").unwrap());
    let socket = pod.inside(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    assert!(socket.send_to(b"query", engine.local_addr().unwrap()).is_err());
    assert!(has_received_nothing(&engine));
}

#[test]
fn other_machines_reach_only_the_metrics_of_a_pod() {
    let Some(pod) = Pod::new() else { return };
    let outside = pod.guarded.network.0.node(CLIENT);
    let metrics: SocketAddr = "10.77.0.2:9100".parse().unwrap();
    drop(outside.inside(|| TcpStream::connect(metrics).unwrap()));
    let asker = Asker::of(&pod.guarded, "10.77.0.1:0", "10.77.0.2:9053".parse().unwrap());
    asker.send("good.test.");
    // This query comes later, and is answered.
    pod.finds_the_good_name();
    assert_eq!(pod.count("answered"), 1);
}

/// Both files can be pasted without the others.
#[test]
fn the_sidecar_has_the_rules_and_compose_the_configuration() {
    let rules = text("egress/shared.nft");
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(
        lines(&file_in(&text("egress/sidecar.yaml"), "shared.nft")),
        lines(&rules)
    );
    if !has_tool("python3", "python3") {
        return;
    }
    // A part of `python3 -c` that fails without the package.
    let script = "import sys\ntry: import yaml\nexcept ImportError: sys.exit(3)\n\
                  file = yaml.safe_load(sys.stdin)\n\
                  for name, service in file['services'].items():\n  \
                    assert service['cap_drop'] == ['ALL'], name\n  \
                    assert all(config['source'] in file['configs'] for config in service.get('configs', [])), name\n  \
                    assert name == 'network' or service['network_mode'] == 'service:network', name\n\
                  assert file['configs']['rules']['file'] == './shared.nft'\n\
                  print(file['configs']['spliceway']['content'], end='')\n";
    let mut python = Command::new("python3");
    let output = python
        .args(["-c", script])
        .stdin(fs::File::open(contrib("egress/compose.yaml")).unwrap())
        .output();
    let output = output.unwrap();
    if output.status.code() == Some(3) {
        println!("skipped: python3-yaml is missing");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let file = TextFile::new(&String::from_utf8(output.stdout).unwrap());
    let check = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["check", "-c", file.path()])
        .output();
    assert!(check.unwrap().status.success());
}
