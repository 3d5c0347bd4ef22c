//! Tests between network namespaces: segments as Ethernet carries them, with and without the
//! kernel's offloads.

// Bulk in both directions: exact, spliced, and through pipes whose size follows the segments.
mod bulk;
// Relays in a row, and relays that alternate between two namespaces.
mod chains;
// Last data, FIN and hang-up in one wake-up. The relay passes a FIN on as a FIN.
mod ended;
// A network that loses and reorders segments.
mod lossy;
// A pipe whose slots fill before its bytes do.
mod slots;
// Requests and responses without a delay of 40 or 200 ms.
mod trips;
// An urgent byte in the middle of segments.
mod urgent;
// The network is as the other tests expect it.
mod wires;

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

/// Returns a connection between neighbouring nodes, with `NODELAY`.
fn connected(net: &Net, from: usize, to: usize, family: Family) -> Ends {
    let ends = net.connect(from, to, family).unwrap();
    for end in [&ends.0, &ends.1] {
        end.set_nodelay(true).unwrap();
    }
    awaited(ends)
}

/// Converts both ends for this runtime.
fn awaited((connecting, accepted): (std::net::TcpStream, std::net::TcpStream)) -> Ends {
    let awaited = |end: std::net::TcpStream| {
        end.set_nonblocking(true).unwrap();
        TcpStream::from_std(end).unwrap()
    };
    (awaited(connecting), awaited(accepted))
}

/// Makes a rig with the near peer on node 0, the relay on node 1, and the far peer on node 2.
fn rig(net: &Net, setup: Setup, family: Family) -> Rig {
    let near = connected(net, 0, 1, family);
    let far = connected(net, 2, 1, family);
    let pool = PipePool::new(setup.limits.clone());
    let (laid, relay) = setup.lay_between(pool, near, far);
    laid.run(relay)
}

/// Makes the same rig, and a second descriptor of the socket from which the relay reads the near
/// peer's bytes. The descriptor shows what has arrived before the relay is polled.
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

/// A stream, and the pattern to send on it.
type Sending<'a, W> = (&'a mut W, &'a mut Pattern);

/// Sends `count` pieces of this size on each of two streams, in turn. Consecutive pieces of a
/// stream are then not adjacent in memory, like the frames that a network card receives. So each
/// piece needs its own slot of a pipe.
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

/// Asserts that no node has sent a reset since the network was made.
fn assert_no_reset(net: &Net) {
    let resets: Vec<u64> = net.nodes().iter().map(|node| node.counter("OutRsts")).collect();
    assert!(
        resets.iter().all(|&count| count == 0),
        "resets sent by each node: {resets:?}"
    );
}
