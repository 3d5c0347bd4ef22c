//! Target rules: the networks, names and ports that clients may reach, or may not reach.
//!
//! **A deny rule wins, unless an allow rule is more specific.** A rule is more specific if its
//! network is smaller or its name is longer, and if it has ports where the other one has ports. At
//! the same host, a rule with ports is more specific than one without. So rules need no order.
//! Flags and files add up, and the number of rules does not matter for a lookup. In doubt, the
//! target is refused: `:22` in the deny list closes port 22 of a network in the allow list.
//!
//! Rules for names are compared with rules for names, and networks with networks. A target that a
//! client has named must pass both: an allowed name does not open a refused network. If there is an
//! allow list, a rule in it must match the name, the address or the port.

mod list;

use std::net::{IpAddr, SocketAddr};

use spliceway_protocol::rule::canonical_name;

use super::{Denied, own, public};
use list::Found;
pub(crate) use list::{RuleList, RuleLists};

/// The rules of a service or of a user. Clones share the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TargetRules {
    /// `None` allows what is not refused.
    pub(crate) allow: Option<RuleLists>,
    pub(crate) deny: Option<RuleLists>,
    /// Whether a target is allowed that no rule in `allow` matches. The rules in `allow` still win
    /// against those in `deny` that are less specific.
    pub(crate) allows_unlisted: bool,
}

impl TargetRules {
    pub(super) fn are_none(&self) -> bool {
        self.allow.is_none() && self.deny.is_none()
    }

    /// Returns the same rules, which then refuse only what `deny` refuses.
    pub(super) fn allowing_unlisted(&self) -> Self {
        Self {
            allows_unlisted: true,
            ..self.clone()
        }
    }

    /// Returns whether a rule has a name.
    pub(crate) fn have_names(&self) -> bool {
        let mut lists = [&self.allow, &self.deny].into_iter().flatten();
        lists.any(RuleLists::has_names)
    }

    /// Returns whether a network is refused, which a lookup by another program could reach.
    pub(crate) fn refuse_networks(&self) -> bool {
        self.deny.as_ref().is_some_and(RuleLists::has_networks)
    }

    /// Checks a target whose address is known. `name` is the name that led to the address.
    ///
    /// # Errors
    /// Returns the rule that refuses the target.
    pub(super) fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
        if self.are_none() {
            return Ok(());
        }
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let by_name = match name {
            Some(name) => self.by_name(name, port)?,
            None => Found::default(),
        };
        let by_address = self.not_refused(|list| list.by_address(ip, port))?;
        // `0.0.0.0` reaches loopback, and an address of a transition technology reaches the IPv4
        // address in it.
        let others = [Some(own::reached(ip)), public::inner_v4(ip).map(IpAddr::from)];
        for other in others.into_iter().flatten().filter(|other| *other != ip) {
            self.not_refused(|list| list.by_address(other, port))?;
        }
        self.of_all_hosts(by_name.or(by_address), port)
    }

    /// Checks a name before its lookup. A name that cannot be allowed, whatever its addresses are,
    /// is not looked up, because a lookup tells the name to others.
    ///
    /// # Errors
    /// Returns the rule that refuses the name.
    pub(super) fn check_name(&self, name: &str, port: u16) -> Result<(), Denied> {
        if self.are_none() {
            return Ok(());
        }
        let by_name = self.by_name(name, port)?;
        match &self.allow {
            Some(allow) if allow.has_network_on(port) => Ok(()),
            _ => self.of_all_hosts(by_name, port),
        }
    }

    /// Checks a name that another program looks up, so that its addresses cannot be checked.
    ///
    /// # Errors
    /// Returns the rule that refuses the name, or that would need its addresses.
    pub(super) fn check_unresolved(&self, name: &str, port: u16) -> Result<(), Denied> {
        if self.are_none() {
            return Ok(());
        }
        let by_name = self.by_name(name, port)?;
        match &self.deny {
            Some(deny) if deny.has_network_on(port) => Err(Denied::Rule(UNRESOLVED.into())),
            _ => self.of_all_hosts(by_name, port),
        }
    }

    /// Returns whether a rule allows a name, whatever its addresses are. Without an allow list,
    /// every name is allowed that is not refused.
    ///
    /// # Errors
    /// Returns the rule that refuses the name.
    pub(super) fn allow_name(&self, name: &str, port: u16) -> Result<bool, Denied> {
        if self.are_none() {
            return Ok(true);
        }
        let by_name = self.by_name(name, port)?;
        self.allow_by_port(by_name, port)
    }

    /// Returns ports on which a rule allows a name: one of each range of ports that have the same
    /// rules, for the name and for one of its addresses.
    pub(super) fn ports_of_name(&self, name: &str, ip: Option<IpAddr>) -> impl Iterator<Item = u16> {
        let mut edges = vec![1];
        for list in [&self.allow, &self.deny].into_iter().flatten() {
            list.add_edges(name, ip, &mut edges);
        }
        let is_allowed = |port: &u16| matches!(self.allow_name(name, *port), Ok(true));
        edges.into_iter().filter(is_allowed)
    }

    fn by_name(&self, name: &str, port: u16) -> Result<Found<'_>, Denied> {
        let name = canonical_name(name).ok_or_else(|| Denied::Rule(NO_NAME.into()))?;
        self.not_refused(|list| list.by_name(&name, port))
    }

    /// Returns the allow rules that match, unless a deny rule is at least as specific.
    fn not_refused<'a>(&'a self, find: impl Fn(&'a RuleList) -> Found<'a>) -> Result<Found<'a>, Denied> {
        let found = |lists: &'a Option<RuleLists>| lists.as_ref().map(|lists| lists.find(&find)).unwrap_or_default();
        let (allowed, denied) = (found(&self.allow), found(&self.deny));
        refused(&denied, &allowed)?;
        Ok(allowed)
    }

    /// Checks the rules for all hosts. `allowed` are the rules that allow the host of the target.
    fn of_all_hosts<'a>(&'a self, allowed: Found<'a>, port: u16) -> Result<(), Denied> {
        let is_allowed = self.allow_by_port(allowed, port)?;
        is_allowed.then_some(()).ok_or_else(|| Denied::Rule(NOT_ALLOWED.into()))
    }

    fn allow_by_port<'a>(&'a self, allowed: Found<'a>, port: u16) -> Result<bool, Denied> {
        let by_port = |lists: &'a RuleLists| lists.find(|list| list.by_port(port));
        let allowed = allowed.or(self.allow.as_ref().map(by_port).unwrap_or_default());
        refused(&self.deny.as_ref().map(by_port).unwrap_or_default(), &allowed)?;
        Ok(self.allow.is_none() || self.allows_unlisted || !allowed.is_nothing())
    }
}

/// # Errors
/// Returns the deny rule that no allow rule beats.
fn refused(deny: &Found<'_>, allow: &Found<'_>) -> Result<(), Denied> {
    deny.unbeaten(allow)
        .map_or(Ok(()), |rule| Err(Denied::Rule(format!("--to-deny {rule}").into())))
}

pub(super) const NOT_ALLOWED: &str = "--to-allow, where no rule matches";
const NO_NAME: &str = "the target rules, because a part of the name is empty";
const UNRESOLVED: &str = "--to-deny, because it has networks and an upstream proxy looks up the name";

#[cfg(test)]
mod tests;
