//! Services that a reload removes or renames: their sessions, and their series.

use std::io::Write;
use std::net::SocketAddr;

use crate::admin::Socket;
use crate::harness::{Program, TextFile, accept, listen, read_exactly};

fn config(admin: &Socket, name: &str, target: SocketAddr) -> String {
    let socket = admin.address();
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\nsocket = \"{socket}\"\n[[service]]\nname = \"{name}\"\n\
        kind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n"
    )
}

#[test]
fn a_removed_service_is_listed_until_its_last_session_ends() {
    let ((listener, target), admin) = (listen(), Socket::new());
    let file = TextFile::new(&config(&admin, "old", target));
    let mut program = Program::run(&file);
    let (mut client, mut upstream) = (program.connect(), accept(&listener));
    client.write_all(b"12345").unwrap();
    assert_eq!(read_exactly(&mut upstream, 5), b"12345");
    file.write(&config(&admin, "new", target));
    assert!(program.reload().contains("added new; removed old"));
    let (_, status) = admin.ask("GET", "/v1/status");
    let services = status["services"].as_array().unwrap();
    assert_eq!(services.len(), 2, "{status}");
    let (new, old) = (&services[0], &services[1]);
    assert_eq!((&new["name"], &new["state"]), (&"new".into(), &"accepting".into()));
    assert_eq!((&old["name"], &old["state"]), (&"old".into(), &"removed".into()));
    assert_eq!(old["sessions"]["active"], 1);
    assert_eq!(old["bytes_up"], 5);
    assert_eq!(status["sessions"]["active"], 1);
    drop((client, upstream));
    program.await_sum("spliceway_connections_total", &["service=\"old\""], 1);
    let (_, status) = admin.ask("GET", "/v1/status");
    assert_eq!(status["services"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["sessions"]["active"], 0);
}

#[test]
fn a_thousand_renames_leave_few_series_and_little_memory() {
    let ((listener, target), admin) = (listen(), Socket::new());
    let file = TextFile::new(&config(&admin, "service-0", target));
    let program = Program::run(&file);
    let _kept = (program.connect(), accept(&listener));
    let rename = |numbers: std::ops::RangeInclusive<u32>| {
        for number in numbers {
            file.write(&config(&admin, &format!("service-{number}"), target));
            let (status, said) = admin.ask("POST", "/v1/reload");
            assert_eq!(status, 200, "{said}");
        }
        program.get("/metrics").lines().count()
    };
    let few = rename(1..=50);
    let before = program.resident_bytes();
    let many = rename(51..=1000);
    let grown = program.resident_bytes().saturating_sub(before);
    // The lines of the first service stay, because it has a session.
    assert!(program.get("/metrics").contains("{service=\"service-0\"} 1"));
    assert!(many.abs_diff(few) < 5, "{few} lines, and then {many}");
    assert!(many < 1000, "{many} lines");
    assert!(grown < 8 << 20, "{grown} bytes");
}
