//! Looks at a source that a fill may find drained, or has found to have nothing: a `poll` costs less than a fill or a receive that find
//! nothing.

use std::os::fd::BorrowedFd;

use crate::heuristic::{Heuristic, is_off};
use crate::socket::{self, Seen, Wait};

/// What a direction knows of its source from looking at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Looks {
    /// Nobody asked yet what pollers of it are told.
    #[default]
    NotAsked,
    /// Of every byte.
    Telling,
    /// Likewise, and the last fill found nothing where there were bytes.
    FoundBytes,
    /// Not of every byte, so looks are of no use.
    Hiding,
}

impl Looks {
    /// Before a fill: whether the source is drained, for certain and to be waited for elsewhere.
    pub(super) fn is_quiet(&mut self, source: BorrowedFd<'_>, wait: Wait) -> bool {
        self.ask(source, wait) != Self::Hiding && socket::look(source) == Seen::Nothing
    }

    /// After a fill that found nothing. Bytes are worth another fill, as they have most likely just come; but only one, as those behind an
    /// urgent mark are not for a splice, nor are any that it finds no memory for.
    pub(super) fn after_none(&mut self, source: BorrowedFd<'_>, wait: Wait) -> Seen {
        match self.ask(source, wait) {
            Self::NotAsked | Self::Hiding => Seen::Other,
            Self::FoundBytes => {
                *self = Self::Telling;
                Seen::Other
            }
            Self::Telling => {
                let seen = socket::look(source);
                if seen == Seen::Bytes {
                    *self = Self::FoundBytes;
                }
                seen
            }
        }
    }

    /// A fill found some.
    pub(super) fn after_some(&mut self) {
        if *self == Self::FoundBytes {
            *self = Self::Telling;
        }
    }

    /// Asks what pollers are told, once. Who waits in its calls need not know what to wait for.
    fn ask(&mut self, source: BorrowedFd<'_>, wait: Wait) -> Self {
        if *self == Self::NotAsked {
            let tells =
                wait == Wait::Never && !is_off(Heuristic::ReadinessProbes) && socket::tells_of_every_byte(source);
            *self = if tells { Self::Telling } else { Self::Hiding };
        }
        *self
    }
}
