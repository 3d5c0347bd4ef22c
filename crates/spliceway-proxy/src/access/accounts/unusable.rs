//! Why the quota file cannot be used.

use std::os::unix::fs::MetadataExt;
use std::{fmt, fs, io};

use rustix::fs::{major, minor};

/// Why the file cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Another process has locked it: this one, if the kernel tells.
    Busy(Option<u32>),
    Other(String),
}

impl Unusable {
    pub(super) fn io(what: &str, error: &io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::NotFound => ": create its folder, or correct the path",
            io::ErrorKind::PermissionDenied => ": let the user of the program write to the file and its folder",
            _ => "",
        };
        Self::Other(format!("cannot {what}: {error}{help}"))
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is the function of map_err")]
    pub(super) fn read(error: io::Error) -> Self {
        Self::io("read it", &error)
    }

    /// Says that another process has locked this file.
    pub(super) fn locked(file: &fs::File) -> Self {
        let holder = || {
            let file = file.metadata().ok()?;
            let (major, minor) = (major(file.dev()), minor(file.dev()));
            let file = format!("{major:02x}:{minor:02x}:{}", file.ino());
            holder(&fs::read_to_string("/proc/locks").ok()?, &file)
        };
        Self::Busy(holder())
    }

    /// Says that the content is wrong, and the remedy.
    pub(super) fn content(what: &str) -> Self {
        Self::Other(format!("{what}: move it away to begin with empty counters"))
    }

    /// Says that an update has not ended in time.
    pub(super) fn slow() -> Self {
        Self::Other("the disk does not answer".to_owned())
    }

    /// Says that the thread with the file has panicked.
    pub(super) fn panicked() -> Self {
        Self::Other("an update has panicked".to_owned())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(None) => f.write_str("another process has it open"),
            Self::Busy(Some(pid)) => write!(f, "another process has it open ({pid})"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

/// Returns the process with a lock on this file, as `/proc/locks` (proc(5)) has it. A process
/// outside of the PID namespace has the number 0.
fn holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, of, ..] if of == file => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_with_the_lock_is_named() {
        let locks = "1: FLOCK  ADVISORY  WRITE 7 fe:00:12 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 8 fe:00:13 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 5 fe:00:13 0 EOF\n3: FLOCK  ADVISORY  WRITE 9 fe:00:13 0 EOF\n";
        assert_eq!(holder(locks, "fe:00:13"), Some(9));
        assert_eq!(holder(locks, "fe:00:14"), None);
    }
}
