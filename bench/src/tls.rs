//! `tls`: programs that terminate TLS or originate it, under the same loads.

mod load;
mod terminators;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use spliceway_machine as machine;

use crate::contender::{AGAIN, OURS};
use crate::figures::Figures;
use crate::load::Profile;
use crate::relay::Relay;
use crate::site::{CLIENT, RELAY, SERVER, Site};
use load::{Client, Identity, Server, Work};
use terminators::{Files, Program};

/// The measurements to make, and where to write them.
#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these loads, by a prefix of the title.
    #[arg(long, num_args = 1.., value_name = "PREFIX")]
    only: Vec<String>,
    /// The folder for the results.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// The end of the relay that speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Clients speak TLS.
    Terminate,
    /// The server speaks TLS.
    Originate,
}

struct Load {
    title: &'static str,
    end: End,
    identity: Identity,
    work: Work,
}

const fn load(title: &'static str, end: End, identity: Identity, work: Work) -> Load {
    Load {
        title,
        end,
        identity,
        work,
    }
}

const LOADS: &[Load] = &[
    load(
        "terminate, full handshakes with P-256",
        End::Terminate,
        Identity::Ecdsa,
        Work::Connections { resumes: false },
    ),
    load(
        "terminate, full handshakes with RSA-2048",
        End::Terminate,
        Identity::Rsa,
        Work::Connections { resumes: false },
    ),
    load(
        "terminate, resumed handshakes",
        End::Terminate,
        Identity::Ecdsa,
        Work::Connections { resumes: true },
    ),
    load(
        "terminate, bulk to the client",
        End::Terminate,
        Identity::Ecdsa,
        Work::Bulk { to_server: false },
    ),
    load(
        "terminate, bulk to the server",
        End::Terminate,
        Identity::Ecdsa,
        Work::Bulk { to_server: true },
    ),
    load(
        "terminate, round trips of 64 B on 64 connections",
        End::Terminate,
        Identity::Ecdsa,
        Work::RoundTrips,
    ),
    load(
        "terminate, memory of an idle connection",
        End::Terminate,
        Identity::Ecdsa,
        Work::Idle,
    ),
    load(
        "originate, connections",
        End::Originate,
        Identity::Ecdsa,
        Work::Connections { resumes: true },
    ),
    load(
        "originate, bulk to the client",
        End::Originate,
        Identity::Ecdsa,
        Work::Bulk { to_server: false },
    ),
    load(
        "originate, bulk to the server",
        End::Originate,
        Identity::Ecdsa,
        Work::Bulk { to_server: true },
    ),
    load(
        "originate, round trips of 64 B on 64 connections",
        End::Originate,
        Identity::Ecdsa,
        Work::RoundTrips,
    ),
    load(
        "originate, memory of an idle connection",
        End::Originate,
        Identity::Ecdsa,
        Work::Idle,
    ),
];

/// Prints the tables, and writes them to `tls.md` and `tls.json`.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
pub(crate) fn run(options: &Options) -> io::Result<()> {
    machine::raise_descriptor_limit(0)?;
    let site = Site::new(Profile::Rack)?;
    let is_asked = |load: &&Load| options.only.is_empty() || options.only.iter().any(|one| load.title.starts_with(one));
    let all: io::Result<Vec<Figures>> = LOADS
        .iter()
        .filter(is_asked)
        .map(|load| through_all(&site, load, options.rounds))
        .collect();
    let all = all?;
    let page: String = all.iter().map(Figures::table).collect();
    println!("{page}");
    fs::create_dir_all(&options.out)?;
    fs::write(options.out.join("tls.md"), page)?;
    fs::write(options.out.join("tls.json"), serde_json::to_vec(&all)?)
}

fn through_all(site: &Site, load: &Load, rounds: usize) -> io::Result<Figures> {
    let (unit, decimals) = load.work.unit();
    let mut figures = Figures::new(load.title, unit, decimals);
    let mut contenders: Vec<(&str, Program)> = vec![(OURS, Program::Spliceway), (AGAIN, Program::Spliceway)];
    contenders.extend(Program::PEERS.map(|program| (program.name(), program)));
    contenders.retain(|(name, program)| match program.missing(load.end) {
        Some(why) => {
            figures.skip(name, why);
            false
        }
        None => true,
    });
    let files = Files::new(site, load.identity)?;
    for _ in 0..rounds {
        let mut failed = Vec::new();
        for (name, program) in &contenders {
            match measure(site, load, &files, *program) {
                Ok(value) => figures.add(name, value),
                Err(error) => {
                    figures.skip(name, error.to_string());
                    failed.push(*name);
                }
            }
        }
        contenders.retain(|(name, _)| !failed.contains(name));
        // Every other round runs in reverse order, so that drift affects all contenders.
        contenders.reverse();
    }
    Ok(figures)
}

/// The time for a relay to settle, and the time in which its work counts.
const WARMING: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);

/// Returns the cost of one program in the load's unit.
#[expect(clippy::disallowed_methods, reason = "a window of time is what is measured")]
fn measure(site: &Site, load: &Load, files: &Files, program: Program) -> io::Result<f64> {
    let (listen, server) = site.addresses();
    let tls = (load.end == End::Originate).then(|| files.acceptor());
    let server = Server::start(site.node(SERVER), server, tls)?;
    let relay = site.node(RELAY).inside(|| {
        Relay::start_program(program.name(), listen, |address, folder| {
            program.command(load.end, address, server.address, files, folder)
        })
    })?;
    let connector = (load.end == End::Terminate).then(|| files.connector());
    let before = relay.resources()?;
    let client = Client::start(site.node(CLIENT), load.work, relay.address, connector)?;
    if load.work == Work::Idle {
        client.wait_until_idle()?;
        let grown = relay.resources()?.rss_kib.saturating_sub(before.rss_kib);
        return Ok(grown as f64 / load::IDLE as f64);
    }
    // Sleeps because the clients work meanwhile, in other threads.
    thread::sleep(WARMING);
    let (cpu, done) = (relay.cpu_time()?, client.done()?);
    // Sleeps because this is the window.
    thread::sleep(WINDOW);
    let (cpu, done) = (relay.cpu_time()? - cpu, client.done()? - done);
    if done == 0 {
        return Err(io::Error::other("nothing came through"));
    }
    Ok(cpu.as_secs_f64() / done as f64 * load.work.units_per_second_of_cpu())
}
