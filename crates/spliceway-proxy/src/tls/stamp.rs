//! Shows whether a file has changed.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What changes when a file, its owner or its permissions do: its number, when it changed, and its
/// size. `None` for a file that is missing, and for a pipe, which can be read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp(Option<(u64, i64, i64, u64)>);

impl Stamp {
    pub(super) fn of(path: &Path) -> Self {
        let file = fs::metadata(path).ok().filter(Metadata::is_file);
        Self(file.map(|file| (file.ino(), file.ctime(), file.ctime_nsec(), file.size())))
    }
}
