//! The TLS of a configuration, for checks of its certificates.

use std::path::Path;

use super::backends::backends;
use super::config::{self, Config, KindArg, Service, Value, parsed};
use super::faults::Faults;
use super::kind::kind;
use super::origin::Origin;
use super::settle::dial;
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
/// Returns all faults because of which the services are unknown, with their places.
pub(crate) fn tls_files(path: &Path) -> Result<Vec<TlsFiles>, String> {
    let mut faults = Faults::default();
    let (config, sources) = config::source::read(path, &config::source::variable, &mut faults)?;
    let origin = Origin::Files(sources);
    let mut services = Vec::new();
    let tables = if faults.have_all_tables() {
        &*config.service
    } else {
        &[]
    };
    for table in tables {
        let service = table.get_ref().clone().or(&config.defaults);
        let location = table.span().start;
        let mut faults = Faults::default();
        let files = of_service(&service, location, &config, &origin, &mut faults);
        if faults.is_empty() {
            services.extend(files);
        } else {
            services.push(TlsFiles {
                service: name(&service).unwrap_or_else(|| "without a name".to_owned()),
                fault: Some(origin.show_all(&faults.sorted())),
                ..TlsFiles::default()
            });
        }
    }
    Ok(services)
}

fn name(service: &Service) -> Option<String> {
    let name = service.name.as_ref().map(|name| name.parsed().to_string());
    name.or_else(|| Some(service.kind.as_ref()?.text().to_owned()))
}

fn of_service(
    service: &Service,
    location: usize,
    config: &Config,
    origin: &Origin,
    faults: &mut Faults,
) -> Option<TlsFiles> {
    let is_forward = parsed(&service.kind) == Some(KindArg::Forward);
    let backends = if is_forward {
        backends(service, faults)
    } else {
        Vec::new()
    };
    let kind = kind(service, location, &backends, faults)?;
    let dial = dial(service, config.timeouts.connect(), faults);
    let probe = service.check.as_ref().map(Value::parsed);
    let servers = Servers {
        kind: &kind,
        backends: &backends,
        upstreams: &dial.upstreams,
        check: probe.as_ref(),
    };
    // A warning about the settings has a finding of its own.
    let client = target_tls::settings(service, &servers, origin, &mut Vec::new());
    let client = faults.keep(client).flatten();
    let server = faults.keep(tls::settings(service, &config.acme, origin)).flatten();
    if server.is_none() && client.is_none() {
        return None;
    }
    Some(TlsFiles {
        service: name(service).unwrap_or_default(),
        server: server.map(|(settings, _)| settings),
        client: client.map(|(settings, _)| settings),
        fault: None,
    })
}
