//! Random numbers that a seed reproduces: SplitMix64 (Steele, Lea, Flood 2014).

/// A generator. Its seed is its whole state.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the sequence is infinite")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number that is at least 0 and below 1. The steps are even, and as fine as an `f64`
    /// permits in the whole range.
    pub fn fraction(&mut self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        (self.next() >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
    }

    /// Returns a number in the range, both ends included. The bias of the remainder does not matter
    /// here.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Returns a number in the range with a uniform *order of magnitude*: as many numbers are from
    /// 1 to 2 KiB as from 1 to 2 MiB.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low).max(1).ilog2();
        let base = low << self.between(0, u64::from(doublings));
        self.between(base, (2 * base).min(high).max(base))
    }

    /// Returns true once in `count` times, on average.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}
