//! The pid file: the number of the process that serves.
//!
//! ```text
//!   nothing ─ prepare ─▶ a file beside it ─ publish ─▶ the pid file ─ remove ─▶ nothing
//!                          └─ remove: deleted            └─ leave: belongs to the next process
//! ```
//!
//! Readers find the old text or the new one, and never half of it. A process that is refused before
//! it serves changes nothing.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

static FILE: Mutex<State> = Mutex::new(State::Nothing);

/// Everybody may know which process serves.
const MODE: u32 = 0o644;

enum State {
    Nothing,
    Prepared {
        /// The file that is to be renamed to `path`.
        new: PathBuf,
        path: PathBuf,
    },
    Published(PathBuf),
}

/// Writes the number of this process into a new file beside `path`.
///
/// # Errors
/// Returns an error if this user cannot write there, or if `path` is something else than a file.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    let new = write_beside(path).map_err(|error| {
        let expected = match error.kind() {
            ErrorKind::NotFound => ": expected a file in a folder that exists",
            ErrorKind::PermissionDenied => ": expected a folder that this user may write",
            _ => "",
        };
        let path = path.display();
        io::Error::new(
            error.kind(),
            format!("cannot write the pid file {path}: {error}{expected}"),
        )
    })?;
    let path = path.to_owned();
    *FILE.lock() = State::Prepared { new, path };
    Ok(())
}

fn write_beside(path: &Path) -> io::Result<PathBuf> {
    // A rename would replace a device or a link.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("expected a regular file"));
    }
    let pid = std::process::id();
    let mut new = path.to_owned().into_os_string();
    new.push(format!(".{pid}"));
    let new = PathBuf::from(new);
    // An earlier process with this number may have died before it served.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    if let Err(error) = writeln!(file, "{pid}") {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(new)
}

/// Puts the prepared file into its place, because this process serves now.
pub(crate) fn publish() {
    let mut file = FILE.lock();
    if let State::Prepared { new, path } = &*file {
        match fs::rename(new, path) {
            Ok(()) => *file = State::Published(path.clone()),
            Err(error) => tracing::error!("cannot write the pid file {}: {error}", path.display()),
        }
    }
}

/// Leaves the file to the process that has taken over.
pub(crate) fn leave() {
    *FILE.lock() = State::Nothing;
}

/// Removes what this process has written, unless another one has replaced it.
pub(crate) fn remove() {
    let own = format!("{}\n", std::process::id());
    let removed = match std::mem::replace(&mut *FILE.lock(), State::Nothing) {
        State::Prepared { new, .. } => fs::remove_file(new),
        State::Published(path) if fs::read_to_string(&path).is_ok_and(|text| text == own) => fs::remove_file(path),
        State::Published(_) | State::Nothing => Ok(()),
    };
    if let Err(error) = removed {
        tracing::warn!("cannot remove the pid file: {error}");
    }
}
