//! Turns the command line into settings.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use spliceway_protocol::address::ListenRange;

use super::{Action, Cli, Command, CommonArgs, DialArgs, ForwardArgs, ProxyArgs, ProxyCommand};
use crate::auth::{self, Stored, Users};
use crate::dial::{CHAIN_MAX, DialSettings, SocketSettings, UpstreamProxy};
use crate::listener::KEEPALIVE;
use crate::policy::ClientPolicy;
use crate::rates::Rates;
use crate::settings::{AcceptProxy, Kind, Limits, ServiceSettings, Settings, Timeouts};

impl Cli {
    /// Checks the parsed arguments and converts them to an action.
    ///
    /// # Errors
    /// Returns an error for a fault that clap cannot detect.
    pub(super) fn settle(self) -> Result<Action, String> {
        let settings = match (self.command, self.forward) {
            (Some(Command::HashPassword), _) => return Ok(Action::HashPassword),
            (Some(Command::Forward { forward, common }), _) => forward.settle(common),
            (Some(Command::Socks5(command)), _) => command.settle(Kind::Socks5),
            (Some(Command::Http(command)), _) => command.settle(Kind::Http),
            (Some(Command::Mixed(command)), _) => command.settle(Kind::Mixed),
            (None, Some(forward)) => forward.settle(self.common),
            (None, None) => unreachable!("without a subcommand, clap requires --listen and --remote"),
        };
        Ok(Action::Serve(Box::new(settings?)))
    }
}

impl ForwardArgs {
    fn settle(self, common: CommonArgs) -> Result<Settings, String> {
        let ports = self.remote.count;
        if let Some(range) = self.listen.iter().find(|range| ports > 1 && range.count != ports) {
            return Err(format!(
                "--remote has {ports} ports, and --listen {range} has {}: expected the same number, or one remote port",
                range.count
            ));
        }
        // A PROXY header is the only handshake that a forwarder has.
        let mut settings = common.settle(Kind::Forward(self.remote), self.listen, PROXY_HEADER_TIME)?;
        // The operator has chosen the target, and clients cannot choose another one.
        settings.services[0].open = true;
        settings.services[0].allow_private = true;
        Ok(settings)
    }
}

const CLEAR_SECRET: &str = "--auth or SPLICEWAY_AUTH: the password is not hashed. Whoever can read the command line or the \
environment of this process can read it; `spliceway hash-password` makes hashes";

/// The time limit for a PROXY header, which a load balancer sends first.
const PROXY_HEADER_TIME: Duration = Duration::from_secs(10);

impl ProxyCommand {
    fn settle(self, kind: Kind) -> Result<Settings, String> {
        let Self { listen, proxy, common } = self;
        let (users, warnings) = proxy.users()?;
        let mut settings = common.settle(kind, listen, proxy.handshake_timeout)?;
        let service = &mut settings.services[0];
        service.users = users;
        service.auth_penalty = proxy.auth_penalty;
        service.open = proxy.open;
        service.allow_private = proxy.allow_private;
        service.advertise = proxy.advertise;
        settings.warnings.extend(warnings);
        Ok(settings)
    }
}

impl ProxyArgs {
    /// Returns the users, and warnings about how their passwords are stored.
    fn users(&self) -> Result<(Option<Arc<Users>>, Vec<String>), String> {
        let mut warnings = Vec::new();
        let users = match (&self.auth, &self.auth_file) {
            (None, None) => return Ok((None, warnings)),
            (Some(user), _) => {
                let (name, stored) =
                    auth::user(user).map_err(|expected| format!("--auth or SPLICEWAY_AUTH: {expected}"))?;
                warnings.extend(matches!(stored, Stored::Clear(_)).then(|| CLEAR_SECRET.to_owned()));
                vec![(name.as_bytes().into(), stored)]
            }
            (None, Some(path)) => {
                let file = auth::read(path).map_err(|error| format!("--auth-file {error}"))?;
                let path = path.display();
                if file.clear > 0 {
                    warnings.push(format!(
                        "--auth-file {path}: {} of {} passwords are not hashed; use `spliceway hash-password`",
                        file.clear,
                        file.users.len()
                    ));
                }
                warnings.extend(file.exposed.map(|mode| {
                    let what = if mode & 0o022 == 0 { "read it" } else { "add users" };
                    format!("--auth-file {path}: mode {mode:04o} lets others {what}; expected 0600 (chmod 600 {path})")
                }));
                file.users
            }
        };
        let users = Users::new(users).map_err(|error| format!("the system provides no random numbers: {error}"))?;
        Ok((Some(Arc::new(users)), warnings))
    }
}

impl CommonArgs {
    fn settle(self, kind: Kind, listen: Vec<ListenRange>, handshake: Duration) -> Result<Settings, String> {
        let unless_zero = |time: Duration| (!time.is_zero()).then_some(time);
        let dial = self.dial.settle(self.times.connect_timeout)?;
        let accept_proxy = self.clients.accept_proxy.map(|versions| AcceptProxy {
            versions,
            from: self.clients.proxy_from,
        });
        let rates = |option: &str, typed: &[_]| Rates::from_args(typed).map_err(|wrong| format!("{option}: {wrong}"));
        let service = ServiceSettings {
            kind,
            listen,
            clients: ClientPolicy::new(self.clients.allow, self.clients.deny),
            users: None,
            auth_penalty: Duration::ZERO,
            open: false,
            allow_private: false,
            accept_proxy,
            send_proxy: self.dial.send_proxy,
            dial,
            rates_in: rates("--rate-in", &self.limits.rate_in)?,
            rates_out: rates("--rate-out", &self.limits.rate_out)?,
            advertise: None,
        };
        Ok(Settings {
            services: vec![service],
            timeouts: Timeouts {
                handshake,
                connect: self.times.connect_timeout,
                idle: unless_zero(self.times.idle_timeout),
                half_close: unless_zero(self.times.half_close_timeout),
                drain: self.times.drain_timeout,
            },
            limits: Limits {
                max_conns: self.limits.max_conns,
                max_conns_per_ip: self.limits.max_conns_per_ip,
                max_dials_per_ip: self.limits.max_dials_per_ip,
                descriptors: self.limits.nofile,
            },
            engine: self.engine.splice.into(),
            pipe_size: self.engine.pipe_size.into(),
            spin: self.engine.spin,
            workers: self.engine.workers.unwrap_or_else(processors),
            log_level: self.watch.log_level.into(),
            metrics: self.watch.metrics,
            warnings: Vec::new(),
        })
    }
}

impl DialArgs {
    fn settle(&self, timeout: Duration) -> Result<DialSettings, String> {
        let wrong = |expected| format!("--upstream-proxy: {expected}");
        let upstreams: Vec<UpstreamProxy> = self
            .upstream_proxy
            .iter()
            .map(|url| url.parse().map_err(wrong))
            .collect::<Result<_, _>>()?;
        if upstreams.len() > CHAIN_MAX {
            return Err(format!(
                "--upstream-proxy: expected a chain of at most {CHAIN_MAX} proxies"
            ));
        }
        let (mut source_v4, mut source_v6) = (None, None);
        for ip in &self.bind_source {
            let before = match ip {
                IpAddr::V4(ip) => source_v4.replace(*ip).is_some(),
                IpAddr::V6(ip) => source_v6.replace(*ip).is_some(),
            };
            if before {
                return Err("--bind-source: expected at most one address of each family".to_owned());
            }
        }
        Ok(DialSettings {
            resolver: self.dns.clone(),
            sockets: SocketSettings {
                source_v4,
                source_v6,
                interface: self.bind_interface.as_deref().map(Into::into),
                mark: self.mark,
                keepalive: Some(KEEPALIVE),
            },
            upstreams,
            timeout,
        })
    }
}

fn processors() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    pub(crate) fn typed(line: &str) -> Result<Settings, String> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
        match cli.settle()? {
            Action::Serve(settings) => Ok(*settings),
            Action::HashPassword => Err("no settings".to_owned()),
        }
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
    fn zero_turns_off_only_optional_timeouts() {
        let settings = typed("spliceway socks5 --idle-timeout 0 --half-close-timeout 0").unwrap();
        assert_eq!((settings.timeouts.idle, settings.timeouts.half_close), (None, None));
        assert!(typed("spliceway socks5 --connect-timeout 0").is_err());
        assert!(typed("spliceway socks5 --handshake-timeout 0s").is_err());
        assert!(typed("spliceway socks5 --drain-timeout 0").is_ok());
    }

    #[test]
    fn a_port_range_maps_to_an_equal_range_or_to_one_port() {
        assert!(typed("spliceway -l :8000-8009 -r a:9000-9009").is_ok());
        assert!(typed("spliceway -l :8000-8009 -r a:9000").is_ok());
        let wrong = typed("spliceway -l :8000-8009 -r a:9000-9001").unwrap_err();
        assert!(
            wrong.contains("--remote has 2 ports, and --listen :8000-8009 has 10"),
            "{wrong}"
        );
        assert!(typed("spliceway -l :8000 -r a:9000-9001").is_err());
    }

    #[test]
    fn accept_proxy_and_proxy_from_require_each_other() {
        assert!(typed("spliceway socks5 --accept-proxy v2").is_err());
        assert!(typed("spliceway socks5 --proxy-from 10.0.0.0/8").is_err());
        assert!(typed("spliceway socks5 --accept-proxy any --proxy-from 10.0.0.0/8").is_ok());
    }

    #[test]
    fn invalid_command_lines_are_refused() {
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
            "spliceway socks5 --allow 10.0.0.0/33",
            "spliceway socks5 --max-conns 0",
            "spliceway socks5 --rate-in 10",
            "spliceway socks5 --rate-in 1MB --rate-in 2MB",
            "spliceway socks5 --auth ann",
            "spliceway socks5 --auth ann:a --auth-file users",
            "spliceway socks5 --dns nonsense",
            "spliceway socks5 -x ftp://a:1",
        ] {
            assert!(typed(line).is_err(), "{line}");
        }
    }
}
