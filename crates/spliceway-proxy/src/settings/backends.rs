//! Checks the backends of a forwarder, and how clients are spread over them.

use std::num::NonZeroU32;

use super::faults::{Fault, Faults};
use crate::reach::balance::{BACKENDS_MAX, BackendSettings, BalanceSettings, CheckSettings, EjectSettings, Members};
use crate::settings::config::{self, Table, or, parsed};
use spliceway_protocol::address::Target;
use spliceway_protocol::proxy;

/// Returns how clients are spread over backends. A forwarder with one target has nothing to spread.
pub(super) fn balance(
    service: &config::Service,
    backends: Vec<BackendSettings>,
) -> Result<Option<BalanceSettings>, Fault> {
    let check = check(service)?;
    let is_special = |backend: &BackendSettings| {
        backend.max_conns.is_some() || backend.members != Members::One || backend.tls.is_some()
    };
    let is_needed = backends.len() > 1 || check.is_some() || backends.iter().any(is_special);
    Ok(is_needed.then(|| BalanceSettings {
        policy: service.balance(),
        backends,
        eject: EjectSettings {
            after: NonZeroU32::new(service.eject_after()),
            time: service.eject_time(),
            max_percent: service.eject_max(),
        },
        queue_max: service.queue(),
        check,
        slow_start: service.slow_start(),
    }))
}

fn check(service: &config::Service) -> Result<Option<CheckSettings>, Fault> {
    let Some(check) = &service.check else {
        let mut keys = service.given().filter(|(key, _)| key.name.starts_with("check_"));
        return match keys.next() {
            Some((key, at)) => Err(Fault::new(at, key.name, "needs check, such as check = \"connect\"")),
            None => Ok(None),
        };
    };
    let mut probe = check.parsed();
    if let Some(expected) = &service.check_expect {
        let fault = |why| Fault::new(expected.at(), "check_expect", why);
        probe.expect(&expected.parsed()).map_err(fault)?;
    }
    let introduction = parsed(&service.send_proxy).map(|version| proxy::encode(version, None, None, &[]));
    Ok(Some(CheckSettings {
        probe,
        interval: service.check_interval(),
        rise: service.check_rise().get(),
        fall: service.check_fall().get(),
        introduction: introduction.unwrap_or_default(),
    }))
}

/// Returns the backends of a forwarder. A forwarder with one target has one backend.
pub(super) fn backends(service: &config::Service, faults: &mut Faults) -> Vec<BackendSettings> {
    let tables = service.backend.as_deref().unwrap_or_default();
    if let (Some(to), [_, ..]) = (&service.to, tables) {
        let why = "is given twice: write each target in a table [[service.backend]], or all of them here";
        faults.add(Fault::new(to.at(), "to", why));
    }
    let listed = service.to.iter().flat_map(|to| to.iter());
    let mut backends: Vec<(BackendSettings, Option<usize>)> = listed.map(|to| (to.parsed(), to.at())).collect();
    for table in tables {
        let Some(to) = &table.to else {
            let missing = "is missing: expected the target, such as to = \"example.com:80\"";
            faults.add(Fault::new(table.at(), "to", missing));
            continue;
        };
        let given = to.parsed();
        let backend = BackendSettings {
            weight: or(&table.weight, given.weight),
            is_backup: or(&table.backup, given.is_backup),
            max_conns: parsed(&table.max_conns).or(given.max_conns),
            ..given
        };
        backends.push((backend, to.at()));
    }
    for (index, (backend, at)) in backends.iter().enumerate() {
        faults.keep(check_ports(service, backend, *at));
        if backends[..index].iter().any(|(other, _)| other.name == backend.name) {
            let problem = format!("has {} twice: give one of them a higher weight instead", backend.name);
            faults.add(Fault::new(*at, "to", problem));
        }
        if index >= BACKENDS_MAX {
            let problem = format!("expected at most {BACKENDS_MAX} backends");
            faults.add(Fault::new(*at, "to", problem));
            break;
        }
    }
    let each_address = service.each_address();
    for (backend, at) in &mut backends {
        if each_address && matches!(backend.targets.first, Target::Name(..)) && backend.members == Members::One {
            backend.members = Members::EachAddress;
        }
        if backend.members != Members::One && service.upstream_proxy.is_some() {
            let why = "has addresses that are looked up here, and not by an upstream proxy: remove upstream_proxy";
            faults.add(Fault::new(*at, "to", why));
        }
    }
    backends.into_iter().map(|(backend, _)| backend).collect()
}

/// Checks that every port of a range to listen on has its own target, or that all have the same.
fn check_ports(service: &config::Service, backend: &BackendSettings, at: Option<usize>) -> Result<(), Fault> {
    let ports = backend.targets.count;
    let mut listen = service.listen.iter().flat_map(|listen| listen.iter());
    let Some(wrong) = listen.find(|range| ports > 1 && range.parsed().count != ports) else {
        return Ok(());
    };
    let (range, listening) = (wrong.text(), wrong.parsed().count);
    let problem = format!(
        "has {ports} ports, and the address to listen on, {range}, has {listening}: expected the same number, or one target port"
    );
    Err(Fault::new(at, "to", problem))
}
