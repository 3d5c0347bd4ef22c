//! Files that this process has created and that it removes if it does not get as far as to serve.
//!
//! A process that takes over may be refused after it has created a log or a quota file. Then the
//! folders must be as before.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The files, of which there are at most two.
static FILES: Mutex<Vec<File>> = Mutex::new(Vec::new());

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
        files(|files| files.push(File { path, inode }));
    }
    Ok(created)
}

/// Keeps the files.
pub(crate) fn keep() {
    files(Vec::clear);
}

/// Records that this process has replaced one of its files by another one.
pub(crate) fn replaced(before: &Metadata, after: &Metadata) {
    files(|files| {
        let is_replaced = |file: &&mut File| file.inode == inode(before);
        if let Some(file) = files.iter_mut().find(is_replaced) {
            file.inode = inode(after);
        }
    });
}

/// Removes the files that were not kept, unless others have replaced them.
pub(crate) fn remove() {
    for File { path, inode: created } in files(std::mem::take) {
        if fs::symlink_metadata(&path).is_ok_and(|found| inode(&found) == created) {
            // If this fails, the next start uses the file.
            let _ = fs::remove_file(path);
        }
    }
}

fn inode(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn files<T>(change: impl FnOnce(&mut Vec<File>) -> T) -> T {
    change(&mut FILES.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn only_new_files_that_no_other_program_has_replaced_are_removed() {
        let folder = std::env::temp_dir().join(format!("spliceway-created-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [old, new, failed, other] = ["old", "new", "failed", "other"].map(|name| folder.join(name));
        fs::write(&old, "old").unwrap();
        for path in [&old, &new, &other] {
            watch(path, || fs::write(path, "written")).unwrap();
        }
        watch(&failed, || Err::<(), _>(io::Error::other("as a test"))).unwrap_err();
        for path in [&new, &other] {
            let (saved, before) = (folder.join("saved"), fs::metadata(path).unwrap());
            fs::write(&saved, "saved").unwrap();
            if path == &new {
                replaced(&before, &fs::metadata(&saved).unwrap());
            }
            fs::rename(&saved, path).unwrap();
        }
        remove();
        assert!(old.exists() && !new.exists() && other.exists());
        watch(&new, || fs::write(&new, "written")).unwrap();
        keep();
        remove();
        assert!(new.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
