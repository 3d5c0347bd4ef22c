//! The record of a session: one log line. It is written and counted when the session is over,
//! however the session ended. If the operator wants, long sessions have further records before.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{CancelHandle, RelayStats, RelaySummary, RelayWaits, TcpInfo};
use spliceway_protocol::address::Target;
use tokio::time::sleep;

use crate::access::datagram_counts::{DatagramStats, DatagramSummary};
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::log::{self, Line};
use crate::net::transparent::OwnDial;
use crate::reach::balance::Lease;
use crate::session::bottleneck::{self, slowest};
use crate::session::handshake::{ClientRequest, Heard};
use crate::session::service::Service;
use crate::session::sessions::{Facts, MoveState, Phase, Session, Sessions, add};

/// The known facts about a session. Dropping the record ends the session: it writes the log line
/// and updates the metrics.
///
/// The record outlives the session's relay, so the counts that it records are final.
pub(crate) struct Record {
    service: Arc<Service>,
    /// The facts, which the admin socket shows.
    session: Arc<Session>,
    /// The key of this session in the registry.
    registered: usize,
    /// The key of this session's relay in the traffic ledger.
    running: Option<usize>,
    /// The key of this session's association in the traffic ledger.
    associated: Option<usize>,
    outcome: Option<Outcome>,
    /// Whether another process has the session and its record now.
    has_left: bool,
    observed: Option<Box<Observed>>,
    /// The session's place with a backend.
    lease: Option<Lease>,
    /// Kept until the session ends, never read.
    own: Option<Box<OwnDial>>,
}

/// What the kernel knew about the connections at the end of the relay, and what that means.
struct Observed {
    client: Option<TcpInfo>,
    upstream: Option<TcpInfo>,
    slow_up: Option<&'static str>,
    slow_down: Option<&'static str>,
}

/// The kernel is asked about the connections of a session that lasted this long.
const OBSERVED_TIME: Duration = Duration::from_secs(1);
/// It is also asked if the session moved this many bytes. A session below both limits is not slow,
/// and the questions would be 1.4 % of its CPU time (`docs/design/007-the-cost-of-a-session.md`).
const OBSERVED_BYTES: u64 = 1 << 20;

impl Record {
    pub(crate) fn new(service: Arc<Service>, client: Option<SocketAddr>) -> Self {
        service.traffic.session_began();
        let open = service.process.sessions.add(service.name, client);
        Self::of(service, open)
    }

    /// Returns the record of a session that began in another process.
    pub(crate) fn arrived(service: Arc<Service>, session: Session) -> Self {
        service.traffic.session_arrived();
        let target = session.facts().target.clone();
        let lease = service.balancer.as_ref().zip(target);
        let lease = lease.and_then(|(balancer, target)| balancer.adopt(&target));
        let open = service.process.sessions.insert(session);
        let mut record = Self::of(service, open);
        record.lease = lease;
        record
    }

    fn of(service: Arc<Service>, (session, registered): (Arc<Session>, usize)) -> Self {
        Self {
            service,
            session,
            registered,
            running: None,
            associated: None,
            outcome: None,
            has_left: false,
            observed: None,
            lease: None,
            own: None,
        }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Records the client's address, which a load balancer in front of the proxy has sent.
    pub(crate) fn introduced(&mut self, client: SocketAddr) {
        self.session.facts().client = Some(client);
    }

    /// Records what the client has stated about itself, whether or not the client is served.
    pub(crate) fn heard(&mut self, heard: Heard) {
        let mut facts = self.session.facts();
        facts.protocol = heard.protocol;
        facts.user = heard.user;
        facts.server_name = heard.server_name;
    }

    /// Adds the session to the account of its user, who has logged in.
    ///
    /// # Errors
    /// Returns the reason to refuse the session.
    pub(crate) fn enter_account(&mut self) -> Result<(), Refusal> {
        if self.service.users.is_none() {
            return Ok(());
        }
        let mut facts = self.session.facts();
        if let Some(user) = &facts.user {
            facts.account = self.service.process.accounts.enter(user)?;
        }
        Ok(())
    }

    /// Does the same for a session from another process.
    pub(crate) fn reenter_account(&mut self) {
        let mut facts = self.session.facts();
        if self.service.users.is_some()
            && let Some(user) = &facts.user
        {
            facts.account = self.service.process.accounts.reenter(user);
        }
    }

    /// Adds the rate limits of the user to those of the session.
    pub(crate) fn user_rates(&self, rates: SessionRates) -> SessionRates {
        match &self.session.facts().account {
            Some(account) => rates.within(&account.rates()),
            None => rates,
        }
    }

    /// Records the target that the client asks for.
    pub(crate) fn requested(&mut self, request: &ClientRequest) {
        self.dials(request.request.target.clone());
    }

    /// Records that the client asks for a backend, which is not chosen yet.
    pub(crate) fn waits_for_backend(&mut self) {
        self.session.facts().phase = Phase::Dial;
    }

    /// Records that the session connects to this target.
    pub(crate) fn dials(&mut self, target: Target) {
        let mut facts = self.session.facts();
        facts.target = Some(target);
        facts.phase = Phase::Dial;
    }

    /// Records that connecting took `time`.
    pub(crate) fn connected(&mut self, dialled: Option<SocketAddr>, time: Duration) {
        self.service.process.metrics.connected(time);
        let mut facts = self.session.facts();
        facts.dialled = dialled;
        facts.connect = Some(time);
    }

    /// Keeps the place with a backend until the session ends.
    pub(crate) fn holds(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Keeps what recognizes the connection to the target until the session ends.
    pub(crate) fn keep(&mut self, own: Option<Box<OwnDial>>) {
        self.own = own;
    }

    /// Returns the place with a backend, if there is one.
    pub(crate) fn lease(&mut self) -> Option<&mut Lease> {
        self.lease.as_mut()
    }

    /// Records that the target received `bytes` more bytes before the relay started.
    pub(crate) fn sent_ahead(&mut self, bytes: u64) {
        let mut facts = self.session.facts();
        facts.ahead += bytes;
        if let Some(account) = &facts.account {
            // If a quota is used up now, the first poll of the relay ends the session.
            account.account().count(bytes);
        }
        drop(facts);
        self.service.traffic.sent_ahead(bytes);
    }

    /// Records that a relay moves bytes from now on.
    pub(crate) fn relaying(&mut self, stats: RelayStats, cancel: CancelHandle) {
        let before = self.running.is_some().then(|| Box::new(self.relayed()));
        if before.is_some() {
            self.session.facts().keep_waits();
        }
        self.running = Some(self.service.traffic.enter(stats.clone(), cancel.clone()));
        self.session.relays(stats, cancel, before);
        self.limit();
    }

    /// Records that a relay resumes, whose counts contain those from before.
    pub(crate) fn resuming(&mut self, stats: RelayStats, cancel: CancelHandle) {
        if let Some(key) = self.running.take() {
            self.service.traffic.leave(key);
        }
        self.running = Some(self.service.traffic.resume(stats.clone(), cancel.clone()));
        let before = self.session.facts().before.take();
        self.session.relays(stats, cancel, before);
        self.limit();
    }

    /// Ends the record without a line: another process continues the session.
    pub(crate) fn leave(mut self) {
        self.has_left = true;
    }

    fn limit(&self) {
        let limit = self.service.timeouts.max_session;
        self.service.process.sessions.limit(&self.session, limit);
    }

    /// Records that an association delivers datagrams from now on.
    pub(crate) fn associating(&mut self, stats: DatagramStats) {
        self.associated = Some(self.service.traffic.associate(stats.clone()));
        self.session.facts().phase = Phase::Datagrams(stats);
        self.limit();
    }

    /// Returns the counts of all relays of this session. The last relay must have ended.
    fn relayed(&mut self) -> RelaySummary {
        let key = self.running.take();
        let mut relayed = key.map(|key| self.service.traffic.leave(key)).unwrap_or_default();
        if let Some(before) = self.session.facts().before.take() {
            add(&mut relayed.a_to_b, &before.a_to_b);
            add(&mut relayed.b_to_a, &before.b_to_a);
        }
        relayed
    }

    /// Asks the kernel about both connections of a relay that has ended, if that is worth its cost.
    pub(crate) fn observe(&mut self, client: impl AsFd, upstream: impl AsFd) {
        let facts = self.session.facts();
        let Some(opening) = facts.opening else { return };
        let (relayed, waits) = (facts.relayed(), facts.waits());
        let duration = self.session.started.elapsed();
        if duration < OBSERVED_TIME && relayed.bytes() < OBSERVED_BYTES {
            return;
        }
        let time = duration.saturating_sub(opening);
        // A Unix socket has no such information.
        let (client, upstream) = (TcpInfo::of(client).ok(), TcpInfo::of(upstream).ok());
        self.observed = Some(Box::new(Observed {
            slow_up: slowest(
                relayed.a_to_b.bytes,
                &waits.a_to_b,
                time,
                upstream.as_ref(),
                &bottleneck::UP,
            ),
            slow_down: slowest(
                relayed.b_to_a.bytes,
                &waits.b_to_a,
                time,
                client.as_ref(),
                &bottleneck::DOWN,
            ),
            client,
            upstream,
        }));
    }

    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    fn write(&self, outcome: &Outcome, relay: &RelaySummary, datagrams: Option<&DatagramSummary>) {
        let is_failure = matches!(outcome.end, SessionEnd::ConnectFailed(_));
        let facts = self.session.facts();
        let mut relay = *relay;
        relay.a_to_b.bytes += facts.ahead;
        log::record(is_failure, |line| {
            fill(line, &self.session, &facts, &relay, datagrams);
            if let Some(observed) = &self.observed {
                observed.fill(line);
            }
            if let Some(lease) = self.lease.as_ref().filter(|lease| lease.retries > 0) {
                line.number("retries", lease.retries as u64);
            }
            line.display("end", &outcome.end);
            if let Some(cause) = &outcome.cause {
                line.text("cause", cause);
            }
        });
    }
}

/// The value of `end` in the records of sessions that have not ended.
const OPEN: &str = "open";

/// Writes a record of each open session about once in `interval`, and never returns.
pub(crate) async fn write_open(sessions: &Sessions, interval: Duration) {
    visit_old(sessions, interval, write_of_open).await;
}

/// Visits each session that is older than `interval` about once in `interval`, and never returns.
/// One pass over the registry takes `interval`, so the visits are spread over that time.
async fn visit_old(sessions: &Sessions, interval: Duration, visit: impl Fn(&Session)) {
    let mut slot = 0;
    loop {
        let (found, next) = sessions.slice(slot);
        let old = found
            .iter()
            .filter(|(_, session)| session.started.elapsed() >= interval);
        old.for_each(|(_, session)| visit(session));
        drop(found);
        slot = next.unwrap_or(0);
        sleep(interval / sessions.slices()).await;
    }
}

fn write_of_open(session: &Session) {
    // The lock is held, so that no such record follows the last one.
    let facts = session.facts();
    if facts.is_over {
        return;
    }
    let datagrams = match &facts.phase {
        Phase::Datagrams(stats) => Some(stats.snapshot()),
        _ => None,
    };
    log::record(false, |line| {
        fill(line, session, &facts, &facts.relayed(), datagrams.as_ref());
        line.text("end", OPEN);
    });
}

/// Adds what all records have. `relay` has all bytes, also those before a relay.
fn fill(line: &mut Line, session: &Session, facts: &Facts, relay: &RelaySummary, datagrams: Option<&DatagramSummary>) {
    line.number("id", session.id);
    line.text("service", session.service);
    match &facts.client {
        Some(client) => line.display("client", client),
        None => line.display("client", &"unix"),
    }
    if let Some(user) = &facts.user {
        line.text("user", user);
    }
    if let Some(protocol) = facts.protocol {
        line.text("protocol", protocol.name());
    }
    if let Some(name) = &facts.server_name {
        line.text("sni", name);
    }
    if let Some(target) = &facts.target {
        line.display("target", target);
    }
    if let Some(upstream) = &facts.dialled {
        line.display("upstream", upstream);
    }
    counts(line, relay);
    waits(line, &facts.waits());
    if let Some(datagrams) = datagrams {
        datagram_counts(line, datagrams);
    }
    if let Phase::Datagrams(stats) = &facts.phase
        && let Some(why) = stats.first_denial()
    {
        line.text("datagrams_denied", why);
    }
    if let Some(time) = facts.connect {
        line.number("connect_ms", millis(time));
    }
    line.number("duration_ms", millis(session.started.elapsed()));
}

fn counts(line: &mut Line, relay: &RelaySummary) {
    line.number("bytes_up", relay.a_to_b.bytes);
    line.number("bytes_down", relay.b_to_a.bytes);
    line.number("spliced_up", relay.a_to_b.spliced);
    line.number("spliced_down", relay.b_to_a.spliced);
    // The bytes that were in flight when the session ended, if there were any.
    for (name, lost) in [("lost_up", relay.a_to_b.lost), ("lost_down", relay.b_to_a.lost)] {
        if lost > 0 {
            line.number(name, lost);
        }
    }
}

/// Returns whether the target has ended the session before it sent a byte. EOF counts only if the
/// client sent nothing either, because some protocols have no answer.
fn ended_early(end: SessionEnd, relay: &RelaySummary) -> bool {
    match end {
        SessionEnd::ResetByUpstream => relay.b_to_a.bytes == 0,
        SessionEnd::UpstreamEof => relay.b_to_a.bytes == 0 && relay.a_to_b.bytes == 0,
        _ => false,
    }
}

/// Adds the times for which a direction waited for something other than its source, if any.
fn waits(line: &mut Line, waits: &RelayWaits) {
    let (up, down) = (&waits.a_to_b, &waits.b_to_a);
    for (name, time) in [
        ("blocked_up_ms", up.sink),
        ("blocked_down_ms", down.sink),
        ("limited_up_ms", up.rate_limit),
        ("limited_down_ms", down.rate_limit),
    ] {
        if millis(time) > 0 {
            line.number(name, millis(time));
        }
    }
}

impl Observed {
    fn fill(&self, line: &mut Line) {
        for (info, names) in [
            (
                &self.client,
                ["rtt_client_us", "retransmits_client", "delivery_rate_client"],
            ),
            (
                &self.upstream,
                ["rtt_upstream_us", "retransmits_upstream", "delivery_rate_upstream"],
            ),
        ] {
            if let Some(info) = info {
                let rtt = u64::try_from(info.rtt.as_micros()).unwrap_or(u64::MAX);
                let values = [rtt, info.retransmitted.into(), info.delivery_rate];
                names
                    .into_iter()
                    .zip(values)
                    .for_each(|(name, value)| line.number(name, value));
            }
        }
        for (name, word) in [("slow_up", self.slow_up), ("slow_down", self.slow_down)] {
            if let Some(word) = word {
                line.text(name, word);
            }
        }
    }
}

fn datagram_counts(line: &mut Line, datagrams: &DatagramSummary) {
    line.number("datagrams_up", datagrams.up.datagrams);
    line.number("datagrams_down", datagrams.down.datagrams);
    line.number("datagram_bytes_up", datagrams.up.bytes);
    line.number("datagram_bytes_down", datagrams.down.bytes);
    line.number("datagrams_dropped", datagrams.dropped_in_all());
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for Record {
    fn drop(&mut self) {
        let mut outcome = self.outcome.take().unwrap_or(SessionEnd::Drained.into());
        let closed = self.session.facts().ends();
        if outcome.end == SessionEnd::Drained
            && let Some(reason) = closed
        {
            outcome.end = reason;
        }
        let relay = self.relayed();
        if let Some(lease) = &mut self.lease
            && ended_early(outcome.end, &relay)
        {
            lease.ended_by_backend();
        }
        let datagrams = self.associated.map(|key| self.service.traffic.dissociate(key));
        let mut facts = self.session.facts();
        // A hand-over that asks for the session gets no answer any more.
        facts.mover = MoveState::Stays;
        // A list of sessions may hold the facts longer.
        let _left = facts.account.take();
        drop(facts);
        self.service.process.sessions.remove(self.registered);
        if self.has_left {
            return self.service.traffic.session_left();
        }
        self.service.traffic.session_ended(outcome.end);
        self.write(&outcome, &relay, datagrams.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn each_session_is_visited_once_in_an_interval_and_few_at_once() {
        const SESSIONS: u64 = 1000;
        let (sessions, interval) = (Sessions::default(), Duration::from_secs(60));
        (0..SESSIONS).for_each(|_| drop(sessions.add("forward", None)));
        let visits = RefCell::new(HashMap::<u64, Vec<Duration>>::new());
        let visit = |session: &Session| {
            let mut visits = visits.borrow_mut();
            visits.entry(session.id).or_default().push(session.started.elapsed());
        };
        let passes = 3 * interval - Duration::from_millis(1);
        assert!(timeout(passes, visit_old(&sessions, interval, visit)).await.is_err());
        let visits = visits.into_inner();
        assert_eq!(visits.len() as u64, SESSIONS);
        let mut at_once = HashMap::<Duration, usize>::new();
        for times in visits.values() {
            assert_eq!(times.len(), 2, "{times:?}");
            assert!(times[0] >= interval && times[0] < 2 * interval, "{times:?}");
            assert_eq!(times[1] - times[0], interval);
            times.iter().for_each(|time| *at_once.entry(*time).or_default() += 1);
        }
        assert!(at_once.values().all(|count| *count <= 256), "{at_once:?}");
    }
}
