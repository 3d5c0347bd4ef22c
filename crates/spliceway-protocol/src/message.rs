//! Extracts one message from a stream.

use std::fmt;

/// The bytes of one message that have arrived. The buffer never holds bytes beyond the end of the
/// message.
#[derive(Default)]
pub(super) struct Message {
    held: Vec<u8>,
}

impl Message {
    /// Moves bytes from `input` until the message is complete. Returns the whole message, or `None`
    /// while bytes are missing.
    ///
    /// `length` returns the minimum length of a message that starts with the bytes held. The length
    /// is exact once that many bytes are held. The length bounds the memory, so it must never
    /// exceed the length of the longest message.
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
            append(&mut self.held, taken);
            *input = rest;
        }
    }

    /// Returns the bytes held, for a message that will never be complete.
    pub(super) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Returns a message that begins with these bytes, and is not complete with them.
    pub(super) fn begun(held: Vec<u8>) -> Self {
        Self { held }
    }

    pub(super) fn into_held(self) -> Vec<u8> {
        self.held
    }

    /// Removes the bytes held, so that the next message can start.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }

    /// Returns the allocated memory in bytes.
    #[cfg(test)]
    pub(super) fn room_bytes(&self) -> usize {
        self.held.capacity()
    }
}

/// The room that a buffer may have beyond its bytes. Thousands of clients may send long messages
/// slowly, and doubling would hold twice their bytes.
pub(super) const ROOM_BYTES: usize = 2 << 10;

/// Appends bytes of a message that may grow further.
pub(super) fn append(held: &mut Vec<u8>, bytes: &[u8]) {
    if held.capacity() - held.len() < bytes.len() {
        held.reserve_exact(bytes.len() + held.len().min(ROOM_BYTES));
    }
    held.extend_from_slice(bytes);
}

/// Shows the number of bytes but not the bytes themselves, which may contain a password.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.held.len())
    }
}
