//! Connects a client to one of the backends: tries another one if a backend cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backend::{Failure, Tried};
use super::balancer::{Balancer, Lease};
use crate::kit::client_key::ClientKey;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::reach::dial::{Destination, DialError};

/// How the backends are tried for a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tries {
    pub(crate) client: Option<ClientKey>,
    /// The position of the port that the client has reached, in its range.
    pub(crate) port_index: u16,
    /// The longest time for which the client waits while all backends are full.
    pub(crate) max_wait: Duration,
    /// Connecting that takes this long is a failure of the backend, but the session begins.
    pub(crate) slow: Duration,
}

/// Why there is no connection to a backend.
#[derive(Debug)]
pub(crate) struct NotConnected {
    pub(crate) outcome: Outcome,
    /// Whether the backend is at fault, and not this program or its machine.
    pub(crate) is_of_the_backend: bool,
}

impl Balancer {
    /// Calls `connect` with one backend after another until it succeeds. Another backend may be
    /// tried, because none of them has received a byte from the client. Cancel safe: the lease of
    /// a backend is given back.
    ///
    /// # Errors
    /// Returns how the session ends. The error of the last attempt says more than that there is no
    /// other backend.
    pub(crate) async fn connect<C, F>(
        self: &Arc<Self>,
        tries: Tries,
        mut connect: impl FnMut(Destination) -> F,
    ) -> Result<(C, Lease), Outcome>
    where
        F: Future<Output = Result<C, NotConnected>>,
    {
        let (mut tried, mut failed) = (Tried::default(), None);
        loop {
            let leased = self.lease(tries.client, &tried, tries.max_wait).await;
            let mut lease = leased.map_err(|why| match (why, failed.take()) {
                (Refusal::NoBackend, Some(outcome)) => outcome,
                _ => SessionEnd::Denied(why).into(),
            })?;
            let begun = Instant::now();
            match connect(lease.target(tries.port_index)).await {
                Ok(connected) => {
                    lease.retries = tried.count();
                    lease.connected(begun.elapsed(), tries.slow);
                    return Ok((connected, lease));
                }
                Err(error) => {
                    if error.is_of_the_backend {
                        lease.failed(Failure::Connect);
                    }
                    tried.add(lease);
                    failed = Some(error.outcome);
                }
            }
        }
    }
}

impl From<DialError> for NotConnected {
    fn from(error: DialError) -> Self {
        Self {
            is_of_the_backend: error.is_of_the_backend(),
            outcome: error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::outcome::{ConnectFailure, SessionEnd};
    use crate::reach::balance::Policy;
    use crate::reach::balance::tests::{backend, balancer_of};

    /// Connects if the target is `good`. Returns the number of retries, and the targets in order.
    async fn connect(backends: &[&str], good: &str) -> (Result<usize, SessionEnd>, Vec<String>) {
        let backends = backends.iter().map(|text| backend(text)).collect();
        let (balancer, mut targets) = (balancer_of(Policy::First, backends, None), Vec::new());
        let tries = Tries {
            client: None,
            port_index: 0,
            max_wait: Duration::from_secs(1),
            slow: Duration::MAX,
        };
        let attempt = |target: Destination| {
            targets.push(target.to_string());
            let refused = NotConnected {
                outcome: SessionEnd::ConnectFailed(ConnectFailure::Unresolved).into(),
                is_of_the_backend: true,
            };
            let is_good = target.to_string() == good;
            std::future::ready(is_good.then_some(()).ok_or(refused))
        };
        let connected = balancer.connect(tries, attempt).await;
        let retries = connected.map(|((), lease)| lease.retries);
        (retries.map_err(|outcome| outcome.end), targets)
    }

    #[tokio::test]
    async fn other_backends_are_tried_until_one_is_connected() {
        let (retries, targets) = connect(&["a:1", "b:1", "c:1,backup"], "c:1").await;
        assert_eq!(
            (retries, targets),
            (Ok(2), ["a:1", "b:1", "c:1"].map(str::to_owned).into())
        );
    }

    #[tokio::test]
    async fn the_last_error_says_why_there_is_no_connection() {
        let (failed, targets) = connect(&["a:1", "b:1"], "c:1").await;
        assert_eq!(failed, Err(SessionEnd::ConnectFailed(ConnectFailure::Unresolved)));
        assert_eq!(targets, ["a:1", "b:1"]);
    }
}
