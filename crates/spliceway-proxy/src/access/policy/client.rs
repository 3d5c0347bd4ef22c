//! Decides which clients are served.

use std::net::IpAddr;

use ipnet::IpNet;
use spliceway_protocol::rule::canonical_network;

/// The networks whose clients are served, and the networks whose clients are refused. The default
/// admits every client.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientPolicy {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
}

impl ClientPolicy {
    /// Creates a policy that refuses clients in `deny`. Unless `allow` is empty, it also refuses
    /// clients that are not in `allow`.
    pub(crate) fn new(allow: Vec<IpNet>, deny: Vec<IpNet>) -> Self {
        let canonical = |nets: Vec<IpNet>| nets.into_iter().map(canonical_network).collect();
        Self {
            allow: canonical(allow),
            deny: canonical(deny),
        }
    }

    /// Returns whether a client from `ip` is served. A dual-stack socket shows an IPv4 client as
    /// IPv6, but the client counts as IPv4.
    pub(crate) fn admits(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_in = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        !is_in(&self.deny) && (self.allow.is_empty() || is_in(&self.allow))
    }

    /// Returns whether clients are refused because they are not in `allow`.
    pub(crate) fn names_who_may(&self) -> bool {
        !self.allow.is_empty()
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
}
