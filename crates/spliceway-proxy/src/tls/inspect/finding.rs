//! What is known about a file, and who could change it.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::tls::certificate::BadFile;
use crate::tls::chain::Doubt;

/// The permissions of the group, and of everybody, to write.
const WRITE_BY_GROUP: u32 = 0o020;
const WRITE_BY_OTHERS: u32 = 0o002;
/// Only the owner of a file may remove it from such a folder.
const STICKY: u32 = 0o1000;

/// What is known about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) verdict: Verdict,
    pub(crate) subject: Subject,
    pub(crate) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fine,
    /// Some clients may refuse it, or it is less safe than it could be.
    Doubtful,
    /// The program or every client refuses it.
    Faulty,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    Pair,
    Chain,
    Names,
    Permissions,
    /// Whether clients accept the certificate.
    Roots,
    /// Which targets are trusted.
    Authorities,
    /// Which certificates of clients are accepted.
    ClientCas,
    Crl,
    TicketKeys,
    Acme,
    /// The settings themselves.
    Config,
}

impl Finding {
    /// Returns the fault of settings, because of which no file is checked.
    pub(crate) fn of_settings(fault: String) -> Self {
        Self::new(Verdict::Faulty, Subject::Config, fault)
    }

    pub(super) fn new(verdict: Verdict, subject: Subject, text: String) -> Self {
        Self { verdict, subject, text }
    }
}

impl From<BadFile> for Finding {
    fn from(bad: BadFile) -> Self {
        Self::new(Verdict::Faulty, Subject::Pair, bad.to_string())
    }
}

impl From<&Doubt> for Finding {
    fn from(doubt: &Doubt) -> Self {
        let verdict = if doubt.is_fatal() {
            Verdict::Faulty
        } else {
            Verdict::Doubtful
        };
        Self::new(verdict, Subject::Chain, doubt.to_string())
    }
}

/// Returns who could change the files, besides their owner, and what that is good for.
pub(super) fn permissions(files: &[&Path], gain: &str) -> Vec<Finding> {
    let writable = writable_by_others(files).map(|all| {
        let finding = |(path, change): (&Path, &str)| {
            let path = path.display();
            let text = format!("others can write {path}, and so {gain}: run `chmod {change} {path}`");
            Finding::new(Verdict::Doubtful, Subject::Permissions, text)
        };
        all.into_iter().map(finding).collect()
    });
    writable.unwrap_or_else(|error| {
        let text = format!("cannot see the permissions: {error}");
        vec![Finding::new(Verdict::Doubtful, Subject::Permissions, text)]
    })
}

/// Returns the files and the folders that others can write, and the change of the mode that helps.
fn writable_by_others<'a>(files: &[&'a Path]) -> io::Result<Vec<(&'a Path, &'static str)>> {
    let mode = |data: Metadata| data.permissions().mode();
    let mut writable = Vec::new();
    let mut files = files.to_vec();
    files.dedup();
    let mut folders: Vec<_> = files.iter().filter_map(|file| file.parent()).collect();
    folders.dedup();
    for file in files {
        let mode = mode(file.metadata()?);
        if mode & (WRITE_BY_GROUP | WRITE_BY_OTHERS) != 0 {
            writable.push((file, "go-w"));
        }
    }
    for folder in folders {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let mode = mode(folder.metadata()?);
        if mode & WRITE_BY_OTHERS != 0 && mode & STICKY == 0 {
            writable.push((folder, "o-w"));
        }
    }
    Ok(writable)
}
