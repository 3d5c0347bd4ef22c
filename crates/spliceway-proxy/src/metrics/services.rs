//! The services that have series: those that run, those whose sessions still run, and for a while
//! those that are gone.
//!
//! ```text
//!   runs ─ a reload removes it ─▶ removed ─ its last session ends ─▶ gone ─ KEPT_FOR ─▶ no series
//! ```

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use spliceway::Reason;
use tokio::time::Instant;

use super::traffic::Traffic;

/// The time for which a service that is gone keeps its series, so that every scraper sees the last
/// counts. Prometheus scrapes once a minute by default.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(5 * 60);
/// The most services that are gone and keep their series. A thousand reloads must not become
/// thousands of series.
const KEPT_MAX: usize = 16;

/// For each reason in [`Reason::ALL`], how often it made a direction copy.
pub(super) type Fallbacks = [u64; Reason::ALL.len()];

/// The traffic of every service that has series. Clones share the list.
#[derive(Clone, Default)]
pub(super) struct AllTraffic(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    services: Vec<Entry>,
    /// The place of each service in the list.
    indices: HashMap<&'static str, usize>,
    /// The fallbacks of services that have no series any more. Their sum has no label of a service,
    /// and must not go back.
    fallbacks: Fallbacks,
}

struct Entry {
    traffic: Arc<Traffic>,
    /// Since when neither a service nor a session has used the traffic.
    gone: Option<Instant>,
}

impl AllTraffic {
    /// Returns the traffic of this service, new or known.
    pub(super) fn of_service(&self, service: &'static str) -> Arc<Traffic> {
        let mut known = self.known();
        if let Some(index) = known.indices.get(service) {
            return Arc::clone(&known.services[*index].traffic);
        }
        let traffic = Arc::new(Traffic::new(service));
        let index = known.services.len();
        known.indices.insert(service, index);
        known.services.push(Entry {
            traffic: Arc::clone(&traffic),
            gone: None,
        });
        traffic
    }

    pub(super) fn all(&self) -> Vec<Arc<Traffic>> {
        let known = self.known();
        known.services.iter().map(|entry| Arc::clone(&entry.traffic)).collect()
    }

    pub(super) fn earlier_fallbacks(&self) -> Fallbacks {
        self.known().fallbacks
    }

    /// Removes the services that have been gone for long enough, or of which there are too many.
    pub(super) fn sweep(&self, now: Instant) {
        let mut known = self.known();
        for entry in &mut known.services {
            // Only the lock gives out new references, so the last one stays the last one.
            let is_used = Arc::strong_count(&entry.traffic) > 1;
            entry.gone = if is_used { None } else { entry.gone.or(Some(now)) };
        }
        let mut gone: Vec<Instant> = known.services.iter().filter_map(|entry| entry.gone).collect();
        gone.sort_unstable();
        let mut too_many = gone.len().saturating_sub(KEPT_MAX);
        let Known {
            services,
            indices,
            fallbacks,
        } = &mut *known;
        if gone.is_empty() {
            return;
        }
        // Services are in the order in which they came, so the oldest go first.
        services.retain(|entry| {
            let Some(gone) = entry.gone else { return true };
            let is_swept = too_many > 0 || now.saturating_duration_since(gone) >= KEPT_FOR;
            if is_swept {
                too_many = too_many.saturating_sub(1);
                let counts = fallbacks.iter_mut().zip(entry.traffic.fallbacks());
                counts.for_each(|(sum, count)| *sum += count);
            }
            !is_swept
        });
        let names = services.iter().map(|entry| entry.traffic.service());
        *indices = names.zip(0..).collect();
    }

    /// Locks the list.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &AllTraffic) -> Vec<&'static str> {
        all.all().iter().map(|traffic| traffic.service()).collect()
    }

    #[test]
    fn a_service_keeps_its_series_while_it_is_used_and_for_a_while() {
        let (all, start) = (AllTraffic::default(), Instant::now());
        let (service, session) = (all.of_service("a"), all.of_service("a"));
        let _other = all.of_service("b");
        drop(service);
        let sweep = |now| {
            all.sweep(now);
            names(&all)
        };
        assert_eq!(sweep(start + 2 * KEPT_FOR), ["a", "b"], "a session runs");
        drop(session);
        let gone = start + 3 * KEPT_FOR;
        assert_eq!(sweep(gone), ["a", "b"]);
        assert_eq!(sweep(gone + KEPT_FOR / 2), ["a", "b"]);
        assert_eq!(sweep(gone + KEPT_FOR), ["b"]);
    }

    #[test]
    fn of_many_services_that_are_gone_the_last_ones_keep_their_series() {
        let (all, now) = (AllTraffic::default(), Instant::now());
        for number in 0..1000 {
            drop(all.of_service(Box::leak(format!("service-{number}").into())));
            all.sweep(now);
        }
        let names = names(&all);
        assert_eq!((names.len(), names[0]), (KEPT_MAX, "service-984"));
    }
}
