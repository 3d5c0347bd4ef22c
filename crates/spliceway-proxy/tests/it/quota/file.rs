//! The quota file: damage, a full disk, and other programs.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use super::*;
use spliceway_net::has_tool;

#[test]
fn a_killed_program_has_counted_everything_that_was_saved() {
    let quotas = Quotas::new("killed", "socks5", &ann("\"1GB/day\""));
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let mut client = session(&program, "ann", target);
    exchange(&mut client, 300_000);
    await_saved(&program, 600_000);
    exchange(&mut client, 50_000);
    program.kill();
    let mut program = quotas.run();
    let after = used(&program);
    assert!((600_000..=700_000).contains(&after), "{after}");
    exchange(&mut session(&program, "ann", target), 1000);
    // A program that stops saves the rest.
    program.terminate();
    program.exit();
    let program = quotas.run();
    assert_eq!(used(&program), after + 2000);
}

#[test]
fn a_file_that_cannot_be_written_stops_no_session_and_is_written_later() {
    let quotas = Quotas::new("faults", "socks5", &ann("\"2MB/day\""));
    let (mut program, target) = (quotas.run(), echo("127.0.0.1:0"));
    let mut client = session(&program, "ann", target);
    exchange(&mut client, 1000);
    await_saved(&program, 2000);
    let (path, elsewhere) = (quotas.path(), quotas.folder.0.join("elsewhere"));
    fs::rename(&path, &elsewhere).unwrap();
    fs::create_dir(&path).unwrap();
    exchange(&mut client, 1000);
    program.line("cannot write the quota file");
    program.await_sum("spliceway_quota_writes_total", &["result=\"failed\""], 1);
    assert_eq!(program.sum("spliceway_quota_unsaved_bytes", &[]), 2000);
    let status = String::from_utf8(quotas.socket.command(&["status"]).stdout).unwrap();
    assert!(status.contains("the quota file cannot be written"), "{status}");
    fs::remove_dir(&path).unwrap();
    program.line("the quota file is written again");
    await_saved(&program, 4000);
    fs::remove_file(&elsewhere).unwrap();
    program.kill();
    assert_eq!(used(&quotas.run()), 4000);
}

/// Returns the message of a start that is refused.
fn refusal(quotas: &Quotas) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(["run", "-c", quotas.config.path()]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    message
}

#[test]
fn a_damaged_file_is_refused_at_the_start_without_a_panic() {
    let quotas = Quotas::new("damaged", "socks5", &ann("\"2MB/day\""));
    let mut program = quotas.run();
    exchange(&mut session(&program, "ann", echo("127.0.0.1:0")), 1000);
    await_saved(&program, 2000);
    program.kill();
    let good = fs::read(quotas.path()).unwrap();
    let place = good.len() - 20;
    let flipped = [&good[..place], &[good[place] ^ 1], &good[place + 1..]].concat();
    for content in [b"no quota file", &flipped[..], &good[..place], b""] {
        fs::write(quotas.path(), content).unwrap();
        let message = refusal(&quotas);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.contains(&format!("quota file {}: ", quotas.path().display())),
            "{message}"
        );
        assert!(
            message.contains("move it away to begin with empty counters"),
            "{message}"
        );
        assert_eq!(fs::read(quotas.path()).unwrap(), content);
    }
    fs::write(quotas.path(), good).unwrap();
    assert_eq!(used(&quotas.run()), 2000);
}

#[test]
fn a_file_that_is_damaged_meanwhile_is_written_again_with_a_warning() {
    let quotas = Quotas::new("meanwhile", "socks5", &ann("\"2MB/day\""));
    let mut program = quotas.run();
    let mut client = session(&program, "ann", echo("127.0.0.1:0"));
    exchange(&mut client, 1000);
    await_saved(&program, 2000);
    let path = quotas.path();
    let faults: [fn(&Path); 4] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, vec![0; fs::metadata(path).unwrap().len() as usize]).unwrap(),
        |path| {
            fs::write(path.with_extension("other"), "other").unwrap();
            fs::rename(path.with_extension("other"), path).unwrap();
        },
    ];
    for fault in faults {
        fault(&path);
        let warning = program.line("it was written again from memory");
        assert!(warning.contains(path.to_str().unwrap()), "{warning}");
        assert_eq!(program.sum("spliceway_quota_writes_total", &["result=\"failed\""]), 0);
    }
    program.kill();
    let mut program = quotas.run();
    assert_eq!(used(&program), 2000);
    // The new process of an upgrade finds the counters, too.
    fs::remove_file(&path).unwrap();
    let new = crate::handover::upgrade(&mut program, None);
    await_saved(&program, 2000);
    new.signal(Signal::KILL);
    program.kill();
    assert_eq!(used(&quotas.run()), 2000);
}

#[test]
fn two_programs_do_not_use_one_file() {
    let quotas = Quotas::new("two", "socks5", &ann("\"2MB/day\""));
    let program = quotas.run();
    let other = Quotas::new("two-too", "socks5", &ann("\"2MB/day\""));
    std::os::unix::fs::symlink(quotas.path(), other.path()).unwrap();
    let message = refusal(&other);
    assert!(message.contains(": another process has it open"), "{message}");
    let waiting = format!("waiting for the quota file {}: another process", other.path().display());
    assert!(message.contains(&waiting), "{message}");
    exchange(&mut session(&program, "ann", echo("127.0.0.1:0")), 1000);
    await_saved(&program, 2000);
}

#[test]
fn a_full_disk_stops_no_session_and_keeps_the_last_counts() {
    if !has_tool("unshare", "util-linux") || !has_tool("mount", "mount") {
        return;
    }
    let quotas = Quotas::new("full", "socks5", &ann("\"2MB/day\""));
    let folder = quotas.folder.0.to_str().unwrap();
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size=64k none {folder} && exec \"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["run", "-c", quotas.config.path()]);
    let mut program = Program::spawn(command, true);
    let disk = program.root().join(folder.strip_prefix('/').unwrap());
    if fs::metadata(&disk).unwrap().dev() == fs::metadata(folder).unwrap().dev() {
        eprintln!("skipped: this user may not mount a tmpfs");
        return;
    }
    let mut client = session(&program, "ann", echo("127.0.0.1:0"));
    exchange(&mut client, 1000);
    await_saved(&program, 2000);
    let saved = fs::read(disk.join("quotas")).unwrap();
    let _ = fs::write(disk.join("ballast"), vec![0; 64 << 10]);
    exchange(&mut client, 1000);
    let line = program.line("cannot write the quota file");
    assert!(line.contains("No space left on device"), "{line}");
    assert_eq!(fs::read(disk.join("quotas")).unwrap(), saved);
    assert!(!disk.join("quotas.new").exists());
    exchange(&mut client, 1000);
    fs::remove_file(disk.join("ballast")).unwrap();
    program.line("the quota file is written again");
    await_saved(&program, 6000);
}
