//! When the new process begins to accept clients. The test is the old process.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::ask;
use crate::harness::{PATIENCE, accept, connect, echo, let_pass, listen, read_exactly};

/// An old process that hands over a forwarder to this target, and its new process.
struct Old {
    socket: UnixStream,
    new: Child,
}

impl Old {
    /// Hands over the listener, and lets the new process start its services.
    fn serving(listener: &TcpListener, target: SocketAddr) -> Self {
        let (socket, other) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["forward", "-l", "127.0.0.1:0", "-r", &target.to_string()]);
        command.env("SPLICEWAY_HANDOVER", "1").stdin(OwnedFd::from(other));
        let new = command.stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        let mut old = Self { socket, new };
        old.say(r#"{"hello":{"version":1}}"#, &[]);
        let message = r#"{"listener":{"role":"service forward","address":"127.0.0.1:0","group":0}}"#;
        old.say(message, &[listener.as_fd()]);
        old.say(r#"{"prepare":{"last_session":0}}"#, &[]);
        assert_eq!(old.hear(), r#""ready""#);
        old.say(r#""serve""#, &[]);
        assert_eq!(old.hear(), r#""serving""#);
        old
    }

    fn say(&mut self, message: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let length = u32::try_from(message.len()).unwrap().to_le_bytes();
        let frame = [&length[..], &[0; 4], message.as_bytes()].concat();
        let sent = sendmsg(&self.socket, &[IoSlice::new(&frame)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(frame.len()));
    }

    fn hear(&mut self) -> String {
        let mut head = [0; 8];
        self.socket.read_exact(&mut head).unwrap();
        let mut message = vec![0; u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize];
        self.socket.read_exact(&mut message).unwrap();
        String::from_utf8(message).unwrap()
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        let _ = self.new.kill();
        let _ = self.new.wait();
    }
}

#[test]
fn a_new_process_that_dies_before_it_may_accept_has_accepted_no_client() {
    let (listener, address) = listen();
    set_socket_timeout(&listener, Timeout::Recv, Some(PATIENCE)).unwrap();
    let mut old = Old::serving(&listener, echo("127.0.0.1:0"));
    let mut early: Vec<_> = (0..20).map(|_| connect(address)).collect();
    // The new process has a message after them.
    old.say(r#"{"session":{"id":1}}"#, &[]);
    assert!(old.hear().contains("0 of 2 sockets arrived"));
    old.new.kill().unwrap();
    old.new.wait().unwrap();
    for client in &mut early {
        // This fails if the new process has taken a client from the queue.
        let mut accepted = accept(&listener);
        client.write_all(b"bytes").unwrap();
        assert_eq!(read_exactly(&mut accepted, 5), b"bytes");
    }
}

#[test]
fn the_new_process_serves_the_queue_when_the_old_one_stops_accepting() {
    let target = echo("127.0.0.1:0");
    for last in ["accept", "totals of an older process", "death"] {
        let (listener, address) = listen();
        let mut old = Old::serving(&listener, target);
        let mut queued = connect(address);
        match last {
            "accept" => {
                old.say(r#""accept""#, &[]);
                assert_eq!(old.hear(), r#""accepting""#);
            }
            "death" => old.socket.shutdown(Shutdown::Both).unwrap(),
            _ => old.say(r#""totals""#, &[]),
        }
        ask(&mut queued, 1);
        ask(&mut connect(address), 2);
    }
}

#[test]
fn a_new_process_that_is_told_to_stop_lets_its_sessions_finish() {
    let (listener, _) = listen();
    let mut old = Old::serving(&listener, echo("127.0.0.1:0"));
    let (targets, address) = listen();
    let (client_end, client_address) = listen();
    let (upstream, mut target) = (connect(address), accept(&targets));
    let mut client = connect(client_address);
    let near = accept(&client_end);
    let session = r#"{"session":{"id":7,"service":"forward"}}"#;
    old.say(session, &[near.as_fd(), upstream.as_fd()]);
    assert_eq!(old.hear(), r#"{"taken":{"session":7}}"#);
    drop((near, upstream));
    old.say(r#""stop""#, &[]);
    client.write_all(b"request").unwrap();
    assert_eq!(read_exactly(&mut target, 7), b"request");
    target.write_all(b"answer").unwrap();
    assert_eq!(read_exactly(&mut client, 6), b"answer");
    assert!(old.new.try_wait().unwrap().is_none(), "it has a session");
    drop((client, target));
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = old.new.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it does not end");
        let_pass(Duration::from_millis(2));
    };
    assert!(status.success());
}

/// Data that does not fit into a frame comes in parts.
#[test]
fn data_in_several_frames_is_one_message() {
    let (listener, address) = listen();
    let mut old = Old::serving(&listener, echo("127.0.0.1:0"));
    old.say(r#""part""#, &[]);
    old.say(r#""part""#, &[]);
    old.say(r#""accept""#, &[]);
    assert_eq!(old.hear(), r#""accepting""#);
    ask(&mut connect(address), 1);
}
