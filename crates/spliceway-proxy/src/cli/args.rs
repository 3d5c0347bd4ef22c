//! The options of all commands, and the configuration that they mean.

use clap::Args;

use crate::reach::balance::Policy;
use crate::settings::config::{
    self, AcceptProxy, Address, AdminSocket, Auth, Check, Choice, Config, Descriptors, EjectAfter, Expected, File,
    Flag, Host, Interface, Ip, KindArg, List, Listen, LogFormatArg, LogLevelArg, Mark, Network, PerClient, Percent,
    PipeSizeArg, PositiveTime, Private, Queue, Rate, RecordTime, Records, Remote, Resolver, Route, Rule, SendProxy,
    Sessions, SingleTarget, SpinTime, SpliceArg, Time, Upstream, UserQuota, UserRate, UserSessions, Value, Workers,
    choice,
};

#[derive(Args, Debug)]
pub(super) struct ForwardArgs {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
    /// `unix:PATH[,mode=0660]`, `unix:@NAME` or `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR", required = true)]
    listen: Vec<Value<Listen>>,
    /// Target: `HOST:PORT`, `unix:PATH`, `unix:@NAME` or `srv:NAME`. A range `HOST:PORT-PORT` maps
    /// listening ports one to one. May be repeated: each client then gets one of these backends.
    /// `,weight=N`, `,max-conns=N` and `,backup` may follow
    #[arg(short, long, visible_alias = "to", value_name = "HOST:PORT", required = true)]
    remote: Vec<Value<Remote>>,
    /// How to spread clients over several backends [default: least-conn]
    #[arg(long, value_name = "POLICY", help_heading = "Backends", hide_short_help = true, value_parser = choice::<Policy>())]
    balance: Option<Value<Choice<Policy>>>,
    /// Check each backend: `connect`, `tls`, `http:/PATH` or `send:TEXT`. A backend whose checks
    /// fail gets no clients
    #[arg(long, value_name = "CHECK", help_heading = "Backends")]
    check: Option<Value<Check>>,
    /// What a check expects: an HTTP status such as `200` or `200-299`, or bytes of the answer to
    /// `send:` such as `+PONG` [default: 200-399, or nothing]
    #[arg(
        long,
        value_name = "TEXT",
        requires = "check",
        help_heading = "Backends",
        hide_short_help = true
    )]
    check_expect: Option<Value<Expected>>,
    /// Time between two checks of a backend, and time limit for a check [default: 2s]
    #[arg(
        long,
        value_name = "TIME",
        requires = "check",
        help_heading = "Backends",
        hide_short_help = true
    )]
    check_interval: Option<Value<PositiveTime>>,
    /// Number of good checks in a row after which a backend is up [default: 2]
    #[arg(
        long,
        value_name = "N",
        requires = "check",
        help_heading = "Backends",
        hide_short_help = true
    )]
    check_rise: Option<Value<PerClient>>,
    /// Number of failed checks in a row after which a backend is down [default: 3]
    #[arg(
        long,
        value_name = "N",
        requires = "check",
        help_heading = "Backends",
        hide_short_help = true
    )]
    check_fall: Option<Value<PerClient>>,
    /// Time over which a backend that is up again gets its whole share of clients; 0 = off
    /// [default: 10s]
    #[arg(long, value_name = "TIME", help_heading = "Backends", hide_short_help = true)]
    slow_start: Option<Value<Time>>,
    /// Make every address of a name a backend of its own, and look the name up again when its TTL
    /// ends
    #[arg(long, help_heading = "Backends", hide_short_help = true)]
    each_address: bool,
    /// Maximum number of clients that wait for a backend if all of them have `,max-conns=N`
    /// sessions. Further clients are refused [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Backends", hide_short_help = true)]
    queue: Option<Value<Queue>>,
    /// Number of failures after which a backend is ejected: it gets no clients for a while; 0 =
    /// off. A connection that succeeds cancels one failure [default: 3]
    #[arg(long, value_name = "N", help_heading = "Backends", hide_short_help = true)]
    eject_after: Option<Value<EjectAfter>>,
    /// Time of the first ejection. Each further one takes twice as long, up to 2m [default: 5s]
    #[arg(long, value_name = "TIME", help_heading = "Backends", hide_short_help = true)]
    eject_time: Option<Value<PositiveTime>>,
    /// Largest share of the backends that is ejected at the same time, in per cent [default: 75]
    #[arg(long, value_name = "PERCENT", help_heading = "Backends", hide_short_help = true)]
    eject_max: Option<Value<Percent>>,
    /// Connect to the target from the client's address. Needs CAP_NET_ADMIN and a route
    #[arg(long, help_heading = "Targets", hide_short_help = true)]
    transparent_source: bool,
    /// Forward UDP datagrams instead of TCP connections
    #[arg(long)]
    udp: bool,
    /// With --udp: end a session when both directions are silent for this long. A session whose
    /// target has not answered ends after a quarter of it [default: 1m]
    #[arg(
        long,
        value_name = "TIME",
        requires = "udp",
        help_heading = "Timeouts",
        hide_short_help = true
    )]
    udp_timeout: Option<Value<PositiveTime>>,
}

#[derive(Args, Debug)]
pub(super) struct TransparentCommand {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT` or
    /// `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR", required = true)]
    listen: Vec<Value<Listen>>,
    /// Serve connections that a rule with TPROXY sends here, instead of REDIRECT. Needs
    /// CAP_NET_ADMIN
    #[arg(long)]
    tproxy: bool,
    /// Connect to the target from the client's address. Needs CAP_NET_ADMIN and a route
    #[arg(long, help_heading = "Targets")]
    transparent_source: bool,
    /// Serve clients on other machines without --allow
    #[arg(long, help_heading = "Access")]
    open: bool,
    #[command(flatten, next_help_heading = "Access")]
    targets: TargetArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
pub(super) struct SniCommand {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
    /// `unix:PATH[,mode=0660]`, `unix:@NAME` or `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR", required = true)]
    listen: Vec<Value<Listen>>,
    /// Target for a name: `NAME=HOST:PORT`. `*.NAME` means all names below NAME, `NAME/PROTOCOL`
    /// only clients that offer this protocol (ALPN). May be repeated
    #[arg(long, value_name = "NAME=HOST:PORT", required = true)]
    route: Vec<Value<Route>>,
    /// Target for clients without a route, also for those that state no name [default: refuse them]
    #[arg(long, value_name = "HOST:PORT")]
    default_target: Option<Value<SingleTarget>>,
    /// Target for clients that do not speak TLS, such as those of SSH, and for clients that send
    /// nothing within the handshake timeout [default: the default target, but refuse silent
    /// clients]
    #[arg(long, value_name = "HOST:PORT")]
    not_tls: Option<Value<SingleTarget>>,
    /// Time limit for a client's handshake [default: 10s]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    handshake_timeout: Option<Value<PositiveTime>>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
pub(super) struct ProxyCommand {
    /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
    /// `unix:PATH[,mode=0660]`, `unix:@NAME` or `fd:NAME`. `PORT-PORT` is a range. May be repeated
    #[arg(short, long, value_name = "ADDR")]
    listen: Vec<Value<Listen>>,
    #[command(flatten, next_help_heading = "Access")]
    proxy: ProxyArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args, Debug)]
pub(super) struct ProxyArgs {
    /// User file with one `NAME:HASH` per line. `spliceway hash-password` prints hashes
    #[arg(long, value_name = "FILE")]
    auth_file: Option<Value<File>>,
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
    auth: Option<Value<Auth>>,
    /// Longest wait for an address after wrong passwords; 0 = off. The first three are free. The
    /// fourth costs 1s, and each further one doubles the wait [default: 1m]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    auth_penalty: Option<Value<Time>>,
    /// Serve clients on other machines without --auth-file or --allow
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    targets: TargetArgs,
    /// Address that SOCKS replies give for UDP ASSOCIATE and BIND [default: the address that the
    /// client reached]
    #[arg(long, value_name = "IP", hide_short_help = true)]
    advertise: Option<Value<Ip>>,
    /// Maximum number of sessions at the same time per user. Further sessions are refused
    #[arg(long, value_name = "N", hide_short_help = true)]
    user_max_conns: Option<Value<UserSessions>>,
    /// Rate limit for bytes from the clients of each user, such as 10MB. All sessions of the user
    /// share it
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    user_rate_in: Option<Value<UserRate>>,
    /// Rate limit for bytes to the clients of each user
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    user_rate_out: Option<Value<UserRate>>,
    /// Bytes that each user may use, such as 10GB/day or 100GB/month, in both directions together.
    /// Needs --quota-file. May be given once per period
    #[arg(long, value_name = "QUOTA", requires = "quota_file", hide_short_help = true)]
    user_quota: Vec<Value<UserQuota>>,
    /// File that keeps what users have used of their quotas
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    quota_file: Option<Value<File>>,
    /// Time limit for a client's handshake [default: 10s]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    handshake_timeout: Option<Value<PositiveTime>>,
}

/// The targets of proxies.
#[derive(Args, Debug)]
pub(super) struct TargetArgs {
    /// Let clients on other machines reach addresses that are not on the public Internet: loopback,
    /// private, link-local, metadata services and others. With a network (`=10.1.0.0/16`), only
    /// addresses in it, and neither loopback nor metadata services. May be repeated
    #[arg(long, value_name = "CIDR", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_private: Vec<Value<Private>>,
    /// Let clients reach only these targets: `example.com`, `*.example.com`, `10.0.0.0/8` or `*`,
    /// each with ports if needed (`:80,8000-8999`), or `@FILE` with one rule per line. May be
    /// repeated
    #[arg(long, value_name = "RULE")]
    to_allow: Vec<Value<Rule>>,
    /// Refuse these targets, in the same form as --to-allow. A rule of --to-allow wins only if it
    /// is more specific. May be repeated
    #[arg(long, value_name = "RULE")]
    to_deny: Vec<Value<Rule>>,
}

#[derive(Args, Debug)]
pub(super) struct CommonArgs {
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
pub(super) struct ClientArgs {
    /// Serve only clients from this network. May be repeated
    #[arg(long, value_name = "CIDR")]
    allow: Vec<Value<Network>>,
    /// Refuse clients from this network, even if --allow includes it. May be repeated
    #[arg(long, value_name = "CIDR", hide_short_help = true)]
    deny: Vec<Value<Network>>,
    /// Require a PROXY header of this version on every connection: v1, v2 or any
    #[arg(long, value_name = "VERSION", requires = "proxy_from", hide_short_help = true)]
    accept_proxy: Option<Value<AcceptProxy>>,
    /// Network of the load balancers that may send PROXY headers. May be repeated
    #[arg(long, value_name = "CIDR", requires = "accept_proxy", hide_short_help = true)]
    proxy_from: Vec<Value<Network>>,
}

#[derive(Args, Debug)]
pub(super) struct DialArgs {
    /// Proxy to connect through: `socks5://[USER:PASSWORD@]HOST[:PORT]`, `socks5h://…` or
    /// `http://…`. May be repeated to form a chain. In the variable, spaces separate the proxies
    #[arg(
        short = 'x',
        long,
        value_name = "URL",
        env = "SPLICEWAY_UPSTREAM_PROXY",
        hide_env_values = true,
        value_delimiter = ' '
    )]
    upstream_proxy: Vec<Value<Upstream>>,
    /// Send a PROXY header of this version to targets: v1 or v2
    #[arg(long, value_name = "VERSION", hide_short_help = true)]
    send_proxy: Option<Value<SendProxy>>,
    /// DNS resolver to use: `auto` (as glibc, with a cache), `system` (the C library), or servers
    /// in their order, `IP[:PORT],…` [default: auto]
    #[arg(long, value_name = "RESOLVER", hide_short_help = true)]
    dns: Option<Value<Resolver>>,
    /// Connect from this source address. May be given once per address family. A family without a
    /// source address is then not used
    #[arg(long, value_name = "IP", hide_short_help = true)]
    bind_source: Vec<Value<Ip>>,
    /// Connect through this network interface
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    bind_interface: Option<Value<Interface>>,
    /// Mark packets to targets (SO_MARK) for routing and firewalls: 100 or 0x64
    #[arg(long, value_name = "N", hide_short_help = true)]
    mark: Option<Value<Mark>>,
}

#[derive(Args, Debug)]
pub(super) struct TimeArgs {
    /// Time limit for looking up a target's name and connecting to the target [default: 10s]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    connect_timeout: Option<Value<PositiveTime>>,
    /// End a session when both directions are silent for this long; 0 = off. The timer may be late
    /// by up to 1/8 of this time [default: 1h]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Value<Time>>,
    /// End a session after one side has finished and the other is silent for this long; 0 = off.
    /// The timer may be late by up to 1/8 of this time [default: 1m]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    half_close_timeout: Option<Value<Time>>,
    /// End each session after this time, or up to a tenth earlier, so that long sessions do not all
    /// end together; 0 = off [default: 0]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    max_session: Option<Value<Time>>,
    /// Time limit for transfers to finish after TERM or INT. The program then cuts the
    /// remaining transfers. They have 2s more to deliver the bytes that they hold [default: 30s]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    drain_timeout: Option<Value<Time>>,
}

#[derive(Args, Debug)]
pub(super) struct LimitArgs {
    /// Maximum number of sessions at the same time. Further clients wait to be accepted [default:
    /// as many as --nofile allows]
    #[arg(long, value_name = "N")]
    max_conns: Option<Value<Sessions>>,
    /// Maximum number of sessions at the same time per client address (IPv6: per /64). Further
    /// sessions are refused
    #[arg(long, value_name = "N", hide_short_help = true)]
    max_conns_per_ip: Option<Value<PerClient>>,
    /// Maximum number of connection attempts at the same time per client address (IPv6: per /64).
    /// `forward` and `sni` ignore this option [default: 256]
    #[arg(long, value_name = "N", hide_short_help = true)]
    max_dials_per_ip: Option<Value<PerClient>>,
    /// Rate limit for bytes from clients: `10MB` for the whole service, `10MB:client` per client
    /// address, `10MB:connection` per connection. May be repeated
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    rate_in: Vec<Value<Rate>>,
    /// Rate limit for bytes to clients, in the same form as --rate-in
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    rate_out: Vec<Value<Rate>>,
    /// Maximum number of file descriptors, at least 64 [default: the hard limit of this user]
    #[arg(long, value_name = "N", hide_short_help = true)]
    nofile: Option<Value<Descriptors>>,
}

#[derive(Args, Debug)]
pub(super) struct EngineArgs {
    /// How relays move bytes [default: auto]
    #[arg(
        long,
        value_name = "WHEN",
        hide_short_help = true, value_parser = choice::<SpliceArg>())]
    splice: Option<Value<Choice<SpliceArg>>>,
    /// Size of the pipes that hold spliced bytes. `auto` adapts it to the traffic [default: auto]
    #[arg(
        long,
        value_name = "SIZE",
        ignore_case = true,
        hide_short_help = true, value_parser = choice::<PipeSizeArg>())]
    pipe_size: Option<Value<Choice<PipeSizeArg>>>,
    /// Time that a worker stays awake after a message, at most 1ms. 20us lowers the latency of a
    /// few busy connections, and costs more CPU time [default: 0]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    spin: Option<Value<SpinTime>>,
    /// Worker threads, 1 to 1024 [default: number of processors]
    #[arg(long, value_name = "N", hide_short_help = true)]
    workers: Option<Value<Workers>>,
}

#[derive(Args, Debug)]
pub(super) struct WatchArgs {
    /// Serve /metrics, /healthz and /readyz on this address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<Value<Address>>,
    /// Serve a status page with live charts at / of the --metrics address. It shows sums, and no
    /// clients, users or targets
    #[arg(long, requires = "metrics", hide_short_help = true)]
    status_page: bool,
    /// Name by which browsers may reach the status page, besides `localhost` and addresses. May be
    /// repeated
    #[arg(long, value_name = "NAME", requires = "status_page", hide_short_help = true)]
    status_host: Vec<Value<Host>>,
    /// Unix socket for `spliceway status`, `spliceway top` and other tools of the operator:
    /// `unix:PATH[,mode=0600]` or `unix:@NAME`
    #[arg(long, value_name = "unix:PATH")]
    admin: Option<Value<AdminSocket>>,
    /// Log level for stderr. `info` logs one line per session [default: info]
    #[arg(
        long,
        value_name = "LEVEL",
        hide_short_help = true, value_parser = choice::<LogLevelArg>())]
    log_level: Option<Value<Choice<LogLevelArg>>>,
    /// Format of the log and of the access log [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        hide_short_help = true, value_parser = choice::<LogFormatArg>())]
    log_format: Option<Value<Choice<LogFormatArg>>>,
    /// Where the records of sessions go: a file, `-` for stdout, `stderr` (among the other lines of
    /// the log), or `off`. The signal USR1 opens the file again [default: stderr]
    #[arg(long, value_name = "PLACE", hide_short_help = true)]
    access_log: Option<Value<Records>>,
    /// Write a record of each open session about once in this time, with `end=open`; 0 = off
    /// [default: 0]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    record_interval: Option<Value<RecordTime>>,
}

impl ForwardArgs {
    pub(super) fn config(self, common: CommonArgs) -> Config {
        let service = config::Service {
            listen: List::of(self.listen),
            to: List::of(self.remote),
            balance: self.balance,
            check: self.check,
            check_expect: self.check_expect,
            check_interval: self.check_interval,
            check_rise: self.check_rise,
            check_fall: self.check_fall,
            slow_start: self.slow_start,
            each_address: flag(self.each_address),
            queue: self.queue,
            eject_after: self.eject_after,
            eject_time: self.eject_time,
            eject_max: self.eject_max,
            transparent_source: flag(self.transparent_source),
            udp: flag(self.udp),
            ..config::Service::default()
        };
        let mut config = common.config(KindArg::Forward, service);
        config.timeouts.udp = self.udp_timeout;
        config
    }
}

impl TransparentCommand {
    pub(super) fn config(self) -> Config {
        let service = config::Service {
            listen: List::of(self.listen),
            tproxy: flag(self.tproxy),
            transparent_source: flag(self.transparent_source),
            open: flag(self.open),
            allow_private: List::of(self.targets.allow_private),
            to_allow: List::of(self.targets.to_allow),
            to_deny: List::of(self.targets.to_deny),
            ..config::Service::default()
        };
        self.common.config(KindArg::Transparent, service)
    }
}

impl SniCommand {
    pub(super) fn config(self) -> Config {
        let service = config::Service {
            listen: List::of(self.listen),
            route: List::of(self.route),
            default_target: self.default_target,
            not_tls: self.not_tls,
            ..config::Service::default()
        };
        let mut config = self.common.config(KindArg::Sni, service);
        config.timeouts.handshake = self.handshake_timeout;
        config
    }
}

impl ProxyCommand {
    pub(super) fn config(self, kind: KindArg) -> Config {
        let Self { listen, proxy, common } = self;
        let service = config::Service {
            listen: List::of(listen),
            auth_file: proxy.auth_file,
            auth: proxy.auth,
            auth_penalty: proxy.auth_penalty,
            open: flag(proxy.open),
            allow_private: List::of(proxy.targets.allow_private),
            to_allow: List::of(proxy.targets.to_allow),
            to_deny: List::of(proxy.targets.to_deny),
            advertise: proxy.advertise,
            ..config::Service::default()
        };
        let mut config = common.config(kind, service);
        config.timeouts.handshake = proxy.handshake_timeout;
        config.defaults.user = config::UserDefaults {
            max_conns: proxy.user_max_conns,
            rate_in: proxy.user_rate_in,
            rate_out: proxy.user_rate_out,
            quota: List::of(proxy.user_quota),
        };
        config.limits.quota_file = proxy.quota_file;
        config
    }
}

/// Returns the value of a flag without an argument.
fn flag(is_given: bool) -> Option<Value<Flag>> {
    is_given.then(|| Value::of("true"))
}

impl CommonArgs {
    /// Returns the configuration of this service and of the program.
    fn config(self, kind: KindArg, service: config::Service) -> Config {
        let Self {
            clients,
            dial,
            times,
            limits,
            engine,
            watch,
        } = self;
        let service = config::Service {
            kind: Some(Value::chosen(kind)),
            allow: List::of(clients.allow),
            deny: List::of(clients.deny),
            accept_proxy: clients.accept_proxy,
            proxy_from: List::of(clients.proxy_from),
            upstream_proxy: List::of(dial.upstream_proxy),
            send_proxy: dial.send_proxy,
            dns: dial.dns,
            bind_source: List::of(dial.bind_source),
            bind_interface: dial.bind_interface,
            mark: dial.mark,
            rate_in: List::of(limits.rate_in),
            rate_out: List::of(limits.rate_out),
            ..service
        };
        Config {
            log: config::Log {
                level: watch.log_level,
                format: watch.log_format,
                access: watch.access_log,
                record_interval: watch.record_interval,
            },
            timeouts: config::Timeouts {
                connect: times.connect_timeout,
                handshake: None,
                idle: times.idle_timeout,
                half_close: times.half_close_timeout,
                drain: times.drain_timeout,
                udp: None,
            },
            limits: config::Limits {
                max_conns: limits.max_conns,
                max_conns_per_ip: limits.max_conns_per_ip,
                max_dials_per_ip: limits.max_dials_per_ip,
                max_session: times.max_session,
                nofile: limits.nofile,
                quota_file: None,
            },
            engine: config::Engine {
                splice: engine.splice,
                pipe_size: engine.pipe_size,
                spin: engine.spin,
                workers: engine.workers,
            },
            admin: config::Admin {
                metrics: watch.metrics,
                status_page: flag(watch.status_page),
                status_host: List::of(watch.status_host),
                socket: watch.admin,
            },
            defaults: config::Defaults::default(),
            user: Vec::new(),
            service: vec![toml::Spanned::new(0..0, service)],
        }
    }
}
