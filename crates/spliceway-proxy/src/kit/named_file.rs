//! Reads a file that the operator names: within a size and a time, whatever the path leads to.
//!
//! ```text
//!   path ─ stat ─▶ regular file, pipe ─ open without waiting ─▶ read ─▶ text
//!            └───▶ directory, socket, device: refused, and never opened
//! ```

use std::fmt;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, Timespec};

/// The time limit for a pipe: from the opening to its end. A shell's `<(…)` is a pipe, and the
/// program in it may have to ask another machine.
const PIPE_TIME: Duration = Duration::from_secs(5);
/// The size of one read.
const STEP_BYTES: usize = 64 << 10;

/// The content of a file.
#[derive(Debug)]
pub(crate) struct NamedFile<T = String> {
    pub(crate) text: T,
    pub(crate) rights: Rights,
}

/// The users that may change or read a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rights {
    /// The permission bits.
    pub(crate) mode: u32,
    /// The user who may change the bits. `None` for a pipe, whose user is often the one before
    /// sudo(8).
    pub(crate) owner: Option<u32>,
}

/// Why a file has no text. It is shown without the path.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// The path leads to something that is never read.
    Kind(&'static str),
    /// The file has more bytes than this limit.
    TooLong(usize),
    /// No writer has completed the pipe within this time.
    Silent(Duration),
    /// The first line that is not text.
    NotText(usize),
    Failed(io::Error),
}

/// Returns the text of a file with at most `max_bytes` bytes. A pipe is read for at most 5 s.
///
/// # Errors
/// Returns why the file cannot be read. Anything but a regular file and a pipe is refused.
pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<NamedFile, Unreadable> {
    read_within(path, max_bytes, PIPE_TIME)
}

/// Returns the content of a file that need not be text, as [`read`] does.
///
/// # Errors
/// Returns why the file cannot be read. Anything but a regular file and a pipe is refused.
pub(crate) fn read_bytes(path: &Path, max_bytes: usize) -> Result<NamedFile<Vec<u8>>, Unreadable> {
    read_bytes_within(path, max_bytes, PIPE_TIME)
}

/// Returns whether the path leads to a regular file, also through links.
pub(crate) fn is_regular(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.is_file())
}

fn read_within(path: &Path, max_bytes: usize, time: Duration) -> Result<NamedFile, Unreadable> {
    let NamedFile { text, rights } = read_bytes_within(path, max_bytes, time)?;
    let text = String::from_utf8(text).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        Unreadable::NotText(valid.iter().filter(|byte| **byte == b'\n').count() + 1)
    })?;
    Ok(NamedFile { text, rights })
}

fn read_bytes_within(path: &Path, max_bytes: usize, time: Duration) -> Result<NamedFile<Vec<u8>>, Unreadable> {
    // Opening some devices has effects, so the kind is checked before and after the file is opened.
    check(fs::metadata(path)?.file_type())?;
    let deadline = Instant::now() + time;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    check(metadata.file_type())?;
    let text = read_to_end(&file, &metadata, max_bytes, deadline)?.ok_or(Unreadable::Silent(time))?;
    let rights = Rights {
        mode: metadata.mode() & 0o777,
        owner: metadata.is_file().then_some(metadata.uid()),
    };
    Ok(NamedFile { text, rights })
}

/// # Errors
/// Returns what the path leads to, if it cannot be read.
fn check(kind: FileType) -> Result<(), Unreadable> {
    if kind.is_file() || kind.is_fifo() {
        return Ok(());
    }
    Err(Unreadable::Kind(if kind.is_dir() {
        "folder"
    } else if kind.is_socket() {
        "socket"
    } else {
        "device"
    }))
}

/// Returns the bytes of the file, or `None` if a pipe has not ended at the deadline.
fn read_to_end(
    mut file: &File,
    metadata: &Metadata,
    max_bytes: usize,
    deadline: Instant,
) -> Result<Option<Vec<u8>>, Unreadable> {
    let is_pipe = metadata.file_type().is_fifo();
    let mut bytes = Vec::new();
    let mut step = vec![0; STEP_BYTES];
    // A pipe without a writer reads as if it had ended, so it is first asked whether it is ready.
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if (is_pipe && left.is_zero()) || !is_ready(file, left)? {
            return Ok(None);
        }
        match file.read(&mut step) {
            Ok(0) => return Ok(Some(bytes)),
            Ok(read) if bytes.len() + read > max_bytes => return Err(Unreadable::TooLong(max_bytes)),
            Ok(read) => bytes.extend_from_slice(&step[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until a read returns at once, for at most this time. A regular file is always ready.
fn is_ready(file: &File, time: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "this is a {kind}, which is not read"),
            Self::TooLong(max) => write!(f, "larger than {} MiB, which is the limit", max >> 20),
            Self::Silent(time) => write!(
                f,
                "this is a pipe, and no program has written the whole text within {} s: start the one that writes, or \
                 name a regular file",
                time.as_secs_f32()
            ),
            Self::NotText(line) => write!(f, "line {line} is not valid UTF-8: expected text in UTF-8"),
            Self::Failed(error) => match error.kind() {
                ErrorKind::NotFound => write!(f, "{error}: create it, or correct the path"),
                ErrorKind::PermissionDenied => {
                    write!(f, "{error}: let this user read the file and search its folders")
                }
                _ => error.fmt(f),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;
    use std::thread;

    use super::*;

    /// Long enough for every test.
    const LONG: Duration = Duration::from_secs(60);

    /// A folder that is removed when the value is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("spliceway-named-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn fifo(&self) -> PathBuf {
            let path = self.0.join("fifo");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(path: &Path, max_bytes: usize, time: Duration) -> String {
        read_within(path, max_bytes, time).unwrap_err().to_string()
    }

    #[test]
    fn a_pipe_that_does_not_end_costs_only_its_time() {
        let (folder, time) = (Folder::new("silent"), Duration::from_millis(20));
        let path = folder.fifo();
        assert!(refusal(&path, 100, time).contains("no program has written the whole text within 0.02 s"));
        // A writer that stays costs no more, also one that has written something.
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(refusal(&path, 100, time).contains("this is a pipe"));
        writer.write_all(b"ann:").unwrap();
        assert!(refusal(&path, 100, time).contains("this is a pipe"));
    }

    #[test]
    fn a_pipe_is_read_up_to_its_end() {
        let folder = Folder::new("pipe");
        let path = folder.fifo();
        // Longer than a pipe, so that the writer has to wait for the reader.
        let text = "line\n".repeat(100_000);
        let writer = thread::spawn({
            let (path, text) = (path.clone(), text.clone());
            move || fs::write(path, text)
        });
        let file = read_within(&path, text.len(), LONG).unwrap();
        assert!(file.text == text && file.rights.mode == 0o600);
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = Folder::new("limit");
        let path = folder.0.join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_within(&path, 5, LONG).unwrap().text, "12345");
        assert!(matches!(read_within(&path, 4, LONG), Err(Unreadable::TooLong(4))));
        fs::write(&path, b"a\nb\n\xff").unwrap();
        assert_eq!(
            refusal(&path, 100, LONG),
            "line 3 is not valid UTF-8: expected text in UTF-8"
        );
    }

    #[test]
    fn what_is_neither_file_nor_pipe_is_refused() {
        let folder = Folder::new("kinds");
        let socket = folder.0.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, kind) in [
            (&*folder.0, "folder"),
            (&*socket, "socket"),
            (Path::new("/dev/zero"), "device"),
            (Path::new("/dev/tty"), "device"),
        ] {
            assert_eq!(refusal(path, 100, LONG), format!("this is a {kind}, which is not read"));
        }
    }
}
