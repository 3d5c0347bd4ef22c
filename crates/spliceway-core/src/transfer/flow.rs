//! What kind of flow a direction carries, as its receives and fills tell.

use super::{Crossover, Middling, SCRATCH};
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

/// After a reason that may pass, receives worth splicing to copy before that is tried again: 1 MiB of bulk.
const RETRY_AFTER: u8 = 16;

/// What kind of flow this is held to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Messages: recv first, look for a full one, or one worth splicing. The last was of this size, if it was a middling one.
    Messages { last: Option<Middling> },
    /// Messages worth splicing: fill first. So many fills in a row that were not came last, and so many since the source was drained. The
    /// last middling one was of this size.
    LargeMessages {
        small_fills: u8,
        unpaused: u8,
        last: Middling,
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
    /// It is a message of this size, worth its splices.
    Message(Middling),
    /// So little that it was not, and not for want of leave to take more.
    Small,
}

impl Flow {
    pub(super) const MESSAGES: Self = Self::Messages { last: None };

    const BULK: Self = Self::Bulk { small_fills: 0 };

    /// Whether it carries messages that may go either way.
    pub(super) fn crosses(self) -> bool {
        matches!(self, Self::Messages { .. } | Self::LargeMessages { .. })
    }

    /// Whether a receive of few bytes tells it something.
    #[inline]
    pub(super) fn minds_small_ones(self) -> bool {
        matches!(self, Self::Messages { last: Some(_) })
    }

    /// What a flow is held to be when other messages than before are worth splicing: as its last one would have been.
    pub(super) fn crossing_at(self, crossover: Crossover) -> Self {
        match self {
            Self::Messages { last: Some(last) } if crossover.splices(last) => Self::large(last),
            Self::LargeMessages { last, .. } if !crossover.splices(last) => Self::Messages { last: Some(last) },
            flow => flow,
        }
    }

    fn large(last: Middling) -> Self {
        Self::LargeMessages {
            small_fills: 0,
            unpaused: 0,
            last,
        }
    }

    /// Whether this flow's pipe, filled like that, holds a message.
    pub(super) fn is_spliced_message(self, fill: LastFill) -> bool {
        matches!(self, Self::LargeMessages { .. }) && fill != LastFill::OfBulk
    }

    /// What a fill tells about this flow.
    pub(super) fn judge(self, bytes: usize, full: bool, crossover: Crossover) -> LastFill {
        match self {
            Self::LargeMessages { unpaused, .. } => match Middling::of(bytes) {
                // Whether it filled its pipe is no matter: a pipe of 64 KiB counts as full at three quarters.
                _ if bytes >= SCRATCH || unpaused + 1 == UNPAUSED_FILLS => LastFill::OfBulk,
                Some(size) if crossover.splices(size) => LastFill::Message(size),
                _ => LastFill::Small,
            },
            _ if full || bytes >= TINY_FILL => LastFill::OfBulk,
            _ => LastFill::Small,
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
                    last,
                },
                LastFill::Small,
            ) => Self::LargeMessages {
                small_fills: small_fills + 1,
                unpaused: unpaused + 1,
                last,
            },
            (Self::Bulk { .. }, _) | (Self::LargeMessages { .. }, LastFill::OfBulk) => Self::BULK,
            (Self::LargeMessages { unpaused, .. }, LastFill::Message(last)) => Self::LargeMessages {
                small_fills: 0,
                unpaused: unpaused + 1,
                last,
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
        let size = Middling::of(bytes);
        let worthy = size.filter(|&size| crossover.splices(size));
        match (self, worthy) {
            (Self::Messages { .. } | Self::LargeMessages { .. } | Self::Copied { retry_after: Some(0) }, _) if full => {
                Self::BULK
            }
            (Self::Messages { .. } | Self::Copied { retry_after: Some(0) }, Some(size)) => Self::large(size),
            (Self::Messages { .. }, None) => Self::Messages { last: size },
            (
                Self::Copied {
                    retry_after: Some(more),
                },
                _,
            ) if more > 0 && (full || worthy.is_some()) => Self::Copied {
                retry_after: Some(more - 1),
            },
            (flow, _) => flow,
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
