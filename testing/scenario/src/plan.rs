//! The plan of a scenario: the actions of its peers, and the relays between them.

use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use spliceway_core::{Engine, Limits, PipeSize, SizeClass};

/// A scenario: relays that share a pool. Most scenarios have one relay.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The pool that the relays share.
    pub pool: PoolPlan,
    /// One to three relays.
    pub relays: Vec<RelayPlan>,
}

/// This implementation is written by hand, because libFuzzer's way of drawing lets the last field
/// use the remaining bytes. The implementation gives the same plan for either way of drawing.
impl Arbitrary<'_> for Plan {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let pool = u.arbitrary()?;
        let count = one_of(&[1, 1, 1, 1, 1, 1, 2, 3])(u)?;
        let relays = (0..count).map(|_| u.arbitrary()).collect::<Result<_>>()?;
        Ok(Self { pool, relays })
    }
}

impl Plan {
    /// Returns the plan that these bytes represent. Any bytes are a plan: zeroes replace the bytes
    /// that are missing at the end.
    ///
    /// # Panics
    /// Never panics.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::arbitrary(&mut Unstructured::new(bytes)).expect("any bytes are a plan")
    }
}

/// A pool's limits, mostly too small.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct PoolPlan {
    /// The number of pipes that the pool may open.
    #[arbitrary(with = one_of(&[1, 2, 3, 8, 0, 1, 2, 8]))]
    pub pipes: usize,
    /// The number of pages that these pipes may have.
    #[arbitrary(with = one_of(&[16, 32, 64, 1024, 80, 8, 1024, 1024]))]
    pub pages: usize,
    /// The number of idle pipes that a thread keeps.
    #[arbitrary(with = one_of(&[16, 0, 1, 2]))]
    pub idle_per_thread: usize,
}

/// One relay and its two peers.
#[derive(Arbitrary, Clone, Debug)]
pub struct RelayPlan {
    /// How the relay decides between splice and copy.
    #[arbitrary(with = one_of(&[Engine::Auto, Engine::Splice, Engine::Auto, Engine::Copy]))]
    pub engine: Engine,
    /// The pipe size of the relay.
    #[arbitrary(with = one_of(&[
        PipeSize::Auto,
        PipeSize::Fixed(SizeClass::Kib64),
        PipeSize::Auto,
        PipeSize::Fixed(SizeClass::Kib256),
        PipeSize::Auto,
        PipeSize::Fixed(SizeClass::Mib1),
    ]))]
    pub pipe_size: PipeSize,
    /// When the relay is polled without being woken, and when it is dropped.
    pub driving: Driving,
    /// The peer at the relay's `a`.
    pub near: PeerPlan,
    /// The peer at the relay's `b`.
    pub far: PeerPlan,
}

/// How a relay is driven.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Driving {
    /// The relay is dropped after this many polls.
    #[arbitrary(with = rarely)]
    pub cancel_after: Option<u8>,
    /// The relay is polled in every pass, even if it was not woken.
    #[arbitrary(with = one_in_eight)]
    pub spurious: bool,
    /// The relay parks after this many calls and continues in the next pass. (Only splicers do
    /// this, because a future cannot be interrupted there.)
    #[arbitrary(with = rarely)]
    pub calls_per_turn: Option<u8>,
}

/// A peer. It writes and reads at the same time, and follows each list in order. After its last
/// `Read`, it reads to the end.
#[derive(Arbitrary, Clone, Debug)]
pub struct PeerPlan {
    /// The kind of the peer's connection.
    #[arbitrary(with = one_of(&[Family::Tcp, Family::Tcp, Family::Tcp, Family::Unix]))]
    pub family: Family,
    /// Whether the peer's send buffer is small.
    pub small: bool,
    /// Whether the relay's socket has a small send buffer.
    pub relay_small: bool,
    /// The actions on the stream that the peer sends.
    #[arbitrary(with = up_to_eight)]
    pub writes: Vec<Write>,
    /// The actions on the stream that the peer receives.
    #[arbitrary(with = up_to_eight)]
    pub reads: Vec<Read>,
}

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// TCP over loopback.
    Tcp,
    /// A pair of Unix stream sockets.
    Unix,
}

/// An action on the stream that a peer sends.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    /// Writes this many bytes.
    Bytes(Amount),
    /// Sends one urgent byte (an ordinary byte if the connection has no urgent data).
    Urgent,
    /// Waits until nothing else moves.
    Wait,
    /// Waits for this many passes.
    Pause(u8),
    /// Shuts down the peer's writing side.
    Finish,
    /// Closes with a reset.
    Reset,
    /// Closes.
    Close,
}

/// An action on the stream that a peer receives.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    /// Reads this many bytes, or fewer if the stream ends earlier.
    Bytes(Amount),
    /// Reads until no bytes are available.
    Drain,
    /// Waits until nothing else moves.
    Stall,
    /// Waits for this many passes.
    Pause(u8),
}

/// 1 byte to 600 KiB: small messages, segments, and amounts that fill pipes.
#[derive(Clone, Copy, Debug)]
pub struct Amount(pub u32);

/// Draws from one byte. The derived implementation uses four.
impl Arbitrary<'_> for Write {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u8::arbitrary(u)? % 10 {
            0..=3 => Self::Bytes(u.arbitrary()?),
            4 => Self::Urgent,
            5 => Self::Wait,
            6 => Self::Pause(turns(u)?),
            7 => Self::Finish,
            8 => Self::Reset,
            _ => Self::Close,
        })
    }
}

impl Arbitrary<'_> for Read {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match u8::arbitrary(u)? % 4 {
            0 => Self::Bytes(u.arbitrary()?),
            1 => Self::Drain,
            2 => Self::Stall,
            _ => Self::Pause(turns(u)?),
        })
    }
}

impl Arbitrary<'_> for Amount {
    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        const KIB: u32 = 1 << 10;
        // Sizes at which the engine's decision changes, and their neighbours.
        const EDGES: [u32; 8] = [
            1,
            4 * KIB,
            16 * KIB,
            64 * KIB,
            128 * KIB,
            192 * KIB,
            256 * KIB,
            512 * KIB,
        ];
        let (kind, size) = (u8::arbitrary(u)?, u8::arbitrary(u)?);
        Ok(Self(match kind % 4 {
            0 => u32::from(size) + 1,
            1 => (u32::from(size) + 1) * 64,
            2 => EDGES[usize::from(size % 8)] + u32::from(size / 8 % 3) - u32::from(size % 8 > 0),
            _ => (u32::from(size) + 1) * 2400,
        }))
    }
}

impl PoolPlan {
    /// Returns the limits of a pool.
    #[must_use]
    pub fn limits(self) -> Limits {
        // Read only once, because this opens three files.
        static OF_THIS_PROCESS: LazyLock<Limits> = LazyLock::new(Limits::of_this_process);
        OF_THIS_PROCESS
            .clone()
            .with_max_pipes(self.pipes)
            .with_max_pages(self.pages)
            .with_idle_per_thread(self.idle_per_thread)
            // A little longer than a scenario. The pool's reaper outlives the pool by half of this
            // time.
            .with_idle_timeout(Duration::from_millis(200))
    }
}

impl Driving {
    /// Returns whether this was the last poll before the relay is dropped.
    pub(crate) fn is_cancelled(&mut self) -> bool {
        self.cancel_after.as_mut().is_some_and(|left| {
            *left -= 1;
            *left == 0
        })
    }
}

fn up_to_eight<'input, T: Arbitrary<'input>>(u: &mut Unstructured<'input>) -> Result<Vec<T>> {
    up_to_eight_of(u, Unstructured::arbitrary)
}

/// Draws up to eight items, and none if the input has ended. (The usual implementation would read a
/// collection's length from the end of the input.)
fn up_to_eight_of<'input, T>(
    u: &mut Unstructured<'input>,
    draw: impl Fn(&mut Unstructured<'input>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = u8::arbitrary(u)? % 9;
    (0..count).map_while(|_| (!u.is_empty()).then(|| draw(u))).collect()
}

fn rarely(u: &mut Unstructured<'_>) -> Result<Option<u8>> {
    let byte = u8::arbitrary(u)?;
    Ok((byte >= 224).then(|| byte - 223))
}

fn one_in_eight(u: &mut Unstructured<'_>) -> Result<bool> {
    Ok(u8::arbitrary(u)? >= 224)
}

fn turns(u: &mut Unstructured<'_>) -> Result<u8> {
    Ok(u8::arbitrary(u)? % 8 + 1)
}

fn one_of<T: Copy>(choices: &'static [T]) -> impl Fn(&mut Unstructured<'_>) -> Result<T> {
    |u| Ok(choices[usize::from(u8::arbitrary(u)?) % choices.len()])
}
