//! Backends that are names: every address of the name is a backend of its own.
//!
//! ```text
//!   name ── lookup ──▶ members ── TTL ──▶ lookup ──▶ members, of which some have changed
//!             │ failed: the members stay         ▲
//!             └────────────── soon ──────────────┘
//! ```
//!
//! Only an answer removes members. If a query fails, the members of its family and host stay, and
//! the other ones follow their answers. If the answer is that the name has no address, it must stay
//! so for [`GONE`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use spliceway_protocol::address::Target;
use tokio::time::{Instant, sleep};

use super::balancer::{Balancer, Entry, Inner};
use super::settings::{BACKENDS_MAX, BackendSettings, Members, WEIGHT_MAX};
use crate::reach::dial::{Dialer, LookupError, Member, MemberList, Memory};

/// The shortest time between two lookups of a name, for answers with a TTL of 0.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest time. A change of members is then seen even if the TTL is a day.
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// The time before a failed lookup is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// The time for which a name has had no address when its members leave. A server that has just
/// begun to serve a zone may not know the name yet. HAProxy has the same default.
const GONE: Duration = Duration::from_secs(30);

/// The shortest time between two log lines about parts of lookups that fail.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// How many members a name had, and how many have come and gone.
pub(super) struct Change {
    before: usize,
    added: usize,
    removed: usize,
    /// How many members have no room.
    left_out: usize,
}

impl Balancer {
    pub(super) fn names(&self) -> impl Iterator<Item = &BackendSettings> {
        self.settings
            .backends
            .iter()
            .filter(|backend| backend.members != Members::One)
    }

    /// Puts the result of a lookup into force. Returns when to repeat it.
    pub(super) fn looked_up(
        self: &Arc<Self>,
        name: &BackendSettings,
        found: Result<MemberList, LookupError>,
    ) -> Duration {
        let again = match found {
            Ok(found) => {
                self.update(name, &found);
                let longest = if found.failed.is_none() { LONGEST } else { AGAIN };
                found.ttl.clamp(SHORTEST, longest)
            }
            // Without members, the clients get an error, and do not wait any longer.
            Err(_) => AGAIN,
        };
        self.inner.lock().unresolved.retain(|one| *one != name.name);
        self.serve_queue();
        again
    }

    /// Records that a name has no address since this time. Returns when to look it up again.
    fn has_no_address(self: &Arc<Self>, name: &BackendSettings, since: &Instant) -> Duration {
        let has_members = || self.inner.lock().entries.iter().any(|entry| entry.group == name.name);
        if since.elapsed() >= GONE && has_members() {
            let service = self.service();
            tracing::warn!(
                service,
                name = &*name.name,
                "a name has had no address for {GONE:?}: its backends leave"
            );
            self.update(name, &MemberList::default());
        }
        self.looked_up(name, Err(LookupError::NoAddress))
    }

    /// Puts the members of a name into force, as a lookup has found them. Where a query failed and
    /// there is no last answer, the members of that family stay.
    fn update(&self, name: &BackendSettings, found: &MemberList) {
        let mut inner = self.inner.lock();
        let stays = |entry: &&Entry| {
            let address = entry.settings.name.parse::<SocketAddr>();
            entry.group == name.name && address.is_ok_and(|address| found.unknown.has(address.ip()))
        };
        let before = inner.entries.iter().filter(stays);
        let before: Vec<_> = before.map(|entry| entry.settings.clone()).collect();
        // The first of the same name counts.
        let members = before.into_iter().chain(members_of(name, &found.members));
        let change = self.replace_members(&mut inner, name, members);
        drop(inner);
        self.members_changed.notify_one();
        let left_out = found.left_out + change.left_out;
        if change.added + change.removed > 0 && left_out > 0 {
            let (service, name) = (self.service(), &*name.name);
            tracing::warn!(
                service,
                name,
                left_out,
                "a name has too many backends: a service has at most {BACKENDS_MAX}"
            );
        }
        if change.added + change.removed > 0 && change.before > 0 {
            tracing::info!(
                service = self.service(),
                name = &*name.name,
                members = change.before + change.added - change.removed,
                added = change.added,
                removed = change.removed,
                "the backends of a name have changed"
            );
        }
    }

    /// Replaces the members of a name. Members that stay keep their sessions and their state.
    pub(super) fn replace_members(
        &self,
        inner: &mut Inner,
        name: &BackendSettings,
        members: impl IntoIterator<Item = BackendSettings>,
    ) -> Change {
        let (mut others, mut known) = (Vec::new(), HashMap::new());
        for entry in std::mem::take(&mut inner.entries) {
            if entry.group == name.name {
                known.insert(entry.settings.name.clone(), entry);
            } else {
                others.push(entry);
            }
        }
        let before = known.len();
        let (mut added, mut left_out, mut mine) = (0, 0, Vec::new());
        for settings in members {
            let is_taken = |entry: &Entry| entry.settings.name == settings.name;
            if others.iter().chain(&mine).any(is_taken) {
                continue;
            }
            if others.len() + mine.len() >= BACKENDS_MAX {
                left_out += 1;
                continue;
            }
            mine.push(match known.remove(&settings.name) {
                Some(entry) => Entry { settings, ..entry },
                None => {
                    added += 1;
                    let left = inner.left.iter().position(|left| *left.name() == *settings.name);
                    let left = left.and_then(|index| inner.left.remove(index));
                    Entry::new(&name.name, settings, left)
                }
            });
        }
        let removed = known.len();
        inner.left.extend(known.into_values().map(|entry| entry.backend));
        let too_many = inner.left.len().saturating_sub(BACKENDS_MAX);
        inner.left.drain(..too_many);
        // The policy `first` needs the order of the settings.
        let position = |entry: &Entry| self.settings.backends.iter().position(|one| one.name == entry.group);
        others.extend(mine);
        others.sort_by_key(position);
        inner.entries = others;
        Change {
            before,
            added,
            removed,
            left_out,
        }
    }
}

/// Looks up one name again and again. Never returns.
pub(super) async fn watch_name(balancer: Arc<Balancer>, name: BackendSettings, dialer: Dialer) {
    let Target::Name(host, port) = &name.targets.first else {
        return std::future::pending().await;
    };
    let (is_srv, mut log, mut gone) = (name.members == Members::Srv, FailureLog::default(), None);
    let mut memory = Memory::default();
    loop {
        let found = dialer.members(host, *port, is_srv, &mut memory).await;
        log.record(balancer.service(), &name.name, &found);
        let again = match found {
            Err(LookupError::NoAddress) => balancer.has_no_address(&name, gone.get_or_insert_with(Instant::now)),
            found => {
                gone = None;
                balancer.looked_up(&name, found)
            }
        };
        sleep(again).await;
    }
}

/// Logs the failures of the lookups of a name: the first of a row, and a part that fails at most
/// once a minute.
#[derive(Default)]
struct FailureLog {
    has_failed: bool,
    logged: Option<Instant>,
}

impl FailureLog {
    fn record(&mut self, service: &str, name: &str, found: &Result<MemberList, LookupError>) {
        let (error, what) = match found {
            Ok(MemberList { failed: None, .. }) => {
                self.has_failed = false;
                return;
            }
            Ok(MemberList {
                failed: Some(error), ..
            }) => (
                error,
                "a part of the lookup of a name failed: the known addresses of that part stay",
            ),
            Err(error) => (error, "cannot look up a name: its known addresses stay"),
        };
        let is_due = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_AGAIN);
        if !self.has_failed && (found.is_err() || is_due) {
            tracing::warn!(service, name, %error, "{what}");
            self.logged = Some(Instant::now());
        }
        self.has_failed = true;
    }
}

/// Returns the settings of each member of a name.
fn members_of(name: &BackendSettings, members: &[Member]) -> impl Iterator<Item = BackendSettings> {
    let first = members.iter().map(|member| member.priority).min().unwrap_or(0);
    let heaviest = members.iter().filter_map(|member| member.weight).max().unwrap_or(0);
    members.iter().map(move |member| {
        // The weights of SRV records go up to 65,535. A weight of 0 means a small chance.
        let scaled = |weight: u16| u32::from(weight) * WEIGHT_MAX / u32::from(heaviest).max(WEIGHT_MAX);
        let weight = member
            .weight
            .map(|weight| NonZeroU32::new(scaled(weight)).unwrap_or(NonZeroU32::MIN));
        let is_backup = name.is_backup || member.priority > first;
        name.member(member.address, weight.unwrap_or(name.weight), is_backup)
    })
}

#[cfg(test)]
mod tests;
