//! The services that have series: those that run, those whose sessions still run, and for a while
//! those that are gone.
//!
//! ```text
//!   runs ─ a reload removes it ─▶ removed ─ its last session ends ─▶ gone ─ KEPT_FOR ─▶ no series
//! ```

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
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
    /// The services by their numbers, so in the order in which they came.
    services: BTreeMap<u64, Entry>,
    numbers: HashMap<Arc<str>, u64>,
    last: u64,
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
    pub(super) fn of_service(&self, service: &str) -> Arc<Traffic> {
        let mut known = self.known();
        let number = known.numbers.get(service);
        if let Some(entry) = number.and_then(|number| known.services.get(number)) {
            return Arc::clone(&entry.traffic);
        }
        let traffic = Arc::new(Traffic::new(service));
        known.last += 1;
        let number = known.last;
        known.numbers.insert(traffic.name(), number);
        let entry = Entry {
            traffic: Arc::clone(&traffic),
            gone: None,
        };
        known.services.insert(number, entry);
        traffic
    }

    pub(super) fn all(&self) -> Vec<Arc<Traffic>> {
        let known = self.known();
        known
            .services
            .values()
            .map(|entry| Arc::clone(&entry.traffic))
            .collect()
    }

    pub(super) fn earlier_fallbacks(&self) -> Fallbacks {
        self.known().fallbacks
    }

    /// Removes the services that have been gone for long enough, or of which there are too many.
    pub(super) fn sweep(&self, now: Instant) {
        let mut known = self.known();
        let mut gone: Vec<(Instant, u64)> = Vec::new();
        for (number, entry) in &mut known.services {
            // Only the lock gives out new references, so the last one stays the last one.
            let is_used = Arc::strong_count(&entry.traffic) > 1;
            entry.gone = if is_used { None } else { entry.gone.or(Some(now)) };
            gone.extend(entry.gone.map(|gone| (gone, *number)));
        }
        // Those that went first are swept first.
        gone.sort_unstable();
        let too_many = gone.len().saturating_sub(KEPT_MAX);
        for (index, (since, number)) in gone.into_iter().enumerate() {
            if index >= too_many && now.saturating_duration_since(since) < KEPT_FOR {
                continue;
            }
            if let Some(Entry { traffic, .. }) = known.services.remove(&number) {
                known.numbers.remove(traffic.service());
                let counts = known.fallbacks.iter_mut().zip(traffic.fallbacks());
                counts.for_each(|(sum, count)| *sum += count);
            }
        }
    }

    /// Locks the list.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &AllTraffic) -> Vec<String> {
        all.all().iter().map(|traffic| traffic.service().to_owned()).collect()
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
            drop(all.of_service(&format!("service-{number}")));
            all.sweep(now);
        }
        let names = names(&all);
        assert_eq!((names.len(), &*names[0]), (KEPT_MAX, "service-984"));
    }
}
