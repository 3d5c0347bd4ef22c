//! Tests associations over real sockets on loopback.
//!
//! A test does not wait for a datagram that must not arrive. Instead, the arrival of a later
//! datagram on the same path shows that the first one was not forwarded.

mod ends;
mod names;
mod passed;
mod refused;
mod rig;
