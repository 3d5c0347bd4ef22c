//! Associations over real sockets on loopback.
//!
//! A test does not wait for a datagram that must not come. A later one on the same path shows that
//! it did not come.

mod ends;
mod names;
mod passed;
mod refused;
mod rig;
