//! One scenario from its first connection to its last. Peers and relays take turns, and after each
//! turn the properties are checked.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spliceway_core::{Engine, PipePool};

use crate::audit;
use crate::peer::{Got, Left, Peer, Release, Turn};
use crate::plan::Plan;
use crate::sockets::{self, Stage};
use crate::stream::Stream;

/// After this many passes in which nothing moves, nothing is considered to be in flight. (Loopback
/// usually delivers within the send call.)
const QUIET_TURNS: u32 = 3;

/// The most consecutive polls of a relay during which nothing in the world moves. Some such polls
/// have a reason: a full pipe, a readiness probe of the source, or a late edge. Each reason can
/// occur in both halves of both directions.
const IDLE_POLLS: u64 = 64;

/// The number of times to give the kernel a millisecond if more must still arrive. Its own timers
/// (delayed acknowledgements, probes of a closed window) need up to one or two seconds.
const PATIENCE: u32 = 5000;
/// The number of times to repeat that wait while TCP reports that it waits to send again. On a
/// loaded machine, loopback drops segments, and TCP doubles its wait each time.
const PATIENCE_WITH_TCP: u32 = 10;

/// The relays of a scenario, on any runtime.
pub(crate) trait Relays {
    /// Lets the kernel report events, and lets every relay that was woken run once.
    fn turn(&mut self);

    /// Returns the state of the relay with this number.
    fn standing(&self, number: usize) -> &Standing;
}

/// The state of a relay.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The number of polls so far.
    pub(crate) polls: u64,
    /// Bytes delivered, from the near peer to the far peer and back.
    pub(crate) moved: [u64; 2],
    /// EOFs passed on, in the same order as `moved`.
    pub(crate) eof: [bool; 2],
    /// How the relay ended, if it has ended. It has then closed its sockets.
    pub(crate) end: Option<End>,
}

/// How a relay ended.
#[derive(Debug)]
pub(crate) enum End {
    Well,
    Broken(io::Error),
    Dropped,
}

/// A relay's peers, their streams (the near peer's first), and the relay's state at the last check.
#[derive(Debug)]
struct Line {
    engine: Engine,
    peers: [Peer; 2],
    streams: [Stream; 2],
    polls: u64,
    moved: [u64; 2],
    ended: bool,
    /// The number of polls since anything in the world last moved, and whether the last check saw a
    /// poll.
    idle_polls: u64,
    polled: bool,
}

/// The outcome of one pass over all peers and relays.
#[derive(Clone, Copy, Default)]
struct Activity {
    moved: bool,
    waiting: bool,
}

/// Runs `plan`. `start` gets each relay's two sockets, the near one first.
pub(crate) fn run<R: Relays>(stage: &Stage, plan: &Plan, start: impl FnOnce(&Plan, &PipePool, Vec<[OwnedFd; 2]>) -> R) {
    let pool = PipePool::new(plan.pool.limits());
    let (mut lines, mut ends) = (Vec::new(), Vec::new());
    for (number, relay) in plan.relays.iter().enumerate() {
        let (near, near_end) = stage.pair(&relay.near);
        let (far, far_end) = stage.pair(&relay.far);
        let peers = [Peer::new(&relay.near, near), Peer::new(&relay.far, far)];
        lines.push(Line::new(number, relay.engine, peers));
        ends.push([near_end, far_end]);
    }
    let mut relays = start(plan, &pool, ends);
    play(&mut lines, &mut relays);
    for (number, line) in lines.iter().enumerate() {
        line.check_end(relays.standing(number), &pool);
    }
    drop((lines, relays));
    audit::pool(&pool);
    drop(pool);
    assert_eq!(audit::descriptors(), stage.descriptors, "descriptors are left over");
}

fn play<R: Relays>(lines: &mut [Line], relays: &mut R) {
    let (mut quiet, mut patience, mut retries) = (0, PATIENCE, PATIENCE_WITH_TCP);
    loop {
        let mut activity = Activity::default();
        for (number, line) in lines.iter_mut().enumerate() {
            activity.also(line.peers_act(relays.standing(number)));
        }
        relays.turn();
        for (number, line) in lines.iter_mut().enumerate() {
            activity.moved |= line.look(relays.standing(number));
        }
        for line in lines.iter_mut() {
            line.check_rest(activity.moved);
        }
        if lines.iter().all(Line::is_done) {
            return;
        }
        let polled = lines.iter().any(|line| line.polled);
        quiet = if activity.moved || activity.waiting || polled {
            0
        } else {
            quiet + 1
        };
        if activity.moved {
            (patience, retries) = (PATIENCE, PATIENCE_WITH_TCP);
        }
        if quiet < QUIET_TURNS {
            continue;
        }
        if let Some(owed) = lines.iter().find_map(Line::owes) {
            patience -= 1;
            if patience == 0 && retries > 0 && audit::a_timer_of_tcp_runs() {
                (patience, retries) = (PATIENCE, retries - 1);
            }
            assert!(
                patience > 0,
                "nothing moves, but {owed}: {:?}, {lines:?}",
                audit::queues()
            );
            wait_a_little(lines);
        } else if go_on(lines) {
            quiet = 0;
        }
    }
}

/// Releases the first peer that waited for quiet, or that cannot continue. When no peer has an
/// action left, all peers end their streams. Returns whether there was any such peer.
fn go_on(lines: &mut [Line]) -> bool {
    for release in Release::ALL {
        let mut peers = lines.iter_mut().flat_map(|line| &mut line.peers);
        if peers.any(|peer| peer.go_on(release)) {
            return true;
        }
    }
    let mut any = false;
    for line in lines {
        for peer in &mut line.peers {
            any |= peer.finish(line.ended);
        }
    }
    any
}

/// Waits a millisecond for the kernel's timers, or until a peer can read.
fn wait_a_little(lines: &[Line]) {
    let peers = lines.iter().flat_map(|line| &line.peers);
    let sockets: Vec<_> = peers
        .filter(|peer| peer.is_reading())
        .filter_map(Peer::socket)
        .collect();
    // A small send buffer waits for these acknowledgements.
    sockets.iter().for_each(sockets::acknowledge);
    let mut polled: Vec<_> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    let millisecond = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let _ = poll(&mut polled, Some(&millisecond));
}

impl Line {
    fn new(number: usize, engine: Engine, peers: [Peer; 2]) -> Self {
        Self {
            engine,
            peers,
            streams: [Stream::new(2 * number), Stream::new(2 * number + 1)],
            polls: 0,
            moved: [0, 0],
            ended: false,
            idle_polls: 0,
            polled: false,
        }
    }

    fn is_done(&self) -> bool {
        self.ended && self.peers.iter().all(Peer::is_done)
    }

    fn peers_act(&mut self, relay: &Standing) -> Activity {
        let mut activity = Activity::default();
        for side in [0, 1] {
            let written = self.peers[side].write(&mut self.streams[side], self.ended);
            let (read, got) = self.peers[side].read(&mut self.streams[1 - side]);
            activity.add(written);
            activity.add(read);
            if let Some(got) = got {
                self.check_got(side, &got, relay);
            }
        }
        activity
    }

    /// Checks that the bytes that one peer got are permitted.
    fn check_got(&self, side: usize, got: &Got, relay: &Standing) {
        let (other, stream) = (&self.peers[1 - side], &self.streams[1 - side]);
        match (got, &relay.end) {
            (Got::Bytes, _) => {
                let counted = relay.moved[1 - side];
                assert!(
                    stream.received() <= counted,
                    "more arrived than the relay counted, {counted}: {self:?}"
                );
            }
            (Got::Error(error), None) => panic!("a peer's connection broke, and its relay goes on: {error}: {self:?}"),
            (Got::End, None | Some(End::Well)) => {
                assert!(
                    other.finished || other.left == Some(Left::Closed),
                    "an end that was not sent: {self:?}"
                );
                assert_eq!(stream.outstanding(), 0, "an end before all has arrived: {self:?}");
            }
            (Got::Error(_) | Got::End, _) => {}
        }
    }

    /// Records the relay's state. Returns whether it has changed.
    fn look(&mut self, relay: &Standing) -> bool {
        let moved = self.moved != relay.moved || self.ended != relay.end.is_some();
        self.polled = self.polls != relay.polls;
        self.idle_polls += relay.polls - self.polls;
        self.polls = relay.polls;
        self.moved = relay.moved;
        if relay.end.is_some() && !self.ended {
            self.ended = true;
            self.peers.iter_mut().for_each(Peer::abandon);
        }
        moved
    }

    fn check_rest(&mut self, anything_moved: bool) {
        if anything_moved {
            self.idle_polls = 0;
        }
        assert!(
            self.idle_polls <= IDLE_POLLS,
            "polled over and over with nothing to move: {self:?}"
        );
    }

    /// Describes what must still arrive without any further action.
    fn owes(&self) -> Option<&'static str> {
        if self.ended {
            return (!self.is_done()).then_some("a peer was not told that its relay ended");
        }
        let over = |peer: &Peer| peer.finished || !peer.is_well();
        let takes_all = |peer: &Peer| peer.is_done() || peer.is_reading();
        if self.peers.iter().all(|peer| over(peer) && takes_all(peer)) {
            return Some("both peers have ended");
        }
        for side in [0, 1] {
            let (from, to) = (&self.peers[side], &self.peers[1 - side]);
            if !to.is_reading() {
                continue;
            }
            if from.is_well() && self.streams[side].outstanding() > 0 {
                return Some("bytes are on their way to a peer that reads");
            }
            if from.is_well() && from.finished {
                return Some("an end is on its way to a peer that reads");
            }
            if from.left == Some(Left::Reset) && !from.finished {
                return Some("a peer reset its connection");
            }
        }
        None
    }

    fn check_end(&self, relay: &Standing, pool: &PipePool) {
        match relay.end.as_ref().expect("played to its end") {
            End::Well => {
                for side in [0, 1] {
                    let (to, stream, moved) = (&self.peers[1 - side], &self.streams[side], relay.moved[side]);
                    assert!(relay.eof[side], "it ended well, and an end was not passed on: {self:?}");
                    assert!(stream.may_be_all(moved), "it ended well and moved {moved}: {self:?}");
                    assert!(
                        !to.is_well() || stream.received() == moved,
                        "it counted {moved}, and less arrived: {self:?}"
                    );
                }
            }
            End::Broken(error) if error.kind() == ErrorKind::Unsupported => {
                assert_eq!(self.engine, Engine::Splice, "it need not splice: {error}");
                assert!(!pool.stats().denied.is_empty(), "it could splice: {error}");
            }
            End::Broken(error) => {
                let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(kinds.contains(&error.kind()), "an error no peer can cause: {error:?}");
                assert!(
                    self.peers.iter().any(|peer| !peer.is_well()),
                    "it broke and no peer did: {error}: {self:?}"
                );
            }
            End::Dropped => {}
        }
    }
}

impl Activity {
    fn add(&mut self, turn: Turn) {
        self.moved |= turn == Turn::Moved;
        self.waiting |= turn == Turn::Waiting;
    }

    fn also(&mut self, other: Self) {
        self.moved |= other.moved;
        self.waiting |= other.waiting;
    }
}
