//! Programs with other libraries of TLS, at the ends of a relay whose TLS goes to the kernel.
//!
//! Where the kernel has no TLS, the same sessions stay in user space. So the same checks apply to
//! both.

mod curl;
mod openssl;
mod others;
mod own;
mod process;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::thread;

use super::kernel::{can_switch, switched, switching};
use crate::harness::{Program, assert_same, pattern, read_exactly};
use process::Peer;

/// The bytes in each direction of a test.
const SIZE: usize = 3 << 20;

/// The bytes that a side sends alone, before both sides send at once. It is then certain that a
/// switch finds its place.
const ALONE: usize = 300_000;

/// The bytes after which TLS goes to the kernel.
const SWITCHES_AFTER: &str = "100kB";

/// The bytes of a direction that continues after the end of the other one.
const LAST: usize = 70_000;

/// The line of OpenSSL about a connection that ended without `close_notify`.
const CUT: &str = "unexpected eof while reading";

/// Starts a forwarder. Its TLS goes to the kernel, if the kernel can take it.
fn relay(target: &str, more: &[&str]) -> Program {
    let in_user_space = || {
        let all = ["forward", "-l", "127.0.0.1:0", "-r", target, "--metrics", "127.0.0.1:0"];
        Program::start(&[&all[..], more].concat())
    };
    switching(target, SWITCHES_AFTER, more).unwrap_or_else(in_user_space)
}

/// Checks the record of a session whose TLS is at these sides: `client`, `target` or `both`.
fn check_record(record: &str, sides: &str, bytes: [usize; 2], more: &[&str]) {
    let record = record.replace('"', "");
    let [up, down] = bytes;
    assert!(
        record.contains(&format!(" bytes_up={up} bytes_down={down} ")),
        "{record}"
    );
    let in_kernel = format!(" kernel_tls={sides} ");
    assert_eq!(record.contains(&in_kernel), can_switch(), "{in_kernel}: {record}");
    for field in more {
        assert!(record.contains(field), "{field}: {record}");
    }
    let may_be_cut = more.iter().any(|field| field.contains("truncated"));
    assert_eq!(record.contains("truncated="), may_be_cut, "{record}");
}

/// Checks how many ends of TLS the kernel has taken over.
fn check_switched(program: &Program, count: u64) {
    assert_eq!(switched(program), if can_switch() { count } else { 0 });
}

/// Returns content for a peer. Its bytes are no ASCII: see [`Peer`].
fn content(seed: u64, length: usize) -> Vec<u8> {
    pattern(seed, length).iter().map(|byte| byte | 0x80).collect()
}

/// An end of a session: a peer, or a plain socket of the test.
trait End: Send {
    fn send(&mut self, bytes: &[u8]);

    fn receive(&mut self, length: usize) -> Vec<u8>;

    /// Gives away the way to send, so that another thread may send.
    fn take_sender(&mut self) -> Box<dyn Write + Send>;

    fn put_sender(&mut self, sender: Box<dyn Write + Send>);
}

impl End for TcpStream {
    fn send(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
    }

    fn receive(&mut self, length: usize) -> Vec<u8> {
        read_exactly(self, length)
    }

    fn take_sender(&mut self) -> Box<dyn Write + Send> {
        Box::new(self.try_clone().unwrap())
    }

    fn put_sender(&mut self, _: Box<dyn Write + Send>) {}
}

/// Sends from one end to the other.
fn pass(from: &mut impl End, to: &mut impl End, bytes: &[u8]) {
    from.send(bytes);
    assert_same(&to.receive(bytes.len()), bytes);
}

/// Passes bytes between two ends: from one alone, from the other alone, and then from both at once.
fn exchange(one: &mut impl End, other: &mut impl End, size: usize) {
    exchange_bytes(one, other, &content(1, size), &content(2, size));
}

/// Passes these bytes as [`exchange`] does.
fn exchange_bytes(one: &mut impl End, other: &mut impl End, of_one: &[u8], of_other: &[u8]) {
    pass(one, other, &of_one[..ALONE]);
    pass(other, one, &of_other[..ALONE]);
    let (mut one_sends, mut other_sends) = (one.take_sender(), other.take_sender());
    thread::scope(|scope| {
        scope.spawn(|| one_sends.write_all(&of_one[ALONE..]).unwrap());
        scope.spawn(|| other_sends.write_all(&of_other[ALONE..]).unwrap());
        scope.spawn(|| assert_same(&other.receive(of_one.len() - ALONE), &of_one[ALONE..]));
        assert_same(&one.receive(of_other.len() - ALONE), &of_other[ALONE..]);
    });
    one.put_sender(one_sends);
    other.put_sender(other_sends);
}

/// Passes bytes between two ends in turns. At no time are more than `part` bytes on their way.
fn exchange_in_turns(one: &mut impl End, other: &mut impl End, size: usize, part: usize) {
    let (of_one, of_other) = (content(1, size), content(2, size));
    for (from_one, from_other) in of_one.chunks(part).zip(of_other.chunks(part)) {
        pass(one, other, from_one);
        pass(other, one, from_other);
    }
}

/// Sends a short message from a peer, and another one back.
fn talk(peer: &mut impl End, plain: &mut impl End, number: u64) {
    pass(peer, plain, &content(number, 900));
    pass(plain, peer, &content(number + 1, 700));
}

fn finish(plain: &TcpStream) {
    plain.shutdown(Shutdown::Write).unwrap();
}
