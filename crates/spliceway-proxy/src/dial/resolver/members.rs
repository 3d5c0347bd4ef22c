//! Looks up every address of a name, and SRV records, for backends that are members of a name.
//! These answers are not cached here: the caller keeps them for their TTL.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::proto::rr::{Name, RData, RecordType};

use super::{Caller, Dns, Family, LookupError, Resolver, ask_system, failure};

/// The time for which an answer is used that has no TTL: from `getaddrinfo(3)`, and from
/// `/etc/hosts`.
const WITHOUT_TTL: Duration = Duration::from_secs(30);
/// The most records of one answer that are used. Each of them may cost two more queries.
const RECORDS_MAX: usize = 64;

/// An answer, and how long it is valid.
pub(super) type Valid<T> = (Vec<T>, Duration);

/// The members of a name, as one lookup has found them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberList {
    /// At least one.
    pub(crate) members: Vec<Member>,
    pub(crate) ttl: Duration,
    /// Whether every query has an answer. If not, members may be missing.
    pub(crate) is_whole: bool,
}

/// The same for the addresses of one name.
struct Addresses {
    /// Sorted, and at least one.
    all: Vec<IpAddr>,
    ttl: Duration,
    is_whole: bool,
}

/// An address that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) address: SocketAddr,
    /// The lowest priority is used first (RFC 2782). Without SRV, all priorities are 0.
    pub(crate) priority: u16,
    /// The weight of its SRV record. `None` without SRV.
    pub(crate) weight: Option<u16>,
}

impl Resolver {
    /// Returns every address of `host`, with this port. Cancel safe.
    pub(in crate::dial) async fn members(
        &self,
        host: &str,
        port: u16,
        caller: Caller,
    ) -> Result<MemberList, LookupError> {
        let Addresses { all, ttl, is_whole } = self.every_address(host, caller).await?;
        let member = |ip| Member {
            address: SocketAddr::new(ip, port),
            priority: 0,
            weight: None,
        };
        Ok(MemberList {
            members: all.into_iter().map(member).collect(),
            ttl,
            is_whole,
        })
    }

    /// Returns every address of every SRV record of `name`. Cancel safe.
    pub(in crate::dial) async fn services(&self, name: &str, caller: Caller) -> Result<MemberList, LookupError> {
        let Self::Dns(dns) = self else {
            let why = "the system's resolver has no SRV records: name servers with --dns";
            return Err(LookupError::Failed(why.into()));
        };
        let place = dns.asking.take(caller.client, caller.deadline).await?;
        let name = complete(name)?;
        let lookup = dns
            .servers
            .lookup(name, RecordType::SRV)
            .await
            .map_err(|error| failure(&error))?;
        let (mut members, mut ttl, mut is_whole) = (Vec::new(), Duration::MAX, true);
        let mut failed = LookupError::NoAddress;
        drop(place);
        for record in lookup.answers().iter().take(RECORDS_MAX) {
            ttl = ttl.min(Duration::from_secs(record.ttl.into()));
            // The root as the target means that there is no such service.
            let RData::SRV(srv) = &record.data else { continue };
            if srv.target.is_root() {
                continue;
            }
            let member = |ip| Member {
                address: SocketAddr::new(ip, srv.port),
                priority: srv.priority,
                weight: Some(srv.weight),
            };
            match self.every_address(&srv.target.to_ascii(), caller).await {
                Ok(found) => {
                    ttl = ttl.min(found.ttl);
                    is_whole &= found.is_whole;
                    members.extend(found.all.into_iter().map(member));
                }
                Err(error) => {
                    is_whole &= error == LookupError::NoAddress;
                    failed = failed.or(error);
                }
            }
        }
        if members.is_empty() {
            return Err(failed);
        }
        Ok(MemberList { members, ttl, is_whole })
    }

    async fn every_address(&self, host: &str, caller: Caller) -> Result<Addresses, LookupError> {
        let mut failed = LookupError::NoAddress;
        for reading in self.readings(host, false) {
            let found = match self {
                Self::System(places) => ask_system(&reading, places, caller).await.map(Addresses::without_ttl),
                Self::Dns(dns) => match dns.in_hosts(&reading) {
                    Some(found) => Ok(Addresses::without_ttl(found)),
                    None => dns.both_families(&reading, caller).await,
                },
            };
            match found {
                Ok(mut found) if !found.all.is_empty() => {
                    found.all.sort_unstable();
                    found.all.dedup();
                    return Ok(found);
                }
                Ok(_) => {}
                Err(error) => failed = failed.or(error),
            }
        }
        Err(failed)
    }
}

impl Dns {
    /// Returns the addresses of both families. If one query fails, the other one counts.
    async fn both_families(&self, name: &str, caller: Caller) -> Result<Addresses, LookupError> {
        let query = async |family| {
            let _place = self.asking.take(caller.client, caller.deadline).await?;
            self.query(name, family).await
        };
        let (v6, v4) = tokio::join!(query(Family::V6), query(Family::V4));
        match (v6, v4) {
            (Ok((mut v6, ttl_v6)), Ok((v4, ttl_v4))) => {
                let ttl = match (v6.is_empty(), v4.is_empty()) {
                    (true, false) => ttl_v4,
                    (false, true) => ttl_v6,
                    _ => ttl_v6.min(ttl_v4),
                };
                v6.extend(v4);
                Ok(Addresses {
                    all: v6,
                    ttl,
                    is_whole: true,
                })
            }
            (Ok((all, ttl)), Err(_)) | (Err(_), Ok((all, ttl))) if !all.is_empty() => Ok(Addresses {
                all,
                ttl,
                is_whole: false,
            }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

impl Addresses {
    fn without_ttl(all: Vec<IpAddr>) -> Self {
        Self {
            all,
            ttl: WITHOUT_TTL,
            is_whole: true,
        }
    }
}

impl LookupError {
    /// Returns the error to report for two lookups. That a name has no address is only known if all
    /// lookups say so.
    fn or(self, later: Self) -> Self {
        match self {
            Self::NoAddress => later,
            failed => failed,
        }
    }
}

/// Returns the name as a complete one.
fn complete(name: &str) -> Result<Name, LookupError> {
    let mut name = Name::from_ascii(name).map_err(|_| LookupError::NoAddress)?;
    name.set_fqdn(true);
    Ok(name)
}

#[cfg(test)]
mod tests;
