//! Rate limits: the configured rates, and the token buckets of sessions.
//!
//! ```text
//!   connection ──within──▶ client ──within──▶ service
//! ```
//!
//! Each bucket is optional. A byte counts against every bucket that exists.

mod units;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::RateLimit;
use tokio::time::Instant;

use crate::kit::client_key::ClientKey;
pub(crate) use units::{ByteRate, bytes, bytes_in_words};

/// The time for which a client without sessions keeps its buckets. A bucket is full again after a
/// tenth of a second and is then equivalent to a new one. If clients did not keep their buckets,
/// each connection from a client would get a full bucket.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The scope of a rate: each connection, each client, or the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Connection,
    Client,
    Service,
}

/// The value of one `--rate-in` or `--rate-out`, such as `10MB:client`. Without a scope, the rate
/// applies to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateArg {
    pub(super) rate: ByteRate,
    pub(super) scope: Scope,
}

/// The rates of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(super) connection: Option<ByteRate>,
    pub(super) client: Option<ByteRate>,
    pub(super) service: Option<ByteRate>,
}

/// The buckets of a service and of its clients.
#[derive(Debug)]
pub(crate) struct RateLimits {
    /// For bytes from clients, and to clients.
    rates: [Rates; 2],
    service: Limits,
    clients: Mutex<Clients>,
}

/// Limits on bytes from the client, and to the client.
type Limits = [Option<RateLimit>; 2];

/// What limits allow, in bytes, for bytes from and to the client. `None` without a limit.
pub(crate) type Balances = [Option<i64>; 2];

/// The buckets of one session. The sessions of one connection share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionRates {
    /// The limit on bytes from the client.
    pub(crate) incoming: Option<RateLimit>,
    /// The limit on bytes to the client.
    pub(crate) outgoing: Option<RateLimit>,
    /// Keeps the client's buckets. It must be held as long as the session lasts.
    #[allow(dead_code, reason = "the field is held and never read")]
    pub(super) session: Option<Arc<ClientSession>>,
}

/// Keeps the buckets of a client for this session and for the client's other sessions.
#[derive(Debug)]
pub(super) struct ClientSession {
    limits: Arc<RateLimits>,
    client: ClientKey,
}

/// The buckets of clients that have a session, or had one less than [`REMEMBERED`] ago. There are
/// at most as many clients as sessions, plus the clients that left during this time.
#[derive(Debug, Default)]
struct Clients {
    buckets: HashMap<ClientKey, Client>,
    /// The clients whose last session has ended, with the time of its end, in order of time.
    left: VecDeque<(Instant, ClientKey)>,
}

#[derive(Debug)]
struct Client {
    limits: Limits,
    sessions: usize,
    /// The time at which the last session ended, if the client has no session.
    left: Option<Instant>,
}

impl SessionRates {
    /// Returns what the innermost limits allow, for bytes from and to the client.
    pub(crate) fn balances(&self) -> Balances {
        balances(&self.limits())
    }

    /// Adds the limits that all sessions of a user share, for bytes from and to the client.
    pub(crate) fn within(self, user: &[Option<RateLimit>; 2]) -> Self {
        Self {
            incoming: both(self.incoming, user[0].as_ref()),
            outgoing: both(self.outgoing, user[1].as_ref()),
            ..self
        }
    }

    /// Allows no more than another process would.
    pub(crate) fn lower(&self, balances: Balances) {
        lower(&self.limits(), balances);
    }

    fn limits(&self) -> Limits {
        [self.incoming.clone(), self.outgoing.clone()]
    }
}

impl RateLimits {
    pub(crate) fn new(incoming: Rates, outgoing: Rates) -> Arc<Self> {
        Arc::new(Self {
            rates: [incoming, outgoing],
            service: [incoming, outgoing].map(|rates| limit(rates.service, None)),
            clients: Mutex::default(),
        })
    }

    /// Returns the buckets for a session of this client. A client without a known address has no
    /// client bucket.
    pub(crate) fn of_session(self: &Arc<Self>, client: Option<IpAddr>) -> SessionRates {
        let session = client.filter(|_| self.has_clients()).map(|client| ClientSession {
            limits: Arc::clone(self),
            client: client.into(),
        });
        let outer = match &session {
            Some(session) => self.enter(session.client, Instant::now()),
            None => self.service.clone(),
        };
        let [incoming, outgoing] = self.within(&outer, |rates| rates.connection);
        SessionRates {
            incoming,
            outgoing,
            session: session.map(Arc::new),
        }
    }

    /// Returns what the limits of the service allow, and those of clients. A client whose limits
    /// are full is left out, because it would have the same limits in another process. So are the
    /// clients above `most`.
    pub(crate) fn balances(&self, most: usize) -> (Balances, Vec<(IpAddr, Balances)>) {
        let service = balances(&self.service);
        let clients = self.clients();
        let known = clients.buckets.iter().take(most);
        let used = known.filter_map(|(key, client)| {
            // A direction without a limit for each client has that of the service here.
            let mut limits = client.limits.clone();
            for (limit, rates) in limits.iter_mut().zip(&self.rates) {
                limit.take_if(|_| rates.client.is_none());
            }
            let is_used = limits.iter().flatten().any(is_used);
            is_used.then(|| (key.ip(), balances(&limits)))
        });
        (service, used.collect())
    }

    /// Allows the service and its clients no more than another process would.
    pub(crate) fn lower(&self, service: Balances, of_clients: impl Iterator<Item = (IpAddr, Balances)>, now: Instant) {
        lower(&self.service, service);
        if !self.has_clients() {
            return;
        }
        for (client, balances) in of_clients {
            let key = ClientKey::from(client);
            lower(&self.enter(key, now), balances);
            self.leave(key, now);
        }
    }

    /// Returns buckets of these rates within `outer`.
    fn within(&self, outer: &Limits, rate: fn(&Rates) -> Option<ByteRate>) -> Limits {
        let [incoming, outgoing] = &self.rates;
        [
            limit(rate(incoming), outer[0].as_ref()),
            limit(rate(outgoing), outer[1].as_ref()),
        ]
    }

    fn has_clients(&self) -> bool {
        self.rates.iter().any(|rates| rates.client.is_some())
    }

    fn enter(&self, client: ClientKey, now: Instant) -> Limits {
        let mut clients = self.clients();
        clients.forget(now);
        let client = clients.buckets.entry(client).or_insert_with(|| Client {
            limits: self.within(&self.service, |rates| rates.client),
            sessions: 0,
            left: None,
        });
        client.sessions += 1;
        client.left = None;
        client.limits.clone()
    }

    fn leave(&self, key: ClientKey, now: Instant) {
        let mut clients = self.clients();
        let Clients { buckets, left } = &mut *clients;
        let client = buckets.get_mut(&key).expect("a client with sessions is not forgotten");
        client.sessions -= 1;
        if client.sessions == 0 {
            client.left = Some(now);
            left.push_back((now, key));
        }
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock()
    }
}

impl Clients {
    /// Removes the clients that have been without a session for [`REMEMBERED`].
    fn forget(&mut self, now: Instant) {
        while let Some((when, client)) = self.left.front().copied() {
            if now.saturating_duration_since(when) < REMEMBERED {
                return;
            }
            self.left.pop_front();
            // The client may have opened another session since then.
            if self
                .buckets
                .get(&client)
                .is_some_and(|client| client.left == Some(when))
            {
                self.buckets.remove(&client);
            }
        }
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.limits.leave(self.client, Instant::now());
    }
}

/// Returns what these limits allow. What a limit owes is left out, because it is mostly what
/// suspended relays have reserved and put back.
fn balances(limits: &Limits) -> Balances {
    limits
        .each_ref()
        .map(|limit| limit.as_ref().map(|limit| limit.balance().max(0)))
}

fn is_used(limit: &RateLimit) -> bool {
    u64::try_from(limit.balance()).map_or(true, |balance| balance < limit.burst())
}

/// Lowers these limits to what another process allows. It counts only for limits that exist in both
/// processes. If a limit already allows less, it stays.
fn lower(limits: &Limits, balances: Balances) {
    for (limit, balance) in limits.iter().zip(balances) {
        if let (Some(limit), Some(balance)) = (limit, balance) {
            limit.set_balance(balance.min(limit.balance()));
        }
    }
}

/// Returns `own` within `outer`, or the only one of them that exists.
fn both(own: Option<RateLimit>, outer: Option<&RateLimit>) -> Option<RateLimit> {
    match (own, outer) {
        (Some(own), Some(outer)) => Some(own.within(outer)),
        (own, outer) => own.or_else(|| outer.cloned()),
    }
}

/// Returns a bucket of `rate` within `outer`, or the only one of them that exists.
fn limit(rate: Option<ByteRate>, outer: Option<&RateLimit>) -> Option<RateLimit> {
    both(rate.map(ByteRate::bucket), outer)
}

impl Rates {
    /// Combines several arguments.
    ///
    /// # Errors
    /// Returns an error if two arguments have the same scope.
    pub(crate) fn from_args(args: &[RateArg]) -> Result<Self, String> {
        let mut rates = Self::default();
        for arg in args {
            let of_scope = match arg.scope {
                Scope::Connection => &mut rates.connection,
                Scope::Client => &mut rates.client,
                Scope::Service => &mut rates.service,
            };
            if let Some(before) = of_scope.replace(arg.rate) {
                return Err(format!("two rates per {}: {before} and {}", arg.scope, arg.rate));
            }
        }
        Ok(rates)
    }
}

impl FromStr for Scope {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "connection" => Ok(Self::Connection),
            "client" => Ok(Self::Client),
            "service" => Ok(Self::Service),
            _ => Err("expected a rate for each `connection`, each `client` or the `service`, such as 10MB:client"),
        }
    }
}

impl FromStr for RateArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rate, scope) = match text.split_once(':') {
            Some((rate, scope)) => (rate, scope.parse()?),
            None => (text, Scope::Service),
        };
        Ok(Self {
            rate: rate.parse()?,
            scope,
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection => "connection",
            Self::Client => "client",
            Self::Service => "service",
        })
    }
}

impl fmt::Display for RateArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.rate, self.scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(args: &str) -> Rates {
        let args: Vec<RateArg> = args.split_whitespace().map(|arg| arg.parse().unwrap()).collect();
        Rates::from_args(&args).unwrap()
    }

    fn ip(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    /// Returns the number of clients that have buckets.
    fn known(limits: &RateLimits) -> usize {
        limits.clients().buckets.len()
    }

    #[test]
    fn an_invalid_scope_is_refused_with_the_expected_form() {
        for text in ["10MB:", "10MB:user", ":client", "10MB:client:client"] {
            assert!(text.parse::<RateArg>().unwrap_err().starts_with("expected"), "{text}");
        }
    }

    #[test]
    fn a_rate_without_a_scope_applies_to_the_service() {
        for (text, shown) in [
            ("10MB", "10MB:service"),
            ("1.5MiB:client", "1536KiB:client"),
            ("999B:connection", "999B:connection"),
        ] {
            let arg: RateArg = text.parse().unwrap();
            assert_eq!(arg.to_string(), shown);
            assert_eq!(shown.parse(), Ok(arg));
        }
    }

    #[test]
    fn only_two_rates_for_one_scope_are_refused() {
        let arg = |text: &str| text.parse::<RateArg>().unwrap();
        let all = rates("1MB:connection 2MB:client 3MB");
        assert_eq!(all.service, Some(arg("3MB").rate));
        let error = Rates::from_args(&[arg("1MB"), arg("2MB:client"), arg("3MB:service")]).unwrap_err();
        assert_eq!(error, "two rates per service: 1MB and 3MB");
    }

    #[test]
    fn without_rates_a_session_has_none_and_no_client_is_kept() {
        let limits = RateLimits::new(Rates::default(), rates("1MB:connection"));
        let session = limits.of_session(ip(1));
        assert!(session.incoming.is_none() && session.session.is_none());
        assert_eq!(session.outgoing.unwrap().bytes_per_second(), 1_000_000);
        assert_eq!(known(&limits), 0);
    }

    #[test]
    fn the_innermost_rate_applies_and_directions_are_separate() {
        let limits = RateLimits::new(rates("1MB:connection 2MB:client 3MB"), rates("2MB:client 3MB"));
        let session = limits.of_session(ip(1));
        assert_eq!(session.incoming.unwrap().bytes_per_second(), 1_000_000);
        assert_eq!(session.outgoing.unwrap().bytes_per_second(), 2_000_000);
        let unknown = limits.of_session(None);
        assert_eq!(
            unknown.outgoing.unwrap().bytes_per_second(),
            3_000_000,
            "a client without an address"
        );
    }

    #[test]
    fn a_client_is_remembered_while_it_has_sessions_and_a_second_after() {
        let limits = RateLimits::new(rates("1MB:client"), Rates::default());
        let (start, key) = (Instant::now(), ClientKey::from(ip(1).unwrap()));
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        limits.enter(key, start);
        limits.enter(key, start);
        limits.leave(key, after(1));
        let other = ClientKey::from(ip(2).unwrap());
        limits.enter(other, after(9));
        assert_eq!(known(&limits), 2, "it has a session left");
        limits.leave(key, after(9));
        limits.enter(other, after(9));
        assert_eq!(known(&limits), 2, "it has just gone");
        limits.enter(other, after(10));
        assert_eq!(known(&limits), 1);
    }

    #[test]
    fn a_returning_client_is_not_forgotten() {
        let limits = RateLimits::new(rates("1MB:client"), Rates::default());
        let (start, key) = (Instant::now(), ClientKey::from(ip(1).unwrap()));
        limits.enter(key, start);
        limits.leave(key, start);
        limits.enter(key, start);
        let other = ClientKey::from(ip(2).unwrap());
        limits.enter(other, start + REMEMBERED);
        assert_eq!(known(&limits), 2);
        limits.leave(key, start + REMEMBERED);
        limits.enter(other, start + REMEMBERED);
        assert_eq!(known(&limits), 2);
        assert!(limits.clients().left.len() <= 1, "one note of having gone");
    }

    #[tokio::test(start_paused = true)]
    async fn another_process_allows_no_second_burst_in_any_scope() {
        const BURST: i64 = 100_000;
        let limits = || RateLimits::new(rates("1MB:client 1MB"), rates("1MB:connection 1MB"));
        let (old, new) = (limits(), limits());
        let session = old.of_session(ip(1));
        session.incoming.as_ref().unwrap().charge(60_000);
        session.outgoing.as_ref().unwrap().charge(150_000);
        let idle = old.of_session(ip(2));
        let (service, clients) = old.balances(10);
        // What a limit owes is left out.
        assert_eq!(service, [Some(40_000), Some(0)]);
        assert_eq!(clients, [(ip(1).unwrap(), [Some(40_000), None])]);
        assert!(old.balances(0).1.is_empty());
        for _ in 0..2 {
            new.lower(service, clients.iter().copied(), Instant::now());
        }
        assert_eq!(new.balances(10), (service, clients));
        let taken_over = new.of_session(ip(1));
        taken_over.lower(session.balances());
        assert_eq!(taken_over.balances(), [Some(40_000), Some(0)]);
        let other = new.of_session(ip(2));
        other.lower(idle.balances());
        assert_eq!(
            other.balances(),
            [Some(BURST); 2],
            "a full connection, within a lower service"
        );
        assert_eq!(new.balances(10).0, service);
        // Limits that are lower already stay, and those that are missing are ignored.
        other.incoming.as_ref().unwrap().charge(99_000);
        other.lower([Some(BURST), None]);
        assert_eq!(other.balances(), [Some(1_000), Some(BURST)]);
    }

    #[test]
    fn a_session_that_is_dropped_has_left() {
        let limits = RateLimits::new(rates("1MB:client"), Rates::default());
        let session = limits.of_session(ip(1));
        assert!(limits.clients().left.is_empty());
        drop(session);
        assert_eq!(limits.clients().left.len(), 1);
    }
}
