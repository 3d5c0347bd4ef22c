//! Files and folders of a test, which are removed at its end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a path that nothing has.
fn temporary(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("spliceway-test-{}-{number}-{name}", std::process::id()))
}

/// A file with these lines. The file is removed when the value is dropped.
pub(crate) struct TextFile(pub(crate) PathBuf);

impl TextFile {
    pub(crate) fn new(lines: &str) -> Self {
        let file = Self(temporary("file"));
        file.write(lines);
        file
    }

    /// Replaces the lines.
    pub(crate) fn write(&self, lines: &str) {
        std::fs::write(&self.0, lines).unwrap();
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A directory that is removed when the value is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Self(temporary(name));
        std::fs::create_dir(&folder.0).unwrap();
        folder
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
