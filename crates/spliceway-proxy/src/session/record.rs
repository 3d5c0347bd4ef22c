//! The record of a session: one log line. It is written and counted when the session is over. If
//! the operator wants, long sessions have further records before.

mod bottleneck;
mod line;
mod long_sessions;
mod observed;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use spliceway::RelaySummary;
use tokio::time::Instant;

use super::facts::Session;
use super::guard::Guard;
use super::service::Service;
use super::tls_facts::TlsFacts;
use crate::access::admission::SessionPermit;
use crate::access::datagram_counts::DatagramSummary;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::log;
pub(crate) use long_sessions::write_open;
use observed::Observed;

/// The obligation to record a session, with everything that the session holds. [`Self::end`]
/// records the session. It is the last step of the session's story.
pub(crate) struct Record {
    pub(crate) guard: Guard,
    observed: Option<Box<Observed>>,
}

/// What the sessions of one connection pass on.
pub(super) struct Carried {
    pub(super) service: Arc<Service>,
    pub(super) permit: SessionPermit,
    pub(super) tls: Option<Box<TlsFacts>>,
    /// The session before, which may have the task of the connection.
    pub(super) before: Arc<Session>,
}

impl Record {
    pub(super) fn new(service: Arc<Service>, client: Option<SocketAddr>, permit: SessionPermit) -> Self {
        Guard::new(service, client, permit).into()
    }

    /// Returns the record of a session that began in another process.
    pub(crate) fn take_over(service: Arc<Service>, session: Session, permit: SessionPermit) -> Self {
        Guard::take_over(service, session, permit).into()
    }

    /// Asks the kernel about both connections of a relay that has ended, if that is worth its cost.
    pub(super) fn observe(&mut self, client: impl AsFd, upstream: impl AsFd) {
        if let Some(observed) = Observed::query(self.guard.session(), client, upstream) {
            self.observed = Some(Box::new(observed));
        }
    }

    /// Records the session, and gives back what it held.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.write(outcome);
    }

    /// Records the session of an HTTP request whose client may send another one. Gives back what
    /// only this request held.
    pub(super) fn end_request(mut self, outcome: Outcome) -> Carried {
        let permit = self.guard.take_permit();
        self.write(outcome);
        let before = Arc::clone(self.guard.session());
        let tls = before.facts().tls.take();
        Carried {
            service: Arc::clone(self.guard.service()),
            permit,
            tls,
            before,
        }
    }

    /// Begins the session of another request on the connection of `carried`.
    pub(super) fn follow(carried: Carried, client: Option<SocketAddr>) -> Self {
        let guard = Guard::new(carried.service, client, carried.permit);
        if let Some(client) = client {
            guard.set_client(client);
        }
        if let Some(tls) = carried.tls {
            guard.set_tls(*tls);
        }
        carried.before.pass_task(guard.session());
        guard.into()
    }

    /// Gives back what the session held, without a record: another process continues the session
    /// and records its end.
    pub(super) fn hand_over(mut self) {
        self.guard.session().facts().end();
        self.guard.give_back();
        self.guard.service().traffic.session_handed_over();
    }

    fn write(&mut self, mut outcome: Outcome) {
        let mut facts = self.guard.session().facts();
        let closed = facts.end();
        if outcome.end == SessionEnd::Drained {
            let was_handed_over = self.guard.service().process.has_handed_over();
            if let Some(reason) = closed {
                outcome.end = reason;
            } else if was_handed_over && outcome.cause.is_none() {
                outcome.cause = Some(facts.why_it_stayed().into());
            }
        }
        drop(facts);
        let (relay, datagrams) = self.guard.stop_counting();
        if ended_early(outcome.end, &relay)
            && let Some(lease) = self.guard.lease()
        {
            lease.ended_by_backend();
        }
        // A reader of the record finds nothing of the session any more, and its place is free. The
        // number of open sessions never exceeds the limit.
        self.guard.give_back();
        if matches!(outcome.end, SessionEnd::Denied(_))
            && let Some(user) = &self.guard.session().facts().user
        {
            self.guard.service().process.accounts.count_refusal(user);
        }
        self.guard.service().traffic.session_ended(outcome.end);
        self.guard.give_permit_back();
        self.write_line(&outcome, relay, datagrams.as_ref());
    }

    fn write_line(&self, outcome: &Outcome, mut relay: RelaySummary, datagrams: Option<&DatagramSummary>) {
        let service = self.guard.service();
        // Clients that choose their targets could fill the log with warnings.
        let may_warn = || service.kind.has_fixed_targets() || service.failures.lock().admits(Instant::now());
        let is_failure = matches!(outcome.end, SessionEnd::ConnectFailed(_)) && may_warn();
        let session = self.guard.session();
        let facts = session.facts();
        relay.a_to_b.bytes += facts.ahead;
        log::record(is_failure, |line| {
            line::fill(line, session, &facts, &relay, datagrams);
            if let Some(observed) = &self.observed {
                observed.fill(line);
            }
            let retries = self.guard.retries();
            if retries > 0 {
                line.number("retries", retries as u64);
            }
            line.display("end", &outcome.end);
            if let Some(cause) = &outcome.cause {
                line.text("cause", cause);
            }
        });
    }
}

impl From<Guard> for Record {
    fn from(guard: Guard) -> Self {
        Self { guard, observed: None }
    }
}

/// The net for a session without its last step: its task was cut, or has panicked.
impl Drop for Record {
    fn drop(&mut self) {
        if self.guard.is_held() {
            self.write(match thread::panicking() {
                true => Outcome::because(SessionEnd::Drained, &"its task has panicked: the log has the place"),
                false => SessionEnd::Drained.into(),
            });
        }
    }
}

/// Returns whether the target has ended the session before it sent a byte. EOF counts only if the
/// client sent nothing either, because some protocols have no answer.
fn ended_early(end: SessionEnd, relay: &RelaySummary) -> bool {
    match end {
        SessionEnd::ResetByUpstream | SessionEnd::ConnectFailed(_) => relay.b_to_a.bytes == 0,
        SessionEnd::UpstreamEof => relay.b_to_a.bytes == 0 && relay.a_to_b.bytes == 0,
        _ => false,
    }
}
