//! Connects a client whose request is known: dials its target, and answers the client.

mod backends;
mod exchange;
mod socks;
mod starttls;

use std::net::IpAddr;
use std::sync::Arc;

use spliceway::{Direction, RateLimit};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::admit::{Addresses, Admitted};
use super::client::Client;
use super::departure::{Finish, departed};
use super::guard::Guard;
use super::handshake::ClientRequest;
use super::kept::{HttpTarget, Kept};
use super::linger::lingering_close;
use super::next_request::{Ended, send_and_stay};
use super::rate_wait::wait_for_rate;
use super::relay::{Begin, Ends, Exchange};
use super::service::Service;
use crate::access::admission::Dial;
use crate::access::rates::SessionRates;
use crate::kit::client_key::ClientKey;
use crate::kit::first_poll::in_own_task;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::hops::Hops;
use crate::net::stream::Stream;
use crate::reach::dial::{DialRequest, Dialed, Passage, TlsRequest};
use crate::settings::Kind;
use crate::tls::client::PeerName;
use exchange::{Awaited, Bounds, NoAnswer};
use spliceway_protocol::http::{self, Body, Followed, Remaining};
use spliceway_protocol::socks5::UNSPECIFIED;
use spliceway_protocol::{Command, Failure, proxy};

/// A client whose request is known, until it has what it asked for.
pub(super) struct Connecting {
    pub(super) client: Client,
    /// Whether only the relay reads from the socket of the client.
    pub(super) is_client_new: bool,
    pub(super) addresses: Addresses,
    pub(super) request: ClientRequest,
    /// The position of the listener's port in the port range.
    pub(super) port_index: u16,
    /// The version of the PROXY header that the target has not received yet.
    pub(super) header: Option<proxy::Version>,
    /// The number of bytes that the target has received before the relay starts.
    pub(super) ahead: u64,
    /// The buckets of the session, once it has waited for them.
    pub(super) rates: SessionRates,
    /// The number of bytes from the client that the buckets have counted.
    pub(super) charged: u64,
    /// The services of this program that the client has passed.
    pub(super) hops: Hops,
    /// What the connection keeps from one HTTP request to the next.
    pub(super) kept: Option<Box<Kept>>,
    /// The part of the body that is still to be read, if the client was refused and may send
    /// another request.
    pub(super) unread: Option<Remaining>,
    /// The head of the answer for the client, and what follows it, if it was read.
    pub(super) answer: Option<(Vec<u8>, Followed)>,
    pub(super) service: Arc<Service>,
}

impl Connecting {
    pub(super) fn command(&self) -> Command {
        self.request.request.command
    }

    /// Waits until the limits on bytes from the client let those pass that were read. Many sessions
    /// consist only of a request and the head of an answer, which no relay reads.
    pub(super) async fn wait_for_rates(&mut self, guard: &Guard) -> Result<(), Outcome> {
        let (client, service) = (self.client_ip(), &self.service);
        let own = || service.rates.of_session(client);
        let own = if self.request.body.is_some() || self.kept.is_some() {
            // All requests of a connection share its buckets.
            let kept = self.kept.get_or_insert_default();
            kept.rates.get_or_insert_with(own).clone()
        } else {
            own()
        };
        self.rates = guard.user_rates(own);
        if self.rates.incoming.is_some() || self.rates.outgoing.is_some() {
            guard.limit();
        }
        let buffered = match self.request.body {
            // After the body, the buffer may have the next request.
            Some(body) => Remaining::from(body).take(self.client.buffer()).unwrap_or(0),
            None => self.client.buffer().len(),
        };
        let bytes = self.request.head.len() + buffered;
        let client = (&self.client, self.finish());
        wait_for_rate(&self.rates, Direction::AToB, bytes, client, guard).await?;
        self.charged = bytes as u64;
        Ok(())
    }

    /// Counts the bytes from the client for which the session has not waited. `up` has those that
    /// the target does not have yet.
    fn charge_rest(&self, up: &[u8]) {
        let bytes = up.len() as u64 + self.ahead;
        charge(&self.rates.incoming, bytes.saturating_sub(self.charged));
    }

    /// Connects to the target.
    pub(super) async fn dial(&mut self, guard: &mut Guard) -> Result<Dialed, Outcome> {
        let started = Instant::now();
        let dialer = self.service.dialer_of(self.request.user.as_deref());
        let learning = self.request.would_deny.map(|_| dialer.allowing_unlisted());
        let dialer = learning.as_ref().unwrap_or(dialer);
        let protocol = protocol_of_client(guard);
        let (name, protocol) = (self.request.tls.as_ref(), protocol.as_deref());
        let introduction = name.map_or_else(Vec::new, |_| self.introduction());
        let request = self.dial_request(name, &introduction, protocol);
        let dialed = tokio::select! {
            biased;
            dialed = dialer.dial_for(&self.request.request.target, request) => dialed,
            left = in_own_task(departed(&self.client, self.finish())) => return Err(left),
        };
        let mut dialed = match dialed {
            Ok(dialed) => dialed,
            Err(error) => return Err(self.refuse(error.failure(), error.into()).await),
        };
        guard.connected(dialed.address, started.elapsed());
        guard.keep(dialed.own.take());
        self.began_tls(&mut dialed, introduction.len(), guard);
        Ok(dialed)
    }

    /// Tells the client that it has what it asked for.
    pub(super) async fn answer(&mut self, dialed: &Dialed) -> Result<(), Outcome> {
        let bound = || {
            let bound = match self.command() {
                Command::Bind => dialed.address,
                Command::Connect | Command::Associate => dialed.stream.local_addr(),
            };
            bound.unwrap_or(UNSPECIFIED)
        };
        self.send(&self.request.succeeded(bound)).await
    }

    /// Returns how to dial. With a name, the target speaks TLS.
    fn dial_request<'a>(
        &'a self,
        name: Option<&'a PeerName>,
        introduction: &'a [u8],
        protocol: Option<&'a str>,
    ) -> DialRequest<'a> {
        DialRequest {
            tls: name.map(|name| TlsRequest {
                name,
                introduction,
                protocol,
                is_check: false,
            }),
            // A proxy passes no upgrade on, so a client that asks for one gets a tunnel. So does a
            // redirected client, because the port in its `Host` may not be the one that is allowed.
            passage: match self.request.body {
                Some(Body::Bytes(_) | Body::Chunked) if !self.is_transparent() => Passage::Request,
                _ => Passage::Tunnel,
            },
            client: self.client_ip(),
            via: &self.request.via,
            hops: self.hops,
        }
    }

    /// Records the TLS of the target, which then has the PROXY header.
    fn began_tls(&mut self, dialed: &mut Dialed, introduction: usize, guard: &Guard) {
        if let Some(tls) = dialed.tls.take() {
            self.header = None;
            guard.sent_ahead(introduction as u64);
            guard.session().facts().target_tls = Some(tls);
        }
    }

    fn client_ip(&self) -> Option<IpAddr> {
        self.addresses.client.map(|client| client.ip())
    }

    fn client_key(&self) -> Option<ClientKey> {
        self.client_ip().map(ClientKey::from)
    }

    fn is_transparent(&self) -> bool {
        matches!(self.service.kind, Kind::Transparent(..))
    }

    /// Counts a dial for this client. A forwarder's clients and clients without an address are not
    /// counted.
    pub(super) async fn count_dial<'a>(&mut self, service: &'a Service) -> Result<Option<Dial<'a>>, Outcome> {
        let chooses_target = self.request.spoken.is_some() || self.is_transparent();
        let Some(client) = self.client_ip().filter(|_| chooses_target) else {
            return Ok(None);
        };
        match service.dials.begin(client) {
            Some(dial) => Ok(Some(dial)),
            None => Err(self
                .refuse(Failure::General, SessionEnd::Denied(Refusal::DialsOfClient).into())
                .await),
        }
    }

    /// Returns what EOF from the client means while its target is being dialled.
    fn finish(&self) -> Finish {
        match self.request.spoken {
            Some(_) if !self.is_whole() => Finish::Leaves,
            _ => Finish::Waits,
        }
    }

    /// Returns whether the client has sent a request without a body.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.request.body, Some(Body::Bytes(0) | Body::Upgrade))
    }

    /// Returns whether the end of the request is known before it is relayed.
    pub(super) fn has_end(&self) -> bool {
        self.request.body.is_some()
    }

    /// Refuses the client, and returns how the session ends. A client of HTTP may send another
    /// request, if the end of this one is certain.
    pub(super) async fn refuse(&mut self, failure: Failure, outcome: Outcome) -> Outcome {
        if self.request.spoken.is_some() {
            let answer = self.request.failed(failure);
            // A client of CONNECT may have sent bytes of its tunnel before the answer. They are no
            // request.
            let exchange = self.request.exchange.filter(|_| self.has_end());
            let unread = exchange.and_then(|exchange| {
                let unread = self
                    .kept
                    .as_deref()
                    .unwrap_or(&Kept::default())
                    .unread_body(&exchange)?;
                self.service.keeps_clients().then_some((unread, exchange.is_head))
            });
            match unread {
                Some((unread, is_head)) => {
                    let limit = self.service.settings.timeouts.handshake;
                    let is_sent = send_and_stay(&mut self.client, &http::kept(&answer, is_head), limit).await;
                    self.unread = is_sent.then_some(unread);
                }
                None => Box::pin(lingering_close(&mut self.client, &answer)).await,
            }
        } else if self.is_transparent()
            && let Stream::Tcp(client) = self.client.get_ref()
        {
            // The client believes that it has reached its target. A reset says that it has not, and
            // an end of stream would look like an answer. If this call fails, that is what it gets.
            let _ = client.set_zero_linger();
        }
        outcome
    }

    /// Sends an answer to the client. A client that does not receive it within the handshake
    /// timeout is treated like a client that sends no request.
    async fn send(&mut self, answer: &[u8]) -> Result<(), Outcome> {
        if answer.is_empty() {
            return Ok(());
        }
        match timeout(self.service.settings.timeouts.handshake, self.client.write_all(answer)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Outcome::because(SessionEnd::ResetByClient, &error)),
            Err(_) => Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into()),
        }
    }

    /// Sends a request and reads the head of its answer. Returns `None` if a connection that was
    /// used before has ended, and the request may be sent on another one.
    pub(super) async fn exchange(
        &mut self,
        dialed: &mut Dialed,
        is_reused: bool,
        guard: &Guard,
    ) -> Result<Option<()>, Outcome> {
        let Some(request) = self.request.exchange else {
            return Ok(Some(()));
        };
        let original = is_reused.then(|| self.request.head.clone());
        if let Some(proxy) = &dialed.proxy {
            self.request.head = proxy.request_head(&self.request.head).unwrap_or_default();
        }
        let first_bytes = self.first_bytes();
        dialed.is_new = false;
        let bounds = Bounds {
            idle: self.service.settings.timeouts.idle,
            half_closed: self.service.settings.timeouts.half_close,
            rates: &self.rates,
            guard,
        };
        let service = &self.service;
        let answer = Awaited::new(request, &first_bytes, || service.keeps_clients());
        match exchange::exchange(answer, dialed, &mut self.client, bounds).await {
            Ok(answer) => {
                let bytes = answer.heads.len()
                    + match answer.followed.body {
                        // The relay reads these bytes again, within the limit.
                        Remaining::Chunks(_) => 0,
                        Remaining::Bytes(_) | Remaining::UntilClose => answer.body.len(),
                    };
                let client = (&self.client, Finish::Waits);
                wait_for_rate(&self.rates, Direction::BToA, bytes, client, guard).await?;
                self.ahead = first_bytes.len() as u64;
                dialed.early = answer.body;
                if answer.followed.has_switched {
                    // From now on, all bytes from the client are for the target.
                    self.request.body = None;
                }
                self.answer = Some((answer.heads, answer.followed));
                Ok(Some(()))
            }
            Err(NoAnswer::Eof | NoAnswer::Target { is_silent: true, .. }) if is_reused && request.may_repeat() => {
                self.request.head = original.unwrap_or_default();
                self.header = self.service.send_proxy;
                Ok(None)
            }
            Err(NoAnswer::Left(left)) => Err(left),
            Err(NoAnswer::Client(error)) => Err(Outcome::because(SessionEnd::ResetByClient, &error)),
            Err(NoAnswer::Target { error, .. }) => {
                Err(self.refuse(Failure::General, Outcome::of_upstream(&error)).await)
            }
            Err(NoAnswer::Eof | NoAnswer::Cut) => {
                Err(self.refuse(Failure::General, SessionEnd::UpstreamEof.into()).await)
            }
            // The client may have a part of an interim answer, so another answer would not be
            // clear.
            Err(NoAnswer::Unread) => Err(SessionEnd::Idle.into()),
            Err(NoAnswer::HalfClosed) => Err(SessionEnd::HalfCloseTimeout.into()),
            Err(NoAnswer::Idle) => Err(self.refuse(Failure::TimedOut, SessionEnd::Idle.into()).await),
        }
    }

    /// Returns the first bytes for the target: a PROXY header, if the service sends one, and the
    /// request, if it is meant for the target. A second call returns no bytes.
    fn first_bytes(&mut self) -> Vec<u8> {
        let mut bytes = self.introduction();
        self.header = None;
        bytes.append(&mut self.request.head);
        bytes
    }

    /// Returns the PROXY header, if the service sends one and the target does not have it yet.
    fn introduction(&self) -> Vec<u8> {
        let Addresses { client, reached, tlvs } = &self.addresses;
        let encode = |version| proxy::encode(version, *client, *reached, tlvs);
        self.header.map_or_else(Vec::new, encode)
    }

    /// Returns what a client of HTTP has after the session has ended: its connection, if it may
    /// send another request.
    pub(super) fn into_ended(self, outcome: Outcome) -> Ended {
        let admitted = Admitted {
            client: self.client,
            is_client_new: false,
            addresses: self.addresses,
            hops: self.hops,
            kept: self.kept,
        };
        let kept = self.unread.map(|unread| admitted.keep(unread));
        Ended { outcome, kept }
    }

    /// Returns the client's connection to the target of its last request, if this request may use
    /// it.
    pub(super) fn reuse(&mut self, guard: &mut Guard) -> Option<Dialed> {
        let mut kept = self.kept.as_mut()?.target.take()?;
        let exchange = self.request.exchange?;
        // An upgrade needs a tunnel through other proxies.
        let is_request = matches!(self.request.body, Some(Body::Bytes(_) | Body::Chunked));
        let (target, user) = (&self.request.request.target, self.request.user.as_deref());
        if !is_request || !kept.may_serve(target, user, &exchange) {
            return None;
        }
        self.header = None;
        guard.reuses(kept.address);
        guard.keep(kept.own);
        Some(Dialed {
            stream: kept.stream,
            early: Vec::new(),
            address: kept.address,
            is_new: false,
            own: None,
            proxy: kept.proxy,
            tls: None,
        })
    }

    /// Returns both ends of a relay without an end that is known before.
    pub(super) fn into_ends(mut self, dialed: Dialed) -> Ends {
        let mut up = self.first_bytes();
        up.extend_from_slice(self.client.buffer());
        self.charge_rest(&up);
        let mut down = dialed.early;
        if let Some((heads, _)) = self.answer {
            // The session has waited for these bytes.
            down.splice(..0, heads);
        } else {
            charge(&self.rates.outgoing, down.len() as u64);
        }
        Ends {
            rates: self.rates,
            client: self.client.into_inner(),
            upstream: dialed.stream,
            begin: Begin::New {
                up,
                down,
                new_sockets: [self.is_client_new, dialed.is_new],
            },
        }
    }

    /// Returns both ends of an HTTP request, of which at least the head was read.
    pub(super) async fn into_exchange(mut self, dialed: Dialed) -> Result<Box<Exchange>, Ended> {
        let Some((request, body)) = self.request.exchange.zip(self.request.body) else {
            unreachable!("only a request of HTTP has a body");
        };
        if self.answer.is_none()
            && let Some(proxy) = &dialed.proxy
        {
            self.request.head = proxy.request_head(&self.request.head).unwrap_or_default();
        }
        let mut up = self.first_bytes();
        let mut rest = Remaining::from(body);
        let Ok(here) = rest.take(self.client.buffer()) else {
            Box::pin(lingering_close(&mut self.client, &http::no_chunks())).await;
            return Err(Outcome::from(SessionEnd::Denied(Refusal::NotChunked)).into());
        };
        up.extend_from_slice(&self.client.buffer()[..here]);
        self.client.consume(here);
        self.charge_rest(&up);
        let target = HttpTarget {
            stream: dialed.stream,
            name: self.request.request.target,
            user: self.request.user,
            address: dialed.address,
            own: None,
            proxy: dialed.proxy,
            last_used: Instant::now(),
        };
        let admitted = Admitted {
            client: self.client,
            is_client_new: false,
            addresses: self.addresses,
            hops: self.hops,
            kept: self.kept,
        };
        Ok(Box::new(Exchange {
            admitted,
            target,
            rates: self.rates,
            request,
            up,
            rest,
            answer: self.answer,
            early: dialed.early,
        }))
    }
}

/// Returns the protocol on which the client has agreed, if a target may be offered it.
fn protocol_of_client(guard: &Guard) -> Option<Box<str>> {
    let facts = guard.session().facts();
    let agreed = facts.tls.as_ref().and_then(|tls| tls.agreed.as_ref());
    agreed.and_then(|agreed| agreed.alpn.clone())
}

fn charge(rate: &Option<RateLimit>, bytes: u64) {
    if let Some(rate) = rate {
        rate.charge(bytes);
    }
}
