//! Looks up every address of a name, and SRV records, for backends that are members of a name.
//! These answers are not cached here: the caller keeps them for their TTL.
//!
//! A server may answer about one family and not about the other, or about one host and not about
//! another. What is not answered stays as the last answer was.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::rr::{RData, RecordType};
use tokio::time::{Instant, timeout_at};

use super::answer::{Lookup, LookupError, Pending, next_done, within};
use super::files::Snapshot;
use super::lookup::{Resolver, Servers};
use super::query::{query_addresses, query_servers};
use super::reading::{Origin, SearchEnd};
use crate::reach::dial::happy_eyeballs::Family;
use crate::reach::dial::request::Caller;

/// The time for which an answer is used that has no TTL: from `getaddrinfo(3)`, and from
/// `/etc/hosts`.
const WITHOUT_TTL: Duration = Duration::from_secs(30);
/// The most addresses of one name, and the most SRV records of one answer, that are used. A service
/// has at most as many backends. If there are more, the lowest are used, which are always the same
/// ones.
const MEMBERS_MAX: usize = 256;
/// The number of queries at the same time for each family of the targets of SRV records.
const LANES: usize = 8;
/// How long the first lookup waits for the other family when one is known. The clients wait, too.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// How long later lookups wait for it.
const LATER_PATIENCE: Duration = Duration::from_secs(3);

/// The members of a name, as one lookup has found them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::reach) struct MemberList {
    /// At least one, in ascending order.
    pub(in crate::reach) members: Vec<Member>,
    pub(in crate::reach) ttl: Duration,
    /// Why a part of the lookup failed. The last answer counts for this part.
    pub(in crate::reach) failed: Option<LookupError>,
    /// Whether there is no last answer for a failed part with IPv6 and IPv4 addresses. Members of
    /// that family may be missing.
    pub(in crate::reach) unknown: Families,
    /// The number of records and addresses above the limit, which are not used.
    pub(in crate::reach) left_out: usize,
}

/// A set of address families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::reach) struct Families([bool; 2]);

/// An address that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::reach) struct Member {
    pub(in crate::reach) address: SocketAddr,
    /// The lowest priority is used first (RFC 2782). Without SRV, all priorities are 0.
    pub(in crate::reach) priority: u16,
    /// The weight of its SRV record. `None` without SRV.
    pub(in crate::reach) weight: Option<u16>,
}

/// The last answers for the hosts of a name.
#[derive(Debug, Default)]
pub(in crate::reach) struct Memory(HashMap<(Box<str>, Family), Vec<IpAddr>>);

/// An answer for one host and one family: the addresses, and how long they are valid.
type Answer = Result<(Vec<IpAddr>, Duration), LookupError>;

/// The answers for IPv6 and IPv4.
type Pair = [Answer; 2];

const FAMILIES: [Family; 2] = [Family::V6, Family::V4];

impl Resolver {
    /// Returns every address of `host`, with this port. Cancel safe.
    pub(in crate::reach::dial) async fn members(
        &self,
        host: &str,
        port: u16,
        memory: &mut Memory,
        caller: Caller,
    ) -> Result<MemberList, LookupError> {
        let pair = self.every_address(host, memory.patience(), caller).await;
        let mut list = MemberList {
            ttl: Duration::MAX,
            ..MemberList::default()
        };
        let addresses = list.add(host, pair, memory);
        memory.keep(&[host.into()].into());
        let member = |ip| Member {
            address: SocketAddr::new(ip, port),
            priority: 0,
            weight: None,
        };
        list.with_members(addresses.into_iter().map(member).collect())
    }

    /// Returns every address of every SRV record of `name`. Cancel safe.
    pub(in crate::reach::dial) async fn services(
        &self,
        name: &str,
        memory: &mut Memory,
        caller: Caller,
    ) -> Result<MemberList, LookupError> {
        let Some(now) = self.for_services() else {
            let why = "the system's resolver has no SRV records: name servers with --dns";
            return Err(LookupError::Failed(why.into()));
        };
        let permit = self.query_permits.take(caller.client, caller.deadline).await?;
        let first = self.first_server(&now);
        let reply = within(caller.deadline, query_servers(&now.conf, first, name, RecordType::SRV)).await?;
        drop(permit);
        let mut records: Vec<_> = reply
            .data
            .iter()
            .filter_map(|data| match data {
                // The root as the target means that there is no such service.
                RData::SRV(srv) if !srv.target.is_root() => {
                    let target = srv.target.to_lowercase().to_ascii();
                    Some((srv.priority, target, srv.port, srv.weight))
                }
                _ => None,
            })
            .collect();
        // Servers rotate the records, and the same ones must count each time.
        records.sort_unstable();
        records.dedup();
        let left_out = records.len().saturating_sub(MEMBERS_MAX);
        records.truncate(MEMBERS_MAX);
        let targets: HashSet<Box<str>> = records.iter().map(|(_, target, ..)| target.as_str().into()).collect();
        let targets: Vec<Box<str>> = targets.into_iter().collect();
        let pairs = self.look_up_targets(&now, &targets, memory.patience(), caller).await;
        let mut list = MemberList {
            ttl: reply.ttl,
            left_out,
            ..MemberList::default()
        };
        let mut found = HashMap::new();
        for (target, pair) in targets.iter().zip(pairs) {
            found.insert(&**target, list.add(target, pair, memory));
        }
        memory.keep(&targets.iter().cloned().collect());
        let mut members = Vec::new();
        for (priority, target, port, weight) in &records {
            let addresses = found.get(target.as_str()).into_iter().flatten();
            members.extend(addresses.map(|ip| Member {
                address: SocketAddr::new(*ip, *port),
                priority: *priority,
                weight: Some(*weight),
            }));
        }
        list.with_members(members)
    }

    /// Returns the servers to ask for SRV records, which the C library cannot look up.
    fn for_services(&self) -> Option<Snapshot> {
        self.current().or_else(|| match self.from {
            Servers::System => None,
            _ => Some(self.files.current()),
        })
    }

    async fn every_address(&self, host: &str, patience: Duration, caller: Caller) -> Pair {
        let mut last: Pair = [const { Err(LookupError::NoAddress) }; 2];
        let mut failed = LookupError::NoAddress;
        let mut end = SearchEnd::default();
        for reading in self.readings(host, false) {
            if end.skips(&reading) {
                continue;
            }
            let pair = match (&reading.origin, self.current()) {
                (Origin::Dns { .. }, Some(now)) => {
                    let names = [reading.name.as_str().into()];
                    self.batch(&now, &names, patience, caller).await.pop().unwrap_or(last)
                }
                _ => match self.look_up(&reading, caller) {
                    Lookup::Whole(lookup) => split(within(caller.deadline, lookup).await),
                    Lookup::Families(_) => [const { Err(LookupError::TimedOut) }; 2],
                },
            };
            if pair.iter().flatten().any(|(addresses, _)| !addresses.is_empty()) {
                return pair;
            }
            for error in pair.iter().filter_map(|answer| answer.as_ref().err()) {
                end.failed(&reading, error);
                failed = failed.or(error.clone());
            }
            last = pair;
        }
        // No reading has an address. A failure of an earlier one counts.
        match failed {
            LookupError::NoAddress => last,
            failed => last.map(|answer| answer.and(Err(failed.clone()))),
        }
    }

    /// Looks up the targets of SRV records, which are whole names.
    async fn look_up_targets(
        &self,
        now: &Snapshot,
        targets: &[Box<str>],
        patience: Duration,
        caller: Caller,
    ) -> Vec<Pair> {
        let in_files = |target: &str| now.hosts.get(target.trim_end_matches('.')).map(<[IpAddr]>::to_vec);
        let (known, others): (Vec<_>, Vec<_>) = targets.iter().cloned().partition(|target| in_files(target).is_some());
        let pairs = self.batch(now, &others, patience, caller).await;
        let mut found: HashMap<Box<str>, Pair> = others.into_iter().zip(pairs).collect();
        found.extend(known.into_iter().map(|target| {
            let pair = split(Ok(in_files(&target).unwrap_or_default()));
            (target, pair)
        }));
        let none = || [const { Err(LookupError::TimedOut) }; 2];
        targets
            .iter()
            .map(|target| found.remove(target).unwrap_or_else(none))
            .collect()
    }

    /// Asks about whole names. When all queries about one family have an answer and some name has
    /// an address, the other family gets `patience` more. If a query about a family is never
    /// answered, no further one about this family is made.
    async fn batch(&self, now: &Snapshot, names: &[Box<str>], patience: Duration, caller: Caller) -> Vec<Pair> {
        let found: Mutex<Vec<[Option<Answer>; 2]>> = Mutex::new(names.iter().map(|_| [None, None]).collect());
        let found = &found;
        let lane = |lane: usize, family: usize| -> Pending<'_, usize> {
            Box::pin(async move {
                for index in (lane..names.len()).step_by(LANES) {
                    let answer = self.query_family(now, &names[index], FAMILIES[family], caller).await;
                    let is_silent = answer == Err(LookupError::TimedOut);
                    found.lock()[index][family] = Some(answer);
                    if is_silent {
                        break;
                    }
                }
                family
            })
        };
        let lanes = LANES.min(names.len());
        let mut running: Vec<_> = (0..2 * lanes).map(|number| lane(number / 2, number % 2)).collect();
        let mut left = [lanes; 2];
        let mut until = caller.deadline;
        while !running.is_empty() {
            let Ok(family) = timeout_at(until, next_done(&mut running)).await else {
                break;
            };
            left[family] -= 1;
            let found = found.lock();
            let has_any = found
                .iter()
                .any(|pair| matches!(&pair[family], Some(Ok((all, _))) if !all.is_empty()));
            if left[family] == 0 && has_any {
                until = until.min(Instant::now() + patience);
            }
        }
        drop(running);
        let mut found = found.lock();
        let answered = std::mem::take(&mut *found).into_iter();
        answered
            .map(|pair| pair.map(|answer| answer.unwrap_or(Err(LookupError::TimedOut))))
            .collect()
    }

    async fn query_family(&self, now: &Snapshot, name: &str, family: Family, caller: Caller) -> Answer {
        if family == Family::V6 && now.conf.options.no_aaaa {
            return Ok((Vec::new(), WITHOUT_TTL));
        }
        let _permit = self.query_permits.take(caller.client, caller.deadline).await?;
        let reply = query_addresses(&now.conf, self.first_server(now), name, family).await?;
        Ok((reply.addresses(), reply.ttl))
    }
}

impl MemberList {
    /// Adds the answers for a host. Returns its addresses: where an answer is missing, the last
    /// one.
    fn add(&mut self, host: &str, pair: Pair, memory: &mut Memory) -> Vec<IpAddr> {
        let mut all = Vec::new();
        for (family, answer) in FAMILIES.into_iter().zip(pair) {
            let key = (host.into(), family);
            match answer {
                Ok((addresses, ttl)) => {
                    // "No address" is often valid for a shorter time.
                    if !addresses.is_empty() {
                        self.ttl = self.ttl.min(ttl);
                    }
                    all.extend(&addresses);
                    memory.0.insert(key, addresses);
                }
                Err(LookupError::NoAddress) => drop(memory.0.insert(key, Vec::new())),
                Err(error) => {
                    self.failed = Some(error);
                    match memory.0.get(&key) {
                        Some(last) => all.extend(last),
                        None => self.unknown.0[family as usize] = true,
                    }
                }
            }
        }
        all
    }

    fn with_members(mut self, mut members: Vec<Member>) -> Result<Self, LookupError> {
        members.sort_unstable_by_key(|member| (member.priority, member.address));
        members.dedup();
        self.left_out += members.len().saturating_sub(MEMBERS_MAX);
        members.truncate(MEMBERS_MAX);
        if members.is_empty() {
            return Err(self.failed.unwrap_or(LookupError::NoAddress));
        }
        Ok(Self { members, ..self })
    }
}

impl Families {
    #[cfg(test)]
    pub(in crate::reach) const V4: Self = Self([false, true]);

    /// Returns whether the set has the family of `ip`.
    pub(in crate::reach) fn has(self, ip: IpAddr) -> bool {
        self.0[Family::from(ip) as usize]
    }
}

impl Memory {
    fn patience(&self) -> Duration {
        if self.0.is_empty() {
            FIRST_PATIENCE
        } else {
            LATER_PATIENCE
        }
    }

    /// Forgets all other hosts.
    fn keep(&mut self, hosts: &HashSet<Box<str>>) {
        self.0.retain(|(host, _), _| hosts.contains(host));
    }
}

/// Returns the addresses of each family.
fn split(found: Result<Vec<IpAddr>, LookupError>) -> Pair {
    match found {
        Ok(all) => {
            let (v6, v4) = all.into_iter().partition(IpAddr::is_ipv6);
            [Ok((v6, WITHOUT_TTL)), Ok((v4, WITHOUT_TTL))]
        }
        Err(error) => [Err(error.clone()), Err(error)],
    }
}

#[cfg(test)]
mod tests;
