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
//! - [`copy`]: one direction between blocking sockets, put together from these.
//!
//! The crate `spliceway` binds them to tokio. What this crate does not do: wait, log, spawn tasks, or know of any runtime. (One
//! thread is its own: it closes idle pipes, and ends with the last of them.)
//!
//! Linux only; elsewhere the crate is all but empty.

#[cfg(target_os = "linux")]
mod blocking;
mod counts;
#[cfg(target_os = "linux")]
mod mover;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(target_os = "linux")]
mod pool;
mod reason;
#[cfg(target_os = "linux")]
pub mod socket;
#[cfg(target_os = "linux")]
mod switch;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
pub mod transfer;

#[cfg(target_os = "linux")]
pub use blocking::copy;
pub use counts::{Counts, DirectionSummary};
#[cfg(target_os = "linux")]
pub use mover::{Mover, Need, Sink, Source};
#[cfg(target_os = "linux")]
pub use pipe::{Drain, Fill, Pipe};
#[cfg(target_os = "linux")]
pub use pool::{Limits, PipePool, PoolStats, PooledPipe, SizeClass};
pub use reason::{Reason, Scope};
#[cfg(target_os = "linux")]
pub use transfer::{Engine, PipeSize};
