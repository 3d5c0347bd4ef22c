//! Finds services that have the same name, or that listen on the same address.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use spliceway_protocol::address::{ListenAddress, ListenRange, Target};

use super::faults::{Fault, Faults};
use super::origin::Origin;
use super::service::ServiceSettings;
use crate::access::policy::reached;
use crate::net::listener::Transport;
use crate::settings::config::{self, Value, Word};

/// The names and addresses of the services so far. Each search takes logarithmic time, because a
/// file of 16 MiB has room for 60,000 services.
#[derive(Default)]
pub(super) struct Distinct {
    /// The location of each name.
    names: HashMap<Arc<str>, Option<usize>>,
    /// The ranges of ports on each host, by their first port. They do not overlap. TCP and UDP have
    /// ports of their own.
    ranges: HashMap<(Transport, Host), BTreeMap<u16, Taken>>,
}

/// What two addresses with the same port must have in common to be the same.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Host {
    Every,
    /// An address with port 0.
    Ip(SocketAddr),
    Name(Box<str>),
    Unix(Box<Path>),
    Inherited(Box<str>),
}

struct Taken {
    last: u16,
    text: Box<str>,
    at: Option<usize>,
    /// The index of the service.
    service: usize,
}

/// The most hosts among which an address of all hosts is compared with each.
const HOSTS_MAX: usize = 1000;

impl Host {
    fn is_every_v4(&self) -> bool {
        matches!(self, Self::Every) || matches!(self, Self::Ip(ip) if ip.is_ipv4() && ip.ip().is_unspecified())
    }

    fn is_every_v6(&self) -> bool {
        matches!(self, Self::Every) || matches!(self, Self::Ip(ip) if ip.is_ipv6() && ip.ip().is_unspecified())
    }

    /// Returns whether the kernel gives the same port of both to one listener only.
    fn contradicts(&self, other: &Self) -> bool {
        let has_v4 = |host: &Self| matches!(host, Self::Every) || matches!(host, Self::Ip(ip) if ip.is_ipv4());
        let has_v6 = |host: &Self| matches!(host, Self::Every) || matches!(host, Self::Ip(ip) if ip.is_ipv6());
        let v4 = has_v4(self) && has_v4(other) && (self.is_every_v4() || other.is_every_v4());
        let v6 = has_v6(self) && has_v6(other) && (self.is_every_v6() || other.is_every_v6());
        self == other || v4 || v6
    }
}

/// Returns the range in which one of these ports is. The ranges do not overlap, so no range before
/// the last one ends later.
fn overlapping(ranges: &BTreeMap<u16, Taken>, first: u16, last: u16) -> Option<&Taken> {
    let (_, taken) = ranges.range(..=last).next_back()?;
    (taken.last >= first).then_some(taken)
}

impl Distinct {
    /// Adds the service of this index, and a fault if its name or an address is taken.
    pub(super) fn add(&mut self, index: usize, service: &ServiceSettings, origin: &Origin, faults: &mut Faults) {
        let at = location(&service.config);
        match self.names.entry(Arc::clone(&service.name)) {
            Entry::Vacant(entry) => drop(entry.insert(at)),
            Entry::Occupied(entry) => {
                let (there, name) = (origin.location(*entry.get()), &service.name);
                let problem =
                    format!("the service at {there} has the name `{name}` too: give each service its own name");
                faults.add(Fault::new(at, "name", problem));
            }
        }
        let all = service.config.listen.iter().flat_map(|list| list.iter());
        for listen in all {
            let taken = (listen.text(), listen.at());
            faults.keep(self.take(service.transport, &listen.parsed(), taken, index, origin));
        }
        for listen in service.config.dns_listen.iter().flat_map(|list| list.iter()) {
            for transport in [Transport::Datagrams, Transport::Streams] {
                let taken = (listen.text(), listen.at());
                let found = self.take(transport, &listen.parsed().into(), taken, index, origin);
                if faults.keep(found.map_err(|fault| fault.of_key("dns_listen"))).is_none() {
                    break;
                }
            }
        }
    }

    /// Adds an address that no target leads to, such as that of the metrics.
    pub(super) fn add_other(
        &mut self,
        key: &'static str,
        address: &Option<Value<impl Word<Parsed = ListenAddress>>>,
        origin: &Origin,
        faults: &mut Faults,
    ) {
        if let Some(address) = address {
            let taken = (address.text(), address.at());
            let range = address.parsed().into();
            let found = self.take(Transport::Streams, &range, taken, usize::MAX, origin);
            faults.keep(found.map_err(|fault| fault.of_key(key)));
        }
    }

    /// Takes a range of ports.
    ///
    /// # Errors
    /// Returns a fault if another address has one of these ports already.
    fn take(
        &mut self,
        transport: Transport,
        range: &ListenRange,
        (text, at): (&str, Option<usize>),
        service: usize,
        origin: &Origin,
    ) -> Result<(), Fault> {
        let (host, first) = match range.first.clone() {
            ListenAddress::Every(port) => (Host::Every, port),
            ListenAddress::Ip(mut address) => {
                let port = address.port();
                address.set_port(0);
                (Host::Ip(address), port)
            }
            ListenAddress::Name(name, port) => (Host::Name(name), port),
            // These have no port, and so each is a range of its own.
            ListenAddress::Unix { path, .. } => (Host::Unix(path), 1),
            ListenAddress::Inherited(name) => (Host::Inherited(name), 1),
        };
        if first == 0 {
            // The kernel chooses a free port.
            return Ok(());
        }
        let last = first.saturating_add(range.count.saturating_sub(1));
        let own = self.ranges.get(&(transport, host.clone()));
        let own = own.and_then(|ranges| overlapping(ranges, first, last));
        let others = || {
            // Few services have the addresses of all hosts.
            let is_every = host.is_every_v4() || host.is_every_v6();
            let all = self.ranges.iter().take(if is_every { HOSTS_MAX } else { 0 });
            let mut all = all.filter(|((used, other), _)| *used == transport && host.contradicts(other));
            all.find_map(|(_, ranges)| overlapping(ranges, first, last))
        };
        let every = || {
            let v4 = Host::Ip(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
            let v6 = Host::Ip(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)));
            let mut all = [Host::Every, v4, v6]
                .into_iter()
                .filter(|every| host.contradicts(every));
            all.find_map(|every| overlapping(self.ranges.get(&(transport, every))?, first, last))
        };
        if let Some(Taken { text, at: there, .. }) = own.or_else(every).or_else(others) {
            let there = origin.location(*there);
            let problem = format!("the service at {there} listens on {text}: expected another address or port");
            return Err(Fault::new(at, "listen", problem));
        }
        let text = text.into();
        let taken = Taken {
            last,
            text,
            at,
            service,
        };
        self.ranges.entry((transport, host)).or_default().insert(first, taken);
        Ok(())
    }

    /// Returns the index of the service that a connection to `target` reaches, as far as the
    /// addresses of services show it.
    pub(super) fn service_at(&self, transport: Transport, target: &Target) -> Option<usize> {
        let at = |host, port| self.at(transport, host, port);
        let ip = match target {
            Target::Unix(path) => return at(Host::Unix(path.clone()), 1),
            Target::Name(name, _) if name.eq_ignore_ascii_case("localhost") => Ipv4Addr::LOCALHOST.into(),
            Target::Name(name, port) => return at(Host::Name(name.clone()), *port),
            Target::Ip(address) => reached(address.ip()),
        };
        let port = target.port()?;
        let any: IpAddr = match ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = at(Host::Ip(SocketAddr::new(ip, 0)), port);
        let any = || at(Host::Ip(SocketAddr::new(any, 0)), port).or_else(|| at(Host::Every, port));
        own.or_else(|| any().filter(|_| ip.is_loopback() || is_of_this_machine(ip)))
    }

    fn at(&self, transport: Transport, host: Host, port: u16) -> Option<usize> {
        let ranges = self.ranges.get(&(transport, host))?;
        overlapping(ranges, port, port).map(|taken| taken.service)
    }
}

/// Returns whether the kernel would use this address as the source of packets to it. Sends nothing.
fn is_of_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == ip)
}

/// Returns the location of the name of a service, or of what names it.
fn location(service: &config::Service) -> Option<usize> {
    match (&service.name, &service.kind) {
        (Some(name), _) => name.at(),
        (None, kind) => kind.as_ref().and_then(Value::at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::Listen;

    /// Returns whether an address of one range is in the other one. `:PORT` has every address.
    fn overlap(one: &Value<Listen>, other: &Value<Listen>) -> bool {
        let hosts = |value: &Value<Listen>| -> Vec<ListenRange> {
            let (text, range) = (value.text(), value.parsed());
            let every: &[&str] = match text.rsplit_once(':').unwrap_or_default().0 {
                "" => &["127.0.0.1", "[::1]", "0.0.0.0", "[::]"],
                "0.0.0.0" => &["127.0.0.1", "0.0.0.0"],
                "[::]" => &["[::1]", "[::]"],
                _ => return vec![range],
            };
            let ports = text.rsplit_once(':').unwrap().1;
            every
                .iter()
                .map(|host| format!("{host}:{ports}").parse().unwrap())
                .collect()
        };
        let others = hosts(other);
        hosts(one)
            .iter()
            .any(|one| others.iter().any(|other| one.overlaps(other)))
    }

    /// Compares with the definition, over many pairs of ranges.
    #[test]
    fn an_address_is_taken_exactly_if_it_overlaps_one_before() {
        let hosts = [
            "127.0.0.1:",
            "[::1]:",
            ":",
            "0.0.0.0:",
            "[::]:",
            "a.example:",
            "unix:/run/a",
            "fd:web",
        ];
        let mut texts = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            for first in [0, 1, 2, 5, 6, 9, 65_534, 65_535] {
                for count in [1, 2, 4] {
                    let last = (first + count - 1).min(65_535);
                    texts.push(match (index, first == last || first == 0) {
                        (6.., _) => (*host).to_owned(),
                        (_, true) => format!("{host}{first}"),
                        (_, false) => format!("{host}{first}-{last}"),
                    });
                }
            }
        }
        for step in [1, 5, 7, 11, 13] {
            let (mut distinct, mut taken) = (Distinct::default(), Vec::<Value<Listen>>::new());
            for text in texts.iter().cycle().step_by(step).take(texts.len()) {
                let value: Value<Listen> = text.parse().unwrap();
                let overlaps = taken.iter().any(|one| overlap(one, &value));
                let found = distinct.take(
                    Transport::Streams,
                    &value.parsed(),
                    (text, None),
                    0,
                    &Origin::CommandLine,
                );
                assert_eq!(found.is_err(), overlaps, "{text}");
                if !overlaps {
                    taken.push(value);
                }
            }
        }
    }
}
