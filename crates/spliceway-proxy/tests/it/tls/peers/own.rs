//! Small programs with the libraries of Go and of Java, in the folder `own`. Both can end one side
//! of a connection alone. The one with Java changes its keys after each 200,000 bytes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use spliceway_net::has_tool;

use super::{End, LAST, Peer, SIZE, check_record, check_switched, content, exchange, exchange_in_turns, finish, relay};
use crate::harness::{Program, TextFile, accept, assert_same, listen, read_all, read_exactly};
use crate::tls::client::Pair;
use crate::tls::server::Authority;

/// The bytes between two turns with Java. It asks for new keys after 200,000 bytes, and again with
/// each record until it sees them. rustls takes 32 such requests in a row.
const TURN: usize = SIZE / 12;

/// A library, as the command that is an end of TLS.
struct Library {
    command: Vec<String>,
    /// Whether few bytes may be on their way at the same time.
    takes_turns: bool,
}

impl Library {
    /// Returns `None` without Go, and says that the test is skipped.
    fn go() -> Option<Self> {
        static BUILT: OnceLock<String> = OnceLock::new();
        let command = prepared("spliceway-peer-go").or_else(|| {
            let has_go = has_tool("go", "golang-go");
            has_go.then(|| vec![BUILT.get_or_init(build_go).clone()])
        })?;
        Some(Self {
            command,
            takes_turns: false,
        })
    }

    /// Returns `None` without Java, and says that the test is skipped.
    fn java() -> Option<Self> {
        let command = prepared("spliceway-peer-java").or_else(|| {
            let has_java = has_tool("javac", "default-jdk-headless");
            let source = || sources().join("Peer.java").to_str().unwrap().to_owned();
            has_java.then(|| vec!["java".to_owned(), source()])
        })?;
        Some(Self {
            command,
            takes_turns: true,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    /// Passes [`SIZE`] bytes each way.
    fn exchange(&self, one: &mut impl End, other: &mut impl End) {
        if self.takes_turns {
            exchange_in_turns(one, other, SIZE, TURN);
        } else {
            exchange(one, other, SIZE);
        }
    }

    fn client(&self, program: &Program, ca: &str) -> Peer {
        Peer::start(
            self.command()
                .args(["client", &program.address.to_string(), ca, "a.test"]),
        )
    }

    fn server(&self) -> Server {
        let authority = Authority::new("Test CA");
        let [chain, key] = authority.issue(&["127.0.0.1"]).files();
        let mut peer = Peer::start(self.command().args(["server", chain.path(), key.path()]));
        let target = format!("tls://{}", peer.address());
        let ca = authority.file();
        Server { peer, target, ca }
    }
}

/// A server, and the authority of its certificate.
struct Server {
    peer: Peer,
    target: String,
    ca: TextFile,
}

impl Server {
    fn relay(&self, more: &[&str]) -> Program {
        relay(&self.target, &[&["--target-tls-ca", self.ca.path()], more].concat())
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls/peers/own")
}

/// Returns a program that the image of a guest has.
fn prepared(name: &str) -> Option<Vec<String>> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    found.then(|| vec![name.to_owned()])
}

/// Builds the program with the library of Go, and returns its path.
fn build_go() -> String {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spliceway-peer-go");
    // Another run may use the program now.
    let new = to.with_extension(std::process::id().to_string());
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&new).arg(".").env("CGO_ENABLED", "0");
    assert!(build.current_dir(sources()).status().unwrap().success());
    std::fs::rename(&new, &to).unwrap();
    to.into_os_string().into_string().unwrap()
}

fn client_ends_either_side_first(library: &Library) {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let last = content(7, LAST);
    for is_client_first in [true, false] {
        let mut peer = library.client(&program, pair.certificate.path());
        let mut plain = accept(&listener);
        library.exchange(&mut peer, &mut plain);
        if is_client_first {
            peer.finish();
            assert_eq!(read_all(&plain), b"");
            plain.write_all(&last).unwrap();
            finish(&plain);
        } else {
            finish(&plain);
            peer.line("received the end");
            peer.send(&last);
            peer.finish();
            assert_same(&read_all(&plain), &last);
        }
        let (is_well, rest, said) = peer.end();
        assert!(is_well, "{said}");
        assert_same(&rest, if is_client_first { &last } else { &[] });
        check_ends(&mut program, "client", is_client_first);
    }
    check_switched(&program, 2);
}

fn server_ends_either_side_first(library: &Library) {
    let last = content(7, LAST);
    for is_client_first in [true, false] {
        let mut server = library.server();
        let mut program = server.relay(&[]);
        let mut plain = program.connect();
        library.exchange(&mut server.peer, &mut plain);
        if is_client_first {
            finish(&plain);
            server.peer.line("received the end");
            server.peer.send(&last);
            server.peer.finish();
            assert_same(&read_all(&plain), &last);
        } else {
            server.peer.finish();
            assert_eq!(read_all(&plain), b"");
            plain.write_all(&last).unwrap();
            finish(&plain);
        }
        let (is_well, rest, said) = server.peer.end();
        assert!(is_well, "{said}");
        assert_same(&rest, if is_client_first { &[] } else { &last });
        check_ends(&mut program, "target", is_client_first);
        check_switched(&program, 1);
    }
}

/// Checks the record of a session whose second side has sent [`LAST`] bytes after the end of the
/// first one.
fn check_ends(program: &mut Program, sides: &str, is_client_first: bool) {
    let (bytes, end) = if is_client_first {
        ([SIZE, SIZE + LAST], "end=client_eof")
    } else {
        ([SIZE + LAST, SIZE], "end=upstream_eof")
    };
    check_record(&program.line("bytes_up="), sides, bytes, &[end]);
}

/// Relays between two programs. `error` is what a program says about a stream that was cut, if its
/// library notices.
fn two_ends(library: &Library, error: Option<&str>) {
    let pair = Pair::new(&["a.test"]);
    let last = content(7, LAST);
    for is_cut in [false, true] {
        let mut server = library.server();
        let mut program = server.relay(&pair.arguments());
        let mut client = library.client(&program, pair.certificate.path());
        library.exchange(&mut client, &mut server.peer);
        if is_cut {
            server.peer.kill();
            if error.is_none() {
                client.line("received the end");
                client.finish();
            }
            let (is_well, rest, said) = client.end();
            assert_eq!(is_well, error.is_none(), "{said}");
            assert!(rest.is_empty() && said.contains(error.unwrap_or_default()), "{said}");
            // A library that notices answers with an alert.
            let end = if error.is_none() {
                "end=upstream_eof"
            } else {
                "end=reset_by_client"
            };
            let fields = [end, " target_truncated=yes"];
            check_record(&program.line("bytes_up="), "both", [SIZE; 2], &fields);
        } else {
            client.finish();
            server.peer.line("received the end");
            server.peer.send(&last);
            server.peer.finish();
            let (is_well, rest, said) = client.end();
            assert!(is_well, "{said}");
            assert_same(&rest, &last);
            assert!(server.peer.end().0);
            check_ends(&mut program, "both", true);
        }
        check_switched(&program, 2);
    }
}

fn client_that_is_killed(library: &Library) {
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let mut peer = library.client(&program, pair.certificate.path());
    let mut plain = accept(&listener);
    library.exchange(&mut peer, &mut plain);
    peer.kill();
    assert_eq!(read_all(&plain), b"");
    drop(plain);
    let fields = ["end=client_eof", " truncated=yes"];
    check_record(&program.line("bytes_up="), "client", [SIZE; 2], &fields);
    check_switched(&program, 1);
}

#[test]
fn a_client_with_go_ends_either_side_first() {
    if let Some(go) = Library::go() {
        client_ends_either_side_first(&go);
    }
}

#[test]
fn a_server_with_go_ends_either_side_first() {
    if let Some(go) = Library::go() {
        server_ends_either_side_first(&go);
    }
}

#[test]
fn two_ends_with_go_see_the_end_and_a_cut() {
    if let Some(go) = Library::go() {
        // Go takes a FIN between two records for a regular end.
        two_ends(&go, None);
    }
}

#[test]
fn a_client_with_go_that_is_killed_has_cut_its_stream() {
    if let Some(go) = Library::go() {
        client_that_is_killed(&go);
    }
}

#[test]
fn a_client_with_go_resumes_its_session() {
    let Some(go) = Library::go() else {
        return;
    };
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let arguments = [
        "client",
        &program.address.to_string(),
        pair.certificate.path(),
        "a.test",
    ];
    let mut peer = Peer::start(go.command().args(arguments).env("RESUME", "1"));
    // The first session has no content.
    let plain = accept(&listener);
    assert_eq!(read_all(&plain), b"");
    drop(plain);
    let mut plain = accept(&listener);
    exchange(&mut peer, &mut plain, SIZE / 2);
    assert_eq!(peer.line("resumed: "), "resumed: true");
    peer.send(&content(7, LAST));
    assert_same(&read_exactly(&mut plain, LAST), &content(7, LAST));
    finish(&plain);
    peer.finish();
    assert!(peer.end().0);
    let record = program.line(&format!("bytes_down={}", SIZE / 2));
    check_record(&record, "client", [SIZE / 2 + LAST, SIZE / 2], &[" resumed=yes"]);
}

#[test]
fn a_client_with_java_ends_either_side_first() {
    if let Some(java) = Library::java() {
        client_ends_either_side_first(&java);
    }
}

#[test]
fn a_server_with_java_ends_either_side_first() {
    if let Some(java) = Library::java() {
        server_ends_either_side_first(&java);
    }
}

#[test]
fn two_ends_with_java_see_the_end_and_a_cut() {
    if let Some(java) = Library::java() {
        two_ends(&java, Some("Remote host terminated the connection"));
    }
}
