//! Files that are read again when they change. If they cannot be used, what was made of them before
//! stays in force.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The time between two looks at the files. Together with the time to read them, a change is in
/// force within 10 seconds.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What is known about the files. `S` is their state.
#[derive(Debug)]
pub(super) struct Watched<S> {
    /// The state of the files before they were read. A change while they are read is thus seen at
    /// the next look.
    seen: Mutex<S>,
    stale: Mutex<Option<Stale>>,
}

/// The previous files stay in force.
#[derive(Debug, Clone)]
pub(crate) struct Stale {
    pub(crate) since: SystemTime,
    /// What is wrong with the changed files.
    pub(crate) why: Arc<str>,
}

impl<S: Clone + PartialEq> Watched<S> {
    pub(super) fn new(seen: S) -> Self {
        Self {
            seen: Mutex::new(seen),
            stale: Mutex::default(),
        }
    }

    /// Forgets that files could not be used, because those were other ones.
    pub(super) fn continued(&self) -> Self {
        Self::new(self.seen.lock().clone())
    }

    /// Returns since when the previous files stay in force, although they have changed.
    pub(super) fn stale(&self) -> Option<Stale> {
        self.stale.lock().clone()
    }

    /// Calls `read` if the files have changed since the last look. If they could not be used then,
    /// it tries again, because the moment may have been wrong: a lack of descriptors, or of memory.
    /// `tell` gets the result, unless it is the same fault as before.
    pub(super) fn look<E: Display>(
        &self,
        now: S,
        read: impl FnOnce() -> Result<(), E>,
        tell: impl FnOnce(Result<(), &str>),
    ) -> Option<Result<(), E>> {
        let before = self.stale();
        if now == *self.seen.lock() && before.is_none() {
            return None;
        }
        *self.seen.lock() = now;
        // This may take seconds, and others read the locks meanwhile.
        let result = read();
        let (since, known) = match before {
            Some(Stale { since, why }) => (since, Some(why)),
            None => (SystemTime::now(), None),
        };
        let fault: Option<Arc<str>> = result.as_ref().err().map(|error| error.to_string().into());
        *self.stale.lock() = fault.clone().map(|why| Stale { since, why });
        if fault.is_none() || known != fault {
            tell(fault.as_deref().map_or(Ok(()), Err));
        }
        Some(result)
    }
}

/// Calls `look` every [`LOOK_AGAIN`]. Never returns. A thousand pairs take a blocking thread for a
/// moment, and no worker.
pub(super) async fn watch(service: Arc<str>, look: impl Fn() + Send + Sync + 'static) {
    let look = Arc::new(look);
    loop {
        sleep(LOOK_AGAIN).await;
        let look = Arc::clone(&look);
        if let Err(error) = spawn_blocking(move || look()).await {
            tracing::error!(service = &*service, "the previous TLS files stay in force: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_could_not_be_read_are_read_again_and_told_once() {
        let files = Watched::new(1);
        let mut told = Vec::new();
        let mut look = |now, result: Result<(), &'static str>| {
            let looked = files.look(now, || result, |result| told.push(result.map_err(str::to_owned)));
            (looked, files.stale().map(|stale| stale.why.to_string()))
        };
        assert_eq!(look(1, Ok(())), (None, None));
        for _ in 0..2 {
            assert_eq!(look(2, Err("busy")), (Some(Err("busy")), Some("busy".to_owned())));
        }
        assert_eq!(look(2, Ok(())), (Some(Ok(())), None));
        assert_eq!(look(2, Ok(())), (None, None));
        assert_eq!(told, [Err("busy".to_owned()), Ok(())]);
    }
}
