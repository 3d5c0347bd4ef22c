//! The parts of a TCP relay that moves bytes through the kernel, for any runtime or none.
//!
//! ```text
//!              recv ─────────▶ user space ─────────▶ send          small messages, and whatever cannot be spliced
//!   source ──┤                                              ├──▶ sink
//!              splice ───────▶    pipe    ─────────▶ splice        bulk: pages change hands, bytes stay where they are
//! ```
//!
//! - [`Pipe`]: one kernel pipe; it alone interprets `EAGAIN`, 0 and `EINVAL` of `splice(2)`.
//! - [`PipePool`]: lends empty pipes, within [`Limits`].
//! - [`copy()`]: one direction between blocking sockets.
//!
//! The crate `spliceway` binds this to tokio. What it binds is not part of the public interface: `Transfer`, which decides
//! what comes next in one direction, and `Splicer`, which performs that on two sockets.
//!
//! This crate does not wait, log or spawn tasks, and it knows no runtime. (One thread is its own: it closes idle pipes, and
//! ends with the last of them.)
//!
//! Linux only.

#[cfg(not(target_os = "linux"))]
compile_error!("spliceway moves bytes with splice(2), which only Linux has");

mod blocking;
mod counts;
mod endpoint;
mod pipe;
mod pool;
mod reason;
#[doc(hidden)]
pub mod socket;
mod splice_support;
mod splice_through;
mod splicer;
mod sync;
mod sys;
mod traffic;
#[doc(hidden)]
pub mod transfer;
mod urgent;

pub use blocking::copy;
pub use counts::{Counts, DirectionSummary};
pub use pipe::{Drain, Fill, Pipe};
pub use pool::{Limits, PipePool, PoolStats, PooledPipe, SizeClass};
pub use reason::{Reason, Scope};
#[doc(hidden)]
pub use splice_through::{EndKind, Side, bytes_in_pipe};
#[doc(hidden)]
pub use splicer::{Next, Read, ReadOutcome, SpliceThrough, Splicer, Write, WriteOutcome};
#[doc(hidden)]
pub use traffic::SPLICE_THRESHOLD;
pub use transfer::{Engine, PipeSize};
#[doc(hidden)]
pub use urgent::{UrgentMarkCheck, UrgentMarks};
