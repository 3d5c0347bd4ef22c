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

use super::check::MovedChecks;
use super::ejection::MovedEjection;
use super::members::member_of;
use super::{BackendSettings, Balancer, Inner, Members, Place, WEIGHT_MAX};

/// The state of one backend.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MovedBackend {
    name: Box<str>,
    member: Option<MovedMember>,
    /// The weight that the operator has set.
    pub(super) set_weight: Option<u32>,
    pub(super) ejection: MovedEjection,
    pub(super) checks: MovedChecks,
}

/// What the lookup of a name has said about a member.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct MovedMember {
    of: Box<str>,
    weight: u32,
    is_backup: bool,
}

impl Balancer {
    pub(crate) fn moved(&self) -> Vec<MovedBackend> {
        let now = Instant::now();
        let moved = |place: &Place| {
            let settings = &place.settings;
            let member = (settings.members != Members::One).then(|| MovedMember {
                of: place.group.clone(),
                weight: settings.weight.get(),
                is_backup: settings.is_backup,
            });
            let (ejection, checks) = place.backend.moved(now);
            MovedBackend {
                name: settings.name.clone(),
                member,
                set_weight: place.backend.weight(),
                ejection,
                checks,
            }
        };
        self.inner().places.iter().map(moved).collect()
    }

    /// Takes over the state of the backends that both processes have. Later states replace earlier
    /// ones, except for the results of checks of this process.
    pub(crate) fn arrived(self: &Arc<Self>, moved: &[MovedBackend]) {
        let now = Instant::now();
        let mut inner = self.inner();
        for name in self.names() {
            self.members_arrived(&mut inner, name, moved);
        }
        for place in &inner.places {
            if let Some(moved) = moved.iter().find(|moved| moved.name == place.settings.name) {
                place.backend.arrived(moved, now);
            }
        }
        drop(inner);
        self.members_changed.notify_one();
        self.serve_queue();
    }

    /// Uses the members of a name until this process has looked it up.
    fn members_arrived(&self, inner: &mut Inner, name: &BackendSettings, moved: &[MovedBackend]) {
        let Some(unresolved) = inner.unresolved.iter().position(|one| *one == name.name) else {
            return;
        };
        let member = |moved: &MovedBackend| {
            let member = moved.member.as_ref().filter(|member| member.of == name.name)?;
            let address: SocketAddr = moved.name.parse().ok()?;
            let weight = NonZeroU32::new(member.weight.min(WEIGHT_MAX))?;
            Some(member_of(name, address, weight, member.is_backup))
        };
        let members: Vec<_> = moved.iter().filter_map(member).collect();
        if !members.is_empty() {
            inner.unresolved.remove(unresolved);
            self.replace_members(inner, name, members);
        }
    }
}

#[cfg(test)]
mod tests;
