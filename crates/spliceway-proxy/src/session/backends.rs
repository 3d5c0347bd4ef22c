//! Connects a client of a forwarder to one of its backends.

use std::sync::Arc;

use tokio::time::Instant;

use super::departure::departed;
use super::open::Opening;
use crate::balance::Tried;
use crate::dial::Dialed;
use crate::outcome::{Outcome, SessionEnd};
use crate::record::Record;

/// The reason to refuse a client if no backend is available.
pub(super) const NO_BACKEND: &str = "no_backend";

impl Opening {
    /// Connects to a backend. If that fails, another backend is tried, because none of them has
    /// seen a byte of the client. Each attempt has the whole connect timeout.
    pub(super) async fn connect_to_backend(&mut self, record: &mut Record) -> Result<Dialed, Outcome> {
        let service = Arc::clone(&self.service);
        let started = Instant::now();
        let (mut tried, mut failed) = (Tried::default(), None);
        let balancer = service.balancer.as_ref();
        while let Some(lease) = balancer.and_then(|balancer| balancer.lease(self.client_key(), &tried)) {
            self.request.request.target = lease.target(self.port_index);
            record.requested(&self.request);
            let target = &self.request.request.target;
            let dialed = tokio::select! {
                biased;
                dialed = service.dialer.dial(target, self.client_key(), &self.request.via) => dialed,
                left = departed(&self.client, self.finish()) => return Err(left),
            };
            match dialed {
                Ok(dialed) => {
                    record.connected(dialed.address, started.elapsed());
                    record.holds(lease);
                    return Ok(dialed);
                }
                Err(error) => {
                    tracing::debug!(service = service.name, %target, %error, "a backend cannot be reached");
                    tried.add(lease);
                    failed = Some(error);
                }
            }
        }
        Err(failed.map_or(SessionEnd::Denied(NO_BACKEND).into(), Outcome::from))
    }
}
