//! Scenarios for relays over real sockets, drawn from bytes, with the properties that hold in each.
//! The parsers have such properties too.
//!
//! ```text
//!   bytes ─ arbitrary ─▶ Plan ─▶ world: peers act and check ⇄ sockets ⇄ relays
//!                                                       (over_tokio, or over_splicers)
//! ```
//!
//! One generator serves both searches: cargo-fuzz draws the bytes by coverage, and proptest draws
//! them at random and shrinks them. A failure is a panic that names the property.
//!
//! These properties hold:
//! - A peer receives what the other sent, from its first byte on, and all of it if the stream ends
//!   cleanly. (A byte sent as urgent may be missing: TCP does not deliver it in line, unless a
//!   later one takes its place.)
//! - A peer that reads gets what was sent to it, without an EOF or a further byte that wakes the
//!   relay.
//! - The counts say at least what the peers received, and exactly that at a clean end.
//! - A relay that ends well has delivered all that both peers sent, and has seen both EOFs. It
//!   fails only if a peer broke its connection, or if it must splice and cannot.
//! - A relay ends once its peers have, and is not polled over and over with nothing to move.
//! - Afterwards no descriptor is left, no pipe is lent, and the idle ones are empty.
//!
//! Nothing sleeps and no clock is read: peers take turns with the relays, and a relay runs when the
//! kernel woke it.
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
