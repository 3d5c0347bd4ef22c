//! Connects a client of a forwarder to one of its backends.

use std::sync::Arc;

use tokio::time::Instant;

use super::departure::departed;
use super::open::Opening;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::reach::balance::{Balancer, Failure, NoLease, Tried};
use crate::reach::dial::Dialed;
use crate::session::record::Record;

impl Opening {
    /// Connects to a backend. If that fails, another backend is tried, because none of them has
    /// seen a byte of the client. Each attempt has the whole connect timeout.
    pub(super) async fn connect_to_backend(
        &mut self,
        balancer: &Arc<Balancer>,
        record: &mut Record,
    ) -> Result<Dialed, Outcome> {
        let service = Arc::clone(&self.service);
        let limit = service.timeouts.connect;
        let started = Instant::now();
        let (mut tried, mut failed) = (Tried::default(), None);
        loop {
            let leased = tokio::select! {
                biased;
                leased = balancer.lease(self.client_key(), &tried, limit) => leased,
                left = departed(&self.client, self.finish()) => return Err(left),
            };
            let mut lease = match leased {
                Ok(lease) => lease,
                Err(why) => return Err(no_backend(why, failed)),
            };
            self.request.request.target = lease.target(self.port_index);
            record.requested(&self.request);
            let (target, begun) = (&self.request.request.target, Instant::now());
            let dialed = tokio::select! {
                biased;
                dialed = service.dialer.dial_for(target, self.dial_request()) => dialed,
                left = departed(&self.client, self.finish()) => return Err(left),
            };
            match dialed {
                Ok(mut dialed) => {
                    record.keep(dialed.own.take());
                    lease.connected(begun.elapsed(), limit / 2);
                    lease.retries = tried.count();
                    record.connected(dialed.address, started.elapsed());
                    record.holds(lease);
                    return Ok(dialed);
                }
                Err(error) => {
                    tracing::debug!(service = service.name, %target, %error, "a backend cannot be reached");
                    if error.is_of_the_backend() {
                        lease.failed(Failure::Connect);
                    }
                    tried.add(lease);
                    failed = Some(error.into());
                }
            }
        }
    }
}

/// Returns how the session ends. The error of the last attempt says more than that there is no
/// other backend.
pub(crate) fn no_backend(why: NoLease, failed: Option<Outcome>) -> Outcome {
    match (why, failed) {
        (NoLease::NoneAvailable, Some(outcome)) => outcome,
        _ => SessionEnd::Denied(why.into()).into(),
    }
}
