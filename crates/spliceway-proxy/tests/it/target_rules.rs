use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;

use rustix::process::Signal;
use spliceway_net::{Family, Net, Offloads, address, has_tool};

use crate::auth::authenticated;
use crate::clients::{
    NOT_ALLOWED, SUCCEEDED, code, exchange, greeted, ip_request, name_request, read_head, socks4_request,
};
use crate::harness::{Program, TextFile, echo, listen, read_all, read_exactly, refused_to_start, was_reached};

/// A program that refuses targets, and the rules that its records must name.
struct Refusing {
    program: Program,
    rules: Vec<String>,
}

impl Refusing {
    /// Checks that these commands of a SOCKS5 request are refused.
    fn socks5(&mut self, mut request: Vec<u8>, commands: &[u8], rule: &str) {
        for command in commands {
            request[1] = *command;
            let code = code(&self.program, &request);
            assert_eq!(code, NOT_ALLOWED, "{}", request.escape_ascii());
            self.rules.push(rule.to_owned());
        }
    }

    /// Checks that the answer to another request begins with these bytes.
    fn other(&mut self, request: &[u8], answer: &[u8], rule: &str) {
        let mut client = self.program.connect();
        client.write_all(request).unwrap();
        assert!(read_all(&client).starts_with(answer), "{}", request.escape_ascii());
        self.rules.push(rule.to_owned());
    }

    /// Checks that each refusal has a record with its rule, and is counted.
    fn are_recorded(&mut self) {
        let refused = |record: String| {
            record
                .split_once("refused by ")
                .unwrap()
                .1
                .trim_end_matches('"')
                .to_owned()
        };
        let records = self.rules.iter().map(|_| self.program.line("end=denied:target_rule"));
        let mut recorded: Vec<_> = records.map(refused).collect();
        self.rules.sort_unstable();
        recorded.sort_unstable();
        assert_eq!(recorded, self.rules);
        let counted = self.program.sum("spliceway_refused_total", &["reason=\"target_rule\""]);
        assert_eq!(counted, recorded.len() as u64);
    }
}

/// An attacker's ways to write a refused address, in every protocol.
#[test]
fn no_request_reaches_a_refused_target_and_each_record_names_the_rule() {
    const CONNECT: u8 = 1;
    const BIND: u8 = 2;
    let (target, address) = listen();
    let port = address.port();
    let (net, name) = (&*format!("--to-deny 127.0.0.0/8:{port}"), "--to-deny *.blocked.example");
    let options: Vec<_> = [net, name].iter().flat_map(|rule| rule.split(' ')).collect();
    let program = Program::proxy("mixed", &options);
    let mut refusing = Refusing {
        program,
        rules: Vec::new(),
    };
    let ip = |ip: &str| ip_request(SocketAddr::new(ip.parse().unwrap(), port));
    for text in [
        "127.0.0.1",
        "127.1.2.3",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
    ] {
        refusing.socks5(ip(text), &[CONNECT, BIND], net);
        refusing.socks5(name_request(text, port), &[CONNECT, BIND], net);
    }
    // For BIND, this is any peer.
    for text in ["0.0.0.0", "::ffff:0.0.0.0"] {
        refusing.socks5(ip(text), &[CONNECT], net);
    }
    let unclear = "the target rules, because a part of the name is empty";
    for (text, rule) in [
        ("a.blocked.example", name),
        ("A.b.BLOCKED.example.", name),
        ("a..blocked.example", unclear),
        (".", unclear),
        // The hosts file and the resolver decide about the addresses, and one of them is refused.
        ("LocalHost", net),
        ("LOCALHOST.", net),
    ] {
        refusing.socks5(name_request(text, port), &[CONNECT, BIND], rule);
    }
    for (text, rule) in [(None, net), (Some("127.0.0.1"), net), (Some("a.blocked.example"), name)] {
        refusing.other(&socks4_request(address, "", text), &[0, 91], rule);
    }
    for (request, rule) in [
        (format!("CONNECT 127.0.0.1:{port}"), net),
        (format!("CONNECT [::ffff:7f00:1]:{port}"), net),
        (format!("CONNECT a.Blocked.Example.:{port}"), name),
        (format!("GET http://127.0.0.1:{port}/"), net),
        ("GET http://a.blocked.example/".to_owned(), name),
    ] {
        let request = request + " HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n";
        refusing.other(request.as_bytes(), b"HTTP/1.1 403 ", rule);
    }
    assert!(!was_reached(&target));
    refusing.are_recorded();
    // Another port of the same host is allowed.
    let mut client = greeted(&refusing.program);
    client.write_all(&ip_request(echo("127.0.0.1:0"))).unwrap();
    assert_eq!(read_exactly(&mut client, 10)[1], SUCCEEDED);
    exchange(client);
}

#[test]
fn an_allow_list_refuses_everything_else() {
    let (first, second) = (echo("127.0.0.1:0"), echo("127.0.0.2:0"));
    let ports = format!("127.0.0.0/8:{},{}", first.port(), second.port());
    let program = Program::socks5(&["--to-allow", &ports, "--to-deny", "127.0.0.2"]);
    assert_eq!(code(&program, &ip_request(first)), SUCCEEDED);
    assert_eq!(code(&program, &ip_request(second)), NOT_ALLOWED, "the smaller network");
    let (_listener, third) = listen();
    assert_eq!(code(&program, &ip_request(third)), NOT_ALLOWED, "another port");
    let ipv6 = SocketAddr::new("::1".parse().unwrap(), first.port());
    assert_eq!(code(&program, &ip_request(ipv6)), NOT_ALLOWED, "another network");
    // A name that no rule allows can still lead to an allowed network.
    assert_eq!(code(&program, &name_request("localhost", first.port())), SUCCEEDED);
    assert_eq!(code(&program, &name_request("localhost", third.port())), NOT_ALLOWED);
}

/// Private addresses stay closed to clients on other machines.
#[test]
fn an_allow_rule_opens_no_private_address() {
    let (target, address) = listen();
    let allow = [&["--open", "--to-allow", "127.0.0.1"][..], &["--to-allow", "localhost"]].concat();
    let program = Program::public("socks5", &allow);
    assert_eq!(code(&program, &ip_request(address)), NOT_ALLOWED);
    assert_eq!(code(&program, &name_request("localhost", address.port())), NOT_ALLOWED);
    assert!(!was_reached(&target));
    program.await_sum("spliceway_refused_total", &["reason=\"loopback\""], 2);
}

#[test]
fn datagrams_and_bind_obey_the_rules() {
    let (refused, allowed) = (
        UdpSocket::bind("127.0.0.2:0").unwrap(),
        UdpSocket::bind("127.0.0.1:0").unwrap(),
    );
    let mut program = Program::socks5(&["--to-allow", "127.0.0.1"]);
    let mut client = greeted(&program);
    client.write_all(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let reply = read_exactly(&mut client, 10);
    let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_be_bytes([reply[8], reply[9]])));
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    for target in [&refused, &allowed] {
        let datagram = [&[0; 3], &ip_request(target.local_addr().unwrap())[3..], b"x"].concat();
        own.send_to(&datagram, relay).unwrap();
    }
    allowed.recv(&mut [0; 16]).unwrap();
    program.await_sum("spliceway_datagrams_dropped_total", &["reason=\"target_rule\""], 1);
    refused.set_nonblocking(true).unwrap();
    assert!(refused.recv(&mut [0; 16]).is_err());
    drop(client);
    let record = program.line("end=client_eof");
    let why = "datagrams_denied=\"not allowed: 127.0.0.2 is refused by --to-allow";
    assert!(record.contains(why), "{record}");
    let mut bind = ip_request(refused.local_addr().unwrap());
    bind[1] = 2;
    assert_eq!(code(&program, &bind), NOT_ALLOWED);
    program.await_end("denied:target_rule");
    let mut bind = ip_request(allowed.local_addr().unwrap());
    bind[1] = 2;
    assert_eq!(code(&program, &bind), SUCCEEDED);
}

#[test]
fn a_file_of_rules_is_read_again_at_a_reload() {
    let target = echo("127.0.0.1:0");
    let rules = TextFile::new("\u{feff}# blocked\n\nblocked.example   # a comment\n  *.BLOCKED.example\r\n127.0.0.2\n");
    let from_file = format!("@{}", rules.path());
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[defaults.dial]\nto_deny = [\"{from_file}\", \"127.0.0.3\"]\n\
         [[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n\
         [[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"127.0.0.2:1\"\n"
    ));
    let mut program = Program::run(&file);
    assert_eq!(code(&program, &ip_request(target)), SUCCEEDED);
    assert_eq!(code(&program, &name_request("A.Blocked.example", 80)), NOT_ALLOWED);
    for ip in ["127.0.0.2:1", "127.0.0.3:1"] {
        assert_eq!(code(&program, &ip_request(ip.parse().unwrap())), NOT_ALLOWED, "{ip}");
    }
    rules.write("127.0.0.1\n");
    assert!(program.reload().contains("changed socks5"), "the file is another one");
    assert_eq!(code(&program, &ip_request(target)), NOT_ALLOWED);
    for (text, problem) in [
        ("127.0.0.1\nexample.com/path\n", ", line 2: expected HOST[:PORTS]"),
        ("# nothing\n", ": the file has no rules"),
    ] {
        rules.write(text);
        program.signal(Signal::HUP);
        let line = program.line("the reload is refused");
        assert!(line.contains(&format!("to_deny: {}{problem}", rules.path())), "{line}");
        assert_eq!(code(&program, &ip_request(target)), NOT_ALLOWED, "the rules before");
    }
}

#[test]
fn check_counts_the_rules() {
    let rules = TextFile::new("a.example\n*.b.example\n");
    let service = "[[service]]\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\nto_allow = \"a.example\"\n";
    let file = TextFile::new(&format!("{service}to_deny = [\"@{}\", \":25\"]\n", rules.path()));
    let mut check = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = check.args(["check", "-c", file.path()]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains(
            "http: http on 127.0.0.1:0, to_allow with 1 rule, to_deny with 3 rules, no users: every client\n"
        ),
        "{said}"
    );
}

#[test]
fn a_wrong_rule_is_refused_at_the_start() {
    let secret = TextFile::new("ann:wonderland\n");
    let secret = format!("@{}", secret.path());
    for (arguments, problem) in [
        (&["--to-deny", "10.0.0"][..], "neither a whole address nor a name"),
        (&["--to-allow", "*example.com"], "expected *.example.com"),
        (&["--to-deny", "example.com:0"], "ports from 1 to 65535"),
        (&["--to-deny", "@"], "expected a file after @"),
        (&["--to-deny", "@/missing"], "/missing: No such file"),
        (&["--to-deny", &secret], ", line 1: expected"),
        (&["--allow-private=127.0.0.0/8"], "is an address of this machine"),
        (&["--allow-private=169.254.169.254"], "is a cloud metadata service"),
        (
            &["--allow-private=10.0.0.0/33"],
            "expected a network such as 10.1.0.0/16",
        ),
        (
            &["--allow-private", "--allow-private=10.0.0.0/8"],
            "all private targets or none",
        ),
    ] {
        let stderr = refused_to_start(&[&["socks5", "-l", "127.0.0.1:0"], arguments].concat());
        assert!(stderr.contains(problem) && !stderr.contains("wonderland"), "{stderr}");
    }
    // Port because nothing listens: the options are refused.
    let forward = ["forward", "-l", ":0", "-r", "a:80", "--to-deny", "b"];
    assert!(refused_to_start(&forward).contains("unexpected argument"));
}

#[test]
fn a_user_has_the_targets_of_its_own_table() {
    let (first, second) = (echo("127.0.0.1:0"), echo("127.0.0.2:0"));
    let users = TextFile::new("ann:a\nbob:b\neve:e\n");
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n\
         [[service]]\nkind = \"mixed\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{}\"\nto_allow = \"127.0.0.1\"\n\
         [[user]]\nname = \"bob\"\nto_allow = [\"127.0.0.0/8\"]\n\
         [[user]]\nname = \"eve\"\nto_deny = [\"127.0.0.1\"]\n\
         [[user]]\nname = \"zoe\"\n",
        users.path()
    ));
    let mut program = Program::run(&file);
    let socks = |program: &Program, name: &str, secret: &str, target| {
        let (mut client, _) = authenticated(program, name, secret);
        client.write_all(&ip_request(target)).unwrap();
        read_exactly(&mut client, 2)[1]
    };
    let http = |credentials: &str, target: SocketAddr| {
        let mut client = program.connect();
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic {credentials}\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        read_head(&mut client)[9..12].to_owned()
    };
    for (name, secret, basic, target, is_allowed) in [
        ("ann", "a", "YW5uOmE=", first, true),
        ("ann", "a", "YW5uOmE=", second, false),
        ("bob", "b", "Ym9iOmI=", first, true),
        ("bob", "b", "Ym9iOmI=", second, true),
        // The allow list comes from the service.
        ("eve", "e", "ZXZlOmU=", first, false),
        ("eve", "e", "ZXZlOmU=", second, false),
    ] {
        let code = if is_allowed { SUCCEEDED } else { NOT_ALLOWED };
        assert_eq!(socks(&program, name, secret, target), code, "{name} {target}");
        let status = if is_allowed { "200" } else { "403" };
        assert_eq!(http(basic, target), status, "{name} {target}");
    }
    file.write(
        &std::fs::read_to_string(file.path())
            .unwrap()
            .replace("[\"127.0.0.0/8\"]", "[\"127.0.0.2\"]"),
    );
    assert!(program.reload().contains("changed mixed"));
    let bob = |target| socks(&program, "bob", "b", target);
    assert_eq!((bob(first), bob(second)), (NOT_ALLOWED, SUCCEEDED));
}

#[test]
fn a_private_network_is_opened_without_this_machine() {
    let Some(net) = Net::of_three(Offloads::On) else { return };
    let (client, relay) = (address(0, false, Family::V4), address(0, true, Family::V4));
    let target = address(1, true, Family::V4);
    let listener = net.node(2).inside(|| TcpListener::bind((target, 0)).unwrap());
    let port = listener.local_addr().unwrap().port();
    let opened = format!("--allow-private={target}");
    let listens = SocketAddr::new(relay, 0).to_string();
    let program = net
        .node(1)
        .inside(|| Program::start(&["socks5", "-l", &listens, "--open", &opened]));
    let code = |target: IpAddr| {
        net.node(0)
            .inside(|| code(&program, &ip_request((target, port).into())))
    };
    assert_eq!(code(target), SUCCEEDED);
    for closed in [
        client,
        relay,
        IpAddr::from([127, 0, 0, 1]),
        IpAddr::from([169, 254, 169, 254]),
    ] {
        assert_eq!(code(closed), NOT_ALLOWED, "{closed}");
    }
}

#[test]
fn curl_reaches_what_the_rules_allow() {
    if !has_tool("curl", "curl") {
        return;
    }
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = web.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in web.incoming().map_while(Result::ok) {
            let _ = read_head(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let allow = format!("127.0.0.1:{port}");
    let program = Program::proxy("mixed", &["--to-allow", &allow, "--to-deny", "denied.example"]);
    for scheme in ["http", "socks5", "socks5h", "socks4", "socks4a"] {
        let proxy = format!("{scheme}://{}", program.address);
        let fetch = |url: &str| {
            let mut curl = Command::new("curl");
            let output = curl
                .args(["-sS", "--max-time", "20", "-x", &proxy, url])
                .output()
                .unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(
            fetch(&format!("http://127.0.0.1:{port}/")),
            (true, "ok".to_owned()),
            "{proxy}"
        );
        for url in [
            &format!("http://127.0.0.2:{port}/"),
            &format!("http://denied.example:{port}/"),
        ] {
            let (_, text) = fetch(url);
            assert_ne!(text, "ok", "{proxy} {url}");
        }
    }
}
