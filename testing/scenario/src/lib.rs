//! Scenarios for relays over real sockets. Each scenario is drawn from bytes, and the same
//! properties hold in all of them. The crate has such properties for the parsers too.
//!
//! ```text
//!   bytes ─ arbitrary ─▶ Plan ─▶ world: peers act and check ⇄ sockets ⇄ relays
//!                                                       (over_tokio, or over_splicers)
//! ```
//!
//! One generator serves both searches: cargo-fuzz chooses the bytes by coverage, and proptest draws
//! them at random and shrinks them. A failure is a panic that names the property.
//!
//! These properties hold:
//! - A peer receives the other peer's bytes in order from the first one, and all of them if the
//!   stream ends cleanly. (A byte sent as urgent may be missing. TCP does not deliver it in line,
//!   unless a later urgent byte replaces it.)
//! - A peer that reads gets all bytes sent to it. The relay does not need an EOF or a further byte
//!   to wake it.
//! - The counts are at least the number of bytes that the peers received. At a clean end, they are
//!   equal to it.
//! - A relay that ends successfully has delivered all bytes from both peers, and has seen both
//!   EOFs. It fails only if a peer broke its connection, or if it must splice and cannot.
//! - A relay ends once its peers have, and is not polled repeatedly with nothing to move.
//! - Afterwards no descriptor is left, no pipe is lent, and the idle pipes are empty.
//!
//! The tests do not sleep and do not read a clock. Peers take turns with the relays, and a relay
//! runs after the kernel has woken it.
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
pub use over_tokio::{over_tokio, over_tokio_suspended};
pub use parsers::{
    address, dns, http, http_answer, http_chunks, pem, proxy_header, sniff, socks4, socks5, target_rule, tls, upstream,
};
pub use plan::{Amount, Driving, Family, PeerPlan, Plan, PoolPlan, Read, RelayPlan, Write};
