//! The TLS of a configuration, for checks of its certificates.

use std::path::Path;

use super::backends::backends;
use super::config::{self, Config, Service, Value};
use super::origin::{Fault, Origin};
use super::service::Kind;
use super::settle::{dial, kind};
use super::target_tls::{self, Servers};
use super::tls;
use crate::tls::client::ClientSettings;
use crate::tls::server::ServerSettings;

/// The TLS of a service. None of its files is read.
#[derive(Debug, Default)]
pub(crate) struct TlsFiles {
    /// The name or the kind of the service.
    pub(crate) service: String,
    /// The TLS of its clients.
    pub(crate) server: Option<ServerSettings>,
    /// TLS to its targets and its upstream proxies.
    pub(crate) client: Option<ClientSettings>,
    /// What is wrong with the settings, with its place. The files are then unknown.
    pub(crate) fault: Option<String>,
}

/// Returns the TLS of each service in these files that has some, or a fault.
///
/// # Errors
/// Returns the first fault because of which the services are unknown, with its place.
pub(crate) fn tls_files(path: &Path) -> Result<Vec<TlsFiles>, String> {
    let (config, sources) = config::source::read(path, &config::source::variable)?;
    let origin = Origin::Files(sources);
    let services = config.service.iter().map(|table| {
        let service = table.get_ref().clone().or(&config.defaults);
        let location = table.span().start;
        of_service(&service, location, &config, &origin).unwrap_or_else(|fault| {
            let service = name(&service).unwrap_or_else(|| "without a name".to_owned());
            Some(TlsFiles {
                service,
                fault: Some(origin.show(&fault)),
                ..TlsFiles::default()
            })
        })
    });
    Ok(services.flatten().collect())
}

fn name(service: &Service) -> Option<String> {
    let name = service.name.as_ref().map(|name| name.parsed().to_string());
    name.or_else(|| Some(service.kind.as_ref()?.text().to_owned()))
}

fn of_service(service: &Service, location: usize, config: &Config, origin: &Origin) -> Result<Option<TlsFiles>, Fault> {
    let kind = kind(service, location)?;
    let is_forward = matches!(kind, Kind::Forward(_));
    let backends = if is_forward { backends(service)? } else { Vec::new() };
    let dial = dial(service, config.timeouts.connect())?;
    let probe = service.check.as_ref().map(Value::parsed);
    let servers = Servers {
        kind: &kind,
        backends: &backends,
        upstreams: &dial.upstreams,
        check: probe.as_ref(),
    };
    // A warning about the settings has a finding of its own.
    let client = target_tls::settings(service, &servers, origin, &mut Vec::new())?;
    let server = tls::settings(service, &config.acme, origin)?;
    if server.is_none() && client.is_none() {
        return Ok(None);
    }
    Ok(Some(TlsFiles {
        service: name(service).unwrap_or_default(),
        server: server.map(|(settings, _)| settings),
        client: client.map(|(settings, _)| settings),
        fault: None,
    }))
}
