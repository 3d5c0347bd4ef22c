//! One module for each thing the program promises; every test runs the real binary, over loopback or between namespaces.
#![forbid(unsafe_code)]

mod accept;
mod command_line;
mod drain;
mod forward;
mod harness;
mod metrics;
mod socks5;
mod timeouts;
mod vanished; // a peer that is gone without a FIN
