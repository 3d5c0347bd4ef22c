//! The kinds of values: one line for each, with its parser.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{EnumValueParser, TypedValueParser, ValueParser};
use ipnet::IpNet;
use spliceway_protocol::address::{ListenAddress, ListenRange, Target};
use spliceway_protocol::proxy;

use super::value::{Form, List, Value, Word};
use super::values::{self, PrivateArg, RuleArg};
use crate::access::accounts::Quota;
use crate::access::rates::{ByteRate, RateArg};
use crate::log::AccessLog;
use crate::reach::balance::{BackendSettings, Probe};
use crate::reach::dial::{Destination, ResolverSettings, UpstreamProxy};
use crate::reach::sni;
use crate::tls::client::PeerName;
use crate::tls::client_rule::ClientRule;

/// The variable for the name and the password of a single user.
pub(crate) const AUTH_VARIABLE: &str = "SPLICEWAY_AUTH";
/// The variable for upstream proxies, separated by spaces.
pub(crate) const UPSTREAM_VARIABLE: &str = "SPLICEWAY_UPSTREAM_PROXY";

macro_rules! words {
    ($($(#[$doc:meta])* $word:ident: $parsed:ty = $form:ident, $parse:expr;)+) => {$(
        $(#[$doc])*
        pub(crate) enum $word {}

        impl Word for $word {
            type Parsed = $parsed;
            const FORM: Form = Form::$form;

            fn parse(text: &str) -> Result<Self::Parsed, String> {
                $parse(text).map_err(Into::into)
            }
        }
    )+};
}

words! {
    /// A time that may be zero.
    Time: Duration = Text, values::time;
    PositiveTime: Duration = Text, values::positive_time;
    SpinTime: Duration = Text, values::spin;
    RecordTime: Duration = Text, values::record_time;
    /// A number of bytes, which may be zero.
    Size: u64 = Text, values::size;
    Sessions: NonZeroUsize = Number, values::count;
    PerClient: NonZeroU32 = Number, values::count;
    /// A limit on the sessions of a user. `None` means no limit.
    UserSessions: Option<NonZeroU32> = Number, values::unless_none;
    Descriptors: u64 = Number, values::descriptors;
    Workers: NonZeroUsize = Number, values::workers;
    Mark: u32 = Number, values::mark;
    Flag: bool = Flag, values::flag;
    Name: Box<str> = Text, values::name;
    Listen: ListenRange = Text, values::listen;
    /// An address with one port.
    Address: ListenAddress = Text, values::listen;
    AdminSocket: ListenAddress = Text, values::admin;
    /// The name of a host in a URL.
    Host: Box<str> = Text, values::host;
    /// A target, which may have options.
    Remote: BackendSettings = Text, values::remote;
    /// A check of backends, without what it expects.
    Check: Probe = Text, str::parse;
    Expected: Box<str> = Text, values::text;
    Queue: usize = Number, values::queue;
    /// A number of failures. 0 means that no number is enough.
    EjectAfter: u32 = Number, values::eject_after;
    Percent: u32 = Number, values::percent;
    /// One target, without options.
    SingleTarget: Destination = Text, values::target;
    /// The observer of a mirror.
    Observer: Target = Text, values::observer;
    /// A name of TLS clients, and its target.
    Route: sni::Route = Text, values::route;
    Weight: NonZeroU32 = Number, values::weight;
    Network: IpNet = Text, values::network;
    /// Targets that are not public: all of them, none, or a network.
    Private: PrivateArg = FlagOrText, values::private;
    /// A target rule, or a file of them.
    Rule: RuleArg = Text, values::rule;
    Rate: RateArg = Text, str::parse;
    UserName: Box<str> = Text, values::user;
    /// A rate that the sessions of a user share. `None` means no limit.
    UserRate: Option<ByteRate> = Text, values::unless_none;
    /// The bytes that a user may use. `None` means no quota.
    UserQuota: Option<Quota> = Text, values::unless_none;
    Resolver: ResolverSettings = Text, values::resolver;
    Ip: IpAddr = Text, values::ip;
    /// The name of a network interface.
    Interface: Box<str> = Text, values::interface;
    File: PathBuf = Text, values::path;
    /// The name in a certificate.
    CertificateName: PeerName = Text, str::parse;
    /// A name for which ACME issues a certificate.
    AcmeName: Box<str> = Text, values::acme_name;
    /// The URL of an ACME server.
    Directory: Box<str> = Text, values::directory;
    Email: Box<str> = Text, values::email;
    /// The name of a protocol for ALPN.
    Protocol: Box<str> = Text, values::protocol;
    /// A rule for the certificates of clients.
    ClientCertRule: ClientRule = Text, str::parse;
    /// Where the records of sessions go.
    Records: AccessLog = Text, values::access_log;
    AcceptProxy: proxy::Accept = Text, str::parse;
    SendProxy: proxy::Version = Text, str::parse;
}

/// The name and the password of a user. Its parser is in the settings, because its error must not
/// repeat the text.
pub(crate) enum Auth {}

impl Word for Auth {
    type Parsed = Box<str>;
    const FORM: Form = Form::Secret;

    fn parse(text: &str) -> Result<Self::Parsed, String> {
        Ok(text.into())
    }

    fn variable(_: &Self::Parsed) -> Option<&'static str> {
        Some(AUTH_VARIABLE)
    }
}

/// The URL of an upstream proxy. clap repeats an invalid value in its message, and the value may
/// contain a password, so an invalid URL is a value too.
pub(crate) enum Upstream {}

impl Word for Upstream {
    type Parsed = Result<UpstreamProxy, String>;
    const FORM: Form = Form::Text;

    fn parse(text: &str) -> Result<Self::Parsed, String> {
        Ok(text.parse())
    }

    fn variable(parsed: &Self::Parsed) -> Option<&'static str> {
        let is_public = parsed.as_ref().is_ok_and(|proxy| !proxy.has_credentials());
        (!is_public).then_some(UPSTREAM_VARIABLE)
    }
}

/// One of a few values.
pub(crate) struct Choice<E>(std::marker::PhantomData<E>);

impl<E: ValueEnum + Send + Sync + 'static> Word for Choice<E> {
    type Parsed = E;
    const FORM: Form = Form::Text;

    fn parse(text: &str) -> Result<Self::Parsed, String> {
        E::from_str(text, true).map_err(|_| format!("expected one of {}", Self::choices().join(", ")))
    }

    /// The help lists the values.
    fn parser() -> ValueParser {
        ValueParser::new(EnumValueParser::<E>::new().map(Value::<Self>::chosen))
    }

    fn choices() -> Vec<String> {
        let names = E::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        names.map(|value| value.get_name().to_owned()).collect()
    }
}

impl<E: ValueEnum + Send + Sync + 'static> Value<Choice<E>> {
    pub(crate) fn chosen(choice: E) -> Self {
        let name = choice.to_possible_value().expect("no choice is hidden");
        name.get_name().parse().expect("the name is one of the choices")
    }
}

/// Returns the value with this path made absolute. `before` is what stands before the path.
fn absolute<W: Word>(value: Value<W>, before: &str, path: &Path) -> Value<W> {
    let path = std::path::absolute(path).ok();
    let path = path.and_then(|path| format!("{before}{}", path.to_str()?).parse().ok());
    path.unwrap_or(value)
}

impl Value<Records> {
    /// Returns the same destination, with an absolute path if it is a file.
    pub(crate) fn absolute(self) -> Self {
        match self.parsed() {
            AccessLog::File(path) => absolute(self, "", &path),
            _ => self,
        }
    }

    /// Returns the destination. A relative path in a file starts at the folder of the file.
    pub(crate) fn destination(&self, folder: Option<&Path>) -> AccessLog {
        match (self.parsed(), folder) {
            (AccessLog::File(path), Some(folder)) => AccessLog::File(folder.join(path)),
            (destination, _) => destination,
        }
    }
}

impl Value<File> {
    /// Returns the same file with an absolute path.
    pub(crate) fn absolute(self) -> Self {
        let path = self.parsed();
        absolute(self, "", &path)
    }

    /// Returns the path. A relative path in a file starts at the folder of the file.
    pub(crate) fn path(&self, folder: Option<&Path>) -> PathBuf {
        folder.map_or_else(|| self.parsed(), |folder| folder.join(self.parsed()))
    }
}

impl List<File> {
    /// Returns the same files with absolute paths.
    pub(crate) fn absolute(self) -> Self {
        self.map(Value::<File>::absolute)
    }
}

impl List<Rule> {
    /// Returns the same rules, whose files have absolute paths.
    pub(crate) fn absolute(self) -> Self {
        self.map(|value| match value.parsed() {
            RuleArg::File(path) => absolute(value, values::FILE_OF_RULES, &path),
            RuleArg::Rule(_) => value,
        })
    }
}
