//! Cuts one message out of a stream.

use std::fmt;

/// One message of which the first bytes are here. Holds no byte that is not the message's, and none beyond its end.
#[derive(Default)]
pub(super) struct Message {
    held: Vec<u8>,
}

impl Message {
    /// Moves bytes from `input` until the message is whole: all of it, or `None` while it is not.
    ///
    /// `length` tells of what is held how long the message is at least; once that much is held, it is exact. It thereby bounds what
    /// is held: it must never ask for more than the longest message.
    pub(super) fn feed<R>(
        &mut self,
        input: &mut &[u8],
        length: impl Fn(&[u8]) -> Result<usize, R>,
    ) -> Result<Option<&[u8]>, R> {
        loop {
            let missing = length(&self.held)?.saturating_sub(self.held.len());
            if missing == 0 {
                return Ok(Some(&self.held));
            }
            if input.is_empty() {
                return Ok(None);
            }
            let (taken, rest) = input.split_at(missing.min(input.len()));
            self.held.extend_from_slice(taken);
            *input = rest;
        }
    }

    /// What is here of a message that cannot be made whole.
    pub(super) fn held(&self) -> &[u8] {
        &self.held
    }

    /// The next message starts empty.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(super) fn room_bytes(&self) -> usize {
        self.held.capacity()
    }
}

/// Says how much, not what: it may be a secret.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.held.len())
    }
}
