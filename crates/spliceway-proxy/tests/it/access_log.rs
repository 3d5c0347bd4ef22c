//! Records have their own place, and nothing that happens there affects a session.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use serde_json::Value;
use spliceway_net::has_tool;

use crate::drain::CUT;
use crate::harness::{PATIENCE, Program, TextFile, echo, let_pass, read_all, refusing, send_and_finish};

const DROPPED: &str = "spliceway_log_lines_dropped_total";

/// A folder for a log, which is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spliceway-access-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Makes a FIFO.
    fn fifo(&self) -> PathBuf {
        let path = self.0.join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        path
    }

    fn log(&self) -> String {
        self.0.join("access.log").display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn with_log(target: SocketAddr, log: &str) -> Program {
    Program::forward(target, &["--access-log", log, "--log-format", "json"])
}

/// Relays a message to an echo target and back.
fn session(program: &Program) {
    let client = program.connect();
    send_and_finish(&client, b"message");
    assert_eq!(read_all(&client), b"message");
}

/// Stops the program, which then has written every record, and returns the lines of its log.
fn lines_at_the_end(mut program: Program, log: impl AsRef<Path>) -> Vec<String> {
    program.terminate();
    assert!(matches!(program.exit().code(), Some(0 | CUT)));
    lines_of(log)
}

fn lines_of(log: impl AsRef<Path>) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn each_session_has_one_record_in_the_file_and_none_in_the_log() {
    let folder = Folder::new("file");
    let mut program = with_log(echo("127.0.0.1:0"), &folder.log());
    let client = program.connect();
    let address = client.local_addr().unwrap().to_string();
    send_and_finish(&client, b"message");
    assert_eq!(read_all(&client), b"message");
    program.await_end("client_eof");
    assert_eq!(program.lines_with("client_eof"), 0);
    let lines = lines_at_the_end(program, folder.log());
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let record = parsed(&lines[0]);
    assert_eq!(record["service"], "forward");
    assert_eq!(record["client"], address);
    assert_eq!(record["bytes_up"], 7);
    assert_eq!(record["bytes_down"], 7);
    assert_eq!(record["end"], "client_eof");
    assert!(record["time"].as_str().unwrap().ends_with('Z'), "{record}");
    let mode = fs::metadata(folder.log()).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}");
}

#[test]
fn text_and_json_records_have_the_same_fields_and_all_are_documented() {
    let document = include_str!("../../../../docs/access-log.md");
    let mut names = Vec::new();
    for format in ["json", "text"] {
        let folder = Folder::new(&format!("fields-{format}"));
        let log = folder.log();
        let options = ["--access-log", &log, "--log-format", format, "--auth", "ann:secret"];
        let program = Program::socks5(&options);
        let mut client = program.connect();
        let target = refusing();
        let request = [
            &b"\x05\x01\x02\x01\x03ann\x06secret\x05\x01\x00\x01\x7f\x00\x00\x01"[..],
            &target.port().to_be_bytes(),
        ];
        client.write_all(&request.concat()).unwrap();
        read_all(&client);
        program.await_end("connect_failed:ECONNREFUSED");
        let lines = lines_at_the_end(program, &log);
        let fields: BTreeSet<String> = match format {
            "json" => parsed(&lines[0]).as_object().unwrap().keys().cloned().collect(),
            _ => lines[0]
                .split(' ')
                .filter_map(|field| Some(field.split_once('=')?.0.to_owned()))
                .chain(["time".to_owned()])
                .collect(),
        };
        for field in &fields {
            assert!(document.contains(&format!("`{field}`")), "{field} is not documented");
        }
        names.push(fields);
    }
    assert_eq!(names[0], names[1]);
    assert!(names[0].contains("user") && names[0].contains("target"), "{names:?}");
}

#[test]
fn the_log_in_json_is_one_object_per_line_and_records_are_among_them() {
    let mut program = Program::forward(echo("127.0.0.1:0"), &["--log-format", "json"]);
    session(&program);
    let record = parsed(&program.line("client_eof"));
    assert_eq!(record["message"], "session");
    assert_eq!(record["level"], "INFO");
    program.terminate();
    let line = parsed(&program.line("draining"));
    assert_eq!(line["level"], "INFO");
    assert!(line["time"].is_string() && line["message"].is_string(), "{line}");
}

#[test]
fn records_that_are_off_are_nowhere() {
    let mut program = Program::forward(echo("127.0.0.1:0"), &["--access-log", "off"]);
    session(&program);
    program.await_end("client_eof");
    program.terminate();
    program.line("drained: ");
    assert_eq!(program.lines_with("client_eof"), 0);
}

#[test]
fn a_signal_opens_the_file_again_after_a_rename() {
    let folder = Folder::new("reopen");
    let (log, old) = (folder.log(), folder.0.join("old"));
    let mut program = with_log(echo("127.0.0.1:0"), &log);
    for count in 1..=3 {
        session(&program);
        program.await_sum("spliceway_connections_total", &[], count);
    }
    fs::rename(&log, &old).unwrap();
    program.signal(Signal::USR1);
    program.line("opened the access log");
    session(&program);
    program.await_sum("spliceway_connections_total", &[], 4);
    assert_eq!(program.sum("spliceway_log_reopens_total", &["ok"]), 1);
    let lines = lines_at_the_end(program, &log);
    assert_eq!((lines_of(&old).len(), lines.len()), (3, 1));
}

#[test]
fn a_file_that_cannot_be_opened_again_leaves_the_old_one_in_use() {
    let folder = Folder::new("refused");
    let (inner, moved) = (folder.0.join("inner"), folder.0.join("moved"));
    fs::create_dir(&inner).unwrap();
    let log = inner.join("access.log").display().to_string();
    let mut program = with_log(echo("127.0.0.1:0"), &log);
    fs::rename(&inner, &moved).unwrap();
    program.signal(Signal::USR1);
    let line = program.line("cannot open");
    assert!(line.contains("expected a file in a folder that exists"), "{line}");
    session(&program);
    assert_eq!(program.sum("spliceway_log_reopens_total", &["failed"]), 1);
    assert_eq!(lines_at_the_end(program, moved.join("access.log")).len(), 1);
}

#[test]
fn the_signal_does_nothing_without_a_file() {
    let mut program = Program::forward(echo("127.0.0.1:0"), &[]);
    program.signal(Signal::USR1);
    program.line("there is no log file");
    session(&program);
}

#[test]
fn a_session_that_a_stop_cuts_has_its_record_in_the_file() {
    let folder = Folder::new("cut");
    let log = folder.log();
    let options = ["--access-log", &log, "--log-format", "json", "--drain-timeout", "0"];
    let program = Program::forward(echo("127.0.0.1:0"), &options);
    let mut client = program.connect();
    client.write_all(b"message").unwrap();
    crate::harness::read_exactly(&mut client, 7);
    let lines = lines_at_the_end(program, &log);
    assert_eq!(parsed(&lines[0])["end"], "drained");
}

#[test]
fn a_line_that_an_earlier_program_left_unfinished_ends_there() {
    let folder = Folder::new("torn");
    fs::write(folder.log(), "{\"whole\":1}\n{\"time\":\"20").unwrap();
    let program = with_log(echo("127.0.0.1:0"), &folder.log());
    session(&program);
    program.await_end("client_eof");
    let lines = lines_at_the_end(program, folder.log());
    assert_eq!(lines[1], "{\"time\":\"20");
    assert_eq!(parsed(&lines[2])["end"], "client_eof");
}

#[test]
fn an_open_session_has_records_at_intervals_and_its_own_at_the_end() {
    let options = [
        "--access-log",
        "stderr",
        "--log-format",
        "json",
        "--record-interval",
        "1s",
    ];
    let mut program = Program::forward(echo("127.0.0.1:0"), &options);
    let mut client = program.connect();
    client.write_all(b"message").unwrap();
    crate::harness::read_exactly(&mut client, 7);
    let open = parsed(&program.line("\"end\":\"open\""));
    assert_eq!(open["bytes_up"], 7);
    assert!(open["duration_ms"].as_u64().unwrap() >= 1000, "{open}");
    send_and_finish(&client, b"again");
    assert_eq!(read_all(&client), b"again");
    let last = parsed(&program.line("client_eof"));
    assert_eq!(last["bytes_up"], 12);
    assert_eq!(last["id"], open["id"]);
}

/// Returns the message with which the program refuses to start.
fn refused(log: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command
        .args(["socks5", "-l", "127.0.0.1:0", "--access-log", log])
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_place_that_is_no_file_is_an_error_at_the_start() {
    let folder = Folder::new("no-file");
    let fifo = folder.fifo();
    let missing = folder.0.join("missing/access.log");
    for (log, expected) in [
        (missing.to_str().unwrap(), "expected a file in a folder that exists"),
        (folder.0.to_str().unwrap(), "expected a regular file, or `-` for stdout"),
        (fifo.to_str().unwrap(), "expected a regular file, or `-` for stdout"),
        ("/dev/full", "expected a regular file, or `-` for stdout"),
    ] {
        let message = refused(log);
        let start = format!("spliceway: cannot open the access log {log}: ");
        assert!(message.starts_with(&start) && message.contains(expected), "{message}");
    }
    // With a reader, a FIFO can be opened.
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    assert!(refused(fifo.to_str().unwrap()).contains("expected a regular file"));
}

#[test]
fn the_log_and_the_records_can_have_different_formats() {
    for (log_format, records_format) in [("text", "json"), ("json", "text")] {
        let folder = Folder::new(&format!("formats-{log_format}"));
        let path = folder.log();
        let formats = ["--log-format", log_format, "--access-log-format", records_format];
        let options = [&formats[..], &["--access-log", &path]].concat();
        let mut program = Program::forward(echo("127.0.0.1:0"), &options);
        session(&program);
        program.await_sum("spliceway_connections_total", &[], 1);
        let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
        for line in program.lines_so_far() {
            assert_eq!(is_json(&line), log_format == "json", "{line}");
        }
        let lines = lines_at_the_end(program, &path);
        assert_eq!(lines.len(), 1);
        assert_eq!(is_json(&lines[0]), records_format == "json", "{}", lines[0]);
    }
}

/// Returns a command that starts a forwarder in a shell, after this preparation and with this
/// redirection.
fn in_shell(shell: &[&str], before: &str, redirection: &str, target: SocketAddr, log: &str) -> Command {
    let script = format!("{before} exec \"$0\" \"$@\" {redirection}");
    let (program, arguments) = shell.split_first().unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args(["-c", &script, env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.args(["-r", &target.to_string(), "--access-log", log, "--log-format", "json"]);
    command
}

#[test]
fn stdout_that_cannot_be_written_stops_nothing() {
    let command = in_shell(&["sh"], "", ">/dev/full", echo("127.0.0.1:0"), "-");
    let mut program = Program::spawn(command, true);
    for _ in 0..5 {
        session(&program);
    }
    program.await_sum(DROPPED, &["access"], 5);
    let line = parsed(&program.line("cannot write the access log on stdout"));
    assert_eq!(line["level"], "ERROR");
    assert_eq!(program.sum(DROPPED, &["main"]), 0);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert!(program.exit().success());
}

#[test]
fn a_reader_that_stops_delays_neither_sessions_nor_the_exit() {
    const SESSIONS: u64 = 60;
    const PIPE_BYTES: usize = 4096;
    let folder = Folder::new("stopped");
    let fifo = folder.fifo();
    let mut options = fs::OpenOptions::new();
    let flags = OFlags::NONBLOCK.bits() as i32;
    let reader = options.read(true).write(true).custom_flags(flags).open(&fifo).unwrap();
    rustix::pipe::fcntl_setpipe_size(reader.as_fd(), PIPE_BYTES).unwrap();
    let redirection = format!(">{}", fifo.display());
    let command = in_shell(&["sh"], "", &redirection, echo("127.0.0.1:0"), "-");
    let mut program = Program::spawn(command, true);
    for _ in 0..SESSIONS {
        session(&program);
    }
    program.await_sum("spliceway_connections_total", &[], SESSIONS);
    let until = Instant::now() + PATIENCE;
    // The records are several times as long as the pipe, and a write of several lines waits until
    // all of them fit. So the writer stops after its first writes.
    while rustix::io::ioctl_fionread(reader.as_fd()).unwrap() == 0 {
        assert!(Instant::now() < until, "the pipe is empty");
        let_pass(Duration::from_millis(2));
    }
    session(&program);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert!(program.exit().success());
    drop(program);
    let lines: Vec<_> = BufReader::new(reader).lines().map_while(Result::ok).collect();
    let whole = lines.iter().filter(|line| serde_json::from_str::<Value>(line).is_ok());
    assert!(whole.count() >= lines.len() - 1, "{lines:#?}");
}

fn number_in(message: &str) -> usize {
    let mut words = message.split(' ').filter_map(|word| word.parse().ok());
    words.next().unwrap_or_else(|| panic!("no number in {message}"))
}

#[test]
fn a_full_disk_drops_records_and_tears_no_two_lines_together() {
    // The disk has 16 pages.
    const DISK: usize = 64 << 10;
    if !has_tool("unshare", "util-linux") || !has_tool("mount", "mount") {
        return;
    }
    let folder = Folder::new("full");
    let mount = format!("mount -t tmpfs -o size={DISK} none {} &&", folder.0.display());
    let shell = ["unshare", "--mount", "sh"];
    let command = in_shell(&shell, &mount, "", echo("127.0.0.1:0"), &folder.log());
    let mut program = Program::spawn(command, true);
    let disk = program.root().join(folder.0.strip_prefix("/").unwrap());
    let (log, ballast) = (disk.join("access.log"), disk.join("ballast"));
    if fs::metadata(&log).unwrap().dev() == fs::metadata(&folder.0).unwrap().dev() {
        eprintln!("skipped: this user may not mount a tmpfs");
        return;
    }
    // One page is left for records.
    fs::write(&ballast, vec![0; DISK - 4096]).unwrap();
    let mut sessions = 0;
    while program.sum(DROPPED, &["access"]) < 3 {
        assert!(sessions < 1000, "the disk is not full");
        session(&program);
        sessions += 1;
        program.await_sum("spliceway_connections_total", &[], sessions);
    }
    program.line("No space left on device");
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    fs::remove_file(&ballast).unwrap();
    session(&program);
    let report = parsed(&program.line("works again"));
    // The disk ends with the program, but for this descriptor.
    let log = fs::File::open(&log).unwrap();
    program.terminate();
    assert_eq!(program.exit().code(), Some(0));
    let dropped: usize = number_in(report["message"].as_str().unwrap());
    let lines = std::io::read_to_string(log).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    let torn: Vec<_> = lines
        .iter()
        .filter(|line| serde_json::from_str::<Value>(line).is_err())
        .collect();
    assert!(torn.len() <= 1, "{torn:#?}");
    assert_eq!(lines.len() - torn.len() + dropped, sessions as usize + 1, "{lines:#?}");
    assert_eq!(parsed(lines[lines.len() - 1])["end"], "client_eof");
}

#[test]
fn a_slow_disk_delays_neither_sessions_nor_the_exit() {
    const SESSIONS: usize = 200;
    if !has_tool("strace", "strace") {
        return;
    }
    let (folder, trace) = (Folder::new("slow"), TextFile::new(""));
    let log = folder.log();
    let mut strace = Command::new("strace");
    // With -D, the program is this test's child. A write to the file takes 1 s, and has 4 KiB at
    // most. So all records would take 15 s, and the program waits for 1 s at its end.
    strace.args(["-D", "-f", "-qq", "-o", trace.path(), "-P", &log, "-e", "trace=write"]);
    strace.args(["-e", "inject=write:delay_enter=1s", env!("CARGO_BIN_EXE_spliceway")]);
    strace.args(["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    strace.args(["-r", &echo("127.0.0.1:0").to_string(), "--access-log", &log]);
    let mut program = Program::spawn(strace, true);
    for _ in 0..SESSIONS {
        session(&program);
    }
    program.await_sum("spliceway_connections_total", &[], SESSIONS as u64);
    assert!(program.get("/readyz").starts_with("HTTP/1.1 200"));
    program.terminate();
    assert!(program.exit().success());
    assert!(lines_of(&log).len() < SESSIONS);
}

#[test]
fn a_log_at_the_limit_on_file_sizes_does_not_end_the_program() {
    let folder = Folder::new("limited");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["forward", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    command.args(["-r", &echo("127.0.0.1:0").to_string(), "--access-log", &folder.log()]);
    let mut program = Program::spawn(command, true);
    let until = Instant::now() + PATIENCE;
    while program.sum(DROPPED, &["log=\"access\""]) == 0 {
        assert!(Instant::now() < until, "nothing is dropped");
        session(&program);
    }
    // The report names the cause.
    program.line("File too large");
    session(&program);
    assert!(!program.has_ended());
}

#[test]
fn the_limit_on_cpu_time_stops_the_program_with_a_word() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -t 5; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_spliceway")]);
    command.args(["forward", "-l", "127.0.0.1:0", "-r", &refusing().to_string()]);
    let mut program = Program::spawn(command, false);
    // The warning comes before the line that the start has read.
    assert_eq!(program.lines_with("limit=5s"), 1);
    program.signal(Signal::XCPU);
    program.line("the limit on CPU time (RLIMIT_CPU) is reached");
    assert_eq!(program.exit().code(), Some(0));
}
