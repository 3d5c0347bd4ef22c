//! Bytes in user space between a receive and the sends that deliver them.

/// Bytes in user space that the sink has not taken yet.
#[derive(Debug, Default)]
pub(super) enum Rest {
    #[default]
    Nothing,
    /// In the caller's scratch buffer, which is only lent until the mover parks.
    InScratch {
        start: usize,
        end: usize,
    },
    Owned {
        bytes: Vec<u8>,
        start: usize,
    },
}

impl Rest {
    pub(super) fn bytes<'a>(&'a self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Nothing => &[],
            Self::InScratch { start, end } => &scratch[*start..*end],
            Self::Owned { bytes, start } => &bytes[*start..],
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::InScratch { start, end } => *end - *start,
            Self::Owned { bytes, start } => bytes.len() - *start,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Forgets what was sent, and with the last byte the memory: how many bytes are left.
    pub(super) fn advance(&mut self, sent: usize) -> usize {
        let left = match self {
            Self::Nothing => 0,
            Self::InScratch { start, end } => {
                *start += sent;
                *end - *start
            }
            Self::Owned { bytes, start } => {
                *start += sent;
                bytes.len() - *start
            }
        };
        if left == 0 {
            *self = Self::Nothing;
        }
        left
    }
}
