//! Finds services that have the same name, or that listen on the same address.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use spliceway_protocol::address::{ListenAddress, Target};

use super::origin::{Fault, Origin};
use super::service::ServiceSettings;
use crate::access::policy::reached;
use crate::net::listener::Transport;
use crate::settings::config::{self, Listen, Value};

/// The names and addresses of the services so far. Each search takes logarithmic time, because a
/// file of 16 MiB has room for 60,000 services.
#[derive(Default)]
pub(super) struct Distinct {
    /// The location of each name.
    names: HashMap<&'static str, Option<usize>>,
    /// The ranges of ports on each host, by their first port. They do not overlap. TCP and UDP have
    /// ports of their own.
    ranges: HashMap<(Transport, Host), BTreeMap<u16, Taken>>,
}

/// What two addresses with the same port must have in common to be the same.
#[derive(PartialEq, Eq, Hash)]
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
    listen: Value<Listen>,
    /// The index of the service.
    service: usize,
}

impl Distinct {
    /// Adds a service.
    ///
    /// # Errors
    /// Returns an error if the name or an address is taken.
    pub(super) fn add(&mut self, service: &ServiceSettings, origin: &Origin) -> Result<(), Fault> {
        let at = location(&service.config);
        let index = self.names.len();
        match self.names.entry(service.name) {
            Entry::Vacant(entry) => drop(entry.insert(at)),
            Entry::Occupied(entry) => {
                let (there, name) = (origin.location(*entry.get()), service.name);
                let problem =
                    format!("the service at {there} has the name `{name}` too: give each service its own name");
                return Err(Fault::new(at, "name", problem));
            }
        }
        let all = service.config.listen.iter().flat_map(|list| list.iter());
        for listen in all {
            if let Some(other) = self.take(service.transport, listen, index) {
                let (text, there) = (other.text(), origin.location(other.at()));
                let problem = format!("the service at {there} listens on {text}: expected another address or port");
                return Err(Fault::new(listen.at(), "listen", problem));
            }
        }
        Ok(())
    }

    /// Takes a range of ports. Returns a value that has one of these ports already.
    fn take(&mut self, transport: Transport, listen: &Value<Listen>, service: usize) -> Option<&Value<Listen>> {
        let range = listen.parsed();
        let (host, first) = match range.first {
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
            return None;
        }
        let last = first.saturating_add(range.count.saturating_sub(1));
        let ranges = self.ranges.entry((transport, host)).or_default();
        // The ranges do not overlap, so no range before this one ends later.
        let before = ranges.range(..=last).next_back();
        if let Some((&at, _)) = before.filter(|(_, taken)| taken.last >= first) {
            return ranges.get(&at).map(|taken| &taken.listen);
        }
        let listen = listen.clone();
        ranges.insert(first, Taken { last, listen, service });
        None
    }

    /// Returns the index of the service that a connection to `target` reaches, as far as the
    /// addresses of services show it.
    pub(super) fn service_at(&self, target: &Target) -> Option<usize> {
        let ip = match target {
            Target::Unix(path) => return self.at(Host::Unix(path.clone()), 1),
            Target::Name(name, _) if name.eq_ignore_ascii_case("localhost") => Ipv4Addr::LOCALHOST.into(),
            Target::Name(name, port) => return self.at(Host::Name(name.clone()), *port),
            Target::Ip(address) => reached(address.ip()),
        };
        let port = target.port()?;
        let any: IpAddr = match ip {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = self.at(Host::Ip(SocketAddr::new(ip, 0)), port);
        let any = || self.at(Host::Ip(SocketAddr::new(any, 0)), port);
        let every = || self.at(Host::Every, port);
        // Other addresses may be those of another machine.
        own.or_else(|| ip.is_loopback().then(|| any().or_else(every)).flatten())
    }

    fn at(&self, host: Host, port: u16) -> Option<usize> {
        let ranges = self.ranges.get(&(Transport::Streams, host))?;
        let (_, taken) = ranges.range(..=port).next_back()?;
        (taken.last >= port).then_some(taken.service)
    }
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

    /// Compares with the definition, over many pairs of ranges.
    #[test]
    fn an_address_is_taken_exactly_if_it_overlaps_one_before() {
        let hosts = ["127.0.0.1:", "[::1]:", ":", "a.example:", "unix:/run/a", "fd:web"];
        let mut texts = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            for first in [0, 1, 2, 5, 6, 9, 65_534, 65_535] {
                for count in [1, 2, 4] {
                    let last = (first + count - 1).min(65_535);
                    texts.push(match (index, first == last || first == 0) {
                        (4.., _) => (*host).to_owned(),
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
                let overlaps = taken.iter().any(|one| one.parsed().overlaps(&value.parsed()));
                assert_eq!(
                    distinct.take(Transport::Streams, &value, 0).is_some(),
                    overlaps,
                    "{text}"
                );
                if !overlaps {
                    taken.push(value);
                }
            }
        }
    }
}
