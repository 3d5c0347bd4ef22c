//! The client side, for upstream proxies: the bytes to send next, and the meaning of the answer.
//!
//! ```text
//!   start ──▶ first bytes ─▶ send ─▶ feed the answer ─┬─▶ Step::Send: send, and feed again
//!                                                     └─▶ Step::Connected: the target's stream
//! ```
//!
//! Both protocols have the same two functions, `start` and `feed`. Each upstream proxy speaks one
//! of the protocols. A chain of upstream proxies may use both.

pub mod http;
pub mod socks5;

use std::fmt;

use super::{Credentials, Failure};
use crate::address::Target;

/// A handshake with an upstream proxy, up to the answer to the request.
#[derive(Debug)]
pub enum Handshake {
    /// A SOCKS5 handshake.
    Socks5(socks5::Handshake),
    /// An HTTP handshake.
    Http(http::Handshake),
}

/// The protocol of an upstream proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// SOCKS5 with CONNECT.
    Socks5,
    /// HTTP with CONNECT.
    Http,
}

/// The next step of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Feed more bytes.
    Wait,
    /// Send these bytes, then feed more bytes.
    Send(Vec<u8>),
    /// The upstream proxy has reached the target. The remaining bytes of the input, and all later
    /// bytes, are from the target.
    Connected,
}

/// The reason why an upstream proxy does not connect to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The answer does not follow this protocol, or it is too long.
    Protocol,
    /// The upstream proxy demands authentication, but no credentials are configured or the method
    /// is not supported.
    Method,
    /// The upstream proxy rejects the configured name and password.
    Authentication,
    /// The protocol cannot express the configured name and password.
    Credentials,
    /// The protocol cannot express the target.
    Target,
    /// The upstream proxy did not reach the target, or refused to try.
    Failed(Failure),
}

impl Handshake {
    /// Starts a handshake. Returns the handshake and the first bytes to send.
    ///
    /// `via` names the proxies that the request has passed through. Only HTTP can transmit these
    /// names.
    ///
    /// # Errors
    /// Returns [`Error::Credentials`] or [`Error::Target`] if the protocol cannot express the
    /// credentials or the target.
    pub fn start(
        language: Language,
        target: &Target,
        credentials: Option<&Credentials>,
        via: &str,
    ) -> Result<(Self, Vec<u8>), Error> {
        Ok(match language {
            Language::Socks5 => {
                let (handshake, first) = socks5::Handshake::start(target, credentials)?;
                (Self::Socks5(handshake), first)
            }
            Language::Http => {
                let (handshake, first) = http::Handshake::start(target, credentials, via)?;
                (Self::Http(handshake), first)
            }
        })
    }

    /// Consumes the bytes of the awaited answer from `input`.
    ///
    /// [`Step::Wait`] means that `input` is empty. After [`Step::Send`], the caller feeds the
    /// remaining bytes of `input` again. After [`Step::Connected`], the remaining bytes are from
    /// the target.
    ///
    /// # Errors
    /// Returns the reason why the upstream proxy does not connect to the target.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Step, Error> {
        match self {
            Self::Socks5(handshake) => handshake.feed(input),
            Self::Http(handshake) => handshake.feed(input),
        }
    }
}

impl Error {
    /// Every error, for code that keeps one counter for each error.
    pub const ALL: [Self; 12] = [
        Self::Protocol,
        Self::Method,
        Self::Authentication,
        Self::Credentials,
        Self::Target,
        Self::Failed(Failure::NotAllowed),
        Self::Failed(Failure::NetworkUnreachable),
        Self::Failed(Failure::HostUnreachable),
        Self::Failed(Failure::Refused),
        Self::Failed(Failure::TimedOut),
        Self::Failed(Failure::Loop),
        Self::Failed(Failure::General),
    ];

    /// Returns the value of `reason` in metrics and log records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Protocol => "upstream_protocol",
            Self::Method => "upstream_method",
            Self::Authentication => "upstream_authentication",
            Self::Credentials => "upstream_credentials",
            Self::Target => "upstream_target",
            Self::Failed(Failure::NotAllowed) => "upstream_not_allowed",
            Self::Failed(Failure::NetworkUnreachable) => "upstream_network_unreachable",
            Self::Failed(Failure::HostUnreachable) => "upstream_host_unreachable",
            Self::Failed(Failure::Refused) => "upstream_refused",
            Self::Failed(Failure::TimedOut) => "upstream_timed_out",
            Self::Failed(Failure::Loop) => "upstream_loop",
            Self::Failed(Failure::General) => "upstream_failed",
        }
    }

    /// Returns the failure to report to the proxy's own client. The client must not learn about
    /// problems between the proxy and its upstream proxy.
    pub fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            _ => Failure::General,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol => "the upstream proxy does not speak its protocol",
            Self::Method => "the upstream proxy requires authentication, or a method that is not supported",
            Self::Authentication => "the upstream proxy rejected the name and password",
            Self::Credentials => "the protocol of the upstream proxy cannot express this name and password",
            Self::Target => "the protocol of the upstream proxy cannot express this target",
            Self::Failed(Failure::NotAllowed) => "the upstream proxy does not allow this target",
            Self::Failed(Failure::NetworkUnreachable) => "the upstream proxy cannot reach the target's network",
            Self::Failed(Failure::HostUnreachable) => "the upstream proxy cannot reach the target's host",
            Self::Failed(Failure::Refused) => "the target refused the upstream proxy",
            Self::Failed(Failure::TimedOut) => "the target did not answer the upstream proxy in time",
            Self::Failed(Failure::Loop) => "the upstream proxy reports a loop",
            Self::Failed(Failure::General) => "the upstream proxy failed to reach the target",
        })
    }
}

#[cfg(test)]
mod tests;
