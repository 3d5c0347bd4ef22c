//! What all services of this process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::access::accounts::Accounts;
use crate::access::admission::Admission;
use crate::access::gate::Gate;
use crate::access::policy::OwnListeners;
use crate::kit::health::Health;
use crate::metrics::Metrics;
use crate::net::adopted::Adopted;
use crate::session::registry::Sessions;

/// What all services of this process share. It lives as long as the process.
pub(crate) struct Process {
    pub(crate) health: Health,
    pub(crate) admission: Arc<Admission>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) metrics: Metrics,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) own: OwnListeners,
    /// The listeners of the process that hands over to this one.
    pub(crate) adopted: Adopted,
    /// Whether this process accepts clients.
    pub(crate) gate: Gate,
    /// The number of descriptors that this process may open.
    pub(crate) descriptors: usize,
    /// Whether a new process serves in the place of this one.
    handed_over: AtomicBool,
}

impl Process {
    /// Each start and each reload sets the limits of the admission.
    pub(crate) fn new(health: Health, gate: Gate, descriptors: usize) -> Arc<Self> {
        let (admission, accounts) = (Admission::new("sessions", 1, None), Arc::<Accounts>::default());
        Arc::new(Self {
            health,
            metrics: Metrics::new(Arc::clone(&admission), Arc::clone(&accounts)),
            admission,
            accounts,
            sessions: Arc::default(),
            own: OwnListeners::default(),
            adopted: Adopted::default(),
            gate,
            descriptors,
            handed_over: AtomicBool::new(false),
        })
    }

    /// Records that a new process serves in the place of this one.
    pub(crate) fn set_handed_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::Relaxed)
    }
}
