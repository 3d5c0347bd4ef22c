//! The tables of a configuration. Each key is declared here, once.
//!
//! The order of the keys is that of a printed file. `cli/args.rs` has the order of the flags.

use std::num::NonZeroUsize;

use clap::{Arg, ArgMatches};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key::{FlagSpec, Key, Setting, Table, kebab, tables};
use super::value::{List, Value};
use super::values::{
    ClientVerifyArg, ClientsArg, KindArg, KtlsArg, LogFormatArg, LogLevelArg, OnOffArg, PipeSizeArg, SpliceArg,
    StartTlsArg, TlsMinArg, UnknownNameArg,
};
use super::words::*;
use crate::reach::balance::Policy;

const FORWARDERS: &[KindArg] = &[KindArg::Forward];
const ROUTERS: &[KindArg] = &[KindArg::Sni];
/// The services whose targets only the operator names.
const FIXED: &[KindArg] = &[KindArg::Forward, KindArg::Sni];
const TRANSPARENT: &[KindArg] = &[KindArg::Transparent];
/// The services that may terminate the TLS of their clients.
const TLS_SERVERS: &[KindArg] = &[
    KindArg::Forward,
    KindArg::Socks5,
    KindArg::Http,
    KindArg::Mixed,
    KindArg::Sni,
];
const PROXIES: &[KindArg] = &[KindArg::Socks5, KindArg::Http, KindArg::Mixed];
/// The services whose clients choose the target.
const FREE: &[KindArg] = &[KindArg::Socks5, KindArg::Http, KindArg::Mixed, KindArg::Transparent];

const OPTIONS: FlagSpec = FlagSpec::ANY;
const BACKENDS: FlagSpec = FlagSpec::ANY.only_for(FORWARDERS).under("Backends");
const ACCESS: FlagSpec = FlagSpec::ANY.only_for(PROXIES).under("Access");
/// The services that wait for what a client states.
const HANDSHAKE: FlagSpec = ACCESS.only_for(&[
    KindArg::Forward,
    KindArg::Socks5,
    KindArg::Http,
    KindArg::Mixed,
    KindArg::Transparent,
    KindArg::Sni,
]);
const CLIENTS: FlagSpec = FlagSpec::ANY.under("Clients");
const TLS: FlagSpec = FlagSpec::ANY.only_for(TLS_SERVERS).under("TLS");
const ACME: FlagSpec = TLS;
/// TLS to targets and upstream proxies.
const TARGET_TLS: FlagSpec = FlagSpec::ANY.under("TLS to targets").rare();
/// TLS to the targets that only the operator names.
const FIXED_TLS: FlagSpec = TARGET_TLS.only_for(FIXED);
const TARGETS: FlagSpec = FlagSpec::ANY.under("Targets");
const TIMEOUTS: FlagSpec = FlagSpec::ANY.under("Timeouts");
const LIMITS: FlagSpec = FlagSpec::ANY.under("Limits");
const DATA_PATH: FlagSpec = FlagSpec::ANY.under("Data path");
const MONITORING: FlagSpec = FlagSpec::ANY.under("Monitoring");

fn listen(arg: Arg, kind: KindArg) -> Arg {
    let arg = arg.short('l').required(true);
    if kind != KindArg::Transparent {
        return arg;
    }
    // A firewall does not redirect to a Unix socket.
    arg.help(
        "Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT` or `fd:NAME`. \
         `PORT-PORT` is a range. May be repeated",
    )
}

fn open(arg: Arg, kind: KindArg) -> Arg {
    if kind == KindArg::Transparent {
        return arg.help("Serve clients on other machines without --allow");
    }
    arg
}

fn transparent_source(arg: Arg, kind: KindArg) -> Arg {
    arg.hide_short_help(kind != KindArg::Transparent)
}

/// A router has nothing else under the heading.
fn handshake(arg: Arg, kind: KindArg) -> Arg {
    if matches!(kind, KindArg::Forward | KindArg::Transparent | KindArg::Sni) {
        return arg.help_heading(None);
    }
    arg
}

/// Defines a table with the defaults of some keys of services.
macro_rules! defaults {
    ($(#[$doc:meta])* $table:ident($path:literal, $expecting:literal) { $($key:ident: $value:ty;)+ })
            => {
        tables! {
            $(#[$doc])*
            $table($path, $expecting) { $($key: $value;)+ }
        }

        impl $table {
            /// Gives the service what it does not say.
            pub(super) fn fill(&self, service: &mut Service) {
                $(if service.$key.is_none() {
                    service.$key.clone_from(&self.$key);
                })+
            }
        }
    };
}

defaults! {
    /// The clients of every service.
    ListenDefaults("defaults.listen", "a table [defaults.listen]") {
        allow: List<Network>;
        deny: List<Network>;
        accept_proxy: Value<AcceptProxy>;
        proxy_from: List<Network>;
    }
}

defaults! {
    /// The connections of every service to its targets.
    DialDefaults("defaults.dial", "a table [defaults.dial]") {
        upstream_proxy: List<Upstream>;
        send_proxy: Value<SendProxy>;
        dns: Value<Resolver>;
        bind_source: List<Ip>;
        bind_interface: Value<Interface>;
        mark: Value<Mark>;
        to_allow: List<Rule>;
        to_deny: List<Rule>;
    }
}

tables! {
    Log("log", "a table [log]") {
        /// Log level for stderr. `info` logs one line per session
        level: Value<Choice<LogLevelArg>> = "info"
            => MONITORING.named("log-level").takes("LEVEL").rare();
        /// Format of the log, and of the access log unless it has its own
        format: Value<Choice<LogFormatArg>> = "text", fixed
            => MONITORING.named("log-format").takes("FORMAT").rare();
        /// Where the records of sessions go: a file, `-` for stdout, `stderr` (among the other
        /// lines of the log), or `off`. The signal USR1 opens the file again
        access: Value<Records> = "stderr", fixed => MONITORING.named("access-log").takes("PLACE").rare();
        /// Format of the access log in a file or on stdout [default: that of the log]
        access_format: Value<Choice<LogFormatArg>>, fixed
            => MONITORING.named("access-log-format").takes("FORMAT").rare().requires("access-log");
        /// Write a record of each open session about once in this time, with `end=open`; 0 = off
        record_interval: Value<RecordTime> = "0" => MONITORING.takes("TIME").rare();
    }

    Timeouts("timeouts", "a table [timeouts]") {
        /// Time limit for looking up a target's name and connecting to the target
        connect: Value<PositiveTime> = "10s"
            => TIMEOUTS.named("connect-timeout").takes("TIME").rare();
        /// Time limit for a client's handshake
        // The handshakes of a forwarder are TLS and a PROXY header, and a ClientHello is the
        // handshake of a router of TLS clients.
        handshake: Value<PositiveTime> = "10s"
            => HANDSHAKE.named("handshake-timeout").takes("TIME").rare().with(handshake);
        /// End a session when both directions are silent for this long; 0 = off. The timer may be
        /// late by up to 1/8 of this time
        idle: Value<Time> = "1h" => TIMEOUTS.named("idle-timeout").takes("TIME");
        /// End a session after one side has finished and the other is silent for this long; 0 =
        /// off. The timer may be late by up to 1/8 of this time
        half_close: Value<Time> = "1m" => TIMEOUTS.named("half-close-timeout").takes("TIME").rare();
        /// Time limit for transfers to finish after TERM or INT. The program then cuts the
        /// remaining transfers. They have 2s more to deliver the bytes that they hold
        drain: Value<Time> = "30s" => TIMEOUTS.named("drain-timeout").takes("TIME").rare();
        /// With --udp: end a session when both directions are silent for this long. A session whose
        /// target has not answered ends after a quarter of it
        // Most NATs and firewalls forget a flow of datagrams after this silence too.
        udp: Value<PositiveTime> = "1m"
            => TIMEOUTS.only_for(FORWARDERS).named("udp-timeout").takes("TIME").rare().requires("udp");
    }

    Limits("limits", "a table [limits]") {
        /// Maximum number of sessions at the same time. Further clients wait to be accepted
        /// [default: as many as --nofile allows]
        max_conns: Value<Sessions> => LIMITS.takes("N");
        /// Maximum number of sessions at the same time per client address (IPv6: per /64). Further
        /// sessions are refused
        max_conns_per_ip: Value<PerClient> => LIMITS.takes("N").rare();
        /// Maximum number of connection attempts at the same time per client address (IPv6: per
        /// /64). `forward` and `sni` ignore this option
        max_dials_per_ip: Value<PerClient> = "256" => LIMITS.takes("N").rare();
        /// End each session after this time, or up to a tenth earlier, so that long sessions do not
        /// all end together; 0 = off
        max_session: Value<Time> = "0" => TIMEOUTS.takes("TIME").rare();
        /// Maximum number of file descriptors, at least 64 [default: the hard limit of this user]
        nofile: Value<Descriptors>, fixed => LIMITS.takes("N").rare();
        /// File that keeps what users have used of their quotas
        quota_file: Value<File>, fixed => ACCESS.takes("FILE").rare();
    }

    Engine("engine", "a table [engine]") {
        /// How relays move bytes
        splice: Value<Choice<SpliceArg>> = "auto" => DATA_PATH.takes("WHEN").rare();
        /// Size of the pipes that hold spliced bytes. `auto` adapts it to the traffic
        pipe_size: Value<Choice<PipeSizeArg>> = "auto"
            => DATA_PATH.takes("SIZE").rare().with(|arg, _| arg.ignore_case(true));
        /// Give TLS connections to the kernel, which then splices their data: each TLS 1.3
        /// connection of a session that has moved many bytes (--ktls-after). Needs the module `tls`
        /// and Linux 6.14
        ktls: Value<Choice<KtlsArg>> = "off" => DATA_PATH.takes("WHEN").rare();
        /// Bytes that one direction of a session moves before the kernel gets its TLS; 0 = as soon
        /// as possible
        // The switch costs as much as several messages, and others have measured 30 % fewer
        // connections per second if each one switches.
        ktls_after: Value<Size> = "1MiB" => DATA_PATH.takes("SIZE").rare().requires("ktls");
        /// Time that a worker stays awake after a message, at most 1ms. 20us lowers the latency of
        /// a few busy connections, and costs more CPU time
        spin: Value<SpinTime> = "0" => DATA_PATH.takes("TIME").rare();
        /// Worker threads, 1 to 1024 [default: number of processors]
        workers: Value<Workers> = (processors()), fixed => DATA_PATH.takes("N").rare();
    }

    Admin("admin", "a table [admin]") {
        /// Serve /metrics, /healthz and /readyz on this address
        metrics: Value<Address>, fixed => MONITORING.takes("ADDR");
        /// Serve a status page with live charts at / of the --metrics address. It shows sums, and
        /// no clients, users or targets
        status_page: Value<Flag> = (false), fixed => MONITORING.rare().requires("metrics");
        /// Name by which browsers may reach the status page, besides `localhost` and addresses. May
        /// be repeated
        status_host: List<Host>, fixed => MONITORING.takes("NAME").rare().requires("status-page");
        /// File for the number of the process that serves. An upgrade replaces it, and the end of
        /// the program removes it
        pid_file: Value<File>, fixed => MONITORING.takes("FILE").rare();
        /// Unix socket for `spliceway status`, `spliceway top` and other tools of the operator:
        /// `unix:PATH[,mode=0600]` or `unix:@NAME`
        socket: Value<AdminSocket>, fixed => MONITORING.named("admin").takes("unix:PATH");
        /// Second Unix socket of the operator, for use from other machines. Each request needs a
        /// token of --admin-tokens
        remote: Value<AdminSocket>, fixed
            => MONITORING.named("admin-remote").takes("unix:PATH").rare().requires("admin-tokens");
        /// File with the hashes of the tokens for --admin-remote. `spliceway token add` writes it
        tokens: Value<File>
            => MONITORING.named("admin-tokens").takes("FILE").rare().requires("admin-remote");
    }

    /// How certificates are issued for the services with `acme`.
    Acme("acme", "a table [acme]") {
        /// Folder for the account, the certificates and their keys. The program creates it, and
        /// nobody else may use it
        state: Value<File> => ACME.named("acme-state").takes("FOLDER").requires("acme");
        /// Accept the terms of service of the ACME server
        accept_terms: Value<Flag> = (false) => ACME.named("acme-accept-terms").requires("acme");
        /// URL of the ACME server's directory [default: that of Let's Encrypt]
        directory: Value<Directory>
            => ACME.named("acme-directory").takes("URL").rare().requires("acme");
        /// Address at which the operator of the ACME server reaches you
        email: Value<Email> => ACME.named("acme-email").takes("ADDR").rare().requires("acme");
        /// CAs of the ACME server's own certificate, in PEM [default: those of the system]
        ca: Value<File> => ACME.named("acme-ca").takes("FILE").rare().requires("acme");
        /// Answer the server on this address (HTTP-01), which is `:80` in most cases [default: the
        /// services answer it (TLS-ALPN-01)]
        http: Value<Address>, fixed => ACME.named("acme-http").takes("ADDR").rare().requires("acme");
    }

    /// The limits of every user.
    UserDefaults("defaults.user", "a table [defaults.user]") {
        /// Maximum number of sessions at the same time per user. Further sessions are refused
        max_conns: Value<UserSessions> => ACCESS.named("user-max-conns").takes("N").rare();
        /// Rate limit for bytes from the clients of each user, such as 10MB. All sessions of the
        /// user share it
        rate_in: Value<UserRate> => ACCESS.named("user-rate-in").takes("RATE").rare();
        /// Rate limit for bytes to the clients of each user
        rate_out: Value<UserRate> => ACCESS.named("user-rate-out").takes("RATE").rare();
        /// Bytes that each user may use, such as 10GB/day or 100GB/month, in both directions
        /// together. Needs --quota-file. May be given once per period
        quota: List<UserQuota>
            => ACCESS.named("user-quota").takes("QUOTA").rare().requires("quota-file");
    }

    User("user", "a table [[user]]") {
        name: Value<UserName>;
        max_conns: Value<UserSessions>;
        rate_in: Value<UserRate>;
        rate_out: Value<UserRate>;
        allow_private: List<Private>;
        to_allow: List<Rule>;
        to_deny: List<Rule>;
        quota: List<UserQuota>;
    }

    /// The clients of some networks, which are a user.
    Client("client", "a table [[client]]") {
        name: Value<Name>;
        from: List<Network>;
        max_conns: Value<UserSessions>;
        rate_in: Value<UserRate>;
        rate_out: Value<UserRate>;
        allow_private: List<Private>;
        to_allow: List<Rule>;
        to_deny: List<Rule>;
        quota: List<UserQuota>;
    }

    Service("service", "a table [[service]]") {
        name: Value<Name>;
        kind: Value<Choice<KindArg>>;
        /// Address to listen on: `:PORT` (all addresses), `IP:PORT`, `[IPV6]:PORT`, `NAME:PORT`,
        /// `unix:PATH[,mode=0660]`, `unix:@NAME` or `fd:NAME`. `PORT-PORT` is a range. May be
        /// repeated
        listen: List<Listen> => OPTIONS.takes("ADDR").with(listen);
        /// Forward UDP datagrams instead of TCP connections
        udp: Value<Flag> = (false) => OPTIONS.only_for(FORWARDERS);
        /// Target: `HOST:PORT`, `unix:PATH`, `unix:@NAME` or `srv:NAME`. `tls://` before it: the
        /// program speaks TLS to the target. A range `HOST:PORT-PORT` maps listening ports one to
        /// one. May be repeated: each client then gets one of these backends. `,weight=N`,
        /// `,max-conns=N` and `,backup` may follow
        to: List<Remote>
            => OPTIONS.only_for(FORWARDERS).named("remote").takes("HOST:PORT")
                .with(|arg, _| arg.short('r').visible_alias("to").required(true));
        /// Target for a name: `NAME=HOST:PORT`. `*.NAME` means all names below NAME,
        /// `NAME/PROTOCOL` only clients that offer this protocol (ALPN). With `,tls=terminate`
        /// after it, the program terminates the TLS of these clients. May be repeated
        route: List<Route>
            => OPTIONS.only_for(ROUTERS).takes("NAME=HOST:PORT").with(|arg, _| arg.required(true));
        /// Target for clients without a route, also for those that state no name [default: refuse
        /// them]
        default_target: Value<SingleTarget> => OPTIONS.only_for(ROUTERS).takes("HOST:PORT");
        /// Target for clients that do not speak TLS, such as those of SSH, and for clients that
        /// send nothing within the handshake timeout [default: the default target, but refuse
        /// silent clients]
        not_tls: Value<SingleTarget> => OPTIONS.only_for(ROUTERS).takes("HOST:PORT");
        /// Protocol whose clients ask for TLS before they speak it: `postgres`
        starttls: Value<Choice<StartTlsArg>> => OPTIONS.only_for(ROUTERS).takes("PROTOCOL");
        /// Observer, `HOST:PORT`, that gets a copy of what clients send. It never delays a session:
        /// an observer that is too slow loses its copy
        mirror: Value<Observer> => OPTIONS.only_for(FIXED).takes("HOST:PORT").rare();
        /// Share of the sessions that are mirrored, in per cent
        mirror_share: Value<Percent> = "100"
            => OPTIONS.only_for(FIXED).takes("PERCENT").rare().requires("mirror");
        /// How to spread clients over several backends
        // Sessions differ in length, so equal numbers of new sessions are not equal load. Backends
        // with equal numbers of sessions take turns, so short sessions are spread as by
        // `round-robin`.
        balance: Value<Choice<Policy>> = "least-conn" => BACKENDS.takes("POLICY").rare();
        /// Make every address of a name a backend of its own, and look the name up again when its
        /// TTL ends
        each_address: Value<Flag> = (false) => BACKENDS.rare();
        /// Maximum number of clients that wait for a backend if all of them have `,max-conns=N`
        /// sessions. Further clients are refused
        queue: Value<Queue> = "1024" => BACKENDS.takes("N").rare();
        /// Number of failures after which a backend is ejected: it gets no clients for a while; 0 =
        /// off. A connection that succeeds cancels one failure
        // One failure may be an accident, and each one costs only an attempt.
        eject_after: Value<EjectAfter> = "3" => BACKENDS.takes("N").rare();
        /// Time of the first ejection. Each further one takes twice as long, up to 2m
        // A backend that restarts is soon back, and one that does not doubles the time.
        eject_time: Value<PositiveTime> = "5s" => BACKENDS.takes("TIME").rare();
        /// Largest share of the backends that is ejected at the same time, in per cent
        // One of two backends may be ejected, two of three, and three of four.
        eject_max: Value<Percent> = "75" => BACKENDS.takes("PERCENT").rare();
        /// Check each backend: `connect`, `tls` (with a valid certificate), `tls-hello` (any
        /// answer), `http:/PATH` or `send:TEXT`. A backend whose checks fail gets no clients
        check: Value<Check> => BACKENDS.takes("CHECK");
        /// What a check expects: an HTTP status such as `200` or `200-299`, or bytes of the answer
        /// to `send:` such as `+PONG` [default: 200-399, or nothing]
        check_expect: Value<Expected> => BACKENDS.takes("TEXT").rare().requires("check");
        /// Time between two checks of a backend, and time limit for a check
        // The three defaults of checks are those of HAProxy.
        check_interval: Value<PositiveTime> = "2s"
            => BACKENDS.takes("TIME").rare().requires("check");
        /// Number of good checks in a row after which a backend is up
        check_rise: Value<PerClient> = "2" => BACKENDS.takes("N").rare().requires("check");
        /// Number of failed checks in a row after which a backend is down
        check_fall: Value<PerClient> = "3" => BACKENDS.takes("N").rare().requires("check");
        /// Time over which a backend that is up again gets its whole share of clients; 0 = off
        // With `least-conn`, a backend without sessions would otherwise get all new clients.
        slow_start: Value<Time> = "10s" => BACKENDS.takes("TIME").rare();
        /// User file with one `NAME:HASH` per line. `spliceway user add` writes it
        auth_file: Value<File> => ACCESS.takes("FILE");
        /// Name and password of a single user. Everybody on this machine can read a command line,
        /// so prefer the variable or --auth-file
        auth: Value<Auth>
            => ACCESS.takes("USER:PASSWORD").rare()
                .with(|arg, _| arg.conflicts_with("auth-file").env(AUTH_VARIABLE).hide_env_values(true));
        /// Longest wait for an address after wrong passwords; 0 = off. The first three are free.
        /// The fourth costs 1s, and each further one doubles the wait
        auth_penalty: Value<Time> = "1m" => ACCESS.takes("TIME").rare();
        /// Serve clients on other machines without --auth-file or --allow
        open: Value<Flag> = (false) => ACCESS.only_for(FREE).with(open);
        /// Let clients on other machines reach addresses that are not on the public Internet:
        /// loopback, private, link-local, metadata services and others. With a network
        /// (`=10.1.0.0/16`), only addresses in it, and neither loopback nor metadata services. May
        /// be repeated
        allow_private: List<Private>
            => ACCESS.only_for(FREE).takes("CIDR")
                .with(|arg, _| arg.num_args(0..=1).require_equals(true).default_missing_value("true"));
        /// Let clients reach only these targets: `example.com`, `*.example.com`, `10.0.0.0/8` or
        /// `*`, each with ports if needed (`:80,8000-8999`), or `@FILE` with one rule per line. May
        /// be repeated
        to_allow: List<Rule> => ACCESS.only_for(FREE).takes("RULE");
        /// Refuse these targets, in the same form as --to-allow. A rule of --to-allow wins only if
        /// it is more specific. May be repeated
        to_deny: List<Rule> => ACCESS.only_for(FREE).takes("RULE");
        /// Serve connections that a rule with TPROXY sends here, instead of REDIRECT. Needs
        /// CAP_NET_ADMIN
        tproxy: Value<Flag> = (false) => OPTIONS.only_for(TRANSPARENT);
        /// Read the name of the server from the client's TLS or HTTP, look it up, and connect to
        /// its address instead of the client's. --to-allow and --to-deny then apply to names.
        /// Clients that state no name reach only addresses that a rule of --to-allow has
        names: Value<Flag> = (false) => OPTIONS.only_for(TRANSPARENT);
        /// Read names as with --names, but allow what no rule allows. The records of these sessions
        /// have `would_deny`. --to-deny stays in force
        names_learn: Value<Flag> = (false) => OPTIONS.only_for(TRANSPARENT);
        /// Answer DNS queries on this address, by UDP and TCP, for names that a rule of --to-allow
        /// has on some port. Every other name does not exist, except with --names-learn. Needs
        /// --names. May be repeated
        dns_listen: List<Address> => OPTIONS.only_for(TRANSPARENT).takes("ADDR");
        /// Connect to the target from the client's address. Needs CAP_NET_ADMIN and a route
        transparent_source: Value<Flag> = (false)
            => TARGETS.only_for(&[KindArg::Transparent, KindArg::Forward]).with(transparent_source);
        /// Address that SOCKS replies give for UDP ASSOCIATE and BIND [default: the address that
        /// the client reached]
        advertise: Value<Ip> => ACCESS.takes("IP").rare();
        /// Serve only clients from this network. May be repeated
        allow: List<Network> => CLIENTS.takes("CIDR");
        /// Refuse clients from this network, even if --allow includes it. May be repeated
        deny: List<Network> => CLIENTS.takes("CIDR").rare();
        clients: Value<Choice<ClientsArg>>;
        /// Require a PROXY header of this version on every connection: v1, v2 or any
        accept_proxy: Value<AcceptProxy> => CLIENTS.takes("VERSION").rare().requires("proxy-from");
        /// Network of the load balancers that may send PROXY headers. May be repeated
        proxy_from: List<Network> => CLIENTS.takes("CIDR").rare().requires("accept-proxy");
        /// Certificate with its chain, in PEM. Clients then speak TLS, or those of routes with
        /// `,tls=terminate`. May be repeated: the name that a client states selects one, and the
        /// first one is for all others. An OCSP response is in FILE.ocsp, in DER
        tls_cert: List<File> => TLS.takes("FILE");
        /// Private key of the certificate, in PEM. The n-th key belongs to the n-th certificate
        /// [default: the file of the certificate]
        tls_key: List<File> => TLS.takes("FILE");
        /// Folder with further certificates: NAME.pem, NAME.crt or NAME.cert, with the key in
        /// NAME.key or in the same file
        tls_dir: Value<File> => TLS.takes("FOLDER");
        /// Name for which an ACME server, such as Let's Encrypt, issues a certificate. Clients then
        /// speak TLS. May be repeated. Needs --acme-state and --acme-accept-terms
        acme: List<AcmeName> => TLS.takes("NAME")
            .with(|arg, _| arg.conflicts_with_all(["tls-cert", "tls-key", "tls-dir"]));
        /// Oldest version of TLS: 1.2 or 1.3
        tls_min: Value<Choice<TlsMinArg>> = "1.2" => TLS.takes("VERSION").rare();
        /// Protocol for ALPN, such as `h2` or `http/1.1`, the best first. May be repeated
        tls_alpn: List<Protocol> => TLS.takes("PROTOCOL").rare();
        /// Keys of tickets, so that clients resume their sessions on each machine with this file.
        /// Each line has a key, as `openssl rand -base64 32` writes it. The first one encrypts
        /// [default: random keys]
        tls_ticket_key: Value<File> => TLS.takes("FILE").rare();
        /// What a client gets that states an unknown name
        tls_unknown_name: Value<Choice<UnknownNameArg>> = "first"
            => TLS.takes("ANSWER").rare();
        /// CA whose certificates clients must have, in PEM. The name in the certificate is then the
        /// user, and a proxy needs no passwords. May be repeated
        tls_client_ca: List<File> => TLS.takes("FILE");
        /// Whether every client needs a certificate. `optional` also serves clients without one,
        /// whatever `--tls-client-allow` says
        tls_client_verify: Value<Choice<ClientVerifyArg>> = "required"
            => TLS.takes("WHEN").rare().requires("tls-client-ca");
        /// Certificates of clients that the CA has revoked (CRL), in PEM. May be repeated: each CA
        /// of a chain then needs its list
        tls_client_crl: List<File> => TLS.takes("FILE").rare().requires("tls-client-ca");
        /// Serve only clients whose certificate has one of these names: `DNS:*.example.com`,
        /// `EMAIL:NAME@HOST`, `URI:URI`, `CN:NAME` or `SHA256:FINGERPRINT`. May be repeated
        tls_client_allow: List<ClientCertRule> => TLS.takes("RULE").rare().requires("tls-client-ca");
        /// Proxy to connect through: `socks5://[USER:PASSWORD@]HOST[:PORT]`, `socks5h://…` or
        /// `http://…`. With TLS to the proxy: `https://…`, `socks5+tls://…` or `socks5h+tls://…`.
        /// May be repeated to form a chain. In the variable, spaces separate the proxies
        upstream_proxy: List<Upstream>
            => TARGETS.takes("URL")
                .with(|arg, _| arg.short('x').env(UPSTREAM_VARIABLE).hide_env_values(true).value_delimiter(' '));
        /// CAs of targets that speak TLS (`tls://HOST:PORT`) and of upstream proxies
        /// (`https://…`), in PEM. It may also have the own certificate of a target [default: the
        /// CAs of the system]
        target_tls_ca: Value<File> => TARGET_TLS.takes("FILE");
        /// Name that the certificate of a target must have, and that the target is told (SNI)
        /// [default: the name or the address of the target]
        target_tls_name: Value<CertificateName> => FIXED_TLS.takes("NAME");
        /// Protocol to offer a target (ALPN), such as `h2`. May be repeated. `pass` offers the
        /// protocol on which the client has agreed
        target_tls_alpn: List<Protocol> => FIXED_TLS.takes("PROTOCOL");
        /// Certificate with its chain, in PEM, for targets and upstream proxies that ask for one
        target_tls_cert: Value<File> => TARGET_TLS.takes("FILE");
        /// Private key of that certificate, in PEM [default: that in the file of the certificate]
        target_tls_key: Value<File> => TARGET_TLS.takes("FILE").requires("target-tls-cert");
        /// Whether targets and upstream proxies must prove who they are. `off` lets anybody on the
        /// way read and change what passes
        target_tls_verify: Value<Choice<OnOffArg>> = "on" => TARGET_TLS.takes("WHEN");
        /// Send a PROXY header of this version to targets: v1, v2 or v2-tls. The last one also has
        /// the TLS version, the cipher, the certificate's name, SNI and ALPN of the client
        send_proxy: Value<SendProxy> => TARGETS.takes("VERSION").rare();
        /// DNS resolver to use: `auto` (as glibc, with a cache), `system` (the C library), or
        /// servers in their order, `IP[:PORT],…`
        dns: Value<Resolver> = "auto" => TARGETS.takes("RESOLVER").rare();
        /// Connect from this source address. May be given once per address family. A family without
        /// a source address is then not used
        bind_source: List<Ip> => TARGETS.takes("IP").rare();
        /// Connect through this network interface
        bind_interface: Value<Interface> => TARGETS.takes("NAME").rare();
        /// Mark packets to targets (SO_MARK) for routing and firewalls: 100 or 0x64
        mark: Value<Mark> => TARGETS.takes("N").rare();
        /// Rate limit for bytes from clients: `10MB` for the whole service, `10MB:client` per
        /// client address, `10MB:connection` per connection. May be repeated
        rate_in: List<Rate> => LIMITS.takes("RATE").rare();
        /// Rate limit for bytes to clients, in the same form as --rate-in
        rate_out: List<Rate> => LIMITS.takes("RATE").rare();
        backend: Vec<Backend> => FlagSpec::NONE.only_for(FORWARDERS);
    }

    Backend("service.backend", "a table [[service.backend]]") {
        to: Value<Remote>;
        weight: Value<Weight>;
        backup: Value<Flag>;
        max_conns: Value<PerClient>;
    }
}

impl Setting for Vec<Backend> {
    type Parsed = ();

    fn offset(&self) -> Option<usize> {
        self.iter().find_map(Backend::at)
    }
}

/// The tables whose keys have flags, and those that have keys of their own.
const ALL: [&[Key]; 13] = [
    Service::KEYS,
    Backend::KEYS,
    ListenDefaults::KEYS,
    DialDefaults::KEYS,
    UserDefaults::KEYS,
    User::KEYS,
    Client::KEYS,
    Timeouts::KEYS,
    Limits::KEYS,
    Engine::KEYS,
    Acme::KEYS,
    Admin::KEYS,
    Log::KEYS,
];

/// Returns all keys of all tables.
pub(crate) fn keys() -> impl Iterator<Item = &'static Key> {
    ALL.into_iter().flatten()
}

/// Returns the key whose flag and help stand for this key. Keys of several tables are declared in
/// one of them.
pub(crate) fn declared(table: &str, name: &str) -> Option<&'static Key> {
    let tables = match table {
        "user" | "client" => ["defaults.user", "service"],
        "defaults.listen" | "defaults.dial" | "service.backend" => ["service"; 2],
        table => [table; 2],
    };
    let mut keys = tables
        .into_iter()
        .flat_map(|table| keys().filter(move |key| key.table == table));
    keys.find(|key| key.name == name && key.long().is_some())
}

impl Client {
    /// Returns the table of the user that these clients are.
    pub(crate) fn into_user(self) -> User {
        User {
            name: self.name.map(Value::retyped),
            max_conns: self.max_conns,
            rate_in: self.rate_in,
            rate_out: self.rate_out,
            allow_private: self.allow_private,
            to_allow: self.to_allow,
            to_deny: self.to_deny,
            quota: self.quota,
        }
    }
}

impl Backend {
    /// Returns the offset of a value in the table.
    pub(crate) fn at(&self) -> Option<usize> {
        self.given().find_map(|(_, at)| at)
    }
}

fn processors() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
