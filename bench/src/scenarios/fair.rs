//! Bulk data, on one flow or some, and many connections that say little: what the one leaves to the others.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;

use crate::arms::Arm;
use crate::load::{Answerer, Asker, Load, Receiver, Sender, Source, Trips};
use crate::machine;
use crate::random::Random;
use crate::relay::Relay;
use crate::scenario::{Figure, Scenario};
use crate::scenarios::bulk::{GIB, LOOPBACK};

/// Bytes of what the many say, and of the answers.
const SIZE: usize = 64;
/// What the times of trips are made from: the same for all relays.
const SEED: u64 = 1;
/// Until bulk is as fast as it gets.
const WARMING: Duration = Duration::from_millis(100);
/// Bytes of a call of a bulk flow's: its ends share a core with the others' and must not keep it from them, and many kernels do
/// not interrupt a call.
const CHUNK: usize = 64 << 10;

pub(crate) struct Fair {
    /// With bulk data.
    pub(crate) flows: usize,
    /// Bytes of it per second, all flows together; `None` for as many as go through. What is asked of a relay is then the same for all, and
    /// so is what is asked of the machine beside it.
    pub(crate) pace: Option<u64>,
    /// Beside these.
    pub(crate) connections: usize,
    /// Of all of them, per second.
    pub(crate) trips_per_second: u64,
    pub(crate) seconds: f64,
}

impl Scenario for Fair {
    fn id(&self) -> String {
        let kind = if self.pace.is_none() { "fair" } else { "paced" };
        format!("{kind}-{}", self.connections)
    }

    fn title(&self) -> String {
        let pace = |pace| format!(", {:.2} GiB/s,", pace as f64 / GIB);
        format!(
            "bulk on {}{} beside {} trips/s of {SIZE} bytes on {} connections",
            if self.flows == 1 {
                "one flow".into()
            } else {
                format!("{} flows", self.flows)
            },
            self.pace.map_or_else(String::new, pace),
            self.trips_per_second,
            self.connections
        )
    }

    fn figures(&self) -> &'static [Figure] {
        const {
            &[
                Figure::lower("p50", "µs", 0),
                Figure::lower("p95", "µs", 0),
                Figure::lower("p99", "µs", 0),
                Figure::lower("p99.9", "µs", 0),
                Figure::higher("bulk", "GiB/s", 2),
                Figure::lower("CPU", "s/s", 3),
            ]
        }
    }

    fn measure(&self, arm: Arm) -> io::Result<Vec<f64>> {
        let mut load = Load::new(LOOPBACK, || Box::new(Answerer::new(SIZE)))?;
        let relay = Relay::start(arm, load.address()?)?;
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..self.flows {
            senders.push(TcpStream::connect(relay.address)?);
            receivers.push(load.accept_one()?);
        }
        let chatty = load.connect_in_turn(self.connections, relay.address, || {
            Box::new(Asker::new(SIZE, Trips::WhenTold(VecDeque::new())))
        })?;
        let bulk = Bulk::default();
        thread::scope(|scope| {
            let sending = scope.spawn(|| match self.pace {
                None => bulk.send(senders),
                Some(pace) => bulk.send_paced(&senders, pace),
            });
            let receiving = scope.spawn(|| bulk.receive(receivers));
            let measured = self.converse(&mut load, &chatty, &relay, &bulk);
            bulk.enough.store(true, Ordering::Relaxed);
            let join = |end: ScopedJoinHandle<'_, io::Result<()>>| end.join().expect("bulk does not panic");
            join(sending).and(join(receiving)).and(measured)
        })
    }
}

impl Fair {
    /// The trips, and what bulk did meanwhile.
    fn converse(&self, load: &mut Load, chatty: &[usize], relay: &Relay, bulk: &Bulk) -> io::Result<Vec<f64>> {
        // The kernel's default would add up to 50 µs to every trip.
        set_current_timer_slack(NonZeroU64::new(1))?;
        load.run_for(WARMING)?;
        load.tally.reset();
        let (bytes_before, cpu_before) = (bulk.bytes(), relay.cpu_time()?);
        let started = Instant::now();
        let schedule = self.schedule();
        for (after, connection) in &schedule {
            load.at(started + *after, chatty[*connection]);
        }
        load.run_until(|tally| tally.done == schedule.len() as u64)?;
        let elapsed = started.elapsed().as_secs_f64();
        let cpu = (relay.cpu_time()? - cpu_before).as_secs_f64();
        let gib = (bulk.bytes() - bytes_before) as f64 / GIB;
        let percentile = |percentile| load.tally.percentile(percentile);
        Ok(vec![
            percentile(50.0),
            percentile(95.0),
            percentile(99.0),
            percentile(99.9),
            gib / elapsed,
            cpu / elapsed,
        ])
    }

    /// When which connection has a trip to make, in order of time: both are even, so a connection may be due while it is under way.
    fn schedule(&self) -> Vec<(Duration, usize)> {
        let mut random = Random::new(SEED);
        let trips = (self.trips_per_second as f64 * self.seconds) as usize;
        let mut schedule: Vec<(Duration, usize)> = (0..trips)
            .map(|_| {
                let after = Duration::from_secs_f64(self.seconds * random.fraction());
                (after, random.between(0, self.connections as u64 - 1) as usize)
            })
            .collect();
        schedule.sort_unstable();
        schedule
    }
}

/// The flows of bulk data, their ends of each kind on a thread of their own.
#[derive(Default)]
struct Bulk {
    received: AtomicU64,
    enough: AtomicBool,
}

impl Bulk {
    fn bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn send(&self, sockets: Vec<TcpStream>) -> io::Result<()> {
        let mut load = Self::end()?;
        for socket in sockets {
            load.adopt(socket, Box::new(Sender::new(Source::in_calls_of(CHUNK)?, u64::MAX)))?;
        }
        // Its end is the streams' end.
        load.run_until(|_| self.enough.load(Ordering::Relaxed))
    }

    fn send_paced(&self, sockets: &[TcpStream], bytes_per_second: u64) -> io::Result<()> {
        Self::make_way()?;
        set_current_timer_slack(NonZeroU64::new(1))?;
        self.pace(sockets, bytes_per_second)
    }

    /// One call on each socket in turn, each when it is due. Those that come late, as a relay takes no more, are made up for.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, which has a time to wait for"
    )]
    fn pace(&self, sockets: &[TcpStream], bytes_per_second: u64) -> io::Result<()> {
        let (source, started) = (Source::in_calls_of(CHUNK)?, Instant::now());
        let mut sent = 0;
        for socket in sockets.iter().cycle() {
            if self.enough.load(Ordering::Relaxed) {
                break;
            }
            let due = started + Duration::from_secs_f64(sent as f64 / bytes_per_second as f64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            sent += source.send(socket, u64::MAX)?.unwrap_or(0);
        }
        sockets.iter().try_for_each(|socket| socket.shutdown(Shutdown::Write))
    }

    fn receive(&self, sockets: Vec<TcpStream>) -> io::Result<()> {
        let mut load = Self::end()?;
        let flows = sockets.len() as u64;
        for socket in sockets {
            load.adopt(socket, Box::new(Receiver::in_calls_of(CHUNK)))?;
        }
        load.run_until(|tally| {
            self.received.store(tally.received, Ordering::Relaxed);
            tally.ended == flows
        })
    }

    /// The calling thread has the load's core, where the others do not want it.
    fn make_way() -> io::Result<()> {
        machine::pin_to(machine::LOAD_CORE)?;
        machine::give_way_to_all()
    }

    /// One of the calling thread, to which nobody connects.
    fn end() -> io::Result<Load> {
        Self::make_way()?;
        Load::new(LOOPBACK, || unreachable!("nobody knows the address"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn paced_bulk_is_no_faster_than_its_pace_and_ends() {
        const MIB: u64 = 1 << 20;
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let sockets = [TcpStream::connect(listener.local_addr().unwrap()).unwrap()];
        let mut received = listener.accept().unwrap().0;
        let bulk = Bulk::default();
        thread::scope(|scope| {
            let started = Instant::now();
            let sending = scope.spawn(|| bulk.pace(&sockets, 64 * MIB));
            received.read_exact(&mut vec![0; MIB as usize]).unwrap();
            // All but the last call's were due by now.
            let due = Duration::from_secs_f64((MIB - CHUNK as u64) as f64 / (64 * MIB) as f64);
            assert!(started.elapsed() >= due);
            bulk.enough.store(true, Ordering::Relaxed);
            // More than sockets hold.
            let most = 64 * MIB;
            let rest = io::copy(&mut received.take(most), &mut io::sink()).unwrap();
            assert!(rest < most, "it goes on");
            sending.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_schedule_has_all_trips_in_order_within_its_time_on_all_connections() {
        let fair = Fair {
            flows: 1,
            pace: None,
            connections: 10,
            trips_per_second: 500,
            seconds: 2.0,
        };
        let schedule = fair.schedule();
        assert_eq!(schedule.len(), 1000);
        assert!(schedule.is_sorted());
        assert!(schedule.iter().all(|(after, _)| *after < Duration::from_secs(2)));
        for connection in 0..10 {
            let trips = schedule.iter().filter(|(_, of)| *of == connection).count();
            assert!((60..=140).contains(&trips), "{trips} on connection {connection}");
        }
        let early = schedule.iter().filter(|(after, _)| *after < Duration::from_secs(1));
        assert!((450..=550).contains(&early.count()));
        assert_eq!(schedule, fair.schedule(), "the same for every relay");
    }
}
