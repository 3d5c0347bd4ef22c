//! Reads a user file, which has `NAME:HASH` or `NAME:PASSWORD` on each line.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::{Fingerprint, fingerprint};
use super::hash::{Cost, Hash, Stored, WORK_MAX_KIB};
use crate::kit::named_file::{self, NamedFile};

/// The start of a hash. A text that does not start with it is the password itself.
const HASH: &str = "$argon2";
/// The starts of hashes that other programs write, such as htpasswd(1) and mkpasswd(1). As
/// passwords, these hashes would let in everyone who has read the file that they come from.
const FOREIGN_HASHES: [&str; 14] = [
    "$1$", "$2a$", "$2b$", "$2x$", "$2y$", "$5$", "$6$", "$7$", "$apr1$", "$gy$", "$y$", "$sha1$", "{SHA}", "{SSHA}",
];
/// The maximum length of a name and of a password, because RFC 1929 has one byte for each length.
const FIELD_MAX_BYTES: usize = 255;
/// The maximum size of a file, enough for ten thousand users with hashes.
const FILE_MAX_BYTES: usize = 4 << 20;

/// The permission bits that let the group or other users read or write a file.
const EXPOSED: u32 = 0o066;

/// The users in a file.
#[derive(Default)]
pub(crate) struct UserFile {
    pub(crate) users: Vec<(Box<[u8]>, Stored)>,
    /// The keyed digest of the text.
    pub(crate) fingerprint: Fingerprint,
    /// The number of passwords that are not hashed.
    pub(crate) clear: usize,
    /// The mode of the file, if it lets the group or other users read or write the file.
    pub(crate) exposed: Option<u32>,
}

/// A problem in a user file. The message never repeats the text of a line, which may contain a
/// password.
#[derive(Debug)]
pub(crate) struct FileError {
    path: PathBuf,
    line: Option<usize>,
    problem: String,
}

/// Reads the users in `path`. Empty lines and lines that start with `#` are skipped.
///
/// # Errors
/// Returns an error if the file cannot be read or is larger than 4 MiB. It also returns an error
/// for a file without users, with a duplicate user or with an invalid line.
pub(crate) fn read(path: &Path) -> Result<UserFile, FileError> {
    let whole = |problem: String| FileError {
        path: path.into(),
        line: None,
        problem,
    };
    let NamedFile { text, mode } = named_file::read(path, FILE_MAX_BYTES)
        .map_err(|why| whole(format!("{why}; expected a file with NAME:HASH on each line")))?;
    let mut file = parse(&text).map_err(|(line, problem)| FileError {
        path: path.into(),
        line: Some(line),
        problem,
    })?;
    file.fingerprint = fingerprint(&text);
    file.exposed = (mode & EXPOSED != 0).then_some(mode);
    if file.users.is_empty() {
        return Err(whole(format!("the file has no users; {EXPECTED}")));
    }
    Ok(file)
}

const EXPECTED: &str = "expected NAME:HASH, with a hash of `spliceway hash-password`, or NAME:PASSWORD";

fn parse(text: &str) -> Result<UserFile, (usize, String)> {
    let mut file = UserFile::default();
    let mut costs = BTreeSet::new();
    // Some editors write a byte order mark, which is no part of the first name.
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let wrong = |problem: String| (index + 1, problem);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, stored) = user(line).map_err(wrong)?;
        if file.users.iter().any(|(have, _)| **have == *name.as_bytes()) {
            return Err(wrong("this name is already on an earlier line".to_owned()));
        }
        if let Stored::Hash(hash) = &stored {
            costs.insert(hash.cost());
            check_work(&costs).map_err(wrong)?;
        }
        file.clear += usize::from(matches!(stored, Stored::Clear(_)));
        file.users.push((name.as_bytes().into(), stored));
    }
    Ok(file)
}

/// Checks the cost of a failed login, which is one hash of each different cost.
fn check_work(costs: &BTreeSet<Cost>) -> Result<(), String> {
    let work: u64 = costs.iter().map(|cost| cost.work_kib()).sum();
    if work <= WORK_MAX_KIB {
        return Ok(());
    }
    Err(format!(
        "a failed login costs too much with this hash: expected the sum of m × t over all different costs to be at most {WORK_MAX_KIB}, found {work}"
    ))
}

/// Parses `NAME:HASH` or `NAME:PASSWORD`.
///
/// # Errors
/// Returns a message that describes the expected form.
pub(crate) fn user(text: &str) -> Result<(&str, Stored), String> {
    let (name, secret) = text.split_once(':').ok_or(EXPECTED)?;
    if name.is_empty() || secret.is_empty() {
        return Err(format!("{EXPECTED}: neither may be empty"));
    }
    if name.trim_matches([' ', '\t']) != name {
        return Err(format!("{EXPECTED}: a name must not begin or end with a blank"));
    }
    if name.len() > FIELD_MAX_BYTES {
        return Err(format!("{EXPECTED}: a name has at most {FIELD_MAX_BYTES} bytes"));
    }
    if secret.starts_with(HASH) {
        let hash = Hash::parse(secret)?;
        check_work(&BTreeSet::from([hash.cost()]))?;
        return Ok((name, Stored::Hash(Arc::new(hash))));
    }
    if FOREIGN_HASHES.iter().any(|start| secret.starts_with(start)) {
        return Err("this looks like a hash of another program; expected a hash of `spliceway hash-password`".into());
    }
    if secret.len() > FIELD_MAX_BYTES {
        return Err(format!("{EXPECTED}: a password has at most {FIELD_MAX_BYTES} bytes"));
    }
    Ok((name, Stored::Clear(secret.as_bytes().into())))
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_comments_and_both_kinds_of_secrets_are_read() {
        let hash = super::super::hash(b"b").unwrap();
        let file = parse(&format!("# users\n\nann:a:with:colons\r\nbob:{hash}\n")).unwrap();
        assert_eq!(file.clear, 1);
        assert!(
            matches!(&file.users[0], (name, Stored::Clear(secret)) if **name == *b"ann" && **secret == *b"a:with:colons")
        );
        assert!(matches!(&file.users[1], (name, Stored::Hash(_)) if **name == *b"bob"));
        let file = parse("\u{feff}ann:a\n").unwrap();
        assert_eq!(*file.users[0].0, *b"ann", "after a byte order mark");
    }

    #[test]
    fn an_error_names_the_line_but_does_not_repeat_its_text() {
        let long = "x".repeat(256);
        let asks =
            |name: &str, cost: &str| format!("{name}:$argon2id$v=19${cost},p=1$c29tZXNhbHQxMjM0${}", "A".repeat(43));
        for (text, line, problem) in [
            ("ann".to_owned(), 1, "expected NAME:HASH"),
            ("\nann:".to_owned(), 2, "neither may be empty"),
            (":secret".to_owned(), 1, "neither may be empty"),
            (format!("{long}:a"), 1, "at most 255"),
            (format!("ann:{long}"), 1, "at most 255"),
            ("ann:$2y$05$abcdefg".to_owned(), 1, "hash-password"),
            ("ann:$argon2id$nonsense".to_owned(), 1, "not a valid argon2 hash"),
            (asks("ann", "m=300000,t=1"), 1, "expected at most m=262144"),
            (asks("ann", "m=262144,t=5"), 1, "costs too much"),
            (
                format!("{}\n{}", asks("ann", "m=262144,t=3"), asks("bob", "m=262144,t=2")),
                2,
                "found 1310720",
            ),
            ("ann:a\nann:b".to_owned(), 2, "on an earlier line"),
            ("ann:a\n  bob:b".to_owned(), 2, "with a blank"),
            ("ann :a".to_owned(), 1, "with a blank"),
        ] {
            let Err((at, told)) = parse(&text) else {
                panic!("{text} is taken");
            };
            assert_eq!(at, line, "{text}");
            assert!(told.contains(problem), "{told}");
            assert!(!told.contains("secret:") && !told.contains("nonsense"), "{told}");
        }
    }
}
