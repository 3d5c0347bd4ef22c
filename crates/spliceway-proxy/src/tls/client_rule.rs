//! Rules for the certificates of clients.

use std::fmt::{self, Display, Formatter};
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::client_name::{Fingerprint, Name, Names, is_address as is_email, is_host, is_plain_char, is_usable};

/// Permits certificates with a name, or one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientRule {
    /// A DNS name in lower case. With a dot at its beginning, all names below it.
    Dns(Box<str>),
    /// An email address. With an `@` at its beginning, all addresses of the host.
    Email(Box<str>),
    /// A URI. With a `/` at its end, all URIs below it.
    Uri(Box<str>),
    /// The common name of the subject.
    CommonName(Box<str>),
    Certificate(Fingerprint),
}

/// Why a text is not a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRule {
    /// The position of the first wrong character. The first character has position 1.
    position: usize,
    expected: &'static str,
}

impl ClientRule {
    pub(super) fn permits(&self, names: &Names, fingerprint: &Fingerprint) -> bool {
        let of = |matches: &dyn Fn(&Name) -> bool| names.hosts_and_emails.iter().any(matches);
        match self {
            Self::Dns(rule) if rule.starts_with('.') => {
                of(&|name| matches!(name, Name::Dns(name) if is_longer_end(name, rule)))
            }
            Self::Dns(rule) => of(&|name| matches!(name, Name::Dns(name) if name == rule)),
            Self::Email(rule) => of(&|name| matches!(name, Name::Email(name) if is_address(name, rule))),
            Self::Uri(rule) if rule.ends_with('/') => names
                .uris
                .iter()
                .any(|uri| uri.len() > rule.len() && uri.starts_with(&**rule)),
            Self::Uri(rule) => names.uris.contains(rule),
            Self::CommonName(rule) => names.common_name.as_ref() == Some(rule),
            Self::Certificate(rule) => rule == fingerprint,
        }
    }
}

fn is_longer_end(name: &str, end: &str) -> bool {
    name.len() > end.len() && name.ends_with(end)
}

/// Returns whether an address is the one of a rule, or of its host. Only the host ignores case
/// (RFC 5280 section 7.5).
fn is_address(address: &str, rule: &str) -> bool {
    let (Some((user, host)), Some((rule_user, rule_host))) = (address.rsplit_once('@'), rule.rsplit_once('@')) else {
        return false;
    };
    (rule_user.is_empty() || user == rule_user) && host.eq_ignore_ascii_case(rule_host)
}

const KINDS: &str = "expected DNS:, EMAIL:, URI:, CN: or SHA256:";
const PLAIN: &str = "expected at most 255 characters of printable ASCII without quotes, because other names in \
                     certificates are ignored: permit such a certificate by its fingerprint, as SHA256:…";

impl FromStr for ClientRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = |position, expected| BadRule { position, expected };
        let (kind, value) = text.split_once(':').ok_or(bad(1, KINDS))?;
        let start = kind.len() + 2;
        let at = |index: Option<usize>, expected| match index {
            Some(index) => Err(bad(start + value[..index].chars().count(), expected)),
            None => Ok(()),
        };
        match kind {
            "DNS" => {
                let (wrong, expected) = wrong_in_host(value);
                at(wrong, expected)?;
                let name = value.strip_prefix('*').unwrap_or(value);
                // The dot of the root, which certificates never have.
                let name = name.strip_suffix('.').unwrap_or(name);
                at((!is_host(name.trim_start_matches('.'))).then_some(0), expected)?;
                Ok(Self::Dns(name.to_ascii_lowercase().into()))
            }
            "EMAIL" => {
                let expected = "expected an address such as name@example.com or *@example.com";
                let host_at = value.rfind('@').ok_or(bad(start, expected))?;
                let (user, host) = (&value[..host_at], &value[host_at + 1..]);
                at(
                    (user.is_empty() || value.contains(char::is_whitespace)).then_some(0),
                    expected,
                )?;
                at(host.is_empty().then_some(value.len()), expected)?;
                at(host.find('*').map(|index| host_at + 1 + index), expected)?;
                at(user.find('*').filter(|_| user != "*"), expected)?;
                at(value.find(|char| !is_plain_char(char)), PLAIN)?;
                at((!is_email(value)).then_some(0), PLAIN)?;
                let value = if user == "*" { &value[1..] } else { value };
                Ok(Self::Email(value.into()))
            }
            "URI" => {
                let expected = "expected a URI such as spiffe://example.com/name or spiffe://example.com/*";
                at((!value.contains("://")).then_some(0), expected)?;
                at(value.find(|char: char| !char.is_ascii_graphic()), expected)?;
                at(value.find(|char| !is_plain_char(char)), PLAIN)?;
                let prefix = value.strip_suffix('*').unwrap_or(value);
                at(prefix.find('*'), expected)?;
                at(
                    (value.len() != prefix.len() && !prefix.ends_with('/')).then_some(prefix.len()),
                    expected,
                )?;
                at(
                    (value.len() == prefix.len() && prefix.ends_with('/')).then_some(prefix.len()),
                    expected,
                )?;
                Ok(Self::Uri(prefix.into()))
            }
            "CN" => {
                let expected = "expected the common name of the subject";
                at(value.is_empty().then_some(0), expected)?;
                at(
                    value.find('*'),
                    "expected a whole name: a rule for many names is DNS:*.example.com",
                )?;
                at(value.find(|char| !is_plain_char(char)), PLAIN)?;
                at((!is_usable(value)).then_some(0), PLAIN)?;
                Ok(Self::CommonName(value.into()))
            }
            "SHA256" => fingerprint(value).map(Self::Certificate).map_err(|index| {
                bad(
                    start + index,
                    "expected 64 hexadecimal digits, also with colons between bytes",
                )
            }),
            _ => Err(bad(1, KINDS)),
        }
    }
}

/// Returns the place in a name of hosts that is wrong, if there is one, and what is expected.
fn wrong_in_host(value: &str) -> (Option<usize>, &'static str) {
    let (skipped, name) = value.strip_prefix("*.").map_or((0, value), |name| (2, name));
    let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    if name.strip_suffix('.').unwrap_or(name).parse::<Ipv4Addr>().is_ok() {
        return (Some(0), "expected a name: there are no rules for addresses");
    }
    let wrong = match name.find(|char| !is_part(char)) {
        None if name.is_empty() || name.starts_with('.') => Some(0),
        None => name.find("..").map(|index| index + 1),
        wrong => wrong,
    };
    let expected = "expected a name such as host.example.com or *.example.com";
    (wrong.map(|index| index + skipped), expected)
}

/// Parses a fingerprint as `openssl x509 -fingerprint -sha256` prints it. Returns the number of
/// characters before the first wrong one.
fn fingerprint(text: &str) -> Result<Fingerprint, usize> {
    let mut bytes = [0; 32];
    let mut digits = 0;
    for (index, char) in text.chars().enumerate() {
        match char.to_digit(16) {
            Some(digit) if digits < 64 => {
                bytes[digits / 2] = bytes[digits / 2] << 4 | digit as u8;
                digits += 1;
            }
            None if char == ':' && digits % 2 == 0 && (1..64).contains(&digits) => {}
            _ => return Err(index),
        }
    }
    if digits < 64 {
        return Err(text.chars().count());
    }
    Ok(Fingerprint(bytes))
}

impl Display for BadRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "character {}: {}", self.position, self.expected)
    }
}

/// The form in which the configuration reports it.
impl From<BadRule> for String {
    fn from(bad: BadRule) -> Self {
        bad.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let text = |text: &str| Box::<str>::from(text);
        Names {
            hosts_and_emails: vec![Name::Dns(text("a.b.test")), Name::Email(text("Ann@Example.test"))],
            uris: vec![text("spiffe://x.test/ns/a")],
            common_name: Some(text("Ann")),
        }
    }

    #[test]
    fn a_rule_permits_what_it_names_and_nothing_else() {
        let digits = "ab".repeat(32);
        for (rule, is_permitted) in [
            ("DNS:a.b.test", true),
            ("DNS:A.B.test", true),
            ("DNS:*.b.test", true),
            ("DNS:*.test", true),
            ("DNS:a.b.test.", true),
            ("DNS:*.b.test.", true),
            ("DNS:*.a.b.test", false),
            ("DNS:b.test", false),
            ("DNS:*.xb.test", false),
            ("EMAIL:Ann@example.test", true),
            ("EMAIL:ann@example.test", false),
            ("EMAIL:*@EXAMPLE.test", true),
            ("EMAIL:*@test", false),
            ("URI:spiffe://x.test/ns/a", true),
            ("URI:spiffe://x.test/ns/*", true),
            ("URI:spiffe://x.test/*", true),
            ("URI:spiffe://x.test/n", false),
            ("URI:spiffe://x.test/ns/a/*", false),
            ("CN:Ann", true),
            ("CN:ann", false),
            ("DNS:ann", false),
            (&format!("SHA256:{digits}"), true),
            (&format!("SHA256:{}", vec!["AB"; 32].join(":")), true),
            (&format!("SHA256:{}", "ac".repeat(32)), false),
        ] {
            let parsed: ClientRule = rule.parse().unwrap();
            let fingerprint = Fingerprint([0xab; 32]);
            assert_eq!(parsed.permits(&names(), &fingerprint), is_permitted, "{rule}");
            assert!(!parsed.permits(&Names::default(), &Fingerprint([0; 32])), "{rule}");
        }
    }

    #[test]
    fn a_wrong_rule_is_reported_with_its_position() {
        for (rule, position, expected) in [
            ("", 1, "expected DNS:"),
            ("host.test", 1, "expected DNS:"),
            ("dns:host.test", 1, "expected DNS:"),
            ("DNS:", 5, "host.example.com"),
            ("DNS:*.", 7, "host.example.com"),
            ("DNS:a..b", 7, "host.example.com"),
            ("DNS:a b", 6, "host.example.com"),
            ("DNS:*a.test", 5, "host.example.com"),
            ("DNS:a.*.test", 7, "host.example.com"),
            ("EMAIL:ann", 7, "name@example.com"),
            ("EMAIL:@x.test", 7, "name@example.com"),
            ("EMAIL:ann@", 11, "name@example.com"),
            ("EMAIL:*@*", 9, "*@example.com"),
            ("EMAIL:*@*.test", 9, "*@example.com"),
            ("EMAIL:ann*@x.test", 10, "*@example.com"),
            ("EMAIL:ann@b@x.test", 7, "printable ASCII"),
            ("EMAIL:jörg@x.test", 8, "printable ASCII"),
            ("URI:a://b/'", 11, "SHA256:"),
            ("CN:Jörg", 5, "SHA256:"),
            ("CN:Ann ", 4, "printable ASCII"),
            (&format!("CN:{}", "a".repeat(256)), 4, "at most 255"),
            ("DNS:a.test..", 12, "host.example.com"),
            ("DNS:.", 5, "host.example.com"),
            ("DNS:*..", 7, "host.example.com"),
            ("DNS:10.0.0.1.", 5, "no rules for addresses"),
            (&format!("DNS:{}", "a".repeat(256)), 5, "host.example.com"),
            ("URI:x.test", 5, "spiffe://"),
            ("URI:a://b/*/c", 11, "spiffe://"),
            ("URI:a://b*", 10, "spiffe://"),
            ("CN:", 4, "the common name"),
            ("CN:*", 4, "a whole name"),
            ("DNS:10.0.0.1", 5, "no rules for addresses"),
            ("SHA256:12", 10, "64 hexadecimal digits"),
            ("SHA256:1:2", 9, "64 hexadecimal digits"),
            ("SHA256:xy", 8, "64 hexadecimal digits"),
        ] {
            let error = rule.parse::<ClientRule>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("character {position}: ")), "{rule}: {error}");
            assert!(error.contains(expected), "{rule}: {error}");
        }
    }
}
