//! A delay line: a link with a delay, a rate, a queue and a loss rate, between TUN devices in two
//! namespaces.
//!
//! ```text
//!   node ── TUN ──▶ read ─▶ queue at the rate ─▶ wait for the delay ─▶ write ──▶ TUN ── node
//! ```
//!
//! One thread carries both directions, on the cores of the thread that made the link. A packet that
//! TCP sends uncut (GSO) stays uncut. It arrives when its last segment would arrive, and can lose
//! single segments.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;

use crate::packet::{self, Packet};
use crate::tun::HEADER;

/// The properties of a link, the same for each of its two directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The time that a packet needs from one end to the other.
    pub delay: Duration,
    /// The rate in bits per second of IP packets. `None` means the highest rate that the machine
    /// can carry.
    pub rate: Option<NonZeroU64>,
    /// The bytes that may wait in the queue. The link drops a packet that does not fit.
    pub queue: usize,
    /// The fraction of segments that the link loses: 0.001 is one in a thousand. Each run loses the
    /// same segments.
    pub loss: f64,
}

/// Counts of the segments on a link, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Segments that arrived.
    pub delivered: u64,
    /// Segments that did not fit in the queue.
    pub dropped: u64,
    /// Segments lost on the way.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    dropped: AtomicU64,
    lost: AtomicU64,
}

/// A running link. Dropping it stops the link.
#[derive(Debug)]
pub(crate) struct Running {
    counts: Arc<Counts>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(line: Line, ends: [File; 2]) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let counts = Arc::<Counts>::default();
        let counting = Arc::clone(&counts);
        let thread = thread::Builder::new().name("delay-line".into()).spawn(move || {
            // The default slack would add up to 50 µs to each delay.
            set_current_timer_slack(Some(NonZeroU64::MIN)).expect("a thread may set its own");
            Directions::new(line, ends, counting).run(&stopped);
        })?;
        Ok(Self {
            counts,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn carried(&self) -> Carried {
        let Counts {
            delivered,
            dropped,
            lost,
        } = &*self.counts;
        let [delivered, dropped, lost] = [delivered, dropped, lost].map(|count| count.load(Ordering::Relaxed));
        Carried {
            delivered,
            dropped,
            lost,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has printed its own message, and shows as packets that do not
            // arrive.
            let _ = thread.join();
        }
    }
}

struct Directions {
    ends: [File; 2],
    /// Packets on the way to the other end, indexed by the end that sent them.
    on_way: [Way; 2],
    line: Line,
    counts: Arc<Counts>,
    random: u64,
}

#[derive(Default)]
struct Way {
    /// Packets in order of arrival time, because all of them wait equally long.
    packets: VecDeque<(Instant, Packet)>,
    /// The time at which the last packet leaves the queue.
    sent: Option<Instant>,
}

/// The most packets to read from one end before reading from the other.
const BURST: usize = 16;
/// A packet is at most 64 KiB long.
const LARGEST: usize = HEADER + (64 << 10);

impl Directions {
    fn new(line: Line, ends: [File; 2], counts: Arc<Counts>) -> Self {
        Self {
            ends,
            on_way: Default::default(),
            line,
            counts,
            random: 0x2545_f491_4f6c_dd1d,
        }
    }

    fn run(&mut self, stopped: &UnixStream) {
        let mut room = vec![0; LARGEST];
        loop {
            let next = self.on_way.iter().filter_map(|way| Some(way.packets.front()?.0)).min();
            let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
            let wait = wait.map(|wait| Timespec::try_from(wait).expect("seconds at most"));
            let mut polled = [
                PollFd::new(&self.ends[0], PollFlags::IN),
                PollFd::new(&self.ends[1], PollFlags::IN),
                PollFd::new(stopped, PollFlags::IN),
            ];
            if poll(&mut polled, wait.as_ref()).is_err() {
                continue; // Interrupted.
            }
            let ready = polled.map(|one| !one.revents().is_empty());
            if ready[2] {
                return;
            }
            for (end, _) in ready[..2].iter().enumerate().filter(|(_, is_ready)| **is_ready) {
                self.read(end, &mut room);
            }
            self.deliver(0);
            self.deliver(1);
        }
    }

    fn read(&mut self, end: usize, room: &mut [u8]) {
        for _ in 0..BURST {
            // An error means that the device has no more packets, or that it is permanently down.
            let Ok(bytes) = (&self.ends[end]).read(room) else {
                return;
            };
            if bytes > HEADER {
                self.send(end, room[..bytes].to_vec());
            }
        }
    }

    fn send(&mut self, end: usize, packet: Packet) {
        let now = Instant::now();
        let (segments, bytes) = packet::on_wire(&packet);
        let way = &mut self.on_way[end];
        let free = way.sent.map_or(now, |sent| sent.max(now));
        let mut leaves = now;
        if let Some(rate) = self.line.rate {
            let nanos = |bytes: usize| Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / rate);
            // Counts the bytes that already wait, and this packet. An empty queue accepts any
            // packet.
            if free > now && free - now + nanos(bytes) > nanos(self.line.queue) {
                self.counts.dropped.fetch_add(segments as u64, Ordering::Relaxed);
                return;
            }
            leaves = free + nanos(bytes);
        }
        way.sent = Some(leaves);
        let loss = self.line.loss;
        let left = match loss > 0.0 {
            false => vec![packet],
            true => packet::lose(packet, || random(&mut self.random) < loss),
        };
        let arriving: usize = left.iter().map(|packet| packet::on_wire(packet).0).sum();
        self.counts
            .lost
            .fetch_add((segments - arriving) as u64, Ordering::Relaxed);
        let arrives = leaves + self.line.delay;
        way.packets.extend(left.into_iter().map(|packet| (arrives, packet)));
    }

    fn deliver(&mut self, end: usize) {
        let now = Instant::now();
        while let Some((at, packet)) = self.on_way[end].packets.front() {
            if *at > now {
                return;
            }
            let segments = packet::on_wire(packet).0 as u64;
            // A device that is down refuses the packet. In that case nothing waits for the packet.
            if (&self.ends[1 - end]).write(packet).is_ok() {
                self.counts.delivered.fetch_add(segments, Ordering::Relaxed);
            }
            self.on_way[end].packets.pop_front();
        }
    }
}

/// Returns a number that is at least 0 and below 1, with xorshift64* (Vigna 2016).
fn random(state: &mut u64) -> f64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpStream};

    use super::*;
    use crate::{Family, Link, Net};

    const NEAR: Line = Line {
        delay: Duration::from_millis(2),
        rate: None,
        queue: usize::MAX,
        loss: 0.0,
    };

    /// Returns a connection over one such link, or `None` if the machine does not permit
    /// namespaces.
    fn connect(line: Line) -> Option<(Net, TcpStream, TcpStream)> {
        let net = Net::chain_of(&[Link::Far(line)])?;
        let (client, server) = net.connect(0, 1, Family::V4).expect("neighbours");
        Some((net, client, server))
    }

    /// Sends this many bytes, and checks that the same bytes arrive.
    fn transfer(client: &mut TcpStream, server: &mut TcpStream, bytes: usize) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                client.write_all(&sent).expect("it is read");
                client.shutdown(Shutdown::Write).expect("it is connected");
            });
            let mut received = Vec::new();
            server.read_to_end(&mut received).expect("it is sent");
            assert!(received == sent, "{} bytes of {bytes}", received.len());
        });
    }

    #[test]
    fn a_round_trip_takes_no_less_than_two_delays() {
        let Some((net, mut client, mut server)) = connect(NEAR) else {
            return;
        };
        let begun = Instant::now();
        client.write_all(b"a").unwrap();
        server.read_exact(&mut [0]).unwrap();
        server.write_all(b"b").unwrap();
        client.read_exact(&mut [0]).unwrap();
        assert!(begun.elapsed() >= 2 * NEAR.delay);
        let carried = net.carried(0);
        // A handshake, and one segment in each direction.
        assert!(carried.delivered >= 5, "{carried:?}");
        assert_eq!((carried.dropped, carried.lost), (0, 0));
    }

    #[test]
    fn lost_segments_are_sent_again_and_counted() {
        let lossy = Line { loss: 0.02, ..NEAR };
        let Some((net, mut client, mut server)) = connect(lossy) else {
            return;
        };
        transfer(&mut client, &mut server, 2 << 20);
        let carried = net.carried(0);
        // There are 1,449 full segments, and retransmissions. At 2 % loss, some segments are
        // certain to be lost.
        assert!(carried.delivered >= 1449 && carried.lost > 0, "{carried:?}");
        assert_eq!(carried.dropped, 0);
        assert!(net.node(0).counter("RetransSegs") > 0);
    }

    #[test]
    fn a_rate_is_not_exceeded_and_a_full_queue_drops() {
        let narrow = Line {
            rate: NonZeroU64::new(50_000_000),
            queue: 64 << 10,
            ..NEAR
        };
        let Some((net, mut client, mut server)) = connect(narrow) else {
            return;
        };
        let begun = Instant::now();
        transfer(&mut client, &mut server, 1 << 20);
        assert!(begun.elapsed() >= Duration::from_secs_f64(f64::from(8 << 20) / 50e6));
        assert!(net.carried(0).dropped > 0, "slow start overruns 64 KiB");
    }
}
