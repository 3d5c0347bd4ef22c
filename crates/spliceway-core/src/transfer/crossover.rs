//! From how many bytes on a message costs less by two splices than by a recv and a send.

/// Sizes of message for which a copy or two splices may be cheaper, depending on the machine and on what its caches hold: a copy costs by the
/// byte, a splice by the call. Smaller ones are copied everywhere, and ones that fill a receive are spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Middling {
    /// 8 KiB and more.
    Kib8,
    /// 16 KiB and more.
    Kib16,
    /// 32 KiB and more, to below 64 KiB.
    Kib32,
}

impl Middling {
    /// From the smallest to the largest.
    pub const ALL: [Self; 3] = [Self::Kib8, Self::Kib16, Self::Kib32];

    /// The bytes from which on a message is this.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Kib8 => 8 << 10,
            Self::Kib16 => 16 << 10,
            Self::Kib32 => 32 << 10,
        }
    }

    /// What a message of so many bytes is, if it is one of these.
    #[inline]
    #[must_use]
    pub fn of(bytes: usize) -> Option<Self> {
        match bytes >> 13 {
            1 => Some(Self::Kib8),
            2..4 => Some(Self::Kib16),
            4..8 => Some(Self::Kib32),
            _ => None,
        }
    }
}

/// Where to cross over from copying messages to splicing them. Who has a clock can measure it; who has none leaves it at
/// [`AtBulk`](Crossover::AtBulk), which is right where copies are cheap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crossover {
    /// No message is worth a splice unless it fills a receive.
    #[default]
    AtBulk,
    /// Messages of this size and larger ones are.
    At(Middling),
}

impl Crossover {
    /// Whether messages of this size are worth a splice.
    #[must_use]
    pub fn splices(self, size: Middling) -> bool {
        match self {
            Self::AtBulk => false,
            Self::At(least) => size >= least,
        }
    }
}
