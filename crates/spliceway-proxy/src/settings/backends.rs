//! Checks the backends of a forwarder, and how clients are spread over them.

use std::num::NonZeroU32;
use std::time::Duration;

use super::origin::Fault;
use crate::reach::balance::{
    BACKENDS_MAX, BackendSettings, BalanceSettings, CheckSettings, EjectSettings, Members, Policy,
};
use crate::settings::config::{self, or, parsed};
use spliceway_protocol::address::Target;
use spliceway_protocol::proxy;

/// Sessions differ in length, so equal numbers of new sessions are not equal load. Backends with
/// equal numbers of sessions take turns, so short sessions are spread as by `round-robin`.
const BALANCE: Policy = Policy::LeastConn;
/// The clients that wait for a backend with a limit on sessions.
const QUEUE: usize = 1024;
/// One failure may be an accident, and each one costs only an attempt.
const EJECT_AFTER: u32 = 3;
/// A backend that restarts is soon back, and one that does not doubles the time.
const EJECT_TIME: Duration = Duration::from_secs(5);
/// One of two backends may be ejected, two of three, and three of four.
const EJECT_MAX: u32 = 75;
/// HAProxy's defaults.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const CHECK_RISE: NonZeroU32 = NonZeroU32::new(2).expect("not 0");
const CHECK_FALL: NonZeroU32 = NonZeroU32::new(3).expect("not 0");
/// With `least-conn`, a backend without sessions would otherwise get all new clients.
const SLOW_START: Duration = Duration::from_secs(10);

/// Returns how clients are spread over backends. A forwarder with one target has nothing to spread.
pub(super) fn balance(
    service: &config::Service,
    backends: Vec<BackendSettings>,
) -> Result<Option<BalanceSettings>, Fault> {
    let check = check(service)?;
    let is_special = |backend: &BackendSettings| backend.max_conns.is_some() || backend.members != Members::One;
    let is_needed = backends.len() > 1 || check.is_some() || backends.iter().any(is_special);
    Ok(is_needed.then(|| BalanceSettings {
        policy: or(&service.balance, BALANCE),
        backends,
        eject: EjectSettings {
            after: NonZeroU32::new(or(&service.eject_after, EJECT_AFTER)),
            time: or(&service.eject_time, EJECT_TIME),
            max_percent: or(&service.eject_max, EJECT_MAX),
        },
        queue_max: or(&service.queue, QUEUE),
        check,
        slow_start: or(&service.slow_start, SLOW_START),
    }))
}

fn check(service: &config::Service) -> Result<Option<CheckSettings>, Fault> {
    let Some(check) = &service.check else {
        let keys = [
            service.check_expect.as_ref().map(|value| ("check_expect", value.at())),
            service
                .check_interval
                .as_ref()
                .map(|value| ("check_interval", value.at())),
            service.check_rise.as_ref().map(|value| ("check_rise", value.at())),
            service.check_fall.as_ref().map(|value| ("check_fall", value.at())),
        ];
        return match keys.into_iter().flatten().next() {
            Some((key, at)) => Err(Fault::new(at, key, "needs check, such as check = \"connect\"")),
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
        interval: or(&service.check_interval, CHECK_INTERVAL),
        rise: or(&service.check_rise, CHECK_RISE).get(),
        fall: or(&service.check_fall, CHECK_FALL).get(),
        introduction: introduction.unwrap_or_default(),
    }))
}

/// Returns the backends of a forwarder. A forwarder with one target has one backend.
pub(super) fn backends(service: &config::Service) -> Result<Vec<BackendSettings>, Fault> {
    let tables = service.backend.as_deref().unwrap_or_default();
    if let (Some(to), [_, ..]) = (&service.to, tables) {
        let why = "is given twice: write each target in a table [[service.backend]], or all of them here";
        return Err(Fault::new(to.at(), "to", why));
    }
    let listed = service.to.iter().flat_map(|to| to.iter());
    let mut backends: Vec<(BackendSettings, Option<usize>)> = listed.map(|to| (to.parsed(), to.at())).collect();
    for table in tables {
        let missing = "is missing: expected the target, such as to = \"example.com:80\"";
        let to = table.to.as_ref().ok_or_else(|| Fault::new(table.at(), "to", missing))?;
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
        check_ports(service, backend, *at)?;
        if backends[..index].iter().any(|(other, _)| other.name == backend.name) {
            let problem = format!("has {} twice: give one of them a higher weight instead", backend.name);
            return Err(Fault::new(*at, "to", problem));
        }
        if index >= BACKENDS_MAX {
            return Err(Fault::new(
                *at,
                "to",
                format!("expected at most {BACKENDS_MAX} backends"),
            ));
        }
    }
    let each_address = or(&service.each_address, false);
    for (backend, at) in &mut backends {
        if each_address && matches!(backend.targets.first, Target::Name(..)) && backend.members == Members::One {
            backend.members = Members::EachAddress;
        }
        if backend.members != Members::One && service.upstream_proxy.is_some() {
            let why = "has addresses that are looked up here, and not by an upstream proxy: remove upstream_proxy";
            return Err(Fault::new(*at, "to", why));
        }
    }
    Ok(backends.into_iter().map(|(backend, _)| backend).collect())
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
