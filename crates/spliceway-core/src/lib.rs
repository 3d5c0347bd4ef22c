//! The parts of a TCP relay that moves bytes through the kernel, for any runtime or none.
//!
//! ```text
//!              recv ─────────▶ user space ─────────▶ send          small messages, and whatever cannot be spliced
//!   source ──┤                                              ├──▶ sink
//!              splice ───────▶    pipe    ─────────▶ splice        bulk: pages change hands, bytes stay where they are
//! ```
//!
//! - [`Pipe`]: one kernel pipe. Only this type interprets the results `EAGAIN`, 0 and `EINVAL` of a
//!   `splice(2)` into or out of it.
//! - [`PipePool`]: lends empty pipes, within [`Limits`].
//! - [`copy()`]: copies one direction between blocking sockets.
//!
//! The crate `spliceway` connects these parts to tokio. It uses two types that are not part of the
//! public interface. `Transfer` decides the next step of one direction, and `Splicer` performs that
//! step on two sockets.
//!
//! In this crate, only [`copy()`] waits. The crate does not log or spawn tasks, and it does not
//! depend on a runtime. (A pool has one thread, which closes idle pipes. The thread ends with the
//! last idle pipe.)
//!
//! On systems other than Linux, the crate has only the types that `spliceway` needs, and does not
//! splice.

#[cfg(target_os = "linux")]
mod blocking;
mod counts;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod endpoint;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod kernel_tls;
mod limits;
#[cfg(target_os = "linux")]
mod mirror;
#[cfg(target_os = "linux")]
mod outcomes;
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
#[cfg(target_os = "linux")]
mod tcp_info;
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "other systems use only its settings")
)]
mod traffic;
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod transfer;
#[cfg(target_os = "linux")]
mod unsent;
#[cfg(target_os = "linux")]
mod urgent;
mod waits;
#[cfg(target_os = "linux")]
mod write_events;

#[cfg(target_os = "linux")]
pub use blocking::copy;
pub use counts::{Counts, DirectionSummary};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Mirror, PipePool};
#[cfg(target_os = "linux")]
pub use kernel_tls::{TlsCipher, TrafficKey};
pub use limits::{Limits, PoolStats, SizeClass};
#[cfg(target_os = "linux")]
pub use mirror::{Mirror, MirrorEnd, MirrorState};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use outcomes::{ReadOutcome, WriteOutcome};
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
pub use splicer::{Next, Read, SpliceThrough, Splicer, Write};
#[cfg(target_os = "linux")]
pub use tcp_info::TcpInfo;
#[doc(hidden)]
pub use traffic::SPLICE_THRESHOLD;
pub use traffic::{Engine, PipeSize};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use urgent::{UrgentMarkCheck, UrgentMarks};
pub use waits::{Waits, WaitsFor};
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub use write_events::WriteEvents;
