//! A new process that stops in the middle of a hand-over costs deadlines, and no session.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;

use spliceway::RelayState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::super::LONG_MAX_BYTES;
use super::super::link::{DATA_MAX_BYTES, Link};
use super::super::new_process::{EXIT_GRACE, LEFT_BEHIND};
use super::super::sessions::SUSPEND;
use super::*;
use crate::access::gate::Gate;
use crate::kit::health::Health;
use crate::net::stream::Stream;
use crate::run::drain::Drain;
use crate::run::instance::Instance;
use crate::session::{self, Facts, Process, Record, Session, Suspended};

/// An old process with one session in relay, and a new process that neither reads nor answers.
struct World {
    overview: Overview,
    handover: Handover,
    /// The socket to the new process.
    socket: OwnedFd,
    client: UnixStream,
    target: UnixStream,
    /// The socket of the new process, which stays open when that process is dead.
    _other: StdUnixStream,
    _instance: Instance,
    _drain: Drain,
}

impl World {
    async fn new() -> Self {
        let (alive, drain) = Drain::new();
        let process = Process::new(Health::new(), Gate::new(false), 1000);
        // Port because no client comes that would be relayed there.
        let settings = crate::cli::typed("spliceway forward -l 127.0.0.1:0 -r 127.0.0.1:9 --idle-timeout 0");
        let mut instance = Instance::new(Arc::clone(&process), alive.clone());
        let plan = instance.plan(settings.unwrap()).await.unwrap();
        instance.commit(plan);
        let overview = Overview::new(process);
        instance.show(&overview);

        let service = Arc::clone(&overview.services()[0].service);
        let (client, near) = UnixStream::pair().unwrap();
        let (far, target) = UnixStream::pair().unwrap();
        let session = Session::new(1, Arc::clone(&service.name), Instant::now(), Facts::default());
        let rates = service.rates.of_session(None);
        let suspended = Suspended {
            client: Stream::Unix(near),
            upstream: Stream::Unix(far),
            state: RelayState::default(),
            rates,
        };
        let record = Record::take_over(service, session, overview.process.admission.readmit());
        session::resume(record, suspended, alive);
        let (here, other) = StdUnixStream::pair().unwrap();
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let mut world = Self {
            overview,
            socket: here.as_fd().try_clone_to_owned().unwrap(),
            handover: Handover::new(new_process(child, here)),
            client,
            target,
            _other: other,
            _instance: instance,
            _drain: drain,
        };
        world.exchange().await;
        world
    }

    /// Sends bytes through the session, in both directions.
    async fn exchange(&mut self) {
        let (client, target) = (&mut self.client, &mut self.target);
        for is_up in [true, false] {
            let (from, to) = if is_up {
                (&mut *client, &mut *target)
            } else {
                (&mut *target, &mut *client)
            };
            from.write_all(b"bytes").await.unwrap();
            let mut bytes = [0; 5];
            to.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"bytes");
        }
    }

    /// Fills the socket of the new process.
    fn fill(&mut self) {
        let mut socket = StdUnixStream::from(self.socket.try_clone().unwrap());
        while socket.write(&[0; 4096]).is_ok() {}
    }

    /// Asserts that the new process has been reaped within this time, and that the session
    /// continues here.
    async fn has_survived(&mut self, started: Instant, most: Duration) {
        assert!(started.elapsed() <= most, "{:?}", started.elapsed());
        assert!(self.handover.new.is_reaped(), "it must not answer later");
        self.exchange().await;
    }
}

fn new_process(child: Child, socket: StdUnixStream) -> NewProcess {
    NewProcess::new(child, Link::new(socket).unwrap(), Arc::new(GiveUp::new()))
}

/// The clock is paused, so a deadline passes as soon as everything waits.
#[tokio::test(start_paused = true)]
async fn a_new_process_that_stops_costs_a_deadline_and_no_session() {
    for is_full in [false, true] {
        let mut world = World::new().await;
        if is_full {
            world.fill();
        }
        let begun = Instant::now();
        let started = world.handover.start_services(&world.overview).await;
        assert_eq!(started, Err(Stopped::Ended));
        let expected = "the new process does not serve: no answer within 10 s, so this process has ended it";
        assert_eq!(world.handover.failure(), expected);
        world.has_survived(begun, ANSWER + EXIT_GRACE).await;

        let mut world = World::new().await;
        if is_full {
            world.fill();
        }
        let started = Instant::now();
        let sent = world.handover.send_sessions(&world.overview.process.sessions).await;
        assert_eq!(sent, Err(Stopped::Ended));
        assert_eq!(world.handover.tally.taken(), 0);
        world
            .has_survived(started, SUSPEND + ANSWER + EXIT_GRACE + LEFT_BEHIND)
            .await;

        let mut world = World::new().await;
        if is_full {
            world.fill();
        }
        let started = Instant::now();
        assert_eq!(world.handover.accept(&world.overview).await, Err(Stopped::Ended));
        world.has_survived(started, ANSWER + EXIT_GRACE + LEFT_BEHIND).await;
    }
}

/// The record of a session stays here until the answer, although its task is cut meanwhile.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_cut_while_it_is_offered_ends_in_one_process() {
    for is_taken in [true, false] {
        let world = World::new().await;
        let process = &world.overview.process;
        let session = process.sessions.find(1).await.unwrap();
        let offer = session.request_handover().unwrap().await.unwrap();
        assert!(session.close());
        // Sleeps because a task that does not end is cut after 4 s. The clock is paused.
        sleep(Duration::from_secs(5)).await;
        assert_eq!(process.sessions.len(), 1, "nobody has answered");
        if is_taken {
            offer.taken().await;
        } else {
            drop(offer);
        }
        while process.sessions.len() > 0 {
            tokio::task::yield_now().await;
        }
        let has_end = process.metrics.totals().await.unwrap().contains("closed_by_admin");
        assert_eq!(has_end, !is_taken);
    }
}

/// More data than fits into a frame arrives in parts, and too much data is left out.
#[tokio::test]
async fn data_of_any_length_never_fails_a_hand_over() {
    use crate::run::handover::link::Frame;
    let (here, there) = StdUnixStream::pair().unwrap();
    let mut new = Link::new(there).unwrap();
    let mut old = new_process(Command::new("true").spawn().unwrap(), here);
    let data: Vec<u8> = (0..2 * DATA_MAX_BYTES + 5).map(|index| (index % 251) as u8).collect();
    let sends = async {
        for length in [0, DATA_MAX_BYTES, DATA_MAX_BYTES + 1, data.len()] {
            old.send_long(&ToNew::Totals, &data[..length]).await.unwrap();
        }
        let too_long = vec![0; LONG_MAX_BYTES + 1];
        old.send_long(&ToNew::Totals, &too_long).await.unwrap();
    };
    let receives = async {
        for (length, frames) in [
            (0, 1),
            (DATA_MAX_BYTES, 1),
            (DATA_MAX_BYTES + 1, 2),
            (data.len(), 3),
            (0, 1),
        ] {
            let mut all = Vec::new();
            for index in 1..=frames {
                let Frame {
                    message, data: part, ..
                } = new.receive::<ToNew>().await.unwrap().unwrap();
                assert_eq!(matches!(message, ToNew::Totals), index == frames, "{message:?}");
                all.extend(part);
            }
            assert!(all == data[..length]);
        }
    };
    tokio::join!(sends, receives);
}
