//! Measures spliceway against the relays that it replaces, under users' conditions (`field`) and at
//! saturation (`lab`). Results are ratios within one run.
#![forbid(unsafe_code)]

mod charts;
mod contender;
mod counts;
mod environment;
mod field;
mod figures;
mod idle;
mod kind;
mod lab;
mod load;
mod losses;
mod meter;
mod page;
mod programs;
mod relay;
mod results;
mod servers;
mod site;
mod stop;
mod summary;
mod tls;
mod validate;
mod verdict;

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
    /// Compares programs that terminate TLS or originate it.
    Tls(tls::Options),
    /// Runs a relay, for the loads above.
    #[command(hide = true)]
    Relay {
        kind: Kind,
        upstream: SocketAddr,
        listen: IpAddr,
        /// Further upstreams. Connections take turns on all of them.
        others: Vec<SocketAddr>,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Field(options) => field::run(&options),
        Cli::Report(options) => page::run(&options),
        Cli::Validate => validate::run(),
        Cli::Lab(options) => lab::run(&options),
        Cli::Tls(options) => tls::run(&options),
        Cli::Relay {
            kind,
            upstream,
            listen,
            others,
        } => kind::serve(kind, listen, [vec![upstream], others].concat().leak()),
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
