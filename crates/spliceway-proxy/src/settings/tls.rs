//! The end of the clients' TLS: certificates and what is negotiated.

use super::config::{File, List, Service, TlsMinArg, UnknownNameArg, Value, all};
use super::origin::{Fault, Origin};
use crate::tls::certificate::PairFiles;
use crate::tls::server::{ServerSettings, Terminator};

/// Reads the certificates of a service. Returns `None` if its clients do not speak TLS.
pub(super) fn terminator(service: &Service, origin: &Origin) -> Result<Option<Terminator>, Fault> {
    let (certificates, keys) = match (&service.tls_cert, &service.tls_key) {
        (None, None) => return no_tls(service).map(|()| None),
        (Some(certificates), Some(keys)) => (certificates, keys),
        (Some(certificates), None) => {
            let why = "needs tls_key: expected the file of its private key";
            return Err(Fault::new(certificates.at(), "tls_cert", why));
        }
        (None, Some(keys)) => {
            let why = "needs tls_cert: expected the file of its certificate";
            return Err(Fault::new(keys.at(), "tls_key", why));
        }
    };
    if service.udp() {
        let why = "is not for udp: remove it, because datagrams have no TLS";
        return Err(Fault::new(certificates.at(), "tls_cert", why));
    }
    if certificates.len() != keys.len() {
        let why = format!(
            "has {} files, and tls_key has {}: expected one key for each certificate, in the same order",
            certificates.len(),
            keys.len()
        );
        return Err(Fault::new(certificates.at(), "tls_cert", why));
    }
    let path = |file: &Value<File>| file.path(origin.folder_of(file.at()).as_deref());
    let pairs = certificates.iter().zip(keys.iter());
    let settings = ServerSettings {
        pairs: pairs
            .map(|(certificate, key)| PairFiles {
                certificate: path(certificate),
                key: path(key),
            })
            .collect(),
        is_13_only: service.tls_min() == TlsMinArg::V13,
        alpn: all(&service.tls_alpn),
        refuses_unknown_names: service.tls_unknown_name() == UnknownNameArg::Refuse,
    };
    let terminator = Terminator::new(settings);
    terminator
        .map(Some)
        .map_err(|bad| Fault::new(certificates.at(), "tls_cert", bad.to_string()))
}

/// Checks that a service without certificates has no other key of TLS.
fn no_tls(service: &Service) -> Result<(), Fault> {
    let given = [
        ("tls_min", service.tls_min.as_ref().map(Value::at)),
        ("tls_alpn", service.tls_alpn.as_ref().map(List::at)),
        ("tls_unknown_name", service.tls_unknown_name.as_ref().map(Value::at)),
    ];
    let wrong = given.into_iter().find_map(|(key, at)| Some((key, at?)));
    wrong.map_or(Ok(()), |(key, at)| {
        Err(Fault::new(
            at,
            key,
            "needs tls_cert: expected the file of a certificate",
        ))
    })
}
