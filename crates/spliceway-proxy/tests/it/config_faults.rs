use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::TextFile;

const BROKEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/broken");

/// Returns the message of `spliceway check` about a file in this directory, which it must refuse.
fn refusal(directory: &Path, file: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["check", "-c", file]).current_dir(directory);
    // The variable of the files with a password.
    let output = command.env("PASSWORD", "secret").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{file}: {message}");
    assert_eq!(output.stdout, b"", "{file}");
    message
}

/// The comments at the start of each file in `broken` are the messages, which say how to correct
/// the file. A file may have several faults.
#[test]
fn each_broken_file_has_its_message_with_the_place_and_the_remedy() {
    let (mut count, mut wrong) = (0, String::new());
    for entry in fs::read_dir(BROKEN).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let expected = text.lines().map_while(|line| line.strip_prefix("# "));
        let expected: String = expected.map(|message| format!("{name}:{message}\n")).collect();
        let messages = refusal(Path::new(BROKEN), name);
        if messages != expected {
            wrong += &format!("expected\n{expected}found\n{messages}\n");
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 40, "{count} files");
}

fn is_list(schema: &Value) -> bool {
    let options = schema["anyOf"].as_array();
    options.is_some_and(|options| options.iter().any(|option| option["type"] == "array"))
}

/// Returns whether the schema accepts no empty list and no empty text.
fn has_a_value(schema: &Value) -> bool {
    schema["anyOf"]
        .as_array()
        .unwrap()
        .iter()
        .all(|option| match option["type"].as_str() {
            Some("array") => option["minItems"] == 1,
            Some("string") => option["pattern"] == r"\S",
            _ => true,
        })
}

/// Returns the places of options within options, and of a single option.
fn nested(schema: &Value, path: &str, found: &mut Vec<String>) {
    match schema {
        Value::Object(object) => {
            let options = object.get("anyOf").and_then(Value::as_array);
            if options.is_some_and(|all| all.len() < 2 || all.iter().any(|option| option.get("anyOf").is_some())) {
                found.push(path.to_owned());
            }
            object
                .iter()
                .for_each(|(key, value)| nested(value, &format!("{path}/{key}"), found));
        }
        Value::Array(array) => array.iter().for_each(|value| nested(value, path, found)),
        _ => {}
    }
}

/// Returns the tables of a schema that have lists, with the keys of the lists, and whether each
/// needs a value.
fn lists(schema: &Value, path: &str, found: &mut Vec<(String, String, bool)>) {
    let table = schema.get("items").unwrap_or(schema);
    for (key, value) in table["properties"].as_object().unwrap() {
        if is_list(value) {
            found.push((path.to_owned(), key.clone(), has_a_value(value)));
        }
        if value.get("items").unwrap_or(value).get("properties").is_some() {
            let below = format!("{path}.{key}");
            lists(value, below.trim_start_matches('.'), found);
        }
    }
}

#[test]
fn only_an_empty_list_that_replaces_a_default_is_accepted() {
    let spliceway = || Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let schema = spliceway().arg("schema").output().unwrap();
    let mut found = Vec::new();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let mut too_deep = Vec::new();
    nested(&schema, "", &mut too_deep);
    assert!(too_deep.is_empty(), "{too_deep:?}");
    lists(&schema, "", &mut found);
    let mut accepted = Vec::new();
    let file = TextFile::new("");
    for (table, key, needs_value) in &found {
        let head = if ["service", "user", "client"].contains(&&**table) {
            format!("[[{table}]]")
        } else {
            format!("[{table}]")
        };
        for empty in ["[]", "\"\"", "\" \"", "\"${EMPTY}\""] {
            file.write(&format!("{head}\n{key} = {empty}\n"));
            let mut command = spliceway();
            let output = command
                .args(["check", "-c", file.path()])
                .env("EMPTY", "")
                .output()
                .unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            let place = format!(
                "{}:2:{}: {key}: the list is empty: expected ",
                file.path(),
                key.len() + 4
            );
            let is_accepted = !message.contains(&place);
            if is_accepted {
                accepted.push((&**table, &**key));
            }
            assert_ne!(
                is_accepted, *needs_value,
                "the schema is wrong about {key} in {table}: {message}"
            );
        }
    }
    accepted.dedup();
    let expected = [
        ("client", "to_deny"),
        ("defaults.dial", "bind_source"),
        ("defaults.dial", "to_deny"),
        ("defaults.dial", "upstream_proxy"),
        ("defaults.listen", "deny"),
        ("service", "bind_source"),
        ("service", "deny"),
        ("service", "to_deny"),
        ("service", "upstream_proxy"),
        ("user", "to_deny"),
    ];
    accepted.sort_unstable();
    assert_eq!(accepted, expected);
    assert!(found.len() > 30, "{found:?}");
    // Such a list opens what the defaults close.
    file.write(
        "[defaults.listen]\ndeny = \"0.0.0.0/0\"\n[defaults.dial]\nbind_source = \"192.0.2.1\"\n\
         upstream_proxy = \"http://192.0.2.1:3128\"\nto_deny = \"*\"\n[[service]]\nkind = \"socks5\"\n\
         listen = \"127.0.0.1:0\"\ndeny = []\nbind_source = []\nupstream_proxy = []\nto_deny = []\n",
    );
    let output = spliceway().args(["check", "-c", file.path()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// A directory that is removed when the value is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path = std::env::temp_dir().join(format!("spliceway-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }

    fn refusal(&self, file: &str) -> String {
        refusal(&self.0, file)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_not_text_in_files_is_refused_with_the_file() {
    let directory = Directory::new(
        "unfit",
        &[("latin.toml", b"# a\n[log]\nlevel = \"\xe9\"\n"), ("text.txt", b"")],
    );
    assert_eq!(
        directory.refusal("latin.toml"),
        "latin.toml: line 3 is not valid UTF-8: expected text in UTF-8\n"
    );
    assert_eq!(
        directory.refusal("missing.toml"),
        "missing.toml: No such file or directory (os error 2): create it, or correct the path\n"
    );
    fs::remove_file(directory.0.join("latin.toml")).unwrap();
    assert_eq!(
        directory.refusal("."),
        ".: the folder has no configuration: expected files *.toml\n"
    );
    let long = fs::File::create(directory.0.join("long.toml")).unwrap();
    long.set_len((16 << 20) + 1).unwrap();
    assert_eq!(
        directory.refusal("."),
        "./long.toml: too long: expected at most 16 MiB in all files\n"
    );
}

#[test]
fn a_fault_at_the_end_of_a_file_has_the_last_line_of_that_file() {
    for unfinished in ["[log]\nlevel = [", "[log]\nlevel = [\n", "[log]\nlevel = [\n\n\n"] {
        let files: [(&str, &[u8]); 3] = [
            ("a.toml", b"[timeouts]\nidle = \"1h\"\n"),
            ("b.toml", unfinished.as_bytes()),
            ("c.toml", b"\n"),
        ];
        let directory = Directory::new("unfinished", &files);
        let refusal = directory.refusal(".");
        assert!(
            refusal.starts_with("./b.toml:2:10: this is not valid TOML: "),
            "{refusal}"
        );
    }
}

#[test]
fn what_is_no_regular_file_in_a_directory_is_refused_without_a_wait() {
    let directory = Directory::new("special", &[]);
    let path = directory.0.join("a.toml");
    let refused = "./a.toml: this is not a regular file: remove it, or rename it so that it does not end in .toml\n";
    let fifo = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(fifo.success());
    assert_eq!(directory.refusal("."), refused);
    fs::remove_file(&path).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(directory.refusal("."), refused);
    drop(socket);
    for unfit in ["/dev/zero", "/"] {
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(unfit, &path).unwrap();
        assert_eq!(directory.refusal("."), refused, "{unfit}");
    }
    // A link to a regular file is one: Kubernetes mounts files as links.
    fs::remove_file(&path).unwrap();
    fs::write(directory.0.join("text"), "[log]\nloud = 1\n").unwrap();
    std::os::unix::fs::symlink("text", &path).unwrap();
    assert!(directory.refusal(".").starts_with("./a.toml:2:1: unknown key `loud`"));
}

#[test]
fn a_variable_that_is_no_text_is_not_called_undefined() {
    let config = "[[service]]\nkind = \"socks5\"\nlisten = \"${WHERE}\"\n";
    let directory = Directory::new("latin-variable", &[("a.toml", config.as_bytes())]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    command.args(["check", "-c", "a.toml"]).current_dir(&directory.0);
    let output = command.env("WHERE", OsStr::from_bytes(b"\xe9")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "a.toml:3:10: listen: the environment variable WHERE is not valid UTF-8: set it to text in UTF-8\n"
    );
}

#[test]
fn what_two_files_contradict_is_refused_with_both_places() {
    // Port because the files are only checked.
    let service = b"[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:1080\"\n";
    let files: [(&str, &[u8]); 3] = [
        ("a.toml", b"[timeouts]\nidle = \"1h\"\n"),
        ("b.toml", service),
        ("c.toml", b"\n[timeouts]\ndrain = \"1s\"\n  idle = \"2h\"\n"),
    ];
    let directory = Directory::new("contradict", &files);
    assert_eq!(
        directory.refusal("."),
        "./c.toml:4:3: `idle` is given twice: remove it here or at ./a.toml:2:1\n"
    );
    fs::write(directory.0.join("c.toml"), service).unwrap();
    assert_eq!(
        directory.refusal("."),
        concat!(
            "./c.toml:2:8: name: the service at ./b.toml:2:8 has the name `socks5` too: give each service its own name\n",
            // Port because the files are only checked.
            "./c.toml:3:10: listen: the service at ./b.toml:3:10 listens on 127.0.0.1:1080: expected another address or port\n"
        )
    );
}

#[test]
fn a_user_file_that_others_can_write_is_refused() {
    let users = TextFile::new("ann:wonderland\n");
    fs::set_permissions(users.path(), fs::Permissions::from_mode(0o622)).unwrap();
    let path = users.path();
    let config = format!("[[service]]\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\nauth_file = \"{path}\"\n");
    let directory = Directory::new("exposed", &[("a.toml", config.as_bytes())]);
    assert_eq!(
        directory.refusal("a.toml"),
        format!("a.toml:4:13: auth_file: {path}: mode 0622 lets others add users; expected 0600 (chmod 600 {path})\n")
    );
}

/// Breaks two to four lines of each example, in many ways. Each broken line is named, whatever else
/// is wrong.
#[test]
fn each_of_several_broken_lines_is_named() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/examples");
    let directory = Directory::new("mutated", &[]);
    let mut seed: usize = 43;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        (seed >> 33) % below
    };
    let mut count = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let is_whole = |line: &str| line.split_once(" = ").is_some_and(|(_, value)| !value.ends_with('['));
        let keys: Vec<_> = (0..lines.len())
            .filter(|at| !lines[*at].starts_with(['#', ' ']) && is_whole(lines[*at]))
            .collect();
        for _ in 0..6 {
            let mut broken: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            let chosen: Vec<_> = (0..2 + random(3)).map(|_| keys[random(keys.len())]).collect();
            for at in &chosen {
                let key = lines[*at].split_once(" = ").unwrap().0;
                broken[*at] = match random(4) {
                    0 => format!("zzz{}", lines[*at]),
                    1 => format!("{key} = {{}}"),
                    2 => format!("{key} = @"),
                    _ => format!("{key} ="),
                };
            }
            let broken = broken.join("\n");
            fs::write(directory.0.join("a.toml"), &broken).unwrap();
            let refusal = directory.refusal("a.toml");
            assert!(!refusal.contains("panicked"), "{refusal}\n{broken}");
            for at in chosen {
                let place = format!("a.toml:{}:", at + 1);
                assert!(refusal.contains(&place), "{place} is missing\n{refusal}\n{broken}");
                count += 1;
            }
        }
    }
    assert!(count >= 84, "{count} lines");
}
