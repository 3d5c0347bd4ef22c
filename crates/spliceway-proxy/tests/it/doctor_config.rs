//! What `spliceway doctor -c FILE` says about one configuration.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spliceway_net::has_tool;

use crate::harness::{Folder, Program, TextFile, listen, refusing, was_reached};
use crate::tls::client::Pair;

/// The exit code, and the checks.
struct Answer {
    code: Option<i32>,
    json: Value,
}

impl Answer {
    fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        let json = serde_json::from_slice(&output.stdout);
        Self {
            code: output.status.code(),
            json: json.unwrap_or_else(|error| panic!("{error}: {output:?}")),
        }
    }

    /// Returns the verdict on a check with this name and title, what was found, and the advice.
    fn about(&self, check: &str, title: &str) -> (&str, &str, &str) {
        let mut checks = self.json["checks"].as_array().unwrap().iter();
        let found = checks.find(|one| one["check"] == check && one["title"].as_str().unwrap().contains(title));
        let found = found.unwrap_or_else(|| panic!("no {check} of {title}: {}", self.json));
        let text = |key: &str| found[key].as_str().unwrap_or_default();
        (text("verdict"), text("observed"), text("advice"))
    }

    /// Returns whether the configuration works, which the exit code must say, too.
    fn works(&self) -> bool {
        let works = self.json["configuration"].as_bool().unwrap();
        assert_eq!(self.code, Some(i32::from(!works)), "{}", self.json);
        works
    }
}

fn command(file: &TextFile, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["doctor", "-c", file.path()]).args(arguments);
    command
}

fn doctor(text: &str) -> Answer {
    Answer::of(command(&TextFile::new(text), &["--json"]))
}

/// Returns the text of a forwarder.
fn forward(listen: &str, to: &[SocketAddr]) -> String {
    let to: Vec<_> = to.iter().map(|to| format!("{:?}", to.to_string())).collect();
    format!(
        "[[service]]\nkind = \"forward\"\nlisten = {listen:?}\nto = [{}]\n",
        to.join(", ")
    )
}

#[test]
fn a_configuration_that_works_has_no_fault_and_takes_no_port() {
    let (target, to) = listen();
    let text = forward("127.0.0.1:0", &[to]) + "[admin]\nsocket = \"unix:/tmp/spliceway-never.sock\"\n";
    let answer = doctor(&text);
    assert!(answer.works(), "{}", answer.json);
    assert_eq!(answer.about("backend", "forward to"), ("ok", "answers", ""));
    assert!(was_reached(&target) && !Path::new("/tmp/spliceway-never.sock").exists());
    let file = TextFile::new(&text);
    let path = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["doctor", file.path()])
        .output()
        .unwrap();
    let shown = String::from_utf8(path.stdout).unwrap();
    assert!(
        shown.starts_with("This configuration works here.") && !shown.contains("free"),
        "{shown}"
    );
    assert!(shown.contains("\nok           Ports: 2 of 2 checks\n"), "{shown}");
    assert!(shown.lines().count() <= 12, "{shown}");
    let long = command(&file, &["-v"]).output().unwrap();
    let long = String::from_utf8(long.stdout).unwrap();
    assert!(long.contains(" [listen]\n             free\n"), "{long}");
}

#[test]
fn each_address_that_is_in_use_is_named_with_its_holder() {
    let ((tcp, at), (_scraped, metrics), to) = (listen(), listen(), refusing());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new("doctor-held");
    let path = folder.0.join("a.sock");
    let unix = UnixListener::bind(&path).unwrap();
    unix.set_nonblocking(true).unwrap();
    let udp_service = format!(
        "[[service]]\nname = \"dns\"\nkind = \"forward\"\nudp = true\nlisten = \"{}\"\nto = \"{to}\"\n",
        udp.local_addr().unwrap()
    );
    let answer = doctor(&format!(
        "{}{udp_service}[admin]\nsocket = \"unix:{}\"\nmetrics = \":{}\"\n",
        forward(&at.to_string(), &[to]),
        path.display(),
        metrics.port()
    ));
    assert!(!answer.works());
    for title in ["forward on", "dns on", "the admin socket on", "metrics on :"] {
        let (verdict, observed, advice) = answer.about("listen", title);
        let holder = format!("(process {})", std::process::id());
        assert!(
            verdict == "differs" && observed.contains(&holder),
            "{title}: {observed}"
        );
        assert_eq!(advice, "stop that program, or choose another address");
    }
    // Nothing connected to the sockets, and no file was touched.
    assert!(!was_reached(&tcp) && unix.accept().is_err() && path.exists());
}

#[test]
fn a_running_instance_is_a_remark_and_serves_on() {
    let (target, to) = listen();
    let file = TextFile::new(&(forward("127.0.0.1:0", &[to]) + "[admin]\nmetrics = \"127.0.0.1:0\"\n"));
    let program = Program::run(&file);
    let pid = program.pid();
    let text = forward(&program.address.to_string(), &[to]);
    let answer = doctor(&text);
    assert!(answer.works(), "{}", answer.json);
    let (verdict, observed, advice) = answer.about("listen", "forward on");
    assert_eq!(
        (verdict, observed),
        (
            "ok",
            &*format!("in use by a running instance of this program (process {pid})")
        )
    );
    assert!(advice.contains("`spliceway reload`"), "{advice}");
    let text = text + "[admin]\nmetrics = \"127.0.0.1:0\"\n";
    let short = command(&TextFile::new(&text), &[]).output().unwrap();
    let short = String::from_utf8(short.stdout).unwrap();
    assert!(short.contains("\nremark       forward on "), "{short}");
    assert!(short.contains("\nok           Ports: 1 ok, 1 remark\n"), "{short}");
    // The checks reached the target twice, and the instance never.
    assert_eq!(program.sum("spliceway_connections_total", &[]), 0);
    drop(target);
}

#[test]
fn every_backend_is_tried_and_one_that_answers_is_enough() {
    let ((one, first), dead) = (listen(), refusing());
    let answer = doctor(&forward("127.0.0.1:0", &[first, dead]));
    assert!(answer.works() && was_reached(&one));
    assert_eq!(answer.about("backend", &first.to_string()).0, "ok");
    let (verdict, observed, advice) = answer.about("backend", &dead.to_string());
    assert!(verdict == "differs" && observed.contains("refused"), "{observed}");
    assert_eq!(advice, "start the server, or correct the address");
    let answer = doctor(&forward("127.0.0.1:0", &[dead]));
    assert!(!answer.works());
}

/// 100 backends that never answer cost one timeout, or two, and not 100.
#[test]
fn silent_backends_are_tried_at_the_same_time_within_the_timeout() {
    // A full backlog does not answer.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let silent = socket.local_addr().unwrap().as_socket().unwrap();
    let _held = TcpListener::from(socket);
    let _waiting: Vec<_> = std::iter::repeat_with(|| crate::harness::connect(silent))
        .take(1)
        .collect();
    let services: String = (0..100)
        .map(|number| format!("{}name = \"s{number}\"\n", forward("127.0.0.1:0", &[silent])))
        .collect();
    let started = std::time::Instant::now();
    let answer = doctor(&format!("[timeouts]\nconnect = \"300ms\"\n{services}"));
    assert!(started.elapsed() < std::time::Duration::from_secs(20));
    assert!(!answer.works());
    for service in ["s0 to", "s99 to"] {
        let (verdict, _, advice) = answer.about("backend", service);
        assert_eq!(verdict, "differs", "{}", answer.json);
        assert!(advice.contains("firewall"), "{advice}");
    }
}

#[test]
fn names_services_and_proxies_are_tried() {
    let (proxy, at) = listen();
    let answer = doctor(&format!(
        "[[service]]\nname = \"name\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"nosuch.invalid:80\"\n\
         [[service]]\nname = \"inner\"\nkind = \"forward\"\nlisten = \"unix:/tmp/spliceway-inner.sock\"\nto = \"{at}\"\n\
         [[service]]\nname = \"outer\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
         to = \"unix:/tmp/spliceway-inner.sock\"\n\
         [[service]]\nname = \"proxy\"\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\nupstream_proxy = \"socks5://{at}\"\n",
    ));
    assert!(!answer.works());
    let (verdict, observed, advice) = answer.about("backend", "name to nosuch.invalid:80");
    assert!(
        verdict == "differs" && observed.starts_with("cannot look up the name"),
        "{observed}"
    );
    assert!(advice.starts_with("correct the name"), "{advice}");
    assert_eq!(answer.about("backend", "outer to").1, "a service of this configuration");
    assert_eq!(answer.about("backend", "proxy to"), ("ok", "answers", ""));
    assert!(was_reached(&proxy));
}

#[test]
fn faults_of_the_file_and_of_certificates_are_found() {
    let answer = doctor("[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n");
    assert!(!answer.works());
    let (verdict, observed, _) = answer.about("configuration", "");
    assert!(
        verdict == "differs" && observed.contains(":1:1: to: is missing"),
        "{observed}"
    );
    let pair = Pair::new(&["a.test"]);
    let text = format!(
        "{}tls_cert = \"{}\"\ntls_key = \"{}\"\n",
        forward("127.0.0.1:0", &[refusing()]),
        pair.certificate.path(),
        pair.key.path()
    );
    let answer = doctor(&text);
    let (verdict, observed, _) = answer.about("pair", "forward: ");
    assert!(
        verdict == "ok" && observed.starts_with("a.test; it expires at"),
        "{observed}"
    );
    pair.key.write("nothing");
    let answer = doctor(&text);
    assert!(!answer.works());
    assert_eq!(answer.about("pair", "forward: ").0, "differs");
}

#[test]
fn limits_and_folders_that_do_not_suffice_are_named() {
    if !has_tool("prlimit", "util-linux") {
        return;
    }
    let (_target, to) = listen();
    let file = TextFile::new(&format!(
        "{}[limits]\nmax_conns = 5000\nquota_file = \"/nowhere/quotas\"\n[log]\naccess = \"/proc/access.log\"\n\
         [admin]\npid_file = \"/nowhere/pid\"\n",
        forward("127.0.0.1:0", &[to])
    ));
    let mut command = Command::new("prlimit");
    command.args(["--nofile=1024:1024", env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["doctor", "--json", file.path()]);
    let answer = Answer::of(command);
    assert!(!answer.works());
    let (verdict, observed, advice) = answer.about("descriptors", "");
    assert!(
        verdict == "differs" && observed.starts_with("max_conns = 5000 is lowered to 371: 1024 descriptors"),
        "{observed}"
    );
    assert!(advice.contains("LimitNOFILE=13"), "{advice}");
    for (title, expected) in [
        ("the quota file /nowhere/quotas", "create the folder"),
        ("the pid file /nowhere/pid", "create the folder"),
    ] {
        let (verdict, _, advice) = answer.about("files", title);
        assert_eq!((verdict, advice), ("differs", expected), "{title}");
    }
    // The advice is enough.
    let enough: String = advice.chars().skip_while(|letter| !letter.is_ascii_digit()).collect();
    let enough: String = enough.chars().take_while(char::is_ascii_digit).collect();
    let mut command = Command::new("prlimit");
    command.args([&format!("--nofile={enough}:{enough}"), env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["doctor", "--json", file.path()]);
    assert_eq!(Answer::of(command).about("descriptors", "").0, "ok");
}

#[test]
fn a_user_without_rights_is_told_what_is_missing() {
    if !has_tool("setpriv", "util-linux") || !rustix::process::getuid().is_root() {
        return;
    }
    let first_port = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let folder = Folder::new("doctor-rights");
    let program = folder.0.join("spliceway");
    std::fs::copy(env!("CARGO_BIN_EXE_spliceway"), &program).unwrap();
    let (_target, to) = listen();
    // Port because it is one that needs the capability.
    let text = forward("127.0.0.1:1", &[to]);
    folder.file(
        "main.toml",
        &format!(
            "{text}[limits]\nquota_file = \"quotas\"\n[admin]\nsocket = \"unix:{0}/a\"\n",
            folder.0.display()
        ),
    );
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
    ]);
    command
        .arg(&program)
        .args(["doctor", "--json", "main.toml"])
        .current_dir(&folder.0);
    let answer = Answer::of(command);
    assert!(!answer.works(), "{}", answer.json);
    if first_port.trim() == "1024" {
        let (verdict, _, advice) = answer.about("listen", "forward on");
        assert!(
            verdict == "differs" && advice.contains("CAP_NET_BIND_SERVICE"),
            "{advice}"
        );
    }
    for (check, title) in [("files", "the quota file"), ("listen", "the admin socket")] {
        let (verdict, _, advice) = answer.about(check, title);
        assert!(
            verdict == "differs" && advice.starts_with("give this user the right"),
            "{title}: {advice}"
        );
    }
    assert_eq!(answer.about("user", "the user").1, "65534");
}
