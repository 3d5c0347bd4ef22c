//! Defines the command line: its options, their values and their help texts.

mod settled;
mod values;

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use ipnet::IpNet;
use spliceway_protocol::address::{ListenAddress, ListenRange, TargetRange};
use spliceway_protocol::proxy;

use crate::dial::ResolverSettings;
use crate::policy;
use crate::rates::RateArg;
use crate::settings::Settings;
use values::{LogLevelArg, PipeSizeArg, SpliceArg};

#[cfg(test)]
pub(crate) use settled::tests::typed;

/// The action that the command line requests.
#[derive(Debug)]
pub(crate) enum Action {
    Serve(Box<Settings>),
    HashPassword,
}

/// Reads the command line. The process ends here after `--help` (code 0) and after bad usage (code
/// 2).
pub(crate) fn parse() -> Action {
    let mut matches = Cli::command().get_matches();
    let subcommand = matches.subcommand_name().map(str::to_owned);
    let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|wrong| wrong.format(&mut Cli::command()).exit());
    cli.settle().unwrap_or_else(|wrong| {
        let mut command = Cli::command();
        command.build();
        // The error shows the usage of the subcommand that was typed.
        let subcommand = subcommand.and_then(|name| command.find_subcommand(name).cloned());
        subcommand
            .unwrap_or(command)
            .error(clap::error::ErrorKind::ValueValidation, wrong)
            .exit()
    })
}

const EXAMPLES: &str = "\
Examples:
  spliceway -l :8080 -r example.com:80         forward a port
  spliceway socks5                             SOCKS5 proxy for this machine
  spliceway http                               HTTP proxy for this machine
  spliceway mixed -l :1080 --auth-file users   SOCKS and HTTP proxy for users
  spliceway hash-password                      hash a password for the file

`spliceway COMMAND --help` shows all options.";

const FORWARD_EXAMPLES: &str = "\
Examples:
  forward -l 127.0.0.1:8080 -r example.com:80
  forward -l :8000-8009 -r backend:9000-9009   ten ports to ten ports
  forward -l unix:/run/app.sock -r 10.0.0.7:80
  forward -l :443 -r 10.0.0.7:443 --send-proxy v2
  forward -l :5432 -r db:5432 --allow 10.0.0.0/8 --metrics 127.0.0.1:9100";

const SOCKS5_EXAMPLES: &str = "\
Examples:
  socks5                                       on 127.0.0.1:1080
  socks5 -l :1080 --auth-file users            for users with passwords
  socks5 -l :1080 --allow 192.168.0.0/16       for a network
  socks5 -x socks5h://10.0.0.1:1080            through another proxy
  socks5 -l :1080 --open --rate-out 1MB:client for everybody, rate-limited";

const HTTP_EXAMPLES: &str = "\
Examples:
  http                                         on 127.0.0.1:8080
  http -l :3128 --auth-file users              for users with passwords
  http -l :3128 --allow 192.168.0.0/16         for a network
  http -x http://proxy.example.com:3128        through another proxy
  http -l :3128 --open --max-conns-per-ip 100  for everybody";

const MIXED_EXAMPLES: &str = "\
Examples:
  mixed                                            on 127.0.0.1:1080
  mixed -l :1080 --auth-file users                 for users; refuses SOCKS4
  mixed -l :1080 --allow 192.168.0.0/16            for a network
  mixed -l unix:/run/proxy.sock,mode=0660 --open   for a group on this machine
  mixed -l :1080 --open --metrics 127.0.0.1:9100   for everybody, with metrics";

const HASH_EXAMPLES: &str = "\
Examples:
  spliceway hash-password                      asks for the password twice
  (printf 'ann:'; spliceway hash-password) >> users
  pass show proxy | spliceway hash-password    reads it from a pipe";

/// The end of the long help for every command that starts a service.
macro_rules! long_help {
    ($examples:expr) => {
        [
            $examples,
            "\n\n\
Signals:
  TERM, INT, HUP   stop accepting, and give transfers --drain-timeout to finish.
                   A second TERM or INT stops immediately. HUP is ignored if it
                   was ignored at the start (nohup)

Exit codes:
  0  stopped by a signal
  1  failed at run time
  2  bad usage

Times have the units ms, s, m, h or d: 500ms, 1h30m. Rates are bytes per
second: 10MB, 500KiB. A CIDR option also accepts a single address.",
        ]
        .concat()
    };
}

/// Forwards and proxies TCP. Bulk data stays in the kernel.
///
/// `spliceway -l ADDR -r HOST:PORT` is short for `spliceway forward -l ADDR -r HOST:PORT`.
#[derive(Parser, Debug)]
#[command(
    name = "spliceway",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    max_term_width = 80,
    after_help = EXAMPLES,
    after_long_help = long_help!(EXAMPLES)
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    forward: Option<ForwardArgs>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Forward every client to one target
    #[command(after_help = FORWARD_EXAMPLES, after_long_help = long_help!(FORWARD_EXAMPLES))]
    Forward {
        #[command(flatten)]
        forward: ForwardArgs,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Serve SOCKS5: CONNECT, BIND and UDP ASSOCIATE
    #[command(after_help = SOCKS5_EXAMPLES, after_long_help = long_help!(SOCKS5_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.default_value("127.0.0.1:1080")))]
    Socks5(ProxyCommand),
    /// Serve HTTP: CONNECT, and requests with an absolute URI
    #[command(after_help = HTTP_EXAMPLES, after_long_help = long_help!(HTTP_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.default_value("127.0.0.1:8080")))]
    Http(ProxyCommand),
    /// Serve SOCKS4, SOCKS4a, SOCKS5 and HTTP on one port
    #[command(after_help = MIXED_EXAMPLES, after_long_help = long_help!(MIXED_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.default_value("127.0.0.1:1080")))]
    Mixed(ProxyCommand),
    /// Read a password and print its hash for --auth-file
    #[command(after_help = HASH_EXAMPLES)]
    HashPassword,
}

#[derive(Args, Debug)]
struct ForwardArgs {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
    /// `unix:PATH[,mode=0660]` or `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR", required = true)]
    listen: Vec<ListenRange>,
    /// Target: `HOST:PORT` or `unix:PATH`. A range `HOST:PORT-PORT` maps listening ports one to one
    #[arg(short, long, visible_alias = "to", value_name = "HOST:PORT", required = true, value_parser = values::remote)]
    remote: TargetRange,
}

#[derive(Args, Debug)]
struct ProxyCommand {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
    /// `unix:PATH[,mode=0660]` or `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<ListenRange>,
    #[command(flatten, next_help_heading = "Access")]
    proxy: ProxyArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
struct ProxyArgs {
    /// User file with one `NAME:HASH` per line. `spliceway hash-password` prints hashes
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Name and password of a single user. Everybody on this machine can read a command line, so
    /// prefer the variable or --auth-file
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "SPLICEWAY_AUTH",
        hide_env_values = true,
        hide_short_help = true,
        conflicts_with = "auth_file"
    )]
    auth: Option<String>,
    /// Longest wait for an address after wrong passwords; 0 = off. The first three are free. The
    /// fourth costs 1s, and each further one doubles the wait
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::time, hide_short_help = true)]
    auth_penalty: Duration,
    /// Serve clients on other machines without --auth-file or --allow
    #[arg(long)]
    open: bool,
    /// Let clients on other machines reach addresses that are not on the public Internet: loopback,
    /// private, link-local, metadata services and others
    #[arg(long)]
    allow_private: bool,
    /// Address that SOCKS replies give for UDP ASSOCIATE and BIND [default: the address that the
    /// client reached]
    #[arg(long, value_name = "IP", hide_short_help = true)]
    advertise: Option<IpAddr>,
    /// Time limit for a client's handshake
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::positive_time, hide_short_help = true)]
    handshake_timeout: Duration,
}

#[derive(Args, Debug)]
struct CommonArgs {
    #[command(flatten, next_help_heading = "Clients")]
    clients: ClientArgs,
    #[command(flatten, next_help_heading = "Targets")]
    dial: DialArgs,
    #[command(flatten, next_help_heading = "Timeouts")]
    times: TimeArgs,
    #[command(flatten, next_help_heading = "Limits")]
    limits: LimitArgs,
    #[command(flatten, next_help_heading = "Data path")]
    engine: EngineArgs,
    #[command(flatten, next_help_heading = "Monitoring")]
    watch: WatchArgs,
}

#[derive(Args, Debug)]
struct ClientArgs {
    /// Serve only clients from this network. May be repeated
    #[arg(long, value_name = "CIDR", value_parser = policy::network)]
    allow: Vec<IpNet>,
    /// Refuse clients from this network, even if --allow includes it. May be repeated
    #[arg(long, value_name = "CIDR", value_parser = policy::network, hide_short_help = true)]
    deny: Vec<IpNet>,
    /// Require a PROXY header of this version on every connection: v1, v2 or any
    #[arg(long, value_name = "VERSION", requires = "proxy_from", hide_short_help = true)]
    accept_proxy: Option<proxy::Accept>,
    /// Network of the load balancers that may send PROXY headers. May be repeated
    #[arg(
        long,
        value_name = "CIDR",
        value_parser = policy::network,
        requires = "accept_proxy",
        hide_short_help = true
    )]
    proxy_from: Vec<IpNet>,
}

#[derive(Args, Debug)]
struct DialArgs {
    /// Proxy to connect through: `socks5://[USER:PASSWORD@]HOST[:PORT]`, `socks5h://…` or
    /// `http://…`. May be repeated to form a chain. In the variable, spaces separate the proxies
    // `settle` parses the URLs, because clap repeats an invalid value in its error message. The
    // value may contain a password.
    #[arg(
        short = 'x',
        long,
        value_name = "URL",
        env = "SPLICEWAY_UPSTREAM_PROXY",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    upstream_proxy: Vec<String>,
    /// Send a PROXY header of this version to targets: v1 or v2
    #[arg(long, value_name = "VERSION", hide_short_help = true)]
    send_proxy: Option<proxy::Version>,
    /// DNS resolver to use: `auto` (/etc/resolv.conf, with a cache), `system` (the C library), or
    /// servers, `IP[:PORT],…`
    #[arg(long, value_name = "RESOLVER", default_value = "auto", value_parser = values::resolver, hide_short_help = true)]
    dns: ResolverSettings,
    /// Connect from this source address. May be given once per address family. A family without a
    /// source address is then not used
    #[arg(long, value_name = "IP", hide_short_help = true)]
    bind_source: Vec<IpAddr>,
    /// Connect through this network interface
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    bind_interface: Option<String>,
    /// Mark packets to targets (SO_MARK) for routing and firewalls: 100 or 0x64
    #[arg(long, value_name = "N", value_parser = values::mark, hide_short_help = true)]
    mark: Option<u32>,
}

#[derive(Args, Debug)]
struct TimeArgs {
    /// Time limit for looking up a target's name and connecting to the target
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::positive_time, hide_short_help = true)]
    connect_timeout: Duration,
    /// End a session when both directions are silent for this long; 0 = off. The timer may be late
    /// by up to 1/8 of this time
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::time)]
    idle_timeout: Duration,
    /// End a session after one side has finished and the other is silent for this long; 0 = off.
    /// The timer may be late by up to 1/8 of this time
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = values::time, hide_short_help = true)]
    half_close_timeout: Duration,
    /// Time limit for transfers to finish after TERM, INT or HUP. The program then cuts the
    /// remaining transfers. They have 2s more to deliver the bytes that they hold
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::time, hide_short_help = true)]
    drain_timeout: Duration,
}

#[derive(Args, Debug)]
struct LimitArgs {
    /// Maximum number of sessions at the same time. Further clients wait to be accepted [default:
    /// as many as --nofile allows]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroUsize>)]
    max_conns: Option<NonZeroUsize>,
    /// Maximum number of sessions at the same time per client address (IPv6: per /64). Further
    /// sessions are refused
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroU32>, hide_short_help = true)]
    max_conns_per_ip: Option<NonZeroU32>,
    /// Maximum number of connection attempts at the same time per client address (IPv6: per /64).
    /// `forward` ignores this option
    #[arg(long, value_name = "N", default_value = "256", hide_short_help = true)]
    max_dials_per_ip: NonZeroU32,
    /// Rate limit for bytes from clients: `10MB` for the whole service, `10MB:client` per client
    /// address, `10MB:connection` per connection. May be repeated
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    rate_in: Vec<RateArg>,
    /// Rate limit for bytes to clients, in the same form as --rate-in
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    rate_out: Vec<RateArg>,
    /// Maximum number of file descriptors, at least 64 [default: the hard limit of this user]
    #[arg(long, value_name = "N", value_parser = values::descriptors, hide_short_help = true)]
    nofile: Option<u64>,
}

#[derive(Args, Debug)]
struct EngineArgs {
    /// How relays move bytes
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_short_help = true
    )]
    splice: SpliceArg,
    /// Size of the pipes that hold spliced bytes. `auto` adapts it to the traffic
    #[arg(
        long,
        value_enum,
        value_name = "SIZE",
        default_value = "auto",
        ignore_case = true,
        hide_short_help = true
    )]
    pipe_size: PipeSizeArg,
    /// Time that a worker stays awake after a message, at most 1ms. 20us lowers the latency of a
    /// few busy connections, and costs more CPU time
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = values::spin, hide_short_help = true)]
    spin: Duration,
    /// Worker threads, 1 to 1024 [default: number of processors]
    #[arg(long, value_name = "N", value_parser = values::workers, hide_short_help = true)]
    workers: Option<NonZeroUsize>,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// Serve /metrics, /healthz and /readyz on this address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<ListenAddress>,
    /// Log level for stderr. `info` logs one line per session
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value = "info",
        hide_short_help = true
    )]
    log_level: LogLevelArg,
}
