//! Certificates that change while the program runs.

use crate::handover::{Process, upgrade};
use crate::harness::{Program, TextFile, accept, echo, listen, read_exactly};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::service;

/// Returns a configuration of a forwarder with this certificate.
pub(super) fn config(target: SocketAddr, pair: &Pair) -> TextFile {
    let [_, certificate, _, key] = pair.arguments();
    TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"a\"\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nto = \"{target}\"\ntls_cert = \"{certificate}\"\ntls_key = \"{key}\"\n"
    ))
}

/// Returns the client after an exchange with an echo.
fn exchange(address: SocketAddr, config: &Config) -> Client {
    let mut client = Client::over(crate::harness::connect(address), config).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    client
}

#[test]
fn a_reload_uses_the_new_certificate_and_clients_still_resume() {
    let pair = Pair::new(&["a.test"]);
    let file = config(echo("127.0.0.1:0"), &pair);
    let mut program = Program::run(&file);
    let configs = [TLS12, TLS13].map(|versions| Config::anything().versions(versions));
    for config in &configs {
        assert!(!exchange(program.address, config).is_resumed());
    }
    assert!(program.reload().contains("nothing has changed"));
    for config in &configs {
        assert!(exchange(program.address, config).is_resumed());
    }
    pair.renew(&["a.test"]);
    let line = program.reload();
    assert!(line.contains("changed a"), "{line}");
    for config in &configs {
        assert!(exchange(program.address, config).is_resumed());
    }
    let new = exchange(program.address, &Config::anything());
    assert!(new.certificate() == pair.der());
    assert_eq!(program.sum("spliceway_tls_handshakes_total", &[]), 7);
}

#[test]
fn a_broken_file_refuses_a_reload_and_the_old_certificate_stays() {
    let pair = Pair::new(&["a.test"]);
    let old = pair.der();
    let file = config(echo("127.0.0.1:0"), &pair);
    let mut program = Program::run(&file);
    let key = std::fs::read_to_string(pair.key.path()).unwrap();
    pair.renew(&["a.test"]);
    for (broken, remedy) in [
        ("broken", "BEGIN PRIVATE KEY"),
        (&key, "does not belong to the first certificate in"),
    ] {
        pair.key.write(broken);
        let line = program.reload();
        for part in [
            "the previous settings stay in force",
            remedy,
            pair.key.path(),
            file.path(),
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let client = exchange(program.address, &Config::anything());
        assert!(client.certificate() == old);
    }
}

#[test]
fn an_open_session_keeps_its_process_and_new_clients_reach_the_next() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let file = config(target, &pair);
    let mut program = Program::run(&file);
    let mut old = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut old_target = accept(&listener);
    old.send(b"one");
    assert_eq!(read_exactly(&mut old_target, 3), b"one");
    pair.renew(&["a.test"]);
    let _next = upgrade(&mut program, None);
    let mut new = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut new_target = accept(&listener);
    for (client, target) in [(&mut old, &mut old_target), (&mut new, &mut new_target)] {
        client.send(b"two");
        assert_eq!(read_exactly(target, 3), b"two");
        target.write_all(b"answer").unwrap();
        assert_eq!(client.receive(6), b"answer");
    }
    assert!(!program.has_ended());
    old.finish();
    drop(old_target);
    assert_eq!(old.rest().unwrap(), b"");
    assert!(program.exit().success());
    drop(new_target);
    assert_eq!(new.rest().unwrap(), b"");
}

#[test]
fn a_session_that_an_upgrade_cuts_is_announced_and_has_its_cause() {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = service("forward", target, &pair, &["--drain-timeout", "100ms"]);
    let mut client = Client::connect(&program, &Config::new(&pair)).unwrap();
    let mut target = accept(&listener);
    client.send(b"one");
    assert_eq!(read_exactly(&mut target, 3), b"one");
    program.signal(Signal::USR2);
    let line = program.line("handed over: ");
    let _next = Process::in_line(&line);
    let fate = " finishes 1 session that cannot move: it is cut after 100ms";
    assert!(line.contains(fate), "{line}");
    let record = program.line("end=drained");
    let cause =
        "cause=\"after an upgrade, TLS that the kernel does not have stays in the old process, which has ended\"";
    assert!(record.contains(cause), "{record}");
    program.line("stopped: cut 1 session");
    program.exit();
    assert_eq!(program.lines_with("every session has ended"), 0);
}

#[test]
fn clients_of_the_process_before_resume_in_the_next() {
    let pair = Pair::new(&["a.test"]);
    let file = config(echo("127.0.0.1:0"), &pair);
    let mut program = Program::run(&file);
    let address = program.address;
    let configs = [TLS12, TLS13].map(|versions| Config::anything().versions(versions));
    for config in &configs {
        assert!(!exchange(address, config).is_resumed());
    }
    let _next = upgrade(&mut program, None);
    assert!(program.exit().success());
    for config in &configs {
        assert!(exchange(address, config).is_resumed());
    }
}

#[test]
fn an_upgrade_whose_key_cannot_be_read_leaves_the_old_process_in_charge() {
    let pair = Pair::new(&["a.test"]);
    let (old, key) = (pair.der(), pair.key.path());
    let file = config(echo("127.0.0.1:0"), &pair);
    let mut program = Program::run(&file);
    let hidden = format!("{key}.hidden");
    let mut session = exchange_open(program.address);
    for (is_hidden, expected) in [(true, "No such file or directory"), (false, "chmod o= ")] {
        if is_hidden {
            fs::rename(key, &hidden).unwrap();
        } else {
            fs::set_permissions(key, PermissionsExt::from_mode(0o644)).unwrap();
        }
        program.signal(Signal::USR2);
        let line = program.line("the upgrade failed, and this process serves on: ");
        for part in [expected, key, file.path()] {
            assert!(line.contains(part), "{part}: {line}");
        }
        session.send(b"abc");
        assert_eq!(session.receive(3), b"abc");
        assert!(exchange(program.address, &Config::anything()).certificate() == old);
        if is_hidden {
            fs::rename(&hidden, key).unwrap();
        }
    }
    fs::set_permissions(key, PermissionsExt::from_mode(0o600)).unwrap();
    let _next = upgrade(&mut program, None);
    assert!(exchange(program.address, &Config::anything()).certificate() == old);
}

/// Returns a client whose session stays open.
fn exchange_open(address: SocketAddr) -> Client {
    let mut client = Client::over(crate::harness::connect(address), &Config::anything()).unwrap();
    client.send(b"abc");
    assert_eq!(client.receive(3), b"abc");
    client
}
