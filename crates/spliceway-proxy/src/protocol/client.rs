//! The client's side, for upstream proxies: what to say next, and what the answer means.
//!
//! ```text
//!   start ──▶ first words ─▶ send ─▶ feed what comes back ─┬─▶ Step::Send: and feed again
//!                                                         └─▶ Step::Connected: the stream is the target's from here on
//! ```
//!
//! Both protocols have the same two functions, `start` and `feed`, as a proxy may speak either and a chain of them both.

pub mod http;
pub mod socks5;

use std::fmt;

use super::{Credentials, Failure};
use crate::address::Target;

/// A conversation with an upstream proxy, up to the answer to what it was asked for.
#[derive(Debug)]
pub enum Handshake {
    Socks5(socks5::Handshake),
    Http(http::Handshake),
}

/// The language of an upstream proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    Socks5,
    Http,
}

/// What there is to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Feed more.
    Wait,
    /// Send this, then feed more.
    Send(Vec<u8>),
    /// What is left of the input, and all that comes after it, is from the target.
    Connected,
}

/// Why an upstream proxy does not get us to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// What it says is not this protocol, or too long.
    Protocol,
    /// It wants authentication and none is set, or one that is not spoken here.
    Method,
    /// It does not take the name and password that are set.
    Authentication,
    /// The name and password cannot be said in this protocol.
    Credentials,
    /// Nor can the target.
    Target,
    /// It tried, or did not care to.
    Failed(Failure),
}

impl Handshake {
    /// The conversation, and what to send first. `via` names the proxies that the request has passed, where the language can say so.
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

    /// Takes from `input` what belongs to the answer that is awaited. [`Step::Wait`] means that all of it was taken; not so any other
    /// step, after which what is left is fed again, or is the target's.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Step, Error> {
        match self {
            Self::Socks5(handshake) => handshake.feed(input),
            Self::Http(handshake) => handshake.feed(input),
        }
    }
}

impl Error {
    /// Every one, for whoever keeps a count of each.
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

    /// For metrics and records.
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

    /// What our own client is told. That we and our proxy do not get on is not for it to know.
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
            Self::Method => "the upstream proxy wants authentication of another kind, or any at all",
            Self::Authentication => "the upstream proxy does not take this name and password",
            Self::Credentials => "this name and password cannot be told to the upstream proxy",
            Self::Target => "the upstream proxy cannot be asked for such a target",
            Self::Failed(Failure::NotAllowed) => "the upstream proxy does not allow this target",
            Self::Failed(Failure::NetworkUnreachable) => "the upstream proxy has no way to the target's network",
            Self::Failed(Failure::HostUnreachable) => "the upstream proxy cannot reach the target's host",
            Self::Failed(Failure::Refused) => "the target refused the upstream proxy",
            Self::Failed(Failure::TimedOut) => "the target did not answer the upstream proxy in time",
            Self::Failed(Failure::Loop) => "the upstream proxy says that the request goes round in a loop",
            Self::Failed(Failure::General) => "the upstream proxy failed to reach the target",
        })
    }
}

#[cfg(test)]
mod tests;
