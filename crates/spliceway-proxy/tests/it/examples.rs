//! The files of `contrib/examples`, which run as they are. Their targets are on a machine of their
//! own, behind a link.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use spliceway_net::{Net, Offloads, has_tool};

use crate::harness::{Folder, PATIENCE, Program, contrib, read_all, with_patience};

/// Targets of the examples.
const TARGETS: [&str; 7] = [
    "10.0.0.11:5432",
    "10.0.0.12:5432",
    "10.0.1.20:443",
    "20.0.9.1:80",
    "20.0.9.1:5432",
    "20.0.9.1:28003",
    "20.0.9.2:80",
];
/// The address that every name has. It is public, because a proxy refuses others.
const NAMED: &str = "20.0.9.1";

/// The machine of the program, which has the examples, and the machine of the targets.
struct Machines {
    net: Net,
    folder: Folder,
}

impl Machines {
    /// Returns `None`, after a message, if this machine lacks what the test needs.
    fn new() -> Option<Self> {
        let tools = [("curl", "curl"), ("mount", "mount"), ("unshare", "util-linux")];
        if !tools.iter().all(|(tool, package)| has_tool(tool, package)) {
            return None;
        }
        let net = Net::chain(2, Offloads::On)?;
        let near = [
            "route add 10.0.0.0/16 via 10.77.0.2",
            "route add 20.0.0.0/16 via 10.77.0.2",
            "address add 192.0.2.10/32 dev lo",
            "address add 192.168.1.1/32 dev lo",
        ];
        let far = [
            "route add local 10.0.0.0/16 dev lo",
            "route add local 20.0.0.0/16 dev lo",
            "route add 192.0.2.0/24 via 10.77.0.1",
        ];
        for (node, commands) in [(0, &near[..]), (1, &far[..])] {
            let commands: Vec<_> = commands.iter().map(|&command| command.to_owned()).collect();
            net.node(node).ip(&commands).unwrap();
        }
        let folder = Folder::new("examples");
        let names = ["backend", "games", "db", "proxy"].map(|name| format!("{NAMED} {name}.example.com\n"));
        folder.file("hosts", &("127.0.0.1 localhost\n".to_owned() + &names.concat()));
        for entry in fs::read_dir(contrib("examples")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.0.join(path.file_name().unwrap())).unwrap();
        }
        folder.file("users", "ann:wonderland\n");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "CA of the examples");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        folder.file("ca.pem", &ca.pem());
        for (file, name) in [("shop", "shop.example.com"), ("other", "www.example.net")] {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new([name.to_owned()]).unwrap();
            folder.file(&format!("{file}.pem"), &certificate.signed_by(&key, &ca).unwrap().pem());
            folder.file(&format!("{file}.key"), &key.serialize_pem());
        }
        for file in ["users", "shop.key", "other.key"] {
            fs::set_permissions(folder.0.join(file), fs::Permissions::from_mode(0o600)).unwrap();
        }
        net.node(1).inside(|| {
            for target in TARGETS {
                answer(TcpListener::bind(target).unwrap());
            }
        });
        net.node(0).inside(|| {
            // Port because the file has it.
            answer(TcpListener::bind(("127.0.0.1", 8000)).unwrap());
        });
        Some(Self { net, folder })
    }

    fn path(&self, file: &str) -> String {
        self.folder.0.join(file).to_str().unwrap().to_owned()
    }

    /// Returns a command that sees the names, and an empty `/run`. The working directory is another
    /// one than that of the configuration.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let script = "mount --bind \"$0\" /etc/hosts && mount -t tmpfs none /run && mkdir /run/spliceway && \
                      exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, &self.path("hosts"), program]);
        command
            .args(arguments)
            .current_dir("/")
            .env("OFFICE_PROXY", "ann:secret");
        command
    }

    fn run(&self, node: usize, arguments: &[&str]) -> Program {
        let command = self.command(env!("CARGO_BIN_EXE_spliceway"), arguments);
        self.net.node(node).inside(|| Program::spawn(command, false))
    }

    /// Returns the output of curl on the machine of the program.
    fn curl(&self, arguments: &str) -> String {
        let ca = self.path("ca.pem");
        let time = PATIENCE.as_secs().to_string();
        let fixed = [
            "--silent",
            "--show-error",
            "--http0.9",
            "--max-time",
            &time,
            "--cacert",
            &ca,
        ];
        let arguments: Vec<_> = fixed.into_iter().chain(arguments.split(' ')).collect();
        let mut curl = self.command("curl", &arguments);
        let output = self.net.node(0).inside(|| curl.output().unwrap());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Answers each client with the address that it has reached.
fn answer(listener: TcpListener) {
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || {
                let mut client: TcpStream = client.unwrap();
                let _ = client.read(&mut [0; 4096]);
                let text = client.local_addr().unwrap().to_string();
                let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\n{text}");
                let _ = client.shutdown(Shutdown::Write);
                let _ = client.read_to_end(&mut Vec::new());
            });
        }
    });
}

/// What curl does with the program of an example, and the target that answers. HERE is the machine
/// of the program.
#[rustfmt::skip]
const TASKS: [(&str, &[(&str, &str)]); 7] = [
    // Its clients are a balancer, which curl is not.
    ("behind-a-balancer", &[]),
    ("backends", &[("http://HERE:5432", "10.0.0.11:5432")]),
    ("forward", &[("http://HERE:8080", "20.0.9.1:80"), ("http://HERE:27003", "20.0.9.1:28003")]),
    ("local", &[("-x socks5h://HERE:1080 http://db.example.com:5432", "20.0.9.1:5432")]),
    ("names", &[
        ("--resolve shop.example.com:443:HERE https://shop.example.com", "HERE:8000"),
        ("--resolve www.example.net:443:HERE https://www.example.net", "20.0.9.2:80"),
    ]),
    ("office", &[
        ("--interface 192.168.1.1 -x socks5h://192.168.1.1:1080 http://backend.example.com", "20.0.9.1:80"),
        ("--interface 192.168.1.1 -x http://192.168.1.1:3128 http://backend.example.com", "20.0.9.1:80"),
    ]),
    ("proxy-with-users", &[
        ("-x socks5h://ann:wonderland@HERE:1080 http://backend.example.com", "20.0.9.1:80"),
        ("-x http://ann:wonderland@HERE:1080 http://backend.example.com", "20.0.9.1:80"),
    ]),
];

#[test]
fn every_example_runs_as_it_is() {
    let Some(machines) = Machines::new() else { return };
    let _provider = machines.run(
        1,
        &[
            "socks5",
            "-l",
            "20.0.9.1:1080",
            "--auth",
            "ann:secret",
            "--allow-private",
        ],
    );
    let (pem, key) = (machines.path("other.pem"), machines.path("other.key"));
    let tls = [
        "-l",
        "10.0.0.8:443",
        "-r",
        "20.0.9.2:80",
        "--tls-cert",
        &pem,
        "--tls-key",
        &key,
    ];
    let _other = machines.run(1, &tls);
    assert_eq!(fs::read_dir(contrib("examples")).unwrap().count(), TASKS.len());
    for (example, tasks) in TASKS {
        let _program = machines.run(0, &["run", &machines.path(&format!("{example}.toml"))]);
        for (arguments, expected) in tasks {
            let reached = machines.curl(&arguments.replace("HERE", "127.0.0.1"));
            let expected = expected.replace("HERE", "127.0.0.1");
            assert!(reached.starts_with(&expected), "{example}: {arguments}: {reached}");
        }
        if example == "behind-a-balancer" {
            let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x80\0\x20\xfb";
            // Port because the file has it.
            let balancer = machines.net.node(0).inside(|| TcpStream::connect(("127.0.0.1", 8443)));
            let mut balancer = with_patience(balancer.unwrap());
            balancer.write_all(header).unwrap();
            assert!(read_all(&balancer).ends_with(b"10.0.1.20:443"));
        }
    }
}
