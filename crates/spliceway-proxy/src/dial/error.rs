//! Why there is no connection.

use std::fmt;
use std::io;
use std::net::IpAddr;

use super::resolver::LookupError;
use super::socket::{Call, SocketError};
use crate::address::Target;
use crate::errno;
use crate::policy::Denied;
use crate::protocol::{Failure, client};

/// Why there is no connection to a target. No text of it holds a secret.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The name has no address, or nobody could say.
    Unresolved(LookupError),
    /// Refused by us: the name, or this address of it, and no other connected.
    Denied(Denied, Option<IpAddr>),
    /// The last address tried, or the path.
    Unreachable(Target, SocketError),
    /// A proxy on the way, as [`super::UpstreamProxy`] shows it, and what is wrong with it.
    Upstream(Box<str>, UpstreamFault),
}

/// What a proxy on the way did.
#[derive(Debug)]
pub(crate) enum UpstreamFault {
    /// There is no connection to it.
    Unreachable(Box<DialError>),
    /// Its answer.
    Answered(client::Error),
    /// It said nothing until the timeout.
    Silent,
    /// It closed the connection without an answer.
    Closed,
    Io(io::Error),
}

impl DialError {
    /// For records and labels: an errno's name, `unresolved`, `too_many_lookups`, the reason of a denial, or `upstream_` and what happened there.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Unresolved(LookupError::TimedOut) => "ETIMEDOUT",
            Self::Unresolved(LookupError::TooMany) => "too_many_lookups",
            Self::Unresolved(_) => "unresolved",
            Self::Denied(denied, _) => denied.as_str(),
            Self::Unreachable(_, failed) => errno::name(&failed.error),
            Self::Upstream(_, fault) => fault.as_str(),
        }
    }

    /// What the client is told.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Unresolved(LookupError::TimedOut | LookupError::TooMany) => Failure::TimedOut,
            Self::Unresolved(_) => Failure::HostUnreachable,
            Self::Denied(..) => Failure::NotAllowed,
            Self::Unreachable(_, failed) => failed.failure(),
            Self::Upstream(_, fault) => fault.failure(),
        }
    }

    /// The reason, if it was our own policy that refused.
    pub(crate) fn denied(&self) -> Option<&'static str> {
        match self {
            Self::Denied(denied, _) => Some(denied.as_str()),
            _ => None,
        }
    }

    /// Whether another address of the same name may fare better with the same proxies.
    pub(super) fn is_of_the_target(&self) -> bool {
        matches!(
            self,
            Self::Denied(..) | Self::Upstream(_, UpstreamFault::Answered(client::Error::Failed(_)))
        ) && self.failure() != Failure::Loop
    }
}

impl SocketError {
    fn failure(&self) -> Failure {
        match (errno::name(&self.error), self.call) {
            ("ECONNREFUSED", _) => Failure::Refused,
            ("EHOSTUNREACH" | "EHOSTDOWN", _) => Failure::HostUnreachable,
            ("ENETUNREACH" | "ENETDOWN" | "EAFNOSUPPORT" | "EADDRNOTAVAIL", _) => Failure::NetworkUnreachable,
            ("ETIMEDOUT", _) => Failure::TimedOut,
            // A firewall's word. Of the calls before, it says that we lack a privilege.
            ("EACCES" | "EPERM", Call::Connect) => Failure::NotAllowed,
            _ => Failure::General,
        }
    }
}

impl UpstreamFault {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Answered(error) => error.as_str(),
            Self::Silent => "upstream_silent",
            Self::Closed => "upstream_closed",
            Self::Io(_) => "upstream_io",
        }
    }

    /// The proxies that we go through are our affair: of what is wrong with one, the client learns that it went wrong.
    fn failure(&self) -> Failure {
        match self {
            Self::Answered(error) => error.failure(),
            Self::Silent => Failure::TimedOut,
            Self::Unreachable(error) if error.failure() == Failure::TimedOut => Failure::TimedOut,
            Self::Unreachable(_) | Self::Closed | Self::Io(_) => Failure::General,
        }
    }
}

impl From<Denied> for DialError {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied, None)
    }
}

impl From<LookupError> for DialError {
    fn from(error: LookupError) -> Self {
        Self::Unresolved(error)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(error) => write!(f, "cannot look up the name: {error}"),
            Self::Denied(denied, Some(ip)) => write!(f, "not allowed: {ip} is {denied}"),
            Self::Denied(denied, None) => write!(f, "not allowed: {denied}"),
            Self::Unreachable(target, error) => write!(f, "cannot connect to {target}: {error}"),
            Self::Upstream(proxy, fault) => write!(f, "{proxy}: {fault}"),
        }
    }
}

impl fmt::Display for UpstreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => error.fmt(f),
            Self::Answered(error) => error.fmt(f),
            Self::Silent => f.write_str("the upstream proxy did not answer in time"),
            Self::Closed => f.write_str("the upstream proxy closed the connection without an answer"),
            Self::Io(error) => error.fmt(f),
        }
    }
}
