//! The resources of idle sessions: what a relay holds for a session that has had one exchange, and
//! what the kernel holds.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use spliceway_load::{Generator, Offer, Requests, Schedule, What};
use spliceway_machine as machine;

use crate::contender::{self, Contender};
use crate::figures::Figures;
use crate::kind;
use crate::relay::Relay;
use crate::site::{CLIENT, RELAY, SERVER, Site};

pub(crate) const FEW_MEMORY: &str = "idle, 2,000 sessions: resident memory";
pub(crate) const MANY_MEMORY: &str = "idle, 10,000 sessions: resident memory";

/// Numbers of sessions, each with the name of its tables.
const SESSIONS: [(usize, &str); 3] = [
    (2_000, "idle, 2,000 sessions"),
    (10_000, "idle, 10,000 sessions"),
    (MOST, "idle, 100,000 sessions"),
];

/// The largest number of sessions. It takes minutes, so a run has it only if `--only` names it.
const MOST: usize = 100_000;
/// One address of a target permits this many sessions at most: one for each port of the relay.
const PER_TARGET: usize = 30_000;
/// Bytes of the exchange in each direction. Relays that splice use a pipe for it.
const EXCHANGE: usize = 16 << 10;
/// Pages differ more between programs than between runs, so a few rounds are enough.
const ROUNDS: usize = 3;
/// Figures of each number of sessions.
const TABLES: usize = 5;
/// Time without exchanges, whose CPU time is measured.
const SILENCE: Duration = Duration::from_secs(5);
/// The descriptors of a session in the load generator, and in most relays. A relay that keeps pipes
/// of its own needs six.
const DESCRIPTORS: usize = 2;

/// Returns the titles that `only` names, or all without the largest number of sessions.
pub(crate) fn titles(only: &[String]) -> Vec<&'static str> {
    asked(only).map(|(_, title)| *title).collect()
}

fn asked(only: &[String]) -> impl Iterator<Item = &'static (usize, &'static str)> {
    SESSIONS.iter().filter(|(sessions, title)| {
        let is_named = |name: &String| title.starts_with(name.as_str());
        match *sessions {
            MOST => only.iter().any(|name| is_named(name) && name.starts_with("idle, 100")),
            _ => only.is_empty() || only.iter().any(is_named),
        }
    })
}

/// Returns the title of the table of memory.
pub(crate) fn memory_of(title: &str) -> String {
    format!("{title}: resident memory")
}

/// Returns about how long the measurement takes.
pub(crate) fn seconds(only: &[String], contenders: &[String], rounds: usize) -> f64 {
    let contenders = contender::asked(contender::for_idle_sessions(), contenders).len();
    let each = asked(only)
        .map(|(sessions, _)| 8.0 + *sessions as f64 * 1e-3)
        .sum::<f64>();
    each * (contenders * rounds.min(ROUNDS)) as f64
}

/// Measures the sessions of a title.
pub(crate) fn measure(site: &Site, title: &str, contenders: &[String], rounds: usize) -> io::Result<Vec<Figures>> {
    let named = SESSIONS.iter().find(|(_, name)| *name == title);
    let (sessions, _) = named.expect("it is one of the titles");
    if let Err(why) = machine::raise_descriptor_limit((sessions * DESCRIPTORS + 1_000) as u64) {
        eprintln!("skipped: {title}: {why}");
        return Ok(Vec::new());
    }
    Ok(of(site, *sessions, title, contenders, rounds.min(ROUNDS))?.into())
}

/// Measures this many idle sessions through each relay.
pub(crate) fn of(
    site: &Site,
    sessions: usize,
    title: &str,
    contenders: &[String],
    rounds: usize,
) -> io::Result<[Figures; TABLES]> {
    let figures = |what: &str, unit, decimals| Figures::new(format!("{title}: {what}"), unit, decimals);
    let mut all = [
        figures("resident memory", "KiB each", 1),
        figures("descriptors", "each", 2),
        figures("pipes", "each", 2),
        figures("kernel memory, with both peers", "KiB each", 1),
        figures("CPU time of 5 s", "ns each", 0),
    ];
    let mut contenders = contender::asked(contender::for_idle_sessions(), contenders);
    for _ in 0..rounds {
        let mut failed = Vec::new();
        for contender in &contenders {
            match held(site, contender, sessions) {
                Ok(held) => held
                    .iter()
                    .zip(&mut all)
                    .for_each(|(value, figures)| figures.add(&contender.name, *value)),
                Err(error) => {
                    all[0].skip(&contender.name, error.to_string());
                    failed.push(contender.name.clone());
                }
            }
        }
        contenders.retain(|contender| !failed.contains(&contender.name));
        contenders.reverse();
    }
    Ok(all)
}

/// Returns a figure of each table for each of the sessions.
#[expect(clippy::disallowed_methods, reason = "a window of time is what is measured")]
fn held(site: &Site, contender: &Contender, sessions: usize) -> io::Result<[f64; TABLES]> {
    let requests = Requests {
        connections: sessions,
        size: EXCHANGE,
        rate: 0.0,
    };
    let offer = |requests| Offer {
        requests: Some(requests),
        ..Offer::default()
    };
    wait_for_the_slab()?;
    let any = Ipv4Addr::UNSPECIFIED.into();
    let listener = site
        .node(SERVER)
        .inside(|| kind::listener(SocketAddr::new(any, 0), false))?;
    let port = listener.local_addr()?.port();
    let targets: Vec<SocketAddr> = (0..sessions.div_ceil(PER_TARGET))
        .map(|at| (Ipv4Addr::new(127, 0, 0, 1 + at as u8), port).into())
        .collect();
    let (address, _) = site.addresses();
    let at = if targets.len() == 1 { address } else { any };
    let mut relay = site.node(RELAY).inside(|| Relay::start(contender.kind, at, &targets))?;
    relay.address.set_ip(address);
    // A program that listens may not have started all of its processes. One that relays has.
    let one = Requests {
        connections: 1,
        ..requests
    };
    site.node(CLIENT)
        .inside(|| Generator::connect(offer(one), listener.try_clone()?, relay.address).map(drop))?;
    let (before, slab_before) = (relay.resources()?, machine::slab_kib()?);
    let (mut after, mut slab_after, mut cpu) = (before, slab_before, Duration::ZERO);
    // One exchange on each connection, and then one second without exchanges.
    let gap = Duration::from_micros(500);
    let schedule: Schedule = (0..sessions).map(|at| (gap * at as u32, What::Request(at))).collect();
    let window = (Duration::ZERO, gap * sessions as u32 + Duration::from_secs(1));
    let done = thread::scope(|scope| {
        let generating = scope.spawn(|| {
            site.node(CLIENT).enter()?;
            let generator = Generator::connect(offer(requests), listener, relay.address)?.without_spin();
            generator.run(&schedule, window, Duration::ZERO, |opens| {
                if !opens {
                    // The kernel keeps an object for each descriptor that a program looks at.
                    slab_after = machine::slab_kib()?;
                    after = relay.resources()?;
                    let used = relay.cpu_time()?;
                    thread::sleep(SILENCE);
                    cpu = relay.cpu_time()?.saturating_sub(used);
                }
                Ok(())
            })
        });
        generating.join().expect("it does not panic")
    })?;
    if done.completed < sessions as u64 {
        return Err(io::Error::other(format!(
            "{} of {sessions} connections had their answer",
            done.completed
        )));
    }
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / sessions as f64;
    Ok([
        each(before.rss_kib, after.rss_kib),
        each(before.descriptors, after.descriptors),
        each(before.pipes, after.pipes) / 2.0,
        each(slab_before, slab_after),
        cpu.as_nanos() as f64 / sessions as f64,
    ])
}

/// Waits until the kernel has freed the sockets of the relay before. The sessions would otherwise
/// seem to need less memory. Workers of nginx close theirs after the benchmark has ended nginx.
#[expect(clippy::disallowed_methods, reason = "nothing says when the kernel is done")]
fn wait_for_the_slab() -> io::Result<()> {
    const FEW_KIB: u64 = 256;
    let mut before = u64::MAX;
    loop {
        let now = machine::slab_kib()?;
        if before.saturating_sub(now) < FEW_KIB {
            return Ok(());
        }
        before = now;
        thread::sleep(Duration::from_millis(200));
    }
}
