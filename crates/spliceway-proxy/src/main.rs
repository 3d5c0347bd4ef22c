//! The `spliceway` program: forwards and proxies TCP while the bytes stay in the kernel.
//!
//! ```text
//!   arguments ─ cli ─▶ Settings ─ serve ─▶ listener ─▶ session: handshake ▸ dial ▸ relay ▸ record
//!                                   │         │              │         │       │            │
//!                                 drain   admission   protocol, auth  policy  spliceway  metrics
//! ```
#![deny(unsafe_code)]

mod access;
mod cli;
mod kit;
mod log;
mod metrics;
mod monitor;
mod net;
mod reach;
mod run;
mod session;
mod settings;
mod tls;

use std::process::ExitCode;

use kit::limits;
use net::listener;
use run::{lifetime, startup};

fn main() -> ExitCode {
    match startup::check_stack() {
        Ok(()) => start(),
        Err(error) => lifetime::failed(&error.into()),
    }
}

/// Does what the command line asks for. It is not inlined, because its stack is large.
#[inline(never)]
fn start() -> ExitCode {
    listener::adopt_inherited();
    limits::survive_file_size();
    cli::parse().carry_out()
}
