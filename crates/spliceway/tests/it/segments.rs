//! Between network namespaces: segments as Ethernet carries them, with the kernel's offloads or
//! without.

mod bulk; // both ways at once: exact, spliced, through pipes whose size follows the segments
mod chains; // relays in a row, and to and fro between two namespaces
mod ended; // last data, FIN and hang-up in one wake-up; a FIN is passed on as a FIN
mod lossy; // a network that loses and reorders
mod slots; // a pipe whose slots are full before its bytes
mod trips; // no delay of 40 or 200 ms in request and response
mod urgent; // one urgent byte in the middle of segments
mod wires; // the net is what the other tests expect

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use spliceway::PipePool;
use spliceway_net::{Family, Net};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup};

/// A connection: the end that opened it, and the other end.
type Ends = (TcpStream, TcpStream);

/// Returns a connection between neighbours, with `NODELAY`.
fn connected(net: &Net, from: usize, to: usize, family: Family) -> Ends {
    let ends = net.connect(from, to, family).unwrap();
    for end in [&ends.0, &ends.1] {
        end.set_nodelay(true).unwrap();
    }
    awaited(ends)
}

/// Returns the same ends for this runtime.
fn awaited((connecting, accepted): (std::net::TcpStream, std::net::TcpStream)) -> Ends {
    let awaited = |end: std::net::TcpStream| {
        end.set_nonblocking(true).unwrap();
        TcpStream::from_std(end).unwrap()
    };
    (awaited(connecting), awaited(accepted))
}

/// Makes a rig with near on node 0, the relay on node 1, and far on node 2.
fn rig(net: &Net, setup: Setup, family: Family) -> Rig {
    let near = connected(net, 0, 1, family);
    let far = connected(net, 2, 1, family);
    let pool = PipePool::new(setup.limits.clone());
    let (laid, relay) = setup.lay_between(pool, near, far);
    laid.run(relay)
}

/// Makes the same rig, with a second descriptor of the socket that the relay reads near's bytes
/// from. It shows what has come before the relay looks.
fn watched_rig(net: &Net, setup: Setup) -> (Rig, OwnedFd) {
    let near = connected(net, 0, 1, Family::V4);
    let far = connected(net, 2, 1, Family::V4);
    let watched = near.1.as_fd().try_clone_to_owned().unwrap();
    let pool = PipePool::new(setup.limits.clone());
    let (laid, relay) = setup.lay_between(pool, near, far);
    (laid.run(relay), watched)
}

/// Blocks this thread, and with it every task of the runtime, until this many bytes are queued and
/// the kernel reports these events.
fn block_until_queued(socket: &impl AsFd, bytes: u64, events: PollFlags) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut polled = [PollFd::new(socket, events)];
        poll(&mut polled, Some(&Timespec::default())).unwrap();
        let (queued, told) = (ioctl_fionread(socket).unwrap(), polled[0].revents());
        if queued == bytes && told.contains(events) {
            return;
        }
        assert!(
            Instant::now() < until,
            "{queued} of {bytes} bytes queued, {told:?} of {events:?}"
        );
        std::thread::yield_now();
    }
}

/// A stream and its destination.
type Sending<'a, W> = (&'a mut W, &'a mut Pattern);

/// Sends on two streams in turn, `count` times a piece of this size. Pieces that follow each other
/// in a stream do not in memory, as with the frames that a network card receives. So each takes a
/// slot of a pipe.
async fn send_in_turn<A, B>((a, a_sent): Sending<'_, A>, (b, b_sent): Sending<'_, B>, count: usize, piece: usize)
where
    A: AsyncWriteExt + Unpin,
    B: AsyncWriteExt + Unpin,
{
    for _ in 0..count {
        a.write_all(&a_sent.take(piece)).await.unwrap();
        b.write_all(&b_sent.take(piece)).await.unwrap();
    }
}

/// Asserts that no node has sent a reset since the net was made.
fn assert_no_reset(net: &Net) {
    let resets: Vec<u64> = net.nodes().iter().map(|node| node.counter("OutRsts")).collect();
    assert!(
        resets.iter().all(|&count| count == 0),
        "resets sent by each node: {resets:?}"
    );
}
