//! What a caller may choose about a relay, with its default.

use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Engine, PipePool, PipeSize};

use crate::cancel::CancelHandle;
use crate::rate_limit::RateLimit;

/// How relays work: made once, cloned for each. [`Relay`](crate::Relay) has the same methods for one relay.
///
/// ```
/// use std::time::Duration;
/// use spliceway::{HalfClose, Relay, RelayOptions};
///
/// let options = RelayOptions::new()
///     .idle_timeout(Duration::from_secs(300))
///     .half_close_timeout(Duration::from_secs(30))
///     .half_close(HalfClose::Propagate);
/// # async fn relay(a: tokio::net::TcpStream, b: tokio::net::TcpStream, options: &RelayOptions) {
/// let summary = Relay::with_options(a, b, options.clone()).await;
/// # }
/// ```
///
/// None of them turns splicing off.
#[derive(Clone, Debug)]
#[must_use]
pub struct RelayOptions {
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pool: Option<PipePool>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) half_close_timeout: Option<Duration>,
    pub(crate) half_close: HalfClose,
    pub(crate) early_answers: bool,
    pub(crate) pass_resets: bool,
    pub(crate) a_to_b: DirectionOptions,
    pub(crate) b_to_a: DirectionOptions,
    /// One relay's own.
    pub(crate) cancel: Option<CancelHandle>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What holds for one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectionOptions {
    pub(crate) prefix: Bytes,
    pub(crate) limit: Option<u64>,
    pub(crate) rate: Option<RateLimit>,
}

/// What the end of one stream means for the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HalfClose {
    /// It is passed on as a shutdown of the other's writing side, and the other direction goes on, as TCP means it.
    #[default]
    Propagate,
    /// It ends the other direction too, when that has delivered what its source had received by then: until the source would wait,
    /// and 8 MiB at most. For protocols that never use half-closed connections, where the end of one side means that the other is
    /// waited for in vain. A [limit](RelayOptions::a_to_b_limit) that is reached is such an end.
    CloseBoth,
}

/// What relays have that nobody chose anything for.
pub(crate) static DEFAULT: RelayOptions = RelayOptions::new();

impl RelayOptions {
    /// The defaults.
    pub const fn new() -> Self {
        const OWN: DirectionOptions = DirectionOptions {
            prefix: Bytes::new(),
            limit: None,
            rate: None,
        };
        Self {
            engine: Engine::Auto,
            pipe_size: PipeSize::Auto,
            pool: None,
            idle_timeout: None,
            half_close_timeout: None,
            half_close: HalfClose::Propagate,
            early_answers: false,
            pass_resets: false,
            a_to_b: OWN,
            b_to_a: OWN,
            cancel: None,
        }
    }

    /// When to splice. Default [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Which pipes to use. Default [`PipeSize::Auto`].
    pub fn pipe_size(mut self, pipe_size: PipeSize) -> Self {
        self.pipe_size = pipe_size;
        self
    }

    /// Where pipes come from. Default [`PipePool::global`].
    pub fn pool(mut self, pool: &PipePool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Ends the relay, with [`EndReason::IdleTimeout`](crate::EndReason::IdleTimeout), when no byte was delivered either way for so
    /// long. Default: never.
    ///
    /// It is silence that counts, not age: a download of days outlives it, and so does a relay that its
    /// [`rate_limit`](RelayOptions::rate_limit) holds back. The live counts are looked at eight times per timeout, so the relay ends
    /// after one time to one and an eighth times it, and no byte that moves pays for a timer. 0 ends the relay at once; `None` is
    /// "never".
    ///
    /// What is in flight then is lost, and counted so. The streams are not shut down: those that the relay owns are dropped with it, and a
    /// peer cannot tell that from an end. Lend them, `&mut a`, to end them otherwise.
    ///
    /// # Panics
    /// The relay does, when polled outside of a tokio runtime with its time driver enabled.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.idle_timeout = timeout.into();
        self
    }

    /// Ends the relay, with [`EndReason::HalfCloseTimeout`](crate::EndReason::HalfCloseTimeout), when one direction has ended and the
    /// other delivered no byte for so long. Default: never, as the answer to a request that ended may take its time; what is lost by
    /// that is a connection whose peer has gone away unnoticed.
    ///
    /// It starts with the first end, which may be a [limit](RelayOptions::a_to_b_limit), and starts again with every byte, with the precision of
    /// [`idle_timeout`](RelayOptions::idle_timeout), which goes on to hold as well. `None` is "never".
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn half_close_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.half_close_timeout = timeout.into();
        self
    }

    /// What the end of one stream means for the relay. Default [`HalfClose::Propagate`].
    pub fn half_close(mut self, half_close: HalfClose) -> Self {
        self.half_close = half_close;
        self
    }

    /// Whether an early answer is delivered. Default: no, as with tokio's function.
    ///
    /// A server that answers in the middle of an upload and closes, as with "413 Content Too Large", resets the connection. The next write
    /// to it fails, and the answer is still in the receive queue of the relay's socket. With this option, a write that fails does not end the
    /// relay at once:
    ///
    /// 1. What the failed side has already sent is delivered to the other side: at most 8 MiB, and for at most 30 s.
    ///    If that is not all of it, [`pass_resets`](RelayOptions::pass_resets) makes the close of the other side a reset.
    /// 2. The other side gets the end of the stream, and no reset.
    /// 3. What the other side still sends is read and discarded until it finishes, for at most 5 s and 16 MiB. (A socket that is closed
    ///    with bytes unread resets its peer, which can destroy the answer.)
    ///
    /// Then the relay ends with the error of the write. Bytes that the failed side did not get, those discarded included, count as
    /// [`lost`](crate::DirectionSummary::lost). A *read* that fails while the other side still sends is handled in the same way. A
    /// [`CancelHandle`] ends all this at once.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a stream fails.
    pub fn early_answers(mut self, deliver: bool) -> Self {
        self.early_answers = deliver;
        self
    }

    /// Whether a reset of one side is passed on to the other as a reset. Default: no, as with tokio's function: the error ends the relay,
    /// its streams are closed, and the other side reads an end of stream. It cannot tell a truncated stream from a complete one.
    ///
    /// With this option, a read that fails makes the close of the other TCP socket a reset (`SO_LINGER` with a time of 0). The relay waits
    /// until the other side has acknowledged every byte before (`SIOCOUTQ` is 0), because such a close discards what is still queued. No
    /// event tells that, so the relay checks after 1 ms and then at intervals that double up to 64 ms, for at most 30 s. It ends with the
    /// error of the read; the reset is sent when the socket is closed, so a caller that lends the streams decides when.
    ///
    /// A Unix socket has no reset: it is closed. After an [early answer](RelayOptions::early_answers) the other side gets an end of stream.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a read fails.
    pub fn pass_resets(mut self, pass: bool) -> Self {
        self.pass_resets = pass;
        self
    }

    /// Bytes that `b` gets first: what was read from `a` before the relay, behind a handshake say. They count as copied, and not
    /// towards [`a_to_b_limit`](RelayOptions::a_to_b_limit) or a rate. The last call counts. Default: none.
    pub fn a_to_b_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.a_to_b.prefix = bytes.into();
        self
    }

    /// Bytes that `a` gets first.
    pub fn b_to_a_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.b_to_a.prefix = bytes.into();
        self
    }

    /// Ends the direction from `a` to `b` when so many bytes were taken from `a` and `b` has them. Default: no limit.
    ///
    /// Not one byte more is taken: what follows can be read from `a` afterwards. `b` is not shut down, because nothing has ended, and
    /// can be written to. (Lend the streams, `&mut a`, to use them on: a stream that is dropped with bytes unread resets its peer.) A
    /// stream that ends with its last byte allowed is at its limit, not at its end: `eof` stays `false`. Of a socket of records
    /// (`SOCK_SEQPACKET`) the one that reaches the limit is taken whole.
    pub fn a_to_b_limit(mut self, bytes: u64) -> Self {
        self.a_to_b.limit = Some(bytes);
        self
    }

    /// The same from `b` to `a`.
    pub fn b_to_a_limit(mut self, bytes: u64) -> Self {
        self.b_to_a.limit = Some(bytes);
        self
    }

    /// Both directions take no more than this [`RateLimit`] allows them together, and whoever else shares it. Default: none. A direction
    /// has one limit: of this and the two below, the last call for it counts.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        self.a_to_b_rate_limit(limit).b_to_a_rate_limit(limit)
    }

    /// The direction from `a` to `b` takes no more than this [`RateLimit`] allows. Default: none.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn a_to_b_rate_limit(mut self, limit: &RateLimit) -> Self {
        self.a_to_b.rate = Some(limit.clone());
        self
    }

    /// The same from `b` to `a`.
    pub fn b_to_a_rate_limit(mut self, limit: &RateLimit) -> Self {
        self.b_to_a.rate = Some(limit.clone());
        self
    }

    pub(crate) fn the_pool(&self) -> PipePool {
        self.pool.as_ref().unwrap_or_else(|| PipePool::global()).clone()
    }
}
