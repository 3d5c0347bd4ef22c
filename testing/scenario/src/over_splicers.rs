//! Each relay of a scenario as two [`Splicer`]s, over an edge-triggered epoll: the core without a
//! runtime.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Next, PipePool, ReadOutcome, Splicer, UrgentMarks, WriteOutcome};

use crate::plan::{Driving, Plan, RelayPlan};
use crate::sockets::{self, Stage};
use crate::world::{self, End, Relays, Standing};

thread_local! {
    static SCRATCH_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH]);
}

/// Runs the scenario with splicers.
///
/// # Panics
/// Panics if a property does not hold.
pub fn over_splicers(plan: &Plan) {
    world::run(&Stage::enter(), plan, |plan, pool, ends| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let mut relays = Vec::new();
        for (number, (relay, ends)) in plan.relays.iter().zip(ends).enumerate() {
            for (side, end) in ends.iter().enumerate() {
                let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                let place = epoll::EventData::new_u64(2 * number as u64 + side as u64);
                epoll::add(&epoll, end, place, events).expect("registered");
            }
            relays.push(Running::new(relay, pool, ends));
        }
        OverSplicers {
            epoll,
            relays,
            marks: UrgentMarks::new(),
        }
    });
}

struct OverSplicers {
    epoll: OwnedFd,
    relays: Vec<Running>,
    marks: UrgentMarks,
}

/// One relay.
struct Running {
    /// `None` once the relay has ended and closed its sockets.
    at_work: Option<AtWork>,
    woken: bool,
    driving: Driving,
    standing: Standing,
}

struct AtWork {
    ends: [Socket; 2],
    directions: [Direction; 2],
}

/// A relay's socket and its known readiness, by tokio's rules.
struct Socket {
    socket: OwnedFd,
    readable: bool,
    writable: bool,
    /// The peer has ended or is gone: the socket stays readable, or writable, permanently.
    read_closed: bool,
    write_closed: bool,
}

struct Direction {
    splicer: Splicer,
    counts: Counts,
    done: bool,
}

/// The outcome of running a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The direction waits for readiness, or is done.
    ToRest,
    /// The direction yielded, or was interrupted, and must run again.
    ToAPause,
}

impl Relays for OverSplicers {
    fn turn(&mut self) {
        self.marks.check();
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())).expect("epoll");
        for event in events {
            let place = event.data.u64() as usize;
            self.relays[place / 2].hear(place % 2, event.flags);
        }
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            for relay in &mut self.relays {
                relay.turn(scratch, &mut self.marks);
            }
        });
    }

    fn standing(&self, number: usize) -> &Standing {
        &self.relays[number].standing
    }
}

impl Running {
    fn new(plan: &RelayPlan, pool: &PipePool, ends: [OwnedFd; 2]) -> Self {
        let direction = || Direction {
            splicer: Splicer::new(plan.engine, plan.pipe_size, pool.clone()),
            counts: Counts::default(),
            done: false,
        };
        Self {
            at_work: Some(AtWork {
                ends: ends.map(Socket::new),
                directions: [direction(), direction()],
            }),
            woken: true,
            driving: plan.driving,
            standing: Standing::default(),
        }
    }

    fn hear(&mut self, side: usize, flags: EventFlags) {
        if let Some(at_work) = &mut self.at_work {
            at_work.ends[side].hear(flags);
            self.woken = true;
        }
    }

    fn turn(&mut self, scratch: &mut [u8], marks: &mut UrgentMarks) {
        let Some(at_work) = &mut self.at_work else { return };
        let woken = std::mem::take(&mut self.woken);
        if !woken && !self.driving.spurious {
            return;
        }
        self.standing.polls += u64::from(woken);
        let ran = at_work.run(self.driving.calls_per_turn, scratch, marks);
        let counts = at_work
            .directions
            .each_ref()
            .map(|direction| direction.counts.snapshot());
        self.standing.moved = counts.map(|counts| counts.bytes);
        self.standing.eof = counts.map(|counts| counts.eof);
        self.standing.end = match ran {
            Ok(_) if at_work.directions.iter().all(|direction| direction.done) => Some(End::Well),
            Ok(came) => {
                self.woken = came == Came::ToAPause;
                self.driving.is_cancelled().then_some(End::Dropped)
            }
            Err(error) => Some(End::Broken(error)),
        };
        if self.standing.end.is_some() {
            self.at_work = None;
        }
    }
}

impl AtWork {
    fn run(&mut self, calls: Option<u8>, scratch: &mut [u8], marks: &mut UrgentMarks) -> io::Result<Came> {
        let Self {
            ends: [near, far],
            directions: [forth, back],
        } = self;
        let came = [
            forth.run(near, far, calls, scratch, marks)?,
            back.run(far, near, calls, scratch, marks)?,
        ];
        Ok(if came.contains(&Came::ToAPause) {
            Came::ToAPause
        } else {
            Came::ToRest
        })
    }
}

impl Direction {
    fn run(
        &mut self,
        source: &mut Socket,
        sink: &mut Socket,
        calls: Option<u8>,
        scratch: &mut [u8],
        marks: &mut UrgentMarks,
    ) -> io::Result<Came> {
        let mut left = calls.unwrap_or(u8::MAX);
        let came = loop {
            if left == 0 {
                break Came::ToAPause;
            }
            left -= u8::from(calls.is_some());
            match self.splicer.next() {
                Next::Read(_) if !(source.readable || source.read_closed) => break Came::ToRest,
                Next::Read(read) => match read.perform(usize::MAX, &source.socket, scratch, &self.counts)? {
                    ReadOutcome::Open => {}
                    ReadOutcome::Drained | ReadOutcome::WouldBlock => source.readable = false,
                    ReadOutcome::Short => {
                        source.readable = false;
                        marks.add(&source.socket);
                    }
                    ReadOutcome::Record { .. } => unreachable!("no end has TLS"),
                },
                Next::Write(_) if !(sink.writable || sink.write_closed) => break Came::ToRest,
                Next::Write(write) => match write.perform(&sink.socket, scratch, &self.counts)? {
                    WriteOutcome::Open => {}
                    WriteOutcome::WouldBlock => sink.writable = false,
                },
                Next::SpliceThrough(_) => unreachable!("there is a pipe between two sockets"),
                Next::Yield => break Came::ToAPause,
                Next::Shutdown => {
                    if !self.done {
                        shut_down(sink)?;
                        self.counts.set_eof();
                        self.done = true;
                    }
                    break Came::ToRest;
                }
            }
        };
        self.splicer.park(scratch);
        Ok(came)
    }
}

/// Shuts the sink down. A sink whose connection is over does not need a shutdown.
fn shut_down(sink: &Socket) -> io::Result<()> {
    match sockets::finish(&sink.socket) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        told => told,
    }
}

impl Socket {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            readable: false,
            writable: false,
            read_closed: false,
            write_closed: false,
        }
    }

    fn hear(&mut self, flags: EventFlags) {
        let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        self.readable |= flags.intersects(EventFlags::IN | EventFlags::PRI);
        self.writable |= flags.intersects(EventFlags::OUT);
        self.read_closed |= gone || flags.intersects(EventFlags::RDHUP);
        self.write_closed |= gone;
    }
}
