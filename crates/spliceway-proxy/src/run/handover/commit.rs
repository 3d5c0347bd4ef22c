//! The moment at which a new process is the one that serves.

use std::sync::Arc;

use super::Adopted;
use crate::access::gate::Gate;
use crate::kit::created;
use crate::metrics::Metrics;
use crate::run::drain;
use crate::run::notify::{Manager, Message};

/// What the new process postpones until the old one accepts no clients any more. So a new process
/// that is refused, ends or hangs has changed nothing.
pub(crate) struct Commit {
    pub(crate) adopted: Arc<Adopted>,
    pub(crate) gate: Gate,
    pub(crate) manager: Arc<Manager>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Commit {
    /// Owns the listeners, accepts clients, and then speaks to the service manager.
    pub(super) async fn now(self) {
        self.adopted.commit();
        self.gate.set(true);
        created::keep();
        self.manager.speak();
        let status = drain::serving(self.metrics.open());
        self.manager.tell(Message::Ready(&status)).await;
    }
}
