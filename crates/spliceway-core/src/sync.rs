//! The locks and atomics whose protocols loom checks: std's, and loom's in `cargo xtask loom`.
//!
//! Counters that nobody decides by stay std's, and so do references: a model needs no more steps than its claim has.

use std::sync::{PoisonError, TryLockError};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicUsize},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicUsize},
};

/// What these locks guard (a shelf, a list of shelves) is whole at every instant, so a panic meanwhile has broken nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same if nobody holds it, without waiting.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Statics of these types. Loom's are made anew for every run it tries, and cannot be made at compile time.
macro_rules! statics {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
        $(
            $(#[$attribute])*
            #[cfg(not(all(test, loom)))]
            static $name: $type = $value;
        )*
        #[cfg(all(test, loom))]
        loom::lazy_static! { $(static ref $name: $type = $value;)* }
    };
}
pub(crate) use statics;

/// Runs `claim` in every interleaving of its threads with up to three preemptions, and every value a load may give there.
/// (Nearly every known race shows with two; four take minutes.)
#[cfg(all(test, loom))]
pub(crate) fn every_interleaving(claim: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(claim);
}
