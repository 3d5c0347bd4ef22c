//! What a balancer knows about its backends, for a process that takes over.
//!
//! The state has the weights that the operator has set, ejections, the results of checks, and the
//! members of names. So a backend that fails or drains gets no clients after an upgrade either, and
//! a name that cannot be looked up at the moment keeps its members.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::balancer::{Balancer, Entry, Inner};
use super::check::Checked;
use super::ejection::{Ejection, HandedOverEjection};
use super::settings::{BackendSettings, Members, WEIGHT_MAX};
use super::trouble::Troubles;

/// The state of one backend.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HandedOverBackend {
    name: Box<str>,
    member: Option<HandedOverMember>,
    /// The weight that the operator has set.
    set_weight: Option<u32>,
    ejection: HandedOverEjection,
    checks: Checked,
    troubles: Troubles,
}

/// What the lookup of a name has said about a member.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct HandedOverMember {
    of: Box<str>,
    weight: u32,
    is_backup: bool,
}

impl Balancer {
    pub(crate) fn to_hand_over(&self) -> Vec<HandedOverBackend> {
        let now = Instant::now();
        let state = |entry: &Entry| {
            let (settings, backend) = (&entry.settings, &entry.backend);
            let member = (settings.members != Members::One).then(|| HandedOverMember {
                of: entry.group.clone(),
                weight: settings.weight.get(),
                is_backup: settings.is_backup,
            });
            HandedOverBackend {
                name: settings.name.clone(),
                member,
                set_weight: backend.weight(),
                ejection: backend.ejection.lock().to_hand_over(now),
                checks: *backend.checked.lock(),
                troubles: backend.troubles.lock().clone(),
            }
        };
        self.inner.lock().entries.iter().map(state).collect()
    }

    /// Takes over the state of the backends that both processes have. Later states replace earlier
    /// ones, except for the results of checks of this process.
    pub(crate) fn take_over(self: &Arc<Self>, earlier: &[HandedOverBackend]) {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        for name in self.names() {
            self.take_over_members(&mut inner, name, earlier);
        }
        for Entry { settings, backend, .. } in &inner.entries {
            if let Some(earlier) = earlier.iter().find(|earlier| earlier.name == settings.name) {
                backend.set_weight(earlier.set_weight.filter(|weight| *weight <= WEIGHT_MAX));
                *backend.ejection.lock() = Ejection::take_over(earlier.ejection, now);
                backend.checked.lock().take_over(earlier.checks);
                backend.take_over_troubles(earlier.troubles.clone());
            }
        }
        drop(inner);
        self.members_changed.notify_one();
        self.serve_queue();
    }

    /// Uses the members of a name until this process has looked it up.
    fn take_over_members(&self, inner: &mut Inner, name: &BackendSettings, earlier: &[HandedOverBackend]) {
        let Some(unresolved) = inner.unresolved.iter().position(|one| *one == name.name) else {
            return;
        };
        let member = |earlier: &HandedOverBackend| {
            let member = earlier.member.as_ref().filter(|member| member.of == name.name)?;
            let address: SocketAddr = earlier.name.parse().ok()?;
            let weight = NonZeroU32::new(member.weight.min(WEIGHT_MAX))?;
            Some(name.member(address, weight, member.is_backup))
        };
        let members: Vec<_> = earlier.iter().filter_map(member).collect();
        if !members.is_empty() {
            inner.unresolved.remove(unresolved);
            self.replace_members(inner, name, members);
        }
    }
}

#[cfg(test)]
mod tests;
