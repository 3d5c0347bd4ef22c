use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use spliceway_net::has_tool;

use crate::admin::Socket;
use crate::handover::upgrade;
use crate::harness::{Folder, Program, echo, read_all, read_exactly, send_and_finish};

/// Relays a message, and waits for the record of this session.
fn session(program: &Program, count: u64) {
    let client = program.connect();
    send_and_finish(&client, b"message");
    assert_eq!(read_all(&client), b"message");
    program.await_sum("spliceway_connections_total", &[], count);
}

fn records(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

fn with_log(socket: &Socket, log: &Path) -> Program {
    let (admin, log) = (socket.address(), log.to_str().unwrap());
    Program::forward(echo("127.0.0.1:0"), &["--access-log", log, "--admin", &admin])
}

#[test]
fn the_command_opens_the_file_again_and_says_so() {
    let (folder, socket) = (Folder::new("rotation"), Socket::new());
    let (log, old) = (folder.0.join("access.log"), folder.0.join("old"));
    let program = with_log(&socket, &log);
    session(&program, 1);
    fs::rename(&log, &old).unwrap();
    let output = socket.command(&["reopen"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("opened the access log {} again\n", log.display()));
    assert!(output.status.success());
    // The file is there before the answer.
    assert_eq!((records(&old), records(&log)), (1, 0));
    session(&program, 2);
    assert_eq!(program.sum("spliceway_log_reopens_total", &["ok"]), 1);
    // The folder is gone, so the file stays open.
    let moved = folder.0.with_extension("moved");
    fs::rename(&folder.0, &moved).unwrap();
    let output = socket.command(&["reopen"]);
    fs::rename(&moved, &folder.0).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("expected a file in a folder that exists"), "{said}");
    session(&program, 3);
    program.terminate();
    drop(program);
}

#[test]
fn without_a_file_the_command_fails() {
    let socket = Socket::new();
    let _program = Program::forward(echo("127.0.0.1:0"), &["--admin", &socket.address()]);
    let output = socket.command(&["reopen"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("there is no log file to open again"), "{said}");
}

/// The old process has a session that does not move. Its record must not go to the file that was
/// rotated, which logrotate may already compress.
#[test]
fn both_processes_of_an_upgrade_write_to_the_new_file() {
    let (folder, socket) = (Folder::new("rotation-upgrade"), Socket::new());
    let (log, old) = (folder.0.join("access.log"), folder.0.join("old"));
    let (admin, at) = (socket.address(), log.to_str().unwrap());
    let mut program = Program::socks5(&["--access-log", at, "--admin", &admin]);
    let mut open = program.connect();
    std::io::Write::write_all(&mut open, b"\x05\x01\0").unwrap();
    assert_eq!(read_exactly(&mut open, 2), b"\x05\0");
    let _process = upgrade(&mut program, None);
    fs::rename(&log, &old).unwrap();
    assert!(socket.command(&["reopen"]).status.success());
    drop(open);
    assert!(program.exit().success());
    assert_eq!((records(&old), records(&log)), (0, 1));
}

#[test]
fn logrotate_rotates_before_and_after_an_upgrade() {
    if !has_tool("logrotate", "logrotate") {
        return;
    }
    let (folder, socket) = (Folder::new("logrotate"), Socket::new());
    // logrotate refuses a folder that others may write.
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let log = folder.0.join("access.log");
    let mut program = with_log(&socket, &log);
    let rules = folder.0.join("rules");
    let text = format!(
        "{} {{\n  rotate 5\n  missingok\n  postrotate\n    {} reopen --admin {}\n  endscript\n}}\n",
        log.display(),
        env!("CARGO_BIN_EXE_spliceway"),
        socket.address()
    );
    fs::write(&rules, text).unwrap();
    fs::set_permissions(&rules, fs::Permissions::from_mode(0o644)).unwrap();
    let rotate = || {
        let mut command = Command::new("logrotate");
        command
            .arg("--force")
            .arg("--state")
            .arg(folder.0.join("state"))
            .arg(&rules);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    };
    session(&program, 1);
    rotate();
    session(&program, 2);
    let process = upgrade(&mut program, None);
    session(&program, 3);
    rotate();
    session(&program, 4);
    process.signal(Signal::TERM);
    process.ends();
    let counts = ["access.log.2", "access.log.1", "access.log"].map(|name| records(&folder.0.join(name)));
    assert_eq!(counts, [1, 2, 1]);
}
