//! tokio's `copy_bidirectional`, through the kernel: bulk data between two sockets never enters
//! user space.
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
//!      └──── splice ──▶ [ pipe ] ──▶ splice ─────┘     bulk: the kernel moves pages
//!                       lent by a pool while bytes are in flight
//! ```
//!
//! A proxy that you can run:
//!
//! ```no_run
//! use tokio::net::{TcpListener, TcpStream};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:8080").await?;
//!     loop {
//!         let (mut client, _) = listener.accept().await?;
//!         tokio::spawn(async move {
//!             let mut upstream = TcpStream::connect("example.com:80").await?;
//!             spliceway::copy_bidirectional(&mut client, &mut upstream).await
//!         });
//!     }
//! }
//! ```
//!
//! - [`copy_bidirectional`], [`copy_bidirectional_with_sizes`] and [`copy()`] have tokio's names,
//!   results and behaviour, for every stream that tokio's functions take.
//! - [`Relay`] is the same as a named future, with [options](RelayOptions), live counts and a
//!   [`CancelHandle`].
//! - [`copy_with_options`] is [`copy()`] with options and counts.
//! - [`AsSocket`] lets your own type of stream be spliced, such as an enum of plain and TLS
//!   streams.
//! - [`PipePool`] lends pipes within [`Limits`].
//! - `upgraded`, with the feature `hyper`, finds the socket below an upgraded connection.
//!
//! The repository has examples: `simple_forward`, `plain_or_tls`, `half_close`, `live_stats`,
//! `own_pool`, `rate_limited`, `socks_handshake_prefix` and `hyper_connect`.
//!
//! # What is spliced
//! The types of the two streams decide, at compile time. A descriptor alone does not: a TLS stream
//! has one as well, but its bytes are not the socket's. Plain sockets are:
//!
//! - `TcpStream` and `UnixStream`, and a mutable reference, a `Box` or a `Pin<Box<_>>` of one;
//! - a `BufReader`, `BufWriter` or `BufStream` around one, whose buffered bytes go first;
//! - `tokio_util::either::Either` of both (feature `tokio-util`);
//! - `tokio::io::join` of the two owned halves of a socket, or of a boxed reader and a borrowed
//!   write half;
//! - a [`Spliceable`] around a type of your own.
//!
//! [`copy()`] also splices to and from the halves of a socket (owned or borrowed), the ends of a
//! pipe (`tokio::net::unix::pipe`), and a `Take` of any of these. Between a pipe and a socket, one
//! splice moves the bytes, with no pipe in between. Bytes from pipe to pipe are copied, because a
//! splice would keep packet boundaries (`O_DIRECT`) that a reader does not expect.
//!
//! Messages below 16 KiB are copied, because one `recv` and one `send` cost less than two splices.
//!
//! # What falls back
//! All other pairs of streams are given to tokio's own functions. Sockets that cannot be spliced at
//! the moment are copied, and [`DirectionSummary::fallback`] has the [`Reason`]: the limits of the
//! pool, a lack of descriptors or memory, a sandbox that forbids the call. Reasons that may pass
//! are tried again after 1 MiB.
//!
//! Off Linux everything is copied. The same names compile there.
//!
//! # End of stream, errors, cancellation
//! As with tokio: the end of one stream shuts the other's writing side down, and the other
//! direction continues. The first error ends both. Dropping the future is safe and loses the bytes
//! in flight. [`RelayOptions`] has other choices.
//!
//! # Limits and defaults
//! - An idle relay holds its two descriptors and its task: no pipe and no buffer.
//! - Bytes in flight in each direction: one pipe (64 KiB, up to 1 MiB while the sink keeps up), or
//!   one receive of at most 64 KiB. A slow reader slows its own sender down.
//! - One poll moves about 1 MiB in each direction, or 256 KiB of copies. Then other tasks run, and
//!   the runtime polls for events.
//! - No byte waits on purpose, except for a [`RateLimit`].
//! - Pipes, pages and descriptors of the process: [`Limits::of_this_process`].
//!
//! # What it does not do
//! It does not look at the bytes, encrypt, compress or log. It needs tokio's I/O driver, and the
//! time driver only for timeouts, rates and cancelling.
//!
//! # Differences from tokio
//! - Bytes are passed on by reference. If a sender changes memory or a file that it gave to the
//!   kernel without a copy (`vmsplice`, `sendfile`, `MSG_ZEROCOPY`) before its peer has it, the
//!   peer gets the change. [`Engine::Copy`] takes copies.
//! - A byte of TCP urgent data makes `recv` stop short. tokio takes that for a drained socket, and
//!   bytes behind it may wait for ever. Here they arrive, even if it was the caller's own read that
//!   stopped there.
//!
//! # Child processes
//! `ChildStdin` and `ChildStdout` are copied. Their pipes are spliced:
//! `pipe::Receiver::from_owned_fd(stdout.into_owned_fd()?)?`, and the same for `pipe::Sender`. A
//! pipe has no writing side to shut down: its reader sees the end when the sender is dropped. So
//! use two [`copy()`]s for a child that waits for the end of its input, and drop the sender after
//! the first.
//!
//! # Coming from tokio-splice2, tokio-splice or realm_io
//! Their `copy_bidirectional`, `zero_copy_bidirectional` and `bidi_zero_copy` are
//! [`copy_bidirectional`]. A failed relay is an `Err`. No connection holds pipes that it has no
//! bytes for, or fails for lack of one. Streams that cannot be spliced compile, and are copied.
//! `docs/migration.md` in the repository has the table.

#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, unreachable_code, reason = "off Linux no stream can be spliced")
)]

mod as_socket;
mod cancel;
mod copy;
mod copy_loop;
mod deadlines;
mod direction;
mod direction_state;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod identity;
mod options;
mod outcome;
mod rate_limit;
#[cfg(target_os = "linux")]
mod readiness;
mod relay;
mod salvage;
#[cfg(target_os = "linux")]
mod splice_path;
#[cfg(target_os = "linux")]
mod stream;
#[cfg(feature = "hyper")]
pub mod upgraded;
mod yield_now;

#[cfg(not(target_os = "linux"))]
use elsewhere::{splice_path, stream};

pub use as_socket::{AsSocket, SocketRef, Spliceable};
pub use cancel::CancelHandle;
pub use copy::{copy, copy_bidirectional, copy_bidirectional_with_sizes, copy_with_options};
pub use options::{CopyOptions, HalfClose, RelayOptions};
pub use outcome::{Direction, EndReason, Operation, Peer, RelayError, RelaySummary};
pub use rate_limit::RateLimit;
pub use relay::{Relay, RelayParts, RelayStats};
pub use salvage::reset;
pub use spliceway_core::{DirectionSummary, Engine, Limits, PipePool, PipeSize, PoolStats, Reason, Scope, SizeClass};
