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
//! A complete proxy:
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
//!   results and behaviour, for every stream that tokio's functions accept.
//! - [`Relay`] does the same as a named future, with [options](RelayOptions), live counts and a
//!   [`CancelHandle`]. It can be [suspended](Relay::suspend) and [resumed](Relay::resume), also by
//!   another process.
//! - [`copy_with_options`] is [`copy()`] with options and counts.
//! - [`AsSocket`] makes your own stream type spliceable, such as an enum of plain and TLS streams.
//! - [`PipePool`] lends pipes within [`Limits`].
//! - `upgraded`, with the feature `hyper`, finds the socket below an upgraded connection.
//!
//! The repository has examples: `simple_forward`, `terminate_tls`, `half_close`, `live_stats`,
//! `own_pool`, `rate_limited`, `socks_handshake_prefix` and `hyper_connect`.
//!
//! # What is spliced
//! The types of the two streams decide, at compile time. A descriptor alone proves nothing: a TLS
//! stream has one too, but its bytes are not the socket's bytes. Plain sockets are:
//!
//! - `TcpStream` and `UnixStream`, and a mutable reference, a `Box` or a `Pin<Box<_>>` of one;
//! - a `BufReader`, `BufWriter` or `BufStream` around one, whose buffered bytes go first;
//! - a `tokio_util::either::Either` of a `TcpStream` and a `UnixStream` (feature `tokio-util`);
//! - a `tokio::io::join` of the two owned halves of a socket, or of a boxed reader and a borrowed
//!   write half (spliced only towards the socket);
//! - a [`Spliceable`] around a type of your own.
//!
//! A wrapper in a wrapper, such as a `BufReader<Box<TcpStream>>`, is copied. To check your types,
//! run a [`Relay`] of them with [`Engine::Splice`]: it fails if a direction cannot be spliced.
//!
//! [`copy()`] also splices to and from the halves of a socket (owned or borrowed) and the ends of a
//! pipe (`tokio::net::unix::pipe`). It splices from a `Take` of any of these too. Between a pipe
//! and a socket, one splice moves the bytes, with no other pipe in between. Bytes from pipe to pipe
//! are copied, because a splice would keep packet boundaries (`O_DIRECT`) that a reader does not
//! expect.
//!
//! Messages below 16 KiB are copied, because one `recv` and one `send` cost less than two splices.
//!
//! # What falls back
//! For all other pairs of streams, the functions call tokio's own functions. Sockets that cannot be
//! spliced now are copied, and [`DirectionSummary::fallback`] has the [`Reason`]. Examples of such
//! reasons are the limits of the pool, a lack of descriptors or memory, and a sandbox that forbids
//! the call. If the reason may be temporary, the relay tries to splice again after 1 MiB.
//!
//! On systems other than Linux, the same names compile, and everything is copied.
//!
//! # End of stream, errors, cancellation
//! As with tokio, the end of one stream shuts down the writing side of the other, and the other
//! direction continues. The first error ends both. Dropping the future is safe, and loses the bytes
//! in flight. [`RelayOptions`] has other choices.
//!
//! # Limits and defaults
//! - An idle relay holds two descriptors and its task, but no pipe and no buffer.
//! - Each direction has at most one pipe of bytes in flight, or one receive of at most 64 KiB. A
//!   pipe holds 64 KiB, or up to 1 MiB while the sink keeps up. A slow reader slows down only its
//!   own sender.
//! - One poll moves about 1 MiB in each direction if it splices, and 256 KiB if it copies. Then
//!   other tasks run, and the runtime polls for events.
//! - The relay never delays a byte on purpose, except for a [`RateLimit`].
//! - [`Limits::of_this_process`] limits the pipes, pages and descriptors of the process.
//!
//! # What it does not do
//! The crate does not inspect, encrypt, compress or log the bytes. It needs tokio's I/O driver. It
//! needs the time driver only for timeouts, rate limits and cancelling.
//!
//! # Differences from tokio
//! - A splice passes bytes on by reference. A sender may give memory or a file to the kernel
//!   without a copy (`vmsplice`, `sendfile`, `MSG_ZEROCOPY`). If the sender changes it before the
//!   peer has received it, the peer receives the change. [`Engine::Copy`] avoids this.
//! - A byte of TCP urgent data makes `recv` stop early. tokio then considers the socket drained,
//!   and bytes after the urgent byte may wait forever. spliceway delivers them, even if the
//!   caller's own read stopped there.
//! - If the error queue of a socket holds something, for example a completion of the caller's
//!   `MSG_ZEROCOPY`, tokio uses a whole processor while the socket is full. spliceway waits, and
//!   leaves the queue to the caller. (The kernel counts the queue as received bytes. If the caller
//!   leaves `SO_TIMESTAMPING` on and never empties the queue, the socket receives nothing more.)
//! - Spliced bytes do not move the position of `SO_PEEK_OFF`. Other options that the caller has set
//!   on a socket, such as `SO_RCVLOWAT` and `TCP_CORK`, have the effect that they have with tokio.
//!
//! # Child processes
//! `ChildStdin` and `ChildStdout` are copied. To splice, convert them into the ends of their pipes:
//! `pipe::Receiver::from_owned_fd(stdout.into_owned_fd()?)?`, and the same for `pipe::Sender`. A
//! pipe has no writing side to shut down. Its reader sees the end when the sender is dropped. If a
//! child waits for the end of its input, use two [`copy()`] calls, and drop the sender after the
//! first.
//!
//! # Coming from tokio-splice2, tokio-splice or realm_io
//! Their `copy_bidirectional`, `zero_copy_bidirectional` and `bidi_zero_copy` correspond to
//! [`copy_bidirectional`] here. A failed relay is an `Err`. A connection holds a pipe only while
//! there are bytes for the pipe. If there is no pipe, the connection copies instead of failing.
//! Streams that cannot be spliced also compile, and are copied. `docs/migration.md` in the
//! repository has a table.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        unreachable_code,
        reason = "on systems other than Linux, no stream can be spliced"
    )
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
mod handles;
#[cfg(target_os = "linux")]
mod identity;
#[cfg(target_os = "linux")]
mod kernel_tls;
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
#[cfg(target_os = "linux")]
mod stuck_sink;
#[cfg(feature = "hyper")]
pub mod upgraded;
mod worker;
mod yield_now;

#[cfg(not(target_os = "linux"))]
use elsewhere::{splice_path, stream};

pub use as_socket::{AsSocket, SocketRef, Spliceable};
pub use copy::{copy, copy_bidirectional, copy_bidirectional_with_sizes, copy_with_options};
pub use handles::{CancelHandle, RelayStats, RelayWaits};
#[cfg(target_os = "linux")]
pub use kernel_tls::{KernelTls, KernelTlsState, TlsSession};
pub use options::{CopyOptions, HalfClose, RelayOptions};
pub use outcome::{Direction, EndReason, Operation, Peer, RelayError, RelaySummary};
pub use rate_limit::RateLimit;
pub use relay::{DirectionStage, Relay, RelayParts, RelayState, SuspendedDirection, SuspendedRelay};
pub use salvage::reset;
pub use spliceway_core::{
    DirectionSummary, Engine, Limits, PipePool, PipeSize, PoolStats, Reason, Scope, SizeClass, Waits,
};
#[cfg(target_os = "linux")]
pub use spliceway_core::{Mirror, MirrorEnd, MirrorState, TcpInfo, TlsCipher, TrafficKey};
