//! Files that the configuration or an option names, and that are no regular files.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::harness::{Folder, Program, TextFile, connect, echo, pattern, read_exactly};

/// A valid configuration without a listener of its own port.
const CONFIG: &str = "[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n";

fn spliceway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(arguments);
    command
}

fn mkfifo(folder: &Folder, name: &str) -> String {
    let path = folder.0.join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_pipe_that_nobody_writes_is_refused_wherever_a_file_is_named() {
    let folder = Folder::new("silent-pipes");
    let path = mkfifo(&folder, "fifo");
    let rules = format!("@{path}");
    let proxy = ["socks5", "-l", "127.0.0.1:0"];
    let commands = [
        vec!["check", "-c", &path],
        vec!["run", "-c", &path],
        [&proxy[..], &["--auth-file", &path]].concat(),
        [&proxy[..], &["--to-allow", &rules]].concat(),
    ];
    let start = |arguments: &Vec<&str>| spliceway(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let started: Vec<_> = commands.iter().map(start).collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        let refusal = text(&output);
        assert_eq!(output.status.code(), Some(2), "{refusal}");
        let expected = format!(
            "{path}: this is a pipe, and no program has written the whole text within 5 s: start the one that writes, \
             or name a regular file"
        );
        assert!(refusal.contains(&expected), "{refusal}");
    }
}

#[test]
fn a_pipe_that_somebody_writes_is_a_configuration() {
    let mut check = spliceway(&["check", "-c", "/dev/stdin"]);
    let mut child = check.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(CONFIG.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let file = TextFile::new(CONFIG);
    let output = Command::new("bash")
        .args([
            "-c",
            "\"$0\" check -c <(cat \"$1\")",
            env!("CARGO_BIN_EXE_spliceway"),
            file.path(),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn what_cannot_be_read_as_a_file_is_named_as_what_it_is() {
    let folder = Folder::new("kinds");
    let socket = folder.0.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let socket = socket.to_str().unwrap();
    let directory = folder.0.to_str().unwrap();
    let proxy = ["socks5", "-l", "127.0.0.1:0"];
    for (path, kind) in [(directory, "folder"), (socket, "socket"), ("/dev/zero", "device")] {
        let rules = format!("@{path}");
        let mut commands = vec![
            [&proxy[..], &["--auth-file", path]].concat(),
            [&proxy[..], &["--to-deny", &rules]].concat(),
        ];
        if path != directory {
            commands.push(vec!["check", "-c", path]);
        }
        for arguments in commands {
            let output = spliceway(&arguments).output().unwrap();
            let refusal = text(&output);
            assert_eq!(output.status.code(), Some(2), "{refusal}");
            let expected = format!("{path}: this is a {kind}, which is not read");
            assert!(refusal.contains(&expected), "{arguments:?}: {refusal}");
        }
        let log = [
            "forward",
            "-l",
            "127.0.0.1:0",
            "-r",
            // Port because nothing connects to it.
            "127.0.0.1:1",
            "--access-log",
            path,
        ];
        let refusal = text(&spliceway(&log).output().unwrap());
        assert!(
            refusal.contains(&format!("{path}: expected a regular file, or `-`")),
            "{refusal}"
        );
    }
}

#[test]
fn a_reload_of_a_pipe_that_nobody_writes_keeps_what_runs() {
    let (folder, target) = (Folder::new("reloaded-pipe"), echo("127.0.0.1:0"));
    let path = folder.0.join("config.toml");
    let config = format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n"
    );
    let file = TextFile(path.clone());
    file.write(&config);
    let mut program = Program::run(&file);
    fs::remove_file(&path).unwrap();
    mkfifo(&folder, "config.toml");
    let refusal = program.reload();
    assert!(
        refusal.contains("this is a pipe, and no program has written the whole text"),
        "{refusal}"
    );
    let mut client = connect(program.address);
    let sent = pattern(1, 1000);
    client.write_all(&sent).unwrap();
    assert_eq!(read_exactly(&mut client, 1000), sent);
}

#[test]
fn variables_cannot_make_a_configuration_longer_than_its_limit() {
    let folder = Folder::new("long-variables");
    let uses = "${LONG}".repeat(100);
    folder.file("a.toml", &format!("[[service]]\nname = \"{uses}\"\n"));
    folder.file("b.toml", &format!("[[service]]\nname = \"b\"\nlisten = \"{uses}\"\n"));
    let check = |length: usize| {
        let mut command = spliceway(&["check", "-c", "."]);
        command.current_dir(&folder.0).env("LONG", "x".repeat(length));
        text(&command.output().unwrap())
    };
    // The values of both files count together: 200 times 100,000 bytes are above 16 MiB.
    let problem = "./b.toml:3:10: listen: with the environment variable LONG, the configuration has more than 16 MiB: \
                   use it less often\n";
    assert!(check(100_000).ends_with(problem));
    assert!(!check(50_000).contains("16 MiB"));
}
