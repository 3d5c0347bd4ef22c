//! What kind of flow a direction carries, as its receives and fills tell.

use super::{Crossover, SCRATCH};
use crate::reason::{Reason, Scope};

/// A fill of less than this says that a bulk flow has become one of small messages, where one recv and one send cost less than two
/// splices; see docs/defaults.md.
pub(crate) const TINY_FILL: usize = 16 << 10;

/// Small fills in a row before a spliced flow is copied again: a sender that is slow for a moment gives a few, and
/// each time a bulk flow is taken back 64 KiB of it are copied before it is bulk again.
const SMALL_FILLS: u8 = 8;

/// Fills of large messages, three of them with more behind, which make the flow bulk: what would fill a receive, where fragments take all
/// slots of a pipe, of 1,448 bytes each.
const UNPAUSED_FILLS: u8 = 4;

/// Messages that a flow of large ones copies on trial: as many as one of small ones splices before it counts as such again.
const COPIES_ON_TRIAL: u8 = SMALL_FILLS;

/// After a reason that may pass, receives worth splicing to copy before that is tried again: 1 MiB of bulk.
const RETRY_AFTER: u8 = 16;

/// What kind of flow this is held to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Messages: recv first, look for a full one, or one worth splicing. So many more are copied on trial, worth it or not.
    Messages { on_trial: u8 },
    /// Messages worth splicing: fill first. So many fills in a row that were not came last, and so many since the source was drained.
    LargeMessages {
        small_fills: u8,
        unpaused: u8,
        on_trial: bool,
    },
    /// Bulk: fill first. So many small fills in a row came last.
    Bulk { small_fills: u8 },
    /// Fill first, whatever comes.
    Spliced,
    /// Not to be spliced for so many receives that would be worth it, or ever.
    Copied { retry_after: Option<u8> },
}

/// What the fill that is being drained tells about the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastFill {
    /// It is one of bulk.
    OfBulk,
    /// It was worth its splices.
    Worthy,
    /// So little that it was not, and not for want of leave to take more.
    Small,
    /// From here on messages are copied on trial.
    BeforeTrial,
}

impl Flow {
    pub(super) const MESSAGES: Self = Self::Messages { on_trial: 0 };

    const BULK: Self = Self::Bulk { small_fills: 0 };

    /// Whether it carries messages that may go either way.
    pub(super) fn crosses(self) -> bool {
        matches!(self, Self::Messages { .. } | Self::LargeMessages { .. })
    }

    pub(super) fn is_on_trial(self) -> bool {
        match self {
            Self::Messages { on_trial } => on_trial > 0,
            Self::LargeMessages { on_trial, .. } => on_trial,
            _ => false,
        }
    }

    /// Whether this flow's pipe, filled like that, holds a message.
    pub(super) fn is_spliced_message(self, fill: LastFill) -> bool {
        matches!(self, Self::LargeMessages { .. }) && fill != LastFill::OfBulk
    }

    /// What a fill tells about this flow.
    pub(super) fn judge(self, bytes: usize, full: bool, crossover: Crossover) -> LastFill {
        let (is_of_bulk, is_worthy) = match self {
            // Whether it filled its pipe is no matter: a pipe of 64 KiB counts as full at three quarters.
            Self::LargeMessages { unpaused, .. } => (
                bytes >= SCRATCH || unpaused + 1 == UNPAUSED_FILLS,
                crossover.splices(bytes),
            ),
            _ => (full, bytes >= TINY_FILL),
        };
        match self {
            _ if is_of_bulk => LastFill::OfBulk,
            _ if !is_worthy => LastFill::Small,
            Self::LargeMessages { .. } if crossover == Crossover::Swapped => LastFill::BeforeTrial,
            _ => LastFill::Worthy,
        }
    }

    /// What a flow is held to be after one more fill.
    pub(super) fn after(self, fill: LastFill) -> Self {
        match (self, fill) {
            (Self::Bulk { small_fills } | Self::LargeMessages { small_fills, .. }, LastFill::Small)
                if small_fills + 1 == SMALL_FILLS =>
            {
                Self::MESSAGES
            }
            (Self::Bulk { small_fills }, LastFill::Small) => Self::Bulk {
                small_fills: small_fills + 1,
            },
            (
                Self::LargeMessages {
                    small_fills,
                    unpaused,
                    on_trial,
                },
                LastFill::Small,
            ) => Self::LargeMessages {
                small_fills: small_fills + 1,
                unpaused: unpaused + 1,
                on_trial,
            },
            (Self::Bulk { .. }, _) | (Self::LargeMessages { .. }, LastFill::OfBulk) => Self::BULK,
            (Self::LargeMessages { unpaused, .. }, LastFill::Worthy) => Self::LargeMessages {
                small_fills: 0,
                unpaused: unpaused + 1,
                on_trial: false,
            },
            (Self::LargeMessages { .. }, LastFill::BeforeTrial) => Self::Messages {
                on_trial: COPIES_ON_TRIAL,
            },
            (flow, _) => flow,
        }
    }

    /// What a flow is held to be when its source is drained.
    pub(super) fn after_pause(mut self) -> Self {
        if let Self::LargeMessages { unpaused, .. } = &mut self {
            *unpaused = 0;
        }
        self
    }

    /// What a flow is held to be after one more receive.
    pub(super) fn after_receive(self, bytes: usize, full: bool, crossover: Crossover) -> Self {
        let is_worthy = full || crossover.splices(bytes);
        match self {
            Self::Messages { .. } | Self::LargeMessages { .. } | Self::Copied { retry_after: Some(0) } if full => {
                Self::BULK
            }
            Self::Messages { on_trial: 0 } | Self::Copied { retry_after: Some(0) } if is_worthy => {
                Self::LargeMessages {
                    small_fills: 0,
                    unpaused: 0,
                    on_trial: crossover == Crossover::Swapped,
                }
            }
            Self::Messages { on_trial } => Self::Messages {
                on_trial: on_trial.saturating_sub(1),
            },
            Self::Copied {
                retry_after: Some(more),
            } if is_worthy && more > 0 => Self::Copied {
                retry_after: Some(more - 1),
            },
            flow => flow,
        }
    }

    pub(super) fn copied_for(reason: Reason) -> Self {
        let retry_after = match reason.scope() {
            Scope::Relay => None,
            // For the whole process the pool's owner knows better when to try again; asking costs nothing.
            Scope::Process | Scope::Moment => Some(RETRY_AFTER),
        };
        Self::Copied { retry_after }
    }
}
