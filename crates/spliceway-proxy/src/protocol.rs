//! What clients say before the relay starts: bytes in, decisions out, no I/O.

pub mod socks5;
