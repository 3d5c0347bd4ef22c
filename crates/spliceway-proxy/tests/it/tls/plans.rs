//! Sessions generated at random, with records that no library sends.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use spliceway_ktls::{DownEnd, Identity, Kinds, Plan, Role, UpEnd, judge, play};

use super::kernel::{can_switch, switched};
use crate::harness::{Program, TextFile, accept, listen};

/// Programs at the same time, for each side of the handshake.
const THREADS: u64 = 4;

/// Starts a program whose relay has this role. If `switches` is given, the kernel takes TLS over
/// after this many bytes.
fn program(target: SocketAddr, files: &[TextFile; 2], role: Role, switches: Option<&str>) -> Program {
    let [certificate, key] = files.each_ref().map(TextFile::path);
    let mut all = vec!["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "-r"];
    let target = match role {
        Role::Server => target.to_string(),
        Role::Client => format!("tls://{target}"),
    };
    all.push(&target);
    match role {
        Role::Server => all.extend(["--tls-cert", certificate, "--tls-key", key]),
        Role::Client => all.extend(["--target-tls-ca", certificate]),
    }
    match switches {
        None => {}
        Some(after) => all.extend(["--ktls", "on", "--ktls-after", after]),
    }
    Program::start(&all)
}

/// Plays the plans of one thread whose relay has this role. Returns the program after that.
fn run(
    identity: &Identity,
    files: &[TextFile; 2],
    plans: impl Iterator<Item = Plan>,
    role: Role,
    switches: Option<&str>,
) -> Program {
    let (listener, target) = listen();
    let mut program = program(target, files, role, switches);
    let mut wrong = Vec::new();
    for plan in plans.filter(|plan| plan.role == role) {
        let (client, accept) = (program.connect(), || accept(&listener));
        let peers = match role {
            Role::Server => play(&plan, identity, || client, accept),
            Role::Client => play(&plan, identity, accept, || client),
        };
        let record = program.line("bytes_up=");
        let judged = judge(&plan, &peers, true).and_then(|()| judge_record(&plan, &record));
        if let Err(what) = judged {
            wrong.push(format!("{what}\n{peers:?}\n{record}\n{plan:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong.join("\n\n"));
    program
}

/// Compares the record of a session that ended regularly with the plan.
fn judge_record(plan: &Plan, record: &str) -> Result<(), String> {
    if !plan.up_end.is_regular() || plan.down_end == DownEnd::Reset {
        return Ok(());
    }
    let (from_tls, from_plain) = (plan.up_bytes(), plan.down_bytes());
    let (up, down, truncated) = match plan.role {
        Role::Server => (from_tls, from_plain, " truncated="),
        Role::Client => (from_plain, from_tls, " target_truncated="),
    };
    let is_right = record.contains(&format!(" bytes_up={up} bytes_down={down} "))
        && record.contains("_eof")
        && record.contains(truncated) == (plan.up_end == UpEnd::Fin);
    if is_right {
        Ok(())
    } else {
        Err("the record differs".to_owned())
    }
}

/// Makes the files of a certificate and its key.
fn files(identity: &Identity) -> [TextFile; 2] {
    let files = [&identity.certificate, &identity.key].map(|text| TextFile::new(text));
    fs::set_permissions(files[1].path(), fs::Permissions::from_mode(0o600)).unwrap();
    files
}

#[test]
fn drawn_sessions_end_as_planned() {
    let identity = Identity::default();
    let (files, identity) = (&files(&identity), &identity);
    thread::scope(|scope| {
        for role in [Role::Server, Role::Client] {
            for first in 0..THREADS {
                let plans = (first..400)
                    .step_by(4)
                    .map(|number| Plan::draw(number, Kinds { key_updates: true }));
                scope.spawn(move || run(identity, files, plans, role, None));
            }
        }
    });
}

#[test]
fn drawn_sessions_in_the_kernel_end_as_planned() {
    if !can_switch() {
        return;
    }
    let identity = Identity::default();
    let files = files(&identity);
    let mut counts = Vec::new();
    for (first, after) in ["1B", "500B", "2000B", "8000B"].into_iter().enumerate() {
        for role in [Role::Server, Role::Client] {
            let plans = (first as u64..400)
                .step_by(4)
                .map(|number| Plan::draw(number, Kinds { key_updates: true }));
            let program = run(&identity, &files, plans, role, Some(after));
            counts.push(switched(&program));
        }
    }
    // Most sessions are over before both sides are between two records at the same moment.
    assert!(counts.iter().sum::<u64>() > 20, "{counts:?}");
}
