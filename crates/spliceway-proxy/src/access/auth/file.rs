//! Reads a user file, which has `NAME:HASH` or `NAME:PASSWORD` on each line.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::{Fingerprint, fingerprint};
use super::hash::{Cost, Hash, Stored, WORK_MAX_KIB};
use crate::kit::named_file::{self, NamedFile, Rights};

/// The start of a hash. A text that does not start with it is the password itself.
const HASH: &str = "$argon2";
/// The starts of hashes that other programs write, such as htpasswd(1), mkpasswd(1) and LDAP
/// servers. As passwords, these hashes would let in everyone who has read the file that they come
/// from.
const FOREIGN_HASHES: [&str; 33] = [
    "$1$",
    "$2$",
    "$2a$",
    "$2b$",
    "$2x$",
    "$2y$",
    "$5$",
    "$6$",
    "$7$",
    "$apr1$",
    "$gy$",
    "$y$",
    "$sha1$",
    "$md5",
    "$H$",
    "$P$",
    "$S$",
    "$scrypt$",
    "$bcrypt",
    "$pbkdf2",
    "{SHA}",
    "{SSHA}",
    "{SHA256}",
    "{SSHA256}",
    "{SHA512}",
    "{SSHA512}",
    "{MD5}",
    "{SMD5}",
    "{CRYPT}",
    "{crypt}",
    "{BLF-CRYPT}",
    "{ARGON2",
    "{PBKDF2",
];
/// The maximum length of a name and of a password, because RFC 1929 has one byte for each length.
pub(crate) const FIELD_MAX_BYTES: usize = 255;
/// The maximum size of a file, enough for ten thousand users with hashes.
pub(super) const FILE_MAX_BYTES: usize = 4 << 20;

/// The users in a file.
#[derive(Default)]
pub(crate) struct UserFile {
    pub(crate) users: Vec<(Box<[u8]>, Stored)>,
    /// The keyed digest of the text.
    pub(crate) fingerprint: Fingerprint,
    /// The passwords that are not hashed.
    pub(crate) clear: Vec<Place>,
    pub(crate) rights: Rights,
}

/// A line of a user file, as messages show it: its number, and the name if the line has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(super) line: usize,
    pub(super) name: Option<Box<str>>,
}

/// A problem in a user file. The message never repeats what follows the name in a line, which may
/// be a password.
#[derive(Debug)]
pub(crate) struct FileError {
    path: PathBuf,
    place: Option<Place>,
    problem: String,
}

/// A line of a file that is for a user.
pub(super) struct Line<'a> {
    pub(super) number: usize,
    /// The place of the line in the file, with its end.
    pub(super) range: Range<usize>,
    pub(super) text: &'a str,
}

/// Reads the users in `path`. Empty lines and lines that start with `#` are skipped.
///
/// # Errors
/// Returns an error if the file cannot be read or is larger than 4 MiB. It also returns an error
/// for a file without users, and for each duplicate user and each invalid line.
pub(crate) fn read(path: &Path) -> Result<UserFile, Vec<FileError>> {
    let whole = |problem: String| vec![FileError::new(path, None, problem)];
    let NamedFile { text, rights } = named_file::read(path, FILE_MAX_BYTES).map_err(|why| {
        whole(format!(
            "{why}; expected a file with NAME:HASH on each line, as `spliceway user add {} NAME` writes it",
            path.display()
        ))
    })?;
    let (mut file, faults) = parse(&text);
    if !faults.is_empty() {
        let errors = faults
            .into_iter()
            .map(|(place, problem)| FileError::new(path, Some(place), problem));
        return Err(errors.collect());
    }
    file.fingerprint = fingerprint(&text);
    file.rights = rights;
    if file.users.is_empty() {
        return Err(whole(format!("{NO_USERS}; {EXPECTED}")));
    }
    Ok(file)
}

pub(super) const NO_USERS: &str = "the file has no users";
const EXPECTED: &str = "expected NAME:HASH, which `spliceway user add` writes, or NAME:PASSWORD";

/// Returns the lines of a file that are for users.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut end = 0;
    let lines = (1..).zip(text.split_inclusive('\n')).map(move |(number, whole)| {
        let mut start = end;
        end += whole.len();
        let mut text = whole;
        // Some editors write a byte order mark, which is no part of the first name.
        if let (1, Some(rest)) = (number, text.strip_prefix('\u{feff}')) {
            (start, text) = (end - rest.len(), rest);
        }
        let text = text.strip_suffix('\n').unwrap_or(text);
        Line {
            number,
            range: start..end,
            text: text.strip_suffix('\r').unwrap_or(text),
        }
    });
    lines.filter(|line| !line.text.is_empty() && !line.text.starts_with('#'))
}

/// Returns the users, and what is wrong in each other line.
pub(super) fn parse(text: &str) -> (UserFile, Vec<(Place, String)>) {
    let (mut file, mut faults) = (UserFile::default(), Vec::new());
    let (mut costs, mut names) = (BTreeSet::new(), HashSet::new());
    for line in lines(text) {
        let read = user(line.text).and_then(|(name, stored)| {
            if !names.insert(name) {
                return Err("this name is already on an earlier line".to_owned());
            }
            if let Stored::Hash(hash) = &stored {
                costs.insert(hash.cost());
                check_work(&costs)?;
            }
            Ok((name, stored))
        });
        match read {
            Ok((name, stored)) => {
                if matches!(stored, Stored::Clear(_)) {
                    file.clear.push(line.place());
                }
                file.users.push((name.as_bytes().into(), stored));
            }
            Err(problem) => faults.push((line.place(), problem)),
        }
    }
    (file, faults)
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
    let has = |hash: &str| {
        secret
            .match_indices(hash)
            .any(|(at, _)| at == 0 || secret.as_bytes()[at - 1] == b':')
    };
    if let Some(start) = FOREIGN_HASHES.iter().find(|hash| has(hash)) {
        return Err(format!(
            "the password has a hash of another program, `{start}`, which would be the password itself; `spliceway user passwd` sets a password"
        ));
    }
    if secret.contains(HASH) {
        return Err(format!(
            "the password contains a hash, so two lines may have become one; {EXPECTED}"
        ));
    }
    if secret.len() > FIELD_MAX_BYTES {
        return Err(format!("{EXPECTED}: a password has at most {FIELD_MAX_BYTES} bytes"));
    }
    Ok((name, Stored::Clear(secret.as_bytes().into())))
}

/// Checks the name of a new user.
///
/// # Errors
/// Returns a message that describes the expected form.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > FIELD_MAX_BYTES {
        return Err("expected a name of 1 to 255 bytes");
    }
    if name.contains(':') {
        return Err("expected a name without `:`, which ends the name in a line");
    }
    if name.starts_with('#') {
        return Err("expected a name that does not begin with `#`, as a comment does");
    }
    if name.trim() != name {
        return Err("expected a name that does not begin or end with a blank");
    }
    if name.contains(|char: char| char.is_control() || char == '\u{feff}') {
        return Err("expected a name without control characters");
    }
    Ok(())
}

impl Line<'_> {
    pub(super) fn name(&self) -> Option<&str> {
        self.text.split_once(':').map(|(name, _)| name)
    }

    pub(super) fn place(&self) -> Place {
        let name = self.name().filter(|name| !name.is_empty());
        Place {
            line: self.number,
            name: name.map(|name| spliceway_protocol::printable(name.as_bytes())),
        }
    }
}

impl Place {
    /// Shows the place in the file at `path`, such as `users:3 (ann)`.
    pub(super) fn within(&self, path: &Path) -> String {
        let (path, line) = (path.display(), self.line);
        match &self.name {
            Some(name) => format!("{path}:{line} ({name})"),
            None => format!("{path}:{line}"),
        }
    }
}

impl FileError {
    pub(super) fn new(path: &Path, place: Option<Place>, problem: String) -> Self {
        let path = path.into();
        Self { path, place, problem }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{}: {}", place.within(&self.path), self.problem),
            None => write!(f, "{}: {}", self.path.display(), self.problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_comments_and_both_kinds_of_secrets_are_read() {
        let hash = super::super::hash(b"b").unwrap();
        let (file, faults) = parse(&format!("# users\n\nann:a:with:colons\r\nbob:{hash}\n"));
        assert!(faults.is_empty());
        let clear: Vec<_> = file
            .clear
            .iter()
            .map(|place| place.within(Path::new("users")))
            .collect();
        assert_eq!(clear, ["users:3 (ann)"]);
        assert!(
            matches!(&file.users[0], (name, Stored::Clear(secret)) if **name == *b"ann" && **secret == *b"a:with:colons")
        );
        assert!(matches!(&file.users[1], (name, Stored::Hash(_)) if **name == *b"bob"));
        let (file, _) = parse("\u{feff}ann:a\n");
        assert_eq!(*file.users[0].0, *b"ann", "after a byte order mark");
    }

    #[test]
    fn an_error_names_line_and_user_but_does_not_repeat_the_password() {
        let long = "x".repeat(256);
        let asks =
            |name: &str, cost: &str| format!("{name}:$argon2id$v=19${cost},p=1$c29tZXNhbHQxMjM0${}", "A".repeat(43));
        for (text, at, problem) in [
            ("nonsense".to_owned(), "users:1", "expected NAME:HASH"),
            ("\nann:".to_owned(), "users:2 (ann)", "neither may be empty"),
            (":secret".to_owned(), "users:1", "neither may be empty"),
            (format!("{long}:a"), "users:1 (xxx", "at most 255"),
            (format!("ann:{long}"), "users:1 (ann)", "at most 255"),
            (
                "ann:$2y$05$secret".to_owned(),
                "users:1 (ann)",
                "another program, `$2y$`, which",
            ),
            (
                "ann:{SSHA}secret".to_owned(),
                "users:1 (ann)",
                "another program, `{SSHA}`, which",
            ),
            // As a shell leaves them when `hash-password` fails once.
            (
                format!("ann:{}", asks("bob", "m=8,t=1")),
                "users:1 (ann)",
                "contains a hash",
            ),
            (
                "ann:bob:$6$salt$secret".to_owned(),
                "users:1 (ann)",
                "another program, `$6$`, which",
            ),
            (
                "ann:$argon2id$nonsense".to_owned(),
                "users:1 (ann)",
                "not a valid argon2 hash",
            ),
            (
                asks("ann", "m=300000,t=1"),
                "users:1 (ann)",
                "expected at most m=262144",
            ),
            (asks("ann", "m=262144,t=5"), "users:1 (ann)", "costs too much"),
            (
                format!("{}\n{}", asks("ann", "m=262144,t=3"), asks("bob", "m=262144,t=2")),
                "users:2 (bob)",
                "found 1310720",
            ),
            ("ann:a\nann:b".to_owned(), "users:2 (ann)", "on an earlier line"),
            ("ann:a\n  bob:b".to_owned(), "users:2 (  bob)", "with a blank"),
            ("ann :a".to_owned(), "users:1 (ann )", "with a blank"),
        ] {
            let (_, faults) = parse(&text);
            let [(place, told)] = &faults[..] else {
                panic!("{text}: {faults:?}");
            };
            let place = place.within(Path::new("users"));
            assert!(place.starts_with(at), "{place}: {text}");
            assert!(told.contains(problem), "{told}");
            assert!(!told.contains("secret") && !told.contains("nonsense"), "{told}");
        }
        // A password may look like a part of a hash.
        assert!(parse("ann:a$6$b{SHA}").1.is_empty());
    }

    #[test]
    fn a_name_that_a_line_cannot_have_is_refused() {
        for (name, expected) in [
            ("", "1 to 255 bytes"),
            (&*"x".repeat(256), "1 to 255 bytes"),
            ("a:b", "without `:`"),
            ("#ann", "does not begin with `#`"),
            (" ann", "a blank"),
            ("ann\t", "a blank"),
            ("a\nb", "without control characters"),
            ("\u{feff}ann", "without control characters"),
        ] {
            assert!(check_name(name).unwrap_err().contains(expected), "{name:?}");
        }
        assert_eq!(check_name("Ann O'Neil@example.com"), Ok(()));
    }
}
