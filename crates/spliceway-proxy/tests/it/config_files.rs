use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{Program, TextFile, accept, listen, read_exactly};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/examples");

fn spliceway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(arguments);
    command
}

#[test]
fn every_example_passes_the_check() {
    let folder = std::env::temp_dir().join(format!("spliceway-examples-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("users"), "ann:wonderland\n").unwrap();
    fs::set_permissions(folder.join("users"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut count = 0;
    for entry in fs::read_dir(EXAMPLES).unwrap() {
        let path = entry.unwrap().path();
        let copy = folder.join(path.file_name().unwrap());
        fs::copy(&path, &copy).unwrap();
        let mut check = spliceway(&["check", "-c", copy.to_str().unwrap()]);
        // The working directory is another one: the user file is beside the configuration.
        let check = check
            .current_dir("/")
            .env("OFFICE_PROXY", "ann:secret")
            .output()
            .unwrap();
        let (said, wrong) = (
            String::from_utf8(check.stdout),
            String::from_utf8(check.stderr).unwrap(),
        );
        assert_eq!(
            (check.status.code(), wrong.as_str()),
            (Some(0), ""),
            "{}",
            path.display()
        );
        let said = said.unwrap();
        assert!(said.contains(": valid, ") && !said.contains("secret"), "{said}");
        count += 1;
    }
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(count, 5);
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
            "{path}: valid, 2 services\n  socks5: socks5 on :1080\n  web: forward on :80-81 to b:80-81\n\
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
    assert!(Path::new(EXAMPLES).is_dir());
}
