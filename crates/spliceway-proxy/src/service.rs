//! One service of the program: a forwarder or a proxy, with everything that its sessions share.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{Engine, RelayOptions};
use spliceway_protocol::proxy;

use crate::accounts::Accounts;
use crate::admission::Dials;
use crate::auth::{Penalties, Users};
use crate::balance::Balancer;
use crate::dial::Dialer;
use crate::drain::Accepting;
use crate::metrics::{Metrics, Traffic};
use crate::policy::ClientPolicy;
use crate::rates::RateLimits;
use crate::sessions::Sessions;
use crate::settings::{AcceptProxy, Kind, Timeouts};

/// The state that the sessions of one service share.
pub(crate) struct Service {
    /// The value of `service` in metrics and records.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) timeouts: Timeouts,
    pub(crate) relays: RelayOptions,
    /// The engine of `relays`.
    pub(crate) engine: Engine,
    /// The time that a worker stays awake after a message.
    pub(crate) spin: Duration,
    pub(crate) clients: ClientPolicy,
    pub(crate) users: Option<Arc<Users>>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) penalties: Arc<Penalties>,
    pub(crate) accept_proxy: Option<AcceptProxy>,
    pub(crate) send_proxy: Option<proxy::Version>,
    pub(crate) dialer: Dialer,
    /// Chooses the target, if there are several backends.
    pub(crate) balancer: Option<Arc<Balancer>>,
    pub(crate) dials: Arc<Dials>,
    pub(crate) rates: Arc<RateLimits>,
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) accepting: Accepting,
}
