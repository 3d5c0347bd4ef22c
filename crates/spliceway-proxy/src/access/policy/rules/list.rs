//! A list of rules, with an index for each kind of host. A lookup takes less than 1 µs for lists of
//! any length. The rules of a service or of a user are one or several such lists, so that they can
//! share the rules of a file.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};
use spliceway_protocol::rule::{Hosts, Ports, TargetRule};

use crate::access::auth::Fingerprint;

/// The most rules of a list, ten times as many as long public lists have. A million rules need
/// about 90 MB of memory.
pub(super) const RULES_MAX: usize = 1_000_000;

/// The allow list or the deny list of a service or of a user: its own rules, and those of files. It
/// has at least one list. A lookup takes the time of a lookup in each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleLists(Arc<[Arc<RuleList>]>);

/// Rules that belong together: those of a file, or those of a configuration.
#[derive(Default)]
pub(crate) struct RuleList {
    v4: PrefixMap<Ipv4Net, PortSet>,
    v6: PrefixMap<Ipv6Net, PortSet>,
    names: HashMap<Box<str>, PortSet>,
    /// The ports of `*.NAME`.
    below: HashMap<Box<str>, PortSet>,
    /// The numbers of labels that names in `below` have: bit 0 is one label. Other ends of a name
    /// are not looked up, so a client cannot make a lookup expensive by a name with many labels.
    labels: u128,
    /// The ports of all hosts, if there is such a rule.
    all: Option<PortSet>,
    /// The ports of all networks, if there are networks.
    of_networks: Option<PortSet>,
    /// The number of rules that were added.
    count: usize,
    /// The digest of the text that the rules come from.
    fingerprint: Fingerprint,
}

/// The ports of one host. `None` means every port, by a rule without ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PortSet(Option<Box<Listed>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Listed {
    /// Whether a rule without ports has this host, too.
    every: bool,
    /// Disjoint ranges in ascending order, once the list is complete.
    ranges: Vec<(u16, u16)>,
}

/// How specific the host of a rule is. Ranks of names and networks are not compared with each
/// other, but both are above that of all hosts.
type Rank = u16;
const ALL_HOSTS: Rank = 0;
const WHOLE_NAME: Rank = Rank::MAX;

/// The most specific rules of a list that match one aspect of a target.
#[derive(Default)]
pub(super) struct Found<'a> {
    with_ports: Option<Match<'a>>,
    without_ports: Option<Match<'a>>,
}

/// A rule that matches.
pub(super) struct Match<'a> {
    rank: Rank,
    hosts: MatchedHosts<'a>,
    /// The target's port, if the rule has ports.
    port: Option<u16>,
}

#[derive(Clone, Copy)]
enum MatchedHosts<'a> {
    All,
    V4(Ipv4Net),
    V6(Ipv6Net),
    Name(&'a str),
    Below(&'a str),
}

impl RuleLists {
    pub(crate) fn new(lists: Vec<Arc<RuleList>>) -> Self {
        Self(lists.into())
    }

    /// # Errors
    /// Returns an error if there are more than [`RULES_MAX`] rules.
    pub(crate) fn check_length(&self) -> Result<(), String> {
        (self.len() <= RULES_MAX).then_some(()).ok_or_else(too_many)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|list| list.count).sum()
    }

    /// Returns whether both have the same list in memory.
    #[cfg(test)]
    pub(crate) fn shares_a_list_with(&self, other: &Self) -> bool {
        let is_same = |one: &Arc<RuleList>| other.0.iter().any(|other| Arc::ptr_eq(one, other));
        self.0.iter().any(is_same)
    }

    /// Adds the edges of each list: see [`RuleList::add_edges`].
    pub(super) fn add_edges(&self, name: &str, ip: Option<IpAddr>, edges: &mut Vec<u16>) {
        self.0.iter().for_each(|list| list.add_edges(name, ip, edges));
    }

    pub(in crate::access::policy) fn has_names(&self) -> bool {
        self.0.iter().any(|list| list.has_names())
    }

    pub(super) fn has_networks(&self) -> bool {
        self.0.iter().any(|list| list.of_networks.is_some())
    }

    /// Returns whether a rule for a network has this port.
    pub(super) fn has_network_on(&self, port: u16) -> bool {
        let mut ports = self.0.iter().filter_map(|list| list.of_networks.as_ref());
        ports.any(|ports| ports.is_every() || ports.lists(port))
    }

    /// Returns the most specific rules that `find` finds in the lists.
    pub(super) fn find<'a>(&'a self, find: impl Fn(&'a RuleList) -> Found<'a>) -> Found<'a> {
        let found = self.0.iter().map(|list| find(list));
        found.reduce(Found::or).unwrap_or_default()
    }
}

fn too_many() -> String {
    format!("expected at most {RULES_MAX} rules in a list")
}

impl RuleList {
    /// Adds a rule.
    ///
    /// # Errors
    /// Returns an error if the list has [`RULES_MAX`] rules.
    pub(crate) fn add(&mut self, rule: TargetRule) -> Result<(), String> {
        if self.count == RULES_MAX {
            return Err(too_many());
        }
        self.count += 1;
        let ports = &rule.ports;
        match rule.hosts {
            Hosts::All => add_to(&mut self.all, ports),
            Hosts::Network(net) => {
                add_to(&mut self.of_networks, ports);
                match net {
                    IpNet::V4(net) => add_to_net(&mut self.v4, net, ports),
                    IpNet::V6(net) => add_to_net(&mut self.v6, net, ports),
                }
            }
            Hosts::Name(name) => add_to_name(&mut self.names, name, ports),
            Hosts::Below(name) => {
                self.labels |= label_bit(name.split('.').count());
                add_to_name(&mut self.below, name, ports);
            }
        }
        Ok(())
    }

    /// Returns the list with all rules. `fingerprint` is that of the text that they come from.
    pub(crate) fn complete(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self.names.shrink_to_fit();
        self.below.shrink_to_fit();
        let nets = self.v4.values_mut().chain(self.v6.values_mut());
        let names = self.names.values_mut().chain(self.below.values_mut());
        let all = self.all.iter_mut().chain(&mut self.of_networks);
        nets.chain(names).chain(all).for_each(PortSet::complete);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn has_names(&self) -> bool {
        !self.names.is_empty() || !self.below.is_empty()
    }

    /// Returns the rules for `name`, which is canonical.
    pub(super) fn by_name<'a>(&'a self, name: &str, port: u16) -> Found<'a> {
        let mut found = Found::default();
        for (rank, hosts, ports) in self.of_name(name) {
            found.add(ports, rank, hosts, port);
        }
        found
    }

    /// Returns the ports of each rule for `name`, the most specific one last.
    fn of_name(&self, name: &str) -> impl Iterator<Item = (Rank, MatchedHosts<'_>, &PortSet)> {
        // From the shortest end of the name to the longest.
        let ends = name.rmatch_indices('.').map(|(dot, _)| &name[dot + 1..]);
        let below = ends.zip(1_u16..).filter_map(|(end, count)| {
            let may_be = self.labels & label_bit(count.into()) != 0;
            let (name, ports) = may_be.then(|| self.below.get_key_value(end)).flatten()?;
            Some((count, MatchedHosts::Below(name), ports))
        });
        let whole = self.names.get_key_value(name).into_iter();
        below.chain(whole.map(|(name, ports)| (WHOLE_NAME, MatchedHosts::Name(name), ports)))
    }

    /// Adds the ports from which on the rules for a name, one of its addresses and all hosts may
    /// decide otherwise than for the port before.
    fn add_edges(&self, name: &str, ip: Option<IpAddr>, edges: &mut Vec<u16>) {
        let of_name = self.of_name(name).map(|(_, _, ports)| ports);
        of_name.chain(&self.all).for_each(|ports| ports.add_edges(edges));
        match ip {
            Some(IpAddr::V4(ip)) => {
                for (_, ports) in self.v4.cover(&Ipv4Net::from(ip)) {
                    ports.add_edges(edges);
                }
            }
            Some(IpAddr::V6(ip)) => {
                for (_, ports) in self.v6.cover(&Ipv6Net::from(ip)) {
                    ports.add_edges(edges);
                }
            }
            None => {}
        }
    }

    /// Returns the rules for `ip`, which is canonical.
    pub(super) fn by_address(&self, ip: IpAddr, port: u16) -> Found<'_> {
        let mut found = Found::default();
        // From the largest network to the smallest. The rank of all hosts is 0.
        let rank = |bits: u8| Rank::from(bits) + 1;
        match ip {
            IpAddr::V4(ip) => {
                for (net, ports) in self.v4.cover(&Ipv4Net::from(ip)) {
                    found.add(ports, rank(net.prefix_len()), MatchedHosts::V4(*net), port);
                }
            }
            IpAddr::V6(ip) => {
                for (net, ports) in self.v6.cover(&Ipv6Net::from(ip)) {
                    found.add(ports, rank(net.prefix_len()), MatchedHosts::V6(*net), port);
                }
            }
        }
        found
    }

    /// Returns the rules for all hosts.
    pub(super) fn by_port(&self, port: u16) -> Found<'_> {
        let mut found = Found::default();
        if let Some(ports) = &self.all {
            found.add(ports, ALL_HOSTS, MatchedHosts::All, port);
        }
        found
    }
}

/// A name of 255 bytes has at most 128 labels.
fn label_bit(count: usize) -> u128 {
    u32::try_from(count - 1)
        .ok()
        .and_then(|bit| 1_u128.checked_shl(bit))
        .unwrap_or(0)
}

fn add_to(ports_of: &mut Option<PortSet>, ports: &Ports) {
    match ports_of {
        Some(set) => set.add(ports),
        None => *ports_of = Some(PortSet::new(ports)),
    }
}

fn add_to_net<P: Prefix>(nets: &mut PrefixMap<P, PortSet>, net: P, ports: &Ports) {
    match nets.get_mut(&net) {
        Some(set) => set.add(ports),
        None => drop(nets.insert(net, PortSet::new(ports))),
    }
}

fn add_to_name(names: &mut HashMap<Box<str>, PortSet>, name: Box<str>, ports: &Ports) {
    match names.get_mut(&name) {
        Some(set) => set.add(ports),
        None => drop(names.insert(name, PortSet::new(ports))),
    }
}

impl PortSet {
    fn new(ports: &Ports) -> Self {
        let listed = || Listed {
            every: false,
            ranges: ports.0.to_vec(),
        };
        Self((!ports.0.is_empty()).then(|| Box::new(listed())))
    }

    fn add(&mut self, ports: &Ports) {
        match (&mut self.0, ports.0.is_empty()) {
            (Some(listed), true) => listed.every = true,
            (Some(listed), false) => listed.ranges.extend(&ports.0),
            (None, true) => {}
            (None, false) => {
                *self = Self::new(ports);
                self.add(&Ports::default());
            }
        }
    }

    /// Sorts the ranges, and joins those that meet.
    fn complete(&mut self) {
        let Some(listed) = &mut self.0 else { return };
        listed.ranges.sort_unstable();
        listed.ranges.dedup_by(|next, before| {
            let meet = u32::from(next.0) <= u32::from(before.1) + 1;
            if meet {
                before.1 = before.1.max(next.1);
            }
            meet
        });
        listed.ranges.shrink_to_fit();
    }

    /// Adds the first port of each range, and the port after its last one.
    fn add_edges(&self, edges: &mut Vec<u16>) {
        for (first, last) in self.0.iter().flat_map(|listed| &listed.ranges) {
            edges.push(*first);
            edges.extend(last.checked_add(1));
        }
    }

    fn is_every(&self) -> bool {
        self.0.as_ref().is_none_or(|listed| listed.every)
    }

    fn lists(&self, port: u16) -> bool {
        self.0.as_ref().is_some_and(|listed| {
            let above = listed.ranges.partition_point(|(first, _)| *first <= port);
            above > 0 && port <= listed.ranges[above - 1].1
        })
    }
}

impl<'a> Found<'a> {
    /// Adds a rule that is more specific than those before it.
    fn add(&mut self, ports: &PortSet, rank: Rank, hosts: MatchedHosts<'a>, port: u16) {
        if ports.lists(port) {
            self.with_ports = Some(Match {
                rank,
                hosts,
                port: Some(port),
            });
        }
        if ports.is_every() {
            self.without_ports = Some(Match {
                rank,
                hosts,
                port: None,
            });
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.with_ports.is_none() && self.without_ports.is_none()
    }

    /// Joins the rules of two lists, or for two aspects of a target. The more specific rule of each
    /// kind stays.
    pub(super) fn or(self, other: Self) -> Self {
        let rank = |found: &Option<Match<'_>>| found.as_ref().map(|found| found.rank);
        let better = |one: Option<Match<'a>>, other: Option<Match<'a>>| {
            if rank(&other) > rank(&one) { other } else { one }
        };
        Self {
            with_ports: better(self.with_ports, other.with_ports),
            without_ports: better(self.without_ports, other.without_ports),
        }
    }

    /// Returns a rule of this deny list that no rule of the allow list beats.
    pub(super) fn unbeaten(&self, allow: &Found<'_>) -> Option<&Match<'a>> {
        let rank = |found: &Option<Match<'_>>| found.as_ref().map(|found| found.rank);
        let (with_ports, without_ports) = (rank(&allow.with_ports), rank(&allow.without_ports));
        let is_left = |deny: &&Match<'a>| match deny.port {
            Some(_) => with_ports <= Some(deny.rank),
            None => with_ports < Some(deny.rank) && without_ports <= Some(deny.rank),
        };
        let mut rules = self.with_ports.iter().chain(&self.without_ports);
        rules.find(is_left)
    }
}

impl fmt::Display for Match<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.hosts, self.port) {
            (MatchedHosts::All, None) => f.write_str("*"),
            (MatchedHosts::All, Some(_)) => Ok(()),
            (MatchedHosts::V4(net), _) => net.fmt(f),
            (MatchedHosts::V6(net), None) => net.fmt(f),
            (MatchedHosts::V6(net), Some(_)) => write!(f, "[{net}]"),
            (MatchedHosts::Name(name), _) => f.write_str(name),
            (MatchedHosts::Below(name), _) => write!(f, "*.{name}"),
        }?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Two lists are equal if they come from the same text.
impl PartialEq for RuleList {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for RuleList {}

impl fmt::Debug for RuleList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleList")
            .field("count", &self.count)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}
