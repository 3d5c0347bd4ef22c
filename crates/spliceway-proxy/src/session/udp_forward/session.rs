//! One session: looks up and connects to the target, and sends its answers to the client.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::Port;
use super::table::{Broken, says_nothing_receives};
use crate::access::admission::Permit;
use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::kit::alive::Alive;
use crate::kit::errno;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::datagrams::{GsoBatch, Origin, Route, send, towards, with_scratch};
use crate::reach::balance::{Failure, Tried};
use crate::session::no_backend;
use crate::session::record::Record;
use spliceway_protocol::address::{Target, canonical};

/// A session whose target has not answered ends after this part of the timeout, because its client
/// may be forged.
const UNANSWERED_PART: u32 = 4;

/// A session that has begun.
pub(super) struct Session {
    pub(super) place: Place,
    pub(super) record: Record,
    pub(super) broken: Arc<Broken>,
    /// The target, if there are no backends.
    pub(super) target: Target,
    /// The address of the target, once the socket is connected to it.
    pub(super) dialled: Option<SocketAddr>,
    /// The position of the port in its range.
    pub(super) port_index: u16,
    pub(super) stats: DatagramStats,
    pub(super) permit: Permit,
}

/// The place of a session in the table of its port. Dropping it removes the session.
pub(super) struct Place {
    port: Arc<Port>,
    client: Origin,
    is_removed: bool,
}

/// Why no socket is connected to a target.
struct NotConnected {
    outcome: Outcome,
    /// Whether the target is at fault, and not this program or its machine.
    is_of_the_backend: bool,
}

/// Tells whether another session of a client would have another target.
type Question = Pin<Box<dyn Future<Output = bool> + Send>>;

/// How an answer was passed on.
struct Passed {
    is_answered: bool,
    /// Whether more may be ready.
    more: bool,
    broken: Option<Errno>,
}

impl Session {
    pub(super) fn spawn(self, alive: Alive) {
        let session = Arc::clone(self.record.session());
        let task = tokio::spawn(self.run(alive));
        session.runs_in(task.abort_handle());
    }

    async fn run(mut self, _alive: Alive) {
        let outcome = match Box::pin(self.open()).await {
            Ok(socket) => self.forward(&socket).await,
            Err(outcome) => outcome,
        };
        let Self {
            place, record, permit, ..
        } = self;
        drop(place);
        record.end(outcome);
        drop(permit);
    }

    /// Connects to the target, or to one of the backends.
    async fn open(&mut self) -> Result<Arc<UdpSocket>, Outcome> {
        let service = Arc::clone(self.record.service());
        let Some(balancer) = &service.balancer else {
            let connected = self.connect(self.target.clone()).await;
            return connected.map_err(|failed| failed.outcome);
        };
        let (mut tried, mut failed) = (Tried::default(), None);
        let client = canonical(self.place.client.source).ip();
        loop {
            let leased = balancer.lease(Some(client.into()), &tried, service.timeouts.connect);
            let mut lease = leased.await.map_err(|why| no_backend(why, failed.take()))?;
            match self.connect(lease.target(self.port_index)).await {
                Ok(socket) => {
                    lease.retries = tried.count();
                    // Some protocols have no answers, so a session begins like a connection, and a
                    // report that nothing receives takes this back.
                    lease.begins();
                    self.record.holds(lease);
                    return Ok(socket);
                }
                Err(NotConnected {
                    outcome,
                    is_of_the_backend,
                }) => {
                    if is_of_the_backend {
                        lease.failed(Failure::Connect);
                    }
                    tried.add(lease);
                    failed = Some(outcome);
                }
            }
        }
    }

    async fn connect(&mut self, target: Target) -> Result<Arc<UdpSocket>, NotConnected> {
        let (service, started) = (Arc::clone(self.record.service()), Instant::now());
        let client = canonical(self.place.client.source);
        self.record.dials(target.clone());
        let looked_up = service.dialer.addresses(&target, Some(client.ip().into()));
        let looked_up = timeout(service.timeouts.connect, looked_up).await;
        let looked_up = looked_up.map_err(|_| not_connected(&Errno::TIMEDOUT.into()))?;
        let mut addresses = looked_up.map_err(|error| NotConnected {
            is_of_the_backend: error.is_of_the_backend(),
            outcome: error.into(),
        })?;
        // The answers would come back to the target as datagrams of a client.
        if addresses.contains(&client) {
            return Err(NotConnected {
                outcome: SessionEnd::Denied(Refusal::Loop).into(),
                is_of_the_backend: false,
            });
        }
        // Nothing shows which address works before the client's datagrams are sent. The family of
        // the client is at least known to work between the client and this machine.
        let (refused, now) = (&self.place.port.refused, Instant::now());
        addresses.sort_by_key(|address| (refused.has(*address, now), address.is_ipv4() != client.is_ipv4()));
        let mut failed = not_connected(&Errno::NETUNREACH.into());
        for address in addresses {
            match connected(address, &service) {
                Ok(socket) => {
                    self.record.connected(Some(address), started.elapsed());
                    self.record.associating(self.stats.clone());
                    self.place.open(&socket, address);
                    self.dialled = Some(address);
                    return Ok(socket);
                }
                Err(error) => failed = not_connected(&error),
            }
        }
        Err(failed)
    }

    /// Sends the target's datagrams to the client until the session ends.
    async fn forward(&mut self, socket: &UdpSocket) -> Outcome {
        let silence = self.record.service().timeouts.udp;
        let mut answered = None::<Instant>;
        let mut silent = std::pin::pin!(sleep_until(end_of_silence(Instant::now(), answered, silence)));
        let broken = Arc::clone(&self.broken);
        let mut asking = None;
        loop {
            let passed = tokio::select! {
                broken = ready(socket) => match broken {
                    None => self.pass_down(socket),
                    Some(errno) => return self.unreachable(errno, answered.is_some()),
                },
                () = self.stats.stopped() => return SessionEnd::Drained.into(),
                errno = broken.by() => return self.unreachable(errno, answered.is_some()),
                // Datagrams do not reset the timer. When it fires, the last datagram decides.
                () = &mut silent => match self.place.silent_until(answered, silence) {
                    None => return SessionEnd::Idle.into(),
                    Some(later) => {
                        silent.as_mut().reset(later);
                        if answered.is_none_or(|answered| answered.elapsed() >= silence) {
                            asking = asking.or_else(|| self.asks(socket));
                        }
                        continue;
                    }
                },
                leads_elsewhere = answer_to(&mut asking) => {
                    if leads_elsewhere {
                        return SessionEnd::Idle.into();
                    }
                    asking = None;
                    continue;
                }
            };
            if passed.is_answered {
                answered = Some(Instant::now());
            }
            if let Some(errno) = passed.broken {
                return self.unreachable(errno, answered.is_some());
            }
            if passed.more {
                yield_now().await;
            }
        }
    }

    /// Asks whether another session of the client would have another target.
    fn asks(&mut self, socket: &UdpSocket) -> Option<Question> {
        let address = canonical(socket.peer_addr().ok()?);
        let target = match self.record.lease() {
            Some(lease) => lease.target(self.port_index),
            None => self.target.clone(),
        };
        let Place { port, client, .. } = &self.place;
        let asked = Arc::clone(port).leads_elsewhere(canonical(client.source), target, address);
        Some(Box::pin(asked))
    }

    fn pass_down(&self, socket: &UdpSocket) -> Passed {
        let Place { port, client, .. } = &self.place;
        let (udp, route) = (port.udp, port.route_to(*client));
        let count = |bytes: usize, sent: Result<(), Errno>| match sent {
            Ok(()) => self.stats.down(bytes),
            Err(errno) => self.stats.dropped(errno.into()),
        };
        let flush = |gso: &mut GsoBatch| gso.flush(udp, &port.socket, count);
        let (mut is_answered, mut broken) = (false, None);
        let more = with_scratch(|batch, gso| {
            let more = batch.receive(udp, socket, |error| {
                broken = Errno::from_io_error(&error).filter(|errno| says_nothing_receives(*errno));
                broken.is_none()
            });
            batch.for_each(|_, packet| {
                is_answered = true;
                let datagram = packet.data();
                if let Err(dropped) = self.stats.charge_down(datagram.len()) {
                    return self.stats.dropped(dropped);
                }
                if !gso.push(route, datagram, flush) {
                    count(datagram.len(), send(udp, &port.socket, route, datagram));
                }
            });
            flush(gso);
            more
        });
        Passed {
            is_answered,
            more,
            broken,
        }
    }

    fn unreachable(&mut self, errno: Errno, has_answered: bool) -> Outcome {
        if let (false, Some(lease)) = (has_answered, self.record.lease()) {
            lease.failed(Failure::Connect);
        }
        if let Some(address) = self.dialled {
            self.place.port.refused.add(address, Instant::now());
        }
        let error = io::Error::from(errno);
        let end = match has_answered {
            true => SessionEnd::ResetByUpstream,
            false => SessionEnd::ConnectFailed(errno::name(&error)),
        };
        Outcome::because(end, &error)
    }
}

fn not_connected(error: &io::Error) -> NotConnected {
    let errno = Errno::from_io_error(error);
    NotConnected {
        outcome: Outcome::because(SessionEnd::ConnectFailed(errno::name(error)), error),
        is_of_the_backend: matches!(errno, Some(Errno::TIMEDOUT | Errno::NETUNREACH | Errno::HOSTUNREACH)),
    }
}

/// Waits for the answer to a question. Waits for ever if there is none. Cancel safe.
async fn answer_to(question: &mut Option<Question>) -> bool {
    match question {
        Some(question) => question.await,
        None => pending().await,
    }
}

/// Waits for datagrams or errors. Returns an error that says that nothing receives at the target.
async fn ready(socket: &UdpSocket) -> Option<Errno> {
    // The only possible error is that the runtime is shutting down.
    let ready = socket.ready(Interest::READABLE | Interest::ERROR).await.ok()?;
    if !ready.is_error() {
        return None;
    }
    let error = socket.take_error().ok().flatten();
    // Clears the readiness in tokio. The result is always this error.
    let _ = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    let errno = Errno::from_io_error(&error?)?;
    says_nothing_receives(errno).then_some(errno)
}

fn connected(address: SocketAddr, service: &crate::session::service::Service) -> io::Result<Arc<UdpSocket>> {
    let connect = || {
        let socket = towards(address.ip(), service.dialer.sockets())?;
        SockRef::from(&socket).connect(&address.into())?;
        Ok::<_, io::Error>(Arc::new(socket))
    };
    let socket = connect()?;
    if socket.local_addr()? != socket.peer_addr()? {
        return Ok(socket);
    }
    // The kernel has chosen the port of the target, where nothing receives, as the source. The
    // client would get its own datagrams. While this socket is open, another one gets another port.
    connect()
}

impl Place {
    pub(super) fn new(port: Arc<Port>, client: Origin) -> Self {
        Self {
            port,
            client,
            is_removed: false,
        }
    }

    fn open(&self, socket: &Arc<UdpSocket>, target: SocketAddr) {
        let route = Route::Connected(target);
        self.port
            .table
            .open(self.client, self.port.udp, Arc::clone(socket), route);
    }

    /// Returns the time until which the session may be silent. Returns `None` if it has been silent
    /// for too long: the client has no session then.
    fn silent_until(&mut self, answered: Option<Instant>, silence: Duration) -> Option<Instant> {
        let end_of = |heard| end_of_silence(heard, answered, silence);
        let end = self.port.table.end_of_silence(self.client, Instant::now(), end_of);
        self.is_removed = end.is_none();
        end
    }
}

/// Returns the time at which a session ends if nothing follows the last datagrams of both sides.
fn end_of_silence(heard: Instant, answered: Option<Instant>, silence: Duration) -> Instant {
    match answered {
        Some(answered) => heard.max(answered) + silence,
        None => heard + silence / UNANSWERED_PART,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_removed {
            self.port.table.remove(self.client, Dropped::Unresolved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_datagram_of_either_side_counts_once_the_target_has_answered() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let end = |heard, answered: Option<u32>| {
            let answered = answered.map(|seconds| start + seconds * second);
            (end_of_silence(start + heard * second, answered, 60 * second) - start).as_secs()
        };
        assert_eq!(end(0, None), 15);
        assert_eq!(end(10, None), 25);
        assert_eq!(end(0, Some(1)), 61);
        assert_eq!(end(30, Some(1)), 90);
        assert_eq!(end(30, Some(50)), 110);
    }
}
