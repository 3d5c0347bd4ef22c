//! Answers the DNS queries of clients that reach servers by name: `--dns-listen`. The clients then
//! need no other server, and learn only the addresses of names that a rule allows.
//!
//! ```text
//!   datagram ───┐           ┌─ not allowed, other types, malformed ─▶ an answer at once
//!   connection ─┴─▶ query ──┴─ A, AAAA ─▶ resolver of the service ──▶ the addresses that the program
//!                                                                     itself would connect to
//! ```
//!
//! **No such name.** A name without a rule gets "no such name" (NXDOMAIN), because this ends the
//! search of every client at once. After REFUSED, glibc asks again, and musl waits for 5 s.
//!
//! **Other types.** They have no records. HTTPS records in particular have the keys for ECH, which
//! would hide the names from the rules.
//!
//! **No amplification.** Only clients that the service admits get an answer, of 1232 bytes at most.
//! An answer gets none.
//!
//! **Limits.** The program has [`QUERIES_MAX`] lookups and connections at once, and a client has
//! [`QUERIES_PER_CLIENT`] of them. Beyond that, datagrams are dropped, and connections are reset.
//! Connections also count towards the limits on sessions. Each query has the time of a handshake.

mod answer;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use quinn_udp::UdpSocketState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::service::Service;
use crate::access::admission::{Dials, SessionPermit};
use crate::metrics::DnsResult;
use crate::net::datagrams::{Origin, Route, readable, send, system, with_scratch};
use crate::net::listener::{self, Accepted};
use crate::net::stream::Stream;
use answer::{Decision, Recorded, decide, look_up};
use spliceway_protocol::address::canonical;
use spliceway_protocol::dns::{Malformed, Query};

/// The most lookups and connections at once. Each of them needs about 4 KiB.
const QUERIES_MAX: usize = 1024;
/// The most lookups and connections of a client at once. A package manager asks for some ten names
/// at once, and a browser for some thirty.
const QUERIES_PER_CLIENT: NonZeroU32 = NonZeroU32::new(64).unwrap();
/// The longest query of a connection. A name has at most 255 bytes.
const QUERY_MAX_BYTES: u16 = 4096;

/// Answers the queries that the sockets of all services receive.
pub(crate) struct NameServer {
    queries: Arc<Semaphore>,
    of_client: Dials,
    recorded: Recorded,
}

impl NameServer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queries: Arc::new(Semaphore::new(QUERIES_MAX)),
            of_client: Dials::new(QUERIES_PER_CLIENT),
            recorded: Recorded::default(),
        })
    }

    /// Answers datagrams until the future is dropped. `service` tells which service clients reach
    /// now.
    ///
    /// # Errors
    /// Returns an error if the system gives no socket.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        socket: &Arc<UdpSocket>,
        service: impl Fn() -> Arc<Service>,
    ) -> io::Result<()> {
        let udp = system()?;
        loop {
            readable(socket).await;
            if self.receive(udp, socket, &service()) {
                yield_now().await;
            }
        }
    }

    /// Receives once. Returns whether more datagrams may be ready.
    fn receive(
        self: &Arc<Self>,
        udp: &'static UdpSocketState,
        socket: &Arc<UdpSocket>,
        service: &Arc<Service>,
    ) -> bool {
        // A datagram that does not fit into the send buffer is lost, and its client asks again.
        let answer = |to: Route, answer: &[u8]| {
            let _ = send(udp, socket, to, answer);
        };
        with_scratch(|batch, _| {
            // Errors are about answers to clients that have left.
            let more = batch.receive(udp, socket, |_| true);
            batch.for_each(|origin, packet| {
                let client = canonical(origin.source);
                if !service.clients.admits(client.ip()) {
                    return service.traffic.dns(DnsResult::Dropped);
                }
                let query = match Query::parse(packet.data()) {
                    Ok(query) => query,
                    Err(Malformed(code)) => {
                        service.traffic.dns(DnsResult::Malformed);
                        if !code.is_empty() {
                            answer(route(origin), &code);
                        }
                        return;
                    }
                };
                let decision = decide(service, &self.recorded, client, &query);
                if let Decision::Now(reply) = decision {
                    return answer(route(origin), &query.datagram(reply));
                }
                let Some(place) = self.place() else {
                    return service.traffic.dns(DnsResult::Dropped);
                };
                let (server, socket, service) = (Arc::clone(self), Arc::clone(socket), Arc::clone(service));
                tokio::spawn(async move {
                    let _place = place;
                    let Some(_query) = server.of_client.begin(client.ip()) else {
                        return service.traffic.dns(DnsResult::Dropped);
                    };
                    let found = look_up(&service, &server.recorded, client, &query, decision).await;
                    let _ = send(udp, &socket, route(origin), &query.datagram(found.reply()));
                });
            });
            more
        })
    }

    /// Answers the queries of a client that has connected. A client above a limit is reset.
    pub(crate) fn accept(self: &Arc<Self>, accepted: Accepted, mut permit: SessionPermit, service: Arc<Service>) {
        let admitted = accepted.peer.filter(|client| service.clients.admits(client.ip()));
        let (Some(client), Some(place)) = (admitted, self.place()) else {
            service.traffic.dns(DnsResult::Dropped);
            return listener::reset(accepted.stream);
        };
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let _place = place;
            let Some(_connection) = server
                .of_client
                .begin(client.ip())
                .filter(|_| permit.count(client.ip()))
            else {
                service.traffic.dns(DnsResult::Dropped);
                return listener::reset(accepted.stream);
            };
            tokio::select! {
                // Other rules may apply after a reload.
                () = service.releases_clients() => {}
                // The client sees that the connection has ended.
                _ = server.converse(accepted.stream, client, &service) => {}
            }
        });
    }

    /// Answers the queries of a connection one after the other.
    async fn converse(&self, mut stream: Stream, client: SocketAddr, service: &Service) -> io::Result<()> {
        let patience = service.settings.timeouts.handshake;
        loop {
            let message = timeout(patience, receive_message(&mut stream)).await??;
            let Ok(query) = Query::parse(&message) else {
                // Nothing more can be understood of this client.
                service.traffic.dns(DnsResult::Malformed);
                return Ok(());
            };
            let decision = decide(service, &self.recorded, client, &query);
            let answer = match decision {
                Decision::Now(reply) => query.stream(reply),
                _ => {
                    let found = look_up(service, &self.recorded, client, &query, decision).await;
                    query.stream(found.reply())
                }
            };
            timeout(patience, stream.write_all(&answer)).await??;
        }
    }

    /// Returns a permit for a lookup or a connection, if one is free.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.queries).try_acquire_owned().ok()
    }
}

async fn receive_message(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    if length > QUERY_MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Returns the way back to a client, from the address that it has reached.
fn route(origin: Origin) -> Route {
    match origin.reached {
        Some(reached) => Route::Between(reached, origin.source),
        None => Route::To(origin.source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_1024_lookups_and_connections_at_once() {
        let server = NameServer::new();
        let mut places: Vec<_> = (0..1024).filter_map(|_| server.place()).collect();
        assert!(places.len() == 1024 && server.place().is_none());
        places.pop();
        assert!(server.place().is_some());
    }
}
