//! Changes one user in a user file, or one token in a file of tokens. All other lines and comments
//! stay as they are.
//!
//! ```text
//!   lock FILE.new ─▶ read FILE ─▶ change one line ─▶ write FILE.new, sync ─▶ rename it to FILE
//! ```
//!
//! The lock is that of the new file, so it also holds for a file that does not exist yet. A process
//! that dies leaves a new file behind, which the next one writes again.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Access;

use super::file::{self, Line, NO_USERS, Place, lines};
use super::tokens;
use crate::kit::named_file::{self, Unreadable};
use crate::kit::replacement;

/// The longest wait for another process, which usually takes less than 100 ms.
const PATIENCE: Duration = Duration::from_secs(5);
/// The users with a clear-text password that a warning names. Others are counted.
const NAMED_MAX: usize = 10;

/// A change of one line.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(crate) path: PathBuf,
    pub(crate) kind: FileKind,
    pub(crate) name: String,
    pub(crate) what: What,
}

/// What has a line in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Users,
    Tokens,
}

/// What changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Add,
    SetPassword,
    Remove,
}

/// Why a file is as it was.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The file has this name in this line.
    Known(PathBuf, FileKind, Place),
    /// The file does not have this name.
    Unknown(PathBuf, FileKind, String),
    Unreadable(PathBuf, Unreadable),
    /// The path leads to a pipe, which has no lines to change.
    NotRegular(PathBuf),
    /// The new file would have more bytes than this limit.
    TooLong(PathBuf, usize),
    /// Another process has had the lock all the time.
    Busy(PathBuf),
    /// Another program has changed the file, too.
    Changed(PathBuf),
    /// Only root can give the file to its user and group.
    Owner(PathBuf, u32, u32),
    /// The new file belongs to another user, who could still write to it.
    Foreign(PathBuf, u32),
    /// No file can be written in this folder.
    Folder(PathBuf, io::Error),
    /// What cannot be done to this file.
    Io(&'static str, PathBuf, io::Error),
}

/// A file as it was read.
struct Found {
    text: String,
    /// `None` if there is no file.
    metadata: Option<Metadata>,
}

impl Edit {
    /// Checks that the change is possible, before anybody types a password.
    ///
    /// # Errors
    /// Returns the error that [`Edit::apply`] would return.
    pub(crate) fn check(&self) -> Result<(), EditError> {
        let target = self.target()?;
        let found = self.find(&target)?;
        self.changed(&found.text, "")?;
        let folder = folder_of(&target);
        let access = rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK);
        access.map_err(|error| EditError::Folder(folder.into(), error.into()))
    }

    /// Changes the file, and returns warnings about its lines. `secret` is what follows the name in
    /// a new line. The call blocks.
    ///
    /// # Errors
    /// Returns an error if the file is as it was.
    pub(crate) fn apply(&self, secret: &str) -> Result<Vec<String>, EditError> {
        let target = self.target()?;
        let new = replacement::beside(&target);
        let mut file = lock(&new)?;
        let written = self.write(&target, &new, &mut file, secret);
        if written.is_err() {
            // A disk that is full has the space again.
            let _ = fs::remove_file(&new);
        }
        Ok(self.kind.warnings(&self.path, &written?))
    }

    fn target(&self) -> Result<PathBuf, EditError> {
        replacement::behind_links(&self.path).map_err(|error| EditError::Io("find", self.path.clone(), error))
    }

    /// Writes the new file, and gives it its name. Returns its text.
    fn write(&self, target: &Path, new: &Path, file: &mut File, secret: &str) -> Result<String, EditError> {
        let found = self.find(target)?;
        let (text, max) = (self.changed(&found.text, secret)?, self.kind.max_bytes());
        if text.len() > max {
            return Err(EditError::TooLong(self.path.clone(), max));
        }
        let old = found.metadata.as_ref();
        let cannot_write = |error| EditError::Io("write", new.into(), error);
        let own = file.metadata().map_err(cannot_write)?;
        let user = rustix::process::geteuid().as_raw();
        if own.uid() != user && old.is_none_or(|old| own.uid() != old.uid()) {
            return Err(EditError::Foreign(new.into(), own.uid()));
        }
        replacement::fill(file, text.as_bytes(), old).map_err(cannot_write)?;
        let own = file.metadata().map_err(cannot_write)?;
        if let Some(old) = old
            && (own.uid(), own.gid()) != (old.uid(), old.gid())
        {
            return Err(EditError::Owner(self.path.clone(), old.uid(), old.gid()));
        }
        // An editor does not know the lock.
        if fs::symlink_metadata(target).ok().as_ref().map(identity) != old.map(identity) {
            return Err(EditError::Changed(self.path.clone()));
        }
        fs::rename(new, target).map_err(|error| EditError::Io("rename", new.into(), error))?;
        // The file has its name already, and only a crash of the machine could take it back.
        let _ = File::open(folder_of(target)).and_then(|folder| folder.sync_all());
        Ok(text)
    }

    /// Reads the file. The first line may begin a new one.
    fn find(&self, target: &Path) -> Result<Found, EditError> {
        let metadata = match fs::symlink_metadata(target) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                return Err(EditError::NotRegular(self.path.clone()));
            }
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.what == What::Add => None,
            Err(error) => return Err(EditError::Unreadable(self.path.clone(), error.into())),
        };
        let read = metadata.as_ref().map(|_| self.kind.read(&self.path)).transpose()?;
        Ok(Found {
            text: read.unwrap_or_default(),
            metadata,
        })
    }

    /// Returns the text after the change.
    fn changed(&self, text: &str, secret: &str) -> Result<String, EditError> {
        let mut own = lines(text).filter(|line| line.name() == Some(&*self.name)).peekable();
        let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let line = format!("{}:{secret}{end}", self.name);
        match (self.what, own.peek()) {
            (What::Add, Some(line)) => Err(EditError::Known(self.path.clone(), self.kind, line.place())),
            (What::Add, None) => {
                let between = if text.is_empty() || text.ends_with('\n') {
                    ""
                } else {
                    end
                };
                Ok([text, between, &line].concat())
            }
            (_, None) => Err(EditError::Unknown(self.path.clone(), self.kind, self.name.clone())),
            (What::SetPassword, Some(old)) => Ok([&text[..old.range.start], &line, &text[old.range.end..]].concat()),
            (What::Remove, Some(_)) => {
                let mut left = text.to_owned();
                // A wrong file may have more than one. From the end, so that the places stay right.
                let ranges: Vec<_> = own.map(|line| line.range).collect();
                ranges.into_iter().rev().for_each(|range| left.replace_range(range, ""));
                Ok(left)
            }
        }
    }
}

/// Returns a text for each line of a file, in their order, and warnings: the name of a user, or the
/// name and the scopes of a token.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn listed(path: &Path, kind: FileKind) -> Result<(Vec<String>, Vec<String>), EditError> {
    let text = kind.read(path)?;
    let listed = |line: Line<'_>| match kind {
        FileKind::Users => line.name().map(str::to_owned),
        FileKind::Tokens => tokens::listed(line.text),
    };
    Ok((lines(&text).filter_map(listed).collect(), kind.warnings(path, &text)))
}

/// Returns a warning for each password that is not hashed.
pub(crate) fn clear_text(path: &Path, clear: &[Place]) -> Vec<String> {
    let remedy = "`spliceway user passwd` hashes one";
    let named = clear.iter().take(NAMED_MAX).map(|place| {
        let place = place.within(path);
        format!("{place} is a clear-text password; {remedy}")
    });
    let others = clear.len().saturating_sub(NAMED_MAX);
    let others = (others > 0).then(|| format!("{}: {others} more clear-text passwords; {remedy}", path.display()));
    named.chain(others).collect()
}

impl FileKind {
    fn singular(self) -> &'static str {
        match self {
            Self::Users => "user",
            Self::Tokens => "token",
        }
    }

    fn max_bytes(self) -> usize {
        match self {
            Self::Users => file::FILE_MAX_BYTES,
            Self::Tokens => tokens::FILE_MAX_BYTES,
        }
    }

    fn read(self, path: &Path) -> Result<String, EditError> {
        let read = named_file::read(path, self.max_bytes());
        Ok(read.map_err(|why| EditError::Unreadable(path.into(), why))?.text)
    }

    /// Returns what a program would say about this text.
    fn warnings(self, path: &Path, text: &str) -> Vec<String> {
        let (faults, mut doubts) = match self {
            Self::Users => {
                let (file, faults) = file::parse(text);
                let mut doubts = clear_text(path, &file.clear);
                if file.users.is_empty() {
                    let path = path.display();
                    doubts.push(format!("{path}: {NO_USERS}, so no program starts with it"));
                }
                (faults, doubts)
            }
            Self::Tokens => (tokens::parse(text).1, Vec::new()),
        };
        let faults = faults
            .iter()
            .map(|(place, problem)| format!("{}: {problem}", place.within(path)));
        doubts.splice(..0, faults);
        doubts
    }
}

/// Returns the folder of a file, in which the new file is written first.
fn folder_of(target: &Path) -> &Path {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Creates and locks the new file.
fn lock(new: &Path) -> Result<File, EditError> {
    let cannot = |what, error| EditError::Io(what, new.into(), error);
    let until = Instant::now() + PATIENCE;
    loop {
        let file = replacement::options().create(true).open(new);
        let file = file.map_err(|error| cannot("write", error))?;
        // The process that had the lock may have renamed the file.
        let is_named = || {
            let (opened, named) = (file.metadata()?, fs::symlink_metadata(new)?);
            io::Result::Ok(named.is_file() && (opened.dev(), opened.ino()) == (named.dev(), named.ino()))
        };
        if replacement::try_lock(&file).map_err(|error| cannot("lock", error))? && is_named().unwrap_or(false) {
            return Ok(file);
        }
        if Instant::now() >= until {
            return Err(EditError::Busy(new.into()));
        }
        replacement::wait();
    }
}

/// Returns what every change of a file changes.
fn identity(file: &Metadata) -> [u64; 5] {
    let time = [file.mtime().cast_unsigned(), file.mtime_nsec().cast_unsigned()];
    [file.dev(), file.ino(), file.len(), time[0], time[1]]
}

impl fmt::Display for EditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(path, kind, place) => {
                let remedy = match kind {
                    FileKind::Users => "`spliceway user passwd` sets another password",
                    FileKind::Tokens => "choose another name, or remove it with `spliceway token del` first",
                };
                write!(f, "{} is there already; {remedy}", place.within(path))
            }
            Self::Unknown(path, kind, name) => {
                let (path, name, kind) = (path.display(), name.escape_debug(), kind.singular());
                write!(
                    f,
                    "{path}: there is no {kind} `{name}`; `spliceway {kind} list` shows all"
                )
            }
            Self::Unreadable(path, why) => write!(f, "{}: {why}", path.display()),
            Self::NotRegular(path) => write!(f, "{}: expected a regular file", path.display()),
            Self::TooLong(path, max) => write!(
                f,
                "{}: the file would be larger than {} MiB, which is the limit",
                path.display(),
                max >> 20
            ),
            Self::Busy(path) => write!(
                f,
                "{}: another process changes the file: try again when it has ended",
                path.display()
            ),
            Self::Changed(path) => write!(
                f,
                "{}: another program has changed the file meanwhile: try again",
                path.display()
            ),
            Self::Owner(path, user, group) => write!(
                f,
                "{}: cannot keep its user {user} and group {group}: do this as that user, or as root",
                path.display()
            ),
            Self::Foreign(path, user) => write!(f, "{}: belongs to user {user}: remove it", path.display()),
            Self::Folder(path, error) if error.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "{}: there is no such folder: create it, or correct the path",
                    path.display()
                )
            }
            Self::Folder(path, error) => write!(
                f,
                "cannot write in the folder {}: {error}: do this as a user who can, such as root",
                path.display()
            ),
            Self::Io(what, path, error) => write!(f, "cannot {what} {}: {error}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests;
