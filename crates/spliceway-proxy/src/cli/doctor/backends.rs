//! Whether each target that the operator has named answers.

use std::sync::Arc;

use spliceway_lab::doctor::{Mark, Note};
use spliceway_protocol::Failure;
use spliceway_protocol::address::{ListenAddress, Target};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::policy::{OwnListeners, TargetPolicy};
use crate::net::listener::Transport;
use crate::reach::balance::Members;
use crate::reach::dial::{Destination, DialError, DialRequest, DialSettings, Dialer, TlsRequest};
use crate::settings::{Kind, ServiceSettings, Settings};

const CHECK: &str = "backend";
/// The most connections that are tried at the same time, each with a few descriptors.
const AT_ONCE: usize = 64;
/// The descriptors for lookups and parallel attempts of one service.
const TRANSIENT: usize = 128;

/// What is tried.
struct Wanted {
    service: usize,
    to: Destination,
    members: Members,
    /// The number of ports for which this one stands.
    ports: u16,
    dialer: Dialer,
    is_for_datagrams: bool,
}

/// Connects to the targets of all services, and to their first upstream proxies. The first port of
/// a range stands for all of them.
pub(super) async fn notes(settings: &Settings) -> Vec<Note> {
    let (mut notes, mut tasks) = (Vec::new(), JoinSet::new());
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut count = 0;
    for (index, service) in settings.services.iter().enumerate() {
        match wanted(index, service) {
            Err(error) => notes.push((
                index,
                usize::MAX,
                Note::new(Mark::Fault, CHECK, &*service.name, error.to_string()),
            )),
            Ok(all) => {
                for wanted in all {
                    count += 1;
                    let title = format!("{} to {}", service.name, wanted.to);
                    if is_own(settings, &wanted.to.target) {
                        notes.push((
                            index,
                            count,
                            Note::new(Mark::Ok, CHECK, &title, "a service of this configuration"),
                        ));
                        continue;
                    }
                    let (permits, order) = (Arc::clone(&permits), count);
                    tasks.spawn(async move {
                        let _permit = permits.acquire().await;
                        (wanted.service, order, titled(title, wanted.try_out().await))
                    });
                }
            }
        }
    }
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(done) => notes.push(done),
            Err(error) => notes.push((
                usize::MAX,
                0,
                Note::new(Mark::Fault, CHECK, "a check", error.to_string()),
            )),
        }
    }
    notes.sort_by_key(|(service, order, _)| (*service, *order));
    soften(&mut notes, &settings.services);
    notes.into_iter().map(|(.., note)| note).collect()
}

/// A backend that does not answer is no fault if clients get another one.
fn soften(notes: &mut [(usize, usize, Note)], services: &[Arc<ServiceSettings>]) {
    for of_service in notes.chunk_by_mut(|one, next| one.0 == next.0) {
        let is_balanced = services
            .get(of_service[0].0)
            .is_some_and(|service| service.balance.is_some());
        if is_balanced && of_service.iter().any(|(.., note)| note.mark == Mark::Ok) {
            for (.., note) in of_service.iter_mut().filter(|(.., note)| note.mark == Mark::Fault) {
                note.mark = Mark::Warning;
            }
        }
    }
}

fn titled(title: String, note: Note) -> Note {
    Note { title, ..note }
}

/// Returns the targets of a service.
fn wanted(index: usize, service: &ServiceSettings) -> std::io::Result<Vec<Wanted>> {
    let policy = TargetPolicy::of_access(&service.targets, true, OwnListeners::default());
    let dialer = Dialer::new(service.dial.clone(), policy.clone(), TRANSIENT)?;
    let wanted = |to: Destination, members, ports| Wanted {
        service: index,
        to,
        members,
        ports,
        dialer: dialer.clone().with_tls(service.originator.clone()),
        is_for_datagrams: service.transport == Transport::Datagrams,
    };
    let one = |to: Destination| wanted(to, Members::One, 1);
    Ok(match (&service.kind, &service.balance) {
        (_, Some(balance)) => {
            let backends = balance.backends.iter().map(|backend| {
                let (target, tls) = (backend.targets.nth(0), backend.tls.clone());
                wanted(Destination { target, tls }, backend.members, backend.targets.count)
            });
            backends.collect()
        }
        (Kind::Forward(to), None) => vec![wanted(to.nth(0).into(), Members::One, to.count)],
        (Kind::Sni(routes), None) => {
            let others = [routes.default_target(), routes.silent_target()].into_iter().flatten();
            let mut targets: Vec<_> = routes.targets().chain(others).cloned().collect();
            targets.sort_by_key(ToString::to_string);
            targets.dedup();
            targets.into_iter().map(one).collect()
        }
        // The clients of a proxy name the targets, and the operator the first proxy of a chain.
        _ => match service.dial.upstreams.first() {
            None => Vec::new(),
            Some(proxy) => {
                let settings = DialSettings {
                    upstreams: Vec::new(),
                    ..service.dial.clone()
                };
                vec![Wanted {
                    dialer: Dialer::new(settings, policy, TRANSIENT)?,
                    ..one(proxy.address().clone().into())
                }]
            }
        },
    })
}

/// Returns whether a target is an address that this configuration listens on. It may not run yet.
fn is_own(settings: &Settings, target: &Target) -> bool {
    let streams = settings
        .services
        .iter()
        .filter(|service| service.transport == Transport::Streams);
    let mut ranges = streams.flat_map(|service| &service.listen);
    ranges.any(|range| match (&range.first, target) {
        (ListenAddress::Unix { path, .. }, Target::Unix(to)) => path == to,
        (ListenAddress::Every(first), Target::Ip(to)) if to.ip().is_loopback() => {
            (*first..=first.saturating_add(range.count - 1)).contains(&to.port())
        }
        (ListenAddress::Ip(_), Target::Ip(to)) => range.iter().any(|address| address == ListenAddress::Ip(*to)),
        _ => false,
    })
}

impl Wanted {
    async fn try_out(&self) -> Note {
        let connected = match (&self.to.target, self.members) {
            (Target::Name(name, port), Members::EachAddress | Members::Srv) => {
                match self.dialer.members_now(name, *port, self.members == Members::Srv).await {
                    Ok(addresses) => return self.each(addresses).await,
                    Err(error) => Err(error.into()),
                }
            }
            (target, _) if self.is_for_datagrams => {
                let found = self.dialer.for_datagrams().addresses(target, None).await;
                match found {
                    Ok(_) => return Note::new(Mark::Ok, CHECK, "", "has an address; datagrams need no answer"),
                    Err(error) => Err(error),
                }
            }
            (target, _) => self.connect(target).await,
        };
        match connected {
            Ok(()) if self.ports > 1 => Note::new(
                Mark::Ok,
                CHECK,
                "",
                format!("answers (the first of {} ports)", self.ports),
            ),
            Ok(()) => Note::new(Mark::Ok, CHECK, "", "answers"),
            Err(error) => failed(&error),
        }
    }

    /// Tries every address of a name.
    async fn each(&self, addresses: Vec<std::net::SocketAddr>) -> Note {
        let (all, mut first) = (addresses.len(), None);
        let mut failing = 0;
        for address in addresses {
            if let Err(error) = self.connect(&Target::Ip(address)).await {
                failing += 1;
                first.get_or_insert(error);
            }
        }
        match first {
            None => Note::new(Mark::Ok, CHECK, "", format!("answers at {all} of {all} addresses")),
            Some(error) => {
                let note = failed(&error);
                let mark = if failing == all { Mark::Fault } else { Mark::Warning };
                let text = format!("{failing} of {all} addresses do not answer: {}", note.text);
                Note { mark, text, ..note }
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<(), DialError> {
        let request = DialRequest {
            tls: self.to.tls.as_ref().map(|name| TlsRequest {
                name,
                introduction: &[],
                protocol: None,
                is_check: true,
            }),
            ..DialRequest::default()
        };
        self.dialer.dial_for(target, request).await.map(drop)
    }
}

fn failed(error: &DialError) -> Note {
    let note = Note::new(Mark::Fault, CHECK, "", error.to_string());
    match error {
        DialError::Unresolved(_) => note.advise("correct the name, or choose another resolver (`dns`)"),
        DialError::Tls(..) => note,
        error => match error.failure() {
            Failure::Refused => note.advise("start the server, or correct the address"),
            Failure::TimedOut => note.advise("correct the address, or the firewall that drops the packets"),
            Failure::NetworkUnreachable | Failure::HostUnreachable => {
                note.advise("correct the address, or the route to it (`ip route get`)")
            }
            _ => note,
        },
    }
}
