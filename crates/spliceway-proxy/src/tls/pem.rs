//! Certificates, keys and lists of revoked certificates in PEM, and what else an operator may give.
//!
//! rustls decodes PEM. This file finds the lines of its sections first, so that every fault has the
//! line and the remedy.

use std::fmt::{self, Display, Formatter};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

const CERTIFICATE: &str = "CERTIFICATE";
const CRL: &str = "X509 CRL";
const KEYS: [&str; 3] = ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];

/// What a file must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Certificate,
    Key,
    /// A list of revoked certificates.
    Crl,
}

/// A section between two lines of dashes. Lines begin at 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    label: String,
    line: usize,
    is_encrypted: bool,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
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
    /// rustls cannot decode the section.
    Undecodable,
}

/// Returns the certificates of a file, each with the line in which it begins. There is at least
/// one.
pub(super) fn certificates(text: &[u8]) -> Result<Vec<(usize, CertificateDer<'static>)>, Fault> {
    all(text, Wanted::Certificate)
}

/// Returns the lists of revoked certificates of a file, each with the line in which it begins.
/// There is at least one.
pub(super) fn crls(text: &[u8]) -> Result<Vec<(usize, CertificateRevocationListDer<'static>)>, Fault> {
    all(text, Wanted::Crl)
}

fn all<T: PemObject>(text: &[u8], wanted: Wanted) -> Result<Vec<(usize, T)>, Fault> {
    let sections = sections(text, wanted)?;
    if let Some(encrypted) = sections.iter().find(|one| one.is_encrypted) {
        return Err(Fault::at(Some(encrypted.line), wanted, What::Encrypted));
    }
    let lines: Vec<_> = sections
        .iter()
        .filter(|one| wanted.is_in(one))
        .map(|one| one.line)
        .collect();
    if lines.is_empty() {
        return Err(absent(text, wanted));
    }
    let whole = T::pem_slice_iter(text).map_while(Result::ok);
    let found: Vec<_> = lines.iter().copied().zip(whole).collect();
    if found.len() < lines.len() {
        let damaged = lines.get(found.len()).copied();
        return Err(Fault::at(damaged, wanted, What::Undecodable));
    }
    Ok(found)
}

/// Returns the first key of a file, and the line in which it begins.
pub(super) fn key(text: &[u8]) -> Result<(usize, PrivateKeyDer<'static>), Fault> {
    let wanted = Wanted::Key;
    let sections = sections(text, wanted)?;
    let first = sections
        .iter()
        .find(|one| wanted.is_in(one))
        .ok_or_else(|| absent(text, wanted))?;
    if first.is_encrypted {
        return Err(Fault::at(Some(first.line), wanted, What::Encrypted));
    }
    let key = PrivateKeyDer::from_pem_slice(text);
    key.map(|key| (first.line, key))
        .map_err(|_| Fault::at(Some(first.line), wanted, What::Undecodable))
}

/// Returns the sections of a file, which all are whole.
fn sections(text: &[u8], wanted: Wanted) -> Result<Vec<Section>, Fault> {
    let mut found = Vec::new();
    let mut open: Option<Section> = None;
    // A line that would begin a section, if nothing was before it.
    let mut hidden = None;
    for (index, bytes) in lines(text).enumerate() {
        let (line, bytes) = (index + 1, bytes.trim_ascii_end());
        let fault = |what| Fault::at(Some(line), wanted, what);
        let endless = |section: &Section| Fault::at(Some(section.line), wanted, What::Endless(section.label.clone()));
        if let Some(label) = label(bytes, b"-----BEGIN ") {
            if let Some(section) = &open {
                return Err(endless(section));
            }
            open = Some(Section {
                label,
                line,
                is_encrypted: false,
            });
        } else if let Some(label) = label(bytes, b"-----END ") {
            let begun = open.take();
            match begun {
                Some(section) if section.label == label => found.push(section),
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

/// Returns the lines of a text. They end in one of the three usual ways.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').flat_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        line.split(|byte| *byte == b'\r')
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
    let sections = sections(text, wanted).unwrap_or_default();
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
            let begin = lines(text).position(has_begin);
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
    fn is_in(self, section: &Section) -> bool {
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

impl Fault {
    fn at(line: Option<usize>, wanted: Wanted, what: What) -> Self {
        Self { wanted, line, what }
    }

    /// Returns whether a key is missing in a file that has certificates.
    pub(super) fn has_certificates_only(&self) -> bool {
        self.wanted == Wanted::Key && matches!(&self.what, What::Other(label) if label == CERTIFICATE)
    }

    /// Returns the text for a file of this name.
    pub(super) fn of<'a>(&'a self, file: &'a dyn Display) -> impl Display + 'a {
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
mod tests {
    use super::*;

    fn section(label: &str) -> String {
        format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
    }

    fn about_certificate(text: &[u8]) -> String {
        certificates(text).unwrap_err().of(&"c.pem").to_string()
    }

    fn about_key(text: &[u8]) -> String {
        key(text).unwrap_err().of(&"k.pem").to_string()
    }

    #[test]
    fn certificates_have_the_lines_in_which_they_begin() {
        let text = format!(
            "# a comment\n{}\n{}{}",
            section(CERTIFICATE),
            section("PRIVATE KEY"),
            section(CERTIFICATE)
        );
        let lines: Vec<_> = certificates(text.as_bytes())
            .unwrap()
            .iter()
            .map(|(line, _)| *line)
            .collect();
        assert_eq!(lines, [2, 9]);
        let windows = section(CERTIFICATE).replace('\n', "\r\n");
        assert_eq!(certificates(windows.as_bytes()).unwrap().len(), 1);
        assert_eq!(key(text.as_bytes()).unwrap().0, 6);
    }

    #[test]
    fn another_kind_of_file_is_named_with_its_remedy() {
        for (text, expected) in [
            (&b""[..], "c.pem: the file is empty"),
            (
                b"\x30\x82\x01\x00\x30",
                "c.pem: the file is DER and not PEM: `openssl x509 -inform der",
            ),
            (
                b"\x30\x82\x01\x00\x02\x01\x03",
                "c.pem: the file is PKCS#12 and not PEM: `openssl pkcs12",
            ),
            (
                b"\x30\x80\x06\x09",
                "c.pem: the file is PKCS#7 and not PEM: `openssl pkcs7 -inform der",
            ),
            (b"\xff\xfe-\0-\0", "c.pem: the text is UTF-16: `iconv"),
            (
                b"\n\xef\xbb\xbf-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "c.pem:2: `-----BEGIN` is not at the start",
            ),
            (
                b"nothing",
                "c.pem: there is no certificate: expected a line `-----BEGIN CERTIFICATE-----`",
            ),
        ] {
            let message = about_certificate(text);
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn another_kind_of_section_is_named_with_its_remedy() {
        for (label, expected) in [
            (
                "CERTIFICATE REQUEST",
                "c.pem:1: there is a certificate request (CSR), and no certificate: ",
            ),
            ("PUBLIC KEY", "c.pem:1: there is a public key, and no certificate: "),
            (
                "EC PRIVATE KEY",
                "c.pem:1: there is a private key, and no certificate: ",
            ),
            (
                "TRUSTED CERTIFICATE",
                "c.pem:1: there is a certificate in another format, and no certificate: `openssl",
            ),
            (
                "PKCS7",
                "c.pem:1: there is a PKCS#7 bundle, and no certificate: `openssl pkcs7",
            ),
            (
                "X",
                "c.pem:1: there is a section X, and no certificate: expected a line `-----BEGIN C",
            ),
        ] {
            let message = about_certificate(section(label).as_bytes());
            assert!(message.starts_with(expected), "{message}");
        }
        assert!(about_key(b"\x30\x2e\x02\x01\x00").starts_with("k.pem: the file is DER and not PEM: `openssl pkey"));
        for (label, expected) in [
            (
                CERTIFICATE,
                "k.pem:1: there is a certificate, and no private key: expected the file of its key",
            ),
            (
                "OPENSSH PRIVATE KEY",
                "k.pem:1: there is a key of SSH, and no private key: ",
            ),
            (
                "EC PARAMETERS",
                "k.pem:1: there is only parameters, and no private key: ",
            ),
            (
                "ENCRYPTED PRIVATE KEY",
                "k.pem:1: the private key is encrypted: `openssl pkey",
            ),
        ] {
            let message = about_key(section(label).as_bytes());
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_damaged_section_is_named_by_its_line() {
        for (text, expected) in [
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n",
                "c.pem:1: the section that begins here does not end",
            ),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----BEGIN CERTIFICATE-----\n",
                "c.pem:1: the section that begins here does not end: expected a line `-----END CERTIFICATE-----`",
            ),
            (
                "-----BEGIN CERTIFCATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "c.pem:3: expected `-----END CERTIFCATE",
            ),
            (
                "AAAA\n-----END CERTIFICATE-----\n",
                "c.pem:2: expected `-----BEGIN CERTIFICATE-----` before",
            ),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\nA*AA\n",
                "c.pem:3: the line has a character that is not base64",
            ),
            (
                "-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n",
                "c.pem:1: the certificate is damaged: copy",
            ),
            (
                "-----BEGIN CERTIFICATE-----\rAAAA\r-----END CERTIFICATE-----\r\n\r\n-----BEGIN CERTIFICATE-----\r\nA\r\n\
                 -----END CERTIFICATE-----\n",
                "c.pem:5: the certificate is damaged: copy",
            ),
        ] {
            let message = about_certificate(text.as_bytes());
            assert!(message.starts_with(expected), "{message}");
        }
        let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
                   -----END EC PRIVATE KEY-----\n";
        assert!(about_key(old.as_bytes()).starts_with("k.pem:1: the private key is encrypted"));
        let both = section(CERTIFICATE) + &section("ENCRYPTED PRIVATE KEY");
        assert!(about_key(both.as_bytes()).starts_with("k.pem:4: the private key is encrypted"));
        let both = section(CERTIFICATE) + old;
        assert!(about_certificate(both.as_bytes()).starts_with("c.pem:4: the private key is encrypted"));
    }
}
