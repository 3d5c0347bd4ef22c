//! The parts of a TCP relay that moves bytes through the kernel, for any runtime or none.
//!
//! ```text
//!              recv ─────────▶ user space ─────────▶ send          small messages, and whatever cannot be spliced
//!   source ──┤                                              ├──▶ sink
//!              splice ───────▶    pipe    ─────────▶ splice        bulk: pages change hands, bytes stay where they are
//! ```
//!
//! - [`Pipe`]: one kernel pipe; alone says what `EAGAIN`, 0 and `EINVAL` of `splice(2)` mean.
//! - [`PipePool`]: lends empty pipes, within [`Limits`].
//! - [`Transfer`](transfer::Transfer): one direction as a pure state machine: what comes next.
//! - [`Mover`]: performs that on two sockets, and never waits.
//! - [`copy()`]: one direction between blocking sockets, put together from these.
//!
//! The crate `spliceway` binds them to tokio. What this crate does not do: wait, log, spawn tasks, or know of any runtime. (One
//! thread is its own: it closes idle pipes, and ends with the last of them.)
//!
//! Linux only.

#[cfg(not(target_os = "linux"))]
compile_error!("spliceway moves bytes with splice(2), which only Linux has");

mod blocking;
mod counts;
#[doc(hidden)]
pub mod heuristic;
mod mover;
mod pipe;
mod pipe_end;
mod pool;
mod reason;
pub mod socket;
mod suspects;
mod switch;
mod sync;
mod sys;
pub mod transfer;

pub use blocking::copy;
pub use counts::{Counts, DirectionSummary};
pub use mover::{Mover, Need, Sink, Source};
pub use pipe::{Drain, Fill, Pipe};
pub use pipe_end::{EndKind, Side, bytes_in_pipe};
pub use pool::{Limits, PipePool, PoolStats, PooledPipe, SizeClass};
pub use reason::{Reason, Scope};
pub use suspects::Suspects;
pub use transfer::{Crossover, Engine, Middling, PipeSize};
