//! The flags of a service, from the declarations of keys.

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use crate::settings::config::{Config, KindArg, Value, keys};

/// The order of the flags in the help. A flag that is not here follows the others.
const ORDER: &str = "
    listen remote balance check check-expect check-interval check-rise check-fall slow-start
    each-address queue eject-after eject-time eject-max route default-target not-tls starttls
    mirror mirror-share tproxy names names-learn dns-listen transparent-source udp udp-timeout
    auth-file auth auth-penalty open allow-private to-allow to-deny advertise user-max-conns
    user-rate-in user-rate-out user-quota quota-file
    handshake-timeout allow deny accept-proxy proxy-from tls-cert tls-key tls-dir acme acme-state
    acme-accept-terms acme-directory acme-email acme-ca acme-http tls-min tls-alpn tls-unknown-name
    tls-ticket-key tls-client-ca tls-client-verify tls-client-crl tls-client-allow upstream-proxy
    target-tls-ca target-tls-name target-tls-alpn target-tls-cert target-tls-key target-tls-verify
    send-proxy dns bind-source bind-interface mark connect-timeout idle-timeout half-close-timeout
    max-session drain-timeout max-conns max-conns-per-ip max-dials-per-ip rate-in rate-out nofile
    splice pipe-size ktls ktls-after spin workers metrics status-page status-host admin admin-remote
    admin-tokens pid-file log-level log-format access-log access-log-format record-interval
";

/// What the flags of a service say.
#[derive(Debug)]
pub(super) struct ServiceArgs(Config);

impl ServiceArgs {
    pub(super) fn config(self, kind: KindArg) -> Config {
        let Self(mut config) = self;
        for service in &mut config.service {
            service.get_mut().kind = Some(Value::chosen(kind));
        }
        config
    }
}

impl Args for ServiceArgs {
    /// The name of a command is a kind of service. The program without a command forwards.
    fn augment_args(command: Command) -> Command {
        let kind = KindArg::from_str(command.get_name(), false).unwrap_or(KindArg::Forward);
        let mut keys: Vec<_> = keys().filter(|key| key.is_of(kind)).collect();
        let order: Vec<_> = ORDER.split_whitespace().map(Some).collect();
        keys.sort_by_cached_key(|key| order.iter().position(|flag| *flag == key.long()).unwrap_or(usize::MAX));
        command.args(keys.into_iter().filter_map(|key| key.arg(kind)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServiceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        Ok(Self(Config::take(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
