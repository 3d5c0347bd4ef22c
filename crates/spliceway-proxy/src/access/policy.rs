//! The policies that decide which clients are served and which targets they may reach.

mod client;
mod denied;
mod own;
mod public;
mod rules;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use spliceway_protocol::address::Target;
use spliceway_protocol::rule::canonical_network;

pub(crate) use client::{ClientPolicy, Networks, network};
pub(crate) use denied::Denied;
pub(crate) use own::{OwnEntry, OwnListeners, reached};
pub(crate) use rules::{RuleList, RuleLists, TargetRules};

/// The targets that a service may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Targets {
    /// All targets. This is for clients that could reach them anyway, and for targets that the
    /// operator has chosen.
    Everything,
    /// Only targets on the public Internet. Through this machine, a client cannot reach internal
    /// targets that it could not reach by itself.
    #[default]
    Public,
}

/// The targets that are not public and that clients on other machines may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PrivateTargets {
    All,
    /// Addresses in these networks, except for those that only [`PrivateTargets::All`] opens.
    Only(Arc<[IpNet]>),
}

/// What a service, or one of its users, may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetAccess {
    pub(crate) private: PrivateTargets,
    pub(crate) rules: TargetRules,
}

/// The policy for the targets of a service, or of one of its users. Clones are cheap and share the
/// list of listeners and the rules.
#[derive(Debug, Clone, Default)]
pub(crate) struct TargetPolicy {
    targets: Targets,
    own: OwnListeners,
    /// Networks that are open although they are not public.
    opened: Arc<[IpNet]>,
    rules: TargetRules,
    /// Whether targets get datagrams, and not connections.
    is_for_datagrams: bool,
    /// Whether targets may be listeners of this program, because the operator names the targets.
    may_hop: bool,
}

impl TargetPolicy {
    #[cfg(test)]
    pub(crate) fn new(targets: Targets, own: OwnListeners) -> Self {
        Self {
            targets,
            own,
            opened: Arc::default(),
            rules: TargetRules::default(),
            is_for_datagrams: false,
            may_hop: false,
        }
    }

    /// Returns the policy for clients of a service with this access. `are_local` are clients that
    /// could reach all targets anyway.
    pub(crate) fn of_access(access: &TargetAccess, are_local: bool, own: OwnListeners) -> Self {
        let (targets, opened) = match &access.private {
            _ if are_local => (Targets::Everything, Arc::default()),
            PrivateTargets::All => (Targets::Everything, Arc::default()),
            PrivateTargets::Only(opened) => (Targets::Public, Arc::clone(opened)),
        };
        Self {
            targets,
            own,
            opened,
            rules: access.rules.clone(),
            is_for_datagrams: false,
            may_hop: false,
        }
    }

    /// Returns the same policy for datagrams. TCP and UDP have ports of their own, so other
    /// listeners of this program would be loops.
    pub(crate) fn for_datagrams(self) -> Self {
        Self {
            is_for_datagrams: true,
            // Datagrams have no hops that could be counted.
            may_hop: false,
            ..self
        }
    }

    /// Returns the same policy for targets that the operator names. They may be listeners of this
    /// program, if the caller counts the [hops](crate::net::hops).
    pub(crate) fn with_hops(self) -> Self {
        Self { may_hop: true, ..self }
    }

    /// Returns whether an allowed `address` is a listener of this program.
    pub(crate) fn is_hop(&self, address: SocketAddr) -> bool {
        self.may_hop && self.check_loop(address).is_err()
    }

    /// Returns whether the path of a Unix socket, which [`Self::check_path`] allows, is a listener
    /// of this program.
    pub(crate) fn is_hop_to_path(&self, path: &Path) -> bool {
        self.may_hop && self.own.are_at_path(path)
    }

    #[cfg(test)]
    pub(crate) fn with_rules(self, rules: TargetRules) -> Self {
        Self { rules, ..self }
    }

    /// Returns whether a rule has a name. Every name that is looked up must then be known.
    pub(crate) fn has_rules_for_names(&self) -> bool {
        self.rules.have_names()
    }

    /// Returns whether the rules refuse names.
    pub(crate) fn refuses_names(&self) -> bool {
        self.rules.deny.as_ref().is_some_and(RuleLists::has_names)
    }

    /// Returns whether a rule allows the name that a redirected client states. Its addresses are
    /// checked later.
    ///
    /// # Errors
    /// Returns the rule that refuses the name.
    pub(crate) fn allows_name(&self, name: &str, port: u16) -> Result<bool, Denied> {
        self.rules.allow_name(name, port)
    }

    /// Returns whether a rule allows the name on some port. The name is in the form of rules.
    pub(crate) fn allows_name_somewhere(&self, name: &str) -> bool {
        self.rules.ports_of_name(name, None).next().is_some()
    }

    /// Checks whether the program may connect to an address of a name on some port on which a rule
    /// allows the name. The name is in the form of rules.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(crate) fn check_address_of(&self, name: &str, ip: IpAddr) -> Result<(), Denied> {
        let mut refused = Denied::Rule(rules::NOT_ALLOWED.into());
        for port in self.rules.ports_of_name(name, Some(ip.to_canonical())) {
            match self.check(Some(name), SocketAddr::new(ip, port)) {
                Ok(()) => return Ok(()),
                Err(denied) => refused = denied,
            }
        }
        Err(refused)
    }

    /// Returns whether a rule of an allow list has this address.
    pub(crate) fn lists(&self, address: SocketAddr) -> bool {
        self.has_allow_list() && self.rules.check(None, address).is_ok()
    }

    /// Returns whether only targets in a list are allowed.
    pub(crate) fn has_allow_list(&self) -> bool {
        self.rules.allow.is_some()
    }

    /// Returns the same policy for a service that learns: it allows what no rule allows, and
    /// refuses what a rule refuses.
    pub(crate) fn allowing_unlisted(&self) -> Self {
        Self {
            rules: self.rules.allowing_unlisted(),
            ..self.clone()
        }
    }

    /// Checks whether the program may connect to `address`, to which `name` has led. Call this
    /// method with the dialled address at every attempt, because an earlier lookup of a name proves
    /// nothing about the next one.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(crate) fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
        match self.targets {
            Targets::Public => {
                self.check_public(address.ip())?;
                // A connection to this machine's own address comes from this machine and so
                // bypasses the firewall.
                if own::is_of_this_machine(address.ip().to_canonical()) {
                    return Err(Denied::Loopback);
                }
            }
            Targets::Everything => {}
        }
        if !self.may_hop {
            self.check_loop(address)?;
        }
        self.rules.check(name, address)
    }

    fn check_public(&self, ip: IpAddr) -> Result<(), Denied> {
        let ip = ip.to_canonical();
        match public::refusal(ip) {
            Some(reason) if !reason.can_be_opened() || !self.opened.iter().any(|net| net.contains(&ip)) => Err(reason),
            _ => Ok(()),
        }
    }

    /// Checks whether the program may connect to `address`, which the operator has named. Every
    /// address except a loop is allowed.
    ///
    /// # Errors
    /// Returns [`Denied::Loop`] for a listener of this program.
    pub(crate) fn check_loop(&self, address: SocketAddr) -> Result<(), Denied> {
        if self.own.are_at(address, self.is_for_datagrams) {
            Err(Denied::Loop)
        } else {
            Ok(())
        }
    }

    /// Checks the path of a Unix socket, as [`Self::check_loop`] does for an address.
    ///
    /// # Errors
    /// Returns [`Denied::Loop`] for a listener of this program.
    pub(crate) fn check_path(&self, path: &Path) -> Result<(), Denied> {
        if !self.may_hop && self.own.are_at_path(path) {
            Err(Denied::Loop)
        } else {
            Ok(())
        }
    }

    /// Checks whether the program may ask an upstream proxy for `target`, as far as this program
    /// can know. `name` is the name that led to an address. The program cannot see the addresses
    /// that the proxy looks up, or a loop behind the proxy.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(crate) fn check_passed_on(&self, name: Option<&str>, target: &Target) -> Result<(), Denied> {
        match target {
            Target::Ip(address) => {
                if self.targets == Targets::Public {
                    self.check_public(address.ip())?;
                }
                self.rules.check(name, *address)
            }
            Target::Name(name, port) => {
                self.check_name(target)?;
                self.rules.check_unresolved(name, *port)
            }
            Target::Unix(_) => Ok(()),
        }
    }

    /// Checks whether `target` may be looked up, by this program or by an upstream proxy. A name
    /// whose meaning is known without a lookup may be refused. A target that is not a name is
    /// allowed.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(crate) fn check_name(&self, target: &Target) -> Result<(), Denied> {
        match (self.targets, target) {
            (Targets::Public, Target::Name(name, _)) => public::refusal_of_name(name).map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    /// Checks a whole name, which may be that of the client with a search domain, before its
    /// lookup.
    ///
    /// # Errors
    /// Returns the rule that refuses the name, whatever its addresses are.
    pub(crate) fn check_reading(&self, name: &str, port: u16) -> Result<(), Denied> {
        self.rules.check_name(name, port)
    }
}

/// Returns the reason why no address of a network can be opened, if there is one.
pub(crate) fn stays_closed(net: IpNet) -> Option<Denied> {
    public::refusal_of_network(canonical_network(net)).filter(|reason| !reason.can_be_opened())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(targets: Targets) -> TargetPolicy {
        TargetPolicy::new(targets, OwnListeners::default())
    }

    #[test]
    fn everything_allows_all_targets_and_public_does_not() {
        for (address, expected) in [
            ("127.0.0.1:80", Err(Denied::Loopback)),
            ("10.0.0.1:80", Err(Denied::Private)),
            ("[::ffff:169.254.169.254]:80", Err(Denied::Metadata)),
            ("8.8.8.8:53", Ok(())),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(policy(Targets::Public).check(None, address), expected, "{address}");
            assert_eq!(policy(Targets::Everything).check(None, address), Ok(()), "{address}");
        }
    }

    fn opening(nets: &[&str]) -> TargetPolicy {
        let access = TargetAccess {
            private: PrivateTargets::Only(nets.iter().map(|net| network(net).unwrap()).collect()),
            rules: TargetRules::default(),
        };
        TargetPolicy::of_access(&access, false, OwnListeners::default())
    }

    #[test]
    fn an_opened_network_opens_neither_loopback_nor_metadata() {
        let all = opening(&["0.0.0.0/0", "::/0"]);
        for (address, expected) in [
            ("10.1.2.3:80", Ok(())),
            ("[::ffff:10.1.2.3]:80", Ok(())),
            ("100.64.0.1:80", Ok(())),
            ("169.254.1.1:80", Ok(())),
            ("198.18.0.1:80", Ok(())),
            ("[fd00::1]:80", Ok(())),
            ("127.0.0.1:80", Err(Denied::Loopback)),
            ("[::1]:80", Err(Denied::Loopback)),
            ("[::ffff:127.0.0.1]:80", Err(Denied::Loopback)),
            ("[64:ff9b::7f00:1]:80", Err(Denied::Loopback)),
            ("[2002:7f00:1::1]:80", Err(Denied::Loopback)),
            ("0.0.0.0:80", Err(Denied::Unspecified)),
            ("[::]:80", Err(Denied::Unspecified)),
            ("169.254.169.254:80", Err(Denied::Metadata)),
            ("[fd00:ec2::254]:80", Err(Denied::Metadata)),
            ("[fd00:ec2::23]:80", Err(Denied::Metadata)),
            ("[fe80::a9fe:a9fe]:80", Err(Denied::Metadata)),
            ("[64:ff9b::a9fe:a9fe]:80", Err(Denied::Metadata)),
            ("224.0.0.1:80", Err(Denied::Multicast)),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(all.check(None, address), expected, "{address}");
            assert_eq!(all.check_passed_on(None, &Target::Ip(address)), expected, "{address}");
        }
        let one = opening(&["10.1.0.0/16"]);
        for (address, expected) in [
            ("10.1.255.255:80", Ok(())),
            ("[::ffff:10.1.0.0]:80", Ok(())),
            ("10.2.0.0:80", Err(Denied::Private)),
            ("192.168.0.1:80", Err(Denied::Private)),
            // It may lead to another network than the IPv4 address does.
            ("[64:ff9b::a01:203]:80", Err(Denied::Private)),
        ] {
            assert_eq!(one.check(None, address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_network_that_stays_closed_is_recognized() {
        for net in [
            "127.0.0.0/8",
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "fd00:ec2::254",
            "0.0.0.0",
            "ff02::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(stays_closed(network(net).unwrap()).is_some(), "{net}");
        }
        for net in [
            "10.0.0.0/8",
            "169.254.0.0/16",
            "fd00::/8",
            "0.0.0.0/0",
            "::/0",
            "8.8.8.8",
            "198.18.0.0/15",
        ] {
            assert_eq!(stays_closed(network(net).unwrap()), None, "{net}");
        }
    }

    #[test]
    fn targets_for_upstream_proxies_are_checked_as_far_as_possible() {
        for (target, of_name, of_all) in [
            ("127.0.0.1:80", Ok(()), Err(Denied::Loopback)),
            ("[::1]:80", Ok(()), Err(Denied::Loopback)),
            ("LocalHost.:80", Err(Denied::Loopback), Err(Denied::Loopback)),
            ("127.1:80", Err(Denied::Reserved), Err(Denied::Reserved)),
            ("8.8.8.8:53", Ok(()), Ok(())),
            ("example.com:80", Ok(()), Ok(())),
        ] {
            let target = target.parse().unwrap();
            let (public, everything) = (policy(Targets::Public), policy(Targets::Everything));
            assert_eq!(public.check_name(&target), of_name, "{target}");
            assert_eq!(public.check_passed_on(None, &target), of_all, "{target}");
            assert_eq!(everything.check_passed_on(None, &target), Ok(()), "{target}");
        }
    }
}
