//! The promises of the crate, one module for each.

#![cfg(target_os = "linux")]

// System calls that fail, each in every way.
mod faults;
// What 10,000 idle relays hold.
mod idle;
// Copies for observers.
mod mirror;
// The options of a relay, spliced and copied, in both directions.
mod options;
// Boxes, `Either`, and the caller's own types.
mod own_types;
// One suite with the same outcomes for tokio's functions and spliceway's.
mod parity;
// Pipes as streams: one splice, with no other pipe in between.
mod pipe_ends;
// Faults that other relays have had and that spliceway does not have.
mod pitfalls;
// The relay delays no byte on purpose.
mod prompt;
mod role;
// Between network namespaces: segments of 1,448 bytes, offloads on and off, loss, long chains.
mod segments;
// The memory of a relay's future.
mod size;
mod support;
// The system calls that a relay makes.
mod syscalls;
// Which messages are copied, and which are spliced.
mod threshold;
// 300 bulk relays of a user with a soft limit on pipe pages.
mod unprivileged;
// The sockets below hyper's upgraded connections.
mod upgraded;
// What a direction waits for, and what the kernel knows about a connection.
mod waits;
