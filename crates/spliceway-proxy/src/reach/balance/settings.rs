//! The settings of the backends of a service.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use spliceway_protocol::address::{Target, TargetRange};

use super::check::CheckSettings;
use super::ejection::EjectSettings;
use super::policy::Policy;
use crate::tls::client::PeerName;

/// The most backends of a service. A choice looks at each of them, which takes up to 5 µs for so
/// many.
pub(crate) const BACKENDS_MAX: usize = 256;
/// A larger weight would not be exact with few sessions. HAProxy has the same limit.
pub(crate) const WEIGHT_MAX: u32 = 256;
/// The backends of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BalanceSettings {
    pub(crate) policy: Policy,
    /// At least 1, and at most [`BACKENDS_MAX`].
    pub(crate) backends: Vec<BackendSettings>,
    pub(crate) eject: EjectSettings,
    /// The most clients that wait for a backend with a limit on sessions.
    pub(crate) queue_max: usize,
    /// How backends are checked. `None` means that only their sessions show how they are.
    pub(crate) check: Option<CheckSettings>,
    /// The time over which a backend that is up again gets its whole share.
    pub(crate) slow_start: Duration,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendSettings {
    /// The text that names the backend in the log and in metrics, and whose hash decides which
    /// clients it gets.
    pub(crate) name: Box<str>,
    pub(crate) targets: TargetRange,
    /// The name that its certificate must have. `None` means that it does not speak TLS.
    pub(crate) tls: Option<PeerName>,
    /// The share of sessions that it should get.
    pub(crate) weight: NonZeroU32,
    /// Whether it gets sessions only if no other backend is available.
    pub(crate) is_backup: bool,
    /// The most sessions at the same time.
    pub(crate) max_conns: Option<NonZeroU32>,
    pub(crate) members: Members,
}

/// Which addresses a backend stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Members {
    /// It is one backend, whatever its addresses. Each connection looks its name up.
    One,
    EachAddress,
    /// The addresses and ports of SRV records.
    Srv,
}

impl BalanceSettings {
    /// Returns the number of ports of the longest range.
    pub(super) fn ports(&self) -> Option<u16> {
        self.backends.iter().map(|backend| backend.targets.count).max()
    }
}

impl BackendSettings {
    /// Returns the settings of a member of this name.
    pub(super) fn member(&self, address: SocketAddr, weight: NonZeroU32, is_backup: bool) -> Self {
        Self {
            name: address.to_string().into(),
            targets: TargetRange {
                first: Target::Ip(address),
                count: self.targets.count,
            },
            weight,
            is_backup,
            ..self.clone()
        }
    }
}
