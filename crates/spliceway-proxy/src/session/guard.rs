//! What a session holds while it is open, and gives back when it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{CancelHandle, Direction, RelayStats, RelaySummary};
use spliceway_protocol::address::Target;

use super::facts::{HandoverState, Phase, Session, add};
use super::handshake::ClientClaims;
use super::service::Service;
use super::tls_facts::TlsFacts;
use crate::access::admission::SessionPermit;
use crate::access::datagram_counts::{DatagramStats, DatagramSummary};
use crate::access::rates::SessionRates;
use crate::kit::refusal::Refusal;
use crate::net::transparent::OwnDial;
use crate::reach::balance::Lease;

/// The part of a session that others count: in the registry, in the traffic of its service, in the
/// account of its user, in the limit on sessions, and at a backend. The steps of the session write
/// its facts only through the guard.
///
/// The guard outlives the relay, so the counts that it returns are final. Dropping the guard gives
/// everything back, and writes no record: the record of the session owns it.
pub(crate) struct Guard {
    service: Arc<Service>,
    /// The facts, which the admin socket shows. They have the part in the account.
    session: Arc<Session>,
    /// The key of the session in the registry. `None` after everything was given back.
    registered: Option<usize>,
    counted: Option<Counted>,
    /// Only sessions of a load balancer have one, so it is boxed.
    lease: Option<Box<Lease>>,
    /// Recognizes the connection to the target. Never read.
    own: Option<Box<OwnDial>>,
    /// `None` after the session has ended.
    permit: Option<SessionPermit>,
}

/// What the traffic of the service counts, with its key there.
enum Counted {
    Relay(usize),
    Association(usize),
}

impl Guard {
    /// Begins a session.
    pub(super) fn new(service: Arc<Service>, client: Option<SocketAddr>, permit: SessionPermit) -> Self {
        service.traffic.session_began();
        let open = service.process.sessions.add(Arc::clone(&service.name), client);
        let guard = Self::hold(service, open, None, permit);
        if let Some(client) = client.filter(|_| guard.service.accept_proxy.is_none()) {
            guard.set_client(client);
        }
        guard
    }

    /// Continues a session that began in another process.
    pub(super) fn take_over(service: Arc<Service>, session: Session, permit: SessionPermit) -> Self {
        service.traffic.session_taken_over();
        let target = session.facts().target.clone();
        let lease = service.balancer.as_ref().zip(target);
        let lease = lease
            .and_then(|(balancer, target)| balancer.adopt(&target))
            .map(Box::new);
        let open = service.process.sessions.insert(session);
        let guard = Self::hold(service, open, lease, permit);
        guard.reenter_account();
        guard
    }

    fn hold(
        service: Arc<Service>,
        (session, registered): (Arc<Session>, usize),
        lease: Option<Box<Lease>>,
        permit: SessionPermit,
    ) -> Self {
        Self {
            service,
            session,
            registered: Some(registered),
            counted: None,
            lease,
            own: None,
            permit: Some(permit),
        }
    }

    pub(super) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns what the session holds of the limits. The session must not have ended.
    pub(super) fn permit(&mut self) -> &mut SessionPermit {
        self.permit.as_mut().expect("an open session has it")
    }

    /// Adds the session to the account of its user, who has logged in, or is known by certificate
    /// or by network.
    ///
    /// # Errors
    /// Returns the reason to refuse the session.
    pub(super) fn enter_account(&self) -> Result<(), Refusal> {
        if self.service.users.is_none() && !self.service.knows_users() {
            return Ok(());
        }
        let mut facts = self.session.facts();
        if let Some(user) = &facts.user {
            let accounts = &self.service.process.accounts;
            if self.service.has_users_by_certificate() && !accounts.have_room_for(user) {
                return Err(Refusal::Users);
            }
            facts.account = self.service.process.accounts.enter(user)?;
        }
        Ok(())
    }

    /// Adds a session from another process to the account of its user, even above a limit.
    fn reenter_account(&self) {
        let mut facts = self.session.facts();
        if (self.service.users.is_some() || self.service.clients.networks().is_some())
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

    /// Records the address of the client, which a load balancer may state, and the user of its
    /// network.
    pub(super) fn set_client(&self, client: SocketAddr) {
        let mut facts = self.session.facts();
        facts.client = Some(client);
        facts.user = self.service.clients.user_of(client.ip()).map(Into::into);
    }

    /// Records what the client and the program have agreed on, or why they have not. The user may
    /// be a name in a certificate that is accepted.
    pub(super) fn set_tls(&self, tls: TlsFacts) {
        let mut facts = self.session.facts();
        if let Some(agreed) = &tls.agreed {
            if facts.server_name.is_none() {
                facts.server_name.clone_from(&agreed.name);
            }
            if self.service.has_users_by_certificate() {
                let cert = agreed.client_cert.as_ref();
                facts.user = cert.map(|cert| self.service.user_of(cert).into());
            }
        }
        facts.tls = Some(Box::new(tls));
    }

    /// Records what the client has said about itself.
    pub(super) fn set_claims(&self, claims: ClientClaims) {
        let mut facts = self.session.facts();
        facts.protocol = claims.protocol;
        if claims.user.is_some() {
            facts.user = claims.user;
        }
        if claims.server_name.is_some() {
            facts.server_name = claims.server_name;
        }
    }

    /// Records that a backend is chosen for the session.
    pub(super) fn chooses_backend(&self) {
        self.session.facts().phase = Phase::Dial;
    }

    /// Records that the session connects to this target.
    pub(super) fn dials(&self, target: Target) {
        let mut facts = self.session.facts();
        facts.target = Some(target);
        facts.phase = Phase::Dial;
    }

    /// Records that connecting took `time`.
    pub(super) fn connected(&self, dialled: Option<SocketAddr>, time: Duration) {
        self.service.process.metrics.connected(time);
        let mut facts = self.session.facts();
        facts.dialled = dialled;
        facts.connect = Some(time);
    }

    /// Returns whether the session was closed from outside.
    pub(super) fn is_closed(&self) -> bool {
        self.session.facts().closed.is_some()
    }

    /// Records that the session uses a connection of its client to the target again.
    pub(super) fn reuses(&self, dialled: Option<SocketAddr>) {
        self.session.facts().dialled = dialled;
    }

    /// Keeps the lease of a backend until the session ends.
    pub(super) fn holds(&mut self, lease: Lease) {
        self.lease = Some(Box::new(lease));
    }

    /// Keeps what recognizes the connection to the target until the session ends.
    pub(super) fn keep(&mut self, own: Option<Box<OwnDial>>) {
        self.own = own;
    }

    /// Returns what recognizes the connection to the target, which outlives this request.
    pub(super) fn take_own(&mut self) -> Option<Box<OwnDial>> {
        self.own.take()
    }

    /// Returns the lease of a backend, if there is one.
    pub(super) fn lease(&mut self) -> Option<&mut Lease> {
        self.lease.as_deref_mut()
    }

    /// Returns the number of backends that were tried before the one that the session has.
    pub(super) fn retries(&self) -> usize {
        self.lease.as_ref().map_or(0, |lease| lease.retries)
    }

    /// Counts bytes that the target received before the relay started.
    pub(super) fn sent_ahead(&self, bytes: u64) {
        let mut facts = self.session.facts();
        facts.ahead += bytes;
        if let Some(account) = &facts.account {
            // If a quota is used up now, the first poll of the relay ends the session.
            account.account().count(bytes);
        }
        drop(facts);
        self.service.traffic.sent_ahead(bytes);
    }

    /// Counts bytes that the client received before the relay started.
    pub(super) fn received_ahead(&self, bytes: u64) {
        let mut facts = self.session.facts();
        let before = &mut facts.before.get_or_insert_default().b_to_a;
        before.bytes += bytes;
        before.copied += bytes;
        if let Some(account) = &facts.account {
            account.account().count(bytes);
        }
        drop(facts);
        self.service.traffic.received_ahead(bytes);
    }

    /// Adds the time for which a rate limit held bytes back before the relay started.
    pub(super) fn was_limited(&self, direction: Direction, time: Duration) {
        // The record has whole milliseconds.
        if time >= Duration::from_millis(1) {
            self.session.facts().add_rate_wait(direction, time);
        }
    }

    /// Counts a relay from now on.
    pub(super) fn relaying(&mut self, stats: RelayStats, cancel: CancelHandle) {
        let before = if self.counted.is_some() {
            let counted = Box::new(self.stop_counting().0);
            self.session.facts().keep_waits();
            Some(counted)
        } else {
            self.session.facts().before.take()
        };
        self.counted = Some(Counted::Relay(
            self.service.traffic.enter(stats.clone(), cancel.clone()),
        ));
        self.session.set_relay(stats, cancel, before);
        self.limit();
    }

    /// Counts a relay that resumes. Its counts contain those from before.
    pub(super) fn resuming(&mut self, stats: RelayStats, cancel: CancelHandle) {
        if let Some(Counted::Relay(key)) = self.counted.take() {
            self.service.traffic.leave(key);
        }
        self.counted = Some(Counted::Relay(
            self.service.traffic.resume(stats.clone(), cancel.clone()),
        ));
        let before = self.session.facts().before.take();
        self.session.set_relay(stats, cancel, before);
        self.limit();
    }

    /// Counts the datagrams of an association from now on.
    pub(super) fn associating(&mut self, stats: DatagramStats) {
        self.counted = Some(Counted::Association(self.service.traffic.associate(stats.clone())));
        self.session.facts().phase = Phase::Datagrams(stats);
        self.limit();
    }

    /// Lets the session end once it has lasted as long as the settings allow.
    pub(super) fn limit(&self) {
        let limit = self.service.settings.timeouts.max_session;
        self.service.process.sessions.limit(&self.session, limit);
    }

    /// Returns the counts of all relays of this session, and those of its association. The last of
    /// them must have ended.
    pub(super) fn stop_counting(&mut self) -> (RelaySummary, Option<DatagramSummary>) {
        let traffic = &self.service.traffic;
        let (mut relayed, datagrams) = match self.counted.take() {
            None => Default::default(),
            Some(Counted::Relay(key)) => (traffic.leave(key), None),
            Some(Counted::Association(key)) => (RelaySummary::default(), Some(traffic.dissociate(key))),
        };
        if let Some(before) = self.session.facts().before.take() {
            add(&mut relayed.a_to_b, &before.a_to_b);
            add(&mut relayed.b_to_a, &before.b_to_a);
        }
        (relayed, datagrams)
    }

    /// Returns whether nothing was given back yet.
    pub(super) fn is_held(&self) -> bool {
        self.registered.is_some()
    }

    /// Leaves the registry, the traffic and the account. The lease follows when the guard is
    /// dropped, and the permit then or before.
    pub(super) fn give_back(&mut self) {
        let Some(registered) = self.registered.take() else {
            return;
        };
        self.stop_counting();
        let mut facts = self.session.facts();
        // A hand-over that asks for the session gets no answer any more.
        facts.handover = HandoverState::Impossible;
        // A list of sessions may hold the facts longer.
        let account = facts.account.take();
        drop(facts);
        drop(account);
        self.service.process.sessions.remove(registered);
    }

    /// Returns what the session holds of the limits, for the next request of its client.
    pub(super) fn take_permit(&mut self) -> SessionPermit {
        self.permit.take().expect("an open session has it")
    }

    /// Returns whether the client may send another request on its connection. At the limit on
    /// sessions, connections are not kept, because new clients would wait for them.
    pub(super) fn may_keep(&self) -> bool {
        self.service.keeps_clients() && self.permit.as_ref().is_some_and(|permit| !permit.is_last())
    }

    /// Lets another session have what this one held of the limits.
    pub(super) fn give_permit_back(&mut self) {
        self.permit = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.give_back();
    }
}
