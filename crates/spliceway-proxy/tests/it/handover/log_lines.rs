//! The lines of a log in JSON are objects, also if the new process cannot begin.

use rustix::process::Signal;
use serde_json::Value;

use super::fake::Next;
use super::{Program, TextFile, upgrade};
use crate::harness::{echo, has_level};

/// Asserts that each line so far is an object with a time, a level and a message.
fn assert_objects(program: &mut Program) {
    let lines = program.lines_so_far();
    assert!(!lines.is_empty());
    for line in lines {
        let object: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["time", "level", "message"] {
            assert!(object[key].is_string(), "no {key}: {line}");
        }
    }
}

/// The new process of each case ends before its log has started.
#[test]
fn a_new_process_that_cannot_begin_writes_no_text_into_a_log_in_json() {
    let next = Next::new("json");
    let good = format!(
        "[log]\nformat = \"json\"\n[admin]\nmetrics = \"127.0.0.1:0\"\n\
         [[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\n",
        echo("127.0.0.1:0")
    );
    let config = TextFile::new(&good);
    let mut program = next.start(&["run", "-c", config.path()]);
    let spliceway = env!("CARGO_BIN_EXE_spliceway");
    for (script, text, expected) in [
        ("run -c \"$3\"", "[[service]]\n", "kind: is missing"),
        ("run -c \"$3\" --unknown", &*good, "unexpected argument '--unknown'"),
        (
            "run -c \"$3\"",
            &*good.replace("[log]\n", "[log]\naccess = \"/nowhere/access.log\"\n"),
            "cannot open the access log /nowhere/access.log",
        ),
    ] {
        next.is_script(&format!("exec {spliceway} {script}"));
        config.write(text);
        program.signal(Signal::USR2);
        let line = program.line("the upgrade failed");
        assert!(line.contains(expected), "{expected}: {line}");
        assert_objects(&mut program);
    }
    config.write(&good);
    next.is_the_program();
    let process = upgrade(&mut program, None);
    program.line("the old process has ended");
    process.signal(Signal::TERM);
    program.line("drained: every session has ended");
    assert_objects(&mut program);
}

#[test]
fn listening_has_a_level_even_if_the_log_shows_less() {
    for format in ["text", "json"] {
        let options = ["--log-level", "error", "--log-format", format];
        let mut program = Program::forward(echo("127.0.0.1:0"), &options);
        let lines = program.lines_so_far();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in lines {
            assert!(has_level(&line, "INFO") && line.contains("listening on "), "{line}");
        }
    }
}

#[test]
fn a_time_of_zero_has_a_unit_for_people() {
    let mut program = Program::forward(echo("127.0.0.1:0"), &["--drain-timeout", "0"]);
    program.terminate();
    let line = program.line("draining: no new clients");
    assert!(line.ends_with(" limit=0s"), "{line}");
}
