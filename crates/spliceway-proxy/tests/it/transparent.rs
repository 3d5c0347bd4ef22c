//! Transparent proxying between namespaces: client, gateway with the program and nft rules, target.

mod dns;
mod egress;
mod names;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};
use spliceway_net::{Family, Net, Offloads, address, has_tool};

use crate::handover::upgrade;
use crate::harness::{
    PATIENCE, Program, TextFile, accept, assert_same, connect, is_closed, pattern, read_all, refused_to_start,
    send_and_finish, with_patience,
};

const CLIENT: usize = 0;
const GATEWAY: usize = 1;
const TARGET: usize = 2;
const PORT: u16 = 80;

const BYTES: usize = 300_000;

/// The namespaces of client, gateway and target. The client's only route leads through the gateway.
struct Network(Net);

impl Network {
    fn new() -> Option<Self> {
        if !has_tool("nft", "nftables") {
            return None;
        }
        let net = Net::of_three(Offloads::On)?;
        net.node(CLIENT)
            .ip(&[
                "route add default via 10.77.0.2".to_owned(),
                "route add default via 2001:db8::2".to_owned(),
            ])
            .unwrap();
        // The gateway cannot ask for its neighbour from the client's address, and other link-local
        // addresses are not valid in the first two seconds.
        net.node(GATEWAY)
            .ip(&["address add fe80::77/64 dev right nodad".to_owned()])
            .unwrap();
        // Only connections that keep their source need the way back.
        net.node(TARGET)
            .ip(&[
                "route add 10.77.0.0/24 via 10.77.1.1".to_owned(),
                "route add 2001:db8::/64 via 2001:db8:1::1".to_owned(),
            ])
            .unwrap();
        Some(Self(net))
    }

    /// Loads a chain with one rule on the gateway.
    fn rule(&self, name: &str, chain: &str, rule: &str) -> &Self {
        self.load(&format!(
            "table inet {name} {{\nchain {name} {{\ntype {chain};\n{rule}\n}}\n}}\n"
        ))
    }

    /// Loads rules on the gateway.
    fn load(&self, text: &str) -> &Self {
        self.at_gateway(|| {
            let nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn();
            let mut nft = nft.unwrap();
            nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(nft.wait().unwrap().success(), "{text}");
        });
        self
    }

    /// Redirects everything that the client sends to port 80.
    fn redirect(&self, to: SocketAddr) -> &Self {
        let rule = format!("iifname left tcp dport {PORT} redirect to :{}", to.port());
        self.rule("redirected", "nat hook prerouting priority dstnat", &rule)
    }

    /// Sends everything for port 80 to a listener, without a change.
    fn tproxy(&self, to: SocketAddr) -> &Self {
        self.local_if_marked().tproxy_rule(to)
    }

    fn tproxy_rule(&self, to: SocketAddr) -> &Self {
        let rule = format!("iifname left tcp dport {PORT} tproxy to :{} meta mark set 1", to.port());
        self.rule("intercepted", "filter hook prerouting priority mangle", &rule)
    }

    /// Delivers packets with mark 1 to this machine, whatever their destination is.
    fn local_if_marked(&self) -> &Self {
        let commands = ["-4", "-6"].map(|family| {
            [
                format!("{family} rule add fwmark 1 lookup 100"),
                format!("{family} route add local default dev lo table 100"),
            ]
        });
        for command in commands.as_flattened() {
            let ip = self.at_gateway(|| Command::new("ip").args(command.split(' ')).status());
            assert!(ip.unwrap().success(), "{command}");
        }
        self
    }

    /// Marks the answers to connections whose source is the client.
    fn answers_to_sources(&self) -> &Self {
        let rule = "meta l4proto tcp socket transparent 1 socket wildcard 0 meta mark set 1";
        self.rule("answers", "filter hook prerouting priority mangle", rule)
    }

    fn at_gateway<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.node(GATEWAY).inside(work)
    }

    /// Starts the program on a port of the gateway. It serves every client and target.
    fn program(&self, arguments: &[&str]) -> Program {
        let common = ["-l", ":0", "--metrics", "127.0.0.1:0", "--allow-private", "--open"];
        self.at_gateway(|| Program::start(&[&["transparent"], &common[..], arguments].concat()))
    }

    fn target(&self, family: Family) -> (TcpListener, SocketAddr) {
        let target = SocketAddr::new(address(1, true, family), PORT);
        let listener = self.0.node(TARGET).inside(|| TcpListener::bind(target).unwrap());
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        (listener, target)
    }

    fn connect(&self, target: SocketAddr) -> TcpStream {
        self.0.node(CLIENT).inside(|| connect(target))
    }

    /// Sends bytes to the target and back, and returns the source that the target sees.
    fn exchange(&self, family: Family) -> IpAddr {
        let (listener, address) = self.target(family);
        let client = self.connect(address);
        let target = accept(&listener);
        let source = target.peer_addr().unwrap().ip();
        let (up, down) = (pattern(1, BYTES), pattern(2, BYTES));
        thread::scope(|scope| {
            scope.spawn(|| send_and_finish(&client, &up));
            assert_same(&read_all(&target), &up);
            scope.spawn(|| send_and_finish(&target, &down));
            assert_same(&read_all(&client), &down);
        });
        source
    }
}

const WITHOUT_CAPABILITIES: [&str; 3] = [
    "setpriv",
    "--bounding-set=-net_admin,-net_raw",
    "--inh-caps=-net_admin,-net_raw",
];

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

#[test]
fn a_redirected_client_reaches_its_target() {
    let Some(network) = Network::new() else { return };
    let program = network.program(&[]);
    network.redirect(program.address);
    for family in FAMILIES {
        assert_eq!(network.exchange(family), address(1, false, family));
    }
}

#[test]
fn a_client_behind_tproxy_reaches_its_target() {
    let Some(network) = Network::new() else { return };
    let program = network.program(&["--tproxy"]);
    network.tproxy(program.address);
    for family in FAMILIES {
        assert_eq!(network.exchange(family), address(1, false, family));
    }
}

#[test]
fn a_target_sees_the_address_of_the_client_if_asked_for() {
    for arguments in [&["--transparent-source"][..], &["--transparent-source", "--tproxy"]] {
        let Some(network) = Network::new() else { return };
        let program = network.program(arguments);
        match arguments {
            [_] => network.redirect(program.address).local_if_marked(),
            _ => network.tproxy(program.address),
        };
        network.answers_to_sources();
        for family in FAMILIES {
            assert_eq!(network.exchange(family), address(0, false, family), "{arguments:?}");
        }
    }
}

#[test]
fn a_forwarder_keeps_the_address_of_the_client_too() {
    let Some(network) = Network::new() else { return };
    network.local_if_marked().answers_to_sources();
    let (listener, target) = network.target(Family::V4);
    let target = target.to_string();
    let mut program =
        network.at_gateway(|| Program::start(&["forward", "-l", ":0", "-r", &target, "--transparent-source"]));
    program.address.set_ip(address(0, true, Family::V4));
    let client = network.connect(program.address);
    let source = accept(&listener).peer_addr().unwrap();
    assert_eq!(source.ip(), client.local_addr().unwrap().ip());
}

#[test]
fn a_check_comes_from_the_gateway_although_sessions_keep_their_source() {
    let Some(network) = Network::new() else { return };
    network.local_if_marked().answers_to_sources();
    let (listener, target) = network.target(Family::V4);
    let (target, dead) = (target.to_string(), SocketAddr::new(target.ip(), PORT + 1).to_string());
    let mut arguments = vec![
        "forward",
        "-l",
        ":0",
        "-r",
        &target,
        "-r",
        &dead,
        "--transparent-source",
    ];
    arguments.extend(["--balance", "first", "--check", "connect", "--check-interval", "1s"]);
    let mut program = network.at_gateway(|| Program::start(&arguments));
    program.address.set_ip(address(0, true, Family::V4));
    let source = accept(&listener).peer_addr().unwrap();
    assert_eq!(source.ip(), address(1, false, Family::V4));
    program.line("a backend is down");
    let client = network.connect(program.address).local_addr().unwrap().ip();
    // Further checks may come before the session.
    let mut sources = (0..100).map(|_| accept(&listener).peer_addr().unwrap().ip());
    assert!(sources.any(|source| source == client));
}

#[test]
fn a_hand_over_passes_a_listener_behind_tproxy_on() {
    let Some(network) = Network::new() else { return };
    let mut program = network.program(&["--tproxy"]);
    network.tproxy(program.address);
    network.exchange(Family::V4);
    let next = upgrade(&mut program, None);
    for family in FAMILIES {
        assert_eq!(network.exchange(family), address(1, false, family));
    }
    assert!(next.lives());
}

#[test]
fn a_client_that_connects_to_the_listener_itself_is_refused() {
    let Some(network) = Network::new() else { return };
    for arguments in [&[][..], &["--tproxy"]] {
        let program = network.program(arguments);
        for family in FAMILIES {
            let listener = SocketAddr::new(address(0, true, family), program.address.port());
            assert!(is_closed(&mut network.connect(listener)), "{arguments:?} {family:?}");
        }
        network.at_gateway(|| {
            // Without connection tracking, the kernel does not know an original destination.
            program.await_sum("spliceway_refused_total", &[], 2);
            let reason = |reason: &str| program.sum("spliceway_refused_total", &[&format!("reason=\"{reason}\"")]);
            assert_eq!(reason("loop") + reason("not_redirected"), 2, "{arguments:?}");
        });
    }
}

/// The rule takes the connections of the program, too.
#[test]
fn a_connection_that_comes_back_ends_the_loop() {
    let Some(network) = Network::new() else { return };
    let program = network.program(&[]);
    let rule = format!("tcp dport {PORT} redirect to :{}", program.address.port());
    network.rule("everything", "nat hook output priority -100", &rule);
    for family in FAMILIES {
        let target = SocketAddr::new(address(1, true, family), PORT);
        let read = read_of(network.at_gateway(|| TcpStream::connect(target)));
        let is_closed = read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |bytes| bytes == 0);
        assert!(is_closed, "{family:?}");
    }
    network.at_gateway(|| {
        // The client of each family, and what came back.
        program.await_sum("spliceway_connections_total", &[], 4);
        assert_eq!(program.sum("spliceway_connections_total", &[]), 4);
        assert_eq!(program.sum("spliceway_refused_total", &["reason=\"loop\""]), 2);
    });
}

#[test]
fn clients_of_other_machines_reach_public_targets_only() {
    let Some(network) = Network::new() else { return };
    let program = network.at_gateway(|| {
        Program::start(&[
            "transparent",
            "-l",
            ":0",
            "--metrics",
            "127.0.0.1:0",
            "--allow",
            "10.77.0.0/24",
        ])
    });
    network.redirect(program.address);
    let (_, private) = network.target(Family::V4);
    assert!(is_closed(&mut network.connect(private)));
    network.at_gateway(|| program.await_sum("spliceway_refused_total", &["reason=\"private\""], 1));
    // IPv6 clients are not in the network.
    let (_, stranger) = network.target(Family::V6);
    assert!(is_closed(&mut network.connect(stranger)));
    network.at_gateway(|| program.await_sum("spliceway_refused_total", &["reason=\"client\""], 1));
}

#[test]
fn a_client_whose_target_refuses_it_is_reset() {
    let Some(network) = Network::new() else { return };
    let program = network.program(&[]);
    network.redirect(program.address);
    let target = SocketAddr::new(address(1, true, Family::V4), PORT);
    let connected = network.0.node(CLIENT).inside(|| TcpStream::connect(target));
    assert_eq!(read_of(connected).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// Reads from a connection. On one processor, its reset may come before `connect` returns.
fn read_of(connected: io::Result<TcpStream>) -> io::Result<usize> {
    with_patience(connected?).read(&mut [0])
}

#[test]
fn a_transparent_service_for_everybody_needs_permission() {
    let stderr = refused_to_start(&["transparent", "-l", "0.0.0.0:0"]);
    assert!(
        stderr.contains("restrict access (--allow), or allow everybody (--open)"),
        "{stderr}"
    );
    let stderr = refused_to_start(&["transparent", "-l", "127.0.0.1:0", "--tproxy"]);
    assert!(stderr.contains("serves connections of other machines"), "{stderr}");
}

#[test]
fn a_missing_capability_is_named_at_the_start() {
    if !has_tool("setpriv", "util-linux") || !rustix::process::getuid().is_root() {
        return;
    }
    for argument in ["--tproxy", "--transparent-source"] {
        // A program that starts would not end.
        let mut command = Command::new("timeout");
        command.arg(PATIENCE.as_secs().to_string()).args(WITHOUT_CAPABILITIES);
        command.args([
            env!("CARGO_BIN_EXE_spliceway"),
            "transparent",
            "-l",
            "127.0.0.1:0",
            "--open",
            argument,
        ]);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("CAP_NET_ADMIN"), "{argument}: {stderr}");
    }
}

/// The service manager has the capability, and the program does not need it.
#[test]
fn an_inherited_listener_for_tproxy_needs_no_capability() {
    let Some(network) = Network::new() else { return };
    if !has_tool("setpriv", "util-linux") {
        return;
    }
    let program = network.at_gateway(|| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_ip_transparent_v6(true).unwrap();
        socket
            .bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())
            .unwrap();
        socket.listen(16).unwrap();
        let arguments = ["transparent", "-l", "fd:gate", "--tproxy", "--open", "--allow-private"];
        Program::start_with_socket_by(&WITHOUT_CAPABILITIES, socket.into(), "gate", &arguments)
    });
    network.tproxy(program.address);
    network.exchange(Family::V4);
}

/// A reload turns a listener for REDIRECT into one for TPROXY, and no client is lost.
#[test]
fn a_reload_switches_the_mode_of_an_open_listener() {
    let Some(network) = Network::new() else { return };
    let lines = |tproxy: bool| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"transparent\"\nlisten = \":0\"\n\
             open = true\nallow_private = true\ntproxy = {tproxy}\n"
        )
    };
    let file = TextFile::new(&lines(false));
    let mut program = network.at_gateway(|| Program::run(&file));
    network.tproxy(program.address);
    file.write(&lines(true));
    let line = program.reload();
    assert!(line.contains("transparent"), "{line}");
    network.exchange(Family::V4);
}

impl Network {
    /// Runs `spliceway doctor --transparent` on the gateway. Returns the names of the checks that
    /// are not ok, and all advice.
    fn doctor(&self, way: &str) -> (Vec<String>, String) {
        let arguments = ["doctor", "--json", "--transparent", way];
        let output = self.at_gateway(|| Command::new(env!("CARGO_BIN_EXE_spliceway")).args(arguments).output());
        let output = output.unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = answer["checks"].as_array().unwrap().iter();
        let missing: Vec<_> = checks.clone().filter(|check| check["verdict"] != "ok").collect();
        assert_eq!(output.status.success(), missing.is_empty(), "{answer}");
        assert_eq!(answer["transparent"], missing.is_empty(), "{answer}");
        let name = |check: &&Value| check["check"].as_str().unwrap().to_owned();
        let advice = missing.iter().map(|check| check["advice"].as_str().unwrap_or_default());
        (
            missing.iter().map(name).collect(),
            advice.collect::<Vec<_>>().join("\n"),
        )
    }
}

#[test]
fn doctor_names_each_piece_that_is_missing() {
    let Some(network) = Network::new() else { return };
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    for (way, rule) in [
        ("redirect", "redirect to"),
        ("tproxy", "tproxy to"),
        ("source", "socket transparent"),
    ] {
        let (missing, advice) = network.doctor(way);
        assert!(advice.contains(rule), "{advice}");
        match way {
            "redirect" => assert_eq!(missing, ["rule"]),
            _ => assert_eq!(missing, ["rule", "route-v4"]),
        }
    }
    network.redirect(to);
    assert_eq!(network.doctor("redirect").0, [""; 0]);
    network.local_if_marked();
    assert_eq!(network.doctor("tproxy").0, ["rule"]);
    network.tproxy_rule(to);
    assert_eq!(network.doctor("tproxy").0, [""; 0]);
    let delete = ["-6", "route", "del", "local", "default", "dev", "lo", "table", "100"];
    assert!(
        network
            .at_gateway(|| Command::new("ip").args(delete).status())
            .unwrap()
            .success()
    );
    let (missing, advice) = network.doctor("tproxy");
    assert_eq!(
        (&missing[..], &advice[..]),
        (
            &["route-v6".to_owned()][..],
            "ip -6 route add local default dev lo table 100"
        )
    );
    assert_eq!(network.doctor("source").0, ["rule"]);
}

#[test]
fn doctor_names_a_missing_capability() {
    if !has_tool("setpriv", "util-linux") || !rustix::process::getuid().is_root() {
        return;
    }
    let mut command = Command::new(WITHOUT_CAPABILITIES[0]);
    command.args(&WITHOUT_CAPABILITIES[1..]);
    command.args([env!("CARGO_BIN_EXE_spliceway"), "doctor", "--transparent", "source"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("CAP_NET_ADMIN is missing"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
}
