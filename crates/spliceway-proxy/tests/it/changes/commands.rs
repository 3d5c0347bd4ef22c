//! The commands `spliceway service` and `spliceway backend`.

use std::process::{Command, Output, Stdio};

use super::*;
use crate::harness::Folder;

/// Runs a command, and returns its exit code and what it prints.
fn run(socket: &Socket, line: &str) -> (Option<i32>, String) {
    read(socket.command(&line.split(' ').collect::<Vec<_>>()))
}

fn read(output: Output) -> (Option<i32>, String) {
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code(), text)
}

/// Returns what a command prints that does what it is asked for.
fn done(socket: &Socket, line: &str) -> String {
    let (code, text) = run(socket, line);
    assert_eq!(code, Some(0), "{line}: {text}");
    text
}

fn table(socket: &Socket, name: &str) -> Value {
    send(socket, &format!("GET /v1/services/{name}"), &[], &Value::Null).body
}

#[test]
fn commands_add_change_list_and_remove_a_service() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, file) = start(&socket, target);
    let add = format!("service add web kind=forward listen=127.0.0.1:0 to={target}");
    let dry = done(&socket, &format!("{add} --dry-run"));
    assert!(dry.starts_with("dry run: added web; listens on 127.0.0.1:"), "{dry}");
    assert!(address(&socket, "web").is_none());
    let added = done(&socket, &add);
    let listen = address(&socket, "web").unwrap();
    assert_eq!(added, format!("added web; listens on {listen}\n"));
    exchange(&reach(&socket, "web"));
    let listed = done(&socket, "service list");
    let rows: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let to = target.to_string();
    assert_eq!(
        rows,
        [
            ["NAME", "KIND", "FROM", "LISTEN", "TO"],
            ["first", "forward", file.path(), "127.0.0.1:0", &to],
            ["web", "forward", "memory", "127.0.0.1:0", &to],
        ]
    );
    let set = "service set web check=connect check_rise=3 deny=192.0.2.0/24 deny=127.0.0.1";
    assert_eq!(done(&socket, set), "changed web\n");
    assert!(is_closed(&mut reach(&socket, "web")));
    let expected = json!({
        "name": "web",
        "kind": "forward",
        "listen": "127.0.0.1:0",
        "to": to,
        "check": "connect",
        "check_rise": 3,
        "deny": ["192.0.2.0/24", "127.0.0.1"],
    });
    assert_eq!(table(&socket, "web"), expected);
    let json: Value = serde_json::from_str(&done(&socket, "service list --json")).unwrap();
    assert_eq!(json["services"][1]["table"], expected);
    assert_eq!(done(&socket, "service set web deny="), "changed web\n");
    exchange(&reach(&socket, "web"));
    assert_eq!(table(&socket, "web")["deny"], Value::Null);
    let removed = done(&socket, "service rm web");
    assert!(removed.starts_with("removed web; no longer listens on "), "{removed}");
    assert!(is_free(listen));
}

#[test]
fn commands_add_and_remove_backends() {
    let (socket, (one, first), (two, second)) = (Socket::new(), listen(), listen());
    let (_program, _file) = start(&socket, first);
    send(&socket, "PUT /v1/services/web", &[], &forward(first));
    let add = format!("backend add web {second},weight=5");
    assert_eq!(done(&socket, &format!("{add} --dry-run")), "dry run: changed web\n");
    assert_eq!(done(&socket, &add), "changed web\n");
    let both = json!([first.to_string(), format!("{second},weight=5")]);
    assert_eq!(table(&socket, "web")["to"], both);
    assert_eq!(done(&socket, &format!("backend rm web {first}")), "changed web\n");
    let _client = reach(&socket, "web");
    accept(&two);
    assert!(!crate::harness::was_reached(&one));
    let why = format!("spliceway: service `web` has no backend `{first}`\n");
    assert_eq!(run(&socket, &format!("backend rm web {first}")), (Some(1), why));
    let why = "spliceway: this is the last backend of service `web`: add another one first, or remove the service \
               (`spliceway service rm web`)\n";
    assert_eq!(
        run(&socket, &format!("backend rm web {second}")),
        (Some(2), why.to_owned())
    );
}

#[test]
fn a_command_reads_a_table_from_a_file_or_standard_input() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, _file) = start(&socket, target);
    let (folder, text) = (Folder::new("table"), forward(target).to_string());
    // The part before `=` is not the name of a key.
    folder.file("a=web.json", &text);
    let path = folder.0.join("a=web.json");
    done(&socket, &format!("service add web {}", path.display()));
    exchange(&reach(&socket, "web"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["service", "add", "other", "-"]);
    command.env("SPLICEWAY_ADMIN", socket.address());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    exchange(&reach(&socket, "other"));
    folder.file("a=web.json", "{\n  \"to\": [}");
    let (code, why) = run(&socket, &format!("service set web {}", path.display()));
    let expected = format!(
        "{}: expected value at line 2 column 10: expected a JSON",
        path.display()
    );
    assert!(code == Some(2) && why.starts_with(&expected), "{why}");
}

#[test]
fn what_the_program_refuses_is_shown_as_it_is() {
    let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
    let (_program, file) = start(&socket, target);
    let add = format!("service add web kind=forward listen=127.0.0.1:0 to={target}");
    done(&socket, &add);
    let path = file.path();
    for (line, code, expected) in [
        (
            &*add,
            1,
            "there is a service `web` already: change it (`spliceway service set`), or remove it before",
        ),
        (
            "service rm first",
            1,
            &*format!("first comes from {path}: edit it there, and reload"),
        ),
        ("service set none open=true", 1, "there is no service `none`"),
        (
            "service add b kind=forward listen=127.0.0.1:0",
            2,
            "service `b`: to: is missing: expected the target, such as to = \"example.com:80\"",
        ),
        (
            "service set web check=connect check_rise=none",
            2,
            "service `web`: check_rise: expected a number, 1 or more",
        ),
        (
            "service set web denny=127.0.0.1",
            2,
            "service `web`: unknown key `denny` in [[service]]: did you mean `deny`?",
        ),
        (
            "service set web deny=127.0.0.1 --persist",
            1,
            "the configuration is no folder, so the service has no file: put the file into a folder that the \
             program may write to, and start it with `run FOLDER` (for the packaged service, docs/packages.md). \
             Or do not ask for persistence",
        ),
    ] {
        assert_eq!(
            run(&socket, line),
            (Some(code), format!("spliceway: {expected}\n")),
            "{line}"
        );
    }
    let (code, why) = run(&Socket::new(), "service list");
    assert!(
        code == Some(1) && why.contains("no program has its admin socket here"),
        "{why}"
    );
}

#[test]
fn a_mistake_in_a_change_has_its_remedy() {
    let pairs = "expected KEY=VALUE as in [[service]] of a configuration file, such as listen=:8080";
    for (line, expected) in [
        ("service add web -l :8080", "tip: to set this key, type listen=VALUE"),
        ("service add web --to a:1", "tip: to set this key, type to=VALUE"),
        ("service set web --remote a:1", "tip: to set this key, type to=VALUE"),
        (
            "service set web --rate-in 5MB",
            "tip: to set this key, type rate_in=VALUE",
        ),
        ("service set web --metrics :9100", &*format!("tip: {pairs}")),
        ("service add web kind=forward :8080", &*format!("`:8080`: {pairs}")),
        (
            "service add web forward",
            &*format!("forward: No such file or directory (os error 2); without a file, {pairs}"),
        ),
        ("service add web", "not provided:\n  <KEY=VALUE|FILE>..."),
        (
            "service add web =80 listen=:80",
            "Usage: spliceway service add [OPTIONS] <SERVICE> <KEY=VALUE|FILE>...",
        ),
        ("service remove web", "tip: a similar subcommand exists"),
        ("backend add web", "<HOST:PORT>"),
    ] {
        let (code, why) = run(&Socket::new(), line);
        assert!(code == Some(2) && why.contains(expected), "{line}: {why}");
    }
}
