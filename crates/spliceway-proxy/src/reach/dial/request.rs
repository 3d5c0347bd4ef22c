//! The purpose and the client of a dial.

use std::net::IpAddr;

use tokio::time::Instant;

use crate::kit::client_key::ClientKey;
use crate::net::hops::Hops;

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
}

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
