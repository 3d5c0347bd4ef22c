//! Connects a client of a forwarder to one of its backends.

use std::sync::Arc;

use spliceway_protocol::address::Target;
use tokio::time::Instant;

use super::Connecting;
use super::departure::departed;
use crate::kit::outcome::Outcome;
use crate::reach::balance::{Balancer, NotConnected, Tries};
use crate::reach::dial::Dialed;
use crate::session::guard::Guard;

impl Connecting {
    /// Connects to a backend. Each attempt has the whole connect timeout.
    pub(in crate::session) async fn dial_backend(
        &self,
        balancer: &Arc<Balancer>,
        guard: &mut Guard,
    ) -> Result<Dialed, Outcome> {
        let (service, started) = (&self.service, Instant::now());
        let limit = service.settings.timeouts.connect;
        let tries = Tries {
            client: self.client_key(),
            port_index: self.port_index,
            max_wait: limit,
            slow: limit / 2,
        };
        let dial = |target: Target| {
            guard.dials(target.clone());
            async move {
                let dialed = service.dialer.dial_for(&target, self.dial_request()).await;
                dialed.map_err(|error| {
                    tracing::debug!(service = service.name, %target, %error, "a backend cannot be reached");
                    NotConnected::from(error)
                })
            }
        };
        let connected = tokio::select! {
            biased;
            connected = balancer.connect(tries, dial) => connected,
            left = departed(&self.client, self.finish()) => return Err(left),
        };
        let (mut dialed, lease) = connected?;
        guard.keep(dialed.own.take());
        guard.connected(dialed.address, started.elapsed());
        guard.holds(lease);
        Ok(dialed)
    }
}
