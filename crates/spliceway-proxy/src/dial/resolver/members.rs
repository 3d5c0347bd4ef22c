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
pub(crate) type Valid<T> = (Vec<T>, Duration);

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
    ) -> Result<Valid<Member>, LookupError> {
        let (addresses, ttl) = self.every_address(host, caller).await?;
        let member = |ip| Member {
            address: SocketAddr::new(ip, port),
            priority: 0,
            weight: None,
        };
        Ok((addresses.into_iter().map(member).collect(), ttl))
    }

    /// Returns every address of every SRV record of `name`. Cancel safe.
    pub(in crate::dial) async fn services(&self, name: &str, caller: Caller) -> Result<Valid<Member>, LookupError> {
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
        let (mut members, mut ttl) = (Vec::new(), Duration::MAX);
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
                Ok((addresses, valid)) => {
                    ttl = ttl.min(valid);
                    members.extend(addresses.into_iter().map(member));
                }
                Err(error) => failed = error,
            }
        }
        if members.is_empty() {
            Err(failed)
        } else {
            Ok((members, ttl))
        }
    }

    async fn every_address(&self, host: &str, caller: Caller) -> Result<Valid<IpAddr>, LookupError> {
        let mut failed = LookupError::NoAddress;
        for reading in self.readings(host, false) {
            let found = match self {
                Self::System(places) => ask_system(&reading, places, caller)
                    .await
                    .map(|found| (found, WITHOUT_TTL)),
                Self::Dns(dns) => match dns.in_hosts(&reading) {
                    Some(found) => Ok((found, WITHOUT_TTL)),
                    None => dns.both_families(&reading, caller).await,
                },
            };
            match found {
                Ok((mut addresses, ttl)) if !addresses.is_empty() => {
                    addresses.sort_unstable();
                    addresses.dedup();
                    return Ok((addresses, ttl));
                }
                Ok(_) => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl Dns {
    /// Returns the addresses of both families. If one query fails, the other one counts.
    async fn both_families(&self, name: &str, caller: Caller) -> Result<Valid<IpAddr>, LookupError> {
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
                Ok((v6, ttl))
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) if !one.0.is_empty() => Ok(one),
            (Err(error), _) | (_, Err(error)) => Err(error),
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
