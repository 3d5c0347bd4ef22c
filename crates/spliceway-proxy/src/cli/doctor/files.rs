//! Whether this user may write the files and folders that the program writes.

use std::io;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::geteuid;
use spliceway_lab::doctor::{Mark, Note};

use crate::log::AccessLog;
use crate::settings::Settings;

/// Looks at permissions, and writes nothing.
pub(super) fn notes(settings: &Settings) -> Vec<Note> {
    let mut notes = vec![user()];
    if let AccessLog::File(path) = &settings.log.access {
        notes.push(file("the access log", path, appendable(path)));
    }
    if let Some(path) = &settings.limits.quota_file {
        notes.push(file("the quota file", path, replaceable(path)));
    }
    if let Some(path) = &settings.pid_file {
        notes.push(file("the pid file", path, replaceable(path)));
    }
    if let Some((_, folder)) = &settings.acme_http {
        let folder = folder.path();
        let is_there = folder.exists();
        let usable = if is_there {
            writable(folder)
        } else {
            replaceable(folder)
        };
        notes.push(file("the folder of ACME", folder, usable));
    }
    notes
}

fn user() -> Note {
    const TITLE: &str = "the user";
    let user = geteuid();
    if user.is_root() {
        let note = Note::new(
            Mark::Remark,
            "user",
            TITLE,
            "root may do more than the user of a service",
        );
        return note.advise("`sudo -u USER spliceway doctor -c FILE` tries it as that user");
    }
    Note::new(Mark::Ok, "user", TITLE, user.as_raw().to_string())
}

fn file(what: &str, path: &Path, usable: io::Result<()>) -> Note {
    let title = format!("{what} {}", path.display());
    match usable {
        Ok(()) => Note::new(Mark::Ok, "files", &title, "can be written"),
        Err(error) => {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => "create the folder",
                io::ErrorKind::ReadOnlyFilesystem => "choose a folder that can be written (ReadWritePaths= of a unit)",
                _ => "give this user the right to write there, or choose another place",
            };
            let text = format!("cannot be written: {error}");
            Note::new(Mark::Fault, "files", &title, text).advise(advice)
        }
    }
}

/// A file that is there is extended. Otherwise, it is created.
fn appendable(path: &Path) -> io::Result<()> {
    if path.exists() {
        Ok(access(path, Access::WRITE_OK)?)
    } else {
        replaceable(path)
    }
}

/// A new file takes the place of the old one.
fn replaceable(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    writable(folder.unwrap_or(Path::new(".")))
}

fn writable(folder: &Path) -> io::Result<()> {
    Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
}
