//! Sends the sessions in relay to the new process, some at a time.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::text::count;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::link::NotSent;
use super::message::{SessionMessage, ToNew, ToOld, micros};
use super::new_process::NewProcess;
use super::owner::{Answer, Giver};
use super::tls;
use super::trouble::{Stopped, Trouble};
use crate::kit::harmless::reason;
use crate::monitor::overview::Overview;
use crate::run::drain::shown;
use crate::session::{Offer, Session, Sessions};

/// The time in which the task of a session must suspend its relay. A worker may be busy.
pub(super) const SUSPEND: Duration = Duration::from_secs(1);
/// The number of sessions that are suspended at the same time. Each waits for those before it, so
/// more would make every pause longer. Fewer would wait more often for the other process.
const TOGETHER: usize = 16;

/// The step in which sessions are handed over.
const STEP: &str = "the new process does not take sessions";

/// What has become of the sessions so far.
#[derive(Default)]
pub(super) struct Tally {
    /// How long each session was paused that the new process has taken.
    pauses: Vec<Duration>,
    /// How often a session was not taken.
    refused: usize,
    /// Sessions that the new process has refused. They are not offered again.
    unwanted: HashSet<u64>,
    /// The last reason for which a session was not taken.
    why: Option<String>,
}

/// The sessions that stay in this process after a hand-over.
pub(super) struct Left {
    pub(super) count: usize,
    /// Whether one of them may begin to relay, and then move.
    pub(super) may_move: bool,
    /// The time after which they are cut.
    pub(super) limit: Duration,
}

/// A session on its way.
struct Sent {
    id: u64,
    offer: Offer,
    giver: Giver,
    suspended: Instant,
}

/// Sends every session that is in relay.
pub(super) async fn send_all(new: &mut NewProcess, sessions: &Sessions, tally: &mut Tally) -> Result<(), Stopped> {
    for slice in sessions.slices(0) {
        for together in slice.chunks(TOGETHER) {
            new.give_up().check()?;
            let may_move = together
                .iter()
                .filter(|(_, session)| !tally.unwanted.contains(&session.id));
            let requested = may_move.filter_map(|(_, session)| {
                let requested = session.request_handover()?;
                Some((Arc::clone(session), requested))
            });
            let requested = requested.collect();
            send_together(new, requested, tally).await;
            if new.is_reaped() {
                return Err(Stopped::Ended);
            }
        }
    }
    Ok(())
}

/// Sends sessions, and waits for the answer about each of them.
async fn send_together(
    new: &mut NewProcess,
    requested: Vec<(Arc<Session>, oneshot::Receiver<Offer>)>,
    tally: &mut Tally,
) {
    let (mut sent, mut trouble) = (Vec::with_capacity(requested.len()), None);
    for (session, requested) in requested {
        // The session may have ended, or cannot be suspended now.
        let Ok(Ok(offer)) = new.give_up().soon(SUSPEND, requested).await else {
            continue;
        };
        match send(new, &session, offer).await {
            Ok(Ok(one)) => sent.push(one),
            Ok(Err(NotSent::Refused(error))) => {
                tally.refused += 1;
                tally.why = Some(error.to_string());
            }
            Ok(Err(NotSent::Broken)) => {
                trouble = Some(Trouble::Closed);
                break;
            }
            Err(late) => {
                trouble = Some(late);
                break;
            }
        }
    }
    let mut forgotten = Vec::with_capacity(sent.len());
    for one in sent {
        forgotten.extend(one.settle(new, tally).await);
    }
    // Each of these ends: a task forgets its session right after the answer, even if it is cut.
    for session in forgotten {
        session.await;
    }
    if let Some(mut trouble) = trouble {
        if trouble == Trouble::Closed && !new.is_reaped() {
            trouble = new.left_behind().await;
        }
        new.fail(STEP, trouble).await;
    }
}

/// Sends a session. If the whole of it was not sent, it continues here.
async fn send(new: &mut NewProcess, session: &Session, offer: Offer) -> Result<Result<Sent, NotSent>, Trouble> {
    let (ends, suspended) = (offer.suspended(), Instant::now());
    let mut message = SessionMessage::new(&session.facts(), &ends.state);
    (message.id, message.service) = (session.id, session.service.to_string());
    message.age_us = micros(session.started.elapsed());
    message.shown_idle_us = session.facts().idle(suspended).map(micros);
    message.rates = ends.rates.balances();
    let Some((tls, secrets)) = tls::leave(&session.facts(), [&ends.client, &ends.upstream]) else {
        return Ok(Err(NotSent::Refused(io::Error::other(
            "a message of TLS is not complete",
        ))));
    };
    message.tls = tls;
    let data = [&ends.state.a_to_b.in_flight[..], &ends.state.b_to_a.in_flight, &secrets];
    let sockets = [ends.client.as_fd(), ends.upstream.as_fd()];
    let (id, mut giver) = (session.id, Giver::default());
    let message = ToNew::Session(Box::new(message));
    if let Err(not_sent) = new.try_send(&message, &data, &sockets).await? {
        return Ok(Err(not_sent));
    }
    giver.offered();
    Ok(Ok(Sent {
        id,
        offer,
        giver,
        suspended,
    }))
}

impl Sent {
    /// Waits for the answer. Then one of the processes owns the session. If it is the new one,
    /// returns a future that waits until this process has forgotten the session.
    async fn settle(mut self, new: &mut NewProcess, tally: &mut Tally) -> Option<impl Future<Output = ()> + use<>> {
        match answer(new, self.id, tally).await {
            Some(answer) => self.giver.answered(answer),
            None => self.giver.gone(),
        }
        if self.giver.owns() {
            tally.refused += 1;
            tally.unwanted.insert(self.id);
            return None;
        }
        tally.pauses.push(self.suspended.elapsed());
        Some(self.offer.taken())
    }
}

/// Returns the answer about a session. `None` means that there is none, and that the new process
/// has been reaped.
async fn answer(new: &mut NewProcess, id: u64, tally: &mut Tally) -> Option<Answer> {
    let trouble = match new.answer_or_end().await {
        Ok(ToOld::Taken { session }) if session == id => return Some(Answer::Taken),
        Ok(ToOld::NotTaken { session, why }) if session == id => {
            tally.why = Some(reason(&why));
            return Some(Answer::Refused);
        }
        Ok(other) => Trouble::unexpected(&other),
        Err(trouble) => trouble,
    };
    new.fail(STEP, trouble).await;
    None
}

impl Left {
    pub(super) fn of(overview: &Overview, tally: &Tally) -> Self {
        let mut all = overview.process.sessions.slices(0).flatten();
        Self {
            count: overview.process.sessions.len(),
            may_move: all.any(|(_, session)| !tally.unwanted.contains(&session.id) && session.facts().may_move_later()),
            limit: overview.settings().map_or(Duration::ZERO, |settings| settings.drain),
        }
    }

    /// Returns what becomes of the sessions, to be read after their number.
    fn fate(&self) -> String {
        let when = if self.limit.is_zero() {
            "at once".to_owned()
        } else {
            format!("after {}", shown(self.limit))
        };
        match (self.count, self.may_move) {
            (1, false) => format!(" that cannot move: it is cut {when}"),
            (_, false) => format!(" that cannot move: they are cut {when}"),
            (1, true) => format!(": if it does not move later, it is cut {when}"),
            (_, true) => format!(": those that do not move later are cut {when}"),
        }
    }
}

impl Tally {
    /// Returns the number of sessions that the new process has taken.
    pub(super) fn taken(&self) -> usize {
        self.pauses.len()
    }

    /// Returns a sentence about what was handed over to process `pid`, and about the sessions that
    /// are left.
    pub(super) fn summary(&mut self, pid: u32, left: &Left) -> String {
        self.pauses.sort_unstable();
        let taken = self.pauses.len();
        let mut summary = format!("process {pid} serves; moved {}", count(taken, "session"));
        if let Some(longest) = self.pauses.last() {
            let part = |percent: usize| self.pauses[(taken * percent / 100).min(taken - 1)].as_secs_f64() * 1e3;
            summary += &format!(
                " (paused {:.1} ms in the median, {:.1} ms at p99, {:.1} ms at most)",
                part(50),
                part(99),
                longest.as_secs_f64() * 1e3
            );
        }
        if left.count > 0 {
            let old = std::process::id();
            summary += &format!(
                "; process {old} finishes {}{}",
                count(left.count, "session"),
                left.fate()
            );
        }
        if let Some(why) = &self.why {
            summary += &format!("; could not move {}: {why}", count(self.refused, "session"));
        }
        summary
    }
}
