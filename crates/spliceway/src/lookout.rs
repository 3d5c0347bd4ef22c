//! Looks for urgent marks, once for all receives that came short since the runtime last looked for events.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use spliceway_core::Suspects;

use crate::company::give_way;

/// The sockets of one thread that a receive came short on, and the promise that they are looked at before the thread waits.
#[derive(Debug)]
pub(crate) struct Lookout(Arc<Shared>);

/// Looks at them when it is woken: once the runtime has looked for events, at once where none is, or when it stops (see [`give_way`]).
#[derive(Debug)]
struct Shared(Mutex<Suspects>);

impl Lookout {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared(Mutex::new(Suspects::new()))))
    }

    /// Its readiness was forgotten, as a receive came short.
    pub(crate) fn suspect(&self, socket: BorrowedFd<'_>) {
        let mut suspects = self.0.suspects();
        let is_promised = !suspects.is_empty();
        if suspects.is_full() {
            suspects.clear();
        }
        suspects.add(socket);
        drop(suspects);
        if !is_promised {
            let waker = Waker::from(Arc::clone(&self.0));
            give_way(&mut Context::from_waker(&waker));
        }
    }
}

impl Shared {
    fn suspects(&self) -> MutexGuard<'_, Suspects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.suspects().clear();
    }
}
