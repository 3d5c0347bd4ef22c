//! Keys of tickets from a file, which several machines share. Here, a process is a machine.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;

use spliceway_net::has_tool;

use super::client::{Client, Config, Pair, TLS12, TLS13};
use crate::handover::upgrade;
use crate::harness::{Folder, Program, TextFile, connect, echo, listen, refused_to_start, refusing};

/// Two keys, as `openssl rand -base64 32` writes them.
const KEYS: [&str; 2] = [
    "mBIyBJ8fDvV3qQG4wTnxqpyOSt2yXXNzjHrU1cW5Fqg=\n",
    "5nnZ0Xn3o0pAIQf2P1mXo0vWjOqv6tqz5d2l0dXy1X8=\n",
];

/// Returns a file that only its owner can read.
fn key_file(lines: &str) -> TextFile {
    let file = TextFile::new(lines);
    fs::set_permissions(&file.0, PermissionsExt::from_mode(0o600)).unwrap();
    file
}

/// Starts a forwarder to an echo.
fn machine(pair: &Pair, keys: &TextFile) -> Program {
    let arguments = [&pair.arguments()[..], &["--tls-ticket-key", keys.path()]].concat();
    Program::forward(echo("127.0.0.1:0"), &arguments)
}

/// Returns a configuration of a forwarder to an echo.
fn config(pair: &Pair, more: &str) -> String {
    let [_, certificate, _, key] = pair.arguments();
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"a\"\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nto = \"{}\"\ntls_cert = \"{certificate}\"\ntls_key = \"{key}\"\n{more}",
        echo("127.0.0.1:0"),
    )
}

/// Returns clients of both versions, with no ticket yet.
fn clients() -> [Config; 2] {
    [TLS12, TLS13].map(|versions| Config::anything().versions(versions))
}

/// Returns which of the clients resume their sessions. Each has a new ticket afterwards.
fn resume(address: SocketAddr, clients: &[Config; 2]) -> [bool; 2] {
    [0, 1].map(|index| {
        let mut client = Client::over(connect(address), &clients[index]).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
        client.is_resumed()
    })
}

/// Starts a target that greets each client.
fn greeter() -> SocketAddr {
    let (listener, target) = listen();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.write_all(b"served\n");
        }
    });
    target
}

/// Returns what `openssl s_client` says, with its errors.
fn s_client(folder: &Folder, machine: &Program, arguments: &[&str]) -> String {
    let client = Command::new("openssl")
        .current_dir(&folder.0)
        .args(["s_client", "-ign_eof", "-connect", &machine.address.to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    [client.stdout, client.stderr]
        .map(|said| String::from_utf8_lossy(&said).into_owned())
        .concat()
}

#[test]
fn a_client_of_one_machine_resumes_on_another() {
    let pair = Pair::new(&["a.test"]);
    let keys = key_file(KEYS[0]);
    // The second machine has another certificate for the same name.
    let (near, far) = (machine(&pair, &keys), machine(&Pair::new(&["a.test"]), &keys));
    let clients = clients();
    for (machine, expected) in [(&near, false), (&far, true), (&near, true)] {
        assert_eq!(resume(machine.address, &clients), [expected; 2]);
    }
    // These have another key, and another name.
    let other = machine(&pair, &key_file(KEYS[1]));
    assert_eq!(resume(other.address, &clients), [false; 2]);
    assert_eq!(resume(near.address, &clients), [false; 2]);
    let other = machine(&Pair::new(&["a.test", "b.test"]), &keys);
    assert_eq!(resume(other.address, &clients), [false; 2]);
}

#[test]
fn openssl_resumes_on_the_second_machine_with_each_version() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let folder = Folder::new("ticket-key");
    let path = folder.0.join("keys");
    let made = Command::new("openssl")
        .args(["rand", "-base64", "32"])
        .output()
        .unwrap();
    fs::write(&path, made.stdout).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let path = path.to_str().unwrap();
    let arguments = [&pair.arguments()[..], &["--tls-ticket-key", path]].concat();
    let target = greeter();
    let machines = [0; 2].map(|_| Program::forward(target, &arguments));
    for version in ["-tls1_2", "-tls1_3"] {
        let says = |machine: &Program, session: &str| {
            let arguments = ["-servername", "a.test", version, session, "session"];
            let said = s_client(&folder, machine, &arguments);
            assert!(said.contains("served\n"), "{said}");
            said
        };
        let first = says(&machines[0], "-sess_out");
        assert!(first.contains("\nNew, TLSv1."), "{first}");
        let second = says(&machines[1], "-sess_in");
        assert!(second.contains("\nReused, TLSv1."), "{second}");
    }
    let resumed = machines[1].sum("spliceway_tls_handshakes_total", &["resumed=\"yes\""]);
    assert_eq!(resumed, 2);
}

#[test]
fn a_ticket_of_one_service_skips_no_check_of_another() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let pair = Pair::new(&["a.test", "b.test"]);
    let keys = key_file(KEYS[0]);
    let (folder, target) = (Folder::new("ticket-checks"), greeter());
    let start = |more: &[&str]| {
        let keys = ["--tls-ticket-key", keys.path(), "--tls-alpn", "http/1.1"];
        Program::forward(target, &[&pair.arguments(), &keys[..], more].concat())
    };
    let lax = start(&["--tls-alpn", "h2"]);
    let strict = start(&["--tls-min", "1.3", "--tls-unknown-name", "refuse"]);
    let same = |version| ["-servername", "a.test", "-alpn", "h2", version];
    let (a12, a13) = (same("-tls1_2"), same("-tls1_3"));
    let x13 = ["-servername", "x.test", "-tls1_3"];
    // A ticket of the lax service, and what the client then asks for. The lax service resumes it.
    for (first, then, answer) in [
        (
            &a12[..],
            &["-servername", "a.test", "-tls1_2"][..],
            "SSL alert number 70\n",
        ),
        (&a12, &["-servername", "a.test"], "\nNew, TLSv1.3"),
        (&x13, &x13, "SSL alert number 112\n"),
        (&a13, &["-servername", "b.test", "-tls1_3"], "\nNew, TLSv1.3"),
        (&a13, &["-tls1_3", "-noservername"], "\nNew, TLSv1.3"),
        (&a13, &a13, "SSL alert number 120\n"),
        (
            &a13,
            &["-servername", "a.test", "-alpn", "h2,http/1.1"],
            "\nALPN protocol: http/1.1",
        ),
        (&a13, &["-servername", "a.test", "-tls1_3"], "\nReused, TLSv1.3"),
    ] {
        s_client(&folder, &lax, &[first, &["-sess_out", "session"]].concat());
        let resumed = s_client(&folder, &lax, &[first, &["-sess_in", "session"]].concat());
        assert!(resumed.contains("\nReused, TLSv1."), "{first:?}: {resumed}");
        let said = s_client(&folder, &strict, &[then, &["-sess_in", "session"]].concat());
        assert!(said.contains(answer), "{then:?}: {said}");
        assert_eq!(
            said.contains("served\n"),
            !answer.starts_with("SSL alert"),
            "{then:?}: {said}"
        );
    }
}

#[test]
fn services_for_other_addresses_share_no_sessions() {
    let keys = key_file(KEYS[0]);
    let [first, same, other] =
        ["127.0.0.1", "127.0.0.1", "127.0.0.2"].map(|address| machine(&Pair::new(&[address]), &keys));
    let clients = [TLS12, TLS13].map(|versions| Config::anything().versions(versions).name(None));
    for (machine, expected) in [(&first, false), (&same, true), (&other, false)] {
        assert_eq!(resume(machine.address, &clients), [expected; 2]);
    }
}

#[test]
fn a_new_key_above_keeps_old_tickets_and_a_removed_key_ends_them() {
    let pair = Pair::new(&["a.test"]);
    let keys = key_file(KEYS[0]);
    let file = TextFile::new(&config(&pair, &format!("tls_ticket_key = \"{}\"\n", keys.path())));
    let mut program = Program::run(&file);
    let (address, active, idle) = (program.address, clients(), clients());
    for clients in [&active, &idle] {
        assert_eq!(resume(address, clients), [false; 2]);
    }
    assert!(program.reload().contains("nothing has changed"));
    keys.write(&["# of May\n", KEYS[1], KEYS[0]].concat());
    let line = program.reload();
    assert!(line.contains("changed a"), "{line}");
    // These clients now have tickets of the new key.
    assert_eq!(resume(address, &active), [true; 2]);
    keys.write(KEYS[1]);
    assert!(program.reload().contains("changed a"));
    assert_eq!(resume(address, &active), [true; 2]);
    assert_eq!(resume(address, &idle), [false; 2]);
}

#[test]
fn a_changed_file_is_read_and_a_broken_one_leaves_the_old_keys() {
    let pair = Pair::new(&["a.test"]);
    let keys = key_file(KEYS[0]);
    let mut program = machine(&pair, &keys);
    let (address, clients) = (program.address, clients());
    assert_eq!(resume(address, &clients), [false; 2]);
    keys.write("broken\n");
    let line = program.line("the previous TLS files stay in force");
    let place = format!("{}:1: the ", keys.path());
    assert!(line.contains(&place), "{line}");
    assert_eq!(program.sum("spliceway_tls_certificates_stale", &[]), 1);
    assert_eq!(resume(address, &clients), [true; 2]);
    keys.write(KEYS[1]);
    program.line("read the changed TLS files");
    assert_eq!(program.sum("spliceway_tls_certificates_stale", &[]), 0);
    assert_eq!(resume(address, &clients), [false; 2]);
    assert_eq!(resume(address, &clients), [true; 2]);
}

#[test]
fn a_broken_file_refuses_a_reload() {
    let pair = Pair::new(&["a.test"]);
    let keys = key_file(KEYS[0]);
    let file = TextFile::new(&config(&pair, &format!("tls_ticket_key = \"{}\"\n", keys.path())));
    let mut program = Program::run(&file);
    let (address, clients) = (program.address, clients());
    assert_eq!(resume(address, &clients), [false; 2]);
    keys.write(&format!("{}\nAAAA\n", KEYS[1]));
    let line = program.reload();
    let place = format!("{}:3: the ticket key has 3 bytes", keys.path());
    for part in [
        "the previous settings stay in force",
        "tls_ticket_key",
        &place,
        file.path(),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(resume(address, &clients), [true; 2]);
}

#[test]
fn tickets_stay_good_in_an_upgrade_and_when_a_file_is_added() {
    let pair = Pair::new(&["a.test"]);
    let keys = key_file(KEYS[0]);
    let file = TextFile::new(&config(&pair, ""));
    let mut program = Program::run(&file);
    let (address, clients) = (program.address, clients());
    assert_eq!(resume(address, &clients), [false; 2]);
    file.write(&config(&pair, &format!("tls_ticket_key = \"{}\"\n", keys.path())));
    assert!(program.reload().contains("changed a"));
    // This ticket is of a random key, and the next one is of the file.
    assert_eq!(resume(address, &clients), [true; 2]);
    let _next = upgrade(&mut program, None);
    assert!(program.exit().success());
    assert_eq!(resume(address, &clients), [true; 2]);
    let other = machine(&pair, &keys);
    assert_eq!(resume(other.address, &clients), [true; 2]);
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_the_remedy() {
    let pair = Pair::new(&["a.test"]);
    let target = refusing().to_string();
    let start = ["forward", "-l", "127.0.0.1:0", "-r", &target];
    let keys = key_file(KEYS[0]);
    let option = ["--tls-ticket-key", keys.path()];
    let all = [&start[..], &pair.arguments(), &option].concat();
    let stderr = || refused_to_start(&all);
    fs::set_permissions(&keys.0, PermissionsExt::from_mode(0o644)).unwrap();
    let remedy = format!(
        "--tls-ticket-key: every user can read the ticket keys in {0}: run `chmod o= {0}`",
        keys.path()
    );
    assert!(stderr().contains(&remedy), "{}", stderr());
    fs::set_permissions(&keys.0, PermissionsExt::from_mode(0o600)).unwrap();
    let long = "4gdYvyj1l2GjHyvGLcyTQ1KfyMWJ0bN5p9oTg7pTJvZxvUXW9bMw3N2m3b4q8hVw\n";
    keys.write(&[KEYS[0], long].concat());
    let fault = format!(
        "{}:2: the ticket key has 48 bytes: expected 32 bytes in base64",
        keys.path()
    );
    assert!(stderr().contains(&fault), "{}", stderr());
    keys.write("");
    assert!(
        stderr().contains("has no ticket key: `openssl rand -base64 32 > "),
        "{}",
        stderr()
    );
    let stderr = refused_to_start(&[&start[..], &option].concat());
    assert!(stderr.contains("--tls-ticket-key: needs a certificate"), "{stderr}");
    let stderr = refused_to_start(&[&all[..], &["--tls-client-ca", pair.certificate.path()]].concat());
    assert!(
        stderr.contains("--tls-ticket-key: contradicts --tls-client-ca"),
        "{stderr}"
    );
}
