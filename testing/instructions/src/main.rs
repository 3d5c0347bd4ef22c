//! Counts the user-space instructions of a relay with Valgrind. The kernel's work is not in the
//! count. The count is stable, so it shows differences that a time measurement cannot.
//!
//! Each count is the difference between two runs of different length. So it leaves out work that is
//! done only once.

#![forbid(unsafe_code)]

mod baseline;
mod pieces;
mod relay;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use clap::{Parser, Subcommand, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};

use baseline::Baseline;
use pieces::{COUNTED, Piece};
use relay::Kind;

/// Bytes of each message of a round trip.
const SIZE: usize = 64;
const MIB: usize = 1 << 20;

/// Counts the instructions of a relay in user space, with Valgrind.
#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    counted: Option<Counted>,

    /// Round trips of 64 bytes to count.
    #[arg(long, default_value_t = 4000)]
    trips: usize,
    /// MiB of bulk to count.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Sessions of one round trip each to count.
    #[arg(long, default_value_t = 400)]
    sessions: usize,
    /// Compares with `testing/instructions/instructions.toml`, and fails if a count exceeds it by
    /// more than its tolerance.
    #[arg(long)]
    check: bool,
    /// Writes `testing/instructions/instructions.toml`.
    #[arg(long, conflicts_with = "check")]
    bless: bool,
}

/// The parts of this program that run under Valgrind.
#[derive(Subcommand)]
enum Counted {
    /// Repeats one piece of a relay this many times.
    #[command(hide = true)]
    Repeat { piece: Piece, times: u32 },
    /// Runs a relay.
    #[command(hide = true)]
    Relay { kind: Kind, upstream: SocketAddr },
}

/// The counts of a relay: each name in the baseline, with its heading.
const KINDS: [(&str, &str); 3] = [
    ("trip", "a trip of 64 bytes"),
    ("session", "start and end"),
    ("mib", "a MiB of bulk"),
];

/// The work of a relay: sessions of one trip each, one after the other, and then one session with
/// these trips and this bulk.
#[derive(Clone, Copy)]
struct Work {
    sessions: usize,
    trips: usize,
    mib: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match &options.counted {
        None => run(&options),
        Some(Counted::Repeat { piece, times }) => piece.repeat(*times),
        Some(Counted::Relay { kind, upstream }) => relay::serve(*kind, *upstream),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spliceway-instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the counts. Without `valgrind`, prints that the count is skipped.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
fn run(options: &Options) -> io::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind (Debian package valgrind)");
        return Ok(());
    }
    let mut found = Baseline::of_this_build();
    for piece in Piece::value_variants() {
        let (count, (section, name)) = (repeated(*piece)?, piece.names());
        println!("{:<28} {count:>18.0}", piece.title());
        found.set(section, name, count);
    }
    println!(
        "{:<28} {:>18} {:>18} {:>18}",
        "instructions in user space", KINDS[0].1, KINDS[1].1, KINDS[2].1
    );
    for kind in Kind::value_variants() {
        let counts = counts(*kind, options)?;
        println!(
            "{:<28} {:>18.0} {:>18.0} {:>18.0}",
            value_name(kind),
            counts[0],
            counts[1],
            counts[2]
        );
        for ((name, _), count) in KINDS.iter().zip(counts) {
            found.set(&value_name(kind), name, count);
        }
    }
    match (options.check, options.bless) {
        (true, _) => found.check(),
        (_, true) => found.bless(),
        _ => Ok(()),
    }
}

/// Returns one count for each of the [`KINDS`].
fn counts(kind: Kind, options: &Options) -> io::Result<[f64; 3]> {
    let least = Work {
        sessions: 20,
        trips: 100,
        mib: 0,
    };
    let per = |work: Work, base: Work, times: usize| -> io::Result<f64> {
        let (more, less) = (relayed(kind, work)?, relayed(kind, base)?);
        Ok((more as f64 - less as f64) / times as f64)
    };
    let (trips, sessions) = (least.trips + options.trips, least.sessions + options.sessions);
    // Both runs carry some bulk, so that the difference leaves out a relay's one-time work for
    // bulk.
    let (some, bulk) = (Work { mib: 16, ..least }, 16 + options.mib);
    Ok([
        per(Work { trips, ..least }, least, options.trips)?,
        per(Work { sessions, ..least }, least, options.sessions)?,
        per(Work { mib: bulk, ..least }, some, options.mib)?,
    ])
}

/// Returns the value's name on the command line.
fn value_name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("none is skipped");
    value.get_name().to_owned()
}

/// Returns the number of instructions of a relay that carries this work.
fn relayed(kind: Kind, work: Work) -> io::Result<u64> {
    let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut relay = callgrind(&[])?
        .args(["relay", &value_name(&kind), &upstream.local_addr()?.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(relay.stdout.take().expect("piped")).read_line(&mut address)?;
    let carried = match address.trim().parse() {
        Ok(address) => carry(address, &upstream, work),
        Err(_) => Err(io::Error::other(format!(
            "the relay {} did not start",
            value_name(&kind)
        ))),
    };
    kill_process(Pid::from_child(&relay), Signal::TERM)?;
    let said = relay.wait_with_output()?.stderr;
    carried?;
    collected(&said)
}

/// Returns a command that runs this program under callgrind.
fn callgrind(options: &[&str]) -> io::Result<Command> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(options)
        .arg(std::env::current_exe()?);
    Ok(command)
}

fn carry(relay: SocketAddr, upstream: &TcpListener, work: Work) -> io::Result<()> {
    for _ in 0..work.sessions {
        let (mut client, mut server) = connect(relay, upstream)?;
        trip(&mut client, &mut server)?;
        // Both ends have seen EOF before the next session begins.
        drop(client);
        server.read_to_end(&mut Vec::new())?;
    }
    let (mut client, mut server) = connect(relay, upstream)?;
    (0..work.trips).try_for_each(|_| trip(&mut client, &mut server))?;
    let (sent, mut received) = (vec![7; MIB], vec![0; MIB]);
    thread::scope(|scope| {
        let sending = scope.spawn(|| (0..work.mib).try_for_each(|_| client.write_all(&sent)));
        (0..work.mib).try_for_each(|_| server.read_exact(&mut received))?;
        sending.join().expect("sending does not panic")
    })
}

fn connect(relay: SocketAddr, upstream: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let client = TcpStream::connect(relay)?;
    let (server, _) = upstream.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn trip(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    let mut message = [7; SIZE];
    client.write_all(&message)?;
    server.read_exact(&mut message)?;
    server.write_all(&message)?;
    client.read_exact(&mut message)
}

/// Returns the number of instructions of one piece.
fn repeated(piece: Piece) -> io::Result<f64> {
    let count = |times: u32| {
        let output = callgrind(&[&format!("--toggle-collect={COUNTED}")])?
            .args(["repeat", &value_name(&piece), &times.to_string()])
            .output()?;
        collected(&output.stderr)
    };
    Ok((count(11_000)? as f64 - count(1_000)? as f64) / 10_000.0)
}

/// Returns the count from the last lines of callgrind's output.
fn collected(said: &[u8]) -> io::Result<u64> {
    let said = String::from_utf8_lossy(said);
    said.lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
        .ok_or_else(|| io::Error::other("valgrind reported no count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_in_the_output_of_callgrind() {
        let said =
            "==7== \n==7== Events    : Ir\n==7== Collected : 22853406\n==7== \n==7== I   refs:      22,853,406\n";
        assert_eq!(collected(said.as_bytes()).unwrap(), 22_853_406);
        assert!(collected(b"==7== killed").is_err());
    }
}
