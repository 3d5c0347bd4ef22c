//! The commands of SOCKS that need a socket of their own: BIND and ASSOCIATE.

use std::io;
use std::net::SocketAddr;

use tokio::time::Instant;

use super::{Connecting, lingering_close};
use crate::kit::outcome::{ConnectFailure, Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::stream::Stream;
use crate::reach::dial::Dialed;
use crate::session::bind::{AcceptError, Binding, Expected};
use crate::session::departure::departed;
use crate::session::destinations::ClientDestinations;
use crate::session::guard::Guard;
use crate::session::udp::associate::{self, Associated};
use spliceway_protocol::Failure;
use spliceway_protocol::socks5::UNSPECIFIED;

impl Connecting {
    /// Accepts one connection from a target (BIND). The client gets two answers. This method sends
    /// the first one, when the target can connect.
    pub(in crate::session) async fn bind(&mut self, guard: &Guard) -> Result<Dialed, Outcome> {
        let reached = self.reached_directly().await?;
        let destinations = ClientDestinations {
            dialer: self.service.dialer_of(self.request.user.as_deref()).clone(),
            client: self.client_key(),
        };
        let expected = tokio::select! {
            biased;
            expected = Expected::new(&self.request.request.target, &destinations) => expected,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        let expected = match expected {
            Ok(expected) => expected,
            Err(error) => return Err(self.refuse(error.failure(), error.into()).await),
        };
        let binding = match Binding::listen(reached, self.service.advertise) {
            Ok(binding) => binding,
            Err(error) => return Err(self.out_of_sockets(&error).await),
        };
        self.send(&self.request.succeeded(|| binding.address())).await?;
        let limit = self.service.settings.timeouts.connect;
        let started = Instant::now();
        let accepted = tokio::select! {
            biased;
            accepted = binding.accept(&expected, &destinations, limit) => accepted,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        match accepted {
            Ok((stream, peer)) => {
                guard.connected(Some(peer), started.elapsed());
                Ok(Dialed {
                    stream: stream.into(),
                    early: Vec::new(),
                    address: Some(peer),
                    is_new: true,
                    own: None,
                    proxy: None,
                    tls: None,
                })
            }
            Err(AcceptError::TimedOut) => Err(self
                .refuse(
                    Failure::TimedOut,
                    SessionEnd::ConnectFailed(ConnectFailure::TIMED_OUT).into(),
                )
                .await),
            Err(AcceptError::Listener(error)) => Err(self.out_of_sockets(&error).await),
        }
    }

    /// Opens an association for the datagrams of the client.
    pub(in crate::session) async fn associate(mut self, guard: &mut Guard) -> Result<Box<Associated>, Outcome> {
        if matches!(self.client.get_ref(), Stream::Tls(_)) {
            // The client trusts TLS, and its datagrams would pass in clear text.
            return Err(self.refuse_command().await);
        }
        // An association has up to four descriptors, as two sessions do, and ports.
        if !guard.permit().widen() {
            let end = SessionEnd::Denied(Refusal::Sessions);
            return Err(self.refuse(Failure::General, end.into()).await);
        }
        let reached = self.reached_directly().await?;
        // Only TCP clients get here, and they have an address.
        let from = self.addresses.client.unwrap_or(UNSPECIFIED);
        let rates = guard.user_rates(self.service.rates.of_session(self.client_ip()));
        let association = match associate::bind(&self.service, reached, from, &self.request, rates) {
            Ok(association) => association,
            Err(error) => return Err(self.out_of_sockets(&error).await),
        };
        self.send(&self.request.succeeded(|| association.address())).await?;
        Ok(Box::new(Associated {
            client: self.client,
            association,
        }))
    }

    /// Returns the address at which the client reached the proxy. The socket for the client's peers
    /// or datagrams is bound to this address.
    ///
    /// Refuses a client that comes through a load balancer, or whose targets are reached through
    /// upstream proxies.
    async fn reached_directly(&mut self) -> Result<SocketAddr, Outcome> {
        let reached = self.client.get_ref().local_addr();
        match reached.filter(|_| !self.service.dialer.has_upstreams() && self.service.accept_proxy.is_none()) {
            Some(reached) => Ok(reached),
            None => Err(self.refuse_command().await),
        }
    }

    async fn refuse_command(&mut self) -> Outcome {
        lingering_close(&mut self.client, &self.request.unsupported()).await;
        SessionEnd::Denied(Refusal::Command).into()
    }

    async fn out_of_sockets(&mut self, error: &io::Error) -> Outcome {
        let end = SessionEnd::ConnectFailed(error.into());
        self.refuse(Failure::General, Outcome::because(end, error)).await
    }
}
