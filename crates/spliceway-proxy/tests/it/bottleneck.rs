//! The record of a session says what made it slow. The client, the program and the target are on
//! different nodes.
//!
//! ```text
//!   node 0: client ── first link ── node 1: program ── second link ── node 2: target
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use spliceway_net::{Family, Line, Link, Net, Offloads, address};

use crate::harness::{Program, accept, assert_same, let_pass, pattern, with_patience};

const NEAR: Link = Link::Veth(Offloads::On);
const MIB: usize = 1 << 20;

/// The bytes that sessions move. They are made before a session begins, because its writer would
/// otherwise be slow.
static SENT: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(1, 6 * MIB));

/// The pauses of both sides, besides what a link does.
#[derive(Clone, Copy, Default)]
struct Slow {
    /// The pause before the reader reads its first byte.
    reader: Duration,
    /// The pause of the writer after each 1/16 of the bytes.
    writer: Duration,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
}

/// Runs one session that moves `bytes` in one direction, and returns its record. Returns `None` if
/// the machine provides no namespaces.
fn record(way: Way, links: [Link; 2], bytes: usize, slow: Slow, options: &[&str]) -> Option<Value> {
    LazyLock::force(&SENT);
    let net = Net::chain_of(&links)?;
    // A veth pair drops segments of a sender with a large window, and then a TCP timer is slow.
    for (index, node) in net.nodes().iter().enumerate() {
        let is_near = |link: &Link| matches!(link, Link::Veth(_));
        let neighbours = [index.checked_sub(1), Some(index)];
        let mut joined = neighbours.iter().flatten().filter_map(|link| links.get(*link));
        if joined.any(is_near) {
            node.inside(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 131072"))
                .unwrap();
        }
    }
    let listener = net
        .node(2)
        .inside(|| TcpListener::bind((address(1, true, Family::V4), 0)));
    let listener = listener.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let listens = SocketAddr::new(address(0, true, Family::V4), 0).to_string();
    let mut program = net.node(1).inside(|| {
        let start = ["forward", "-l", &listens, "-r", &target, "--log-format", "json"];
        Program::start(&[&start, options].concat())
    });
    let client = net.node(0).inside(|| TcpStream::connect(program.address)).unwrap();
    let (client, target) = (with_patience(client), accept(&listener));
    let (mut writer, mut reader) = match way {
        Way::Up => (client, target),
        Way::Down => (target, client),
    };
    let sent = &SENT[..bytes];
    thread::scope(|scope| {
        scope.spawn(|| {
            for part in sent.chunks(bytes / 16) {
                writer.write_all(part).unwrap();
                let_pass(slow.writer);
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let_pass(slow.reader);
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        assert_same(&received, sent);
        reader.shutdown(Shutdown::Write).unwrap();
    });
    let line = program.line("_eof");
    let record: Value = serde_json::from_str(&line).unwrap();
    let document = include_str!("../../../../docs/access-log.md");
    for field in record.as_object().unwrap().keys() {
        assert!(document.contains(&format!("`{field}`")), "{field} is not documented");
    }
    Some(record)
}

/// Asserts that a session in each direction has this word. The first one of `links` is that to the
/// reader.
fn assert_slow(links: [Link; 2], bytes: usize, slow: Slow, options: &[&str], words: [&str; 2]) -> Option<[Value; 2]> {
    let [to_reader, to_writer] = links;
    let down = record(Way::Down, [to_reader, to_writer], bytes, slow, options)?;
    assert_eq!(down["slow_down"], words[0], "{down:#}");
    assert_eq!(down.get("slow_up"), None, "{down:#}");
    let up = record(Way::Up, [to_writer, to_reader], bytes, slow, options)?;
    assert_eq!(up["slow_up"], words[1], "{up:#}");
    assert_eq!(up.get("slow_down"), None, "{up:#}");
    Some([down, up])
}

#[test]
fn a_reader_that_pauses_is_slow() {
    let slow = Slow {
        reader: Duration::from_millis(300),
        ..Slow::default()
    };
    let Some([down, up]) = assert_slow([NEAR; 2], 6 * MIB, slow, &[], ["client", "upstream"]) else {
        return;
    };
    assert!(down["blocked_down_ms"].as_u64().unwrap() >= 100, "{down:#}");
    assert!(up["blocked_up_ms"].as_u64().unwrap() >= 100, "{up:#}");
    assert_eq!(down.get("blocked_up_ms"), None);
}

#[test]
fn a_writer_that_pauses_is_slow() {
    let slow = Slow {
        writer: Duration::from_millis(25),
        ..Slow::default()
    };
    assert_slow([NEAR; 2], 2 * MIB, slow, &[], ["upstream", "client"]);
}

#[test]
fn a_rate_limit_is_slow() {
    let options = ["--rate-in", "4MB", "--rate-out", "4MB"];
    let words = ["limit"; 2];
    let Some([down, up]) = assert_slow([NEAR; 2], 2 * MIB, Slow::default(), &options, words) else {
        return;
    };
    assert!(down["limited_down_ms"].as_u64().unwrap() >= 200, "{down:#}");
    assert!(up["limited_up_ms"].as_u64().unwrap() >= 200, "{up:#}");
}

/// Most bytes of the smaller session fit into the send buffer of the program.
#[test]
fn a_link_with_a_low_rate_is_slow() {
    let line = Line {
        delay: Duration::from_millis(5),
        rate: NonZeroU64::new(50_000_000),
        queue: 256 << 10,
        loss: 0.0,
    };
    let words = ["network_to_client", "network_to_upstream"];
    for bytes in [MIB, 3 * MIB] {
        let found = assert_slow([Link::Far(line), NEAR], bytes, Slow::default(), &[], words);
        let Some([down, up]) = found else { return };
        for (record, side) in [(&down, "client"), (&up, "upstream")] {
            let rtt = record[format!("rtt_{side}_us")].as_u64().unwrap();
            assert!(rtt >= 10_000, "{record:#}");
            assert!(
                record[format!("delivery_rate_{side}")].as_u64().unwrap() > 0,
                "{record:#}"
            );
        }
    }
}

#[test]
fn a_link_that_loses_segments_is_slow() {
    let line = Line {
        delay: Duration::from_millis(10),
        rate: None,
        queue: MIB,
        loss: 0.01,
    };
    let words = ["network_to_client", "network_to_upstream"];
    let found = assert_slow([Link::Far(line), NEAR], 2 * MIB, Slow::default(), &[], words);
    let Some([down, up]) = found else { return };
    assert!(down["retransmits_client"].as_u64().unwrap() > 0, "{down:#}");
    assert_eq!(down["retransmits_upstream"], 0, "{down:#}");
    assert!(up["retransmits_upstream"].as_u64().unwrap() > 0, "{up:#}");
}

#[test]
fn a_short_session_has_no_fields_about_its_connections() {
    let Some(record) = record(Way::Down, [NEAR; 2], MIB / 2, Slow::default(), &[]) else {
        return;
    };
    for field in ["rtt_client_us", "delivery_rate_upstream", "slow_down"] {
        assert_eq!(record.get(field), None, "{record:#}");
    }
}
