//! The names in a client's certificate, and the one by which the client is known.
//!
//! A CA vouches for the names, but it may not restrict their form. So names that could confuse logs
//! or tables of users are not used.

use std::fmt::{self, Display, Formatter};

use rustls::pki_types::CertificateDer;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::crypto::sha256;

/// The longest name of a client in bytes, as for the names of users in SOCKS5 (RFC 1929).
const NAME_MAX_BYTES: usize = 255;

/// The SHA-256 digest of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint(pub(crate) [u8; 32]);

/// The certificate of a client, as records and target rules know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCert {
    /// The name by which the client is known: printable ASCII of at most 255 bytes, and never
    /// empty.
    pub(crate) name: Box<str>,
    /// Whether the name is that of a host. It is in lower case then, and its case has no meaning.
    pub(crate) is_host: bool,
    /// The common name (CN) of the subject, if it can be used.
    pub(crate) common_name: Option<Box<str>>,
    pub(crate) fingerprint: Fingerprint,
}

/// The names of a certificate that can be used.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// DNS names and email addresses, in the order of the certificate.
    pub(super) hosts_and_emails: Vec<Name>,
    pub(super) uris: Vec<Box<str>>,
    pub(super) common_name: Option<Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// In lower case.
    Dns(Box<str>),
    Email(Box<str>),
}

impl Names {
    /// Returns the names of a certificate that can be used. One that cannot be parsed has none.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut names = Self::default();
        let Ok(parsed) = x509_cert::Certificate::from_der(certificate) else {
            return names;
        };
        let parsed = parsed.tbs_certificate();
        if let Ok(Some((_, alternatives))) = parsed.get_extension::<SubjectAltName>() {
            for name in alternatives.0 {
                match name {
                    GeneralName::DnsName(name) if is_host(name.as_str()) => {
                        let name = name.as_str().to_ascii_lowercase();
                        names.hosts_and_emails.push(Name::Dns(name.into()));
                    }
                    GeneralName::Rfc822Name(name) if is_address(name.as_str()) => {
                        names.hosts_and_emails.push(Name::Email(name.as_str().into()));
                    }
                    GeneralName::UniformResourceIdentifier(uri) if is_plain(uri.as_str()) => {
                        names.uris.push(uri.as_str().into());
                    }
                    _ => {}
                }
            }
        }
        let common_name = parsed.subject().common_name().ok().flatten().map(String::from);
        names.common_name = common_name.filter(|name| is_usable(name)).map(Into::into);
        names
    }
}

impl ClientCert {
    /// The client is known by its first DNS name or email address, then by its common name, then by
    /// its first URI of at most 255 bytes, and else by the fingerprint.
    pub(super) fn new(names: &Names, fingerprint: Fingerprint) -> Self {
        let first = names.hosts_and_emails.iter().map(|name| match name {
            Name::Dns(name) | Name::Email(name) => name,
        });
        let first_uri = names.uris.iter().find(|uri| is_usable(uri));
        let name = first.chain(&names.common_name).chain(first_uri).next().cloned();
        Self {
            name: name.unwrap_or_else(|| fingerprint.to_string().into()),
            is_host: matches!(names.hosts_and_emails.first(), Some(Name::Dns(_))),
            common_name: names.common_name.clone(),
            fingerprint,
        }
    }
}

/// Returns whether a client can be known by this name.
pub(super) fn is_usable(name: &str) -> bool {
    name.len() <= NAME_MAX_BYTES && is_plain(name)
}

/// Returns whether a name means the same in every log and table. It must also not look like the
/// fingerprint of another certificate.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(is_plain_char)
        && !name.starts_with(' ')
        && !name.ends_with(' ')
        && !name.starts_with(Fingerprint::PREFIX)
}

pub(super) fn is_plain_char(char: char) -> bool {
    matches!(char, ' '..='~') && !matches!(char, '"' | '\'' | '\\')
}

/// Returns whether this is the name of one host, which no wildcard is.
pub(super) fn is_host(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        !part.is_empty() && part.bytes().all(is_plain)
    };
    is_usable(name) && name.split('.').all(is_part)
}

pub(super) fn is_address(name: &str) -> bool {
    let parts = name.split_once('@');
    is_usable(name) && parts.is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
}

impl Fingerprint {
    /// What a fingerprint begins with in text.
    pub(super) const PREFIX: &str = "SHA256:";

    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(sha256(certificate))
    }

    /// Returns the digest in hexadecimal digits.
    pub(crate) fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Display for Fingerprint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.digits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn known_as(common_name: Option<&str>, alternatives: Vec<SanType>) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = alternatives;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let fingerprint = Fingerprint::of(certificate.der());
        let known = ClientCert::new(&Names::of(certificate.der()), fingerprint);
        known.name.replace(&fingerprint.to_string(), "fingerprint")
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn email(name: &str) -> SanType {
        SanType::Rfc822Name(name.try_into().unwrap())
    }

    fn uri(name: &str) -> SanType {
        SanType::URI(name.try_into().unwrap())
    }

    #[test]
    fn a_client_is_known_by_its_first_name_that_can_be_used() {
        let spiffe = || uri("spiffe://example.test/a");
        for (common_name, alternatives, expected) in [
            (Some("cn"), vec![spiffe(), dns("B.test"), email("a@b.test")], "b.test"),
            (Some("cn"), vec![email("A@b.test"), dns("b.test")], "A@b.test"),
            (Some("Alice Smith"), vec![spiffe()], "Alice Smith"),
            (None, vec![spiffe()], "spiffe://example.test/a"),
            (None, vec![SanType::IpAddress([127, 0, 0, 1].into())], "fingerprint"),
            (None, vec![], "fingerprint"),
        ] {
            assert_eq!(known_as(common_name, alternatives), expected);
        }
    }

    #[test]
    fn names_that_could_deceive_are_not_used() {
        let long = "a".repeat(NAME_MAX_BYTES + 1);
        let longest = "a".repeat(NAME_MAX_BYTES);
        for name in [
            "a\nend=ok",
            "a\0b",
            "a\r",
            "\u{1b}[2J",
            "",
            " a",
            "a ",
            "a\"b",
            "a\\x41",
            "SHA256:00",
            "Jörg",
            &long,
        ] {
            assert_eq!(known_as(Some(name), vec![]), "fingerprint", "{name:?}");
        }
        assert_eq!(known_as(Some(&longest), vec![]), longest);
        for host in [
            "a\0b.test",
            "*.b.test",
            "a..b.test",
            ".b.test",
            "b.test.",
            "a@b.test",
            "a b.test",
            "",
        ] {
            assert_eq!(
                known_as(Some("cn"), vec![dns(host), dns("c.test")]),
                "c.test",
                "{host:?}"
            );
        }
        for address in ["a@b@c.test", "@b.test", "a@", "a", "a\n@b.test"] {
            assert_eq!(known_as(Some("cn"), vec![email(address)]), "cn", "{address:?}");
        }
        assert_eq!(known_as(None, vec![uri("spiffe://a/\nb")]), "fingerprint");
    }

    #[test]
    fn a_certificate_that_cannot_be_parsed_has_no_names() {
        let names = Names::of(&CertificateDer::from(vec![0x30, 0x82]));
        assert!(names.hosts_and_emails.is_empty() && names.common_name.is_none());
    }

    #[test]
    fn a_fingerprint_is_the_digest_of_the_certificate() {
        let fingerprint = Fingerprint::of(&CertificateDer::from(b"abc".to_vec()));
        let expected = "SHA256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint.to_string(), expected);
    }
}
