//! The guarantees of the core, one module for each topic. The name of each test is the claim.
//!
//! No test sleeps. A test awaits an event, or polls until a deadline that it reaches only if there
//! is a bug.
#![cfg(target_os = "linux")]

/// `copy` between blocking sockets delivers every byte, splices bulk data, and returns an error if
/// a stream breaks.
mod copy;
/// The kernel's pipes behave as the engine assumes: slots, sizes and limits per user.
mod kernel_pipe;
/// The kernel's sockets behave as the engine assumes: ends of streams, errors and urgent marks.
mod kernel_socket;
/// A pipe reports what happened, counts the bytes inside, and is clean only if no call failed.
mod pipe;
/// A pool lends clean pipes, prefers those of the calling thread, and never exceeds its limits. It
/// closes pipes that are not needed.
mod pool;
/// A pool works in a process that runs out of descriptors or pages, and in a process that forks.
mod pool_process;
/// After a short read, a splicer probes its source. If a probe cannot show the state of the source,
/// the splicer receives.
mod probes;
/// A caller's pipe is spliced without another pipe in between. The splicer distinguishes the
/// readiness of both ends.
mod splice_through;
/// A splicer performs what its transfer decides, holds a pipe only while the pipe has bytes, and
/// reports why it copies.
mod splicer;
/// Whatever happens, a transfer delivers every byte in order, holds bytes in only one place,
/// yields, and ends.
mod transfer;

mod support;
