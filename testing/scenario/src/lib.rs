//! Scenarios for relays over real sockets, drawn from bytes, and what must hold in each; the same for the parsers.
//!
//! ```text
//!   bytes ─ arbitrary ─▶ Plan ─▶ world: peers act and check ⇄ sockets ⇄ relays: over_tokio, or over_splicers
//! ```
//!
//! One generator for both searches: cargo-fuzz draws the bytes by coverage, proptest at random and shrinks them. A failure is
//! a panic that says what did not hold.
//!
//! What must hold:
//! - What a peer receives is what the other sent, from its first byte on, and all of it if the stream ends cleanly. (A byte sent
//!   as urgent may be missing: TCP does not deliver it in line, unless a later one takes its place.)
//! - A peer that reads gets what was sent to it, with no end or further byte behind it to wake the relay.
//! - The counts say at least what the peers received, and exactly that at a clean end.
//! - A relay that ends well has delivered all that both peers sent, and seen both ends. It breaks only where a peer did, or where it must splice
//!   and cannot.
//! - A relay ends once its peers have, and is not polled over and over with nothing to move.
//! - Afterwards no descriptor is left, no pipe is lent, and the idle ones are empty.
//!
//! Nothing sleeps and no clock is read: peers take turns with the relays, and a relay runs when the kernel woke it.
#![forbid(unsafe_code)]

mod audit;
mod datagrams;
mod over_splicers;
mod over_tokio;
mod parsers;
mod peer;
mod plan;
mod sockets;
mod stream;
mod world;

pub use datagrams::socks5_datagram;
pub use over_splicers::over_splicers;
pub use over_tokio::over_tokio;
pub use parsers::{address, http, http_answer, http_chunks, proxy_header, socks4, socks5, upstream};
pub use plan::{Amount, Driving, Family, PeerPlan, Plan, PoolPlan, Read, RelayPlan, Write};
