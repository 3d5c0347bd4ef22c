use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::harness::{Program, TextFile, accept, listen, read_exactly};

fn spliceway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(arguments);
    command
}

#[test]
fn a_directory_is_one_configuration_and_variables_are_replaced() {
    let (listener, target) = listen();
    let folder = std::env::temp_dir().join(format!("spliceway-directory-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let service =
        "[[service]]\nname = \"${NAME}-1\"\nkind = \"forward\"\nlisten = \"127.0.0.1:${PORT}\"\nto = \"${TO}\"\n";
    fs::write(folder.join("10-service.toml"), service).unwrap();
    fs::write(folder.join("00-admin.toml"), "[admin]\nmetrics = \"127.0.0.1:0\"\n").unwrap();
    fs::write(folder.join(".hidden.toml"), "nonsense").unwrap();
    fs::write(folder.join("notes.txt"), "nonsense").unwrap();
    let mut command = spliceway(&["run", "-c", folder.to_str().unwrap()]);
    command.envs([("NAME", "web"), ("PORT", "0"), ("TO", &target.to_string())]);
    let program = Program::spawn(command, true);
    let (mut client, mut target) = (program.connect(), accept(&listener));
    client.write_all(b"x").unwrap();
    assert_eq!(read_exactly(&mut target, 1), b"x");
    drop((client, target));
    program.await_sum("spliceway_connections_total", &["service=\"web-1\""], 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn check_says_what_each_service_does_and_what_is_doubtful() {
    let users = TextFile::new("ann:wonderland\n");
    fs::set_permissions(users.path(), fs::Permissions::from_mode(0o600)).unwrap();
    let file = TextFile::new(&format!(
        "[[service]]\nkind = \"socks5\"\nlisten = \":1080\"\nauth_file = \"{0}\"\n\
         [[service]]\nname = \"web\"\nkind = \"forward\"\nlisten = [\":80-81\", \"unix:/run/a\"]\nto = \"b:80-81\"\n",
        users.path()
    ));
    // Port because nothing listens: the file is only checked.
    let wrong = spliceway(&["check", "-c", file.path()]).output().unwrap();
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains(":9:6: to: has 2 ports, and"),
        "a socket has no range"
    );
    file.write(
        &fs::read_to_string(file.path())
            .unwrap()
            .replace(", \"unix:/run/a\"", ""),
    );
    let output = spliceway(&["check", "-c", file.path()]).output().unwrap();
    let (path, users) = (file.path(), users.path());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!(
            "{path}: valid, 2 services\n  socks5: socks5 on :1080, 1 user\n  web: forward on :80-81 to b:80-81\n\
             warning: {path}:4:13: auth_file: {users}:1 (ann) is a clear-text password; `spliceway user passwd` hashes one\n"
        )
    );
}

#[test]
fn print_config_prints_a_file_that_runs() {
    let (listener, target) = listen();
    let target = target.to_string();
    let flags = [
        "print-config",
        "-l",
        "127.0.0.1:0",
        "-r",
        &target,
        "--metrics",
        "127.0.0.1:0",
    ];
    let output = spliceway(&flags).output().unwrap();
    let file = TextFile::new(&String::from_utf8(output.stdout).unwrap());
    let program = Program::run(&file);
    program.connect();
    accept(&listener);
    let output = spliceway(&["print-config", "check", "-c", "a"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
