//! State that the relays of one thread share.

use std::cell::RefCell;

#[cfg(target_os = "linux")]
use spliceway_core::{UrgentMarkCheck, transfer};

#[cfg(target_os = "linux")]
use crate::yield_now::defer;

#[cfg(target_os = "linux")]
const SCRATCH: usize = transfer::SCRATCH;
#[cfg(not(target_os = "linux"))]
const SCRATCH: usize = crate::copy_loop::MAX_READ;

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::new(Worker::new());
}

pub(crate) struct Worker {
    /// The buffer for reads. Bytes stay here only until the same poll has written or saved them. So
    /// a relay that waits holds no buffer.
    pub(crate) scratch: Box<[u8]>,
    #[cfg(target_os = "linux")]
    pub(crate) urgent: UrgentMarkCheck,
}

impl Worker {
    fn new() -> Self {
        Self {
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            #[cfg(target_os = "linux")]
            urgent: UrgentMarkCheck::new(defer),
        }
    }

    /// Lends the worker of this thread. A relay that is polled inside another relay's poll gets a
    /// new one. This happens if a waker polls a task immediately, or if a caller's stream has a
    /// relay inside.
    pub(crate) fn lend<T>(borrow: impl FnOnce(&mut Self) -> T) -> T {
        WORKER.with(|worker| match worker.try_borrow_mut() {
            Ok(mut worker) => borrow(&mut worker),
            Err(_) => borrow(&mut Self::new()),
        })
    }
}
