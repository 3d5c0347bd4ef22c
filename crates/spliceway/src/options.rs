//! The options of a relay, with their defaults.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use spliceway_core::{Engine, PipePool, PipeSize};

use crate::outcome::Peer;
use crate::rate_limit::RateLimit;

/// The options of relays. Create them once, and clone them for each
/// [`Relay::with_options`](crate::Relay::with_options). The relays then share a pool and a rate
/// limit, and each of them sends the same prefix.
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
/// Only [`Engine::Copy`] turns splicing off.
#[derive(Clone, Debug)]
#[must_use]
pub struct RelayOptions {
    /// What clones share until one of them changes it. `None` means the defaults.
    shared: Option<Arc<Options>>,
    /// The bytes that `b` receives first. They are kept apart, so that relays with different bytes
    /// share the other options.
    pub(crate) a_to_b_prefix: Bytes,
    /// The bytes that `a` receives first.
    pub(crate) b_to_a_prefix: Bytes,
}

/// The options of a relay, without the bytes that each side receives first.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pool: Option<PipePool>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) half_close_timeout: Option<Duration>,
    pub(crate) half_close: HalfClose,
    pub(crate) early_answers: EarlyAnswers,
    pub(crate) pass_resets: bool,
    pub(crate) a_to_b: DirectionOptions,
    pub(crate) b_to_a: DirectionOptions,
    /// The time for which the relay had moved nothing when it was suspended. The relay sets it.
    pub(crate) idle: Duration,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The options of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectionOptions {
    pub(crate) limit: Option<u64>,
    pub(crate) rate: Option<RateLimit>,
    pub(crate) begin: Begin,
}

/// How a direction begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Begin {
    #[default]
    New,
    /// The source is a new socket: see [`RelayOptions::new_socket`].
    NewSocket,
    /// Another relay has moved bytes, and may not have flushed its writes.
    Resumed,
    /// As above, and the other direction has ended this one.
    ResumedToFinish,
}

/// How the relay reacts to the end of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HalfClose {
    /// The relay shuts down the writing side of the other stream. The other direction continues, as
    /// TCP intends.
    #[default]
    Propagate,
    /// The end of one stream ends the other direction too. First, that direction delivers what its
    /// source has received by then. The direction reads until the source would block, and at most 8
    /// MiB. This choice is for protocols that never use half-closed connections. A direction that
    /// reaches its [limit](RelayOptions::a_to_b_limit) also counts as ended.
    CloseBoth,
}

/// Whose early answers are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlyAnswers {
    No,
    Both,
    /// Answers to this peer.
    To(Peer),
}

impl Options {
    const fn new() -> Self {
        const OWN: DirectionOptions = DirectionOptions {
            limit: None,
            rate: None,
            begin: Begin::New,
        };
        Self {
            engine: Engine::Auto,
            pipe_size: PipeSize::Auto,
            pool: None,
            idle_timeout: None,
            half_close_timeout: None,
            half_close: HalfClose::Propagate,
            early_answers: EarlyAnswers::No,
            pass_resets: false,
            a_to_b: OWN,
            b_to_a: OWN,
            idle: Duration::ZERO,
        }
    }

    pub(crate) fn the_pool(&self) -> PipePool {
        self.pool.as_ref().unwrap_or_else(|| PipePool::global()).clone()
    }
}

/// Returns the options of a relay, which may have been created without options.
pub(crate) fn or_default(options: &Option<Arc<Options>>) -> &Options {
    static DEFAULT: Options = Options::new();
    options.as_deref().unwrap_or(&DEFAULT)
}

impl RelayOptions {
    /// Returns the default options.
    pub const fn new() -> Self {
        Self {
            shared: None,
            a_to_b_prefix: Bytes::new(),
            b_to_a_prefix: Bytes::new(),
        }
    }

    /// Returns all but the prefixes.
    pub(crate) fn shared(&self) -> &Options {
        or_default(&self.shared)
    }

    /// Returns all but the prefixes, for a relay that keeps them.
    pub(crate) fn into_shared(self) -> Option<Arc<Options>> {
        self.shared
    }

    /// Returns what to change. Clones keep what they have.
    pub(crate) fn change(&mut self) -> &mut Options {
        Arc::make_mut(self.shared.get_or_insert_with(|| Arc::new(Options::new())))
    }

    /// Sets when to splice. Default: [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.change().engine = engine;
        self
    }

    /// Sets the size of pipes. Default: [`PipeSize::Auto`].
    pub fn pipe_size(mut self, pipe_size: PipeSize) -> Self {
        self.change().pipe_size = pipe_size;
        self
    }

    /// Sets the pool that lends pipes. Default: [`PipePool::global`].
    pub fn pool(mut self, pool: &PipePool) -> Self {
        self.change().pool = Some(pool.clone());
        self
    }

    /// Ends the relay with [`EndReason::IdleTimeout`](crate::EndReason::IdleTimeout) if no byte has
    /// been delivered in either direction for this long. Default: never.
    ///
    /// Only idle time counts, so a download may run for days. A relay that its
    /// [`rate_limit`](RelayOptions::rate_limit) holds back is not idle. (If it copies streams that
    /// are not sockets, this holds while it reads. After a silence, it does not know whether bytes
    /// wait.) The relay does not restart a timer for each byte. It checks the counts 8 times per
    /// timeout, so it may end late by up to 1/8 of the timeout. A timeout of 0 ends the relay
    /// immediately. `None` means never.
    ///
    /// Bytes in flight are then lost and counted. The streams are not shut down. Streams that the
    /// relay owns are dropped with it, and a peer cannot distinguish this from an end of stream.
    /// Lend the streams (`&mut a`) to close them in another way.
    ///
    /// # Panics
    /// The relay panics when it is polled outside a tokio runtime, or in one without the time
    /// driver.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.change().idle_timeout = timeout.into();
        self
    }

    /// Ends the relay with [`EndReason::HalfCloseTimeout`](crate::EndReason::HalfCloseTimeout) if
    /// one direction has ended and the other one delivers no byte for this long. Default: never,
    /// because the answer to a request may take a long time.
    ///
    /// The timeout starts when the first direction ends or reaches its
    /// [limit](RelayOptions::a_to_b_limit), and every byte restarts it. It is as precise as
    /// [`idle_timeout`](RelayOptions::idle_timeout), which continues to apply. `None` means never.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn half_close_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.change().half_close_timeout = timeout.into();
        self
    }

    /// Sets how the relay reacts to the end of one stream. Default: [`HalfClose::Propagate`].
    pub fn half_close(mut self, half_close: HalfClose) -> Self {
        self.change().half_close = half_close;
        self
    }

    /// Sets whether to deliver an early answer. Default: no, as with tokio's function.
    ///
    /// A server may answer in the middle of an upload and close, for example with "413 Content Too
    /// Large". This resets the connection. The next write to the server fails, and the answer is
    /// still in the receive queue of the relay's socket. With this option, a failed write does not
    /// end the relay immediately:
    ///
    /// 1. The other side receives the bytes that the failed side has already sent: at most 8 MiB,
    ///    and for at most 30 s. If some of these bytes remain,
    ///    [`pass_resets`](RelayOptions::pass_resets) makes the close of the other side a reset.
    /// 2. The other side receives the end of the stream, and not a reset.
    /// 3. The relay reads and discards what the other side still sends, until that side finishes,
    ///    for at most 5 s and 16 MiB. (A socket that is closed with unread bytes resets its peer. A
    ///    reset can destroy the answer.)
    ///
    /// Then the relay ends with the error of the write. Bytes that did not reach the failed side
    /// count as [`lost`](crate::DirectionSummary::lost), including those that were discarded. If a
    /// *read* fails while the other side still sends, the relay does the same. A
    /// [`CancelHandle`](crate::CancelHandle) ends these steps immediately.
    ///
    /// An answer is early only if its sender has closed the connection. The error is then
    /// `ConnectionReset`, `BrokenPipe` or `NotConnected`. After another error, such as a timeout,
    /// the other side receives what the failed side has sent, and no end of the stream.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a stream fails.
    pub fn early_answers(mut self, deliver: bool) -> Self {
        self.change().early_answers = match deliver {
            true => EarlyAnswers::Both,
            false => EarlyAnswers::No,
        };
        self
    }

    /// Sets that only answers to `client` are [early answers](RelayOptions::early_answers). If a
    /// write to `client` fails, the relay still delivers the bytes that `client` has sent. It ends
    /// when the other side has acknowledged them, after at most 30 s. If the client had not ended
    /// its stream, [`pass_resets`](RelayOptions::pass_resets) makes the close of the other side a
    /// reset, so that an upload that was cut does not look complete.
    ///
    /// Use this option if you know which stream is the client. If a client aborts a download, the
    /// relay then ends when its request is acknowledged, and not after step 3.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a stream fails.
    pub fn early_answers_to(mut self, client: Peer) -> Self {
        self.change().early_answers = EarlyAnswers::To(client);
        self
    }

    /// Sets whether to pass a reset by one side on to the other side as a reset. Default: no, as
    /// with tokio's function. By default, the error ends the relay, its streams are closed, and the
    /// other side reads an end of stream. The other side cannot distinguish a truncated stream from
    /// a complete one.
    ///
    /// With this option, a failed read makes the close of the other TCP socket a reset (`SO_LINGER`
    /// with a time of 0). Such a close discards queued bytes. The relay therefore waits until the
    /// other side has acknowledged every earlier byte (`SIOCOUTQ` is 0). No event reports this. The
    /// relay checks after 1 ms, and then at intervals that double up to 64 ms. It waits for at most
    /// 30 s, and ends with the error of the read. The reset is sent when the socket is closed, so a
    /// caller that lends the streams decides when.
    ///
    /// A Unix socket has no reset, so the relay only closes it. After an [early
    /// answer](RelayOptions::early_answers), the other side receives an end of stream.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout), when a read fails.
    pub fn pass_resets(mut self, pass: bool) -> Self {
        self.change().pass_resets = pass;
        self
    }

    /// Sets bytes that `b` receives first, for example bytes that were read from `a` after a
    /// handshake. They count as copied. They do not count towards
    /// [`a_to_b_limit`](RelayOptions::a_to_b_limit) or a rate limit. Only the last call counts.
    /// Default: none.
    pub fn a_to_b_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.a_to_b_prefix = bytes.into();
        self
    }

    /// Sets bytes that `a` receives first: see [`a_to_b_prefix`](RelayOptions::a_to_b_prefix).
    pub fn b_to_a_prefix(mut self, bytes: impl Into<Bytes>) -> Self {
        self.b_to_a_prefix = bytes.into();
        self
    }

    /// Sets that the stream of this peer is a new TCP socket: the caller has just accepted it, or
    /// has connected it, has not read from it, and has not set `TCP_ULP`, for example for TLS in
    /// the kernel. Default: no stream is known to be new.
    ///
    /// This saves two system calls. The relay does not ask the kernel for the protocol of the
    /// socket, and waits for the first bytes instead of trying to read them. If the stream is not
    /// new after all, the relay may wait for ever for bytes that have arrived.
    pub fn new_socket(mut self, peer: Peer) -> Self {
        match peer {
            Peer::A => self.change().a_to_b.begin = Begin::NewSocket,
            Peer::B => self.change().b_to_a.begin = Begin::NewSocket,
        }
        self
    }

    /// Ends the direction from `a` to `b` when this many bytes have been read from `a` and written
    /// to `b`. Default: no limit.
    ///
    /// The relay never reads past the limit, so the caller can read the following bytes from `a`.
    /// `b` is not shut down, because no stream has ended, and the caller can still write to it.
    /// Lend the streams to use them again, because a stream that is dropped with unread bytes
    /// resets its peer. If the limit equals the length of the stream, the direction does not look
    /// for the end, so `eof` stays `false`. A record (`SOCK_SEQPACKET`) that reaches the limit is
    /// read whole.
    pub fn a_to_b_limit(mut self, bytes: u64) -> Self {
        self.change().a_to_b.limit = Some(bytes);
        self
    }

    /// Sets the same limit for the direction from `b` to `a`.
    pub fn b_to_a_limit(mut self, bytes: u64) -> Self {
        self.change().b_to_a.limit = Some(bytes);
        self
    }

    /// Limits both directions together to this [`RateLimit`], which other relays may share.
    /// Default: none. A direction has only one rate limit, so only the last call of this method or
    /// of the two below counts.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        self.a_to_b_rate_limit(limit).b_to_a_rate_limit(limit)
    }

    /// Limits the direction from `a` to `b` to this [`RateLimit`]. Default: none.
    ///
    /// # Panics
    /// As with [`idle_timeout`](RelayOptions::idle_timeout).
    pub fn a_to_b_rate_limit(mut self, limit: &RateLimit) -> Self {
        self.change().a_to_b.rate = Some(limit.clone());
        self
    }

    /// Limits the direction from `b` to `a` to this [`RateLimit`]. Default: none.
    pub fn b_to_a_rate_limit(mut self, limit: &RateLimit) -> Self {
        self.change().b_to_a.rate = Some(limit.clone());
        self
    }
}

/// The options of [`copy_with_options`](crate::copy_with_options). They are the options of one
/// direction of a relay: see [`RelayOptions`] for each.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CopyOptions(pub(crate) RelayOptions);

impl CopyOptions {
    /// Returns the default options.
    pub const fn new() -> Self {
        Self(RelayOptions::new())
    }

    /// Sets when to splice. Default: [`Engine::Auto`].
    pub fn engine(self, engine: Engine) -> Self {
        Self(self.0.engine(engine))
    }

    /// Sets the size of pipes. Default: [`PipeSize::Auto`].
    pub fn pipe_size(self, pipe_size: PipeSize) -> Self {
        Self(self.0.pipe_size(pipe_size))
    }

    /// Sets the pool that lends pipes. Default: [`PipePool::global`].
    pub fn pool(self, pool: &PipePool) -> Self {
        Self(self.0.pool(pool))
    }

    /// Sets bytes that the writer receives first. Default: none.
    pub fn prefix(self, bytes: impl Into<Bytes>) -> Self {
        Self(self.0.a_to_b_prefix(bytes))
    }

    /// Sets the maximum number of bytes to read. Default: no limit.
    pub fn limit(self, bytes: u64) -> Self {
        Self(self.0.a_to_b_limit(bytes))
    }

    /// Limits the copy to this [`RateLimit`]. Default: none.
    ///
    /// # Panics
    /// As with [`RelayOptions::rate_limit`].
    pub fn rate_limit(self, limit: &RateLimit) -> Self {
        Self(self.0.a_to_b_rate_limit(limit))
    }
}
