//! A file of users: `name:secret` on each line.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;

use super::Stored;

/// What a hash starts with; what does not is the secret itself.
const HASH: &str = "$argon2";
/// RFC 1929 has one byte for each length.
const FIELD_MAX_BYTES: usize = 255;
/// Ten thousand users with their hashes.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// Names with their secrets, and how many of these are not hashed.
#[derive(Default)]
pub(crate) struct UserFile {
    pub(crate) users: Vec<(Box<[u8]>, Stored)>,
    pub(crate) clear: usize,
}

/// What is wrong with a file, and where. Never repeats what a line says: it may be a secret.
#[derive(Debug)]
pub(crate) struct FileError {
    path: PathBuf,
    line: Option<usize>,
    problem: String,
}

/// Reads `path`. Lines that are empty or start with `#` are left out.
///
/// # Errors
/// A file that cannot be read, is larger than 4 MiB, has no users, one of them twice, or a line that is none of these.
pub(crate) fn read(path: &Path) -> Result<UserFile, FileError> {
    let whole = |problem: String| FileError {
        path: path.into(),
        line: None,
        problem,
    };
    let text = read_bounded(path).map_err(|error| whole(error.to_string()))?;
    let file = parse(&text).map_err(|(line, problem)| FileError {
        path: path.into(),
        line: Some(line),
        problem,
    })?;
    match file.users.is_empty() {
        true => Err(whole(format!("there is no user in it; {EXPECTED}"))),
        false => Ok(file),
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    if fs::metadata(path)?.len() > FILE_MAX_BYTES {
        return Err(io::Error::other("larger than 4 MiB"));
    }
    fs::read_to_string(path)
}

const EXPECTED: &str = "expected NAME:HASH, with a hash of `spliceway hash-password`, or NAME:SECRET";

fn parse(text: &str) -> Result<UserFile, (usize, String)> {
    let mut file = UserFile::default();
    for (index, line) in text.lines().enumerate() {
        let wrong = |problem: String| (index + 1, problem);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, stored) = user(line).map_err(wrong)?;
        if file.users.iter().any(|(have, _)| **have == *name.as_bytes()) {
            return Err(wrong("this name was there before".to_owned()));
        }
        file.clear += usize::from(matches!(stored, Stored::Clear(_)));
        file.users.push((name.as_bytes().into(), stored));
    }
    Ok(file)
}

/// The name and secret of `NAME:SECRET`.
///
/// # Errors
/// What was expected instead.
pub(crate) fn user(text: &str) -> Result<(&str, Stored), String> {
    let (name, secret) = text.split_once(':').ok_or(EXPECTED)?;
    if name.is_empty() || secret.is_empty() {
        return Err(format!("{EXPECTED}: neither may be empty"));
    }
    if name.trim_matches([' ', '\t']) != name {
        return Err(format!("{EXPECTED}: a name neither begins nor ends with a blank"));
    }
    if name.len() > FIELD_MAX_BYTES {
        return Err(format!("{EXPECTED}: a name has at most {FIELD_MAX_BYTES} bytes"));
    }
    if secret.starts_with(HASH) {
        let hash = PasswordHash::new(secret).map_err(|error| format!("this hash is none of argon2's: {error}"))?;
        return Ok((name, Stored::Hash(Arc::new(hash))));
    }
    if secret.len() > FIELD_MAX_BYTES {
        return Err(format!("{EXPECTED}: a secret has at most {FIELD_MAX_BYTES} bytes"));
    }
    Ok((name, Stored::Clear(secret.as_bytes().into())))
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
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
    }

    #[test]
    fn what_is_wrong_is_told_by_its_line_and_without_what_it_says() {
        let long = "x".repeat(256);
        for (text, line, problem) in [
            ("ann".to_owned(), 1, "expected NAME:HASH"),
            ("\nann:".to_owned(), 2, "neither may be empty"),
            (":secret".to_owned(), 1, "neither may be empty"),
            (format!("{long}:a"), 1, "at most 255"),
            (format!("ann:{long}"), 1, "at most 255"),
            ("ann:$argon2id$nonsense".to_owned(), 1, "none of argon2's"),
            ("ann:a\nann:b".to_owned(), 2, "there before"),
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
