//! The file with the bytes that users have used: a small database (redb).
//!
//! ```text
//!   open, lock ─┬─▶ read the rows of users ─ add what is not saved ─ commit, sync ─┐
//!               └─────────────── next update ◀──────────┬──────────────────────────┘
//!                                                       └─▶ close, if the file is shared
//! ```
//!
//! The lock of an open file keeps other processes away. During a hand-over, both processes open the
//! file only for their updates, and take turns. That is not the rule, because a close writes 3 MB.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, io, thread};

use redb::{Builder, Database, DatabaseError, ReadableTable, Table, TableDefinition};

use super::calendar::{Date, Usage};

/// The date and the bytes of each user: day, month, bytes of the day, bytes of the month.
const USAGE: TableDefinition<'_, &str, Row> = TableDefinition::new("usage");
/// The number of updates so far.
const UPDATES: TableDefinition<'_, (), u64> = TableDefinition::new("updates");

type Row = (u32, u32, u64, u64);

/// The memory for pages of the file. The default is 1 GiB.
const CACHE_BYTES: usize = 1 << 20;
/// The longest wait for another process, which usually takes less than 100 ms for an update.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two updates without changes while the file is shared. A user who moves bytes in
/// this process causes changes, and is not affected.
const LOOK: Duration = Duration::from_secs(10);
/// The time between two attempts to open a file that another process has open.
const RETRY: Duration = Duration::from_millis(20);

/// The file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    database: Option<Database>,
    /// The device and the number of the file that is open.
    identity: Option<(u64, u64)>,
    /// The number of other processes that open the file, too.
    others: usize,
    /// The longest wait for another process.
    patience: Duration,
    /// The number of updates after the last one of this process.
    updates: u64,
    /// The month for which old rows were removed.
    swept: u32,
    /// The time of the last change that this process has seen, and when it has looked.
    modified: Option<SystemTime>,
    looked: Option<Instant>,
}

/// The change of one user: what to add, after the row was emptied if `is_reset` is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) user: Box<str>,
    pub(super) bytes: u64,
    pub(super) is_reset: bool,
}

/// The rows that are in the file now.
pub(super) type Rows = Vec<(Box<str>, Usage)>;

/// Why the file cannot be used.
#[derive(Debug)]
pub(super) struct Unusable(String);

impl File {
    /// Opens the file, or creates it. Returns its rows. The call blocks.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or is no such file.
    pub(super) fn load(path: &Path, date: Date, is_shared: bool, patience: Duration) -> Result<(Self, Rows), Unusable> {
        let mut file = Self {
            path: path.into(),
            database: None,
            identity: None,
            others: usize::from(is_shared),
            patience,
            updates: u64::MAX,
            swept: 0,
            modified: None,
            looked: None,
        };
        let found = std::fs::metadata(path);
        if found.as_ref().is_ok_and(|file| !file.is_file()) {
            // A device, which also has no length, would be overwritten.
            return Err(Unusable("it is no regular file".to_owned()));
        }
        let is_new = found.map_or(true, |file| file.len() == 0);
        let mut database = match is_new {
            true => create(path)?,
            false => file.open()?,
        };
        if !database.check_integrity().map_err(Unusable::because)? {
            tracing::warn!(path = %path.display(), "the quota file was damaged, and is repaired");
        }
        file.identity = file.identity();
        file.database = Some(database);
        let rows = file.update(&[], date)?;
        Ok((file, rows))
    }

    /// Makes these changes durable. Returns the rows of these users, or all rows if another process
    /// has changed the file. The call blocks.
    ///
    /// # Errors
    /// Returns an error if nothing was changed.
    pub(super) fn update(&mut self, changes: &[Change], date: Date) -> Result<Rows, Unusable> {
        if self.database.is_some() && self.identity != self.identity() {
            // The file was moved away. What is written to it would be lost.
            self.database = None;
        }
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let database = self.open()?;
                self.identity = self.identity();
                database
            }
        };
        let rows = self.update_in(&database, changes, date)?;
        match self.others {
            0 => self.database = Some(database),
            _ => drop(database),
        }
        (self.modified, self.looked) = (self.modified(), Some(Instant::now()));
        Ok(rows)
    }

    /// Records that one more process opens the file, or one less: a process that takes over may
    /// hand over before the one before it has ended. A shared file is closed now. The call blocks.
    pub(super) fn share(&mut self, with_one_more: bool) {
        match with_one_more {
            true => {
                self.others += 1;
                self.close();
            }
            false => self.others = self.others.saturating_sub(1),
        }
    }

    /// Closes the file until the next update. The call blocks.
    pub(super) fn close(&mut self) {
        if self.database.take().is_some() {
            self.modified = self.modified();
        }
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let file = std::fs::metadata(&self.path).ok()?;
        Some((file.dev(), file.ino()))
    }

    /// Returns whether an update without changes is useful: the other process has ended, or seems
    /// to have changed the file. To read the file changes it, too, so that the processes would wake
    /// each other up again and again.
    pub(super) fn needs_update(&self) -> bool {
        let is_late = || self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        let has_changed = || is_late() && self.modified() != self.modified;
        self.database.is_none() && (self.others == 0 || has_changed())
    }

    fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.path).and_then(|file| file.modified()).ok()
    }

    /// Opens the file when no other process has it open. A missing file is an error, because a new
    /// one would have empty counters.
    fn open(&self) -> Result<Database, Unusable> {
        let until = Instant::now() + self.patience;
        loop {
            match builder().open(&self.path) {
                Ok(database) => return Ok(database),
                Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < until => wait(),
                Err(error) => return Err(Unusable::because(error)),
            }
        }
    }

    fn update_in(&mut self, database: &Database, changes: &[Change], date: Date) -> Result<Rows, Unusable> {
        let write = database.begin_write().map_err(Unusable::because)?;
        let (rows, updates) = {
            let mut table = write.open_table(USAGE).map_err(Unusable::because)?;
            let mut counter = write.open_table(UPDATES).map_err(Unusable::because)?;
            let before = counter.get(()).map_err(Unusable::because)?.map_or(0, |row| row.value());
            counter.insert((), before + 1).map_err(Unusable::because)?;
            if self.swept != date.month {
                let is_current = |_: &str, row: Row| row.1 >= date.month;
                table.retain(is_current).map_err(Unusable::because)?;
            }
            let mut rows = Rows::new();
            for change in changes {
                rows.push((change.user.clone(), apply(&mut table, change, date)?));
            }
            if before != self.updates {
                rows = all(&table)?;
            }
            (rows, before + 1)
        };
        write.commit().map_err(Unusable::because)?;
        (self.updates, self.swept) = (updates, date.month);
        Ok(rows)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this thread may block, and nothing tells that another process has closed a file"
)]
fn wait() {
    thread::sleep(RETRY);
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Creates a file that only this user may read, because it has the names of users.
fn create(path: &Path) -> Result<Database, Unusable> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).map_err(Unusable::because)?;
    let created = builder().create(path);
    if !matches!(created, Ok(_) | Err(DatabaseError::DatabaseAlreadyOpen)) {
        // For example, the disk is full. The next start must not find half a file.
        let _ = file.set_len(0);
    }
    created.map_err(Unusable::because)
}

fn apply(table: &mut Table<'_, &str, Row>, change: &Change, date: Date) -> Result<Usage, Unusable> {
    let Change { user, bytes, is_reset } = change;
    let row = table.get(&**user).map_err(Unusable::because)?.map(|row| row.value());
    let row = row.filter(|_| !is_reset);
    let mut usage = row.map_or_else(|| Usage::new(date), usage);
    usage.advance(date);
    usage.add(*bytes);
    let row = (usage.date.day, usage.date.month, usage.day, usage.month);
    table.insert(&**user, row).map_err(Unusable::because)?;
    Ok(usage)
}

fn all(table: &Table<'_, &str, Row>) -> Result<Rows, Unusable> {
    let rows = table.iter().map_err(Unusable::because)?;
    rows.map(|row| {
        let (user, row) = row.map_err(Unusable::because)?;
        Ok((user.value().into(), usage(row.value())))
    })
    .collect()
}

fn usage((day, month, of_day, of_month): Row) -> Usage {
    Usage {
        date: Date { day, month },
        day: of_day,
        month: of_month,
    }
}

impl Unusable {
    fn because(error: impl Into<redb::Error>) -> Self {
        Self(match error.into() {
            redb::Error::DatabaseAlreadyOpen => "another process has it open".to_owned(),
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                "it is no quota file, or damaged: move it away to begin with empty counters".to_owned()
            }
            redb::Error::Corrupted(what) => {
                format!("it is damaged ({what}): move it away to begin with empty counters")
            }
            error => error.to_string(),
        })
    }

    /// Says that an update has not ended in time.
    pub(super) fn slow() -> Self {
        Self("the disk does not answer".to_owned())
    }

    /// Says that the thread with the database has panicked, as it may if the file is damaged.
    pub(super) fn panicked() -> Self {
        Self("it is damaged: move it away to begin with empty counters".to_owned())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: Date = Date { day: 100, month: 3 };

    /// The path of a file that is removed at the end of a test.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            let name = format!("spliceway-quotas-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn load(&self, date: Date) -> (File, Rows) {
            File::load(&self.0, date, false, Duration::ZERO).unwrap()
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn change(user: &str, bytes: u64, is_reset: bool) -> Change {
        Change {
            user: user.into(),
            bytes,
            is_reset,
        }
    }

    /// Returns the bytes of the day and the month of each user.
    fn shown(rows: &Rows) -> Vec<(&str, u64, u64)> {
        rows.iter()
            .map(|(user, usage)| (&**user, usage.day, usage.month))
            .collect()
    }

    #[test]
    fn bytes_add_up_by_user_and_period_and_a_reset_empties_one_user() {
        let path = Temporary::new("add");
        let (mut file, rows) = path.load(TODAY);
        assert!(rows.is_empty());
        let both = [change("ann", 5, false), change("bob", 7, false)];
        assert_eq!(
            shown(&file.update(&both, TODAY).unwrap()),
            [("ann", 5, 5), ("bob", 7, 7)]
        );
        let tomorrow = Date { day: 101, month: 3 };
        let rows = file.update(&[change("ann", 1, false)], tomorrow).unwrap();
        assert_eq!(shown(&rows), [("ann", 1, 6)]);
        let rows = file.update(&[change("ann", 2, true)], tomorrow).unwrap();
        assert_eq!(shown(&rows), [("ann", 2, 2)]);
        drop(file);
        let (_, rows) = path.load(tomorrow);
        assert_eq!(shown(&rows), [("ann", 2, 2), ("bob", 7, 7)]);
    }

    #[test]
    fn another_process_takes_turns_and_its_rows_are_seen() {
        let path = Temporary::new("turns");
        let (mut one, _) = path.load(TODAY);
        let load = || File::load(&path.0, TODAY, true, Duration::ZERO);
        let why = load().unwrap_err().to_string();
        assert_eq!(why, "another process has it open");
        // It takes over from one process and hands over to another one.
        one.share(true);
        one.share(true);
        one.share(false);
        let (mut two, _) = load().unwrap();
        assert_eq!(
            shown(&one.update(&[change("ann", 5, false)], TODAY).unwrap()),
            [("ann", 5, 5)]
        );
        assert!(one.others == 1 && !one.needs_update(), "it has looked just now");
        two.looked = None;
        assert!(two.needs_update());
        let rows = two.update(&[change("bob", 7, false)], TODAY).unwrap();
        assert_eq!(shown(&rows), [("ann", 5, 5), ("bob", 7, 7)]);
        two.looked = None;
        assert!(!two.needs_update(), "nothing has changed");
        two.share(false);
        assert!(two.needs_update(), "to keep the file open");
        two.share(true);
        let held = builder().open(&path.0).unwrap();
        one.patience = PATIENCE;
        let waiting = thread::spawn(move || one.update(&[change("ann", 1, false)], TODAY).map(|rows| rows.len()));
        drop(held);
        assert_eq!(waiting.join().unwrap().unwrap(), 2);
    }

    #[test]
    fn users_of_an_earlier_month_are_removed() {
        let path = Temporary::new("months");
        let (mut file, _) = path.load(TODAY);
        file.update(&[change("ann", 5, false)], TODAY).unwrap();
        let next = Date { day: 130, month: 4 };
        file.update(&[change("bob", 7, false)], next).unwrap();
        drop(file);
        assert_eq!(shown(&path.load(next).1), [("bob", 7, 7)]);
    }

    #[test]
    fn a_file_that_is_gone_is_not_made_again() {
        let path = Temporary::new("gone");
        let (mut file, _) = path.load(TODAY);
        std::fs::remove_file(&path.0).unwrap();
        assert!(file.update(&[change("ann", 5, false)], TODAY).is_err());
        assert!(!path.0.exists());
        std::fs::write(&path.0, "").unwrap();
        assert!(path.load(TODAY).1.is_empty(), "an empty file is a new one");
    }

    #[test]
    fn a_pipe_or_a_device_is_refused_and_stays() {
        let path = Temporary::new("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path.0, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let why = File::load(&path.0, TODAY, false, Duration::ZERO).unwrap_err();
        assert_eq!(why.to_string(), "it is no regular file");
        assert!(path.0.exists());
    }
}
