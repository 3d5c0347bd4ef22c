use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::handover::upgrade;
use crate::harness::{Folder, PATIENCE, Program, TextFile, echo, let_pass, refusing};

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Waits until the file has this text. The program writes it when its listeners are bound.
fn await_text(path: &Path, text: &str) {
    let until = Instant::now() + PATIENCE;
    while !fs::read_to_string(path).is_ok_and(|found| found == text) {
        assert!(Instant::now() < until, "{:?}", fs::read_to_string(path));
        let_pass(Duration::from_millis(2));
    }
}

#[test]
fn the_file_names_the_process_that_serves_and_its_owner_removes_it() {
    let (folder, echo) = (Folder::new("pid-file"), echo("127.0.0.1:0"));
    let path = folder.0.join("spliceway.pid");
    let mut program = Program::forward(echo, &["--pid-file", path.to_str().unwrap()]);
    let first = format!("{}\n", program.pid());
    await_text(&path, &first);
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(names(&folder), ["spliceway.pid"]);
    // Its client keeps the old process.
    let client = program.connect();
    let process = upgrade(&mut program, None);
    program.line("drained: every session has ended");
    assert!(program.exit().success());
    let second = fs::read_to_string(&path).unwrap();
    assert_eq!(second, format!("{}\n", process.id()));
    assert_ne!(
        fs::metadata(&path).unwrap().ino(),
        inode,
        "it is written whole, by a rename"
    );
    drop(client);
    process.signal(Signal::TERM);
    process.ends();
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_refused_upgrade_and_a_file_of_others_stay_as_they_are() {
    let folder = Folder::new("pid-file-of-others");
    let (path, target) = (folder.0.join("spliceway.pid"), refusing());
    let config = |rest: &str| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\npid_file = \"{}\"\n\
             [[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n{rest}",
            path.display()
        )
    };
    let file = TextFile::new(&config(""));
    let mut program = Program::run(&file);
    let own = format!("{}\n", program.pid());
    await_text(&path, &own);
    // The second service cannot be opened.
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = busy.local_addr().unwrap();
    file.write(&config(&format!(
        "[[service]]\nname = \"b\"\nkind = \"forward\"\nlisten = \"{at}\"\nto = \"{target}\"\n"
    )));
    program.signal(Signal::USR2);
    program.line("the upgrade failed");
    assert_eq!(fs::read_to_string(&path).unwrap(), own);
    assert_eq!(names(&folder), ["spliceway.pid"]);
    fs::write(&path, "1\n").unwrap();
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
    assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
}

#[test]
fn a_place_that_is_no_file_is_an_error_before_anything_listens() {
    let folder = Folder::new("pid-file-refused");
    let missing = folder.0.join("missing/pid");
    for (path, expected) in [
        (missing.to_str().unwrap(), "expected a file in a folder that exists"),
        (folder.0.to_str().unwrap(), "expected a regular file"),
        ("/dev/null", "expected a regular file"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let output = command
            .args(["socks5", "-l", "127.0.0.1:0", "--pid-file", path])
            .output();
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let start = format!("spliceway: cannot write the pid file {path}: ");
        assert!(stderr.contains(&start) && stderr.contains(expected), "{stderr}");
        assert!(!stderr.contains("listening on"), "{stderr}");
    }
}
