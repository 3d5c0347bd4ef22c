//! The system calls of a relay, counted from outside with strace.
// A child prints lines for its test, and a skipped test prints the reason.
#![allow(clippy::print_stdout)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process, thread};

use spliceway::{Mirror, MirrorEnd, PipePool, SizeClass};
use spliceway_net::has_tool;

use crate::role::{self, Role, heard, say};

const ROLES: &str = "syscalls::role_of_a_child_process";

#[test]
fn a_bulk_relay_calls_splice_epoll_wait_and_a_recv_per_burst() {
    const BYTES: usize = 64 << 20;
    let Some(calls) = trace("bulk", |client, server| upload(client, server, BYTES)) else {
        return;
    };
    let allowed = [
        "splice",
        "recvfrom",
        "poll",
        // The same call, as rustix makes it without libc.
        "ppoll",
        "sendto",
        "epoll_wait",
        "shutdown",
        "close",
        "epoll_ctl",
    ];
    // The relay asks once whether each socket is plain TCP, is a stream, reports every byte, and is
    // non-blocking.
    let once = [("getsockopt", 6), ("fcntl", 2)];
    for call in &calls {
        let name = call.name.as_str();
        let is_asked_once = once.iter().any(|(once, _)| *once == name);
        assert!(allowed.contains(&name) || is_asked_once, "{}", call.line);
    }
    for (name, most) in once {
        let count = count(&calls, name);
        assert!(count <= most, "{count} times {name} for two sockets");
    }
    let spliced: usize = moved(&calls, "splice");
    let copied: usize = moved(&calls, "sendto");
    assert!(copied * 20 <= BYTES, "{copied} of {BYTES} bytes were copied");
    // Every byte is spliced twice, into the pipe and out of it.
    assert_eq!(spliced, 2 * (BYTES - copied));
    let corked = calls.iter().filter(|call| call.line.contains("SPLICE_F_MORE")).count();
    assert_eq!(corked, 0);
    assert_lengths_are_sizes_and_contents_of_pipes(&calls);
    // There is one call for each end of a burst, and some at the start and the end. There are fewer
    // bursts than fills.
    let looks = count(&calls, "recvfrom") + count(&calls, "poll") + count(&calls, "ppoll");
    assert!(looks <= count(&calls, "splice") / 2 + 16, "{looks}");
}

/// Checks that a fill asks for the size of a pipe, and a drain for its contents. A length is never
/// 0, and never more than the pipe can hold. (Bytes go in one direction here, so only one pipe is
/// in use at a time.)
fn assert_lengths_are_sizes_and_contents_of_pipes(calls: &[Call]) {
    let sizes = SizeClass::ALL.map(SizeClass::bytes);
    let (mut inside, mut checked) = (0, 0);
    for call in calls.iter().filter(|call| call.name == "splice") {
        // A line that another thread interrupted does not show the arguments.
        let length = call
            .line
            .split(", ")
            .nth(4)
            .and_then(|length| length.parse::<usize>().ok());
        match length {
            Some(length) if inside == 0 => assert!(sizes.contains(&length), "{}", call.line),
            Some(length) => assert_eq!(length, inside, "{}", call.line),
            None => {}
        }
        checked += usize::from(length.is_some());
        let moved = call
            .line
            .rsplit_once(" = ")
            .and_then(|(_, moved)| moved.parse::<usize>().ok());
        match (moved, inside) {
            (Some(moved), 0) => inside = moved,
            (Some(moved), _) => inside -= moved,
            (None, _) => {}
        }
    }
    assert_eq!(inside, 0);
    assert!(checked > 100, "{checked} calls of splice");
}

#[test]
fn a_bulk_relay_with_pauses_makes_few_receives_per_splice() {
    // The first burst makes the flow bulk. Each later burst is one segment on loopback, so that no
    // burst arrives in parts.
    const FIRST: usize = 4 << 20;
    const BURST: usize = 40 << 10;
    const BURSTS: usize = 64;
    let Some(calls) = trace("bursts", |mut client, mut server| {
        for burst in [FIRST].into_iter().chain([BURST; BURSTS]) {
            let (sent, mut received) = (vec![7; burst], vec![0; burst]);
            let sending = thread::scope(|scope| {
                let sending = scope.spawn(|| client.write_all(&sent));
                server.read_exact(&mut received).unwrap();
                sending.join().unwrap()
            });
            sending.unwrap();
            // The client continues only after it has received this byte.
            server.write_all(b".").unwrap();
            client.read_exact(&mut [0]).unwrap();
        }
    }) else {
        return;
    };
    let copied = moved(&calls, "sendto").saturating_sub(BURSTS);
    assert!(copied * 20 <= FIRST + BURST * BURSTS, "{copied} bytes were copied");
    // There is one call for each byte back, and one for the end of each burst. This is less than
    // one call per fill.
    let looks = count(&calls, "recvfrom");
    assert!(looks <= BURSTS + count(&calls, "splice") / 2 + 16, "{looks}");
    // The first burst ends with a splice and a receive that find nothing, because the relay does
    // not yet know how bursts end.
    let in_vain = calls.iter().filter(|call| call.line.contains(" EAGAIN ")).count();
    assert!(in_vain <= BURSTS / 2, "{in_vain} calls found nothing");
}

#[test]
fn a_ping_pong_relay_makes_one_recv_and_one_send_per_message() {
    const TRIPS: usize = 100;
    let Some(calls) = trace("ping-pong", |mut client, mut server| {
        let mut message = [7; 100];
        for _ in 0..TRIPS {
            client.write_all(&message).unwrap();
            server.read_exact(&mut message).unwrap();
            server.write_all(&message).unwrap();
            client.read_exact(&mut message).unwrap();
        }
    }) else {
        return;
    };
    let in_vain: Vec<_> = calls
        .iter()
        .filter(|call| call.line.contains("EAGAIN"))
        .map(|call| &call.line)
        .collect();
    // One failed call per message would make 200. A few are possible, because the kernel may report
    // an edge for bytes that an earlier receive has already read.
    assert!(in_vain.len() <= TRIPS / 10, "{in_vain:?}");
    // There is one receive for each message, and one for each of the two ends of stream.
    let receives = count(&calls, "recvfrom");
    assert_eq!(receives - in_vain.len(), 2 * TRIPS + 2);
    assert_eq!(count(&calls, "sendto"), 2 * TRIPS);
    // The relay checks for urgent marks at most once after each receive. No check finds a mark.
    // There is only one connection, so one call cannot check several sockets.
    let looks = count(&calls, "poll") + count(&calls, "ppoll");
    assert!((1..=2 * TRIPS + in_vain.len()).contains(&looks), "{looks}");
    assert_eq!(count(&calls, "setsockopt"), 0);
    assert_eq!(count(&calls, "splice"), 0);
}

/// The second pipe has room for everything here.
#[test]
fn a_mirror_gets_each_spliced_byte_by_tee_and_no_other_read() {
    const BYTES: usize = 512 << 10;
    let Some(calls) = trace("mirror", |client, server| upload(client, server, BYTES)) else {
        return;
    };
    let (teed, copied) = (moved(&calls, "tee"), moved(&calls, "sendto"));
    assert!(teed > BYTES / 2, "{teed} of {BYTES}");
    assert_eq!((teed + copied, moved(&calls, "splice")), (BYTES, 2 * teed));
    // Only what was copied to the server is written.
    assert_eq!(moved(&calls, "write"), copied);
    assert_eq!(count(&calls, "read"), 0);
}

#[test]
fn a_short_connection_makes_no_pipe() {
    let Some(calls) = trace("short", |mut client, mut server| {
        let mut message = [7; 1000];
        client.write_all(&message).unwrap();
        server.read_exact(&mut message).unwrap();
        server.write_all(&message).unwrap();
        client.read_exact(&mut message).unwrap();
    }) else {
        return;
    };
    assert_eq!(count(&calls, "pipe2"), 0);
    assert_eq!(count(&calls, "splice"), 0);
}

/// Sends `bytes` bytes and the end of the stream.
fn upload(mut client: TcpStream, mut server: TcpStream, bytes: usize) {
    let sending = thread::spawn(move || {
        client.write_all(&vec![7; bytes]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        client
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), bytes);
    drop(sending.join().unwrap());
}

/// One system call of the relay's thread.
struct Call {
    name: String,
    line: String,
}

fn count(calls: &[Call], name: &str) -> usize {
    calls.iter().filter(|call| call.name == name).count()
}

/// Returns the sum of the return values of all calls with this name, without errors.
fn moved(calls: &[Call], name: &str) -> usize {
    calls
        .iter()
        .filter(|call| call.name == name)
        .filter_map(|call| call.line.rsplit_once(" = ")?.1.parse::<usize>().ok())
        .sum()
}

/// Runs `peers` on the two ends of one relay in a process under strace. Returns that relay's calls
/// from its first poll to its end. Returns `None` if strace is missing or is not permitted to
/// trace.
fn trace(role: &str, peers: impl FnOnce(TcpStream, TcpStream)) -> Option<Vec<Call>> {
    if !has_tool("strace", "strace") {
        return None;
    }
    let tried = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output()
        .unwrap();
    if !tried.status.success() {
        println!(
            "skipped: no process may be traced here: {}",
            String::from_utf8_lossy(&tried.stderr).trim_end()
        );
        return None;
    }
    let output = env::temp_dir().join(format!("spliceway-{}-{role}.strace", process::id()));
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut relay = Role::start_traced(ROLES, role, &output);
    relay.say(&upstream.local_addr().unwrap().to_string());
    let client = TcpStream::connect(relay.line().parse::<SocketAddr>().unwrap()).unwrap();
    let (server, _) = upstream.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    assert_eq!(relay.line(), "begin");
    peers(client, server);
    assert_eq!(relay.line(), "end");
    relay.wait();
    Some(calls_between_marks(output))
}

fn calls_between_marks(output: PathBuf) -> Vec<Call> {
    let trace = fs::read_to_string(&output).unwrap();
    fs::remove_file(output).unwrap();
    let begin = trace
        .lines()
        .find(|line| line.contains("said: begin"))
        .expect("the relay said begin");
    let (thread, _) = begin.split_once(' ').unwrap();
    let calls: Vec<_> = trace
        .lines()
        .filter(|line| line.starts_with(thread))
        .skip_while(|line| !line.contains("said: begin"))
        .skip(1)
        // The mark itself may be interrupted.
        .skip_while(|line| line.contains("<... write resumed>"))
        .take_while(|line| !line.contains("said: end"))
        .map(|line| {
            let call = line[thread.len()..].trim_start().trim_start_matches("<... ");
            let name = call.split(['(', ' ']).next().unwrap_or_default().to_owned();
            Call {
                name,
                line: call.to_owned(),
            }
        })
        // The second half of an interrupted line shows its call.
        .filter(|call| !call.line.ends_with("<unfinished ...>"))
        .collect();
    assert!(!calls.is_empty(), "the relay made calls");
    calls
}

/// Plays the role of a process that the test started. Does nothing in the test's own process.
#[test]
fn role_of_a_child_process() {
    let Some(role) = role::own() else { return };
    let upstream: SocketAddr = heard().parse().unwrap();
    if ["bulk", "bursts", "mirror"].contains(&role.as_str()) {
        // The pool's first pipes and its thread do not belong to this relay.
        for class in SizeClass::ALL {
            PipePool::global().acquire(class).unwrap();
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        say(&listener.local_addr().unwrap().to_string());
        let (mut client, _) = listener.accept().await.unwrap();
        let mut upstream = tokio::net::TcpStream::connect(upstream).await.unwrap();
        // Creates everything that is created once per process.
        drop(spliceway::Relay::new(&mut client, &mut upstream));
        let _ = PipePool::global();
        let mirrored = (role == "mirror").then(|| Mirror::new(PipePool::global()).unwrap());
        say("begin");
        if let Some((mirror, _reader, state)) = mirrored {
            let mut relay = spliceway::Relay::new(&mut client, &mut upstream);
            relay.mirror_a_to_b(mirror);
            relay.await.unwrap();
            assert_eq!(state.end(), MirrorEnd::Complete);
        } else {
            spliceway::copy_bidirectional(&mut client, &mut upstream).await.unwrap();
        }
        say("end");
    });
}
