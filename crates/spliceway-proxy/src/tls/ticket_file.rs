//! The text of a file with keys of tickets.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::tickets::KEY_BYTES;

/// The most keys in a file. A rotation needs two or three. Each costs three derived keys, with
/// about 0.6 KiB each.
const KEYS_MAX: usize = 16;

/// What is wrong with a file. Lines begin at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    ReadByOthers,
    Empty,
    NotBase64 { line: usize },
    Length { line: usize, bytes: usize },
    TooMany { line: usize },
}

/// Returns the keys of a text: one in each line, except empty lines and those that begin with `#`.
pub(super) fn parse(text: &[u8]) -> Result<Vec<[u8; KEY_BYTES]>, Fault> {
    let mut secrets = Vec::new();
    for (index, bytes) in text.split(|byte| *byte == b'\n').enumerate() {
        let (line, bytes) = (index + 1, bytes.trim_ascii());
        if bytes.is_empty() || bytes.starts_with(b"#") {
            continue;
        }
        let secret = STANDARD.decode(bytes).map_err(|_| Fault::NotBase64 { line })?;
        let bytes = secret.len();
        let secret = secret.try_into().map_err(|_| Fault::Length { line, bytes })?;
        if secrets.len() == KEYS_MAX {
            return Err(Fault::TooMany { line });
        }
        secrets.push(secret);
    }
    if secrets.is_empty() {
        return Err(Fault::Empty);
    }
    Ok(secrets)
}

impl Fault {
    /// Shows the fault with its file, its place and its remedy. It shows no byte of a key.
    pub(super) fn of(self, file: &impl Display) -> impl Display {
        const EXPECTED: &str = "expected 32 bytes in base64, as `openssl rand -base64 32` writes them";
        match self {
            Self::ReadByOthers => format!("every user can read the ticket keys in {file}: run `chmod o= {file}`"),
            Self::Empty => format!("{file} has no ticket key: `openssl rand -base64 32 > {file}` writes one"),
            Self::NotBase64 { line } => format!("{file}:{line}: the line is no ticket key: {EXPECTED}"),
            Self::Length { line, bytes } => format!("{file}:{line}: the ticket key has {bytes} bytes: {EXPECTED}"),
            Self::TooMany { line } => format!(
                "{file}:{line}: there are more than {KEYS_MAX} ticket keys: remove keys that have not been the \
                 first one for 12 hours"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_key_in_each_line() {
        let line = |byte: u8| STANDARD.encode([byte; KEY_BYTES]);
        let text = format!("# of May\n{}\r\n\n  {}\t\n#{}", line(1), line(2), line(3));
        assert_eq!(parse(text.as_bytes()).unwrap(), [[1; 32], [2; 32]]);
        let long = STANDARD.encode([1; 48]);
        for (text, fault) in [
            (String::new(), Fault::Empty),
            ("# nothing\n".into(), Fault::Empty),
            (line(1) + "\nkey", Fault::NotBase64 { line: 2 }),
            (line(1) + &line(2), Fault::NotBase64 { line: 1 }),
            (long, Fault::Length { line: 1, bytes: 48 }),
            (line(1) + "\n\nAAAA\n", Fault::Length { line: 3, bytes: 3 }),
            ((line(1) + "\n").repeat(17), Fault::TooMany { line: 17 }),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(fault), "{text}");
        }
        assert_eq!(parse((line(1) + "\n").repeat(16).as_bytes()).unwrap().len(), 16);
        assert_eq!(parse(b"\xff\xfe"), Err(Fault::NotBase64 { line: 1 }));
    }
}
