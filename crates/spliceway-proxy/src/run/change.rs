//! A change of services that an operator has asked for: prepared beside what runs, and then put
//! into force at once.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use crate::kit::{named_file, replacement};
use crate::monitor::control::{Done, NotDone};
use crate::run::instance::{Instance, Plan};
use crate::run::startup::CannotRun;
use crate::settings::{Change, Changed, FileChange, Refused};

/// A change that cannot fail any more, except for the name of its file.
pub(super) struct Prepared {
    plan: Plan,
    version: Option<String>,
    is_new: bool,
    file: Option<Staged>,
    /// What happens to the file, for the operator.
    of_file: String,
}

/// A file that is written under another name. Dropping it removes the file.
struct Staged {
    new: Option<PathBuf>,
    path: PathBuf,
    /// The file that it replaces.
    replaced: Option<Metadata>,
}

/// Reads, checks, binds and builds what the change needs, and writes its file under another name.
/// Cancel safe.
pub(super) async fn prepare(instance: &Instance, change: Change) -> Result<Prepared, NotDone> {
    let ends = || NotDone::Busy("the program does not serve yet".to_owned());
    let settings = instance.settings().cloned().ok_or_else(ends)?;
    let is_dry_run = change.is_dry_run;
    // Files may be on a slow disk.
    let changed = spawn_blocking(move || change.apply(&settings)).await;
    let failed = |error| NotDone::Refused(format!("the change failed: {error}"));
    let Changed {
        settings,
        version,
        is_new,
        file,
    } = changed.map_err(failed)?.map_err(NotDone::Change)?;
    let hidden = settings.hidden.clone();
    let plan = instance.plan(settings).await.map_err(|error| match error {
        CannotRun::Unsafe(why) => NotDone::Change(Refused::Invalid(hidden.in_text(&why))),
        error => NotDone::Refused(hidden.in_text(&error.to_string())),
    })?;
    let of_file = file.as_ref().map(what_happens).unwrap_or_default();
    let file = match file.filter(|_| !is_dry_run) {
        Some(file) => Some(spawn_blocking(|| Staged::write(file)).await.map_err(failed)?),
        None => None,
    };
    Ok(Prepared {
        plan,
        version,
        is_new,
        file: file.transpose().map_err(NotDone::Refused)?,
        of_file,
    })
}

/// Returns what the change of a file does, to follow what changed.
fn what_happens(file: &FileChange) -> String {
    // The working directory of the operator may be another one.
    let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
    let path = path.display();
    match file.text {
        Some(_) => format!("; wrote {path}"),
        None => format!("; removed {path}"),
    }
}

impl Prepared {
    pub(super) fn dry_run(self) -> Done {
        format!("dry run: {}{}", self.plan.changes(), self.of_file).into()
    }

    /// Puts the change into force, with its file. Returns what to tell the operator, and the folder
    /// of the file.
    pub(super) fn put_into_force(self, instance: &mut Instance) -> Result<(Done, Option<PathBuf>), NotDone> {
        if let Some(name) = instance.drained_since(&self.plan) {
            let why = format!("{name} was drained meanwhile: try again");
            return Err(NotDone::Refused(why));
        }
        let folder = self.file.map(Staged::put_in_place).transpose();
        let folder = folder.map_err(NotDone::Refused)?;
        let text = format!("{}{}", instance.commit(self.plan), self.of_file);
        let (version, is_new) = (self.version, self.is_new);
        Ok((Done { text, version, is_new }, folder))
    }
}

/// Waits until the disk has the names of the files in a folder.
pub(super) async fn sync(folder: PathBuf) {
    let synced = spawn_blocking(move || File::open(folder)?.sync_all()).await;
    if let Err(error) = synced.map_err(io::Error::other).and_then(|synced| synced) {
        tracing::warn!(%error, "a crash of the machine may undo the change of a file");
    }
}

impl Staged {
    fn write(change: FileChange) -> Result<Self, String> {
        let FileChange { path, before, text } = change;
        let mut staged = Self {
            new: None,
            replaced: fs::symlink_metadata(&path).ok(),
            path,
        };
        if staged.replaced.as_ref().is_some_and(Metadata::is_symlink) {
            let path = staged.path.display();
            return Err(format!("{path} is a link: change the file behind it, and reload"));
        }
        if staged.replaced.is_some() {
            let length = before.as_ref().map_or(0, String::len);
            let found = named_file::read(&staged.path, length);
            if found.map(|found| found.text).ok() != before {
                return Err(staged.has_changed());
            }
        }
        let Some(text) = text else {
            return Ok(staged);
        };
        let new = replacement::beside(&staged.path);
        staged.new = Some(new.clone());
        match write(&new, &text, staged.replaced.as_ref()) {
            Ok(()) => Ok(staged),
            Err(error) => Err(cannot("write", &new, &error)),
        }
    }

    fn has_changed(&self) -> String {
        let path = self.path.display();
        format!("{path} has changed since the program read or wrote it: reload, and try again")
    }

    /// Returns the folder.
    fn put_in_place(mut self) -> Result<PathBuf, String> {
        // The file may have been edited while the change was prepared.
        let now = fs::symlink_metadata(&self.path).ok();
        if now.is_some() && now.as_ref().map(identity) != self.replaced.as_ref().map(identity) {
            return Err(self.has_changed());
        }
        let done = match &self.new {
            Some(new) => fs::rename(new, &self.path),
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            },
        };
        done.map_err(|error| cannot("replace", &self.path, &error))?;
        self.new = None;
        Ok(self.path.parent().unwrap_or(Path::new(".")).to_owned())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(new) = &self.new {
            // If this fails, the next change uses the file.
            let _ = fs::remove_file(new);
        }
    }
}

/// What an edit of a file changes.
fn identity(file: &Metadata) -> (u64, u64, i64, i64) {
    (file.ino(), file.size(), file.mtime(), file.mtime_nsec())
}

fn write(path: &Path, text: &str, replaced: Option<&Metadata>) -> io::Result<()> {
    let mut file = replacement::options().create(true).open(path)?;
    replacement::fill(&mut file, text.as_bytes(), replaced)
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    let path = path.display();
    let help = match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            ": let the user of the program write to the folder. In a unit for systemd with ProtectSystem=, \
             name the folder in ReadWritePaths= too (docs/packages.md). Or do not ask for persistence"
        }
        io::ErrorKind::NotFound => ": create the folder again, or do not ask for persistence",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free some space, or do not ask for persistence",
        _ => "",
    };
    format!("cannot {what} {path}: {error}{help}")
}
