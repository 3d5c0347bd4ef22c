//! The limits of users: of every user, and of users with a table of their own.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use toml::Spanned;

use super::clients::UserTables;
use super::faults::{Fault, Faults};
use super::origin::Origin;
use super::service::{HostUsers, ServiceSettings};
use crate::access::accounts::{AllLimits, Quotas, UserLimits};
use crate::settings::config::schema::closest;
use crate::settings::config::{Config, List, User, UserDefaults, UserQuota, or};

/// The most names that are compared with one that no service has. Each further such name gets half
/// of them, because a service may have a million users.
const HINTS: usize = 1 << 16;

/// Returns the limits of all users. A key that a user does not have is that of every user.
pub(super) fn user_limits(
    defaults: &UserDefaults,
    tables: &UserTables,
    services: &[Arc<ServiceSettings>],
    origin: &Origin,
    faults: &mut Faults,
) -> AllLimits {
    let UserDefaults {
        max_conns,
        rate_in,
        rate_out,
        quota,
    } = defaults;
    let every = UserLimits {
        max_conns: or(max_conns, None),
        rate_in: or(rate_in, None),
        rate_out: or(rate_out, None),
        quotas: faults.keep(quotas(quota, origin)).flatten().unwrap_or_default(),
        is_by_network: false,
    };
    let known: BTreeSet<_> = services
        .iter()
        .filter_map(|service| service.users.as_ref())
        .flat_map(|users| users.names())
        .collect();
    // Only the CA knows all names in its certificates.
    let has_certificates = services.iter().any(|service| service.has_users_by_certificate());
    let mut hints = HINTS;
    let (mut named, mut locations) = (BTreeMap::new(), BTreeMap::new());
    for table in &tables.all {
        let (location, table) = (table.span().start, table.get_ref());
        faults.enter(Some(location));
        let limits = UserLimits {
            max_conns: or(&table.max_conns, every.max_conns),
            rate_in: or(&table.rate_in, every.rate_in),
            rate_out: or(&table.rate_out, every.rate_out),
            quotas: faults
                .keep(quotas(&table.quota, origin))
                .flatten()
                .unwrap_or(every.quotas),
            is_by_network: false,
        };
        let Some(name) = &table.name else {
            let missing = "is missing: expected the name of a user";
            faults.add(Fault::new(Some(location), "name", missing));
            continue;
        };
        let at = name.at();
        let user = name.parsed();
        let is_by_network = tables.networks.names().contains(&user);
        match locations.entry(user.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(at)),
            Entry::Occupied(entry) => {
                let there = origin.location(*entry.get());
                let problem = format!("the table at {there} has the limits of this user too: expected one of them");
                faults.add(Fault::new(at, "name", problem));
            }
        }
        if faults.is_empty() && !is_by_network && !known.contains(&user) {
            let near = closest(&user, known.iter().take(hints).map(|known| &**known));
            hints /= 2;
            let problem = unknown(&user, near, has_certificates);
            let problem = problem.map(|problem| Fault::new(at, "name", problem));
            faults.warnings.extend(problem);
        }
        named.insert(
            user,
            UserLimits {
                is_by_network,
                ..limits
            },
        );
    }
    faults.enter(None);
    AllLimits { every, named }
}

/// Returns what is wrong with a table for a user who is in no file. `near` is a user with almost
/// this name. If services take users from certificates, the table may be for one of them, so only a
/// near name is a reason for a warning.
fn unknown(user: &str, near: Option<&str>, has_certificates: bool) -> Option<String> {
    let hint = near.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
    match (has_certificates, near) {
        (false, _) => Some(format!(
            "no service has the user {user}, so this table has no effect{hint}"
        )),
        (true, Some(_)) => Some(format!(
            "no file has the user {user}, so this table is only for certificates{hint}"
        )),
        (true, None) => None,
    }
}

/// Returns the users whose names have capitals, if certificates name users. The names of hosts in
/// them have none.
pub(super) fn host_users(
    tables: &[Spanned<User>],
    are_in_certificates: bool,
    origin: &Origin,
) -> Result<Arc<HostUsers>, Fault> {
    let (mut users, mut places) = (HostUsers::new(), HashMap::new());
    let tables = if are_in_certificates { tables } else { &[] };
    for name in tables.iter().filter_map(|table| table.get_ref().name.as_ref()) {
        let user = name.parsed();
        let lower: Box<str> = user.to_ascii_lowercase().into();
        if let Some((other, at)) = places.insert(lower.clone(), (user.clone(), name.at()))
            && other != user
        {
            let problem = format!(
                "differs from the one at {} only in capitals, which names of hosts in certificates \
                 do not have: expected one of them",
                origin.location(at)
            );
            return Err(Fault::new(name.at(), "name", problem));
        }
        if lower != user {
            users.insert(lower, user);
        }
    }
    Ok(Arc::new(users))
}

fn quotas(list: &Option<List<UserQuota>>, origin: &Origin) -> Result<Option<Quotas>, Fault> {
    let Some(list) = list else { return Ok(None) };
    let mut quotas = Quotas::default();
    let expected = "expected at most one quota per day and one per month, or none";
    for quota in list.iter() {
        let fits = match quota.parsed() {
            Some(quota) => quotas.add(quota),
            None => list.len() == 1,
        };
        if !fits {
            return Err(Fault::new(quota.at(), key(origin), expected));
        }
    }
    Ok(Some(quotas))
}

/// Returns the key of quotas, or the word of their flag.
fn key(origin: &Origin) -> &'static str {
    match origin {
        Origin::CommandLine => "user_quota",
        Origin::Files(_) => "quota",
        Origin::Given(base, _) => key(base),
    }
}

/// Checks that what users have used of their quotas is saved.
pub(super) fn check_saved(config: &Config, origin: &Origin) -> Result<(), Fault> {
    if config.limits.quota_file.is_some() {
        return Ok(());
    }
    let tables = config.user.iter().map(|table| &table.get_ref().quota);
    let clients = config.client.iter().map(|table| &table.get_ref().quota);
    let mut quotas = tables.chain(clients).chain([&config.defaults.user.quota]).flatten();
    match quotas.find(|list| list.iter().any(|quota| quota.parsed().is_some())) {
        Some(quota) => {
            let why = "needs quota_file in [limits]: expected a file for what users have used, such as quota_file = \"/var/lib/spliceway/quotas\"";
            Err(Fault::new(quota.at(), key(origin), why))
        }
        None => Ok(()),
    }
}
