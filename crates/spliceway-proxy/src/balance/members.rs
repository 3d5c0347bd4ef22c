//! Backends that are names: every address of the name is a backend of its own.
//!
//! ```text
//!   name ── lookup ──▶ members ── TTL ──▶ lookup ──▶ members, of which some have changed
//!             │ failed: the members stay         ▲
//!             └────────────── soon ──────────────┘
//! ```
//!
//! Only an answer removes members. If one of several queries fails, none is removed. If the answer
//! is that the name has no address, it must stay so for [`GONE`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use spliceway_protocol::address::{Target, TargetRange};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{BACKENDS_MAX, BackendSettings, Balancer, Inner, Place, WEIGHT_MAX, check};
use crate::dial::{Dialer, LookupError, Member, MemberList};

/// The shortest time between two lookups of a name, for answers with a TTL of 0.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest time. A change of members is then seen even if the TTL is a day.
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// The time before a failed lookup is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// The time for which a name has had no address when its members leave. A server that has just
/// begun to serve a zone may not know the name yet. HAProxy has the same default.
const GONE: Duration = Duration::from_secs(30);

/// Which addresses a backend stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Members {
    /// It is one backend, whatever its addresses. Each connection looks its name up.
    One,
    EachAddress,
    /// The addresses and ports of SRV records.
    Srv,
}

/// How many members a name had, and how many have come and gone.
pub(super) struct Change {
    before: usize,
    added: usize,
    removed: usize,
}

impl Balancer {
    pub(super) fn names(&self) -> impl Iterator<Item = &BackendSettings> {
        self.settings
            .backends
            .iter()
            .filter(|backend| backend.members != Members::One)
    }

    /// Returns whether there are names to look up, or backends to check.
    pub(crate) fn needs_tasks(&self) -> bool {
        self.settings.check.is_some() || self.names().next().is_some()
    }

    /// Looks up the names again and again, and checks the backends. Never returns.
    pub(crate) async fn watch(self: Arc<Self>, dialer: Dialer) {
        let mut tasks = JoinSet::new();
        if let Some(check) = &self.settings.check {
            tasks.spawn(check::watch(Arc::clone(&self), check.clone(), dialer.clone()));
        }
        for name in self.names() {
            tasks.spawn(watch_name(Arc::clone(&self), name.clone(), dialer.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// Puts the result of a lookup into force. Returns when to repeat it.
    pub(super) fn looked_up(
        self: &Arc<Self>,
        name: &BackendSettings,
        found: Result<MemberList, LookupError>,
    ) -> Duration {
        let again = match found {
            Ok(found) => {
                self.update(name, &found.members, found.is_whole);
                let longest = if found.is_whole { LONGEST } else { AGAIN };
                found.ttl.clamp(SHORTEST, longest)
            }
            // Without members, the clients get an error, and do not wait any longer.
            Err(_) => AGAIN,
        };
        self.inner().unresolved.retain(|one| *one != name.name);
        self.serve_queue();
        again
    }

    /// Records that a name has no address since this time. Returns when to look it up again.
    fn has_no_address(self: &Arc<Self>, name: &BackendSettings, since: &Instant) -> Duration {
        let has_members = || self.inner().places.iter().any(|place| place.group == name.name);
        if since.elapsed() >= GONE && has_members() {
            let service = self.service;
            tracing::warn!(
                service,
                name = &*name.name,
                "a name has had no address for {GONE:?}: its backends leave"
            );
            self.update(name, &[], true);
        }
        self.looked_up(name, Err(LookupError::NoAddress))
    }

    /// Puts the members of a name into force, as a lookup has found them. If the answer is not
    /// whole, those that are known stay as they are: the weights and priorities of SRV records are
    /// relative to each other.
    fn update(&self, name: &BackendSettings, members: &[Member], is_whole: bool) {
        let mut inner = self.inner();
        let before = inner
            .places
            .iter()
            .filter(|place| !is_whole && place.group == name.name);
        let before: Vec<_> = before.map(|place| place.settings.clone()).collect();
        // The first of the same name counts.
        let members = before.into_iter().chain(of_members(name, members));
        let change = self.replace_members(&mut inner, name, members);
        drop(inner);
        self.members_changed.notify_one();
        if change.added + change.removed > 0 && change.before > 0 {
            tracing::info!(
                service = self.service,
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
        for place in std::mem::take(&mut inner.places) {
            match place.group == name.name {
                true => drop(known.insert(place.settings.name.clone(), place)),
                false => others.push(place),
            }
        }
        let before = known.len();
        let (mut added, mut mine) = (0, Vec::new());
        for settings in members {
            let is_taken = |place: &Place| place.settings.name == settings.name;
            if others.iter().chain(&mine).any(is_taken) || others.len() + mine.len() >= BACKENDS_MAX {
                continue;
            }
            mine.push(match known.remove(&settings.name) {
                Some(place) => Place { settings, ..place },
                None => {
                    added += 1;
                    let left = inner.left.iter().position(|left| *left.name() == *settings.name);
                    let left = left.and_then(|index| inner.left.remove(index));
                    Place::new(&name.name, settings, left)
                }
            });
        }
        let removed = known.len();
        inner.left.extend(known.into_values().map(|place| place.backend));
        let too_many = inner.left.len().saturating_sub(BACKENDS_MAX);
        inner.left.drain(..too_many);
        // The policy `first` needs the order of the settings.
        let position = |place: &Place| self.settings.backends.iter().position(|one| one.name == place.group);
        others.extend(mine);
        others.sort_by_key(position);
        inner.places = others;
        Change { before, added, removed }
    }
}

/// Looks up one name again and again. Never returns.
async fn watch_name(balancer: Arc<Balancer>, name: BackendSettings, dialer: Dialer) {
    let Target::Name(host, port) = &name.targets.first else {
        return std::future::pending().await;
    };
    let (is_srv, mut is_failing, mut gone) = (name.members == Members::Srv, false, None);
    loop {
        let found = dialer.members(host, *port, is_srv).await;
        if let Err(error) = &found
            && !is_failing
        {
            let (service, name) = (balancer.service, &*name.name);
            tracing::warn!(service, name, %error, "cannot look up a name: its known addresses stay");
        }
        is_failing = found.is_err();
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

/// Returns the settings of each member of a name.
fn of_members(name: &BackendSettings, members: &[Member]) -> impl Iterator<Item = BackendSettings> {
    let first = members.iter().map(|member| member.priority).min().unwrap_or(0);
    let heaviest = members.iter().filter_map(|member| member.weight).max().unwrap_or(0);
    members.iter().map(move |member| {
        // The weights of SRV records go up to 65,535. A weight of 0 means a small chance.
        let scaled = |weight: u16| match u32::from(heaviest) > WEIGHT_MAX {
            true => u32::from(weight) * WEIGHT_MAX / u32::from(heaviest),
            false => weight.into(),
        };
        let weight = member
            .weight
            .map(|weight| NonZeroU32::new(scaled(weight)).unwrap_or(NonZeroU32::MIN));
        let is_backup = name.is_backup || member.priority > first;
        member_of(name, member.address, weight.unwrap_or(name.weight), is_backup)
    })
}

/// Returns the settings of a member of a name.
pub(super) fn member_of(
    name: &BackendSettings,
    address: SocketAddr,
    weight: NonZeroU32,
    is_backup: bool,
) -> BackendSettings {
    BackendSettings {
        name: address.to_string().into(),
        targets: TargetRange {
            first: Target::Ip(address),
            count: name.targets.count,
        },
        weight,
        is_backup,
        ..name.clone()
    }
}

#[cfg(test)]
mod tests;
