//! The relay delays no byte on purpose: after each poll, it holds no bytes unless its sink is full.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::task::Poll;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spliceway::{Engine, Relay, RelayOptions};
use tokio::net::UnixStream;

use crate::support::pattern::Pattern;
use crate::support::{MIB, guard, turns};

/// A generator of repeatable numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Returns a size from 1 B to 1 MiB, with small sizes as likely as large ones.
    fn size(&mut self) -> usize {
        let doublings = self.below(21);
        1 + self.below(1 << doublings) as usize
    }
}

/// The relay's two sockets, observed from outside.
struct Observed {
    source: OwnedFd,
    sink: OwnedFd,
}

impl Observed {
    fn queued(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.source).unwrap()
    }

    fn is_sink_full(&self) -> bool {
        let mut asked = [PollFd::new(&self.sink, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec::default())).unwrap() == 0
    }
}

/// On Unix sockets, a byte is in the source's queue as soon as the peer has written it. So the
/// relay holds the written bytes, less the queued and the delivered ones.
#[tokio::test]
async fn every_byte_is_offered_to_the_sink_in_the_poll_that_read_it() {
    for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
        for seed in 1..=12 {
            guard(random_arrivals(engine, seed)).await;
        }
    }
}

async fn random_arrivals(engine: Engine, seed: u64) {
    let ((near, source), (sink, far)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let clone = |socket: &UnixStream| socket.as_fd().try_clone_to_owned().unwrap();
    let observed = Observed {
        source: clone(&source),
        sink: clone(&sink),
    };
    let relay = Relay::with_options(source, sink, RelayOptions::new().engine(engine));
    let stats = relay.stats();
    let mut relay = pin!(relay);
    let (mut random, mut sent, mut wanted) = (Random(seed), Pattern::new(seed), Pattern::new(seed));
    let mut unread = vec![0; MIB as usize];
    for step in 0..300 {
        let bytes = sent.take(random.size());
        let written = near.try_write(&bytes).unwrap_or(0);
        sent.unsend(bytes.len() - written);
        if random.below(3) > 0 {
            let length = random.size();
            if let Ok(read) = far.try_read(&mut unread[..length]) {
                wanted.check(&unread[..read]);
            }
        }
        // Polls until no byte moves any more. Bytes may remain in the source only if the sink is
        // full.
        loop {
            turns(2).await;
            let before = stats.snapshot().a_to_b.bytes;
            poll_once(relay.as_mut()).await;
            let delivered = stats.snapshot().a_to_b.bytes;
            let held = sent.at() - observed.queued() - delivered;
            assert!(
                held == 0 || observed.is_sink_full(),
                "{held} bytes held for a sink with room: {engine:?}, seed {seed}, step {step}"
            );
            if delivered == before {
                break;
            }
        }
        let queued = observed.queued();
        assert!(
            queued == 0 || observed.is_sink_full(),
            "{queued} bytes not read for a sink with room: {engine:?}, seed {seed}, step {step}"
        );
    }
    assert!(stats.snapshot().a_to_b.bytes > MIB, "it moved");
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending(), "no stream has ended");
        Poll::Ready(())
    })
    .await;
}
