//! Associations over real sockets on loopback.
//!
//! Nothing is waited for that must not come: one that comes later, on the same path, shows that it did not.

mod ends;
mod names;
mod passed;
mod refused;
mod rig;
