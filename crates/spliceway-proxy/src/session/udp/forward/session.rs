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

use super::client_side::ClientSide;
use super::table::{Broken, says_nothing_receives};
use crate::access::admission::Permit;
use crate::access::datagram_counts::{DatagramStats, Dropped};
use crate::kit::alive::Alive;
use crate::kit::errno;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::datagrams::{GsoBatch, Origin, Route, send, towards, with_scratch};
use crate::reach::balance::{Failure, NotConnected, Tries};
use crate::session::record::Record;
use crate::session::service::Service;
use spliceway_protocol::address::{Target, canonical};

/// A session whose target has not answered ends after this part of the timeout, because its client
/// may be forged.
const UNANSWERED_PART: u32 = 4;

/// A session that has begun.
pub(super) struct Session {
    pub(super) seat: Seat,
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

/// The seat of a session in the table of its port. Dropping it removes the session.
pub(super) struct Seat {
    clients: Arc<ClientSide>,
    client: Origin,
    is_removed: bool,
}

/// A socket that is connected to a target.
struct Connected {
    socket: Arc<UdpSocket>,
    address: SocketAddr,
    /// The time that it has taken.
    time: Duration,
}

/// Tells whether another session of the client would have another target.
type TargetCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

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
        let outcome = match Box::pin(self.connect()).await {
            Ok(socket) => self.forward(&socket).await,
            Err(outcome) => outcome,
        };
        let Self {
            seat, record, permit, ..
        } = self;
        drop(seat);
        record.end(outcome);
        drop(permit);
    }

    /// Connects to the target, or to one of the backends.
    async fn connect(&mut self) -> Result<Arc<UdpSocket>, Outcome> {
        let service = Arc::clone(self.record.service());
        let (record, seat) = (&mut self.record, &self.seat);
        let mut connect = |target: Target| {
            record.dials(target.clone());
            connect_to(target, seat, &service)
        };
        let connected = match &service.balancer {
            None => connect(self.target.clone()).await.map_err(|failed| failed.outcome)?,
            Some(balancer) => {
                let tries = Tries {
                    client: Some(canonical(seat.client.source).ip().into()),
                    port_index: self.port_index,
                    max_wait: service.timeouts.connect,
                    // Connecting sends nothing. Some protocols have no answers, so a session begins
                    // at once, and a report that nothing receives takes this back.
                    slow: Duration::MAX,
                };
                let (connected, lease) = balancer.connect(tries, connect).await?;
                self.record.holds(lease);
                connected
            }
        };
        let Connected { socket, address, time } = connected;
        self.record.connected(Some(address), time);
        self.record.associating(self.stats.clone());
        self.seat.connected(&socket, address);
        self.dialled = Some(address);
        Ok(socket)
    }

    /// Sends the target's datagrams to the client until the session ends.
    async fn forward(&mut self, socket: &UdpSocket) -> Outcome {
        let silence = self.record.service().timeouts.udp;
        let mut answered = None::<Instant>;
        let mut silent = std::pin::pin!(sleep_until(end_of_silence(Instant::now(), answered, silence)));
        let broken = Arc::clone(&self.broken);
        let mut target_check = None;
        loop {
            let passed = tokio::select! {
                broken = ready(socket) => match broken {
                    None => self.pass_down(socket),
                    Some(errno) => return self.unreachable(errno, answered.is_some()),
                },
                () = self.stats.stopped() => return SessionEnd::Drained.into(),
                errno = broken.by() => return self.unreachable(errno, answered.is_some()),
                // Datagrams do not reset the timer. When it fires, the last datagram decides.
                () = &mut silent => match self.seat.silent_until(answered, silence) {
                    None => return SessionEnd::Idle.into(),
                    Some(later) => {
                        silent.as_mut().reset(later);
                        if answered.is_none_or(|answered| answered.elapsed() >= silence) {
                            target_check = target_check.or_else(|| self.check_target(socket));
                        }
                        continue;
                    }
                },
                has_other_target = checked(&mut target_check) => {
                    if has_other_target {
                        return SessionEnd::Idle.into();
                    }
                    target_check = None;
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
    fn check_target(&mut self, socket: &UdpSocket) -> Option<TargetCheck> {
        let address = canonical(socket.peer_addr().ok()?);
        let target = match self.record.lease() {
            Some(lease) => lease.target(self.port_index),
            None => self.target.clone(),
        };
        let Seat { clients, client, .. } = &self.seat;
        let check = Arc::clone(clients).has_other_target(canonical(client.source), target, address);
        Some(Box::pin(check))
    }

    fn pass_down(&self, socket: &UdpSocket) -> Passed {
        let Seat { clients, client, .. } = &self.seat;
        let (udp, route) = (clients.udp, clients.route_to(*client));
        let count = |bytes: usize, sent: Result<(), Errno>| match sent {
            Ok(()) => self.stats.down(bytes),
            Err(errno) => self.stats.dropped(errno.into()),
        };
        let flush = |gso: &mut GsoBatch| gso.flush(udp, &clients.socket, count);
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
                    count(datagram.len(), send(udp, &clients.socket, route, datagram));
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
            self.seat.clients.refused.add(address, Instant::now());
        }
        let error = io::Error::from(errno);
        let end = if has_answered {
            SessionEnd::ResetByUpstream
        } else {
            SessionEnd::ConnectFailed(errno::name(&error))
        };
        Outcome::because(end, &error)
    }
}

/// Looks up the target, and connects a socket to the first of its addresses that has a route.
async fn connect_to(target: Target, seat: &Seat, service: &Service) -> Result<Connected, NotConnected> {
    let (started, client) = (Instant::now(), canonical(seat.client.source));
    let looked_up = service.dialer.addresses(&target, Some(client.ip().into()));
    let looked_up = timeout(service.timeouts.connect, looked_up).await;
    let mut addresses = looked_up.map_err(|_| not_connected(&Errno::TIMEDOUT.into()))??;
    // The answers would come back to the target as datagrams of a client.
    if addresses.contains(&client) {
        return Err(NotConnected {
            outcome: SessionEnd::Denied(Refusal::Loop).into(),
            is_of_the_backend: false,
        });
    }
    // Nothing shows which address works before the client's datagrams are sent. The family of the
    // client is at least known to work between the client and this machine.
    let (refused, now) = (&seat.clients.refused, Instant::now());
    addresses.sort_by_key(|address| (refused.has(*address, now), address.is_ipv4() != client.is_ipv4()));
    let mut failed = not_connected(&Errno::NETUNREACH.into());
    for address in addresses {
        match connected(address, service) {
            Ok(socket) => {
                let time = started.elapsed();
                return Ok(Connected { socket, address, time });
            }
            Err(error) => failed = not_connected(&error),
        }
    }
    Err(failed)
}

fn not_connected(error: &io::Error) -> NotConnected {
    let errno = Errno::from_io_error(error);
    NotConnected {
        outcome: Outcome::because(SessionEnd::ConnectFailed(errno::name(error)), error),
        is_of_the_backend: matches!(errno, Some(Errno::TIMEDOUT | Errno::NETUNREACH | Errno::HOSTUNREACH)),
    }
}

/// Waits for the result of a check. Waits for ever if there is none. Cancel safe.
async fn checked(check: &mut Option<TargetCheck>) -> bool {
    match check {
        Some(check) => check.await,
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

fn connected(address: SocketAddr, service: &Service) -> io::Result<Arc<UdpSocket>> {
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

impl Seat {
    pub(super) fn new(clients: Arc<ClientSide>, client: Origin) -> Self {
        Self {
            clients,
            client,
            is_removed: false,
        }
    }

    fn connected(&self, socket: &Arc<UdpSocket>, target: SocketAddr) {
        let route = Route::Connected(target);
        self.clients.table.connected(self.client, Arc::clone(socket), route);
    }

    /// Returns the time until which the session may be silent. Returns `None` if it has been silent
    /// for too long: the client has no session then.
    fn silent_until(&mut self, answered: Option<Instant>, silence: Duration) -> Option<Instant> {
        let end_of = |last_datagram| end_of_silence(last_datagram, answered, silence);
        let end = self.clients.table.end_of_silence(self.client, Instant::now(), end_of);
        self.is_removed = end.is_none();
        end
    }
}

/// Returns the time at which a session ends if nothing follows the last datagrams of both sides.
fn end_of_silence(last_datagram: Instant, answered: Option<Instant>, silence: Duration) -> Instant {
    match answered {
        Some(answered) => last_datagram.max(answered) + silence,
        None => last_datagram + silence / UNANSWERED_PART,
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.is_removed {
            self.clients.table.remove(self.client, Dropped::Unresolved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_datagram_of_either_side_counts_once_the_target_has_answered() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let end = |last_datagram, answered: Option<u32>| {
            let answered = answered.map(|seconds| start + seconds * second);
            (end_of_silence(start + last_datagram * second, answered, 60 * second) - start).as_secs()
        };
        assert_eq!(end(0, None), 15);
        assert_eq!(end(10, None), 25);
        assert_eq!(end(0, Some(1)), 61);
        assert_eq!(end(30, Some(1)), 90);
        assert_eq!(end(30, Some(50)), 110);
    }
}
