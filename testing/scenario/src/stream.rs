//! One peer's stream to the other peer: its bytes by position, and the part that has arrived.

use std::collections::VecDeque;
use std::sync::LazyLock;

/// The length of the table from which all streams are cut, each at its own position. It is a prime,
/// so that the table does not repeat at any power of two.
const TABLE_BYTES: usize = 262_139;

/// Ordinary bytes are below this and urgent bytes are not, so that neither is mistaken for the
/// other.
const URGENT: u8 = 0x80;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 & !URGENT
    };
    std::iter::repeat_with(byte).take(TABLE_BYTES).collect()
});

/// A stream, with the bytes sent and received so far.
#[derive(Debug)]
pub(crate) struct Stream {
    offset: u64,
    sent: u64,
    sent_urgent: u64,
    /// Positions and values of the urgent bytes that the receiver has not reached.
    urgent_ahead: VecDeque<(u64, u8)>,
    at: u64,
    passed_urgent: u64,
    /// Bytes that the receiver got: its position minus the urgent bytes that it did not get.
    received: u64,
}

impl Stream {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            // Any two streams start more than one pipe fill apart.
            offset: number as u64 * 33_331,
            sent: 0,
            sent_urgent: 0,
            urgent_ahead: VecDeque::new(),
            at: 0,
            passed_urgent: 0,
            received: 0,
        }
    }

    /// Returns up to `count` of the next bytes to send.
    pub(crate) fn next(&self, count: usize) -> &'static [u8] {
        self.from(self.sent, count)
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.sent += count as u64;
    }

    /// Returns the next urgent byte to send. It differs from the other urgent bytes in flight.
    pub(crate) fn next_urgent(&self) -> u8 {
        URGENT | self.sent_urgent as u8
    }

    pub(crate) fn sent_urgent(&mut self) {
        self.urgent_ahead.push_back((self.sent, self.next_urgent()));
        self.sent += 1;
        self.sent_urgent += 1;
    }

    /// Records received bytes, which must be the next ones.
    pub(crate) fn receive(&mut self, mut got: &[u8]) {
        self.received += got.len() as u64;
        while !got.is_empty() {
            let run = match self.urgent_ahead.front() {
                Some(&(place, value)) if place == self.at => {
                    // An urgent byte is delivered only if a later one replaced it.
                    got = got.strip_prefix(&[value]).unwrap_or(got);
                    self.urgent_ahead.pop_front();
                    self.at += 1;
                    self.passed_urgent += 1;
                    continue;
                }
                Some(&(place, _)) => place - self.at,
                None => self.sent - self.at,
            };
            let want = self.from(self.at, got.len().min(usize::try_from(run).unwrap_or(usize::MAX)));
            assert!(
                !want.is_empty(),
                "{} bytes arrived that were not sent: {self:?}",
                got.len()
            );
            let (here, rest) = got.split_at(want.len());
            if here != want {
                let same = here.iter().zip(want).take_while(|(got, want)| got == want).count();
                panic!("a wrong byte arrived at {} of {self:?}", self.at + same as u64);
            }
            self.at += want.len() as u64;
            got = rest;
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of ordinary bytes that were sent but not received.
    pub(crate) fn outstanding(&self) -> u64 {
        self.ordinary() - (self.at - self.passed_urgent)
    }

    /// Returns whether this many bytes can be the whole stream.
    pub(crate) fn may_be_all(&self, bytes: u64) -> bool {
        (self.ordinary()..=self.sent).contains(&bytes)
    }

    fn ordinary(&self) -> u64 {
        self.sent - self.sent_urgent
    }

    fn from(&self, place: u64, count: usize) -> &'static [u8] {
        let start = ((self.offset + place) % TABLE_BYTES as u64) as usize;
        &TABLE[start..TABLE_BYTES.min(start + count)]
    }
}
