//! TLS to targets and to upstream proxies: what is trusted, and what is negotiated.

use spliceway_protocol::address::Target;

use super::config::{Backend, Config, File, Key, List, OnOffArg, Service, Table, Value, all, parsed};
use super::faults::Fault;
use super::origin::Origin;
use super::service::Kind;
use super::tls::{KeyAt, has_tls, uses_kernel};
use crate::reach::balance::{BackendSettings, Probe};
use crate::reach::dial::UpstreamProxy;
use crate::tls::certificate::PairFiles;
use crate::tls::client::{ClientSettings, OfferedProtocols, Originator, PeerName};

/// The word for the protocol of the client.
const PASS: &str = "pass";

/// What of a service may speak TLS.
pub(super) struct Servers<'a> {
    pub(super) kind: &'a Kind,
    pub(super) backends: &'a [BackendSettings],
    pub(super) upstreams: &'a [UpstreamProxy],
    pub(super) check: Option<&'a Probe>,
}

/// A server that speaks TLS: the key and the place of its address, its address, and its name.
struct Server {
    key: &'static str,
    at: Option<usize>,
    address: String,
    name: PeerName,
}

/// Reads the certificates for targets and upstream proxies. Returns `None` if none of them speaks
/// TLS.
pub(super) fn originator(
    service: &Service,
    servers: &Servers<'_>,
    config: &Config,
    origin: &Origin,
    warnings: &mut Vec<Fault>,
) -> Result<Option<Originator>, Fault> {
    let Some((mut settings, (key, at))) = settings(service, servers, origin, warnings)? else {
        return Ok(None);
    };
    settings.uses_kernel = uses_kernel(&config.engine);
    let originator = Originator::new(settings).map_err(|bad| {
        let files = [
            ("target_tls_ca", &service.target_tls_ca),
            ("target_tls_cert", &service.target_tls_cert),
            ("target_tls_key", &service.target_tls_key),
        ];
        let path = |file: &Value<File>| file.path(origin.folder_of(file.at()).as_deref());
        let mut files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?)));
        let found = files.find(|(_, file)| bad.file() == Some(&*path(file)));
        let (key, at) = found.map_or((key, at), |(key, file)| (key, file.at()));
        Fault::new(at, key, bad.to_string())
    })?;
    let at = service.target_tls_cert.as_ref().and_then(Value::at);
    let doubts = originator.doubts();
    warnings.extend(
        doubts
            .iter()
            .map(|doubt| Fault::new(at, "target_tls_cert", doubt.to_string())),
    );
    Ok(Some(originator))
}

/// Returns how a service speaks TLS to targets and upstream proxies, or `None` if none of them
/// does. No file is read.
pub(super) fn settings(
    service: &Service,
    servers: &Servers<'_>,
    origin: &Origin,
    warnings: &mut Vec<Fault>,
) -> Result<Option<(ClientSettings, KeyAt)>, Fault> {
    let (proxies, targets) = (proxies(service, servers), targets(service, servers));
    if let Some(first) = targets.first().filter(|_| service.udp()) {
        let why = "speaks TLS, which is not for udp: remove tls://, because datagrams have no TLS";
        return Err(Fault::new(first.at, first.key, why));
    }
    if proxies.is_empty() && targets.is_empty() {
        // Every service may say that it would verify.
        let verifies = service.target_tls_verify() == OnOffArg::On;
        let is_default = |key: &Key| key.name == "target_tls_verify" && verifies;
        let mut keys = service
            .given()
            .filter(|(key, _)| key.name.starts_with("target_tls_") && !is_default(key));
        return keys.next().map_or(Ok(None), |(key, at)| {
            let why = "needs a server that speaks TLS: expected a target such as tls://example.com:443, check = \"tls\", \
                       or upstream_proxy = \"https://…\"";
            Err(Fault::new(at, key.name, why))
        });
    }
    let name = parsed(&service.target_tls_name);
    let mut own_names = targets.iter().filter(|_| name.is_none()).chain(&proxies);
    if let Some(server) = own_names.find(|server| !server.name.is_known()) {
        let why = format!(
            "{} has no name that a certificate could have: expected target_tls_name, such as target_tls_name = \"example.com\"",
            server.address
        );
        return Err(Fault::new(server.at, server.key, why));
    }
    let verifies = verifies(service, warnings)?;
    let path = |file: &Value<File>| file.path(origin.folder_of(file.at()).as_deref());
    let settings = ClientSettings {
        authorities: service.target_tls_ca.as_ref().map(path),
        name,
        alpn: protocols(service)?,
        pair: pair(service, path)?,
        verifies,
        uses_kernel: false,
    };
    let given = [&service.target_tls_ca, &service.target_tls_cert];
    let given = given.into_iter().flatten().next();
    let (key, at) = match (given, targets.first().or(proxies.first())) {
        (Some(file), _) if service.target_tls_ca.is_some() => ("target_tls_ca", file.at()),
        (Some(file), _) => ("target_tls_cert", file.at()),
        (None, Some(server)) => (server.key, server.at),
        (None, None) => ("to", None),
    };
    has_tls(key, at)?;
    Ok(Some((settings, (key, at))))
}

fn proxies(service: &Service, servers: &Servers<'_>) -> Vec<Server> {
    let urls = service.upstream_proxy.iter().flat_map(|list| list.iter());
    let secured = servers
        .upstreams
        .iter()
        .zip(urls)
        .filter(|(proxy, _)| proxy.speaks_tls());
    let server = secured.map(|(proxy, url)| Server {
        key: "upstream_proxy",
        at: url.at(),
        address: proxy.to_string(),
        name: PeerName::of(proxy.address()),
    });
    server.collect()
}

/// Returns the targets with which there are TLS handshakes: for clients, or for checks.
fn targets(service: &Service, servers: &Servers<'_>) -> Vec<Server> {
    let is_checked = servers.check == Some(&Probe::Tls);
    let at_to = service.to.as_ref().and_then(List::at);
    let at_table = || service.backend.iter().flatten().find_map(Backend::at);
    let backends = servers.backends.iter().filter_map(|backend| {
        let of_check = || is_checked.then(|| name_of_check(backend));
        Some(Server {
            key: "to",
            at: at_to.or_else(at_table),
            address: backend.name.to_string(),
            name: backend.tls.clone().or_else(of_check)?,
        })
    });
    let mut all: Vec<_> = backends.collect();
    if let Kind::Sni(routes) = servers.kind {
        let at = service.route.as_ref().and_then(List::at);
        let of_routes = routes.targets().map(|to| (to, "route", at));
        let default = &service.default_target;
        let default = routes
            .default_target()
            .map(|to| (to, "default_target", default.as_ref().and_then(Value::at)));
        let not_tls = &service.not_tls;
        let not_tls = routes
            .silent_target()
            .map(|to| (to, "not_tls", not_tls.as_ref().and_then(Value::at)));
        for (to, key, at) in of_routes.chain(default).chain(not_tls) {
            let server = to.tls.clone().map(|name| Server {
                key,
                at,
                address: to.to_string(),
                name,
            });
            all.extend(server);
        }
    }
    all
}

/// Returns the name that a check of a backend without TLS for its clients verifies.
fn name_of_check(backend: &BackendSettings) -> PeerName {
    match &backend.targets.first {
        // The records of such a name lead to others.
        Target::Name(_, 0) => PeerName::unknown(),
        target => PeerName::of(target),
    }
}

fn protocols(service: &Service) -> Result<OfferedProtocols, Fault> {
    let listed = all(&service.target_tls_alpn);
    if !listed.iter().any(|protocol| **protocol == *PASS) {
        return Ok(OfferedProtocols::Listed(listed));
    }
    let at = service.target_tls_alpn.as_ref().and_then(List::at);
    if listed.len() > 1 {
        let why = "has pass and other protocols: expected pass alone, or a list of protocols";
        return Err(Fault::new(at, "target_tls_alpn", why));
    }
    if service.tls_cert.is_none() && service.tls_dir.is_none() && service.acme.is_none() {
        let why = "is pass, and clients speak no TLS to this service: expected a list of protocols, or tls_cert";
        return Err(Fault::new(at, "target_tls_alpn", why));
    }
    Ok(OfferedProtocols::OfClient)
}

fn pair(service: &Service, path: impl Fn(&Value<File>) -> std::path::PathBuf) -> Result<Option<PairFiles>, Fault> {
    match (&service.target_tls_cert, &service.target_tls_key) {
        (None, None) => Ok(None),
        (Some(certificate), key) => Ok(Some(PairFiles {
            certificate: path(certificate),
            key: path(key.as_ref().unwrap_or(certificate)),
        })),
        (None, Some(key)) => {
            let why = "needs target_tls_cert: expected the file of its certificate";
            Err(Fault::new(key.at(), "target_tls_key", why))
        }
    }
}

/// Returns whether servers must prove who they are. The operator gets a warning if they need not.
fn verifies(service: &Service, warnings: &mut Vec<Fault>) -> Result<bool, Fault> {
    if service.target_tls_verify() == OnOffArg::On {
        return Ok(true);
    }
    let at = service.target_tls_verify.as_ref().and_then(Value::at);
    if service.target_tls_ca.is_some() {
        let why = "is off, and target_tls_ca says whom to trust: remove one of them";
        return Err(Fault::new(at, "target_tls_verify", why));
    }
    let why = "is off: anybody on the way to a target can read and change what passes; \
               use target_tls_ca to trust a certificate of your own";
    warnings.push(Fault::new(at, "target_tls_verify", why));
    Ok(false)
}
