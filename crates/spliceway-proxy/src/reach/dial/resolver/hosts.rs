//! Reads the text of `/etc/hosts` (hosts(5)). This module does no I/O.

use std::collections::HashMap;
use std::net::IpAddr;

use super::ignored::Ignored;

/// The most addresses of a name. As many are used of an answer over DNS.
const ADDRESSES_MAX: usize = 256;

/// The names of the file in lower case, with their addresses in the order of the lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(HashMap<Box<str>, Vec<IpAddr>>);

impl Hosts {
    /// Reads the text of the file. A bad line is ignored, and a bad name costs only that name.
    pub(super) fn parse(text: &[u8], ignored: &mut Ignored) -> Self {
        let mut hosts = Self::default();
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if let Err(why) = hosts.line(line) {
                ignored.add(number, why);
            }
        }
        hosts
    }

    fn line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(address) = words.next() else { return Ok(()) };
        let address = std::str::from_utf8(address).ok().and_then(|text| text.parse().ok());
        let address: IpAddr = address.ok_or("the line does not start with an IP address")?;
        let address = address.to_canonical();
        let mut fault = Ok(());
        for name in words {
            match std::str::from_utf8(name) {
                Ok(name) => self.add(&name.to_ascii_lowercase(), address),
                Err(_) => fault = Err("a name is not UTF-8"),
            }
        }
        fault
    }

    fn add(&mut self, name: &str, address: IpAddr) {
        let addresses = self.0.entry(name.into()).or_default();
        if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// Returns the addresses of a name in lower case. They count for both families: if the file has
    /// addresses of only one family, the name has no address of the other one.
    pub(super) fn get(&self, name: &str) -> Option<&[IpAddr]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_addresses_that_glibc_finds() {
        let text = b"10.0.0.1 one Alias.One\r\n10.0.0.2 one\n10.0.0.3\tone#c\n::ffff:192.0.2.7 mapped\n\
            10.0.0.4 b\xffd good4\n\xff\xfe bad\nfe80::1%lo zoned\n  10.0.0.6 indented\n10.0.0 short\n\
            010.0.0.8 octal\n10.0.0.9 dot.example.\n# 10.0.0.1 no\n\n2001:db8::1 one\n10.0.0.1 one\n10.0.0.11";
        let mut ignored = Ignored::default();
        let hosts = Hosts::parse(text, &mut ignored);
        for (name, expected) in [
            ("one", &["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1"][..]),
            ("alias.one", &["10.0.0.1"]),
            ("mapped", &["192.0.2.7"]),
            ("good4", &["10.0.0.4"]),
            ("indented", &["10.0.0.6"]),
            ("dot.example.", &["10.0.0.9"]),
        ] {
            let expected: Vec<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(hosts.get(name), Some(&expected[..]), "{name}");
        }
        for name in ["bad", "zoned", "short", "octal", "dot.example", "one.", "no"] {
            assert_eq!(hosts.get(name), None, "{name}");
        }
        assert_eq!((ignored.count, ignored.first.unwrap().0), (5, 5));
    }
}
