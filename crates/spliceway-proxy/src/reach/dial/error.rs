//! The errors of a dial.

use std::fmt;
use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use super::resolver::LookupError;
use super::socket::{Call, SocketError};
use crate::access::policy::Denied;
use crate::kit::outcome::{ConnectFailure, Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::kit::tls_failure::TlsFailure;
use crate::tls::connect_error::ConnectError;
use spliceway_protocol::address::Target;
use spliceway_protocol::{Failure, client};

/// The reason why there is no connection to a target. Its text never contains a password.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The name has no address, or its lookup failed.
    Unresolved(LookupError),
    /// The policy refuses the name or this address, and no other address connected.
    Denied(Denied, Option<IpAddr>),
    /// The last address that was tried, or the Unix socket, cannot be reached.
    Unreachable(Target, SocketError),
    /// The target is connected, and TLS with it fails.
    Tls(Target, ConnectError),
    /// An upstream proxy, as [`super::UpstreamProxy`] displays it, and its fault.
    Upstream(Box<str>, UpstreamFault),
}

/// The fault of an upstream proxy.
#[derive(Debug)]
pub(crate) enum UpstreamFault {
    /// The proxy cannot be reached.
    Unreachable(Box<DialError>),
    /// TLS with the proxy failed.
    Tls(ConnectError),
    /// The handshake with the proxy failed.
    Answered(client::Error),
    /// The proxy did not answer before the timeout.
    Silent,
    /// The proxy closed the connection without an answer.
    Closed,
    Io(io::Error),
}

impl DialError {
    /// Returns how the session ends.
    fn session_end(&self) -> SessionEnd {
        SessionEnd::ConnectFailed(match self {
            Self::Unresolved(LookupError::TimedOut) => ConnectFailure::TIMED_OUT,
            Self::Unresolved(LookupError::TooMany) => ConnectFailure::TooManyLookups,
            Self::Unresolved(_) => ConnectFailure::Unresolved,
            Self::Denied(denied, _) => return SessionEnd::Denied(denied.into()),
            Self::Unreachable(_, failed) => (&failed.error).into(),
            Self::Tls(_, error) => ConnectFailure::Tls(error.reason()),
            Self::Upstream(_, UpstreamFault::Tls(_)) => ConnectFailure::UpstreamTls,
            Self::Upstream(_, UpstreamFault::Unreachable(_)) => ConnectFailure::UpstreamUnreachable,
            Self::Upstream(_, UpstreamFault::Answered(error)) => ConnectFailure::Upstream(*error),
            Self::Upstream(_, UpstreamFault::Silent) => ConnectFailure::UpstreamSilent,
            Self::Upstream(_, UpstreamFault::Closed) => ConnectFailure::UpstreamClosed,
            Self::Upstream(_, UpstreamFault::Io(_)) => ConnectFailure::UpstreamIo,
        })
    }

    /// Returns the reason for records and metrics.
    #[cfg(test)]
    pub(super) fn as_str(&self) -> &'static str {
        match self.session_end() {
            SessionEnd::ConnectFailed(failure) => failure.as_str(),
            SessionEnd::Denied(reason) => reason.as_str(),
            other => unreachable!("{other}"),
        }
    }

    /// Returns the failure to report to the client.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Unresolved(LookupError::TimedOut | LookupError::TooMany) => Failure::TimedOut,
            Self::Unresolved(_) => Failure::HostUnreachable,
            Self::Denied(..) => Failure::NotAllowed,
            Self::Unreachable(_, failed) => failed.failure(),
            Self::Tls(_, error) => error.failure(),
            Self::Upstream(_, fault) => fault.failure(),
        }
    }

    /// Returns the reason if the policy of this program refused the target.
    pub(super) fn denied(&self) -> Option<Refusal> {
        match self {
            Self::Denied(denied, _) => Some(denied.into()),
            _ => None,
        }
    }

    /// Returns whether the target is at fault, and not this program, its machine or a proxy.
    pub(in crate::reach) fn is_of_the_backend(&self) -> bool {
        match self {
            Self::Denied(..) => false,
            Self::Tls(_, error) => error.reason() != TlsFailure::Settings,
            Self::Unresolved(_) | Self::Unreachable(..) => !self.is_of_this_machine(),
            Self::Upstream(..) => self.is_of_the_target(),
        }
    }

    /// Returns whether this machine is at fault: it has no port, no memory or no descriptor left.
    pub(in crate::reach) fn is_of_this_machine(&self) -> bool {
        match self {
            Self::Unresolved(error) => *error == LookupError::TooMany,
            Self::Unreachable(_, failed) => {
                failed.call != Call::Connect
                    || matches!(
                        Errno::from_io_error(&failed.error),
                        Some(Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM | Errno::MFILE | Errno::NFILE)
                    )
            }
            Self::Denied(..) | Self::Tls(..) | Self::Upstream(..) => false,
        }
    }

    /// Returns the error to report if neither of two attempts, or of two readings of a name,
    /// succeeds: a denial rather than a failure.
    pub(super) fn or(self, later: Self) -> Self {
        match self {
            Self::Denied(..) => self,
            _ => later,
        }
    }

    /// Returns whether another address of the same name may succeed through the same proxies.
    pub(super) fn is_of_the_target(&self) -> bool {
        matches!(
            self,
            Self::Denied(..) | Self::Upstream(_, UpstreamFault::Answered(client::Error::Failed(_)))
        ) && self.failure() != Failure::Loop
    }
}

impl SocketError {
    fn failure(&self) -> Failure {
        match Errno::from_io_error(&self.error) {
            Some(Errno::CONNREFUSED) => Failure::Refused,
            Some(Errno::HOSTUNREACH | Errno::HOSTDOWN) => Failure::HostUnreachable,
            Some(Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                Failure::NetworkUnreachable
            }
            Some(Errno::TIMEDOUT) => Failure::TimedOut,
            // A firewall forbids the connection. From earlier calls, these errors mean that the
            // program lacks a privilege.
            Some(Errno::ACCESS | Errno::PERM) if self.call == Call::Connect => Failure::NotAllowed,
            _ => Failure::General,
        }
    }
}

impl UpstreamFault {
    /// Returns the failure to report to the client. Upstream proxies are internal, so the client
    /// does not learn what is wrong with one of them.
    fn failure(&self) -> Failure {
        match self {
            Self::Answered(error) => error.failure(),
            Self::Tls(error) => error.failure(),
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

impl From<DialError> for Outcome {
    fn from(error: DialError) -> Self {
        Self::because(error.session_end(), &error)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(error) => write!(f, "cannot look up the name: {error}"),
            Self::Denied(denied, Some(ip)) => write!(f, "not allowed: {ip} is {denied}"),
            Self::Denied(denied, None) => write!(f, "not allowed: {denied}"),
            Self::Unreachable(target, error) => write!(f, "cannot connect to {target}: {error}"),
            Self::Tls(target, error) => write!(f, "{target}: {error}"),
            Self::Upstream(proxy, fault) => write!(f, "{proxy}: {fault}"),
        }
    }
}

impl fmt::Display for UpstreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Answered(error) => error.fmt(f),
            Self::Silent => f.write_str("the upstream proxy did not answer in time"),
            Self::Closed => f.write_str("the upstream proxy closed the connection without an answer"),
            Self::Io(error) => error.fmt(f),
        }
    }
}
