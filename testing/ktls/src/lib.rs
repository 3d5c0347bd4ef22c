//! Sessions with TLS on one side, generated from a seed, and what their peers must see.
//!
//! ```text
//!   seed ─ plan ─▶ TLS peer ⇄ relay ⇄ plain peer ─▶ judge
//!          │         └ record layer
//!          └ data, empty records, tickets, key updates, alerts, ends, sizes of buffers
//! ```
//!
//! rustls performs the handshake of the TLS peer. Then the peer seals and opens records itself, so
//! it can send what no library sends. Plans of one generator run against two relays:
//! - one of the library, in [`relay`], which leaves records to the kernel and splices their
//!   content;
//! - the program, whose rustls works in user space (`tls::plans` of its tests).
//!
//! Note 024 has the results.
#![forbid(unsafe_code)]

mod handshake;
mod identity;
mod judge;
mod peer;
mod plan;
mod record_layer;
pub mod relay;

pub use identity::Identity;
pub use judge::judge;
pub use peer::{End, Peers, Seen, play};
pub use plan::{Cipher, DownEnd, Item, Kinds, Order, Plan, Role, UpEnd};
