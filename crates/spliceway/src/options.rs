//! The options of a relay, with their defaults.

use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Engine, PipePool, PipeSize};

use crate::cancel::CancelHandle;
use crate::rate_limit::RateLimit;

/// The options of relays. Make them once, and clone them for each
/// [`Relay::with_options`](crate::Relay::with_options).
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
/// None of them turns splicing off, except [`Engine::Copy`].
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
    /// The handle of one relay. The relay sets it, not the caller.
    pub(crate) cancel: Option<CancelHandle>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The options of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectionOptions {
    pub(crate) prefix: Bytes,
    pub(crate) limit: Option<u64>,
    pub(crate) rate: Option<RateLimit>,
}

/// What the end of one stream means for the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HalfClose {
    /// It is passed on as a shutdown of the other stream's writing side, and the other direction
    /// continues, as TCP means it.
    #[default]
    Propagate,
    /// It ends the other direction too, when that has delivered what its source had received by
    /// then: until the source would block, and at most 8 MiB. This is for protocols that never use
    /// half-closed connections. A [limit](RelayOptions::a_to_b_limit) that is reached is such an
    /// end.
    CloseBoth,
}

/// The options of a relay without options.
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

    /// When to splice. Default: [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// The size of pipes. Default: [`PipeSize::Auto`].
    pub fn pipe_size(mut self, pipe_size: PipeSize) -> Self {
        self.pipe_size = pipe_size;
        self
    }

    /// The pool that lends pipes. Default: [`PipePool::global`].
    pub fn pool(mut self, pool: &PipePool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Ends the relay with [`EndReason::IdleTimeout`](crate::EndReason::IdleTimeout) when no byte
    /// was delivered in either direction for this long. Default: never.
    ///
    /// Only silence counts, not age: a download of days outlives it, and so does a relay that its
    /// [`rate_limit`](RelayOptions::rate_limit) holds back. The counts are checked eight times per
    /// timeout, so the relay ends up to an eighth late, and no byte pays for a timer. A timeout of
    /// 0 ends the relay at once; `None` means never.
    ///
    /// Bytes in flight are lost then, and counted. The streams are not shut down. Streams that the
    /// relay owns are dropped with it, which a peer cannot tell from an end of stream. Lend them
    /// (`&mut a`) to end them in another way.
    ///
    /// # Panics
    /// The relay panics when polled outside of a tokio runtime with its time driver enabled.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.idle_timeout = timeout.into();
        self
    }

    /// Ends the relay with [`EndReason::HalfCloseTimeout`](crate::EndReason::HalfCloseTimeout) when
    /// one direction has ended and the other one delivered no byte for this long. Default: never,
    /// because the answer to a request may take its time.
    ///
    /// It starts with the first end, which may be a [limit](RelayOptions::a_to_b_limit), and starts
    /// again with every byte. Its precision is that of
    /// [`idle_timeout`](RelayOptions::idle_timeout), which continues to apply. `None` means never.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn half_close_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.half_close_timeout = timeout.into();
        self
    }

    /// What the end of one stream means for the relay. Default: [`HalfClose::Propagate`].
    pub fn half_close(mut self, half_close: HalfClose) -> Self {
        self.half_close = half_close;
        self
    }

    /// Whether an early answer is delivered. Default: no, as with tokio's function.
    ///
    /// A server that answers in the middle of an upload and closes, as with "413 Content Too
    /// Large", resets the connection. The next write to it fails, and the answer is still in the
    /// receive queue of the relay's socket. With this option, a write that fails does not end the
    /// relay at once:
    ///
    /// 1. The other side gets what the failed side has already sent: at most 8 MiB, and for at most
    ///    30 s. If that is not all of it, [`pass_resets`](RelayOptions::pass_resets) makes the
    ///    close of the other side a reset.
    /// 2. The other side gets the end of the stream, and no reset.
    /// 3. What the other side still sends is read and discarded until it finishes, for at most 5 s
    ///    and 16 MiB. (A socket that is closed with bytes unread resets its peer, which can destroy
    ///    the answer.)
    ///
    /// Then the relay ends with the error of the write. Bytes that the failed side did not get
    /// count as [`lost`](crate::DirectionSummary::lost), including those that were discarded. A
    /// *read* that fails while the other side still sends is handled in the same way. A
    /// [`CancelHandle`] ends all this at once.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a stream fails.
    pub fn early_answers(mut self, deliver: bool) -> Self {
        self.early_answers = deliver;
        self
    }

    /// Whether a reset of one side is passed on to the other as a reset. Default: no, as with
    /// tokio's function: the error ends the relay, its streams are closed, and the other side reads
    /// an end of stream. It cannot tell a truncated stream from a complete one.
    ///
    /// With this option, a read that fails makes the close of the other TCP socket a reset
    /// (`SO_LINGER` with a time of 0). The relay waits until the other side has acknowledged every
    /// earlier byte (`SIOCOUTQ` is 0), because such a close discards what is still queued. No event
    /// tells that, so the relay checks after 1 ms and then at intervals that double up to 64 ms,
    /// for at most 30 s. It ends with the error of the read. The reset is sent when the socket is
    /// closed, so a caller that lends the streams decides when.
    ///
    /// A Unix socket has no reset: it is closed. After an [early
    /// answer](RelayOptions::early_answers), the other side gets an end of stream.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a read fails.
    pub fn pass_resets(mut self, pass: bool) -> Self {
        self.pass_resets = pass;
        self
    }

    /// Bytes that `b` gets first, for example bytes that were read from `a` behind a handshake.
    /// They count as copied, and not towards [`a_to_b_limit`](RelayOptions::a_to_b_limit) or a
    /// rate. The last call counts. Default: none.
    pub fn a_to_b_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.a_to_b.prefix = bytes.into();
        self
    }

    /// Bytes that `a` gets first: see [`a_to_b_prefix`](RelayOptions::a_to_b_prefix).
    pub fn b_to_a_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.b_to_a.prefix = bytes.into();
        self
    }

    /// Ends the direction from `a` to `b` when this many bytes were read from `a` and `b` has them.
    /// Default: no limit.
    ///
    /// Not one byte more is read: what follows can be read from `a` afterwards. `b` is not shut
    /// down, because nothing has ended, and can be written to. (Lend the streams to use them again:
    /// a stream that is dropped with bytes unread resets its peer.) A stream that ends with its
    /// last allowed byte is at its limit, not at its end, so `eof` stays `false`. From a socket of
    /// records (`SOCK_SEQPACKET`), the record that reaches the limit is read whole.
    pub fn a_to_b_limit(mut self, bytes: u64) -> Self {
        self.a_to_b.limit = Some(bytes);
        self
    }

    /// The same limit from `b` to `a`.
    pub fn b_to_a_limit(mut self, bytes: u64) -> Self {
        self.b_to_a.limit = Some(bytes);
        self
    }

    /// Both directions together read no more than this [`RateLimit`] allows, with everything else
    /// that shares it. Default: none. A direction has one rate limit: of this and the two below,
    /// the last call counts.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        self.a_to_b_rate_limit(limit).b_to_a_rate_limit(limit)
    }

    /// The direction from `a` to `b` reads no more than this [`RateLimit`] allows. Default: none.
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

/// The options of [`copy_with_options`](crate::copy_with_options), which are those of one direction
/// of a relay: see [`RelayOptions`] for each.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CopyOptions(pub(crate) RelayOptions);

impl CopyOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self(RelayOptions::new())
    }

    /// When to splice. Default: [`Engine::Auto`].
    pub fn engine(self, engine: Engine) -> Self {
        Self(self.0.engine(engine))
    }

    /// The size of pipes. Default: [`PipeSize::Auto`].
    pub fn pipe_size(self, pipe_size: PipeSize) -> Self {
        Self(self.0.pipe_size(pipe_size))
    }

    /// The pool that lends pipes. Default: [`PipePool::global`].
    pub fn pool(self, pool: &PipePool) -> Self {
        Self(self.0.pool(pool))
    }

    /// Bytes that the writer gets first. Default: none.
    pub fn prefix(self, bytes: impl Into<Bytes>) -> Self {
        Self(self.0.a_to_b_prefix(bytes))
    }

    /// Reads no more than this many bytes. Default: no limit.
    pub fn limit(self, bytes: u64) -> Self {
        Self(self.0.a_to_b_limit(bytes))
    }

    /// Reads no more than this [`RateLimit`] allows. Default: none.
    ///
    /// # Panics
    /// As with [`RelayOptions::rate_limit`].
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        Self(self.0.a_to_b_rate_limit(limit))
    }
}
