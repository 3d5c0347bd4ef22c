//! The sections of files in PEM: certificates, keys and lists of revoked certificates, and what
//! else an operator may give.
//!
//! This module finds the sections, so that every fault has its line and its remedy. It does not
//! decode what they have.

use std::fmt::{self, Display, Formatter};
use std::iter;

const CERTIFICATE: &str = "CERTIFICATE";
const CRL: &str = "X509 CRL";
const KEYS: [&str; 3] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];

/// What a file must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// At least one certificate.
    Certificate,
    /// A private key.
    Key,
    /// At least one list of revoked certificates.
    Crl,
}

/// A section between two lines of dashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    /// The line in which the section begins. The first line is 1.
    pub line: usize,
    /// The section, with both lines of dashes.
    pub text: &'a [u8],
    wanted: Wanted,
}

/// A section, of which only the beginning may have been read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    label: String,
    line: usize,
    start: usize,
    end: usize,
    is_encrypted: bool,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    wanted: Wanted,
    /// The line, if the fault has one.
    line: Option<usize>,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Empty,
    Der,
    Pkcs7,
    Pkcs12,
    Utf16,
    /// Something is before the dashes of the first line.
    NotAtTheStart,
    /// No section has what is wanted, and the first one has this label.
    Other(String),
    NoSection,
    Encrypted,
    /// The section has no end.
    Endless(String),
    /// The line ends a section that has begun with another label, or none.
    WrongEnd {
        label: String,
        begun: Option<String>,
    },
    NotBase64(String),
    /// The section cannot be decoded.
    Undecodable,
}

/// Returns the wanted sections of a file. There is at least one. Among several keys, the first one
/// counts alone.
///
/// # Errors
/// Returns the first fault of the file.
pub fn find(text: &[u8], wanted: Wanted) -> Result<Vec<Section<'_>>, Fault> {
    let parts = parts(text, wanted)?;
    let mut found = parts.iter().filter(|part| wanted.is_in(part)).peekable();
    let encrypted = match wanted {
        Wanted::Key => found.peek().copied().filter(|key| key.is_encrypted),
        Wanted::Certificate | Wanted::Crl => parts.iter().find(|part| part.is_encrypted),
    };
    if let Some(encrypted) = encrypted {
        return Err(Fault::at(Some(encrypted.line), wanted, What::Encrypted));
    }
    if found.peek().is_none() {
        return Err(absent(text, wanted));
    }
    let max = if wanted == Wanted::Key { 1 } else { usize::MAX };
    let section = |part: &Part| Section {
        line: part.line,
        text: &text[part.start..part.end],
        wanted,
    };
    Ok(found.take(max).map(section).collect())
}

/// Returns all sections of a file, which are whole.
fn parts(text: &[u8], wanted: Wanted) -> Result<Vec<Part>, Fault> {
    let mut found = Vec::new();
    let mut open: Option<Part> = None;
    // A line that would begin a section, if nothing was before it.
    let mut hidden = None;
    for (index, (start, bytes)) in lines(text).enumerate() {
        let (line, end, bytes) = (index + 1, start + bytes.len(), bytes.trim_ascii_end());
        let fault = |what| Fault::at(Some(line), wanted, what);
        let endless = |section: &Part| Fault::at(Some(section.line), wanted, What::Endless(section.label.clone()));
        if let Some(label) = label(bytes, b"-----BEGIN ") {
            if let Some(section) = &open {
                return Err(endless(section));
            }
            open = Some(Part {
                label,
                line,
                start,
                end,
                is_encrypted: false,
            });
        } else if let Some(label) = label(bytes, b"-----END ") {
            let begun = open.take();
            match begun {
                Some(section) if section.label == label => found.push(Part { end, ..section }),
                None if hidden.is_some() => return Err(Fault::at(hidden, wanted, What::NotAtTheStart)),
                begun => {
                    let begun = begun.map(|section| section.label);
                    return Err(fault(What::WrongEnd { label, begun }));
                }
            }
        } else if let Some(section) = &mut open {
            if bytes.contains(&b':') {
                // A header, which OpenSSL wrote for an encrypted key.
                section.is_encrypted |= bytes.ends_with(b",ENCRYPTED");
            } else if !section.is_encrypted && !bytes.iter().copied().all(is_base64) {
                return Err(fault(What::NotBase64(section.label.clone())));
            }
        } else if has_begin(bytes) {
            hidden = Some(line);
        }
    }
    open.map_or(Ok(found), |section| {
        Err(Fault::at(Some(section.line), wanted, What::Endless(section.label)))
    })
}

/// Returns the lines of a text, each with its position. They end in one of the three usual ways.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut next = Some(0);
    iter::from_fn(move || {
        let start = next?;
        let rest = &text[start..];
        let length = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        next = length.map(|length| {
            let end = start + length;
            end + if rest[length..].starts_with(b"\r\n") { 2 } else { 1 }
        });
        Some((start, &rest[..length.unwrap_or(rest.len())]))
    })
}

/// Returns the label of a line that begins with these dashes.
fn label(line: &[u8], start: &[u8]) -> Option<String> {
    let label = line.strip_prefix(start)?;
    let label = label.strip_suffix(b"-----").unwrap_or(label);
    Some(String::from_utf8_lossy(label).into_owned())
}

fn has_begin(line: &[u8]) -> bool {
    line.windows(11).any(|part| part == b"-----BEGIN ")
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/= \t".contains(&byte)
}

/// Returns why a file has nothing of what is wanted, although its sections are whole.
fn absent(text: &[u8], wanted: Wanted) -> Fault {
    let sections = parts(text, wanted).unwrap_or_default();
    let encrypted = sections.iter().find(|one| one.label == "ENCRYPTED PRIVATE KEY");
    if let Some(key) = encrypted.filter(|_| wanted == Wanted::Key) {
        return Fault::at(Some(key.line), wanted, What::Encrypted);
    }
    if let Some(first) = sections.into_iter().next() {
        return Fault::at(Some(first.line), wanted, What::Other(first.label));
    }
    let what = match text {
        [] => What::Empty,
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => What::Utf16,
        // A sequence whose first element is the version 3.
        [0x30, 0x80, 2, 1, 3, ..] | [0x30, 0x82, _, _, 2, 1, 3, ..] => What::Pkcs12,
        // A sequence whose first element is the name of a kind of content.
        [0x30, 0x80, 6, ..] | [0x30, 0x82, _, _, 6, ..] => What::Pkcs7,
        // A sequence whose length has one or more bytes.
        [0x30, 0x81..=0x84, ..] | [0x30, ..=0x7f, 2, ..] => What::Der,
        _ => {
            let begin = lines(text).position(|(_, line)| has_begin(line));
            return Fault::at(
                begin.map(|index| index + 1),
                wanted,
                begin.map_or(What::NoSection, |_| What::NotAtTheStart),
            );
        }
    };
    Fault::at(None, wanted, what)
}

impl Wanted {
    fn is_in(self, section: &Part) -> bool {
        match self {
            Self::Certificate => section.label == CERTIFICATE,
            Self::Key => KEYS.contains(&&*section.label),
            Self::Crl => section.label == CRL,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Key => "private key",
            Self::Crl => "list of revoked certificates",
        }
    }

    /// Returns the first line of a section that has it.
    fn begin(self) -> &'static str {
        match self {
            Self::Certificate => "`-----BEGIN CERTIFICATE-----`",
            Self::Key => "`-----BEGIN PRIVATE KEY-----`",
            Self::Crl => "`-----BEGIN X509 CRL-----`",
        }
    }

    /// Returns the command of OpenSSL that reads it.
    fn command(self) -> &'static str {
        match self {
            Self::Certificate => "x509",
            Self::Key => "pkey",
            Self::Crl => "crl",
        }
    }
}

impl Section<'_> {
    /// Returns the fault of a section that cannot be decoded.
    pub fn damaged(&self) -> Fault {
        Fault::at(Some(self.line), self.wanted, What::Undecodable)
    }
}

impl Fault {
    fn at(line: Option<usize>, wanted: Wanted, what: What) -> Self {
        Self { wanted, line, what }
    }

    /// Returns whether a key is missing in a file that has certificates.
    pub fn has_certificates_only(&self) -> bool {
        self.wanted == Wanted::Key && matches!(&self.what, What::Other(label) if label == CERTIFICATE)
    }

    /// Returns the text for a file of this name.
    pub fn of<'a>(&'a self, file: &'a dyn Display) -> impl Display + 'a {
        struct Shown<'a>(&'a Fault, &'a dyn Display);
        impl Display for Shown<'_> {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                let Self(fault, file) = self;
                match fault.line {
                    Some(line) => write!(f, "{file}:{line}: ")?,
                    None => write!(f, "{file}: ")?,
                }
                fault.write(f, file)
            }
        }
        Shown(self, file)
    }

    fn write(&self, f: &mut Formatter<'_>, file: &dyn Display) -> fmt::Result {
        let (name, begin, command) = (self.wanted.name(), self.wanted.begin(), self.wanted.command());
        match &self.what {
            What::Empty => write!(f, "the file is empty: expected a {name} in PEM"),
            What::Der => write!(
                f,
                "the file is DER and not PEM: `openssl {command} -inform der -in {file} -out NEW` converts it"
            ),
            What::Pkcs7 => write!(
                f,
                "the file is PKCS#7 and not PEM: `openssl pkcs7 -inform der -print_certs -in {file} -out NEW` converts it"
            ),
            What::Pkcs12 => write!(
                f,
                "the file is PKCS#12 and not PEM: `openssl pkcs12 -nodes -in {file} -out NEW` converts it"
            ),
            What::Utf16 => write!(
                f,
                "the text is UTF-16: `iconv -f UTF-16 -t ASCII {file} > NEW` converts it"
            ),
            What::NotAtTheStart => write!(
                f,
                "`-----BEGIN` is not at the start of the line: remove what is before it"
            ),
            What::NoSection => write!(f, "there is no {name}: expected a line {begin}"),
            What::Other(label) => self.write_other(f, label, file),
            What::Encrypted => write!(
                f,
                "the private key is encrypted: `openssl pkey -in {file} -out NEW` writes it without a password"
            ),
            What::Endless(label) => write!(
                f,
                "the section that begins here does not end: expected a line `-----END {label}-----` after it"
            ),
            What::WrongEnd {
                label,
                begun: Some(begun),
            } => write!(f, "expected `-----END {begun}-----`, and not `-----END {label}-----`"),
            What::WrongEnd { label, begun: None } => {
                write!(f, "expected `-----BEGIN {label}-----` before this line")
            }
            What::NotBase64(label) => write!(
                f,
                "the line has a character that is not base64, in a section {label}: copy the file again"
            ),
            What::Undecodable => write!(f, "the {name} is damaged: copy the file again"),
        }
    }

    /// Writes what follows from a section that is not the wanted one.
    fn write_other(&self, f: &mut Formatter<'_>, label: &str, file: &dyn Display) -> fmt::Result {
        let name = self.wanted.name();
        let (has, remedy) = match label {
            "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST" => (
                "a certificate request (CSR)",
                if self.wanted == Wanted::Key {
                    "expected the key with which it was made".to_owned()
                } else {
                    "expected the certificate that the authority has made of it".to_owned()
                },
            ),
            "PUBLIC KEY" | "RSA PUBLIC KEY" => ("a public key", format!("expected the {name} that belongs to it")),
            CERTIFICATE if self.wanted == Wanted::Key => ("a certificate", "expected the file of its key".to_owned()),
            CERTIFICATE => ("a certificate", format!("expected a line {}", self.wanted.begin())),
            "TRUSTED CERTIFICATE" | "X509 CERTIFICATE" => (
                "a certificate in another format",
                format!("`openssl x509 -in {file} -out NEW` converts it"),
            ),
            "PKCS7" | "CMS" => (
                "a PKCS#7 bundle",
                format!("`openssl pkcs7 -print_certs -in {file} -out NEW` converts it"),
            ),
            "OPENSSH PRIVATE KEY" => (
                "a key of SSH",
                "expected the key of the certificate, as `openssl genpkey` makes it".to_owned(),
            ),
            "EC PARAMETERS" | "DH PARAMETERS" | "DSA PARAMETERS" => {
                ("only parameters", format!("expected a line {}", self.wanted.begin()))
            }
            label if label.ends_with("PRIVATE KEY") && self.wanted == Wanted::Certificate => (
                "a private key",
                "expected the certificate that belongs to it".to_owned(),
            ),
            label => {
                let expected = self.wanted.begin();
                return write!(
                    f,
                    "there is a section {label}, and no {name}: expected a line {expected}"
                );
            }
        };
        write!(f, "there is {has}, and no {name}: {remedy}")
    }
}

#[cfg(test)]
mod tests;
