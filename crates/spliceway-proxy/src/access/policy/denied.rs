//! Why a target is refused.

use std::fmt;

use crate::kit::refusal::Refusal;
use crate::net::hops::TooManyHops;

/// The reason why a target is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    /// A loopback address, or another address of this machine.
    Loopback,
    Private,
    LinkLocal,
    /// An address that the customers of a carrier share (RFC 6598).
    Cgnat,
    /// `0.0.0.0/8` and `::`, which connect to this machine.
    Unspecified,
    Multicast,
    /// A service from which a cloud machine gets its credentials.
    Metadata,
    /// Any other address that no host on the public Internet has.
    Reserved,
    /// A listener of this program that a client has named, or one hop too many. Otherwise, each
    /// session would open the next one until no descriptor is left.
    Loop,
    /// A target rule of the operator, which the text names.
    Rule(Box<str>),
}

impl From<TooManyHops> for Denied {
    fn from(_: TooManyHops) -> Self {
        Self::Loop
    }
}

impl Denied {
    /// Returns whether the operator can open addresses of this kind one by one. From loopback and
    /// metadata services, a client could take over the machine.
    pub(super) fn can_be_opened(&self) -> bool {
        matches!(self, Self::Private | Self::Cgnat | Self::LinkLocal | Self::Reserved)
    }
}

impl From<&Denied> for Refusal {
    fn from(denied: &Denied) -> Self {
        match denied {
            Denied::Loopback => Self::Loopback,
            Denied::Private => Self::Private,
            Denied::LinkLocal => Self::LinkLocal,
            Denied::Cgnat => Self::Cgnat,
            Denied::Unspecified => Self::Unspecified,
            Denied::Multicast => Self::Multicast,
            Denied::Metadata => Self::Metadata,
            Denied::Reserved => Self::Reserved,
            Denied::Loop => Self::Loop,
            Denied::Rule(_) => Self::TargetRule,
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "an address of this machine",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Cgnat => "a carrier-grade NAT address",
            Self::Unspecified => "an unspecified address",
            Self::Multicast => "a multicast address",
            Self::Metadata => "a cloud metadata service",
            Self::Reserved => "a reserved address",
            Self::Loop => "one of spliceway's own listeners",
            Self::Rule(rule) => return write!(f, "refused by {rule}"),
        })
    }
}
