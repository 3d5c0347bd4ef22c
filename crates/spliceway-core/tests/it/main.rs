//! What the core promises, one line per promise; each test's name is the claim.
//!
//! No test sleeps: what must happen is awaited as an event, or asked for until a deadline that only a fault can reach.
#![cfg(target_os = "linux")]

/// `copy` between blocking sockets: exact, spliced in bulk, and an error where the stream broke.
mod copy;
/// The kernel does what the engine rests on: pipes and their slots, sizes, limits per user.
mod kernel_pipe;
/// The kernel does what the engine rests on: sockets at their ends, errors, urgent marks.
mod kernel_socket;
/// A pipe says what happened, counts what it holds, and is clean only if nothing went wrong.
mod pipe;
/// A pool lends clean pipes, its own thread's first, never more than its limits, and closes what nobody needs.
mod pool;
/// A pool in a process that runs out of descriptors or pages, or counts its descriptors.
mod pool_process;
/// After a short read, a splicer probes its source, and is not misled by what a probe does not tell.
mod probes;
/// A pipe of the caller's is spliced with no pipe in between, and the readiness of both ends is told apart.
mod splice_through;
/// A splicer performs what its transfer decides, holds a pipe only while it has bytes, and tells why it copies.
mod splicer;
/// Whatever happens, a transfer delivers every byte in order, holds bytes in one place only, gives way, and ends.
mod transfer;

mod support;
