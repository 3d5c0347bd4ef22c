//! `spliceway bench`: compares direct connections, copies and splice on this machine, or TLS in
//! user space and in the kernel. Everything runs over loopback, except for relays that the command
//! line names.

mod chart;
mod conditions;
mod figures;
mod measurement;
mod pool;
mod relay;
mod report;
mod run;
mod tls;
mod verdict;

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use figures::Row;
use measurement::{Figure, Kind, Measurement};
use pool::PoolTimes;
use relay::RelayKind;
use report::Report;
use run::{Contender, Field, Measured};

pub use relay::{RelayCommand, serve};

/// What the command line asks for.
#[derive(Args, Debug)]
pub struct BenchCommand {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write charts to this file: rate and CPU time by size, and latency
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Take at most 20 seconds instead of 3 minutes. The intervals are wider
    #[arg(long)]
    quick: bool,
    /// Only these measurements, with commas between them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Kind>,
    /// Interleaved rounds [default: 8, with --quick 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(i64::from(ROUNDS_MIN)..=100))]
    rounds: Option<u32>,
    /// Time of each run [default: 250ms, with --quick 40ms]
    #[arg(long, value_name = "TIME", value_parser = run_time)]
    time: Option<Duration>,
    /// Measure relays that terminate TLS 1.3 in user space and in the kernel, to decide on --ktls
    #[arg(long, conflicts_with_all = ["svg", "only", "against", "listen"])]
    tls: bool,
    /// Measure through this relay, which must forward to --listen. Given twice, the second relay is
    /// compared with the first
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    against: Vec<String>,
    /// Address on which the relays of --against find the server
    #[arg(long, value_name = "IP:PORT", requires = "against")]
    listen: Option<SocketAddr>,
}

/// The defaults of --rounds and --time, and a time after which no further round begins. A busy
/// machine needs longer for a round.
const FULL: (u32, Duration, Duration) = (8, Duration::from_millis(250), Duration::from_secs(165));
const QUICK: (u32, Duration, Duration) = (3, Duration::from_millis(40), Duration::from_secs(17));
/// An interval over fewer rounds means nothing.
const ROUNDS_MIN: u32 = 3;
/// More relays of --against do not fit into 80 columns.
const AGAINST_MAX: usize = 2;

fn run_time(typed: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(typed).map_err(|error| error.to_string())?;
    match (Duration::from_millis(10)..=Duration::from_secs(10)).contains(&time) {
        true => Ok(time),
        false => Err("expected 10ms to 10s".to_owned()),
    }
}

/// Measures, and prints the result. The code is 1 if a measurement failed. The caller has raised
/// the limit on descriptors, because the pool takes its share from that limit.
///
/// # Errors
/// Returns an error if a measurement cannot begin, or if the result cannot be printed.
pub fn run(command: &BenchCommand) -> io::Result<ExitCode> {
    // A file that cannot be written is found before minutes of measurements.
    let chart = command.svg.as_deref().map(chart::open).transpose()?;
    let (rounds, time, most) = if command.quick { QUICK } else { FULL };
    // A number of rounds that was asked for has no limit in time.
    let most = if command.rounds.is_some() { Duration::MAX } else { most };
    let (rounds, time) = (command.rounds.unwrap_or(rounds), command.time.unwrap_or(time));
    let field = field(command)?;
    let all = if command.tls {
        measurement::of_tls()
    } else {
        measurement::all()
    };
    let is_asked = |kind: Kind| command.only.is_empty() || command.only.contains(&kind);
    let measurements: Vec<Measurement> = all.into_iter().filter(|one| is_asked(one.kind)).collect();
    let has_pool = is_asked(Kind::Pool) && command.against.is_empty() && !command.tls;
    let mut pool = has_pool.then(PoolTimes::new);
    let (measured, rounds) = measure(&field, measurements, pool.as_mut(), (rounds, time), most)?;
    let mut rows: Vec<Row> = measured.iter().flat_map(|one| figures::rows(&field, one)).collect();
    // The sweep has one table for each figure, and the others have one for each measurement.
    rows.sort_by_key(|row| (row.measurement, row.size.is_some() && row.figure != Figure::Rate.name()));
    rows.extend(pool.iter().flat_map(PoolTimes::rows));
    if let Some(file) = chart {
        draw(file, &field, &measured, &rows)?;
    }
    let report = Report::new(&field, (rounds, time), &measured, rows);
    match command.json {
        true => report.print_json()?,
        false => report.print_text()?,
    }
    Ok(if measured.iter().all(Measured::is_complete) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the contenders, and the conditions on this machine.
fn field(command: &BenchCommand) -> io::Result<Field> {
    match command.listen {
        None if command.tls => {
            tls::check()?;
            Field::of_tls()
        }
        None => {
            let mut contenders = vec![Contender::direct()];
            contenders.extend([RelayKind::Tokio, RelayKind::Tuned, RelayKind::Splice].map(Contender::own));
            Field::new(contenders, 1, None)
        }
        Some(listen) => {
            if command.against.len() > AGAINST_MAX {
                return Err(io::Error::other(format!(
                    "--against: expected at most {AGAINST_MAX} relays"
                )));
            }
            let mut contenders = vec![Contender::direct()];
            for (typed, name) in command.against.iter().zip(["A", "B"]) {
                contenders.push(Contender::foreign(name, typed)?);
            }
            let reference = contenders.len() - 2;
            Field::new(contenders, reference, Some(listen))
        }
    }
}

/// Measures in rounds, and returns how many there were. The contenders take turns, and every other
/// round has the opposite order.
fn measure(
    field: &Field,
    measurements: Vec<Measurement>,
    mut pool: Option<&mut PoolTimes>,
    (rounds, time): (u32, Duration),
    most: Duration,
) -> io::Result<(Vec<Measured>, u32)> {
    let began = Instant::now();
    let mut all: Vec<Measured> = measurements.into_iter().map(|one| Measured::new(one, field)).collect();
    let runs = u64::from(rounds) * (all.len() * field.contenders.len()) as u64;
    let progress = ProgressBar::with_draw_target(Some(runs), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {eta} left, {msg}").map_err(io::Error::other)?;
    progress.set_style(style);
    let mut done = 0;
    while done < rounds && (done < ROUNDS_MIN || began.elapsed() / done * (done + 1) < most) {
        for measured in &mut all {
            let mut order: Vec<usize> = (0..field.contenders.len()).collect();
            if done % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                let name = &field.contenders[contender].name;
                progress.set_message(format!("{} of {name}", measured.measurement.kind.name()));
                measured.run(field, contender, done, time);
                progress.inc(1);
            }
        }
        if let Some(pool) = &mut pool {
            pool.round(&field.conditions, time);
        }
        done += 1;
    }
    progress.finish_and_clear();
    Ok((all, done))
}

fn draw(mut file: File, field: &Field, measured: &[Measured], rows: &[Row]) -> io::Result<()> {
    let text = chart::draw(field, measured, rows)?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}
