//! Measures spliceway against what it replaces: medians of interleaved rounds, and ratios within one run.

mod accounts;
mod arms;
mod http;
mod instructions;
mod load;
mod machine;
mod options;
mod pool;
mod programs;
mod random;
mod rate;
mod relay;
mod report;
mod sampler;
mod scenario;
mod scenarios;
mod servers;
mod soak;
mod stalls;
mod suite;
mod variants;
mod workers;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use arms::Arm;
use instructions::pieces::Piece;
use scenarios::bulk::Bulk;
use scenarios::churn::Churn;
use scenarios::duplex::Duplex;
use scenarios::fair::Fair;
use scenarios::idle::Idle;
use scenarios::k6::K6;
use scenarios::mixed::Mixed;
use scenarios::more;
use scenarios::rr::RequestResponse;
use scenarios::sweep::Sweep;
use scenarios::veth::Veth;

/// Measures spliceway against what it replaces, as ratios in one run.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// Every scenario through every relay, and the documents: `benchmarks.md` (its generated blocks), plots, and the results as JSON.
    All(suite::Options),
    /// Writes the documents of `all` again from the results, without measuring.
    Report {
        /// The folder of `benchmarks.md`, with `benchmarks/results.json` in it.
        #[arg(long, default_value = "docs")]
        out: PathBuf,
    },
    /// A pipe made and closed against one from the pool: serial, and on two threads at once.
    Pool {
        /// Interleaved rounds.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// One direction of bulk data: CPU time of the relay per GiB, and rate.
    Bulk {
        /// Connections at once.
        #[arg(long, default_value_t = 1)]
        flows: usize,
        /// GiB in all, per round and arm.
        #[arg(long, default_value_t = 4.0)]
        gib: f64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Request and response of one size: CPU time of the relay per round trip, and rate.
    Rr {
        /// Connections at once.
        #[arg(long, default_value_t = 64)]
        connections: usize,
        /// Bytes of each request and of each response.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Round trips in all, per round and arm.
        #[arg(long, default_value_t = 200_000)]
        trips: u64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// `bulk` of one flow between network namespaces joined by veth pairs, MTU 1500: offloads on, off, and off but GRO.
    Veth {
        /// GiB per round and arm.
        #[arg(long, default_value_t = 2.0)]
        gib: f64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// 100 MB over HTTP, fetched by k6 (one virtual user, a new connection each time): CPU time of the relay per GiB, and rate.
    K6 {
        /// Of each run.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// One flow of writes of 1 KiB, 2, 4 … 1 MiB: CPU time of the relay per GiB, and rate.
    Sweep {
        /// Writes per size, round and arm.
        #[arg(long, default_value_t = 1 << 20)]
        writes: u64,
        /// GiB per size, round and arm at most.
        #[arg(long, default_value_t = 2.0)]
        gib: f64,
        /// Interleaved rounds; of writes of 2 to 128 KiB four times as many.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// What `SPLICE_F_MORE` costs a plain relay that sets it on what it writes: time of an exchange, and rate.
    More {
        /// Bytes of each answer.
        #[arg(long, default_value_t = 100_000_000)]
        bytes: u64,
        /// Answers per round, with the flag and without it.
        #[arg(long, default_value_t = 20)]
        exchanges: usize,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Bulk data both ways at once: CPU time of the relay per GiB, and rate, of both ways together.
    Duplex {
        /// Connections at once.
        #[arg(long, default_value_t = 1)]
        flows: usize,
        /// GiB in all, both ways together, per round and arm.
        #[arg(long, default_value_t = 4.0)]
        gib: f64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Connect, 1 KiB there, 1 KiB back, close: CPU time of the relay per connection, and rate.
    Churn {
        /// Connections at once.
        #[arg(long, default_value_t = 32)]
        connections: usize,
        /// Connections in all, per round and arm.
        #[arg(long, default_value_t = 10_000)]
        count: u64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Connections that carried 256 KiB each way and then rest: descriptors, pipes and memory of each.
    Idle {
        /// Relays that splice with pipes of their own need 6 descriptors for each.
        #[arg(long, default_value_t = 3_000)]
        connections: usize,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Bulk data on one flow beside many connections with short messages: latency of these, and rate of that.
    Fair {
        /// Flows with bulk data.
        #[arg(long, default_value_t = 1)]
        flows: usize,
        /// MiB per second of bulk data, all flows together, and not as much as goes through.
        #[arg(long)]
        pace: Option<NonZeroU64>,
        /// Connections with short messages.
        #[arg(long, default_value_t = 1_000)]
        connections: usize,
        /// Round trips per second, of all of them.
        #[arg(long, default_value_t = 2_000)]
        trips: u64,
        /// Per round and arm.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Transfers of many sizes, up to 100 MiB, half of them below 16 KiB: CPU time of the relay per GiB, rate, and time of a transfer.
    Mixed {
        /// Transfers at once.
        #[arg(long, default_value_t = 64)]
        connections: usize,
        /// Transfers per round and arm.
        #[arg(long, default_value_t = 3_000)]
        transfers: usize,
        /// Of their sizes.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// `bulk` through programs, each of which takes the address to listen on and the one to connect to.
    Programs {
        /// Ratios are to the first.
        #[arg(required = true)]
        programs: Vec<PathBuf>,
        /// GiB per round and program.
        #[arg(long, default_value_t = 2.0)]
        gib: f64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 7)]
        rounds: usize,
    },
    /// This program against other builds of it, whose sources differ by a number, in scenarios of `all`.
    Variants {
        /// The builds. Ratios are to the first.
        #[arg(required = true)]
        programs: Vec<PathBuf>,
        /// Their names or beginnings of them.
        #[arg(long, required = true, num_args = 1.., value_name = "ID-PREFIX")]
        scenarios: Vec<String>,
        /// Interleaved rounds; of writes of 2 to 128 KiB four times as many.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
    },
    /// Two workers: one runtime with two threads against a runtime for each, relay and load on both cores.
    Workers {
        /// These alone, by their names or beginnings of them (`bulk`).
        #[arg(long, num_args = 1.., value_name = "ID-PREFIX")]
        only: Vec<String>,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
    /// What the options of a relay cost: CPU time of relays with them against `copy_bidirectional`, which is measured twice.
    Options {
        /// GiB per round and arm, on one connection.
        #[arg(long, default_value_t = 1.0)]
        gib: f64,
        /// Round trips of 64 bytes per round and arm, on 64 connections.
        #[arg(long, default_value_t = 64_000)]
        trips: u64,
        /// Interleaved rounds.
        #[arg(long, default_value_t = 21)]
        rounds: usize,
    },
    /// Rate limits over TCP: how well they are kept, and how much of what they limit is spliced.
    Rate {
        /// Seconds that each is looked at.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// What this machine takes from threads that never wait, one core busy or both: no tail is better than that.
    Stalls {
        /// Each time.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
    /// Instructions in user space, of a relay per round trip, session and MiB, and of the pieces it is made of, counted by Valgrind.
    Instructions(instructions::Options),
    /// Load on the program that is verified byte for byte, while its memory, descriptors, pipes and CPU are watched for drift.
    Soak(soak::Options),
    /// One piece of a relay so many times, for `instructions` to count.
    #[command(hide = true)]
    Repeat { piece: Piece, times: u32 },
    /// A relay of one arm, for the scenarios above.
    #[command(hide = true)]
    Relay {
        arm: Arm,
        upstream: SocketAddr,
        /// The address to listen on, where it is not that of `upstream`.
        listen: Option<IpAddr>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().scenario) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spliceway-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(scenario: Scenario) -> io::Result<()> {
    if let Some((scenarios, rounds)) = comparison(&scenario) {
        return compare(&scenarios, rounds);
    }
    match scenario {
        Scenario::All(options) => suite::run(&options),
        Scenario::Report { out } => suite::report(&out),
        Scenario::Pool { rounds } => {
            report::print_apart(&pool::measure(pool::Operations::ALL, rounds), "no network");
            Ok(())
        }
        Scenario::More {
            bytes,
            exchanges,
            rounds,
        } => more::run(bytes, exchanges, rounds),
        Scenario::Programs { programs, gib, rounds } => programs::run(&programs, bytes(gib), rounds),
        Scenario::Variants {
            programs,
            scenarios,
            rounds,
        } => variants::run(&programs, &scenarios, rounds),
        Scenario::Workers { only, rounds } => workers::run(&only, rounds),
        Scenario::Options { gib, trips, rounds } => options::run(bytes(gib), trips, rounds),
        Scenario::Rate { seconds } => rate::run(seconds),
        Scenario::Stalls { seconds } => stalls::run(seconds),
        Scenario::Instructions(options) => instructions::run(&options),
        Scenario::Repeat { piece, times } => piece.repeat(times),
        Scenario::Soak(options) => soak::run(&options),
        Scenario::Relay { arm, upstream, listen } => arms::serve(arm, listen.unwrap_or(upstream.ip()), upstream),
        _ => unreachable!("a comparison"),
    }
}

type Scenarios = Vec<Box<dyn scenario::Scenario>>;

/// What goes through every relay there is, and in how many rounds, if it is such a scenario.
fn comparison(scenario: &Scenario) -> Option<(Scenarios, usize)> {
    Some(match *scenario {
        Scenario::Bulk { flows, gib, rounds } => {
            let bytes = bytes(gib);
            (vec![Box::new(Bulk { flows, bytes })], rounds)
        }
        Scenario::Rr {
            connections,
            size,
            trips,
            rounds,
        } => {
            let exchange = RequestResponse {
                connections,
                size,
                trips,
            };
            (vec![Box::new(exchange)], rounds)
        }
        Scenario::K6 { seconds, rounds } => (vec![Box::new(K6 { seconds })], rounds),
        Scenario::Sweep { writes, gib, rounds } => (each(Sweep::all(writes, bytes(gib))), rounds),
        Scenario::Duplex { flows, gib, rounds } => {
            let bytes = bytes(gib);
            (vec![Box::new(Duplex { flows, bytes })], rounds)
        }
        Scenario::Churn {
            connections,
            count,
            rounds,
        } => (vec![Box::new(Churn { connections, count })], rounds),
        Scenario::Idle { connections, rounds } => (vec![Box::new(Idle { connections })], rounds),
        Scenario::Fair {
            flows,
            pace,
            connections,
            trips: trips_per_second,
            seconds,
            rounds,
        } => {
            let fair = Fair {
                flows,
                pace: pace.map(|mib| mib.get().saturating_mul(1 << 20)),
                connections,
                trips_per_second,
                seconds,
            };
            (vec![Box::new(fair)], rounds)
        }
        Scenario::Mixed {
            connections,
            transfers,
            seed,
            rounds,
        } => {
            let mixed = Mixed {
                connections,
                transfers,
                seed,
            };
            (vec![Box::new(mixed)], rounds)
        }
        Scenario::Veth { gib, rounds } => (each(Veth::variants(bytes(gib))), rounds),
        _ => return None,
    })
}

fn each(scenarios: impl IntoIterator<Item = impl scenario::Scenario + 'static>) -> Scenarios {
    scenarios.into_iter().map(|one| Box::new(one) as _).collect()
}

/// One after the other, in one namespace.
fn compare(scenarios: &Scenarios, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::raise_descriptor_limit(0)?;
    for scenario in scenarios {
        let table = scenario::run(scenario.as_ref(), Arm::RELAYS, rounds)?;
        report::print_table(&table, &conditions);
    }
    Ok(())
}

fn bytes(gib: f64) -> u64 {
    (gib * f64::from(1 << 30)) as u64
}
