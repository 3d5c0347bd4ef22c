//! One module for each thing the program promises; every test runs the real binary, over loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
mod command_line;
mod drain;
mod forward;
mod harness;
mod metrics;
/// Namespaces, as the library's tests use them: one file, so that both crates' segments are the same.
#[path = "../../../spliceway/tests/it/support/net.rs"]
#[allow(dead_code)] // The library's tests use the rest.
mod net;
mod socks5;
mod timeouts;
mod vanished; // a peer that is gone without a FIN
