//! Files that replace another one under its name, so that nobody reads half of a file.
//!
//! The new file is beside the old one, and its name ends in `.new`. A process locks it while it
//! writes.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, fchown, flock};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

/// The most links from a path to its file, as in the kernel.
const LINKS_MAX: usize = 40;
/// The time between two attempts to lock a file that another process has locked.
const RETRY: Duration = Duration::from_millis(5);

/// Returns the path of the file behind all links. So a link stays a link.
///
/// # Errors
/// Returns an error if the links have no end.
pub(crate) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("its links have no end"))
}

/// Returns the name under which a file is written before it replaces the one at `target`.
pub(crate) fn beside(target: &Path) -> PathBuf {
    let mut name = target.to_owned().into_os_string();
    name.push(".new");
    name.into()
}

/// Opens files that only their user may read, because they have the names of users.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe that takes the name of the file must not block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed());
    options
}

/// Locks a file. Returns `false` if another process has locked it.
///
/// # Errors
/// Returns an error if files cannot be locked here.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => Ok(locked.map(|()| true)?),
    }
}

/// Waits before the next attempt to lock a file.
#[expect(
    clippy::disallowed_methods,
    reason = "this thread may block, and nothing tells that another process has unlocked a file"
)]
pub(crate) fn wait() {
    thread::sleep(RETRY);
}

/// Writes a file with the mode of the one that it replaces, and with its owner, which only root may
/// change.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn fill(file: &mut File, bytes: &[u8], replaced: Option<&Metadata>) -> io::Result<()> {
    file.set_len(0)?;
    if let Some(replaced) = replaced {
        let (own, mode) = (file.metadata()?, Mode::from_raw_mode(replaced.mode() & 0o777));
        if (own.uid(), own.gid()) != (replaced.uid(), replaced.gid()) {
            let (user, group) = (Uid::from_raw(replaced.uid()), Gid::from_raw(replaced.gid()));
            let _ = fchown(&*file, Some(user), Some(group));
        }
        fchmod(&*file, mode)?;
    }
    file.write_all(bytes)?;
    file.sync_data()
}
