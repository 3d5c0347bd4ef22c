//! The end of the clients' TLS: certificates and what is negotiated.

use std::path::PathBuf;

use super::acme;
use super::config::{
    Acme, ClientVerifyArg, Config, Engine, File, KindArg, KtlsArg, List, Service, TlsMinArg, UnknownNameArg, Value,
    all, parsed,
};
use super::faults::{Fault, Faults};
use super::origin::Origin;
use crate::net::kernel_support::KernelSupport;
use crate::tls::IS_SUPPORTED;
use crate::tls::bad_files::bad_files;
use crate::tls::certificate::{BadFile, PairFiles};
use crate::tls::client_cert::ClientCertSettings;
use crate::tls::server::{ServerSettings, Terminator};

/// The most warnings about routes.
const UNNAMED_MAX: usize = 8;

/// Reads the certificates of a service. Returns `None` if its clients do not speak TLS.
pub(super) fn terminator(
    service: &Service,
    config: &Config,
    origin: &Origin,
    faults: &mut Faults,
) -> Option<Terminator> {
    let acme = &config.acme;
    let settings = settings(service, acme, origin);
    let (mut settings, (key, at)) = faults.keep(settings).flatten()?;
    settings.uses_kernel = uses_kernel(&config.engine);
    if let Some(issued) = &settings.acme {
        faults.keep(acme::check_authorities(issued, acme, at));
    }
    let all = settings.clone();
    let terminator = match Terminator::new(settings) {
        Ok(terminator) => terminator,
        Err(first) => {
            for bad in bad_files(&all, first) {
                let (key, at) = place_of(&bad, service, origin).unwrap_or((key, at));
                faults.add(Fault::new(at, key, bad.to_string()));
            }
            return None;
        }
    };
    let warnings = &mut faults.warnings;
    let doubts = terminator.doubts().into_iter();
    warnings.extend(doubts.map(|(_, doubt)| Fault::new(at, key, doubt)));
    warnings.extend(unnamed_routes(service, &terminator));
    let has_rules = |clients: &&ClientCertSettings| !clients.is_required && !clients.rules.is_empty();
    if terminator.clients().filter(has_rules).is_some() {
        let why = "does not apply to clients without a certificate, which are served, because tls_client_verify is \
                   \"optional\": write \"required\" to refuse them";
        let at = service.tls_client_allow.as_ref().and_then(List::at);
        warnings.push(Fault::new(at, "tls_client_allow", why));
    }
    for (file, doubt) in terminator.doubts_about_clients() {
        let is_of_crl = terminator.clients().is_some_and(|clients| clients.crls.contains(&file));
        let (key, list) = if is_of_crl {
            ("tls_client_crl", &service.tls_client_crl)
        } else {
            ("tls_client_ca", &service.tls_client_ca)
        };
        warnings.push(Fault::new(list.as_ref().and_then(List::at), key, doubt));
    }
    Some(terminator)
}

/// Returns the key that names this file, and its place.
fn place_of(bad: &BadFile, service: &Service, origin: &Origin) -> Option<KeyAt> {
    let lists = [
        ("tls_client_crl", &service.tls_client_crl),
        ("tls_client_ca", &service.tls_client_ca),
        ("tls_cert", &service.tls_cert),
        ("tls_key", &service.tls_key),
    ];
    let listed = lists
        .into_iter()
        .flat_map(|(key, list)| list.iter().flat_map(|list| list.iter()).map(move |file| (key, file)));
    let single = [
        ("tls_ticket_key", &service.tls_ticket_key),
        ("tls_dir", &service.tls_dir),
    ];
    let single = single.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?)));
    let mut all = listed.chain(single);
    // Files in a folder have the place of the folder.
    let found = all.find(|(_, file)| bad.file().starts_with(path_of(file, origin)));
    found.map(|(key, file)| (key, file.at()))
}

/// Returns the absolute path. A relative one would not tell an operator much, in a metric.
fn path_of(file: &Value<File>, origin: &Origin) -> PathBuf {
    let path = file.path(origin.folder_of(file.at()).as_deref());
    std::path::absolute(&path).unwrap_or(path)
}

/// The key that a fault of files is about, and its place.
pub(super) type KeyAt = (&'static str, Option<usize>);

/// Returns how a service terminates TLS, or `None` if its clients do not speak it. No file is read.
pub(super) fn settings(
    service: &Service,
    acme: &Acme,
    origin: &Origin,
) -> Result<Option<(ServerSettings, KeyAt)>, Fault> {
    let (certificates, folder) = (service.tls_cert.as_ref(), service.tls_dir.as_ref());
    let listed = certificates.map(|certificates| ("tls_cert", certificates.at()));
    let in_folder = folder.map(|folder| ("tls_dir", folder.at()));
    let issued = service.acme.as_ref().map(|names| ("acme", names.at()));
    let given = issued.or(listed).or(in_folder);
    check_routes(service, given)?;
    let Some((key, at)) = given else {
        return no_tls(service).map(|()| None);
    };
    let keys = service.tls_key.as_ref();
    if issued.is_some() && (listed.or(in_folder).is_some() || keys.is_some()) {
        let why = "contradicts tls_cert, tls_key and tls_dir: remove them, or acme";
        return Err(Fault::new(at, key, why));
    }
    if service.udp() {
        let why = "is not for udp: remove it, because datagrams have no TLS";
        return Err(Fault::new(at, key, why));
    }
    check_protocols(service)?;
    let path = |file: &Value<File>| path_of(file, origin);
    has_tls(key, at)?;
    let names = service.acme.as_ref();
    let acme = names.map(|names| acme::settings(names, acme, origin)).transpose()?;
    let settings = ServerSettings {
        pairs: match &acme {
            Some(acme) => acme.pairs(),
            None => pairs(service, path)?,
        },
        folder: folder.map(path),
        acme,
        ticket_keys: ticket_keys(service, path)?,
        is_13_only: service.tls_min() == TlsMinArg::V13,
        alpn: all(&service.tls_alpn),
        refuses_unknown_names: service.tls_unknown_name() == UnknownNameArg::Refuse,
        clients: clients(service, path)?,
        uses_kernel: false,
    };
    Ok(Some((settings, (key, at))))
}

/// Checks that a proxy agrees only on protocols that it speaks. Targets of other services may speak
/// any protocol.
fn check_protocols(service: &Service) -> Result<(), Fault> {
    let is_proxy = |kind| matches!(kind, KindArg::Http | KindArg::Mixed | KindArg::Socks5);
    let mut protocols = service.tls_alpn.iter().flat_map(|list| list.iter());
    match protocols.find(|protocol| *protocol.parsed() == *"h2") {
        Some(h2) if parsed(&service.kind).is_some_and(is_proxy) => {
            let why = "has h2, and a proxy speaks no HTTP/2: remove it, or write http/1.1";
            Err(Fault::new(h2.at(), "tls_alpn", why))
        }
        _ => Ok(()),
    }
}

/// Checks that a service with routes has certificates if one of them terminates TLS, and only then.
/// `given` is the key of the certificates, and its place.
fn check_routes(service: &Service, given: Option<(&'static str, Option<usize>)>) -> Result<(), Fault> {
    let Some(routes) = &service.route else {
        return Ok(());
    };
    let ending = routes.iter().find(|route| route.parsed().ends_tls());
    match (ending, given) {
        (None, Some((key, at))) => {
            let why = "needs a route that terminates TLS: expected ,tls=terminate after a target, \
                       such as route = \"example.com=127.0.0.1:8080,tls=terminate\"";
            Err(Fault::new(at, key, why))
        }
        (Some(route), None) => {
            let why = "has tls=terminate, which needs a certificate: expected --tls-cert FILE, --tls-dir FOLDER or --acme NAME";
            Err(Fault::new(route.at(), "route", why))
        }
        _ => Ok(()),
    }
}

/// Returns the routes that terminate TLS for a name which no certificate has.
fn unnamed_routes(service: &Service, terminator: &Terminator) -> Vec<Fault> {
    let pairs = terminator.pairs();
    let is_issued = |name: &str| {
        let issued = terminator.acme().into_iter().flat_map(|acme| &acme.names);
        issued.into_iter().any(|issued| **issued == *name)
    };
    let routes = service.route.iter().flat_map(|routes| routes.iter());
    let unnamed = routes.filter_map(|route| {
        let parsed = route.parsed();
        let name = parsed.example();
        let why = "terminates TLS, and no certificate has this name, so clients get another one";
        let is_unnamed = parsed.ends_tls() && !pairs.know(&name) && !is_issued(&name);
        is_unnamed.then(|| Fault::new(route.at(), "route", format!("{} {why}", route.text())))
    });
    unnamed.take(UNNAMED_MAX).collect()
}

/// Returns which certificates the clients need, if they are asked for one.
fn clients(service: &Service, path: impl Fn(&Value<File>) -> PathBuf) -> Result<Option<ClientCertSettings>, Fault> {
    let files = |list: &List<File>| list.iter().map(&path).collect();
    let Some(authorities) = &service.tls_client_ca else {
        let given = [
            ("tls_client_verify", service.tls_client_verify.as_ref().map(Value::at)),
            ("tls_client_crl", service.tls_client_crl.as_ref().map(List::at)),
            ("tls_client_allow", service.tls_client_allow.as_ref().map(List::at)),
        ];
        return match given.into_iter().find_map(|(key, at)| Some((key, at?))) {
            Some((key, at)) => Err(Fault::new(at, key, "needs tls_client_ca: expected the file of a CA")),
            None => Ok(None),
        };
    };
    Ok(Some(ClientCertSettings {
        authorities: files(authorities),
        crls: service.tls_client_crl.as_ref().map(files).unwrap_or_default(),
        is_required: service.tls_client_verify() == ClientVerifyArg::Required,
        rules: all(&service.tls_client_allow),
    }))
}

/// Returns the file with the keys of tickets.
fn ticket_keys(service: &Service, path: impl Fn(&Value<File>) -> PathBuf) -> Result<Option<PathBuf>, Fault> {
    match &service.tls_ticket_key {
        Some(file) if service.tls_client_ca.is_some() => {
            let why = "contradicts --tls-client-ca: remove it, because clients with certificates get no tickets";
            Err(Fault::new(file.at(), "tls_ticket_key", why))
        }
        file => Ok(file.as_ref().map(path)),
    }
}

/// Checks that this build can do what a key asks for.
pub(super) fn has_tls(key: &'static str, at: Option<usize>) -> Result<(), Fault> {
    if IS_SUPPORTED {
        return Ok(());
    }
    let why = "needs a build with TLS: expected one with the cargo feature `tls`";
    Err(Fault::new(at, key, why))
}

/// Returns whether the kernel may take over the connections of all services.
pub(super) fn uses_kernel(engine: &Engine) -> bool {
    engine.ktls() != KtlsArg::Off && IS_SUPPORTED && KernelSupport::get().refusal().is_none()
}

/// Checks that the kernel can take over connections, if it must, and warns if it should.
pub(super) fn check_kernel(engine: &Engine, faults: &mut Faults) {
    let at = engine.ktls.as_ref().and_then(Value::at);
    let fault = |problem| Fault::new(at, "ktls", problem);
    match engine.ktls() {
        KtlsArg::Off => {
            if let Some(after) = &engine.ktls_after {
                let why = "needs --ktls auto or --ktls on";
                faults.add(Fault::new(after.at(), "ktls_after", why));
            }
        }
        KtlsArg::Auto if IS_SUPPORTED => {
            let why = KernelSupport::get().refusal();
            faults
                .warnings
                .extend(why.map(|why| fault(format!("TLS stays in the program, because {why}"))));
        }
        KtlsArg::Auto => {}
        KtlsArg::On => {
            faults.keep(has_tls("ktls", at).and_then(|()| match KernelSupport::get().refusal() {
                Some(why) => Err(fault(format!("is on, and {why}; or write \"auto\""))),
                None => Ok(()),
            }));
        }
    }
}

/// Returns the files of the listed certificates and their keys. Without keys, each certificate has
/// its key in the same file.
fn pairs(service: &Service, path: impl Fn(&Value<File>) -> PathBuf) -> Result<Vec<PairFiles>, Fault> {
    let certificates = service.tls_cert.iter().flat_map(|files| files.iter());
    let Some(keys) = &service.tls_key else {
        let pairs = certificates.map(|file| PairFiles {
            certificate: path(file),
            key: path(file),
        });
        return Ok(pairs.collect());
    };
    let counts = (certificates.clone().count(), keys.len());
    if counts.0 != counts.1 {
        let why = format!(
            "expected one key for each certificate, in the same order: there are {} of --tls-cert and {} of --tls-key",
            counts.0, counts.1
        );
        return Err(Fault::new(keys.at(), "tls_key", why));
    }
    let pairs = certificates.zip(keys.iter());
    let pairs = pairs.map(|(certificate, key)| PairFiles {
        certificate: path(certificate),
        key: path(key),
    });
    Ok(pairs.collect())
}

/// Checks that a service without certificates has no other key of TLS.
fn no_tls(service: &Service) -> Result<(), Fault> {
    let given = [
        ("tls_key", service.tls_key.as_ref().map(List::at)),
        ("tls_min", service.tls_min.as_ref().map(Value::at)),
        ("tls_alpn", service.tls_alpn.as_ref().map(List::at)),
        ("tls_unknown_name", service.tls_unknown_name.as_ref().map(Value::at)),
        ("tls_ticket_key", service.tls_ticket_key.as_ref().map(Value::at)),
        ("tls_client_ca", service.tls_client_ca.as_ref().map(List::at)),
        ("tls_client_verify", service.tls_client_verify.as_ref().map(Value::at)),
        ("tls_client_crl", service.tls_client_crl.as_ref().map(List::at)),
        ("tls_client_allow", service.tls_client_allow.as_ref().map(List::at)),
    ];
    let wrong = given.into_iter().find_map(|(key, at)| Some((key, at?)));
    wrong.map_or(Ok(()), |(key, at)| {
        Err(Fault::new(
            at,
            key,
            "needs a certificate: expected --tls-cert FILE, --tls-dir FOLDER or --acme NAME",
        ))
    })
}
