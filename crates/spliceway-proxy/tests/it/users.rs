use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use spliceway_net::has_tool;

use crate::auth::authenticated;
use crate::command_line::TYPIST;
use crate::harness::{Folder, Program, refused_to_start};

fn started(arguments: &[&str], input: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child
}

/// Returns the exit code, and what was printed on both outputs.
fn run(arguments: &[&str], input: &str) -> (i32, String, String) {
    let Output { status, stdout, stderr } = started(arguments, input).wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A folder for a user file, and the path of the file.
fn folder(name: &str) -> (Folder, PathBuf) {
    let folder = Folder::new(name);
    let path = folder.0.join("users");
    (folder, path)
}

#[test]
fn users_of_a_file_are_added_changed_and_removed_for_a_running_program() {
    let (_folder, path) = folder("users-life");
    let file = path.to_str().unwrap();
    let (code, told, _) = run(&["user", "add", file, "ann"], "wonderland\n");
    assert_eq!(
        (code, told),
        (
            0,
            format!("{file}: ann was added. A running program reads the file at `spliceway reload` or SIGHUP.\n")
        )
    );
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    // Without a line end, as some editors leave it.
    let kept = format!("# our users\n\n{}# bob has left", fs::read_to_string(&path).unwrap());
    fs::write(&path, &kept).unwrap();
    let mut program = Program::socks5(&["--auth-file", file]);
    assert_eq!(program.lines_with("clear-text"), 0);
    assert_eq!(authenticated(&program, "ann", "wonderland").1, 0);
    assert_eq!(run(&["user", "add", file, "eve"], "apple\n").0, 0);
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .starts_with(&format!("{kept}\neve:$argon2id$"))
    );
    assert_eq!(run(&["user", "passwd", file, "ann"], "looking-glass\n").0, 0);
    assert_ne!(authenticated(&program, "eve", "apple").1, 0, "before the reload");
    program.reload();
    for (name, secret, is_right) in [
        ("ann", "wonderland", false),
        ("ann", "looking-glass", true),
        ("eve", "apple", true),
    ] {
        assert_eq!(
            authenticated(&program, name, secret).1 == 0,
            is_right,
            "{name} {secret}"
        );
    }
    assert_eq!(run(&["user", "list", file], "").1, "ann\neve\n");
    let (code, told, _) = run(&["user", "del", file, "eve"], "");
    assert!(code == 0 && told.contains("reload --end-sessions"), "{told}");
    program.reload();
    assert_ne!(authenticated(&program, "eve", "apple").1, 0);
    assert_eq!(authenticated(&program, "ann", "looking-glass").1, 0);
}

#[test]
fn a_line_of_a_user_file_is_printed_whole() {
    let (folder, path) = folder("users-line");
    let (code, line, _) = run(&["hash-password", "ann"], "wonderland\n");
    assert!(
        code == 0 && line.starts_with("ann:$argon2id$") && line.ends_with('\n'),
        "{line}"
    );
    folder.file("users", &line);
    let (_, listed, warnings) = run(&["user", "list", path.to_str().unwrap()], "");
    assert_eq!((&*listed, &*warnings), ("ann\n", ""));
}

#[test]
fn a_wrong_name_or_a_wrong_password_leaves_the_file() {
    let (folder, path) = folder("users-wrong");
    let file = path.to_str().unwrap();
    folder.file("users", "# users\nann:wonderland\n");
    for (arguments, input, code, expected) in [
        (
            &["user", "add", file, "a:b"][..],
            "x\n",
            2,
            "expected a name without `:`",
        ),
        (&["user", "add", file, "#b"], "x\n", 2, "does not begin with `#`"),
        (&["user", "add", file, " b"], "x\n", 2, "begin or end with a blank"),
        (
            &["user", "add", file, ""],
            "x\n",
            2,
            "expected a name of 1 to 255 bytes",
        ),
        (
            &["user", "passwd", file, "a\nb"],
            "x\n",
            2,
            "without control characters",
        ),
        (&["hash-password", "a:b"], "x\n", 2, "expected a name without `:`"),
        (&["user", "add", file, "bob"], "", 1, "no password on standard input"),
        (&["user", "add", file, "bob"], &"x".repeat(256), 2, "at most 255 bytes"),
        (
            &["user", "add", file, "ann"],
            "x\n",
            1,
            "users:2 (ann) is there already; `spliceway user passwd`",
        ),
        (&["user", "passwd", file, "bob"], "x\n", 1, "there is no user `bob`"),
        (&["user", "del", file, "bob"], "", 1, "there is no user `bob`"),
        (
            &["user", "add", "/dev/null", "bob"],
            "x\n",
            1,
            "expected a regular file",
        ),
        (
            &["user", "add", "/nowhere/users", "bob"],
            "x\n",
            1,
            "/nowhere: there is no such folder",
        ),
        (
            &["user", "list", "/nowhere/users"],
            "",
            1,
            "/nowhere/users: No such file",
        ),
    ] {
        let (have, told, error) = run(arguments, input);
        assert_eq!((have, &*told), (code, ""), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
        assert!(!error.contains("wonderland"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "# users\nann:wonderland\n");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn a_missing_folder_is_named_before_a_password_is_asked_for() {
    let (folder, _) = folder("users-missing");
    let missing = folder.0.join("missing");
    let file = missing.join("users");
    let mut child = Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(["user", "add", file.to_str().unwrap(), "ann"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is open, and nobody types.
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let expected = format!(
        "spliceway: {}: there is no such folder: create it, or correct the path\n",
        missing.display()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn hashes_of_other_programs_are_named_and_replaced() {
    let (folder, path) = folder("users-foreign");
    let file = path.to_str().unwrap();
    folder.file(
        "users",
        "ann:$2y$05$abcdefghijklmnopqrstuv\nbob:{SSHA}c2VjcmV0\neve:apple\n",
    );
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let refused = refused_to_start(&["socks5", "-l", "127.0.0.1:0", "--auth-file", file]);
    let expected = format!("{file}:1 (ann): the password has a hash of another program, `$2y$`");
    assert!(refused.contains(&expected), "{refused}");
    let (code, _, warnings) = run(&["user", "passwd", file, "ann"], "wonderland\n");
    assert!(
        code == 0 && warnings.contains(&format!("{file}:2 (bob): the password has a hash")),
        "{warnings}"
    );
    let (_, _, warnings) = run(&["user", "passwd", file, "bob"], "builder\n");
    assert_eq!(
        warnings,
        format!("warning: {file}:3 (eve) is a clear-text password; `spliceway user passwd` hashes one\n")
    );
    assert_eq!(run(&["user", "passwd", file, "eve"], "apple\n").2, "");
    let program = Program::socks5(&["--auth-file", file]);
    assert_eq!(authenticated(&program, "ann", "wonderland").1, 0);
}

#[test]
fn commands_at_the_same_time_lose_no_user() {
    let (folder, path) = folder("users-race");
    let file = path.to_str().unwrap();
    folder.file("users", "# users\n");
    let names: Vec<_> = (0..12).map(|number| format!("user{number}")).collect();
    let children: Vec<_> = names
        .iter()
        .map(|name| started(&["user", "add", file, name], "secret\n"))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let (_, listed, warnings) = run(&["user", "list", file], "");
    let mut listed: Vec<_> = listed.lines().collect();
    listed.sort_unstable();
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!((listed, &*warnings), (names, ""));
    assert!(fs::read_to_string(&path).unwrap().starts_with("# users\nuser"));
}

#[test]
fn on_a_terminal_a_new_password_is_asked_for_twice_and_never_shown() {
    if !has_tool("python3", "python3") {
        return;
    }
    let (_folder, path) = folder("users-typed");
    let file = path.to_str().unwrap();
    for (typed, code, expected) in [
        ("s3cret,s3crat", 2, "the two passwords differ"),
        ("s3cret,s3cret", 0, "ann was added"),
    ] {
        let output = Command::new("python3")
            .args([
                "-c",
                TYPIST,
                typed,
                env!("CARGO_BIN_EXE_spliceway"),
                "user",
                "add",
                file,
                "ann",
            ])
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{shown} {:?}", output.stderr);
        assert!(shown.contains(expected) && !shown.contains("s3cr"), "{shown}");
        assert_eq!(path.exists(), code == 0);
    }
    // A name that is there is refused before anybody types.
    let (code, _, told) = run(&["user", "add", file, "ann"], "");
    assert!(code == 1 && told.contains("is there already"), "{told}");
}
