//! Looks for urgent marks, once for all receives that came short since the runtime last looked for events.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use spliceway_core::Suspects;

use crate::company::give_way;

/// The sockets of one thread that a receive came short on. While there is one, a [`Promise`] is out to look at them all.
#[derive(Debug)]
pub(crate) struct Lookout(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<Suspects>);

/// Keeps itself when it is dropped: by the runtime once it has looked for events, as it wakes what gave way, or at once where no runtime
/// is; or by one that stops before, whose sockets may still be waited for when it goes on.
struct Promise(Arc<Shared>);

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
            let waker = Waker::from(Arc::new(Promise(Arc::clone(&self.0))));
            give_way(&mut Context::from_waker(&waker));
        }
    }
}

impl Shared {
    fn suspects(&self) -> MutexGuard<'_, Suspects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Promise {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.suspects().clear();
    }
}
