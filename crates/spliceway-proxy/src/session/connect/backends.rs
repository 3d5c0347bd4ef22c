//! Connects a client of a forwarder to one of its backends.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Connecting, protocol_of_client};
use crate::kit::outcome::Outcome;
use crate::reach::balance::{Balancer, NotConnected, Tries};
use crate::reach::dial::{Destination, Dialed};
use crate::session::departure::departed;
use crate::session::guard::Guard;

impl Connecting {
    /// Connects to a backend. Each attempt has the whole connect timeout.
    pub(in crate::session) async fn dial_backend(
        &mut self,
        balancer: &Arc<Balancer>,
        guard: &mut Guard,
    ) -> Result<Dialed, Outcome> {
        let (service, started) = (Arc::clone(&self.service), Instant::now());
        let (introduction, protocol) = (self.introduction(), protocol_of_client(guard));
        let limit = service.settings.timeouts.connect;
        let tries = Tries {
            client: self.client_key(),
            port_index: self.port_index,
            max_wait: limit,
            slow: limit / 2,
        };
        let (this, service, introduction) = (&*self, &service, &introduction[..]);
        let protocol = protocol.as_deref();
        let dial = |Destination { target, tls }| {
            guard.dials(target.clone());
            async move {
                let request = this.dial_request(tls.as_ref(), introduction, protocol);
                let dialed = service.dialer.dial_for(&target, request).await;
                dialed.map_err(|error| {
                    tracing::debug!(service = &*service.name, %target, %error, "a backend cannot be reached");
                    NotConnected::from(error)
                })
            }
        };
        let connected = tokio::select! {
            biased;
            connected = balancer.connect(tries, dial) => connected,
            left = departed(&this.client, this.finish()) => return Err(left),
        };
        let (mut dialed, lease) = connected?;
        guard.keep(dialed.own.take());
        self.began_tls(&mut dialed, introduction.len(), guard);
        guard.connected(dialed.address, started.elapsed());
        guard.holds(lease);
        Ok(dialed)
    }
}
