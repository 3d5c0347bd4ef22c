//! Files of services whose writes fail, or end in the middle.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use spliceway_net::has_tool;

use super::saved::Rig;
use super::*;

/// The system calls of a write in their order, each with the name that it uses: the new file, the
/// file, or the folder. strace ignores a name with `?` that the machine does not have.
const WRITE: [(&str, &str); 7] = [
    ("openat", "web.toml.new"),
    ("ftruncate", "web.toml.new"),
    ("fchmod", "web.toml.new"),
    ("write", "web.toml.new"),
    ("fdatasync", "web.toml.new"),
    ("?rename,?renameat,?renameat2", "web.toml.new"),
    ("fsync", ""),
];
const REMOVAL: [(&str, &str); 2] = [("?unlink,?unlinkat", "web.toml"), ("fsync", "")];

/// Runs the program so that this happens at the first such system call of each thread.
fn run_with(rig: &Rig, (calls, name): (&str, &str), what: &str) -> Program {
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-o", "/dev/null", "-P"]);
    strace.arg(rig.folder.0.join(name).to_str().unwrap().trim_end_matches('/'));
    strace.args(["-e", &format!("inject={calls}:{what}:when=1")]);
    strace.arg(env!("CARGO_BIN_EXE_spliceway"));
    strace.args(["run", "-c"]).arg(&rig.folder.0);
    Program::spawn(strace, true)
}

/// The table of a service, which is long enough that half of it would show.
fn table(rig: &Rig, deny: &str) -> Value {
    let mut table = forward(rig.target);
    table["deny"] = json!(vec![deny; 400]);
    table
}

/// Adds a service with a file, in a process that ends. Returns the text of the file.
fn saved(rig: &Rig, table: &Value) -> String {
    let _program = rig.run();
    let added = send(&rig.socket, "PUT /v1/services/web?persist", &[], table);
    assert_eq!(added.status, 201, "{added:?}");
    rig.text("web.toml")
}

/// Sends a request to a program that dies before it answers.
fn send_and_lose(rig: &Rig, program: &mut Program, request: &str, body: &Value) {
    let mut stream = UnixStream::connect(rig.socket.path()).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert_eq!(answer, "");
    program.exit();
}

/// Checks that a start finds nothing wrong, and that a change then leaves no other file.
fn starts_and_saves(rig: &Rig) {
    let _program = rig.run();
    let request = "PUT /v1/services/web?persist";
    let changed = send(&rig.socket, request, &[], &table(rig, "172.16.0.0/12"));
    assert!([200, 201].contains(&changed.status), "{changed:?}");
    assert_eq!(rig.names(), ["main.toml", "web.toml"]);
}

#[test]
fn a_kill_at_any_call_of_a_write_leaves_the_old_or_the_new_file() {
    if !has_tool("strace", "strace") {
        return;
    }
    for (index, call) in WRITE.into_iter().enumerate() {
        let rig = Rig::new(&format!("killed-{index}"));
        let old = saved(&rig, &table(&rig, "10.0.0.0/8"));
        let new = old.replace("10.0.0.0/8", "192.168.0.0/16");
        let mut program = run_with(&rig, call, "signal=KILL");
        let request = "PUT /v1/services/web?persist";
        send_and_lose(&rig, &mut program, request, &table(&rig, "192.168.0.0/16"));
        let expected = if call.0 == "fsync" { new } else { old };
        assert_eq!(rig.text("web.toml"), expected, "{call:?}");
        starts_and_saves(&rig);
    }
}

#[test]
fn a_kill_at_any_call_of_a_first_write_leaves_no_half_of_a_file() {
    if !has_tool("strace", "strace") {
        return;
    }
    for (index, call) in WRITE.into_iter().enumerate().filter(|(_, call)| call.0 != "fchmod") {
        let rig = Rig::new(&format!("killed-first-{index}"));
        let mut program = run_with(&rig, call, "signal=KILL");
        let request = "PUT /v1/services/web?persist";
        send_and_lose(&rig, &mut program, request, &table(&rig, "10.0.0.0/8"));
        let is_there = rig.names().contains(&"web.toml".to_owned());
        assert_eq!(is_there, call.0 == "fsync", "{call:?}");
        starts_and_saves(&rig);
    }
}

#[test]
fn a_kill_at_any_call_of_a_removal_leaves_the_file_or_nothing() {
    if !has_tool("strace", "strace") {
        return;
    }
    for (index, call) in REMOVAL.into_iter().enumerate() {
        let rig = Rig::new(&format!("killed-removal-{index}"));
        let old = saved(&rig, &table(&rig, "10.0.0.0/8"));
        let mut program = run_with(&rig, call, "signal=KILL");
        send_and_lose(&rig, &mut program, "DELETE /v1/services/web", &Value::Null);
        if call.0 == "fsync" {
            assert_eq!(rig.names(), ["main.toml"]);
        } else {
            assert_eq!(rig.text("web.toml"), old);
        }
        starts_and_saves(&rig);
    }
}

/// Checks that a change with a file is refused, and that nothing has changed.
fn is_refused(rig: &Rig, old: &str, what: &str) {
    let before = send(&rig.socket, "GET /v1/services/web", &[], &Value::Null);
    let request = "PUT /v1/services/web?persist";
    let refused = send(&rig.socket, request, &[], &table(rig, "192.168.0.0/16"));
    assert_eq!(refused.status, 409, "{what}: {refused:?}");
    assert!(refused.text().contains(what), "{what}: {refused:?}");
    let after = send(&rig.socket, "GET /v1/services/web", &[], &Value::Null);
    assert_eq!((after.etag, after.body), (before.etag, before.body));
    assert_eq!(rig.text("web.toml"), old);
    assert_eq!(rig.names(), ["main.toml", "web.toml"]);
}

#[test]
fn a_write_that_fails_changes_neither_the_service_nor_its_file() {
    if !has_tool("strace", "strace") {
        return;
    }
    let (folder, space) = ("name the folder in ReadWritePaths=", "free some space");
    for (index, (call, error, what)) in [
        (0, "EROFS", folder),
        (0, "EACCES", folder),
        (0, "ENOSPC", space),
        (3, "ENOSPC", space),
        (3, "EDQUOT", space),
        (4, "EIO", "Input/output error"),
        (5, "EACCES", folder),
    ]
    .into_iter()
    .enumerate()
    {
        let rig = Rig::new(&format!("failing-{index}"));
        let old = saved(&rig, &table(&rig, "10.0.0.0/8"));
        let program = run_with(&rig, WRITE[call], &format!("error={error}"));
        is_refused(&rig, &old, what);
        drop(program);
        starts_and_saves(&rig);
    }
}

#[test]
fn a_link_in_place_of_the_file_is_neither_followed_nor_replaced() {
    let rig = Rig::new("link");
    let old = saved(&rig, &table(&rig, "10.0.0.0/8"));
    let (path, elsewhere) = (rig.folder.0.join("web.toml"), rig.folder.0.with_extension("elsewhere"));
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    let _program = rig.run();
    is_refused(&rig, &old, "is a link: change the file behind it, and reload");
    let refused = send(&rig.socket, "DELETE /v1/services/web", &[], &Value::Null);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(path.is_symlink());
    let mode = fs::metadata(&elsewhere).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(&elsewhere).unwrap();
}

#[test]
fn a_service_without_its_folder_can_be_removed_and_not_saved() {
    let rig = Rig::new("no-folder");
    saved(&rig, &table(&rig, "10.0.0.0/8"));
    let _program = rig.run();
    fs::remove_dir_all(&rig.folder.0).unwrap();
    for name in ["web", "new"] {
        let request = format!("PUT /v1/services/{name}?persist");
        let refused = send(&rig.socket, &request, &[], &table(&rig, "192.168.0.0/16"));
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.text().contains("create the folder again"), "{refused:?}");
    }
    let added = send(&rig.socket, "PUT /v1/services/new", &[], &forward(rig.target));
    assert_eq!(added.status, 201, "{added:?}");
    let removed = send(&rig.socket, "DELETE /v1/services/web", &[], &Value::Null);
    assert_eq!(removed.status, 200, "{removed:?}");
    exchange(&reach(&rig.socket, "first"));
}
