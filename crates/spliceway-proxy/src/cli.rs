//! What was typed, and what it means.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use spliceway::{Engine, PipeSize, SizeClass};
use tracing_subscriber::filter::LevelFilter;

use crate::address::{ListenAddress, Target};
use crate::settings::{Kind, ServiceSettings, Settings, Timeouts};

/// The settings of this command line. Ends the process where there are none: with 0 after `--help`, with 2 after bad usage.
pub(crate) fn settings() -> Settings {
    Cli::parse().into_settings()
}

/// Forward and proxy TCP through the kernel.
///
/// `spliceway -l ADDR -r HOST:PORT` is short for `spliceway forward -l ADDR -r HOST:PORT`.
#[derive(Parser, Debug)]
#[command(
    name = "spliceway",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    after_help = AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    forward: Option<ForwardArgs>,
    #[command(flatten)]
    common: CommonArgs,
}

const AFTER_HELP: &str = "\
Signals: TERM or INT stops accepting and lets transfers finish within the drain timeout; a second one stops at once.
Exit codes: 0 stopped as asked, whether or not every transfer had finished by then, 1 failed at run time, 2 bad usage.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Relay every client to one target
    #[command(after_help = AFTER_HELP)]
    Forward {
        #[command(flatten)]
        forward: ForwardArgs,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Relay every client to where it asks (SOCKS5 CONNECT, no authentication)
    #[command(after_help = AFTER_HELP)]
    Socks5 {
        #[command(flatten)]
        socks5: Socks5Args,
        #[command(flatten)]
        common: CommonArgs,
    },
}

#[derive(Args, Debug)]
struct ForwardArgs {
    /// Where to accept: `:port` (all addresses), `ip:port`, `[v6]:port` or `name:port`; may be repeated
    #[arg(short, long, value_name = "ADDR", required = true)]
    listen: Vec<ListenAddress>,
    /// Where to relay to
    #[arg(short, long, visible_alias = "to", value_name = "HOST:PORT", required = true, value_parser = remote)]
    remote: Target,
}

#[derive(Args, Debug)]
struct Socks5Args {
    /// Where to accept: `:port` (all addresses), `ip:port`, `[v6]:port` or `name:port`; may be repeated
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:1080")]
    listen: Vec<ListenAddress>,
    /// Time a client has to say what it wants
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_time)]
    handshake_timeout: Duration,
}

#[derive(Args, Debug)]
struct CommonArgs {
    /// Time to look up a target's name and to connect to it, all its addresses together
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_time)]
    connect_timeout: Duration,
    /// End a session after this much silence in both directions; 0 = off. Acts up to 1/8 late, never early
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    idle_timeout: Duration,
    /// End a session this long after one side finished and the other last sent; 0 = off. Acts up to 1/8 late, never early
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    half_close_timeout: Duration,
    /// Time transfers have to finish after TERM or INT; what they hold then is delivered if it can be within 2 s more
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    drain_timeout: Duration,
    /// Whether bytes may stay in the kernel
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    splice: SpliceArg,
    /// Size of the pipe a direction borrows; auto follows the flow
    #[arg(long, value_enum, value_name = "SIZE", default_value = "auto", ignore_case = true)]
    pipe_size: PipeSizeArg,
    /// Worker threads, 1 to 1024 [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = workers)]
    workers: Option<NonZeroUsize>,
    /// Where to serve /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDR")]
    metrics: Option<ListenAddress>,
    /// What to log on stderr; `info` has one line per session
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevelArg,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum SpliceArg {
    /// Splice bulk, copy what is short
    Auto,
    /// Splice from the first byte
    On,
    /// Copy everything
    Off,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum PipeSizeArg {
    Auto,
    #[value(name = "64K")]
    Kib64,
    #[value(name = "256K")]
    Kib256,
    #[value(name = "1M")]
    Mib1,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum LogLevelArg {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Cli {
    fn into_settings(self) -> Settings {
        match (self.command, self.forward) {
            (Some(Command::Socks5 { socks5, common }), _) => {
                let service = ServiceSettings {
                    kind: Kind::Socks5,
                    listen: socks5.listen,
                };
                common.into_settings(service, socks5.handshake_timeout)
            }
            (Some(Command::Forward { forward, common }), _) => forward.into_settings(common),
            (None, Some(forward)) => forward.into_settings(self.common),
            (None, None) => unreachable!("clap demands --listen and --remote where there is no subcommand"),
        }
    }
}

impl ForwardArgs {
    fn into_settings(self, common: CommonArgs) -> Settings {
        let service = ServiceSettings {
            kind: Kind::Forward(self.remote),
            listen: self.listen,
        };
        // A forwarder has no handshake to wait for.
        common.into_settings(service, Duration::ZERO)
    }
}

impl CommonArgs {
    fn into_settings(self, service: ServiceSettings, handshake: Duration) -> Settings {
        let unless_zero = |time: Duration| (!time.is_zero()).then_some(time);
        Settings {
            services: vec![service],
            timeouts: Timeouts {
                handshake,
                connect: self.connect_timeout,
                idle: unless_zero(self.idle_timeout),
                half_close: unless_zero(self.half_close_timeout),
                drain: self.drain_timeout,
            },
            engine: self.splice.into(),
            pipe_size: self.pipe_size.into(),
            workers: self.workers.unwrap_or_else(processors),
            log_level: self.log_level.into(),
            metrics: self.metrics,
        }
    }
}

fn processors() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// More threads than any machine has processors, and few enough to start at once.
const WORKERS_MAX: usize = 1024;

fn workers(typed: &str) -> Result<NonZeroUsize, String> {
    let count = typed
        .parse()
        .ok()
        .filter(|count: &NonZeroUsize| count.get() <= WORKERS_MAX);
    count.ok_or_else(|| format!("expected a number from 1 to {WORKERS_MAX}"))
}

fn remote(typed: &str) -> Result<Target, String> {
    let target: Target = typed.parse()?;
    match target.port() {
        0 => Err("expected a port from 1 to 65535: nobody can listen on port 0".to_owned()),
        _ => Ok(target),
    }
}

/// A hundred years: no phase lasts longer, and an instant that far ahead is still one that the clock can name.
const LONGEST_DAYS: u64 = 36_500;

fn time(typed: &str) -> Result<Duration, String> {
    let expected = "expected a time such as 500ms, 10s, 1m or 1h30m, in ms, s, m, h or d";
    let time = humantime::parse_duration(typed).map_err(|error| format!("{expected}: {error}"))?;
    match time <= Duration::from_secs(LONGEST_DAYS * 24 * 60 * 60) {
        true => Ok(time),
        false => Err(format!("{expected}, and at most {LONGEST_DAYS} days")),
    }
}

fn positive_time(typed: &str) -> Result<Duration, String> {
    match time(typed)? {
        Duration::ZERO => Err("expected a time longer than 0: this phase cannot go without a deadline".to_owned()),
        time => Ok(time),
    }
}

impl From<SpliceArg> for Engine {
    fn from(arg: SpliceArg) -> Self {
        match arg {
            SpliceArg::Auto => Self::Auto,
            SpliceArg::On => Self::Splice,
            SpliceArg::Off => Self::Copy,
        }
    }
}

impl From<PipeSizeArg> for PipeSize {
    fn from(arg: PipeSizeArg) -> Self {
        match arg {
            PipeSizeArg::Auto => Self::Auto,
            PipeSizeArg::Kib64 => Self::Fixed(SizeClass::Kib64),
            PipeSizeArg::Kib256 => Self::Fixed(SizeClass::Kib256),
            PipeSizeArg::Mib1 => Self::Fixed(SizeClass::Mib1),
        }
    }
}

impl From<LogLevelArg> for LevelFilter {
    fn from(arg: LogLevelArg) -> Self {
        match arg {
            LogLevelArg::Off => Self::OFF,
            LogLevelArg::Error => Self::ERROR,
            LogLevelArg::Warn => Self::WARN,
            LogLevelArg::Info => Self::INFO,
            LogLevelArg::Debug => Self::DEBUG,
            LogLevelArg::Trace => Self::TRACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &str) -> Result<Settings, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(Cli::into_settings)
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_bare_form_means_forward() {
        let bare = typed("spliceway -l :80 -l [::1]:81 --to example.com:90").unwrap();
        let long = typed("spliceway forward --listen :80 --listen [::1]:81 --remote example.com:90").unwrap();
        assert_eq!(format!("{bare:?}"), format!("{long:?}"));
        assert_eq!(bare.services[0].listen.len(), 2);
    }

    #[test]
    fn zero_turns_off_what_can_be_off_and_nothing_else() {
        let settings = typed("spliceway socks5 --idle-timeout 0 --half-close-timeout 0").unwrap();
        assert_eq!((settings.timeouts.idle, settings.timeouts.half_close), (None, None));
        assert!(typed("spliceway socks5 --connect-timeout 0").is_err());
        assert!(typed("spliceway socks5 --handshake-timeout 0s").is_err());
        assert!(typed("spliceway socks5 --drain-timeout 0").is_ok());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for line in [
            "spliceway",
            "spliceway -l :80",
            "spliceway -r example.com:80",
            "spliceway --workers 1",
            "spliceway socks5 --no-such-flag",
            "spliceway socks5 -l 127.0.0.1",
            "spliceway forward -l :80 -r example.com",
            "spliceway forward -l :80 -r example.com:0",
            "spliceway forward -l :80 -r [::1]:0",
            "spliceway forward -l :80 -r a:1 -r b:1",
            "spliceway socks5 --workers 0",
            "spliceway socks5 --pipe-size 3K",
            "spliceway socks5 --idle-timeout 10",
            "spliceway socks5 --idle-timeout 999999y",
        ] {
            assert!(typed(line).is_err(), "{line}");
        }
    }
}
