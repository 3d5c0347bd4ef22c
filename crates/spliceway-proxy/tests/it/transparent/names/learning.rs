//! A service that learns: it allows what no rule allows, and says so.

use std::io::Write;
use std::process::Command;

use super::{GOOD, Guarded, LISTED, OTHER};
use crate::harness::{Folder, accept, is_closed, read_all, read_exactly, was_reached};
use crate::sni::{alert, named};

#[test]
fn a_service_that_learns_records_what_it_would_refuse() {
    let Some(guarded) = Guarded::new() else { return };
    let folder = Folder::new("names-learn");
    let log = folder.0.join("access.log");
    let arguments = [
        "--names-learn",
        "--to-allow",
        "good.test",
        "--access-log",
        log.to_str().unwrap(),
    ];
    let mut program = guarded.program(&arguments);
    let servers = [GOOD, OTHER].map(|ip| guarded.listen(ip, 443));
    for (dialled, sent, server) in [
        (OTHER, named("evil.test"), &servers[1]),
        (GOOD, named("evil.test"), &servers[1]),
        (OTHER, named("good.test"), &servers[0]),
        (OTHER, b"SSH-2.0-x\r\n".to_vec(), &servers[1]),
    ] {
        let mut client = guarded.connect(&format!("{dialled}:443"));
        client.write_all(&sent).unwrap();
        assert_eq!(read_exactly(&mut accept(server), sent.len()), sent);
    }
    // A private address stays refused.
    let mut client = guarded.connect(&format!("{OTHER}:443"));
    client.write_all(&named("rebind.test")).unwrap();
    assert!(is_closed(&mut client));
    // All records are written before it exits.
    program.terminate();
    assert!(program.exit().success());
    // The command of docs/transparent.md.
    let command = "grep -o 'target=[^ ]* would_deny' access.log | sort | uniq -c | sort -rn";
    assert!(include_str!("../../../../../../docs/transparent.md").contains(command));
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().take(2).collect())
        .collect();
    assert_eq!(lines[0], ["2", "target=evil.test:443"], "{text}");
    assert_eq!(lines.len(), 3, "{text}");
    assert!(text.contains(&format!("1 target={OTHER}:443 ")), "{text}");
}

/// An operator who begins has no rule yet.
#[test]
fn a_service_that_learns_without_rules_records_every_name() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.program(&["--names-learn"]);
    let good = guarded.listen(GOOD, 443);
    let mut client = guarded.connect(&format!("{OTHER}:443"));
    client.write_all(&named("good.test")).unwrap();
    assert_eq!(
        read_exactly(&mut accept(&good), named("good.test").len()),
        named("good.test")
    );
    drop(client);
    let record = program.line("end=");
    assert!(
        record.contains("target=good.test:443 would_deny=target_rule "),
        "{record}"
    );
}

/// Its operator wants to know the names of all clients.
#[test]
fn a_service_that_learns_reads_names_for_listed_addresses() {
    let Some(guarded) = Guarded::new() else { return };
    let mut program = guarded.program(&["--names-learn", "--to-allow", "10.77.1.20:443"]);
    let other = guarded.listen(OTHER, 443);
    let (mut client, sent) = (guarded.connect(&format!("{OTHER}:443")), named("evil.test"));
    client.write_all(&sent).unwrap();
    assert_eq!(read_exactly(&mut accept(&other), sent.len()), sent);
    drop(client);
    let record = program.line("end=");
    assert!(
        record.contains("sni=\"evil.test\" target=10.77.1.20:443 upstream="),
        "{record}"
    );
}

#[test]
fn a_service_that_learns_refuses_what_a_rule_refuses() {
    let Some(guarded) = Guarded::new() else { return };
    let rules = [
        "--names-learn",
        "--to-allow",
        "10.77.1.20:22",
        "--to-deny",
        "evil.test",
        "--to-deny",
        "10.77.1.20",
        "--to-deny",
        "10.77.1.30",
    ];
    let mut program = guarded.program(&rules);
    guarded.names.has("listed.test.", &[LISTED]);
    let servers = [(GOOD, 443), (LISTED, 443), (OTHER, 443)].map(|(ip, port)| guarded.listen(ip, port));
    let allowed = guarded.listen(OTHER, 22);
    // The name, the address of another name, and the dialled address of a client without a name.
    for (dialled, sent, answer) in [
        (GOOD, named("evil.test"), Some(alert(112))),
        (GOOD, named("listed.test"), None),
        (LISTED, b"SSH-2.0-x\r\n".to_vec(), None),
    ] {
        let mut client = guarded.connect(&format!("{dialled}:443"));
        client.write_all(&sent).unwrap();
        match answer {
            Some(alert) => assert_eq!(read_all(&client), alert),
            None => assert!(is_closed(&mut client)),
        }
        drop(client);
        let record = program.line("end=");
        assert!(record.contains("end=denied:target_rule "), "{record}");
        assert!(record.contains("refused by --to-deny"), "{record}");
    }
    for server in servers {
        assert!(!was_reached(&server), "{:?}", server.local_addr());
    }
    // A more specific rule still wins, although a name leads here that no rule allows.
    let mut client = guarded.connect(&format!("{GOOD}:22"));
    guarded.names.has("other.test.", &[OTHER]);
    client.write_all(&named("other.test")).unwrap();
    let sent = named("other.test");
    assert_eq!(read_exactly(&mut accept(&allowed), sent.len()), sent);
}
