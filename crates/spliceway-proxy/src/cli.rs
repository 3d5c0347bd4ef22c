//! What was typed.

mod settled;
mod values;

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use ipnet::IpNet;

use crate::address::{ListenAddress, ListenRange, TargetRange};
use crate::dial::ResolverSettings;
use crate::policy;
use crate::protocol::proxy;
use crate::rates::RateArg;
use crate::settings::Settings;
use values::{LogLevelArg, PipeSizeArg, SpliceArg};

#[cfg(test)]
pub(crate) use settled::tests::typed;

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Action {
    /// To serve.
    Serve(Box<Settings>),
    /// For the hash of a secret that is to be read.
    HashPassword,
}

/// What this command line asks for. Ends the process where that is nothing: with 0 after `--help`, with 2 after bad usage.
pub(crate) fn parse() -> Action {
    let mut matches = Cli::command().get_matches();
    let subcommand = matches.subcommand_name().map(str::to_owned);
    let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|wrong| wrong.format(&mut Cli::command()).exit());
    cli.settle().unwrap_or_else(|wrong| {
        let mut command = Cli::command();
        command.build();
        // Whose usage is shown.
        let subcommand = subcommand.and_then(|name| command.find_subcommand(name).cloned());
        subcommand
            .unwrap_or(command)
            .error(clap::error::ErrorKind::ValueValidation, wrong)
            .exit()
    })
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
Signals: TERM, INT or HUP stops accepting and lets transfers finish within the drain timeout; a second TERM or INT stops at once. HUP stays ignored under nohup.
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
    /// Relay every client to where it asks: SOCKS5, with CONNECT, BIND and UDP ASSOCIATE
    #[command(after_help = AFTER_HELP)]
    Socks5 {
        #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:1080", help = LISTEN)]
        listen: Vec<ListenRange>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Relay every client to where it asks: HTTP, with CONNECT and requests for a whole URI
    #[command(after_help = AFTER_HELP)]
    Http {
        #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:8080", help = LISTEN)]
        listen: Vec<ListenRange>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// SOCKS4, 4a, 5 and HTTP on one port, told apart by the first byte
    #[command(after_help = AFTER_HELP)]
    Mixed {
        #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:1080", help = LISTEN)]
        listen: Vec<ListenRange>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Print the hash of a secret, which is read from standard input, for --auth-file
    HashPassword,
}

const LISTEN: &str = "Where to accept: `:port` (all addresses), `ip:port`, `[v6]:port`, `name:port`, `unix:PATH[,mode=0660]` or `fd:NAME`, \
and `port-port` for many; may be repeated";

#[derive(Args, Debug)]
struct ForwardArgs {
    #[arg(short, long, value_name = "ADDR", required = true, help = LISTEN)]
    listen: Vec<ListenRange>,
    /// Where to relay to; `host:port-port` maps a range of ports to be listened on one to one, and `unix:PATH` is a socket
    #[arg(short, long, visible_alias = "to", value_name = "HOST:PORT", required = true, value_parser = values::remote)]
    remote: TargetRange,
}

#[derive(Args, Debug)]
struct ProxyArgs {
    /// Time a client has to say what it wants
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::positive_time)]
    handshake_timeout: Duration,
    /// The one user there is. Whoever may list processes sees a command line: prefer SPLICEWAY_AUTH or a file
    #[arg(
        long,
        value_name = "USER:SECRET",
        env = "SPLICEWAY_AUTH",
        hide_env_values = true,
        conflicts_with = "auth_file"
    )]
    auth: Option<String>,
    /// Users, one `NAME:HASH` a line, with hashes of `spliceway hash-password`
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Longest wait that wrong passwords earn an address; 0 = off. Three are free, then 1s, doubling up to this
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::time)]
    auth_penalty: Duration,
    /// Serve other machines without users and without --allow: everybody, that is
    #[arg(long)]
    open: bool,
    /// Let clients of other machines reach what is not on the public Internet: loopback, private, link-local and metadata addresses and the rest
    #[arg(long)]
    allow_private: bool,
    /// The address that SOCKS clients are told to send datagrams or connections to [default: the one they reached]
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
}

#[derive(Args, Debug)]
struct CommonArgs {
    #[command(flatten, next_help_heading = "Clients")]
    clients: ClientArgs,
    #[command(flatten, next_help_heading = "Targets")]
    dial: DialArgs,
    #[command(flatten, next_help_heading = "Deadlines")]
    times: TimeArgs,
    #[command(flatten, next_help_heading = "Limits")]
    limits: LimitArgs,
    #[command(flatten, next_help_heading = "Engine")]
    engine: EngineArgs,
    #[command(flatten, next_help_heading = "Watching")]
    watch: WatchArgs,
}

#[derive(Args, Debug)]
struct ClientArgs {
    /// Serve clients of this network, and no others; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = policy::network)]
    allow: Vec<IpNet>,
    /// Refuse clients of this network, also where --allow has it; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = policy::network)]
    deny: Vec<IpNet>,
    /// Every connection begins with a PROXY header of this version: v1, v2 or any
    #[arg(long, value_name = "VERSION", requires = "proxy_from")]
    accept_proxy: Option<proxy::Accept>,
    /// Who may send such headers; others are refused; may be repeated
    #[arg(long, value_name = "CIDR", value_parser = policy::network, requires = "accept_proxy")]
    proxy_from: Vec<IpNet>,
}

#[derive(Args, Debug)]
struct DialArgs {
    /// Proxy to go through: `socks5://[user:secret@]host:port`, `socks5h://…` or `http://…`; repeated (in the variable, with blanks between), a chain
    // Not parsed by clap, which repeats what it cannot parse, secrets and all.
    #[arg(
        short = 'x',
        long,
        value_name = "URL",
        env = "SPLICEWAY_UPSTREAM_PROXY",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    upstream_proxy: Vec<String>,
    /// Tell targets whose connection it is, by a PROXY header: v1 or v2
    #[arg(long, value_name = "VERSION")]
    send_proxy: Option<proxy::Version>,
    /// Who knows the addresses of names: `auto` (/etc/resolv.conf, with a cache), `system` (the C library), or servers, `IP[:PORT],…`
    #[arg(long, value_name = "WHO", default_value = "auto", value_parser = values::resolver)]
    dns: ResolverSettings,
    /// Connect from this address; once per family, and a family without one is not used
    #[arg(long, value_name = "IP")]
    bind_source: Vec<IpAddr>,
    /// Connect through this interface
    #[arg(long, value_name = "NAME")]
    bind_interface: Option<String>,
    /// Mark packets to targets (SO_MARK), for routing and firewalls: 100 or 0x64
    #[arg(long, value_name = "N", value_parser = values::mark)]
    mark: Option<u32>,
}

#[derive(Args, Debug)]
struct TimeArgs {
    /// Time to look up a target's name and to connect to it, all its addresses together
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::positive_time)]
    connect_timeout: Duration,
    /// End a session after this much silence in both directions; 0 = off. Acts up to 1/8 late, never early
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::time)]
    idle_timeout: Duration,
    /// End a session this long after one side finished and the other last sent; 0 = off. Acts up to 1/8 late, never early
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::time)]
    half_close_timeout: Duration,
    /// Time transfers have to finish after TERM, INT or HUP; what they hold then is delivered if it can be within 2 s more
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time)]
    drain_timeout: Duration,
}

#[derive(Args, Debug)]
struct LimitArgs {
    /// Sessions at once; further clients wait to be accepted [default: what the descriptors allow]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroUsize>)]
    max_conns: Option<NonZeroUsize>,
    /// Sessions at once of one address, or of one IPv6 /64; further ones are refused
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroU32>)]
    max_conns_per_ip: Option<NonZeroU32>,
    /// Sessions of one client address (IPv6: /64) that look up and dial their target at once; not for `forward`
    #[arg(long, value_name = "N", default_value = "256")]
    max_dials_per_ip: NonZeroU32,
    /// Bytes a second from clients, such as 10MB or 500KiB, of all together; `RATE:client` of each address, `RATE:connection` of each; may be repeated
    #[arg(long, value_name = "RATE")]
    rate_in: Vec<RateArg>,
    /// The same to clients
    #[arg(long, value_name = "RATE")]
    rate_out: Vec<RateArg>,
    /// Descriptors, 64 at least [default: as many as this user may have]
    #[arg(long, value_name = "N", value_parser = values::descriptors)]
    nofile: Option<u64>,
}

#[derive(Args, Debug)]
struct EngineArgs {
    /// Whether bytes may stay in the kernel
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    splice: SpliceArg,
    /// Size of the pipe a direction borrows; auto follows the flow
    #[arg(long, value_enum, value_name = "SIZE", default_value = "auto", ignore_case = true)]
    pipe_size: PipeSizeArg,
    /// Worker threads, 1 to 1024 [default: as many as processors]
    #[arg(long, value_name = "N", value_parser = values::workers)]
    workers: Option<NonZeroUsize>,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// Where to serve /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDR")]
    metrics: Option<ListenAddress>,
    /// What to log on stderr; `info` has one line per session
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevelArg,
}
