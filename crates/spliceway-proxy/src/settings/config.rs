//! The configuration: what the command line and files can say.
//!
//! ```text
//!   command line ─ cli ────┐
//!                          ├─▶ Config ─ settings/settle ─▶ Settings
//!   files ─ config/source ─┘   (typed)                     (checked, complete)
//! ```
//!
//! A value is parsed here, and every other check is in the second step. Each key has the word of
//! its flag. A new key is a line in a table below, a line in `cli/args.rs`, and its meaning in
//! `settings/settle.rs`.

mod files;
pub(crate) mod keys;
pub(crate) mod source;
mod tree;
mod value;
mod values;
mod words;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::reach::balance::Policy;

pub(super) use files::Sources;
pub(crate) use value::{List, Value, Word};
pub(super) use value::{all, or, parsed};
pub(crate) use values::{KindArg, LogFormatArg, LogLevelArg, PipeSizeArg, PrivateArg, RuleArg, SpliceArg, admin_path};
pub(crate) use words::*;

/// Defines tables whose keys are all optional, and are written only if they have a value.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident($name:literal) { $($key:ident: $value:ty,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields, default, expecting = $name)]
        pub(crate) struct $table {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $key: Option<$value>,
            )+
        }
    )+};
}

/// The tables of all files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) log: Log,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) timeouts: Timeouts,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) limits: Limits,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) engine: Engine,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) admin: Admin,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) defaults: Defaults,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<User>")]
    pub(crate) user: Vec<Spanned<User>>,
    #[schemars(with = "Vec<Service>")]
    pub(crate) service: Vec<Spanned<Service>>,
}

/// What services and users have in common, unless they say otherwise.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table [defaults.listen], [defaults.dial] or [defaults.user]"
)]
pub(crate) struct Defaults {
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) listen: ListenDefaults,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) dial: DialDefaults,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) user: UserDefaults,
}

tables! {
    Log("a table [log]") {
        level: Value<Choice<LogLevelArg>>,
        format: Value<Choice<LogFormatArg>>,
        access: Value<Records>,
        record_interval: Value<RecordTime>,
    }

    Timeouts("a table [timeouts]") {
        connect: Value<PositiveTime>,
        handshake: Value<PositiveTime>,
        idle: Value<Time>,
        half_close: Value<Time>,
        drain: Value<Time>,
        udp: Value<PositiveTime>,
    }

    Limits("a table [limits]") {
        max_conns: Value<Sessions>,
        max_conns_per_ip: Value<PerClient>,
        max_dials_per_ip: Value<PerClient>,
        max_session: Value<Time>,
        nofile: Value<Descriptors>,
        quota_file: Value<File>,
    }

    Engine("a table [engine]") {
        splice: Value<Choice<SpliceArg>>,
        pipe_size: Value<Choice<PipeSizeArg>>,
        spin: Value<SpinTime>,
        workers: Value<Workers>,
    }

    Admin("a table [admin]") {
        metrics: Value<Address>,
        status_page: Value<Flag>,
        status_host: List<Host>,
        socket: Value<AdminSocket>,
    }

    /// The clients of every service.
    ListenDefaults("a table [defaults.listen]") {
        allow: List<Network>,
        deny: List<Network>,
        accept_proxy: Value<AcceptProxy>,
        proxy_from: List<Network>,
    }

    /// The connections of every service to its targets.
    DialDefaults("a table [defaults.dial]") {
        upstream_proxy: List<Upstream>,
        send_proxy: Value<SendProxy>,
        dns: Value<Resolver>,
        bind_source: List<Ip>,
        bind_interface: Value<Interface>,
        mark: Value<Mark>,
        to_allow: List<Rule>,
        to_deny: List<Rule>,
    }

    /// The limits of every user.
    UserDefaults("a table [defaults.user]") {
        max_conns: Value<UserSessions>,
        rate_in: Value<UserRate>,
        rate_out: Value<UserRate>,
        quota: List<UserQuota>,
    }

    User("a table [[user]]") {
        name: Value<UserName>,
        max_conns: Value<UserSessions>,
        rate_in: Value<UserRate>,
        rate_out: Value<UserRate>,
        allow_private: List<Private>,
        to_allow: List<Rule>,
        to_deny: List<Rule>,
        quota: List<UserQuota>,
    }

    Service("a table [[service]]") {
        name: Value<Name>,
        kind: Value<Choice<KindArg>>,
        listen: List<Listen>,
        udp: Value<Flag>,
        to: List<Remote>,
        route: List<Route>,
        default_target: Value<SingleTarget>,
        not_tls: Value<SingleTarget>,
        balance: Value<Choice<Policy>>,
        each_address: Value<Flag>,
        queue: Value<Queue>,
        eject_after: Value<EjectAfter>,
        eject_time: Value<PositiveTime>,
        eject_max: Value<Percent>,
        check: Value<Check>,
        check_expect: Value<Expected>,
        check_interval: Value<PositiveTime>,
        check_rise: Value<PerClient>,
        check_fall: Value<PerClient>,
        slow_start: Value<Time>,
        auth_file: Value<File>,
        auth: Value<Auth>,
        auth_penalty: Value<Time>,
        open: Value<Flag>,
        allow_private: List<Private>,
        to_allow: List<Rule>,
        to_deny: List<Rule>,
        tproxy: Value<Flag>,
        transparent_source: Value<Flag>,
        advertise: Value<Ip>,
        allow: List<Network>,
        deny: List<Network>,
        accept_proxy: Value<AcceptProxy>,
        proxy_from: List<Network>,
        upstream_proxy: List<Upstream>,
        send_proxy: Value<SendProxy>,
        dns: Value<Resolver>,
        bind_source: List<Ip>,
        bind_interface: Value<Interface>,
        mark: Value<Mark>,
        rate_in: List<Rate>,
        rate_out: List<Rate>,
        backend: Vec<Backend>,
    }

    Backend("a table [[service.backend]]") {
        to: Value<Remote>,
        weight: Value<Weight>,
        backup: Value<Flag>,
        max_conns: Value<PerClient>,
    }
}

impl Service {
    /// Takes what the service does not say from the defaults.
    pub(crate) fn or(self, defaults: &Defaults) -> Self {
        let Defaults { listen, dial, user: _ } = defaults;
        // The operator has chosen the target of a forwarder.
        let is_proxy = self.kind.as_ref().is_none_or(|kind| kind.parsed() != KindArg::Forward);
        let rules = |own: Option<List<Rule>>, default: &Option<List<Rule>>| {
            own.or_else(|| default.clone().filter(|_| is_proxy))
        };
        Self {
            allow: self.allow.or_else(|| listen.allow.clone()),
            deny: self.deny.or_else(|| listen.deny.clone()),
            accept_proxy: self.accept_proxy.or_else(|| listen.accept_proxy.clone()),
            proxy_from: self.proxy_from.or_else(|| listen.proxy_from.clone()),
            upstream_proxy: self.upstream_proxy.or_else(|| dial.upstream_proxy.clone()),
            send_proxy: self.send_proxy.or_else(|| dial.send_proxy.clone()),
            dns: self.dns.or_else(|| dial.dns.clone()),
            bind_source: self.bind_source.or_else(|| dial.bind_source.clone()),
            bind_interface: self.bind_interface.or_else(|| dial.bind_interface.clone()),
            mark: self.mark.or_else(|| dial.mark.clone()),
            to_allow: rules(self.to_allow, &dial.to_allow),
            to_deny: rules(self.to_deny, &dial.to_deny),
            ..self
        }
    }
}

impl Backend {
    /// Returns the offset of a value in the table.
    pub(crate) fn at(&self) -> Option<usize> {
        let Self {
            to,
            weight,
            backup,
            max_conns,
        } = self;
        let to = to.as_ref().and_then(Value::at);
        to.or_else(|| weight.as_ref().and_then(Value::at))
            .or_else(|| backup.as_ref().and_then(Value::at))
            .or_else(|| max_conns.as_ref().and_then(Value::at))
    }
}

fn is_default<T: Default + PartialEq>(table: &T) -> bool {
    *table == T::default()
}
