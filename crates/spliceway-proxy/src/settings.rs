//! What the program is to do, checked and complete, whoever said it.

use std::num::NonZeroUsize;
use std::time::Duration;

use spliceway::{Engine, PipeSize};
use tracing_subscriber::filter::LevelFilter;

use crate::address::{ListenAddress, Target};

/// Everything a run depends on.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) services: Vec<ServiceSettings>,
    pub(crate) timeouts: Timeouts,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pub(crate) workers: NonZeroUsize,
    pub(crate) log_level: LevelFilter,
    pub(crate) metrics: Option<ListenAddress>,
}

/// One service and where it listens.
#[derive(Debug)]
pub(crate) struct ServiceSettings {
    pub(crate) kind: Kind,
    pub(crate) listen: Vec<ListenAddress>,
}

/// What a service does with a client.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Relays to one target.
    Forward(Target),
    /// Relays to where the client asks, RFC 1928.
    Socks5,
}

impl Kind {
    /// The `service` of metrics and records.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Socks5 => "socks5",
        }
    }
}

/// The deadline of every phase. `None` is "off"; what cannot be off is no option.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) handshake: Duration,
    pub(crate) connect: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) half_close: Option<Duration>,
    pub(crate) drain: Duration,
}
