//! Keeps quotas: ends the sessions of users who have used theirs up, and saves what was used.
//!
//! ```text
//!   every half second, and when a quota is used up:
//!     close sessions ─▶ changes ─▶ file, on a thread that may block ─▶ saved
//! ```
//!
//! During a hand-over, both processes count. Each reserves a share of what is left in the file, and
//! updates the file at once when sessions have used their share.

use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use super::Accounts;
use super::calendar::Date;
use super::file::{File, PATIENCE};
use super::unusable::Unusable;

/// The time between two updates of the file. A process that is killed loses the bytes of this time,
/// and of one update. Both together are below a second unless the disk is very slow.
const EVERY: Duration = Duration::from_millis(500);
/// The time between two updates of a file that another process updates, too.
const EVERY_SHARED: Duration = Duration::from_millis(100);
/// The time after an update in which no other one begins, although sessions wait.
const LEAST_GAP: Duration = Duration::from_millis(5);
/// The most bytes that updates write in a second. With many users, they are rarer.
const BYTES_PER_SECOND: u64 = 4_000_000;
/// The time after which an update counts as failed. The file may wait for another process.
const SLOW: Duration = PATIENCE.saturating_mul(2);
/// The time after which an update counts as failed while sessions may wait for it.
const SLOW_SHARED: Duration = Duration::from_secs(8);
/// The longest time for the last update, at the end of the program.
const LAST: Duration = Duration::from_secs(2);

impl Accounts {
    /// Reads the quota file. If it `is_shared`, the process that hands over to this one opens it,
    /// too. The call blocks.
    ///
    /// # Errors
    /// Returns a message if the file cannot be used.
    pub(crate) fn load(&self, path: &Path, is_shared: bool) -> Result<(), String> {
        let date = Date::now();
        let loaded = File::load(path, date, is_shared, PATIENCE);
        let (file, updated) = loaded.map_err(|why| format!("quota file {}: {why}", path.display()))?;
        self.saved(&[], updated, date);
        let _ = self.file.set(Mutex::new(file));
        Ok(())
    }

    /// Keeps the quotas, and never returns. Without quotas, it waits for them. `close_used_up` ends
    /// the sessions of users who have used their quota up.
    pub(crate) async fn keep<Closing>(self: Arc<Self>, close_used_up: impl Fn() -> Closing)
    where
        Closing: Future<Output = ()>,
    {
        let (mut next, mut saving) = (Instant::now(), None);
        let mut soon = next;
        loop {
            if !self.have_quotas() {
                self.keeper.notified().await;
                continue;
            }
            // An account that is used up is told at once, and the file at most each half second.
            let _is_told = timeout_at(next, self.keeper.notified()).await;
            if self.are_used_up() {
                close_used_up().await;
            }
            if self.are_waiting() {
                next = next.min(soon);
            }
            let begun = Instant::now();
            if begun < next {
                continue;
            }
            let mut under_way = saving.take().unwrap_or_else(|| self.elsewhere(Self::save));
            let slow = if self.are_shared() { SLOW_SHARED } else { SLOW };
            match timeout(slow, &mut under_way).await {
                Ok(saved) => self.end_update(saved.unwrap_or_else(|_| Some(Err(Unusable::panicked())))),
                // A disk that hangs delays neither the next day nor the end of a session for long.
                Err(_) => {
                    self.end_update(Some(Err(Unusable::slow())));
                    let settle = |accounts: &Self| drop(accounts.changes(Date::now()));
                    let _ = self.elsewhere(settle).await;
                    saving = Some(under_way);
                }
            }
            // Updates take at most half of the time.
            soon = Instant::now() + begun.elapsed().max(LEAST_GAP);
            next = soon.max(begun + self.pace());
        }
    }

    /// Returns the time between two updates.
    fn pace(&self) -> Duration {
        if self.are_shared() {
            return EVERY_SHARED;
        }
        let bytes = self.saving.bytes();
        EVERY.max(Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_SECOND))
    }

    /// Does this on a thread that may block.
    fn elsewhere<T: Send + 'static>(self: &Arc<Self>, what: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let accounts = Arc::clone(self);
        spawn_blocking(move || what(&accounts))
    }

    /// Records that one more process opens the quota file, or one less. Afterwards, it can.
    pub(crate) async fn share(self: &Arc<Self>, with_one_more: bool) {
        if self.file.get().is_none() {
            return;
        }
        let sharing = self.elsewhere(move |accounts| accounts.share_file(with_one_more));
        self.end_update(sharing.await.unwrap_or_else(|_| Some(Err(Unusable::panicked()))));
        self.keeper.notify_one();
    }

    /// Does the same. The call blocks.
    pub(super) fn share_file(&self, with_one_more: bool) -> Option<Result<(), Unusable>> {
        self.file.get()?.lock().share(with_one_more);
        if !with_one_more {
            return None;
        }
        // Every account needs a share from this update on, even one that has nothing to save.
        self.all().is_shared = true;
        // The other process finds everything, and this one has reserved its share.
        self.save()
    }

    /// Saves once more at the end of the program, and waits for at most [`LAST`]. The call blocks.
    pub(crate) fn finish(self: &Arc<Self>) {
        if self.file.get().is_none() {
            return;
        }
        let (sender, saved) = mpsc::channel();
        let accounts = Arc::clone(self);
        let save = move || {
            if let Some(file) = accounts.file.get() {
                file.lock().leave();
            }
            accounts.saving.log_result(accounts.save());
            let _ = sender.send(());
        };
        // Without a thread, a disk that hangs delays the end, but nothing is lost.
        if std::thread::Builder::new().spawn(save.clone()).is_err() {
            save();
        }
        // A disk that hangs does not keep the process.
        let _ = saved.recv_timeout(LAST);
    }

    /// Saves what is not in the file yet, and takes over what other processes have saved. Returns
    /// `None` if there was nothing to do.
    pub(super) fn save(&self) -> Option<Result<(), Unusable>> {
        // Two updates at the same time would save the same changes.
        let mut file = self.file.get()?.lock();
        if file.is_removed() {
            return None;
        }
        let date = Date::now();
        let changes = self.changes(date);
        if changes.is_empty() && !file.needs_update() {
            return None;
        }
        let updated = file.update(&changes, date);
        Some(updated.map(|updated| {
            if let Some(bytes) = updated.written {
                self.saving.set_bytes(bytes);
            }
            self.saved(&changes, updated, date);
        }))
    }

    fn end_update(&self, saved: Option<Result<(), Unusable>>) {
        if matches!(saved, Some(Err(_))) {
            self.lift_shares();
        }
        self.saving.log_result(saved);
    }

    /// Returns the number of updates of the quota file by result, if there is a file.
    pub(crate) fn updates(&self) -> Option<[(&'static str, u64); 2]> {
        self.file.get().map(|_| self.saving.updates())
    }

    /// Returns whether the last update of the quota file has worked. `None` means that there is no
    /// file.
    pub(crate) fn are_saved(&self) -> Option<bool> {
        let file = self.file.get();
        file.map(|_| !self.saving.is_failing())
    }
}

#[cfg(test)]
mod tests {
    use super::super::AllLimits;
    use super::*;

    #[tokio::test(start_paused = true)]
    #[expect(
        clippy::await_holding_lock,
        reason = "it is the disk, for which only another thread waits"
    )]
    async fn a_disk_that_hangs_is_reported_and_gets_everything_later() {
        let path = std::env::temp_dir().join(format!("spliceway-quotas-hangs-{}", std::process::id()));
        let (accounts, mut limits) = (Arc::<Accounts>::default(), AllLimits::default());
        limits.every.quotas.day = std::num::NonZeroU64::new(1000);
        accounts.set(&limits);
        accounts.load(&path, false).unwrap();
        let keeping = tokio::spawn(Arc::clone(&accounts).keep(|| async {}));
        let disk = Arc::clone(&accounts);
        let hang = disk.file.get().unwrap().lock();
        let session = accounts.enter("ann").unwrap().unwrap();
        session.account().count(7);
        let until = std::time::Instant::now() + Duration::from_secs(20);
        let pass = async |is_saved| {
            while accounts.are_saved() != Some(is_saved) {
                assert!(std::time::Instant::now() < until);
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        };
        pass(false).await;
        drop(hang);
        pass(true).await;
        assert!(accounts.changes(Date::now()).is_empty());
        keeping.abort();
        std::fs::remove_file(&path).unwrap();
    }
}
