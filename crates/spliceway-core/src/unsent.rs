//! The bytes of a direction in user space.

/// Bytes in user space that the sink has not accepted yet.
#[derive(Debug)]
pub(crate) enum Unsent {
    Nothing,
    /// In the caller's scratch buffer, which the splicer may use only until it is parked.
    InScratch {
        start: usize,
        end: usize,
    },
    Owned {
        bytes: Vec<u8>,
        start: usize,
    },
}

impl Unsent {
    pub(crate) fn bytes<'a>(&'a self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Nothing => &[],
            Self::InScratch { start, end } => &scratch[*start..*end],
            Self::Owned { bytes, start } => &bytes[*start..],
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::InScratch { start, end } => *end - *start,
            Self::Owned { bytes, start } => bytes.len() - *start,
        }
    }

    /// Discards the bytes that were sent, and frees the memory after the last byte. Returns the
    /// number of bytes that are left.
    pub(crate) fn advance(&mut self, sent: usize) -> usize {
        if let Self::InScratch { start, .. } | Self::Owned { start, .. } = self {
            *start += sent;
        }
        let left = self.len();
        if left == 0 {
            *self = Self::Nothing;
        }
        left
    }
}
