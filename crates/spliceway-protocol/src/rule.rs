//! Parses the rules that operators write about targets, such as `*.example.com:443` and
//! `10.0.0.0/8`.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use crate::address::Target;

/// The most ports and ranges of ports in a rule. A rule with more of them is a mistake.
const PORTS_MAX: usize = 64;

/// Targets, to be allowed or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetRule {
    /// The hosts.
    pub hosts: Hosts,
    /// The ports of these hosts.
    pub ports: Ports,
}

/// The hosts of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// `*`, or nothing before the ports: every host.
    All,
    /// The addresses of a network. An IPv4-mapped network is the IPv4 network.
    Network(IpNet),
    /// One name, in the form of [`canonical_name`].
    Name(Box<str>),
    /// `*.NAME`: the names below this one, but not this one.
    Below(Box<str>),
}

/// The ports of a rule: ranges, each with its first and its last port. No range means every port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ports(pub Box<[(u16, u16)]>);

/// Returns a name in the form in which two spellings of the same name are equal: in lower case and
/// without the final dot. Returns `None` for a name with an empty label, such as one with two final
/// dots, because programs disagree about its meaning.
#[must_use]
pub fn canonical_name(name: &str) -> Option<Cow<'_, str>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.split('.').any(str::is_empty) {
        return None;
    }
    Some(match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => name.to_ascii_lowercase().into(),
        false => name.into(),
    })
}

/// Converts an IPv4-mapped IPv6 network to the IPv4 network. Every other network stays unchanged.
#[must_use]
pub fn canonical_network(net: IpNet) -> IpNet {
    let (IpAddr::V4(ip), IpNet::V6(v6)) = (net.addr().to_canonical(), net) else {
        return net;
    };
    let bits = v6.prefix_len().checked_sub(128 - 32);
    bits.and_then(|bits| Ipv4Net::new(ip, bits).ok()).map_or(net, IpNet::V4)
}

const EXPECTED: &str = "expected HOST[:PORTS], such as example.com, *.example.com:443, 10.0.0.0/8, \
                        [2001:db8::/32]:80,443 or :8000-8999";
const EXPECTED_PORTS: &str = "expected at most 64 ports from 1 to 65535, such as :443, :80,443 or :8000-8999";
const NUMBERS: &str = "this is neither a whole address nor a name: expected an address such as 10.0.0.1, \
                       a network such as 10.0.0.0/8, or a name whose last part is not a number";
const WILDCARD: &str = "a wildcard stands for whole parts at the start of a name: expected *.example.com";

impl FromStr for TargetRule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let every_port = |hosts| Self {
            hosts,
            ports: Ports::default(),
        };
        if let Some(net) = network(text) {
            return Ok(every_port(Hosts::Network(net)));
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (net, ports) = rest.split_once(']').ok_or(EXPECTED)?;
            let hosts = network(net).filter(|_| net.contains(':')).map(Hosts::Network);
            let hosts = hosts.ok_or(EXPECTED)?;
            return match ports {
                "" => Ok(every_port(hosts)),
                ports => Ok(Self {
                    hosts,
                    ports: ports.strip_prefix(':').ok_or(EXPECTED)?.parse()?,
                }),
            };
        }
        match text.rsplit_once(':') {
            // A URL.
            Some((_, ports)) if ports.contains('/') => Err(EXPECTED),
            Some((hosts, ports)) => Ok(Self {
                hosts: hosts_of(hosts, true)?,
                ports: ports.parse()?,
            }),
            None => hosts_of(text, false).map(every_port),
        }
    }
}

/// Parses the hosts of a rule, without brackets.
fn hosts_of(text: &str, has_ports: bool) -> Result<Hosts, &'static str> {
    match text {
        "" if has_ports => return Ok(Hosts::All),
        "*" => return Ok(Hosts::All),
        // An IPv6 address without brackets and with ports is ambiguous.
        text if text.contains(':') => return Err(EXPECTED),
        _ => {}
    }
    if let Some(net) = network(text) {
        return Ok(Hosts::Network(net));
    }
    match text.strip_prefix("*.") {
        Some(below) => name(below).map(Hosts::Below),
        None if text.starts_with('.') => Err(WILDCARD),
        None => name(text).map(Hosts::Name),
    }
}

/// Parses a name. A name with other letters than those of ASCII becomes what clients send for it
/// (`xn--…`), by the rules of IDNA.
fn name(text: &str) -> Result<Box<str>, &'static str> {
    if text.contains('*') {
        return Err(WILDCARD);
    }
    let ascii = match text.is_ascii() {
        true => Cow::Borrowed(text),
        false => idna::domain_to_ascii(text).map(Cow::Owned).map_err(|_| EXPECTED)?,
    };
    let name = canonical_name(&ascii).ok_or(EXPECTED)?;
    let last = name.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return Err(NUMBERS);
    }
    match Target::named(&name, 0) {
        Some(Target::Name(name, _)) => Ok(name),
        _ => Err(EXPECTED),
    }
}

/// Parses an address or a network. The host bits of a network do not matter.
fn network(text: &str) -> Option<IpNet> {
    let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.ok().map(|net: IpNet| canonical_network(net).trunc())
}

impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| {
            // `str::parse` also accepts a plus sign.
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|port| is_number && *port != 0)
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last): (u16, u16) = (port(first)?, port(last)?);
            (first <= last).then_some((first, last))
        };
        let ranges: Option<Vec<_>> = text.split(',').take(PORTS_MAX + 1).map(range).collect();
        match ranges {
            Some(ranges) if ranges.len() <= PORTS_MAX => Ok(Self(ranges.into())),
            _ => Err(EXPECTED_PORTS),
        }
    }
}

impl fmt::Display for TargetRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ports = !self.ports.0.is_empty();
        match &self.hosts {
            Hosts::All if has_ports => Ok(()),
            Hosts::Network(net @ IpNet::V6(_)) if has_ports => write!(f, "[{net}]"),
            hosts => hosts.fmt(f),
        }?;
        self.ports.fmt(f)
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Network(net) => net.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

/// Shows the ports as a rule ends with them: `:80,8000-8999`, or nothing for every port.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { ":" } else { "," })?;
            match first == last {
                true => write!(f, "{first}")?,
                false => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reads_back_as_it_was_written() {
        for text in [
            "*",
            "example.com",
            "*.example.com",
            "a_b.example.com:443",
            "xn--bcher-kva.example:80,443",
            "*.example.com:80,443,8000-8999",
            ":443",
            ":1-65535",
            "10.0.0.0/8",
            "10.0.0.0/8:22",
            "2001:db8::/32",
            "[2001:db8::/32]:443",
            "[::1/128]:80-81",
            "0.0.0.0/0",
            "::/0",
        ] {
            let rule: TargetRule = text.parse().unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
            assert_eq!(rule.to_string(), text);
        }
    }

    #[test]
    fn other_spellings_of_a_rule_mean_the_same_rule() {
        for (text, same) in [
            ("EXAMPLE.com.", "example.com"),
            ("*.Example.COM.:443", "*.example.com:443"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example.", "xn--bcher-kva.example"),
            ("*.straße.example", "*.xn--strae-oqa.example"),
            ("ｅｘａｍｐｌｅ.com", "example.com"),
            ("example。com", "example.com"),
            ("*:443", ":443"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.1:80", "192.0.2.1/32:80"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1/32:80"),
            ("[2001:db8::1]", "2001:db8::1/128"),
            ("2001:db8:0:0:0::1", "2001:db8::1/128"),
            (":0080", ":80"),
        ] {
            let (rule, same): (TargetRule, TargetRule) = (text.parse().unwrap(), same.parse().unwrap());
            assert_eq!(rule, same, "{text}");
        }
    }

    #[test]
    fn a_wrong_rule_is_refused_with_the_expected_form() {
        for text in [
            "",
            ":",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:+1",
            "example.com:2-1",
            "example.com:80,",
            "example.com:80, 443",
            ":1:2",
            "http://example.com",
            "example.com/path",
            "exa mple.com",
            ".",
            "..",
            ".example.com",
            "a..example.com",
            "example.com..",
            "*example.com",
            "a.*.example.com",
            "*.*.example.com",
            "**",
            "*.",
            "10.0.0",
            "127.1",
            "0x7f.1",
            "0X7F000001",
            "2130706433",
            "300.0.0.1",
            "*.0.0.10",
            "10.0.0.0/33",
            "10.0.0/8",
            "[10.0.0.0/8]:80",
            "[example.com]:80",
            "[2001:db8::/32",
            "[2001:db8::/32]80",
            "2001:db8::/32:443",
            "2001:db8::/129",
            "fe80::1%eth0",
            "a\0.example.com",
            "a\u{202e}b.example",
        ] {
            let wrong = text.parse::<TargetRule>().expect_err(text);
            assert!(wrong.contains("expected"), "{text}: {wrong}");
        }
        assert_eq!(
            "http://example.com".parse::<TargetRule>(),
            Err(EXPECTED),
            "not its ports"
        );
        assert!(format!(":{}", ["1"; PORTS_MAX].join(",")).parse::<TargetRule>().is_ok());
        assert!(
            format!(":{}", ["1"; PORTS_MAX + 1].join(","))
                .parse::<TargetRule>()
                .is_err()
        );
        assert!("a.".repeat(129).parse::<TargetRule>().is_err(), "longer than a name");
    }

    #[test]
    fn a_name_with_an_empty_label_has_no_canonical_form() {
        assert_eq!(canonical_name("A.b.").as_deref(), Some("a.b"));
        for name in ["", ".", "..", "...", ".a", "a..b", "a.b..", "a.b..."] {
            assert_eq!(canonical_name(name), None, "{name}");
        }
    }
}
