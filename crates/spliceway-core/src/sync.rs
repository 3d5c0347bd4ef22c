//! The locks and atomics whose protocols loom checks. They are the types of std, or the types of
//! loom in `cargo xtask loom`.
//!
//! Counters that influence no decision always use the types of std, and so do reference counts. A
//! model then has no more steps than its claim needs.

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

/// Locks `mutex` even if it is poisoned. The mutex guards a free list, or the list of free lists.
/// Both are consistent at every instant, so a panic cannot have broken them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex` as [`lock`] does, or returns `None` if a thread holds the lock. It never waits.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Declares statics of these types. The loom types cannot be created at compile time, and loom
/// creates such statics anew for every run.
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

/// Runs `claim` in every interleaving of its threads with up to three preemptions, and with every
/// value that a load may return there. (Two preemptions show nearly every known race. Four take
/// minutes.)
#[cfg(all(test, loom))]
pub(crate) fn every_interleaving(claim: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(3);
    model.check(claim);
}
