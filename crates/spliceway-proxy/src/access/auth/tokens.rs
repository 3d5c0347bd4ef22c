//! The tokens of the admin socket: what each one permits, and the file that has their hashes.
//!
//! A token has 256 random bits, so that nobody can guess it from its hash. A slow hash, as
//! passwords need it, would only delay each request.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::file::{FileError, Place, check_name, lines};
use crate::kit::named_file::{self, NamedFile, Rights};

/// What programs that look for leaked secrets recognize.
const PREFIX: &str = "spliceway_";
const SECRET_BYTES: usize = 32;
const HASH_BYTES: usize = 32;
/// The maximum size of a file. It has room for a thousand tokens with long names.
pub(super) const FILE_MAX_BYTES: usize = 1 << 20;
const EXPECTED: &str = "expected NAME:SCOPES:HASH, which `spliceway token add` writes";

/// What a token permits. No scope includes another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    /// Read the state.
    Read,
    /// End sessions.
    Sessions,
    /// Take services and backends out of use, and set weights.
    Drain,
    /// Change everything else.
    Write,
}

/// The scopes of a token, without duplicates, in the order of [`Scope::ALL`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scopes(Vec<Scope>);

/// The tokens of a file.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Tokens(Vec<Token>);

/// A token, of which the program only knows the hash.
#[derive(PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) name: Arc<str>,
    scopes: Scopes,
    hash: [u8; HASH_BYTES],
}

/// The tokens in a file.
pub(crate) struct TokenFile {
    pub(crate) tokens: Tokens,
    pub(crate) rights: Rights,
}

impl Scope {
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Sessions, Self::Drain, Self::Write];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Sessions => "sessions",
            Self::Drain => "drain",
            Self::Write => "write",
        }
    }
}

impl Scopes {
    /// Parses scopes that are separated by commas.
    ///
    /// # Errors
    /// Returns a message that lists all scopes. It does not repeat the text, which may be a token
    /// at the wrong place.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let scope = |word: &str| Scope::ALL.into_iter().find(|scope| scope.as_str() == word);
        let scopes: Option<Vec<_>> = text.split(',').map(scope).collect();
        let mut scopes = scopes.ok_or_else(|| {
            let all = Scope::ALL.map(Scope::as_str).join(", ");
            format!("expected scopes separated by commas, out of {all}")
        })?;
        scopes.sort_unstable();
        scopes.dedup();
        Ok(Self(scopes))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(|scope| scope.as_str()).collect();
        f.write_str(&words.join(","))
    }
}

impl Tokens {
    /// Returns the token with this text. Hashes are compared in constant time, and all of them.
    pub(crate) fn find(&self, text: &[u8]) -> Option<&Token> {
        let hash = hash(text);
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Token {
    pub(crate) fn permits(&self, scope: Scope) -> bool {
        self.scopes.0.contains(&scope)
    }
}

impl fmt::Debug for Tokens {
    /// Shows the number of tokens, but no hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("count", &self.0.len())
            .finish_non_exhaustive()
    }
}

/// Returns a new token, and what follows its name in a line of the file.
pub(crate) fn create(scopes: &Scopes) -> (String, String) {
    // The generator of the thread gets its seed from the system.
    let secret: [u8; SECRET_BYTES] = rand::random();
    let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
    let hash: String = hash(token.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    (token, format!("{scopes}:{hash}"))
}

/// Reads the tokens in `path`. Empty lines and lines that start with `#` are skipped. A file
/// without tokens is valid, so that the last one can be removed.
///
/// # Errors
/// Returns an error if the file cannot be read or is larger than 1 MiB. It also returns an error
/// for each invalid line.
pub(crate) fn read(path: &Path) -> Result<TokenFile, Vec<FileError>> {
    let NamedFile { text, rights } = named_file::read(path, FILE_MAX_BYTES).map_err(|why| {
        let problem = format!("{why}; `spliceway token add {} NAME` creates it", path.display());
        vec![FileError::new(path, None, problem)]
    })?;
    let (tokens, faults) = parse(&text);
    if faults.is_empty() {
        return Ok(TokenFile { tokens, rights });
    }
    let errors = faults.into_iter();
    Err(errors
        .map(|(place, problem)| FileError::new(path, Some(place), problem))
        .collect())
}

/// Returns the tokens, and what is wrong in each other line.
pub(super) fn parse(text: &str) -> (Tokens, Vec<(Place, String)>) {
    let (mut tokens, mut faults) = (Vec::<Token>::new(), Vec::new());
    let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
    for line in lines(text) {
        match token(line.text) {
            Ok(token) if !names.insert(Arc::clone(&token.name)) => {
                faults.push((line.place(), "this name is already on an earlier line".to_owned()));
            }
            Ok(token) if !hashes.insert(token.hash) => {
                faults.push((line.place(), "this token is already on an earlier line".to_owned()));
            }
            Ok(token) => tokens.push(token),
            Err(problem) => faults.push((line.place(), problem)),
        }
    }
    (Tokens(tokens), faults)
}

/// Returns what `spliceway token list` shows of a line: the name and the scopes.
pub(super) fn listed(line: &str) -> Option<String> {
    let token = token(line).ok()?;
    Some(format!("{} {}", token.name, token.scopes))
}

fn token(text: &str) -> Result<Token, String> {
    let parts: Vec<_> = text.split(':').collect();
    let [name, scopes, hash] = parts[..] else {
        return Err(EXPECTED.to_owned());
    };
    check_name(name)?;
    Ok(Token {
        name: name.into(),
        scopes: Scopes::parse(scopes)?,
        hash: decode(hash).ok_or("expected the SHA-256 of the token, in 64 hexadecimal digits")?,
    })
}

fn hash(text: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(text).into()
}

fn decode(hex: &str) -> Option<[u8; HASH_BYTES]> {
    let digits: Option<Vec<_>> = hex.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 2 * HASH_BYTES)?;
    let mut hash = [0; HASH_BYTES];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(pair[0] * 16 + pair[1]).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_by_its_text_alone_and_permits_its_scopes() {
        let scopes = Scopes::parse("drain,read,drain").unwrap();
        let ((text, line), (other, _)) = (create(&scopes), create(&scopes));
        assert_eq!(text.len(), PREFIX.len() + 43);
        let (tokens, faults) = parse(&format!("# tokens\n\npanel:{line}\r\n"));
        assert!(faults.is_empty());
        let token = tokens.find(text.as_bytes()).unwrap();
        assert_eq!(
            (&*token.name, token.scopes.to_string()),
            ("panel", "read,drain".to_owned())
        );
        let permitted = Scope::ALL.map(|scope| token.permits(scope));
        assert_eq!(permitted, [true, false, true, false]);
        let hash = line.rsplit(':').next().unwrap();
        for wrong in [
            &*other,
            hash,
            &text[1..],
            &text[..text.len() - 1],
            &(text.clone() + "\n"),
            "",
        ] {
            assert!(tokens.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_hash_is_that_of_sha256sum() {
        // From `printf %s secret | sha256sum`.
        let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        let (tokens, _) = parse(&format!("panel:read:{hash}"));
        assert!(tokens.find(b"secret").is_some());
        let (tokens, _) = parse(&format!("panel:read:{}", hash.to_uppercase()));
        assert!(tokens.find(b"secret").is_some());
    }

    #[test]
    fn an_error_names_the_line_and_does_not_repeat_its_secrets() {
        let hash = "0".repeat(64);
        for (text, at, problem) in [
            ("spliceway_secret".to_owned(), "tokens:1", "expected NAME:SCOPES:HASH"),
            (format!("\na:{hash}"), "tokens:2 (a)", "expected NAME:SCOPES:HASH"),
            (
                format!("a:read:write:{hash}"),
                "tokens:1 (a)",
                "expected NAME:SCOPES:HASH",
            ),
            (
                format!("a:spliceway_secret:{hash}"),
                "tokens:1 (a)",
                "out of read, sessions, drain, write",
            ),
            (format!("a::{hash}"), "tokens:1 (a)", "expected scopes"),
            (format!("a:Read:{hash}"), "tokens:1 (a)", "expected scopes"),
            (format!(":read:{hash}"), "tokens:1", "1 to 255 bytes"),
            (
                "a:read:spliceway_secret".to_owned(),
                "tokens:1 (a)",
                "64 hexadecimal digits",
            ),
            (format!("a:read:{hash}0"), "tokens:1 (a)", "64 hexadecimal digits"),
            (
                format!("a:read:{hash}\na:read:{}", "1".repeat(64)),
                "tokens:2 (a)",
                "name is already",
            ),
            (
                format!("a:read:{hash}\nb:read:{hash}"),
                "tokens:2 (b)",
                "token is already",
            ),
        ] {
            let (_, faults) = parse(&text);
            let [(place, told)] = &faults[..] else {
                panic!("{text}: {faults:?}");
            };
            let place = place.within(Path::new("tokens"));
            assert!(place.starts_with(at), "{place}: {text}");
            assert!(told.contains(problem), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
