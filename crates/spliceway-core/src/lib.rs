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
//! The crate `spliceway` binds this to tokio. What it binds is not part of the public interface:
//! `Transfer`, which decides what comes next in one direction, and `Splicer`, which performs that
//! on two sockets.
//!
//! This crate does not wait, log or spawn tasks, and it knows no runtime. (One thread is its own:
//! it closes idle pipes, and ends with the last of them.)
//!
//! Off Linux, only the types that `spliceway` needs compile: nothing is spliced there.

#[cfg(target_os = "linux")]
mod blocking;
mod counts;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod endpoint;
mod limits;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(target_os = "linux")]
mod pool;
mod reason;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod socket;
#[cfg(target_os = "linux")]
mod splice_support;
#[cfg(target_os = "linux")]
mod splice_through;
#[cfg(target_os = "linux")]
mod splicer;
#[cfg(target_os = "linux")]
mod sync;
#[cfg(target_os = "linux")]
mod sys;
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "off Linux only its settings are used")
)]
mod traffic;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod transfer;
#[cfg(target_os = "linux")]
mod urgent;

#[cfg(target_os = "linux")]
pub use blocking::copy;
pub use counts::{Counts, DirectionSummary};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::PipePool;
pub use limits::{Limits, PoolStats, SizeClass};
#[cfg(target_os = "linux")]
pub use pipe::{Drain, Fill, Pipe};
#[cfg(target_os = "linux")]
pub use pool::{PipePool, PooledPipe};
pub use reason::{Reason, Scope};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use splice_through::{EndKind, Side, bytes_in_pipe};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use splicer::{Next, Read, ReadOutcome, SpliceThrough, Splicer, Write, WriteOutcome};
#[doc(hidden)]
pub use traffic::SPLICE_THRESHOLD;
pub use traffic::{Engine, PipeSize};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use urgent::{UrgentMarkCheck, UrgentMarks};
