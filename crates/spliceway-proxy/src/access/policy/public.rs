//! The addresses that are not on the public Internet: those in IANA's special-purpose registries
//! (RFC 6890 and its successors), multicast addresses, and the addresses of cloud metadata
//! services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Denied;

/// The IPv4 networks that are not public. The first network that contains an address gives the
/// reason, so a network comes before any larger network that contains it.
const V4: [(Ipv4Net, Denied); 24] = [
    // Amazon and the clouds that use the same address, Amazon's container credentials (two
    // addresses), Alibaba, Azure's agent, Oracle, Scaleway, Tencent (two).
    (v4([169, 254, 169, 254], 32), Denied::Metadata),
    (v4([169, 254, 170, 2], 32), Denied::Metadata),
    (v4([169, 254, 170, 23], 32), Denied::Metadata),
    (v4([100, 100, 100, 200], 32), Denied::Metadata),
    (v4([168, 63, 129, 16], 32), Denied::Metadata),
    (v4([192, 0, 0, 192], 32), Denied::Metadata),
    (v4([169, 254, 42, 42], 32), Denied::Metadata),
    (v4([169, 254, 0, 23], 32), Denied::Metadata),
    (v4([169, 254, 10, 10], 32), Denied::Metadata),
    (v4([0, 0, 0, 0], 8), Denied::Unspecified),
    (v4([10, 0, 0, 0], 8), Denied::Private),
    (v4([100, 64, 0, 0], 10), Denied::Cgnat),
    (v4([127, 0, 0, 0], 8), Denied::Loopback),
    (v4([169, 254, 0, 0], 16), Denied::LinkLocal),
    (v4([172, 16, 0, 0], 12), Denied::Private),
    // Protocol assignments, including the addresses for DS-Lite and NAT64.
    (v4([192, 0, 0, 0], 24), Denied::Reserved),
    (v4([192, 0, 2, 0], 24), Denied::Reserved),
    // Formerly the anycast addresses of 6to4 relays.
    (v4([192, 88, 99, 0], 24), Denied::Reserved),
    (v4([192, 168, 0, 0], 16), Denied::Private),
    // Benchmark networks. Some VPNs also assign these addresses to names.
    (v4([198, 18, 0, 0], 15), Denied::Reserved),
    (v4([198, 51, 100, 0], 24), Denied::Reserved),
    (v4([203, 0, 113, 0], 24), Denied::Reserved),
    (v4([224, 0, 0, 0], 4), Denied::Multicast),
    // This includes the broadcast address.
    (v4([240, 0, 0, 0], 4), Denied::Reserved),
];

/// The IPv6 networks that are not public, in the same order. Other addresses in `2000::/3` are
/// public, except for 6to4 addresses that contain a non-public IPv4 address. Outside `2000::/3`,
/// only NAT64 addresses that contain a public IPv4 address are public.
const V6: [(Ipv6Net, Denied); 17] = [
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), Denied::Unspecified),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), Denied::Loopback),
    // Amazon, Amazon's container credentials, Google, Alibaba, Oracle, Akamai,
    // Scaleway, OpenStack.
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), Denied::Metadata),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128), Denied::Metadata),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), Denied::Metadata),
    (v6([0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200], 128), Denied::Metadata),
    (v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), Denied::Metadata),
    (v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1], 128), Denied::Metadata),
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), Denied::Metadata),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128), Denied::Metadata),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), Denied::Private),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), Denied::LinkLocal),
    // Site-local addresses, which the private ones have replaced.
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), Denied::Private),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), Denied::Multicast),
    // Protocol assignments, including Teredo. A Teredo address contains an IPv4 address in
    // obfuscated form.
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), Denied::Reserved),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), Denied::Reserved),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), Denied::Reserved),
];

const fn v4(octets: [u8; 4], prefix: u8) -> Ipv4Net {
    let [a, b, c, d] = octets;
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> Ipv6Net {
    let [a, b, c, d, e, f, g, h] = segments;
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), prefix)
}

/// Returns the reason why `ip` is not public, or `None` if it is public.
pub(super) fn refusal(ip: IpAddr) -> Option<Denied> {
    // An IPv4-mapped IPv6 address connects over IPv4.
    match ip.to_canonical() {
        IpAddr::V4(ip) => refusal_v4(ip),
        IpAddr::V6(ip) => refusal_v6(ip),
    }
}

fn refusal_v4(ip: Ipv4Addr) -> Option<Denied> {
    let found = V4.iter().find(|(net, _)| net.contains(&ip));
    found.map(|(_, reason)| reason.clone())
}

fn refusal_v6(ip: Ipv6Addr) -> Option<Denied> {
    if let Some((_, reason)) = V6.iter().find(|(net, _)| net.contains(&ip)) {
        return Some(reason.clone());
    }
    match ip.segments() {
        // NAT64 (RFC 6052). 64:ff9b:1::/48 is refused below, because each network chooses the
        // position of the IPv4 address in it.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => refusal_v4(embedded(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => refusal_v4(embedded(high, low)),
        // The obsolete "IPv4-compatible" form. No host has such an address, but a tunnel may route
        // it.
        [0, 0, 0, 0, 0, 0, high, low] => refusal_v4(embedded(high, low)).or(Some(Denied::Reserved)),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Denied::Reserved),
    }
}

/// Returns the reason why no address of a network is public, if the network has one such reason.
pub(super) fn refusal_of_network(net: IpNet) -> Option<Denied> {
    let reason = match net {
        IpNet::V4(net) => V4
            .iter()
            .find(|(outer, _)| outer.contains(&net))
            .map(|(_, reason)| reason),
        IpNet::V6(net) => V6
            .iter()
            .find(|(outer, _)| outer.contains(&net))
            .map(|(_, reason)| reason),
    };
    reason.cloned()
}

/// Returns the IPv4 address that a connection to `ip` reaches by NAT64, by 6to4 or through a
/// tunnel.
pub(super) fn inner_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    match ip.segments() {
        // `::` and `::1` have no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, _] => None,
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] | [0, 0, 0, 0, 0, 0, high, low] => {
            Some(embedded(high, low))
        }
        _ => None,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// Returns the reason why a name is refused without a lookup.
///
/// `localhost` and all names below it are loopback (RFC 6761). A text that ends in a number is not
/// a name, because no top-level domain is a number. Resolvers that work like `inet_aton(3)` parse
/// such a text as an address, for example `127.1`, `0x7f.1` and `2130706433`.
pub(super) fn refusal_of_name(name: &str) -> Option<Denied> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    let hexadecimal = last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"));
    if last.eq_ignore_ascii_case("localhost") {
        Some(Denied::Loopback)
    } else if hexadecimal || last.bytes().all(|byte| byte.is_ascii_digit()) {
        Some(Denied::Reserved)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Option<Denied> {
        refusal(text.parse().unwrap_or_else(|_| panic!("{text}")))
    }

    /// Checks the first and the last address of each block, and the neighbours on both sides.
    #[test]
    fn blocks_have_the_boundaries_of_the_registries() {
        for (first, last, reason) in [
            ("0.0.0.0", "0.255.255.255", Denied::Unspecified),
            ("10.0.0.0", "10.255.255.255", Denied::Private),
            ("100.64.0.0", "100.127.255.255", Denied::Cgnat),
            ("127.0.0.0", "127.255.255.255", Denied::Loopback),
            ("169.254.0.0", "169.254.255.255", Denied::LinkLocal),
            ("172.16.0.0", "172.31.255.255", Denied::Private),
            ("192.0.0.0", "192.0.0.255", Denied::Reserved),
            ("192.0.2.0", "192.0.2.255", Denied::Reserved),
            ("192.88.99.0", "192.88.99.255", Denied::Reserved),
            ("192.168.0.0", "192.168.255.255", Denied::Private),
            ("198.18.0.0", "198.19.255.255", Denied::Reserved),
            ("198.51.100.0", "198.51.100.255", Denied::Reserved),
            ("203.0.113.0", "203.0.113.255", Denied::Reserved),
            ("224.0.0.0", "239.255.255.255", Denied::Multicast),
            ("240.0.0.0", "255.255.255.255", Denied::Reserved),
        ] {
            assert_eq!(
                (refused(first), refused(last)),
                (Some(reason.clone()), Some(reason.clone())),
                "{first}"
            );
            let first: Ipv4Addr = first.parse().unwrap();
            let last: Ipv4Addr = last.parse().unwrap();
            let before = first.to_bits().checked_sub(1).map(Ipv4Addr::from_bits);
            let after = last.to_bits().checked_add(1).map(Ipv4Addr::from_bits);
            for neighbour in before.into_iter().chain(after) {
                assert_ne!(refusal_v4(neighbour), Some(reason.clone()), "{neighbour}");
            }
        }
        for public in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "172.32.0.0",
            "223.255.255.255",
        ] {
            assert_eq!(refused(public), None, "{public}");
        }
    }

    #[test]
    fn metadata_services_are_recognized_in_every_form() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "169.254.42.42",
            "169.254.0.23",
            "169.254.10.10",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd00:100::100:200",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "fd00:42::42",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::1",
        ] {
            assert_eq!(refused(address), Some(Denied::Metadata), "{address}");
        }
    }

    #[test]
    fn only_public_ipv6_addresses_pass() {
        for (address, reason) in [
            ("::", Denied::Unspecified),
            ("::1", Denied::Loopback),
            ("fc00::1", Denied::Private),
            ("fdff::1", Denied::Private),
            ("fe80::1", Denied::LinkLocal),
            ("febf::1", Denied::LinkLocal),
            ("fec0::1", Denied::Private),
            ("ff02::1", Denied::Multicast),
            ("2001::1", Denied::Reserved),
            ("2001:1ff::1", Denied::Reserved),
            ("2001:db8::1", Denied::Reserved),
            ("3fff::1", Denied::Reserved),
            ("100::1", Denied::Reserved),
            ("64:ff9b:1::808:808", Denied::Reserved),
            ("::ffff:0:8.8.8.8", Denied::Reserved),
            ("4000::1", Denied::Reserved),
            ("5f00::1", Denied::Reserved),
        ] {
            assert_eq!(refused(address), Some(reason), "{address}");
        }
        for public in ["2001:200::1", "2606:4700::1111", "3ffe:ffff::1", "2a00::1"] {
            assert_eq!(refused(public), None, "{public}");
        }
    }

    #[test]
    fn an_ipv4_address_is_checked_in_every_embedded_form() {
        for (ip, reason) in [
            ("127.0.0.1", Some(Denied::Loopback)),
            ("10.1.2.3", Some(Denied::Private)),
            ("0.0.0.0", Some(Denied::Unspecified)),
            ("8.8.8.8", None),
        ] {
            let [a, b, c, d] = ip.parse::<Ipv4Addr>().unwrap().octets();
            let sixtofour = format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1");
            for disguise in [format!("::ffff:{ip}"), format!("64:ff9b::{ip}"), sixtofour] {
                assert_eq!(refused(&disguise), reason, "{disguise}");
            }
        }
        assert_eq!(refused("::127.0.0.1"), Some(Denied::Loopback));
        assert_eq!(refused("::8.8.8.8"), Some(Denied::Reserved));
    }

    #[test]
    fn a_name_that_needs_no_lookup_is_refused_by_its_meaning() {
        for (name, reason) in [
            ("localhost", Some(Denied::Loopback)),
            ("LOCALHOST.", Some(Denied::Loopback)),
            ("a.b.localhost", Some(Denied::Loopback)),
            ("127.1", Some(Denied::Reserved)),
            ("127.0.0.1.", Some(Denied::Reserved)),
            ("0X7f.1", Some(Denied::Reserved)),
            ("0x7f000001", Some(Denied::Reserved)),
            ("2130706433", Some(Denied::Reserved)),
            ("0177.0.0.01", Some(Denied::Reserved)),
            (".", Some(Denied::Reserved)),
            ("localhost.example.com", None),
            ("notlocalhost", None),
            ("1e100.net", None),
            ("4chan", None),
        ] {
            assert_eq!(refusal_of_name(name), reason, "{name}");
        }
    }
}
