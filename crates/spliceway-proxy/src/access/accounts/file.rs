//! The file with the bytes that users have used. Each update writes the whole of it under another
//! name, syncs it, and renames it.
//!
//! ```text
//!   lock ─▶ read, if another process has written ─▶ add what is not saved ─▶ write, sync, rename ─┐
//!     ▲                                                                                           │
//!     └── unlock, if a hand-over shares the file ◀────────────────────────────────────────────────┘
//! ```
//!
//! The lock is that of the file with this name. A process that has waited for it looks at the name
//! again. If the file is gone, or is not what was written, it is written again from memory.

use std::fs::{self, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::calendar::{Date, Usage};
use super::snapshot::{Change, Content, Row, Snapshot};
use super::unusable::Unusable;
use crate::kit::{created, replacement};

/// The longest wait for another process, which usually takes less than 100 ms for an update.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for a file that another process may write again: two updates of that process.
const REWRITE: Duration = Duration::from_secs(1);
/// The longest file: more than a million users.
const MAX_BYTES: u64 = 256 << 20;

/// The file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// The identifier of this process.
    id: u32,
    /// What the file has.
    snapshot: Snapshot,
    /// The locked file. `None` between the updates of a file that is shared.
    locked: Option<fs::File>,
    /// The file when this process has read or written it.
    seen: Option<Seen>,
    /// The checksum of the content.
    sum: String,
    /// Whether the content was read after it was written.
    is_verified: bool,
    /// The path of the file behind all links, at the last update. A link may lead elsewhere later.
    last_target: Option<PathBuf>,
    is_loaded: bool,
    /// Whether no other process could write after the last update of this one.
    is_exclusive: bool,
    /// Whether rows that another process has written are not returned yet.
    has_news: bool,
    /// The number of processes before and after this one in hand-overs.
    others: usize,
    is_leaving: bool,
    /// The longest wait for another process.
    patience: Duration,
}

/// The state of a file that every change of its content changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    identity: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
}

/// What the file has of users now.
pub(super) type Rows = Vec<(Box<str>, Usage)>;

/// The result of an update.
#[derive(Debug, Default)]
pub(super) struct Updated {
    /// The rows of the changed users, or all rows if another process has changed the file.
    pub(super) rows: Rows,
    /// For each change, what this process may use until its next update. `None` in a change means
    /// that the quota is used up. Empty if no other process uses the file.
    pub(super) shares: Vec<Option<u64>>,
    pub(super) is_shared: bool,
    /// The length of the file, if it was written.
    pub(super) written: Option<u64>,
}

impl File {
    /// Reads the file, or creates it. Returns its rows. The call blocks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or is no such file.
    pub(super) fn load(
        path: &Path,
        date: Date,
        is_shared: bool,
        patience: Duration,
    ) -> Result<(Self, Updated), Unusable> {
        let mut file = Self {
            path: path.into(),
            id: std::process::id(),
            snapshot: Snapshot::default(),
            locked: None,
            seen: None,
            sum: String::new(),
            is_verified: false,
            last_target: None,
            is_loaded: false,
            is_exclusive: false,
            has_news: false,
            others: usize::from(is_shared),
            is_leaving: false,
            patience,
        };
        // The process that hands over may have the counters of a file that is gone, and writes it
        // again. If the file stays away, its settings name another file, or none.
        let until = Instant::now() + patience.min(REWRITE);
        while is_shared && matches!(file.named(), Ok(None)) && Instant::now() < until {
            replacement::wait();
        }
        let updated = file.update(&[], date)?;
        Ok((file, updated))
    }

    /// Makes these changes durable. The call blocks.
    ///
    /// # Errors
    /// Returns an error if nothing was changed.
    pub(super) fn update(&mut self, changes: &[Change], date: Date) -> Result<Updated, Unusable> {
        let until = Instant::now() + self.patience;
        // A process that hands over waits for its updates, and they are short.
        let mut is_silent = !self.is_loaded && self.others == 0;
        loop {
            match self.attempt(changes, date) {
                Err(why @ Unusable::Busy(_)) if Instant::now() < until => {
                    if std::mem::take(&mut is_silent) {
                        let path = self.path.display();
                        tracing::warn!("waiting for the quota file {path}: {why}");
                    }
                    replacement::wait();
                }
                updated => {
                    self.is_exclusive = self.others == 0 && !self.has_companions();
                    if !self.is_exclusive {
                        self.locked = None;
                    }
                    return updated;
                }
            }
        }
    }

    /// Records that one more process opens the file, or one less: a process that takes over may
    /// hand over before the one before it has ended. The next update has the effect.
    pub(super) fn share(&mut self, with_one_more: bool) {
        if with_one_more {
            self.others += 1;
        } else {
            self.others = self.others.saturating_sub(1);
        }
    }

    /// Returns whether this process has created the file and removed it, because it does not serve.
    pub(super) fn is_removed(&self) -> bool {
        created::is_removed(&self.path)
    }

    /// The next update is the last one.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Returns whether an update without changes is useful: the file is not what this process has
    /// written, or other processes have ended.
    pub(super) fn needs_update(&self) -> bool {
        !self.is_verified || self.named().ok().flatten() != self.seen || !self.is_settled()
    }

    /// Returns whether the file says which processes share it.
    fn is_settled(&self) -> bool {
        let processes = &self.snapshot.processes;
        if self.others == 0 && !self.has_companions() {
            return processes.is_empty();
        }
        processes.contains(&self.id) != self.is_leaving
    }

    /// Returns whether a process serves on that has handed over to one that has ended.
    fn has_companions(&self) -> bool {
        let mut processes = self.snapshot.processes.iter();
        processes.any(|one| *one != self.id && lives(*one))
    }

    fn attempt(&mut self, changes: &[Change], date: Date) -> Result<Updated, Unusable> {
        let is_there = self.lock()?;
        let found = if is_there {
            self.find(changes.is_empty())?
        } else {
            Err(Unusable::Other("it was removed".to_owned()))
        };
        if let (true, true, Err(why)) = (is_there, !self.is_loaded, found.as_ref()) {
            return Err(Unusable::Other(why.to_string()));
        }
        let target = self.target()?;
        if is_there && found.is_err() && self.last_target.as_ref() != Some(&target) {
            let why = format!("it is a link to {} now, which is no quota file", target.display());
            return Err(Unusable::Other(why));
        }
        self.last_target = Some(target);
        // A process that has ended in a crash may have left its name.
        let is_shared = self.others > 0 || self.is_loaded && self.has_companions();
        let mut updated = Updated {
            is_shared,
            ..Updated::default()
        };
        let mut must_write = !self.is_loaded || found.is_err() || !self.is_settled();
        let before = self.apply(changes, date, &mut updated);
        must_write |= changes.iter().zip(&before).any(|(change, (user, row))| {
            let now = self.snapshot.users.get(user);
            let is_same = row.as_ref().zip(now).is_some_and(|(row, now)| row.reserves_as(now));
            change.bytes > 0 || change.is_reset || !is_same
        });
        if must_write {
            self.settle(is_shared);
            match self.write(is_there) {
                Ok(bytes) => updated.written = Some(bytes),
                Err(why) => {
                    self.restore(before);
                    return Err(why);
                }
            }
            if let (true, Err(why)) = (self.is_loaded, &found) {
                let path = self.path.display();
                tracing::warn!(%path, %why, "another program has changed the quota file: it was written again from memory");
            }
        }
        if std::mem::take(&mut self.has_news) {
            updated.rows = self.rows(date);
        }
        self.is_loaded = true;
        Ok(updated)
    }

    /// Applies changes in memory. Returns the rows before.
    fn apply(&mut self, changes: &[Change], date: Date, updated: &mut Updated) -> Vec<(Box<str>, Option<Row>)> {
        let mut before = Vec::with_capacity(changes.len());
        for change in changes {
            let mut row = self.snapshot.changed(change, date);
            if updated.is_shared {
                updated.shares.push(if change.quotas.are_none() {
                    Some(u64::MAX)
                } else {
                    row.reserve(self.id, &change.quotas, change.bytes, change.is_waiting)
                });
            }
            updated.rows.push((change.user.clone(), row.used.clone()));
            let row = self.snapshot.users.insert(change.user.clone(), row);
            before.push((change.user.clone(), row));
        }
        if changes.iter().any(|change| change.bytes > 0) {
            self.snapshot.count_month(date.month);
        }
        before
    }

    /// Takes back changes that were not written.
    fn restore(&mut self, before: Vec<(Box<str>, Option<Row>)>) {
        let users = &mut self.snapshot.users;
        for (user, row) in before {
            match row {
                Some(row) => drop(users.insert(user, row)),
                None => drop(users.remove(&user)),
            }
        }
    }

    fn rows(&self, date: Date) -> Rows {
        let rows = self.snapshot.users.iter().map(|(user, row)| {
            let mut used = row.used.clone();
            used.advance(date);
            (user.clone(), used)
        });
        rows.collect()
    }

    /// Records which processes share the file.
    fn settle(&mut self, is_shared: bool) {
        let (id, processes) = (self.id, &mut self.snapshot.processes);
        if is_shared {
            processes.retain(|one| *one != id && lives(*one));
            if !self.is_leaving {
                processes.push(id);
            }
        } else if !processes.is_empty() {
            processes.clear();
            self.snapshot.release(None);
        }
        if self.is_leaving {
            self.snapshot.release(Some(id));
        }
    }

    /// Locks the file. Returns `false` if there is none.
    fn lock(&mut self) -> Result<bool, Unusable> {
        let target = self.target()?;
        let Some(named) = self.named()? else {
            self.locked = None;
            return Ok(false);
        };
        let is_named = |file: &fs::File| {
            file.metadata()
                .is_ok_and(|file| Seen::new(&file).identity == named.identity)
        };
        if self.locked.as_ref().is_some_and(is_named) {
            return Ok(true);
        }
        let file = replacement::options()
            .open(&target)
            .map_err(|error| Unusable::io("open it", &error))?;
        take(&file)?;
        // The process that had the lock may have given the name to another file.
        let locked = Seen::new(&file.metadata().map_err(Unusable::read)?);
        if self.named()?.is_none_or(|named| named.identity != locked.identity) {
            return Err(Unusable::Busy(None));
        }
        self.locked = Some(file);
        Ok(true)
    }

    /// Returns the file that has the name now.
    fn named(&self) -> Result<Option<Seen>, Unusable> {
        match fs::metadata(&self.path) {
            // A device or a pipe must not be replaced.
            Ok(file) if !file.is_file() => Err(Unusable::Other("it is no regular file".to_owned())),
            Ok(file) => Ok(Some(Seen::new(&file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Unusable::io("open it", &error)),
        }
    }

    /// Looks at the locked file, and takes over what another process has written. An inner error
    /// means that the file must be written again.
    fn find(&mut self, verifies: bool) -> Result<Result<(), Unusable>, Unusable> {
        let Some(file) = &mut self.locked else {
            return Ok(Ok(()));
        };
        let seen = Seen::new(&file.metadata().map_err(Unusable::read)?);
        // The time of a change is not exact, so that the first look reads the file.
        if self.seen == Some(seen) && (self.is_verified || !verifies) {
            return Ok(Ok(()));
        }
        if seen.bytes > MAX_BYTES {
            return Ok(Err(Unusable::content("it is too large")));
        }
        let mut bytes = Vec::new();
        file.rewind().map_err(Unusable::read)?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(Unusable::read)?;
        let content = match Content::verify(&bytes) {
            Err(why) => return Ok(Err(why)),
            Ok(content) => content,
        };
        if content.sum == self.sum {
            (self.seen, self.is_verified) = (Some(seen), true);
            return Ok(Ok(()));
        }
        let found = match content.decode() {
            Err(why) => return Ok(Err(why)),
            Ok(found) => found,
        };
        let is_newer = !self.is_loaded || !self.is_exclusive && found.updates > self.snapshot.updates;
        if !is_newer {
            return Ok(Err(Unusable::Other("it is another one".to_owned())));
        }
        (self.seen, self.is_verified, self.sum) = (Some(seen), true, content.sum);
        (self.snapshot, self.has_news) = (found, true);
        Ok(Ok(()))
    }

    /// Writes the whole file, which replaces the one with its name. Returns its length.
    fn write(&mut self, is_there: bool) -> Result<u64, Unusable> {
        let target = self.target()?;
        let (new, replaced) = (
            replacement::beside(&target),
            self.locked.as_ref().and_then(|file| file.metadata().ok()),
        );
        let fails = |error: &io::Error| Unusable::io(&format!("write {}", new.display()), error);
        let mut file = replacement::options()
            .create(true)
            .open(&new)
            .map_err(|error| fails(&error))?;
        take(&file)?;
        let is_new = fs::symlink_metadata(&new).is_ok_and(|named| {
            let opened = file.metadata();
            named.is_file() && opened.is_ok_and(|opened| Seen::new(&opened).identity == Seen::new(&named).identity)
        });
        if !is_new {
            return Err(match fs::symlink_metadata(&new) {
                Ok(named) if !named.is_file() => Unusable::Other(format!("{} is no regular file", new.display())),
                _ => Unusable::Busy(None),
            });
        }
        self.snapshot.updates += 1;
        let (bytes, sum) = self.snapshot.encode();
        let written = replacement::fill(&mut file, &bytes, replaced.as_ref()).and_then(|()| {
            created::replace(&self.path, || {
                if is_there {
                    fs::rename(&new, &target)
                } else {
                    name_new(&new, &target)
                }
            })
        });
        let written = written.and_then(|()| file.metadata());
        match written {
            Ok(metadata) => {
                (self.seen, self.is_verified, self.sum) = (Some(Seen::new(&metadata)), false, sum);
                self.locked = Some(file);
                Ok(bytes.len() as u64)
            }
            Err(error) => {
                self.snapshot.updates -= 1;
                // A disk that is full has the space again.
                let _ = fs::remove_file(&new);
                match error.kind() {
                    io::ErrorKind::AlreadyExists => Err(Unusable::Busy(None)),
                    _ => Err(fails(&error)),
                }
            }
        }
    }

    fn target(&self) -> Result<PathBuf, Unusable> {
        replacement::behind_links(&self.path).map_err(|why| Unusable::Other(why.to_string()))
    }
}

impl Seen {
    fn new(file: &Metadata) -> Self {
        Self {
            identity: (file.dev(), file.ino()),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
}

fn take(file: &fs::File) -> Result<(), Unusable> {
    match replacement::try_lock(file) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Unusable::locked(file)),
        Err(error) => Err(Unusable::io("lock it", &error)),
    }
}

/// Gives a file its name, unless another process has made one with this name.
fn name_new(new: &Path, target: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, target, RenameFlags::NOREPLACE) {
        // Some file systems cannot.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => fs::rename(new, target),
        renamed => Ok(renamed?),
    }
}

/// Returns whether a process runs. One that has ended may keep its number until its parent asks.
fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let has_ended = stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'));
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    !has_ended && process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

#[cfg(test)]
mod tests;
