//! Parses the values of options and keys.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;
use spliceway::{Engine, PipeSize, SizeClass};
use tracing_subscriber::filter::LevelFilter;

use super::hints;
use crate::access::policy;
use crate::access::rates::bytes;
use crate::log::{AccessLog, Format};
use crate::reach::balance::{BackendSettings, Members, WEIGHT_MAX};
use crate::reach::dial::{Destination, ResolverSettings, TLS_PREFIX};
use crate::reach::sni::{self, Route};
use crate::tls::client::PeerName;
use spliceway_protocol::address::{ListenAddress, Target, ip_with_zone};
use spliceway_protocol::rule::TargetRule;

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum SpliceArg {
    /// Splice bulk data and copy small messages
    Auto,
    /// Splice from the first byte, and fail if that is not possible
    On,
    /// Copy everything
    Off,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KtlsArg {
    /// TLS stays in this program
    Off,
    /// The kernel takes over the connections that it can
    Auto,
    /// The same, and the program does not start if the kernel can take over none
    On,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PipeSizeArg {
    Auto,
    #[value(name = "64K")]
    Kib64,
    #[value(name = "256K")]
    Kib256,
    #[value(name = "1M")]
    Mib1,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum LogLevelArg {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormatArg {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMinArg {
    #[value(name = "1.2")]
    V12,
    #[value(name = "1.3")]
    V13,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientVerifyArg {
    /// Every client needs a certificate
    Required,
    /// A client may have no certificate. One that is not valid is refused
    Optional,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientsArg {
    /// A client of another network has the settings of the service
    Optional,
    /// A client of another network is refused
    Required,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownNameArg {
    /// The first certificate
    First,
    /// The alert `unrecognized_name`
    Refuse,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartTlsArg {
    /// PostgreSQL
    Postgres,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOffArg {
    On,
    Off,
}

/// The kind of a service in a file. On the command line, it is the subcommand.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindArg {
    Forward,
    Socks5,
    Http,
    Mixed,
    Transparent,
    Sni,
}

/// What `--allow-private` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrivateArg {
    All,
    Nothing,
    Network(IpNet),
}

/// What `--to-allow` and `--to-deny` take.
#[derive(Debug, Clone)]
pub(crate) enum RuleArg {
    Rule(TargetRule),
    /// `@FILE`: a file with one rule on each line.
    File(PathBuf),
}

/// More threads than any machine has processors, but few enough to start.
const WORKERS_MAX: usize = 1024;

pub(super) fn workers(typed: &str) -> Result<NonZeroUsize, String> {
    let count = typed
        .parse()
        .ok()
        .filter(|count: &NonZeroUsize| count.get() <= WORKERS_MAX);
    count.ok_or_else(|| format!("expected a number from 1 to {WORKERS_MAX}"))
}

/// Parses a number that must not be 0.
pub(super) fn count<N: FromStr>(typed: &str) -> Result<N, String> {
    let expected = || hints::of_count(typed).unwrap_or_else(|| "expected a number, 1 or more".to_owned());
    typed.parse().map_err(|_| expected())
}

/// Parses an address to listen on.
pub(super) fn listen<A: FromStr<Err = &'static str>>(typed: &str) -> Result<A, String> {
    let hint = |expected: &str| hints::of_listener(typed).unwrap_or_else(|| expected.to_owned());
    typed.parse().map_err(hint)
}

/// Parses a target without options.
pub(super) fn target(typed: &str) -> Result<Destination, String> {
    let hint = || hints::of_target(typed.strip_prefix(TLS_PREFIX).unwrap_or(typed));
    sni::target_of(typed).map_err(|expected| hint().unwrap_or(expected))
}

/// Parses the observer of a mirror, which gets plain TCP.
pub(super) fn observer(typed: &str) -> Result<Target, String> {
    let plain = |target: &Destination| target.tls.is_none() && !matches!(target.target, Target::Unix(_));
    let expected = || "expected HOST:PORT, because an observer gets its copy over TCP without TLS".to_owned();
    let target = Some(target(typed)?).filter(plain).ok_or_else(expected)?;
    Ok(target.target)
}

/// Parses a route of TLS clients.
pub(super) fn route(typed: &str) -> Result<Route, String> {
    typed
        .parse()
        .map_err(|expected| hints::of_route(typed).unwrap_or(expected))
}

pub(super) fn network(typed: &str) -> Result<IpNet, String> {
    policy::network(typed).map_err(|expected| hints::of_network(typed).unwrap_or_else(|| expected.into()))
}

/// Parses the limit of a user, who may be without it.
pub(super) fn unless_none<L: FromStr<Err: std::fmt::Display>>(typed: &str) -> Result<Option<L>, String> {
    match typed {
        "none" => Ok(None),
        limit => limit.parse().map(Some).map_err(|error| format!("{error}, or none")),
    }
}

/// Parses the name of a user, as it is in a user file. Returns it as records show it.
pub(super) fn user(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected the name of a user"),
        name => Ok(spliceway_protocol::printable(name.as_bytes())),
    }
}

/// Parses the name of a protocol, as ALPN has it.
pub(super) fn protocol(typed: &str) -> Result<Box<str>, &'static str> {
    // No protocol has a comma or a space in its name, but other programs have them in lists.
    let is_list = typed.contains(|letter: char| letter == ',' || letter.is_whitespace());
    match typed.len() {
        _ if is_list => Err("expected the name of one protocol, such as h2"),
        1..=255 => Ok(typed.into()),
        _ => Err("expected the name of a protocol, such as h2, of 1 to 255 bytes"),
    }
}

/// The longest name for ACME. The names of files are longer, and have at most 255 bytes.
const ACME_NAME_MAX_BYTES: usize = 240;

pub(super) fn acme_name(typed: &str) -> Result<Box<str>, &'static str> {
    if typed.starts_with("*.") {
        return Err(
            "expected a name without `*`: a certificate for all names below a name needs a change of DNS, \
                    which this program does not make",
        );
    }
    let name = typed.to_ascii_lowercase();
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let is_name = matches!(Target::named(&name, 0), Some(Target::Name(..)))
        && name.bytes().all(is_valid)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && name.len() <= ACME_NAME_MAX_BYTES;
    is_name
        .then(|| name.into())
        .ok_or("expected the name of a host, such as www.example.com")
}

pub(super) fn directory(typed: &str) -> Result<Box<str>, &'static str> {
    let url = url::Url::parse(typed).ok().filter(|url| url.scheme() == "https");
    url.filter(|url| url.host().is_some() && url.username().is_empty())
        .map(|url| url.as_str().into())
        .ok_or("expected the URL of an ACME directory, such as https://acme.example.com/directory")
}

pub(super) fn email(typed: &str) -> Result<Box<str>, &'static str> {
    let is_email = typed
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty());
    let is_word = !typed.contains(|char: char| char.is_whitespace() || char.is_control());
    (is_email && is_word)
        .then(|| typed.into())
        .ok_or("expected an address, such as admin@example.com")
}

pub(super) fn mark(typed: &str) -> Result<u32, &'static str> {
    let mark = match typed.strip_prefix("0x") {
        // The check excludes a sign, which `from_str_radix` accepts.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => u32::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => typed.parse().ok(),
    };
    mark.ok_or("expected a number such as 100 or 0x64, at most 0xffffffff")
}

/// With fewer descriptors, the program could serve only a few sessions.
const DESCRIPTORS_MIN: u64 = 64;

pub(super) fn descriptors(typed: &str) -> Result<u64, String> {
    let count = typed.parse().ok().filter(|count| *count >= DESCRIPTORS_MIN);
    count.ok_or_else(|| format!("expected a number, {DESCRIPTORS_MIN} or more"))
}

/// Parses a target and its options: `HOST:PORT[,weight=N][,backup][,max-conns=N]`.
pub(super) fn remote(typed: &str) -> Result<BackendSettings, String> {
    let mut backend = BackendSettings {
        name: typed.into(),
        targets: Target::Unix(Path::new("").into()).into(),
        weight: NonZeroU32::MIN,
        is_backup: false,
        max_conns: None,
        members: Members::One,
        tls: None,
    };
    let mut text = typed;
    while let Some((rest, option)) = text.rsplit_once(',') {
        match option.split_once('=').unwrap_or((option, "")) {
            ("weight", number) => backend.weight = weight(number)?,
            ("backup", "") => backend.is_backup = true,
            ("max-conns", number) => backend.max_conns = Some(count(number)?),
            _ => {
                let expected = "expected HOST:PORT or unix:PATH, and then only ,weight=N or ,max-conns=N or ,backup";
                return Err(expected.to_owned());
            }
        }
        text = rest;
    }
    backend.name = text.into();
    let is_tls = text.starts_with(TLS_PREFIX);
    let text = text.strip_prefix(TLS_PREFIX).unwrap_or(text);
    if let Some(name) = text.strip_prefix("srv:") {
        let expected = || "expected a name of SRV records, such as srv:_http._tcp.example.com".to_owned();
        let name = Target::named(name, 0).filter(|target| matches!(target, Target::Name(..)));
        backend.targets = name.ok_or_else(expected)?.into();
        backend.members = Members::Srv;
        backend.tls = is_tls.then(PeerName::unknown);
        return Ok(backend);
    }
    backend.targets = text.parse().map_err(|expected| {
        hints::of_target(text).unwrap_or_else(|| format!("{expected}, or tls:// before one of them"))
    })?;
    backend.tls = is_tls.then(|| PeerName::of(&backend.targets.first));
    match backend.targets.first.port() {
        Some(0) => Err("expected a port from 1 to 65535".to_owned()),
        _ => Ok(backend),
    }
}

/// Each client that waits holds a descriptor and about 2 KiB.
const QUEUE_MAX: usize = 65_536;

pub(super) fn queue(typed: &str) -> Result<usize, String> {
    let count = typed.parse().ok().filter(|count| *count <= QUEUE_MAX);
    count.ok_or_else(|| format!("expected a number from 0 to {QUEUE_MAX}"))
}

pub(super) fn eject_after(typed: &str) -> Result<u32, &'static str> {
    typed.parse().map_err(|_| "expected a number of failures, or 0 for off")
}

pub(super) fn percent(typed: &str) -> Result<u32, &'static str> {
    let percent = typed.parse().ok().filter(|percent| *percent <= 100);
    percent.ok_or("expected a share in per cent, from 0 to 100, without a sign: such as 50")
}

pub(super) fn weight(typed: &str) -> Result<NonZeroU32, String> {
    let weight = typed
        .parse()
        .ok()
        .filter(|weight: &NonZeroU32| weight.get() <= WEIGHT_MAX);
    weight.ok_or_else(|| format!("expected a weight from 1 to {WEIGHT_MAX}"))
}

pub(super) fn flag(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "expected true or false")
}

pub(super) fn ip(text: &str) -> Result<IpAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected an IP address such as 192.0.2.1 or 2001:db8::1")
}

/// Parses a text that must not be empty.
pub(super) fn text(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected a name"),
        text => Ok(text.into()),
    }
}

/// The longest name of an interface (`IFNAMSIZ`, without the zero at its end).
const INTERFACE_MAX_BYTES: usize = 15;

/// Parses the name of a network interface. The kernel truncates a long one.
pub(super) fn interface(text: &str) -> Result<Box<str>, String> {
    let is_name = (1..=INTERFACE_MAX_BYTES).contains(&text.len()) && !text.contains(['\0', '/', ' ', ':']);
    let expected =
        || format!("expected the name of a network interface, 1 to {INTERFACE_MAX_BYTES} bytes long, such as eth0");
    let is_address = text.parse::<IpAddr>().is_ok();
    (is_name && !is_address).then(|| text.into()).ok_or_else(expected)
}

/// Parses the name of a host as browsers send it, without the port.
pub(super) fn host(text: &str) -> Result<Box<str>, &'static str> {
    let bare = text.strip_prefix('[').and_then(|ipv6| ipv6.strip_suffix(']'));
    let is_host = match Target::named(bare.unwrap_or(text), 0) {
        Some(Target::Ip(_)) => true,
        found => found.is_some() && bare.is_none(),
    };
    is_host
        .then(|| text.into())
        .ok_or("expected a name without a port, such as status.example.com")
}

pub(super) fn path(text: &str) -> Result<PathBuf, &'static str> {
    match text {
        "" => Err("expected the path of a file"),
        path => Ok(path.into()),
    }
}

pub(super) fn private(text: &str) -> Result<PrivateArg, String> {
    match text {
        "true" => return Ok(PrivateArg::All),
        "false" => return Ok(PrivateArg::Nothing),
        _ => {}
    }
    let net = policy::network(text)
        .map_err(|_| "expected a network such as 10.1.0.0/16 or an address, or nothing for all that are not public")?;
    match policy::stays_closed(net) {
        Some(why) => Err(format!(
            "{net} is {why}, which only --allow-private without a network opens; expected a private network"
        )),
        None => Ok(PrivateArg::Network(net)),
    }
}

/// The start of a file among rules.
pub(super) const FILE_OF_RULES: &str = "@";

pub(super) fn rule(text: &str) -> Result<RuleArg, &'static str> {
    match text.strip_prefix(FILE_OF_RULES) {
        Some("") => Err("expected a file after @, such as @blocked.txt"),
        Some(path) => Ok(RuleArg::File(path.into())),
        None => text.parse().map(RuleArg::Rule),
    }
}

/// Parses the destination of records.
pub(super) fn access_log(text: &str) -> Result<AccessLog, &'static str> {
    match text {
        "" => Err("expected the path of a file, `-` for stdout, stderr or off"),
        "-" => Ok(AccessLog::Stdout),
        "stderr" => Ok(AccessLog::Stderr),
        "off" => Ok(AccessLog::Off),
        path => Ok(AccessLog::File(path.into())),
    }
}

/// A longer name does not fit into a table or a chart.
const NAME_MAX_BYTES: usize = 64;

/// Parses the name of a service, which is a label in metrics and a field in records.
pub(super) fn name(text: &str) -> Result<Box<str>, String> {
    let of_names = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=NAME_MAX_BYTES).contains(&text.len()) && text.bytes().all(of_names);
    is_name
        .then(|| text.into())
        .ok_or_else(|| format!("expected 1 to {NAME_MAX_BYTES} letters, digits, `-`, `_` or `.`, such as web-1"))
}

/// Parses the address of an admin socket. It has no other access control than the mode of its file.
pub(super) fn admin(typed: &str) -> Result<ListenAddress, String> {
    match typed.parse() {
        Ok(unix @ ListenAddress::Unix { .. }) => Ok(unix),
        Err(expected) if typed.starts_with("unix:") => Err(expected.to_owned()),
        _ => Err("expected unix:/PATH, such as unix:/run/spliceway/admin.sock".to_owned()),
    }
}

/// Parses the address of a running program's admin socket. A path alone works too.
pub(crate) fn admin_path(typed: &str) -> Result<PathBuf, String> {
    match admin(typed) {
        Ok(ListenAddress::Unix { path, .. }) => Ok(path.into()),
        _ if typed.starts_with('/') => Ok(typed.into()),
        Ok(_) => Err("expected unix:/PATH".to_owned()),
        Err(expected) => Err(expected),
    }
}

const DNS_PORT: u16 = 53;

/// Parses a resolver: a mode, or servers separated by commas.
pub(super) fn resolver(typed: &str) -> Result<ResolverSettings, String> {
    let expected = "expected auto, system, or addresses of servers such as 192.0.2.53 or [2001:db8::53]:53";
    let server = |text: &str| -> Result<SocketAddr, String> {
        match (text.parse(), ip_with_zone(text, DNS_PORT)) {
            (Ok(Target::Ip(address)), _) | (_, Ok(address)) => Ok(address),
            (Err(why), _) if text.starts_with('[') && text.contains('%') => Err(why.to_owned()),
            (_, Err(why)) if text.contains('%') => Err(why.to_owned()),
            _ => Err(expected.to_owned()),
        }
    };
    match typed {
        "auto" => Ok(ResolverSettings::Configured),
        "system" => Ok(ResolverSettings::System),
        servers => servers
            .split(',')
            .map(server)
            .collect::<Result<_, _>>()
            .map(ResolverSettings::Servers),
    }
}

/// The longest time in days, which is a hundred years. The clock can represent an instant that far
/// ahead.
const LONGEST_DAYS: u64 = 36_500;

/// What others write for a time without a limit.
const NO_LIMIT: [&str; 6] = ["off", "none", "never", "no", "infinite", "unlimited"];

/// Parses a time. It may be 0, which means that there is no limit.
pub(super) fn time(typed: &str) -> Result<Duration, String> {
    if NO_LIMIT.contains(&typed) {
        return Err(format!("{typed:?} is no time: write 0 for no limit"));
    }
    duration(typed)
}

fn duration(typed: &str) -> Result<Duration, String> {
    if typed.starts_with('-') {
        return Err("a time cannot be negative: expected one such as 10s".to_owned());
    }
    let expected = "expected a time such as 500ms, 10s, 1m or 1h30m, in ms, s, m, h or d";
    // humantime's error message names units that the help does not mention.
    let time = humantime::parse_duration(typed).map_err(|_| expected.to_owned())?;
    if time > Duration::from_secs(LONGEST_DAYS * 24 * 60 * 60) {
        return Err(format!("{expected}, and at most {LONGEST_DAYS} days"));
    }
    Ok(time)
}

pub(super) fn spin(typed: &str) -> Result<Duration, &'static str> {
    let time = humantime::parse_duration(typed).ok();
    let short = time.filter(|time| *time <= Duration::from_millis(1));
    short.ok_or("expected a time of at most 1ms, such as 20us")
}

/// Parses a number of bytes. 0 needs no unit.
pub(super) fn size(typed: &str) -> Result<u64, &'static str> {
    let bytes = if typed == "0" { Some(0) } else { bytes(typed) };
    bytes.ok_or("expected a number of bytes such as 64KiB or 1.5MB, in B to TB or KiB to TiB, or 0")
}

pub(super) fn record_time(typed: &str) -> Result<Duration, String> {
    match time(typed)? {
        time if time.is_zero() || time >= Duration::from_secs(1) => Ok(time),
        _ => Err("expected a time of at least 1s, or 0 for off".to_owned()),
    }
}

pub(super) fn positive_time(typed: &str) -> Result<Duration, String> {
    match duration(typed)? {
        Duration::ZERO => Err("expected a time longer than 0".to_owned()),
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

impl From<LogFormatArg> for Format {
    fn from(arg: LogFormatArg) -> Self {
        match arg {
            LogFormatArg::Text => Self::Text,
            LogFormatArg::Json => Self::Json,
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
