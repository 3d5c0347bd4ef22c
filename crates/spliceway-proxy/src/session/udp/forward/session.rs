//! One session: looks up and connects to the target, and sends its answers to the client.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::{Interest, Ready};
use tokio::net::UdpSocket;
use tokio::sync::SetOnce;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::client_side::ClientSide;
use super::table::says_nothing_receives;
use crate::access::datagram_counts::DatagramStats;
use crate::kit::alive::Alive;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::datagrams::{GsoBatch, Origin, Route, send, towards, with_scratch};
use crate::reach::balance::{Failure, NotConnected, Tries};
use crate::reach::dial::Destination;
use crate::session::record::Record;
use crate::session::service::Service;
use spliceway_protocol::address::{Target, canonical};

/// A session whose target has not answered ends after this part of the timeout, because its client
/// may be forged.
const UNANSWERED_PART: u32 = 4;

/// A session that has begun.
pub(super) struct ForwardSession {
    pub(super) entry: FlowEntry,
    pub(super) record: Record,
    pub(super) broken: Arc<SetOnce<Errno>>,
    /// The target, if there are no backends.
    pub(super) target: Target,
    /// The time of the target's last datagram.
    pub(super) answered: Option<Instant>,
    /// The position of the port in its range.
    pub(super) port_index: u16,
    pub(super) stats: DatagramStats,
}

/// The entry of a session in the table of its port. Dropping it removes the session.
pub(super) struct FlowEntry {
    clients: Arc<ClientSide>,
    client: Origin,
    is_removed: bool,
}

/// A socket that is connected to a target.
struct ConnectedFlow {
    socket: Arc<UdpSocket>,
    address: SocketAddr,
    /// The time that it has taken.
    time: Duration,
}

/// Tells whether another session of the client would have another target.
type TargetCheck = Pin<Box<dyn Future<Output = bool> + Send>>;

impl ForwardSession {
    pub(super) fn spawn(self, alive: Alive) {
        let session = Arc::clone(self.record.guard.session());
        let task = tokio::spawn(self.run(alive));
        session.set_task(task.abort_handle());
    }

    async fn run(mut self, _alive: Alive) {
        let outcome = match Box::pin(self.connect()).await {
            Ok((socket, address)) => self.forward(&socket, address).await,
            Err(outcome) => outcome,
        };
        drop(self.entry);
        self.record.end(outcome);
    }

    /// Connects to the target, or to one of the backends.
    async fn connect(&mut self) -> Result<(Arc<UdpSocket>, SocketAddr), Outcome> {
        let service = Arc::clone(self.record.guard.service());
        let (guard, entry) = (&self.record.guard, &self.entry);
        // No settings have datagrams and TLS.
        let connect = |Destination { target, tls: _ }| {
            guard.dials(target.clone());
            connect_to(target, entry, &service)
        };
        let connected = match &service.balancer {
            None => connect(self.target.clone().into())
                .await
                .map_err(|failed| failed.outcome)?,
            Some(balancer) => {
                let tries = Tries {
                    client: Some(canonical(entry.client.source).ip().into()),
                    port_index: self.port_index,
                    max_wait: service.settings.timeouts.connect,
                    // Connecting sends nothing. Some protocols have no answers, so a session begins
                    // at once, and a report that nothing receives takes this back.
                    slow: Duration::MAX,
                };
                let (connected, lease) = balancer.connect(tries, connect).await?;
                self.record.guard.holds(lease);
                connected
            }
        };
        let ConnectedFlow { socket, address, time } = connected;
        self.record.guard.connected(Some(address), time);
        self.record.guard.associating(self.stats.clone());
        self.entry.connected(&socket, address);
        Ok((socket, address))
    }

    /// Sends the datagrams of the target at `address` to the client until the session ends.
    async fn forward(&mut self, socket: &UdpSocket, address: SocketAddr) -> Outcome {
        let silence = self.record.guard.service().settings.timeouts.udp;
        let mut silent = pin!(sleep_until(end_of_silence(Instant::now(), None, silence)));
        let broken = Arc::clone(&self.broken);
        let mut target_check = None;
        loop {
            let passed = tokio::select! {
                ready = ready(socket) => ready.and_then(|()| self.pass_down(socket)),
                errno = broken.wait() => Err(*errno),
                () = self.stats.stopped() => return SessionEnd::Drained.into(),
                // Datagrams do not reset the timer. When it fires, the last datagram decides.
                () = &mut silent => match self.entry.silent_until(self.answered, silence) {
                    None => return SessionEnd::Idle.into(),
                    Some(later) => {
                        silent.as_mut().reset(later);
                        if self.answered.is_none_or(|answered| answered.elapsed() >= silence) {
                            target_check.get_or_insert_with(|| self.check_target(address));
                        }
                        Ok(false)
                    }
                },
                has_other_target = checked(&mut target_check) => {
                    if has_other_target {
                        return SessionEnd::Idle.into();
                    }
                    target_check = None;
                    Ok(false)
                }
            };
            match passed {
                // More datagrams may be ready, but other tasks on this thread run first.
                Ok(true) => yield_now().await,
                Ok(false) => {}
                Err(errno) => return self.unreachable(errno, address),
            }
        }
    }

    /// Checks whether another session of the client would have another target.
    fn check_target(&mut self, address: SocketAddr) -> TargetCheck {
        let target = match self.record.guard.lease() {
            Some(lease) => lease.target(self.port_index).target,
            None => self.target.clone(),
        };
        let FlowEntry { clients, client, .. } = &self.entry;
        Box::pin(Arc::clone(clients).has_other_target(canonical(client.source), target, address))
    }

    /// Returns whether more datagrams may be ready, or an error that says that nothing receives at
    /// the target.
    fn pass_down(&mut self, socket: &UdpSocket) -> Result<bool, Errno> {
        let Self {
            entry, stats, answered, ..
        } = self;
        let (clients, route) = (&entry.clients, entry.clients.route_to(entry.client));
        let count = |bytes: usize, sent: Result<(), Errno>| stats.down(bytes, sent);
        let flush = |gso: &mut GsoBatch| gso.flush(clients.udp, &clients.socket, count);
        let mut broken = None;
        let more = with_scratch(|batch, gso| {
            let more = batch.receive(clients.udp, socket, |error| {
                broken = Errno::from_io_error(&error).filter(|errno| says_nothing_receives(*errno));
                broken.is_none()
            });
            batch.for_each(|_, packet| {
                *answered = Some(Instant::now());
                let datagram = packet.data();
                if let Err(dropped) = stats.charge_down(datagram.len()) {
                    return stats.dropped(dropped);
                }
                if !gso.push(route, datagram, flush) {
                    count(datagram.len(), send(clients.udp, &clients.socket, route, datagram));
                }
            });
            flush(gso);
            more
        });
        broken.map_or(Ok(more), Err)
    }

    fn unreachable(&mut self, errno: Errno, address: SocketAddr) -> Outcome {
        self.entry.clients.refused.add(address, Instant::now());
        let error = io::Error::from(errno);
        let end = if self.answered.is_some() {
            SessionEnd::ResetByUpstream
        } else {
            if let Some(lease) = self.record.guard.lease() {
                lease.failed(Failure::Connect);
            }
            SessionEnd::ConnectFailed((&error).into())
        };
        Outcome::because(end, &error)
    }
}

/// Looks up the target, and connects a socket to the first of its addresses that has a route.
async fn connect_to(target: Target, entry: &FlowEntry, service: &Service) -> Result<ConnectedFlow, NotConnected> {
    let (started, client) = (Instant::now(), canonical(entry.client.source));
    let looked_up = service.dialer.addresses(&target, Some(client.ip().into()));
    let looked_up = timeout(service.settings.timeouts.connect, looked_up).await;
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
    let (refused, now) = (&entry.clients.refused, Instant::now());
    addresses.sort_by_key(|address| (refused.has(*address, now), address.is_ipv4() != client.is_ipv4()));
    let mut failed = not_connected(&Errno::NETUNREACH.into());
    for address in addresses {
        match connected_socket(address, service) {
            Ok(socket) => {
                let time = started.elapsed();
                return Ok(ConnectedFlow { socket, address, time });
            }
            Err(error) => failed = not_connected(&error),
        }
    }
    Err(failed)
}

fn not_connected(error: &io::Error) -> NotConnected {
    let errno = Errno::from_io_error(error);
    NotConnected {
        outcome: Outcome::because(SessionEnd::ConnectFailed(error.into()), error),
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
async fn ready(socket: &UdpSocket) -> Result<(), Errno> {
    let ready = socket.ready(Interest::READABLE | Interest::ERROR).await;
    // The only possible error is that the runtime is shutting down.
    if !ready.is_ok_and(Ready::is_error) {
        return Ok(());
    }
    let error = socket.take_error().ok().flatten();
    // Clears the readiness in tokio. The result is always this error.
    let _ = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    let errno = error.and_then(|error| Errno::from_io_error(&error));
    match errno.filter(|errno| says_nothing_receives(*errno)) {
        Some(errno) => Err(errno),
        None => Ok(()),
    }
}

fn connected_socket(address: SocketAddr, service: &Service) -> io::Result<Arc<UdpSocket>> {
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

impl FlowEntry {
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

impl Drop for FlowEntry {
    fn drop(&mut self) {
        if !self.is_removed {
            self.clients.table.remove(self.client);
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
