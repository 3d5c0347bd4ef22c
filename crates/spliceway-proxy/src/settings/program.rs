//! The settings of the program and of all its services.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{Engine, PipeSize};
use spliceway_protocol::address::ListenAddress;

use super::config::Config;
use super::hidden::Hidden;
use super::origin::Origin;
use super::service::ServiceSettings;
use crate::access::accounts::AllLimits;
use crate::access::auth::tokens::Tokens;
use crate::log::LogSettings;
use crate::tls::acme::StateFolder;

/// Everything that a run depends on.
#[derive(Debug)]
pub(crate) struct Settings {
    /// A service that a change at run time does not name is shared with the settings before.
    pub(crate) services: Vec<Arc<ServiceSettings>>,
    pub(crate) users: AllLimits,
    pub(crate) sessions: SessionSettings,
    /// The time limit for sessions to finish before the program ends.
    pub(crate) drain: Duration,
    pub(crate) limits: Limits,
    pub(crate) workers: NonZeroUsize,
    pub(crate) log: LogSettings,
    /// The time between two records of an open session. `None` means that there are none.
    pub(crate) record_interval: Option<Duration>,
    pub(crate) metrics: Option<ListenAddress>,
    /// The status page on the metrics listener, with the names that its requests may use.
    pub(crate) status_page: Option<Vec<Box<str>>>,
    pub(crate) admin: Option<ListenAddress>,
    /// The admin socket whose requests need a token, and the tokens.
    pub(crate) remote_admin: Option<(ListenAddress, Arc<Tokens>)>,
    /// The file with the number of the process that serves.
    pub(crate) pid_file: Option<PathBuf>,
    /// Where ACME servers validate names by HTTP, and the folder that has the answers.
    pub(crate) acme_http: Option<(ListenAddress, StateFolder)>,
    /// What the operator has written, without services.
    pub(crate) written: Config,
    pub(crate) origin: Arc<Origin>,
    /// Warnings for the operator.
    pub(crate) warnings: Vec<String>,
    /// What messages about these settings must not show.
    pub(crate) hidden: Hidden,
}

impl Settings {
    /// Returns the tokens of the admin socket that needs them.
    pub(crate) fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.remote_admin.as_ref().map(|(_, tokens)| tokens)
    }
}

/// What the sessions of every service depend on. A change gives new sessions new rules.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SessionSettings {
    pub(crate) timeouts: Timeouts,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    /// The bytes of one direction after which the kernel may take TLS over.
    pub(crate) ktls_after: u64,
    /// The time that a worker stays awake after a message.
    pub(crate) spin: Duration,
    pub(crate) max_dials_per_ip: NonZeroU32,
}

/// The timeouts of all phases. `None` means off. A timeout that is not an `Option` cannot be off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeouts {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) half_close: Option<Duration>,
    /// The silence that ends a session of forwarded datagrams.
    pub(crate) udp: Duration,
    /// The longest session. Sessions end up to a tenth of it earlier.
    pub(crate) max_session: Option<Duration>,
}

/// Limits on resources. `None` means that the available descriptors are the only limit.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) max_conns: Option<NonZeroUsize>,
    pub(crate) max_conns_per_ip: Option<NonZeroU32>,
    pub(crate) descriptors: Option<u64>,
    /// The file with what users have used of their quotas.
    pub(crate) quota_file: Option<PathBuf>,
}
