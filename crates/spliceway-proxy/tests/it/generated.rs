use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use spliceway_net::has_tool;

use crate::harness::{Folder, TextFile};

fn spliceway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_spliceway"))
        .args(arguments)
        .output()
        .unwrap()
}

fn completions(shell: &str) -> String {
    let output = spliceway(&["completions", shell]);
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Beginnings of command lines. Each has one completion of its last word.
const TYPED: [(&str, &str); 6] = [
    ("spliceway so", "socks5"),
    ("spliceway print-c", "print-config"),
    ("spliceway socks5 --nof", "--nofile"),
    ("spliceway forward --splice au", "auto"),
    ("spliceway service se", "set"),
    ("spliceway backend add --dr", "--dry-run"),
];

fn stdout(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_commands_options_and_values() {
    if !has_tool("bash", "bash") {
        return;
    }
    let script = TextFile::new(&completions("bash"));
    let complete = r#"
        . "$0"
        function=$(complete -p spliceway | sed 's/.*-F \([^ ]*\) .*/\1/')
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "$function" "$1" "${@: -1}" "${@: -2:1}"
        echo "${COMPREPLY[*]}""#;
    for (typed, expected) in TYPED {
        let mut bash = Command::new("bash");
        bash.args(["-c", complete, script.path()]).args(typed.split(' '));
        assert_eq!(stdout(&mut bash).trim(), expected, "{typed}");
    }
}

#[test]
fn fish_completes_commands_options_and_values() {
    if !has_tool("fish", "fish") {
        return;
    }
    let script = TextFile::new(&completions("fish"));
    for (typed, expected) in TYPED {
        let mut fish = Command::new("fish");
        let complete = format!("source {}; complete -C '{typed}'", script.path());
        fish.args(["--no-config", "-c", &complete]);
        let found = stdout(&mut fish);
        let found: Vec<_> = found.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(found, [expected], "{typed}");
    }
}

/// A Python program that types on the terminal of a zsh, and presses tab. zsh completes nothing
/// without a terminal.
const TYPIST: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.environ['TERM'] = 'dumb'
    os.execvp('zsh', ['zsh', '-f', '-i'])
def until(text):
    seen = b''
    while text not in seen:
        seen += os.read(terminal, 1024)
    return seen
# The terminal echoes the command, so its output differs from its text.
os.write(terminal, f"fpath=({sys.argv[1]} $fpath); autoload -U compinit; compinit -D -u; echo rea''dy\n".encode())
until(b'ready\r\n')
for typed, expected in zip(sys.argv[2::2], sys.argv[3::2]):
    os.write(terminal, b'\x15' + typed.encode() + b'\t')
    seen = until(expected.encode())
    if b'not found' in seen:
        sys.exit(repr(seen))
"#;

#[test]
fn zsh_completes_commands_options_and_values() {
    if !has_tool("zsh", "zsh") || !has_tool("python3", "python3") {
        return;
    }
    let folder = Folder::new("zsh");
    folder.file("_spliceway", &completions("zsh"));
    folder.file("a-target", "");
    let mut python = Command::new("timeout");
    python.args(["30", "python3", "-c", TYPIST]).arg(&folder.0);
    for (typed, expected) in TYPED {
        let (before, _) = typed.rsplit_once(' ').unwrap();
        python.args([typed, &format!("{before} {expected}")]);
    }
    // A value whose name has a colon. zsh offers the name of the file.
    python.args(["spliceway forward --remote a-", "--remote a-target"]);
    stdout(python.current_dir(&folder.0));
}

#[test]
fn other_shells_are_refused_with_the_list_of_shells() {
    let output = spliceway(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("bash, fish, zsh"), "{stderr}");
}

/// Writes the pages of all commands, and returns their paths.
fn pages(folder: &Folder) -> Vec<PathBuf> {
    let written = spliceway(&["man", folder.0.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let files = ["man1", "man5"].map(|section| fs::read_dir(folder.0.join(section)).unwrap());
    let mut pages: Vec<_> = files.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

#[test]
fn every_command_has_a_page_and_every_option_a_text() {
    let folder = Folder::new("man");
    let pages = pages(&folder);
    let names: Vec<_> = pages.iter().filter_map(|page| page.file_name()?.to_str()).collect();
    for name in [
        "spliceway.1",
        "spliceway-socks5.1",
        "spliceway-print-config.1",
        "spliceway-run.1",
        "spliceway-service.1",
        "spliceway-service-add.1",
        "spliceway-backend-rm.1",
        "spliceway.toml.5",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let (mut options, text) = (0, |page: &Path| fs::read_to_string(page).unwrap());
    for page in &pages {
        for item in text(page).split("\n.TP\n").skip(1) {
            let mut lines = item.lines();
            let name = lines.next().unwrap();
            let help = lines.next().unwrap_or_default();
            assert!(!help.is_empty() && !help.starts_with('.'), "{name} in {page:?}: {help}");
            options += 1;
        }
    }
    assert!(options > 100, "{options}");
    let main = text(&folder.0.join("man1/spliceway.1"));
    for section in ["EXAMPLES", "SIGNALS", "EXIT STATUS", "FILES", "SEE ALSO"] {
        assert!(main.contains(&format!("\n.SH \"{section}\"\n")) || main.contains(&format!("\n.SH {section}\n")));
    }
    let printed = spliceway(&["man"]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), main);
}

#[test]
fn manual_pages_render_without_warnings() {
    let folder = Folder::new("rendered");
    let pages = pages(&folder);
    if has_tool("man", "man-db") && has_tool("groff", "groff-base") {
        let rendered = stdout(Command::new("man").args(["--warnings", "-l"]).args(&pages));
        assert!(rendered.contains("spliceway - Forwards and proxies TCP"), "{rendered}");
        assert!(rendered.contains("spliceway.toml - configuration of spliceway(1)"));
    }
    if has_tool("mandoc", "mandoc") {
        stdout(Command::new("mandoc").args(["-T", "lint", "-W", "error"]).args(&pages));
    }
}

#[test]
fn the_example_in_the_page_of_the_configuration_file_is_valid() {
    let folder = Folder::new("example-page");
    pages(&folder);
    let page = fs::read_to_string(folder.0.join("man5/spliceway.toml.5")).unwrap();
    let (_, example) = page.split_once("\n.SH EXAMPLES\n.nf\n").unwrap();
    let (example, _) = example.split_once("\n.fi\n").unwrap();
    let example = example.replace("\\-", "-");
    folder.file("spliceway.toml", &example);
    folder.file("users", "ann:a-password\n");
    let path = folder.0.join("spliceway.toml");
    let checked = spliceway(&["check", path.to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}\n{example}");
}

#[test]
fn a_page_that_cannot_be_written_is_an_error_that_names_it() {
    let output = spliceway(&["man", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("/nonexistent/man1/spliceway.1: No such file or directory"),
        "{stderr}"
    );
}
