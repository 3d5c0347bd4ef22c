//! Files that this process has created and that it removes if it does not get as far as to serve.
//!
//! A process that takes over may be refused after it has created a log or a quota file. Then the
//! folders must be as before.

use parking_lot::Mutex;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files, of which there are at most two.
static FILES: Mutex<Files> = Mutex::new(Files {
    created: Vec::new(),
    removed: Vec::new(),
});

struct Files {
    created: Vec<File>,
    removed: Vec<PathBuf>,
}

struct File {
    path: PathBuf,
    /// The device and the inode.
    inode: (u64, u64),
}

/// Does what may create the file at `path`, and remembers the file if it was not there.
pub(crate) fn watch<T, E>(path: &Path, create: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let is_new = fs::symlink_metadata(path).is_err();
    let created = create()?;
    if is_new && let Ok(found) = fs::symlink_metadata(path) {
        let path = path.to_owned();
        let inode = inode(&found);
        FILES.lock().created.push(File { path, inode });
    }
    Ok(created)
}

/// Keeps the files.
pub(crate) fn keep() {
    FILES.lock().created.clear();
}

/// Removes the files that were not kept, unless others have replaced them.
pub(crate) fn remove() {
    let Files { created, removed } = &mut *FILES.lock();
    for File { path, inode: known } in created.drain(..) {
        if fs::symlink_metadata(&path).is_ok_and(|found| inode(&found) == known) {
            // If this fails, the next start uses the file.
            let _ = fs::remove_file(&path);
            removed.push(path);
        }
    }
}

/// Lets this process replace a file that it may have created.
///
/// # Errors
/// Returns an error if the file was removed, because this process does not serve.
pub(crate) fn replace(path: &Path, replace: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mut files = FILES.lock();
    if files.is_removed(path) {
        return Err(io::Error::other("this process does not serve"));
    }
    replace()?;
    let created = files.created.iter_mut().find(|file| file.path == path);
    if let (Some(created), Ok(found)) = (created, fs::symlink_metadata(path)) {
        created.inode = inode(&found);
    }
    Ok(())
}

/// Returns whether this process has created the file and removed it again.
pub(crate) fn is_removed(path: &Path) -> bool {
    FILES.lock().is_removed(path)
}

impl Files {
    fn is_removed(&self, path: &Path) -> bool {
        self.removed.iter().any(|removed| removed == path)
    }
}

fn inode(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_files_that_no_other_program_has_replaced_are_removed() {
        let folder = std::env::temp_dir().join(format!("spliceway-created-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [old, new, failed, replaced, own] =
            ["old", "new", "failed", "replaced", "own"].map(|name| folder.join(name));
        fs::write(&old, "old").unwrap();
        for path in [&old, &new, &replaced, &own] {
            watch(path, || fs::write(path, "written")).unwrap();
        }
        watch(&failed, || Err::<(), _>(io::Error::other("as a test"))).unwrap_err();
        fs::write(folder.join("other"), "theirs").unwrap();
        fs::rename(folder.join("other"), &replaced).unwrap();
        let replace_own = || {
            fs::write(folder.join("other"), "ours").unwrap();
            replace(&own, || fs::rename(folder.join("other"), &own))
        };
        replace_own().unwrap();
        assert!(!is_removed(&own));
        remove();
        assert!(old.exists() && !new.exists() && replaced.exists());
        // A task that still runs does not make it again.
        assert!(is_removed(&own) && replace_own().is_err() && !own.exists());
        watch(&new, || fs::write(&new, "written")).unwrap();
        keep();
        remove();
        assert!(new.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
