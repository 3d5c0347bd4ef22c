//! The purpose and the client of a dial.

use std::fmt;
use std::net::IpAddr;

use tokio::time::Instant;

use crate::kit::client_key::ClientKey;
use crate::net::hops::Hops;
use crate::tls::client::PeerName;
use spliceway_protocol::address::Target;

/// What a dial is for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DialRequest<'a> {
    pub(crate) passage: Passage,
    /// The address of the client.
    pub(crate) client: Option<IpAddr>,
    /// The proxies that the request has passed through, including this one. Upstream proxies
    /// receive it if their protocol allows this.
    pub(crate) via: &'a str,
    /// The [hops](crate::net::hops) behind the client.
    pub(crate) hops: Hops,
    /// The TLS to speak to the target. `None` means none.
    pub(crate) tls: Option<TlsRequest<'a>>,
}

/// How to begin TLS with a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TlsRequest<'a> {
    pub(crate) name: &'a PeerName,
    /// What the target gets first, in clear text: a PROXY header, if the service sends one.
    pub(crate) introduction: &'a [u8],
    /// The protocol on which the client has agreed (ALPN).
    pub(crate) protocol: Option<&'a str>,
    /// Whether this is a check, which resumes no session.
    pub(crate) is_check: bool,
}

/// A target that the operator has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) target: Target,
    /// The name that its certificate must have. `None` means that it does not speak TLS.
    pub(crate) tls: Option<PeerName>,
}

impl From<Target> for Destination {
    fn from(target: Target) -> Self {
        Self { target, tls: None }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tls.is_some() {
            f.write_str(TLS_PREFIX)?;
        }
        self.target.fmt(f)
    }
}

/// What stands before a target that speaks TLS.
pub(crate) const TLS_PREFIX: &str = "tls://";

/// How bytes pass through the last upstream proxy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Passage {
    /// The proxy connects to the target, and knows nothing about the bytes.
    #[default]
    Tunnel,
    /// The bytes are one HTTP request. An HTTP proxy gets it instead of CONNECT, which many proxies
    /// allow for port 443 only.
    Request,
}

/// The purpose of a connection, which decides how its address is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose<'a> {
    /// A target, to which the whole policy applies, and the whole name that led to its address.
    Target(Option<&'a str>),
    /// An upstream proxy, which the operator has named. The only check is that there are not too
    /// many hops within this program.
    Proxy,
}

/// The client of a dial or a lookup, and the deadline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) client: Option<ClientKey>,
    pub(super) ip: Option<IpAddr>,
    /// The services of this program that the client's bytes have passed.
    pub(super) hops: Hops,
    pub(super) deadline: Instant,
}
