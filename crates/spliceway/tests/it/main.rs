//! The promises of the crate, one module each.

#![cfg(target_os = "linux")]

mod faults; // system calls that fail, each in every way
mod idle; // what 10,000 relays at rest hold
mod options; // what a caller may choose about a relay, spliced and copied, both ways
mod own_types; // boxes, `Either`, and types of the caller's
mod parity; // tokio's functions and ours: one suite, the same outcomes
mod pipe_ends; // pipes as streams: one splice, with none between
mod pitfalls; // faults this field has had, and that we have not
mod prompt; // no byte waits on purpose
mod role;
mod segments; // between network namespaces: segments of 1,448 bytes, offloads on and off, loss, long chains
mod size; // what a relay's future costs in memory
mod support;
mod syscalls; // which system calls a relay makes
mod threshold; // which messages are copied, and which are spliced
mod unprivileged; // 300 bulk relays of a user with a soft limit on pipe pages
mod upgraded; // the sockets below hyper's upgraded connections
