//! Measures spliceway against the relays that it replaces, under users' conditions (`field`) and at
//! saturation (`lab`). Results are ratios within one run.
#![forbid(unsafe_code)]

mod charts;
mod contender;
mod environment;
mod field;
mod figures;
mod kind;
mod lab;
mod load;
mod meter;
mod more;
mod page;
mod pool;
mod programs;
mod relay;
mod results;
mod servers;
mod site;
mod validate;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;

use kind::Kind;

/// The relay's own core.
const RELAY_CORE: usize = 0;
/// The core that clients, servers and delay lines share.
const LOAD_CORE: usize = 1;

/// Measures spliceway against the relays that it replaces, as ratios within one run.
#[derive(Parser)]
#[command(version)]
enum Cli {
    /// Measures users' conditions: hosts with a network between them, rates below saturation, and
    /// real programs.
    Field(field::Options),
    /// Writes the `field` page again from its results, without measuring.
    Report(page::Options),
    /// Checks the generator and the delay line against ping, iperf3 and sockperf.
    Validate,
    /// Runs saturation tests on loopback.
    Lab(lab::Options),
    /// Measures the cost of `SPLICE_F_MORE` for a plain relay that sets it on its writes.
    More {
        /// Bytes in each answer.
        #[arg(long, default_value_t = 100_000_000)]
        bytes: u64,
        /// Answers per round, with the flag and without it.
        #[arg(long, default_value_t = 10)]
        exchanges: usize,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Runs a relay, for the loads above.
    #[command(hide = true)]
    Relay {
        kind: Kind,
        upstream: SocketAddr,
        listen: IpAddr,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Field(options) => field::run(&options),
        Cli::Report(options) => page::run(&options),
        Cli::Validate => validate::run(),
        Cli::Lab(options) => lab::run(&options),
        Cli::More {
            bytes,
            exchanges,
            rounds,
        } => more::run(bytes, exchanges, rounds),
        Cli::Relay { kind, upstream, listen } => kind::serve(kind, listen, upstream),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &io::Error) -> ExitCode {
    eprintln!("spliceway-bench: {error}");
    ExitCode::FAILURE
}
