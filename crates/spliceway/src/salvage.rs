//! What a relay still does after a stream has failed, if its options ask for it.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use spliceway_core::{Counts, socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::direction_state::{DirectionState, poll_shutdown};
use crate::options::{DirectionOptions, RelayOptions};
use crate::outcome::{Direction, Failure, Operation};
use crate::readiness::ReadySocket;
use crate::stream;

/// The whole salvage takes at most this long.
const SALVAGE_TIME: Duration = Duration::from_secs(30);

/// The other side has this long to finish once it has the end of the stream.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The most bytes that the other side gets of what the failed side has sent.
const DELIVER_MAX_BYTES: u64 = 8 << 20;

/// The most bytes that are read from the other side and discarded.
const DISCARD_MAX_BYTES: usize = 16 << 20;

/// Bytes of one such read.
const READ_BYTES: usize = 16 << 10;

/// No event tells that a peer has acknowledged everything, so the send queue is checked at this interval, which doubles …
const FIRST_CHECK: Duration = Duration::from_millis(1);
/// … up to this one.
const SLOWEST_CHECK: Duration = Duration::from_millis(64);

/// A relay after one of its streams has failed. The peer of its other stream, the *other* side, is still served.
///
/// ```text
///                            ┌─ not all of it ─▶ Cutting ──▶ as after Resetting
///   a write failed ──────▶ Delivering ──▶ Ending ──▶ Lingering ──▶ Settling ──▶ the error is reported
///                                           ▲             └─ the other has finished ──▶ likewise
///   a read failed ───┬── the other sends ───┘
///                    └── it is silent ────▶ Resetting ──▶ the other is reset, and the error reported
/// ```
///
/// What the other side sends can no longer be delivered. It is read and discarded at every stage: a socket that is closed with bytes
/// unread resets its peer, and a reset can destroy an answer that the peer has not read yet.
#[derive(Debug)]
pub(crate) struct Salvage {
    stage: Stage,
    pub(crate) direction: Direction,
    pub(crate) broken: Failure,
    /// Bytes that the other side had when it began.
    delivered_before: u64,
    /// Bytes that may still be discarded.
    discards_left: usize,
    other_has_ended: bool,
    deadline: Instant,
    /// The next check while the send queue is watched, else the deadline.
    timer: Pin<Box<Sleep>>,
    check: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// What the failed side had sent is delivered.
    Delivering,
    /// The other side is told the end of the stream.
    Ending,
    /// The other side is given the time to finish.
    Lingering,
    /// The other side sends too much. It is closed once it has acknowledged everything.
    Settling,
    /// The other side is reset once it has acknowledged everything.
    Resetting,
    /// Not all that the failed side had sent could be delivered. What was must not seem complete, so the other side is reset likewise.
    Cutting,
}

/// Both streams, and the directions between them.
pub(crate) struct Wreck<'a, F, O> {
    pub(crate) failed: &'a mut F,
    pub(crate) other: &'a mut O,
    /// From the failed side to the other, with its live counts.
    pub(crate) onward: &'a mut DirectionState,
    pub(crate) counts: &'a Counts,
    pub(crate) way: &'a DirectionOptions,
    /// From the other side to the failed one.
    pub(crate) dead: &'a mut DirectionState,
    pub(crate) options: &'a RelayOptions,
}

impl Salvage {
    /// The error itself where the options leave nothing to do.
    pub(crate) fn new(
        direction: Direction,
        broken: Failure,
        options: &RelayOptions,
        delivered: u64,
    ) -> Result<Self, Failure> {
        let stage = match broken.0 {
            // The engine's own word, and no failure of a stream.
            _ if broken.1.kind() == io::ErrorKind::Unsupported => return Err(broken),
            Operation::Read if options.pass_resets || options.early_answers => Stage::Resetting,
            Operation::Write | Operation::Shutdown if options.early_answers => Stage::Delivering,
            _ => return Err(broken),
        };
        let now = Instant::now();
        let mut salvage = Self {
            stage,
            direction,
            broken,
            delivered_before: delivered,
            discards_left: DISCARD_MAX_BYTES,
            other_has_ended: false,
            deadline: now + SALVAGE_TIME,
            timer: Box::pin(tokio::time::sleep(SALVAGE_TIME)),
            check: FIRST_CHECK,
        };
        salvage.enter(stage);
        Ok(salvage)
    }

    /// Ready when the error is to be reported: soon, where the caller is in a `hurry`.
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
                    Ok(()) => self.enter(Stage::Lingering),
                    Err(_) => return Poll::Ready(()),
                },
                Stage::Lingering if self.other_has_ended => return Poll::Ready(()),
                Stage::Lingering if self.discards_left == 0 => self.enter(Stage::Settling),
                Stage::Lingering => return Poll::Pending,
                // Both sides have failed.
                Stage::Settling | Stage::Resetting | Stage::Cutting if discarded.is_err() => return Poll::Ready(()),
                Stage::Resetting if wreck.options.early_answers && wreck.dead.in_flight() > 0 => {
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

    /// Ready when all is delivered that is to be.
    fn poll_deliver<F, O>(&mut self, cx: &mut Context<'_>, wreck: &mut Wreck<'_, F, O>) -> Poll<()>
    where
        F: AsyncRead + AsyncWrite + Unpin,
        O: AsyncRead + AsyncWrite + Unpin,
    {
        let Wreck {
            way, options, counts, ..
        } = *wreck;
        let polled = wreck.onward.poll(cx, wreck.failed, wreck.other, way, options, counts);
        if polled.is_pending() && counts.bytes() - self.delivered_before < DELIVER_MAX_BYTES {
            return Poll::Pending;
        }
        // How the failed side ends is no news. If the other side has failed, too, its shutdown tells.
        wreck.onward.lose(0);
        self.enter(if polled.is_pending() && options.pass_resets {
            Stage::Cutting
        } else {
            Stage::Ending
        });
        Poll::Ready(())
    }

    /// Ready when the other side has acknowledged everything, or the time is over.
    fn poll_acknowledged<O: AsyncWrite>(&mut self, cx: &mut Context<'_>, other: &O) -> Poll<()> {
        while tcp(other).is_some_and(is_owed) {
            ready!(self.timer.as_mut().poll(cx));
            if Instant::now() >= self.deadline {
                break;
            }
            self.check = (self.check * 2).min(SLOWEST_CHECK);
            self.enter(self.stage);
        }
        Poll::Ready(())
    }

    /// Makes the close of the other stream, which is its owner's to do, what it should be.
    fn close<F, O>(&self, wreck: &Wreck<'_, F, O>) -> Poll<()> {
        if let (Stage::Resetting | Stage::Cutting, true, Some(socket)) =
            (self.stage, wreck.options.pass_resets, tcp(wreck.other))
        {
            // If it fails the stream is closed in the usual way.
            let _ = socket.set_zero_linger();
        }
        Poll::Ready(())
    }
}

/// Closes a connection with a reset, when its peer has acknowledged every byte: for those who relay what a [`Relay`](crate::Relay)
/// cannot see the socket of, and [pass resets on](RelayOptions::pass_resets) themselves.
///
/// A reset discards what the socket has not sent, so this waits as that option does: it checks at intervals, and for at most 30 s.
///
/// # Panics
/// When polled outside of a tokio runtime with its time driver enabled.
///
/// # Cancel safety
/// Dropping it closes the connection in the usual way.
pub async fn reset(stream: TcpStream) {
    let deadline = Instant::now() + SALVAGE_TIME;
    let mut check = FIRST_CHECK;
    while is_owed(&stream) && Instant::now() < deadline {
        tokio::time::sleep(check).await;
        check = (check * 2).min(SLOWEST_CHECK);
    }
    // If it fails the stream is closed in the usual way.
    let _ = stream.set_zero_linger();
}

/// Whether the peer has not acknowledged everything. If that cannot be known there is nothing to wait for.
fn is_owed(socket: &TcpStream) -> bool {
    socket::unacknowledged(socket).is_ok_and(|bytes| bytes > 0)
}

fn tcp<O>(other: &O) -> Option<&TcpStream> {
    match stream::sink(other)? {
        ReadySocket::Tcp(socket) => Some(socket),
        ReadySocket::Unix(_) | ReadySocket::Receiver(_) | ReadySocket::Sender(_) => None,
    }
}
