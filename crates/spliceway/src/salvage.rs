//! The work that a relay still does after a stream has failed, if its options ask for it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use spliceway_core::Counts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::direction_state::{DirectionState, poll_shutdown};
use crate::options::{DirectionOptions, EarlyAnswers, Options};
use crate::outcome::{Direction, Failure, Operation, failed_peer};
use crate::stream;

/// The most time that the whole salvage may take.
const SALVAGE_TIME: Duration = Duration::from_secs(30);

/// The time that the other side has to finish after it has received the end of the stream.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The most bytes from the failed side that are still written to the other side.
const DELIVER_MAX_BYTES: u64 = 8 << 20;

/// The most bytes that are read from the other side and discarded.
const DISCARD_MAX_BYTES: usize = 16 << 20;

/// The size of one read whose bytes are discarded, in bytes.
const READ_BYTES: usize = 16 << 10;

/// The first interval between checks of the send queue. No event reports that a peer has
/// acknowledged everything. The interval doubles after each check.
const FIRST_CHECK: Duration = Duration::from_millis(1);
/// The longest interval between checks of the send queue.
const SLOWEST_CHECK: Duration = Duration::from_millis(64);

/// A relay after one of its streams has failed. It still serves the peer of its other stream, the
/// *other* side.
///
/// ```text
///                            ┌─ not all bytes ─▶ Cutting ──▶ like Resetting
///   a write failed ──────▶ Delivering ──▶ Ending ──▶ Lingering ──▶ Settling ──▶ report the error
///                                           │ no answer ───────────▲
///                                           ▲             └─ the other has finished ──▶ the same
///   a read failed ───┬── the other sends ───┘
///                    └── it is silent ────▶ Resetting ──▶ reset the other, report the error
/// ```
///
/// Bytes that the other side sends can no longer be written to the failed side. The relay reads and
/// discards them at every stage: a socket that is closed with unread bytes resets its peer. A reset
/// can destroy an answer that the peer has not read yet.
#[derive(Debug)]
pub(crate) struct Salvage {
    stage: Stage,
    pub(crate) direction: Direction,
    pub(crate) broken: Failure,
    /// Bytes that were written to the other side before the failure.
    delivered_before: u64,
    /// Whether the failed side had ended its stream before the failure. An end that is read later
    /// may be a reset: the kernel reports an error once, and the write has met it.
    had_ended: bool,
    /// Bytes that may still be discarded.
    discards_left: usize,
    other_has_ended: bool,
    deadline: Instant,
    /// During checks of the send queue, this fires at the next check. Otherwise, it fires at the
    /// deadline.
    timer: Pin<Box<Sleep>>,
    check: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Writes the bytes that the failed side had sent to the other side.
    Delivering,
    /// Shuts down the other side, so that it reads the end of the stream.
    Ending,
    /// Gives the other side time to finish.
    Lingering,
    /// The other side sends too much, or needs no time. It is closed once it has acknowledged
    /// everything.
    Settling,
    /// The other side is reset once it has acknowledged everything.
    Resetting,
    /// Some bytes that the failed side had sent could not be written. The written bytes must not
    /// look complete, so the other side is reset as in `Resetting`.
    Cutting,
}

/// Both streams, and the directions between them.
pub(crate) struct Wreck<'a, F, O> {
    pub(crate) failed: &'a mut F,
    pub(crate) other: &'a mut O,
    /// The direction from the failed side to the other side. Its live counts are in `counts`.
    pub(crate) onward: &'a mut DirectionState,
    pub(crate) counts: &'a Counts,
    pub(crate) way: &'a DirectionOptions,
    /// The direction from the other side to the failed side.
    pub(crate) dead: &'a mut DirectionState,
    pub(crate) options: &'a Options,
}

impl Salvage {
    /// Starts a salvage. Returns the error itself if the options leave nothing to do.
    pub(crate) fn new(
        direction: Direction,
        broken: Failure,
        options: &Options,
        onward: &Counts,
    ) -> Result<Self, Failure> {
        let stage = match broken.0 {
            // The engine refused to copy. No stream has failed.
            _ if broken.1.kind() == io::ErrorKind::Unsupported => return Err(broken),
            Operation::Read if options.pass_resets || options.early_answers != EarlyAnswers::No => Stage::Resetting,
            Operation::Write | Operation::Shutdown if options.early_answers != EarlyAnswers::No => Stage::Delivering,
            _ => return Err(broken),
        };
        let (now, before) = (Instant::now(), onward.snapshot());
        let mut salvage = Self {
            stage,
            direction,
            broken,
            delivered_before: before.bytes,
            had_ended: before.eof,
            discards_left: DISCARD_MAX_BYTES,
            other_has_ended: false,
            deadline: now + SALVAGE_TIME,
            timer: Box::pin(tokio::time::sleep(SALVAGE_TIME)),
            check: FIRST_CHECK,
        };
        salvage.enter(stage);
        Ok(salvage)
    }

    /// Ready when the error can be reported. With `hurry`, it is ready immediately.
    pub(crate) fn poll<F, O>(&mut self, cx: &mut Context<'_>, wreck: &mut Wreck<'_, F, O>, hurry: bool) -> Poll<()>
    where
        F: AsyncRead + AsyncWrite + Unpin,
        O: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let discarded = self.discard(cx, wreck.other);
            wreck.dead.lose(*discarded.as_ref().unwrap_or(&0));
            match self.stage {
                _ if hurry => return self.close(wreck),
                Stage::Delivering | Stage::Ending | Stage::Lingering if self.timer.as_mut().poll(cx).is_ready() => {
                    if !matches!(self.stage, Stage::Delivering) {
                        return Poll::Ready(());
                    }
                    self.enter(Stage::Cutting);
                }
                Stage::Delivering => ready!(self.poll_deliver(cx, wreck)),
                Stage::Ending => match ready!(poll_shutdown(cx, wreck.other)) {
                    Ok(()) if self.may_be_answer(wreck.options) => self.enter(Stage::Lingering),
                    Ok(()) => self.enter(Stage::Settling),
                    Err(_) => return Poll::Ready(()),
                },
                Stage::Lingering if self.other_has_ended => return Poll::Ready(()),
                Stage::Lingering if self.discards_left == 0 => self.enter(Stage::Settling),
                Stage::Lingering => return Poll::Pending,
                // Both sides have failed.
                Stage::Settling | Stage::Resetting | Stage::Cutting if discarded.is_err() => return Poll::Ready(()),
                Stage::Resetting if self.may_be_answer(wreck.options) && wreck.dead.in_flight() > 0 => {
                    self.enter(Stage::Ending);
                }
                Stage::Resetting | Stage::Cutting if !wreck.options.pass_resets => return Poll::Ready(()),
                Stage::Settling | Stage::Resetting | Stage::Cutting => {
                    ready!(self.poll_acknowledged(cx, wreck.other));
                    return self.close(wreck);
                }
            }
        }
    }

    /// Returns whether the bytes that the failed side has sent may be an early answer.
    fn may_be_answer(&self, options: &Options) -> bool {
        if !self.has_closed() {
            return false;
        }
        match options.early_answers {
            EarlyAnswers::No => false,
            EarlyAnswers::Both => true,
            EarlyAnswers::To(client) => client != failed_peer(self.direction, self.broken.0),
        }
    }

    /// Returns whether the failed side has closed its connection. If it has not read everything,
    /// its kernel resets the connection. Another error, such as a timeout or a damaged record of
    /// TLS, cuts its stream off.
    fn has_closed(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        let kind = self.broken.1.kind();
        // Windows reports a reset as an abort.
        matches!(kind, ConnectionReset | BrokenPipe | NotConnected) || (cfg!(windows) && kind == ConnectionAborted)
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        let now = Instant::now();
        let wake = match stage {
            Stage::Delivering | Stage::Ending => self.deadline,
            Stage::Lingering => {
                self.deadline = self.deadline.min(now + LINGER_TIME);
                self.deadline
            }
            Stage::Settling | Stage::Resetting | Stage::Cutting => self.deadline.min(now + self.check),
        };
        self.timer.as_mut().reset(wake);
    }

    /// Reads and discards bytes from the other side, and returns their number.
    fn discard<O: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, other: &mut O) -> io::Result<usize> {
        let before = self.discards_left;
        while !self.other_has_ended && self.discards_left > 0 {
            let mut space = [MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut space);
            match Pin::new(&mut *other).poll_read(cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(read) => {
                    self.other_has_ended = read.is_err() || buf.filled().is_empty();
                    read?;
                    self.discards_left = self.discards_left.saturating_sub(buf.filled().len());
                }
            }
        }
        Ok(before - self.discards_left)
    }

    /// Ready when the direction has ended or failed, or has written the allowed number of bytes.
    fn poll_deliver<F, O>(&mut self, cx: &mut Context<'_>, wreck: &mut Wreck<'_, F, O>) -> Poll<()>
    where
        F: AsyncRead + AsyncWrite + Unpin,
        O: AsyncRead + AsyncWrite + Unpin,
    {
        let Wreck {
            way, options, counts, ..
        } = *wreck;
        // A write that met the reset has consumed it, and a read then finds an end of stream. (A
        // write to a peer that had ended its stream before its reset returns EPIPE.)
        let is_after_end = matches!(
            self.broken.1.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected
        );
        let is_cut = options.pass_resets && !is_after_end && !self.had_ended && !self.may_be_answer(options);
        let polled = match is_cut {
            true => wreck
                .onward
                .poll_move(cx, wreck.failed, wreck.other, way, options, counts),
            false => wreck.onward.poll(cx, wreck.failed, wreck.other, way, options, counts),
        };
        if polled.is_pending() && counts.bytes() - self.delivered_before < DELIVER_MAX_BYTES {
            return Poll::Pending;
        }
        // The result is not needed: the failed side has already failed. If the other side has
        // failed too, its shutdown returns the error.
        wreck.onward.lose(0);
        self.enter(if is_cut || (polled.is_pending() && options.pass_resets) {
            Stage::Cutting
        } else {
            Stage::Ending
        });
        Poll::Ready(())
    }

    /// Ready when the other side has acknowledged everything, or the deadline has passed.
    fn poll_acknowledged<O: AsyncWrite>(&mut self, cx: &mut Context<'_>, other: &O) -> Poll<()> {
        while stream::tcp_sink(other).is_some_and(stream::is_owed) {
            ready!(self.timer.as_mut().poll(cx));
            if Instant::now() >= self.deadline {
                break;
            }
            self.check = (self.check * 2).min(SLOWEST_CHECK);
            self.enter(self.stage);
        }
        Poll::Ready(())
    }

    /// Turns the close of the other stream into a reset, if the stage and the options ask for it.
    /// The owner of the stream closes it.
    fn close<F, O>(&self, wreck: &Wreck<'_, F, O>) -> Poll<()> {
        if let (Stage::Resetting | Stage::Cutting, true, Some(socket)) =
            (self.stage, wreck.options.pass_resets, stream::tcp_sink(wreck.other))
        {
            // If this fails, the stream is closed without a reset.
            let _ = socket.set_zero_linger();
        }
        Poll::Ready(())
    }
}

/// Closes a connection with a reset, once its peer has acknowledged every byte.
///
/// Call it to [pass resets on](crate::RelayOptions::pass_resets) yourself, if a
/// [`Relay`](crate::Relay) does not know the socket below your stream. A reset discards bytes that
/// the socket has not sent. The function therefore waits, as that option does. It checks at
/// intervals, for at most 30 s.
///
/// # Panics
/// If the future is polled outside a tokio runtime, or in one without the time driver.
///
/// # Cancel safety
/// Dropping the future closes the connection without a reset.
pub async fn reset(stream: TcpStream) {
    let deadline = Instant::now() + SALVAGE_TIME;
    let mut check = FIRST_CHECK;
    while stream::is_owed(&stream) && Instant::now() < deadline {
        tokio::time::sleep(check).await;
        check = (check * 2).min(SLOWEST_CHECK);
    }
    // Systems other than Linux do not report which bytes were acknowledged. There, or if the call
    // fails, the stream is closed without a reset.
    if cfg!(target_os = "linux") {
        let _ = stream.set_zero_linger();
    }
}
