//! tokio's `copy_bidirectional`, through the kernel: bulk between two sockets never enters user space.
//!
//! ```diff
//! -use tokio::io::copy_bidirectional;
//! +use spliceway::copy_bidirectional;
//! ```
//!
//! ```text
//!   client ◀────────── tokio task ──────────▶ upstream
//!      │    small messages: recv + send          │
//!      │                                         │
//!      └──── splice ──▶ [ pipe ] ──▶ splice ─────┘     bulk: the kernel moves pages, nobody touches the bytes
//!                       borrowed from a pool for as long as bytes are in flight
//! ```
//!
//! - [`copy_bidirectional`], [`copy_bidirectional_with_sizes`], [`copy()`]: tokio's names, results and behaviour, for every
//!   stream that tokio's take.
//! - [`Relay`]: the same as a named future with [options](RelayOptions): timeouts, prefixes, limits, rates, and what a half-closed
//!   connection means; a [`CancelHandle`] that delivers what is in flight; and live counts ([`RelayStats`]) that tell spliced bytes from copied
//!   ones. None of it turns splicing off.
//! - [`PipePool`]: where pipes come from, within limits ([`Limits`]).
//! - `upgraded`, with the feature `hyper`: the sockets below hyper's upgraded connections, which a relay can splice.
//!
//! # What is spliced
//! A pair of streams, each of which is a `TcpStream` or a `UnixStream`, a mutable reference to one, or a `BufReader`,
//! `BufWriter` or `BufStream` around one; for [`copy()`] also their halves, owned or borrowed, the ends of a pipe, and a `Take` of what can be
//! spliced. What has two parts is joined for the functions that take a duplex stream: `tokio::io::join(reader, writer)` of pipe ends,
//! or of owned halves. Bytes to a socket are spliced as well where its borrowed write half is joined with a reader in a box (`Box<dyn AsyncRead + Send + Unpin>`),
//! which may look at what comes from there. The type decides, at compile time: a TLS stream has a descriptor
//! as well, but its bytes are not the peer's.
//!
//! Where one end is a pipe and the other a socket, bytes go from one to the other by one splice, and no pipe is between. (From pipe to
//! pipe they are copied: splice would hand on with them that they were written as packets, with `O_DIRECT`, and who reads packets in
//! parts loses the rest.)
//!
//! Small messages are still copied, because for up to some 8 KiB one `recv` and one `send` cost less than two
//! splices. A direction is spliced from the moment one receive fills 64 KiB (of a pipe: brings 16 KiB), until its messages are small
//! again.
//!
//! # What falls back, and why
//! Every other pair of streams is given to tokio's own functions. Ends that cannot be spliced now or at all are copied,
//! with the [`Reason`] in [`DirectionSummary::fallback`]: the pool's limits, want of descriptors or memory, a sandbox that
//! forbids the call. What may pass is tried again after a mebibyte.
//!
//! # End of stream, errors, cancellation
//! As tokio's: the end of one stream shuts the other's writing side down and the other direction goes on; the first error
//! ends both; dropping the future is safe and loses what is in flight. [`RelayOptions`] has other ends.
//!
//! # Child processes
//! `ChildStdin` and `ChildStdout` are copied. Their pipes are spliced: `pipe::Receiver::from_owned_fd(stdout.into_owned_fd()?)?`, and
//! `pipe::Sender` in the same way. A pipe has no writing side to shut down: who reads it sees the end when its sender is dropped, with
//! the relay or after it. So a child that waits for the end of its input is best served with two [`copy()`]s, the sender dropped
//! after the one, or with a half-close timeout. That a child has exited is noticed at the next byte for it: select with `child.wait()`.
//!
//! # Limits and defaults
//! - An idle relay holds no pipe and no buffer: its two descriptors and its task.
//! - Bytes in flight per direction: one pipe, 64 KiB or, where the flow fills that, 256 KiB, or 1 MiB where the sink keeps up with
//!   them; or one receive of at most 64 KiB. A slow reader holds up its own sender.
//! - Some 1 MiB of each direction in one poll, or 4 where no relays but few, of bulk, pass anything on the thread, or 256 KiB of messages
//!   and copies; then other tasks get a turn, and the runtime looks for events.
//! - Pipes, pages and descriptors of the whole process: [`Limits::of_this_process`].
//!
//! # What it does not do
//! It does not look at the bytes, encrypt, compress or log. It needs tokio's I/O driver; its time driver only for timeouts, rates,
//! cancelling and [`Rests::Timer`]. It is for Linux, and does not compile elsewhere yet.
//!
//! # Coming from tokio
//! Nothing to change but the `use` line. `copy_bidirectional_with_sizes` sizes the buffers of the copying path alone.
//! (Three differences. What is in flight is passed on by reference: where a sender changes memory or a file that it gave to the kernel
//! without a copy (`vmsplice`, `sendfile`, `MSG_ZEROCOPY`) before its peer has it, the peer gets the change, as from the sender itself;
//! [`Engine::Copy`] takes copies. And, on purpose: a byte of TCP urgent data in the middle of a message makes `recv` stop short, which tokio takes
//! for a drained socket, so that what follows may wait for ever. Here it arrives, also where it was the caller's own read, before
//! the relay began, that stopped short there. And a fast sender of small writes, 1 Gbit/s and more, may find its bytes passed on 2 or 3 ms later
//! now and then, which makes it faster: see [`RelayOptions::rests`].)
//!
//! # Coming from tokio-splice2, tokio-splice or realm_io
//! Their `copy_bidirectional`, `zero_copy_bidirectional` and `bidi_zero_copy` are [`copy_bidirectional`]; pipe sizes are a
//! [`PipeSize`] of each relay. What is different: a broken relay is an `Err`, with the counts of a [`RelayError`] if it is a [`Relay`];
//! no connection holds pipes that it has no bytes for, or fails for want of one; small messages are not spliced; streams that
//! cannot be spliced compile, and are copied. `docs/migration.md` in the repository has the table, and a program moved over with
//! what it cost before and after.

mod cancel;
mod copy;
mod copy_loop;
mod deadlines;
mod direction;
mod direction_state;
mod identity;
mod options;
mod outcome;
mod rate_limit;
mod readiness;
mod relay;
mod salvage;
mod stream;
#[cfg(feature = "hyper")]
pub mod upgraded;

pub use cancel::CancelHandle;
pub use copy::{copy, copy_bidirectional, copy_bidirectional_with_sizes};
pub use options::{HalfClose, RelayOptions};
pub use outcome::{Direction, EndReason, Operation, Peer, RelayError, RelaySummary};
pub use rate_limit::RateLimit;
pub use relay::{Relay, RelayStats};
pub use salvage::reset;
pub use spliceway_core::{DirectionSummary, Engine, Limits, PipePool, PipeSize, PoolStats, Reason, Scope, SizeClass};
