//! Decides which clients are served, and which user a client is by its network.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use spliceway_protocol::rule::canonical_network;

/// The networks whose clients are served, and the networks whose clients are refused. The default
/// admits every client.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientPolicy {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    /// `None` if networks name no users.
    named: Option<Named>,
}

/// The users of a service by their networks.
#[derive(Debug, Clone)]
struct Named {
    networks: Arc<Networks>,
    /// Whether clients of other networks are refused.
    is_required: bool,
}

/// The names of users by the networks of their clients. The smallest network with an address
/// counts. A lookup takes less than 1 µs for 10,000 networks.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Networks {
    v4: PrefixMap<Ipv4Net, Arc<str>>,
    v6: PrefixMap<Ipv6Net, Arc<str>>,
    names: HashSet<Box<str>>,
}

impl ClientPolicy {
    /// Creates a policy that refuses clients in `deny`. Unless `allow` is empty, it also refuses
    /// clients that are not in `allow`.
    pub(crate) fn new(allow: Vec<IpNet>, deny: Vec<IpNet>) -> Self {
        let canonical = |nets: Vec<IpNet>| nets.into_iter().map(canonical_network).collect();
        Self {
            allow: canonical(allow),
            deny: canonical(deny),
            named: None,
        }
    }

    /// Returns the same policy, with users by networks. If that `is_required`, clients of other
    /// networks are refused.
    pub(crate) fn with_networks(self, networks: Arc<Networks>, is_required: bool) -> Self {
        let named = Some(Named { networks, is_required });
        Self { named, ..self }
    }

    /// Returns whether a client from `ip` is served. A dual-stack socket shows an IPv4 client as
    /// IPv6, but the client counts as IPv4.
    pub(crate) fn admits(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_in = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        !is_in(&self.deny) && (self.allow.is_empty() || is_in(&self.allow)) && !self.lacks_user(Some(ip))
    }

    /// Returns whether clients are refused because they are in no network that is listed.
    pub(crate) fn names_who_may(&self) -> bool {
        !self.allow.is_empty() || self.named.as_ref().is_some_and(|named| named.is_required)
    }

    /// Returns whether a client is refused because its network names no user. A client of a Unix
    /// socket has no network.
    pub(crate) fn lacks_user(&self, ip: Option<IpAddr>) -> bool {
        let is_required = self.named.as_ref().is_some_and(|named| named.is_required);
        is_required && ip.and_then(|ip| self.user_of(ip)).is_none()
    }

    /// Returns the user that a client from `ip` is by its network.
    pub(crate) fn user_of(&self, ip: IpAddr) -> Option<&str> {
        self.named.as_ref()?.networks.name_of(ip)
    }

    /// Returns whether a network may name this user.
    pub(crate) fn has_user(&self, name: &[u8]) -> bool {
        let name = str::from_utf8(name).ok();
        let has = |name: &str| self.networks().is_some_and(|networks| networks.names.contains(name));
        name.is_some_and(has)
    }

    /// Returns the users by networks. `None` if networks name no users.
    pub(crate) fn networks(&self) -> Option<&Arc<Networks>> {
        self.named.as_ref().map(|named| &named.networks)
    }
}

impl Networks {
    /// Adds a user, who may have no network yet.
    pub(crate) fn add_name(&mut self, name: &str) {
        self.names.insert(name.into());
    }

    /// Adds a network of a user. A network has one user.
    pub(crate) fn add(&mut self, net: IpNet, name: &Arc<str>) {
        match canonical_network(net).trunc() {
            IpNet::V4(net) => self.v4.insert(net, Arc::clone(name)),
            IpNet::V6(net) => self.v6.insert(net, Arc::clone(name)),
        };
    }

    fn name_of(&self, ip: IpAddr) -> Option<&str> {
        let found = match ip.to_canonical() {
            IpAddr::V4(ip) => self.v4.get_lpm(&ip.into()).map(|(_, name)| name),
            IpAddr::V6(ip) => self.v6.get_lpm(&ip.into()).map(|(_, name)| name),
        };
        found.map(|name| &**name)
    }

    pub(crate) fn names(&self) -> &HashSet<Box<str>> {
        &self.names
    }
}

/// Parses a network in the usual form, such as `10.0.0.0/8`, or a single address.
///
/// # Errors
/// Returns a message that describes the expected form.
pub(crate) fn network(text: &str) -> Result<IpNet, &'static str> {
    text.parse()
        .or_else(|_| text.parse().map(|ip: IpAddr| IpNet::from(ip)))
        .map_err(
            |_| "expected IP/BITS or IP, such as 192.0.2.0/24, 2001:db8::/32 or 127.0.0.1; commas do not separate several",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> ClientPolicy {
        let nets = |texts: &[&str]| texts.iter().map(|text| network(text).unwrap()).collect();
        ClientPolicy::new(nets(allow), nets(deny))
    }

    fn admits(policy: &ClientPolicy, ip: &str) -> bool {
        policy.admits(ip.parse().unwrap())
    }

    #[test]
    fn without_networks_every_client_is_served() {
        assert!(admits(&ClientPolicy::default(), "192.0.2.1") && admits(&ClientPolicy::default(), "::1"));
        assert!(!ClientPolicy::default().names_who_may());
    }

    #[test]
    fn a_denied_client_is_refused_even_if_it_is_also_allowed() {
        let policy = policy(&["10.0.0.0/8"], &["10.1.0.0/16"]);
        assert!(admits(&policy, "10.0.0.1"));
        assert!(!admits(&policy, "10.1.0.1"));
        assert!(!admits(&policy, "192.0.2.1"), "not among those allowed");
        assert!(policy.names_who_may());
    }

    #[test]
    fn denying_some_clients_still_admits_others() {
        let policy = policy(&[], &["192.0.2.7", "2001:db8::/32"]);
        assert!(!admits(&policy, "192.0.2.7") && admits(&policy, "192.0.2.8"));
        assert!(!admits(&policy, "2001:db8:1::1") && admits(&policy, "2001:db9::1"));
    }

    #[test]
    fn ipv4_clients_and_networks_equal_their_ipv4_mapped_forms() {
        for net in ["10.0.0.0/8", "::ffff:10.0.0.0/104"] {
            let policy = policy(&[net], &[]);
            for ip in ["10.9.9.9", "::ffff:10.9.9.9"] {
                assert!(admits(&policy, ip), "{ip} in {net}");
            }
            assert!(!admits(&policy, "::ffff:11.0.0.1"), "{net}");
        }
        assert!(!admits(&policy(&["::/0"], &[]), "10.0.0.1"), "IPv6 alone");
    }

    #[test]
    fn the_host_bits_of_a_network_do_not_matter() {
        assert!(admits(&policy(&["10.1.2.3/8"], &[]), "10.200.0.1"));
        assert_eq!(network("192.0.2.1"), network("192.0.2.1/32"));
        for text in ["", "10.0.0.0/33", "10.0.0/8", "example.com", "10.0.0.0/-1"] {
            assert!(network(text).unwrap_err().starts_with("expected IP/BITS"), "{text}");
        }
    }

    fn named(is_required: bool, nets: &[(&str, &str)]) -> ClientPolicy {
        let mut networks = Networks::default();
        for (net, name) in nets {
            networks.add_name(name);
            networks.add(network(net).unwrap(), &Arc::from(*name));
        }
        ClientPolicy::default().with_networks(Arc::new(networks), is_required)
    }

    fn user<'a>(policy: &'a ClientPolicy, ip: &str) -> Option<&'a str> {
        policy.user_of(ip.parse().unwrap())
    }

    #[test]
    fn the_smallest_network_with_an_address_names_its_user() {
        let nets = [
            ("10.0.0.0/8", "all"),
            ("10.1.2.0/24", "build"),
            ("10.1.2.7/32", "runner"),
            ("2001:db8::/32", "six"),
            ("2001:db8:1::/64", "lab"),
            ("::ffff:192.0.2.0/120", "mapped"),
        ];
        for reversed in [false, true] {
            let mut nets = nets;
            if reversed {
                nets.reverse();
            }
            let policy = named(false, &nets);
            for (ip, name) in [
                ("10.9.9.9", Some("all")),
                ("10.1.2.6", Some("build")),
                ("10.1.2.7", Some("runner")),
                ("::ffff:10.1.2.7", Some("runner")),
                ("11.0.0.1", None),
                ("2001:db8:1::9", Some("lab")),
                ("2001:db8:1:1::9", Some("six")),
                ("2001:db9::1", None),
                ("192.0.2.255", Some("mapped")),
            ] {
                assert_eq!(user(&policy, ip), name, "{ip}");
                assert!(admits(&policy, ip), "{ip}");
            }
        }
        assert_eq!(user(&ClientPolicy::default(), "10.1.2.7"), None);
    }

    #[test]
    fn only_if_it_is_required_a_client_without_a_user_is_refused() {
        let policy = named(true, &[("10.1.0.0/16", "build")]);
        assert!(admits(&policy, "10.1.0.1") && !admits(&policy, "10.2.0.1") && policy.names_who_may());
        assert!(policy.lacks_user(None) && policy.lacks_user("10.2.0.1".parse().ok()));
        let policy = named(false, &[("10.1.0.0/16", "build")]);
        assert!(admits(&policy, "10.2.0.1") && !policy.names_who_may() && !policy.lacks_user(None));
    }

    /// With `--nocapture`, this test prints the time of a lookup. docs/design has the command.
    #[test]
    fn ten_thousand_networks_name_each_client_and_no_other() {
        const NETS: u32 = 10_000;
        let ip = |index: u32, host: u32| IpAddr::from((0x0a00_0000 + (index << 10) + host).to_be_bytes());
        let mut networks = Networks::default();
        for index in 0..NETS {
            let name = Arc::from(format!("client-{index}"));
            networks.add(IpNet::new(ip(index, 0), 24).unwrap(), &name);
        }
        let policy = ClientPolicy::default().with_networks(Arc::new(networks), false);
        let started = std::time::Instant::now();
        let found = (0..NETS)
            .filter(|index| policy.user_of(ip(*index, 7)).is_some())
            .count();
        let none = (0..NETS)
            .filter(|index| policy.user_of(ip(*index, 256)).is_none())
            .count();
        println!("{:?} for each of {} lookups", started.elapsed() / (2 * NETS), 2 * NETS);
        assert_eq!([found, none], [NETS as usize; 2]);
        assert_eq!(policy.user_of(ip(7777, 1)), Some("client-7777"));
    }
}
