//! tokio's `copy_bidirectional`, through the kernel: bytes between two sockets never enter user space.
mod copy;
mod direction;
mod fallback;
mod identity;
mod relay;
mod stream;

pub use copy::{copy, copy_bidirectional, copy_bidirectional_with_sizes};
pub use relay::{Direction, Operation, Relay, RelayError, RelayStats, RelaySummary};
pub use spliceway_core::{DirectionSummary, Engine, Limits, PipePool, PipeSize, PoolStats, Reason, SizeClass};
