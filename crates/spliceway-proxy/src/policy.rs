//! Who may come, and where they may go.

mod client;
mod own;
mod public;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use crate::address::Target;

pub(crate) use client::{ClientPolicy, network};
pub(crate) use own::OwnListeners;

/// Which targets a service connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Targets {
    /// All: where who asks could reach them anyway, or where the target is who started the program's choice.
    Everything,
    /// Those on the public Internet, so that a client gets no further inside by way of this machine than it gets by itself.
    #[default]
    Public,
}

/// Which targets are refused, whoever asks. Cheap to clone; clones share the listeners.
#[derive(Debug, Clone, Default)]
pub(crate) struct TargetPolicy {
    targets: Targets,
    own: OwnListeners,
}

/// Why a target is refused: a `reason` of metrics and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    Loopback,
    Private,
    LinkLocal,
    /// Shared by the customers of a carrier, RFC 6598.
    Cgnat,
    /// `0.0.0.0/8` and `::`, which connect to this machine.
    Unspecified,
    Multicast,
    /// Where clouds hand a machine its credentials.
    Metadata,
    /// Any other that no host on the public Internet has.
    Reserved,
    /// One of our own listeners, whatever else is allowed: a session would open the next until there is no descriptor left.
    Loop,
}

impl TargetPolicy {
    pub(crate) fn new(targets: Targets, own: OwnListeners) -> Self {
        Self { targets, own }
    }

    /// Whether to connect to `address`. To be asked of the address that is dialled, and at every attempt: what a name stood for
    /// when it was looked up before is no promise.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), Denied> {
        match self.targets {
            Targets::Public => {
                public::refusal(address.ip()).map_or(Ok(()), Err)?;
                // By its public address this machine is reached past its firewall: from within.
                if own::is_of_this_machine(address.ip().to_canonical()) {
                    return Err(Denied::Loopback);
                }
            }
            Targets::Everything => {}
        }
        self.check_loop(address)
    }

    /// Whether to connect to `address`, which nobody but who started the program has named: all but a loop.
    ///
    /// # Errors
    /// [`Denied::Loop`].
    pub(crate) fn check_loop(&self, address: SocketAddr) -> Result<(), Denied> {
        if self.own.are_at(address) {
            Err(Denied::Loop)
        } else {
            Ok(())
        }
    }

    /// The same of a socket on the file system.
    ///
    /// # Errors
    /// [`Denied::Loop`].
    pub(crate) fn check_path(&self, path: &Path) -> Result<(), Denied> {
        if self.own.are_at_path(path) {
            Err(Denied::Loop)
        } else {
            Ok(())
        }
    }

    /// Whether to ask another proxy for `target`, as far as can be said: what it looks up itself nobody here sees, nor a loop there.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check_passed_on(&self, target: &Target) -> Result<(), Denied> {
        match (self.targets, target) {
            (Targets::Public, Target::Ip(address)) => public::refusal(address.ip()).map_or(Ok(()), Err),
            _ => self.check_name(target),
        }
    }

    /// Whether to look `target` up, or to have it looked up. A name that no lookup is needed for is refused for what it means;
    /// whatever is no name passes.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check_name(&self, target: &Target) -> Result<(), Denied> {
        match (self.targets, target) {
            (Targets::Public, Target::Name(name, _)) => public::refusal_of_name(name).map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }
}

impl Denied {
    /// Every one, for whoever keeps a count of each.
    pub(crate) const ALL: [Self; 9] = [
        Self::Loopback,
        Self::Private,
        Self::LinkLocal,
        Self::Cgnat,
        Self::Unspecified,
        Self::Multicast,
        Self::Metadata,
        Self::Reserved,
        Self::Loop,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link_local",
            Self::Cgnat => "cgnat",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Metadata => "metadata",
            Self::Reserved => "reserved",
            Self::Loop => "loop",
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Cgnat => "an address shared behind a carrier's NAT",
            Self::Unspecified => "an address that means this machine",
            Self::Multicast => "a multicast address",
            Self::Metadata => "a metadata service of a cloud",
            Self::Reserved => "a reserved address",
            Self::Loop => "one of our own listeners",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(targets: Targets) -> TargetPolicy {
        TargetPolicy::new(targets, OwnListeners::default())
    }

    #[test]
    fn everything_is_everything_and_public_is_not() {
        for (address, expected) in [
            ("127.0.0.1:80", Err(Denied::Loopback)),
            ("10.0.0.1:80", Err(Denied::Private)),
            ("[::ffff:169.254.169.254]:80", Err(Denied::Metadata)),
            ("8.8.8.8:53", Ok(())),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(policy(Targets::Public).check(address), expected, "{address}");
            assert_eq!(policy(Targets::Everything).check(address), Ok(()), "{address}");
        }
    }

    #[test]
    fn what_another_proxy_is_asked_for_is_checked_as_far_as_it_can_be() {
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
            assert_eq!(public.check_passed_on(&target), of_all, "{target}");
            assert_eq!(everything.check_passed_on(&target), Ok(()), "{target}");
        }
    }

    #[test]
    fn every_reason_is_listed_once() {
        let mut labels: Vec<_> = Denied::ALL.iter().map(|denied| denied.as_str()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), Denied::ALL.len());
    }
}
