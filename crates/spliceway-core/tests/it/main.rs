//! The promises of the core, one line per promise. The name of each test is the claim.
//!
//! No test sleeps. A test awaits an event, or polls until a deadline that only a fault can reach.
#![cfg(target_os = "linux")]

/// `copy` between blocking sockets: exact, spliced in bulk, and an error where the stream broke.
mod copy;
/// The kernel behaves as the engine assumes: pipes and their slots, sizes, limits per user.
mod kernel_pipe;
/// The kernel behaves as the engine assumes: sockets at their ends, errors, urgent marks.
mod kernel_socket;
/// A pipe reports what happened, counts what it holds, and is clean only if nothing went wrong.
mod pipe;
/// A pool lends clean pipes, those of the calling thread first, and never more than its limits. It
/// closes pipes that nobody needs.
mod pool;
/// A pool in a process that runs out of descriptors or pages, or counts its descriptors.
mod pool_process;
/// After a short read, a splicer probes its source, and is not misled by what a probe cannot tell.
mod probes;
/// A caller's pipe is spliced with no pipe in between. The splicer distinguishes the readiness of
/// both ends.
mod splice_through;
/// A splicer performs what its transfer decides, holds a pipe only while it has bytes, and reports
/// why it copies.
mod splicer;
/// Whatever happens, a transfer delivers every byte in order, holds bytes in one place only,
/// yields, and ends.
mod transfer;

mod support;
