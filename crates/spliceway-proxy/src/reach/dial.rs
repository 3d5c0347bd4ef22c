//! Connects to targets, directly or through a chain of upstream proxies.
//!
//! ```text
//!   Target ─ resolver ─▶ addresses ─ happy eyeballs ─▶ attempts ─ chain ─▶ Dialed
//!            cache                   RFC 8305          policy     proxy
//!                                                      socket     proxy
//!                                                      connect
//! ```

mod attempts;
mod cache;
mod chain;
mod dialer;
mod error;
mod happy_eyeballs;
mod originate;
mod request;
mod resolver;
mod socket;
mod unix;
mod upstream;

pub(crate) use dialer::{DialSettings, Dialed, Dialer, TargetTls};
pub(crate) use error::DialError;
pub(crate) use happy_eyeballs::Family;
pub(crate) use request::{Destination, DialRequest, Passage, TLS_PREFIX, TlsRequest};
#[cfg(test)]
pub(super) use resolver::Families;
pub(crate) use resolver::{LookupError, ResolverSettings};
pub(super) use resolver::{Member, MemberList, Memory};
pub(crate) use upstream::{CHAIN_MAX, UpstreamProxy};

#[cfg(test)]
mod tests;
