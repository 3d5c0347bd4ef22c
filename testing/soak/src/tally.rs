//! The load's progress and faults.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::peer::Fault;

/// The most faults to print. More would not add information, because a broken relay causes one per
/// connection.
const SHOWN_MAX: u64 = 10;

#[derive(Default)]
pub(super) struct Tally {
    verified: AtomicU64,
    ended: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Sessions by kind.
    kinds: BTreeMap<&'static str, u64>,
    faults: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn verified(&self, bytes: usize) {
        self.verified.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }

    pub(super) fn session_ended(&self, kind: &'static str) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        *self.counts().kinds.entry(kind).or_default() += 1;
    }

    pub(super) fn sessions(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Records a fault and prints it immediately, because a run may take hours.
    pub(super) fn fault(&self, who: &dyn Display, fault: &Fault) {
        self.note(who, fault, &fault.kind());
    }

    pub(super) fn note(&self, who: &dyn Display, what: &dyn Display, kind: &str) {
        let mut counts = self.counts();
        *counts.faults.entry(kind.to_owned()).or_default() += 1;
        if counts.faults.values().sum::<u64>() <= SHOWN_MAX {
            eprintln!("FAULT {who}: {what}");
        }
    }

    pub(super) fn faults(&self) -> BTreeMap<String, u64> {
        self.counts().faults.clone()
    }

    pub(super) fn kinds(&self) -> BTreeMap<&'static str, u64> {
        self.counts().kinds.clone()
    }

    /// Returns whether there are too many faults to continue.
    pub(super) fn hopeless(&self) -> bool {
        self.counts().faults.values().sum::<u64>() > SHOWN_MAX
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
