//! Looks up names as glibc does: in `/etc/hosts`, with the servers of `/etc/resolv.conf`, or with
//! the C library where only that knows the answer (`docs/design/011-names.md`).

mod answer;
mod files;
mod hosts;
mod ignored;
mod lookup;
mod members;
mod nsswitch;
mod permits;
mod query;
mod reading;
mod resolv_conf;

pub(crate) use answer::LookupError;
pub(super) use answer::{Found, Lookup, NO_NAME_DELAY, Pending, next_done, within};
pub(super) use lookup::Resolver;
pub(crate) use lookup::ResolverSettings;
#[cfg(test)]
pub(in crate::reach) use members::Families;
pub(in crate::reach) use members::{Member, MemberList, Memory};
pub(super) use reading::{Reading, SearchEnd};

#[cfg(test)]
mod tests;
