//! The bytes that the connections carry. Each connection and direction has its own stream. It
//! differs from every other stream, and from itself shifted by a page.

use std::fmt;
use std::sync::Arc;

use spliceway_load::Random;

/// The smallest prime above 256 KiB. Streams repeat after this many bytes. A shift by pages,
/// buffers or whole pipes is therefore not a period.
const PERIOD: usize = 262_147;
/// The most bytes for one call. Wherever a stream starts, the block holds this many of its bytes
/// contiguously.
pub(super) const PIECE_MAX: usize = 256 << 10;

/// One block of random bytes. Every stream repeats it, each from its own starting point, so that a
/// comparison is one `memcmp`.
#[derive(Clone)]
pub(super) struct Pattern {
    block: Arc<[u8]>,
}

/// A position in one stream.
#[derive(Clone)]
pub(super) struct Stream {
    block: Arc<[u8]>,
    start: usize,
    /// Bytes before this position.
    pub(super) passed: u64,
}

/// Bytes that do not belong to the stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Position of the first wrong byte in the stream.
    at: u64,
    /// Where the block contains the bytes, as a distance from their expected position. `None` if
    /// the block does not contain them.
    shift: Option<usize>,
}

impl Pattern {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut block: Vec<u8> = (0..PERIOD).map(|_| random.next() as u8).collect();
        block.extend_from_within(..PIECE_MAX);
        Self { block: block.into() }
    }

    /// Returns the stream with this number. Any [`PERIOD`] consecutive numbers start at different
    /// places, so neighbouring streams differ.
    pub(super) fn stream(&self, number: u64) -> Stream {
        // A factor that is not a multiple of the prime maps the residues one to one.
        const FACTOR: u64 = 104_729;
        Stream {
            block: Arc::clone(&self.block),
            start: ((number % PERIOD as u64) * FACTOR % PERIOD as u64) as usize,
            passed: 0,
        }
    }
}

impl Stream {
    fn place(&self) -> usize {
        (self.start + (self.passed % PERIOD as u64) as usize) % PERIOD
    }

    /// Returns the next bytes, at most [`PIECE_MAX`].
    pub(super) fn ahead(&self, bytes: usize) -> &[u8] {
        &self.block[self.place()..][..bytes]
    }

    pub(super) fn pass(&mut self, bytes: usize) {
        self.passed += bytes as u64;
    }

    /// Checks that these are the next bytes, and moves past them.
    pub(super) fn expect(&mut self, found: &[u8]) -> Result<(), Wrong> {
        let expected = self.ahead(found.len());
        if found != expected {
            return Err(self.diagnose(found));
        }
        self.pass(found.len());
        Ok(())
    }

    fn diagnose(&self, found: &[u8]) -> Wrong {
        /// A sequence long enough not to occur twice in the block.
        const WINDOW: usize = 16;
        let good = found.iter().zip(self.ahead(found.len())).take_while(|(a, b)| a == b);
        let good = good.count();
        let rest = &found[good..];
        let window = &rest[..rest.len().min(WINDOW)];
        let place = (self.place() + good) % PERIOD;
        let found_at = self.block.windows(window.len()).position(|other| other == window);
        Wrong {
            at: self.passed + good as u64,
            shift: found_at
                .filter(|_| window.len() == WINDOW)
                .map(|at| (at + PERIOD - place) % PERIOD),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wrong bytes from {} on: ", self.at)?;
        match self.shift {
            Some(shift) => write!(f, "those of {shift} bytes later, or {} earlier", PERIOD - shift),
            None => f.write_str("found nowhere in the pattern"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(stream: &mut Stream, bytes: usize) -> Vec<u8> {
        let taken = stream.ahead(bytes).to_vec();
        stream.pass(bytes);
        taken
    }

    #[test]
    fn a_stream_is_equal_in_pieces_of_any_size() {
        let pattern = Pattern::new(1);
        let (mut sent, mut received) = (pattern.stream(7), pattern.stream(7));
        for size in [1, 4096, PIECE_MAX, 1448, PIECE_MAX, PIECE_MAX - 1, 3] {
            assert_eq!(received.expect(&taken(&mut sent, size)), Ok(()));
        }
        assert_eq!(sent.passed, received.passed);
    }

    #[test]
    fn one_wrong_byte_is_reported_at_its_position() {
        let pattern = Pattern::new(1);
        let mut bytes = taken(&mut pattern.stream(7), PIECE_MAX);
        bytes[99_999] ^= 1;
        let wrong = pattern.stream(7).expect(&bytes).unwrap_err();
        assert_eq!(wrong.at, 99_999);
        assert_eq!(wrong.shift, None);
    }

    #[test]
    fn a_shift_by_a_page_a_buffer_or_a_pipe_is_noticed_and_measured() {
        let pattern = Pattern::new(1);
        for shift in [1, 1448, 4096, 64 << 10, 256 << 10, 1 << 20] {
            let mut ahead = pattern.stream(7);
            ahead.pass(shift);
            let wrong = pattern.stream(7).expect(&taken(&mut ahead, 4096)).unwrap_err();
            assert_eq!(wrong.shift, Some(shift % PERIOD));
        }
    }

    #[test]
    fn the_bytes_of_any_other_stream_are_noticed() {
        let pattern = Pattern::new(1);
        let bytes = taken(&mut pattern.stream(7), 64);
        assert!((0..100_000).all(|other| other == 7 || pattern.stream(other).ahead(64) != bytes));
        let wrong = pattern.stream(8).expect(&bytes).unwrap_err();
        assert_eq!((wrong.at, wrong.shift.is_some()), (0, true));
    }
}
