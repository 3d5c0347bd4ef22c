//! How the certificates of a service are issued.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{RootCertStore, ServerConfig};

use super::challenge;
use super::folder::StateFolder;
use super::schedule::Tries;
use crate::kit::tls_error::fault;
use crate::tls::certificate::{Pair, PairFiles};
use crate::tls::counts::NextTry;

/// How the certificates of a service are issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcmeSettings {
    /// In lower case. Each name has its own certificate, so a name that fails stops no other.
    pub(crate) names: Vec<Box<str>>,
    /// A URL.
    pub(crate) directory: String,
    pub(crate) folder: StateFolder,
    pub(crate) email: Option<Box<str>>,
    /// The authorities of the directory's own certificate. `None` means those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// Whether a listener answers HTTP-01. Otherwise, the service answers TLS-ALPN-01.
    pub(crate) uses_http: bool,
}

impl AcmeSettings {
    /// Returns the files of the certificates. They may be missing.
    pub(crate) fn pairs(&self) -> Vec<PairFiles> {
        self.names.iter().map(|name| self.pair(name)).collect()
    }

    pub(super) fn pair(&self, name: &str) -> PairFiles {
        let file = self.folder.pair(name);
        PairFiles {
            certificate: file.clone(),
            key: file,
        }
    }

    /// Returns when the certificate of a name is ordered next, and why the last try failed.
    pub(crate) fn next_try(&self, name: &str, provider: &CryptoProvider, now: SystemTime) -> io::Result<NextTry> {
        let (Tries { why, .. }, at) = self.next(name, provider, now)?;
        Ok(NextTry { at, why })
    }

    /// Returns what is known about tries, and when the next one is due.
    pub(super) fn next(
        &self,
        name: &str,
        provider: &CryptoProvider,
        now: SystemTime,
    ) -> io::Result<(Tries, SystemTime)> {
        let files = self.pair(name);
        let valid = match File::open(&files.certificate) {
            // A pair that can be read and is not valid is replaced.
            Ok(_) => Pair::read(&files, provider).ok().map(|pair| pair.valid),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let tries = self.folder.tries(name)?;
        let valid = match self.folder.revocation(name)? {
            None => valid,
            // A certificate that is to be revoked is replaced at once.
            Some(_) => None,
        };
        let next = tries.next(&self.directory, valid, now);
        Ok((tries, next))
    }

    /// Checks the file of the directory's authorities, or that the system has some.
    pub(crate) fn check_ca(&self) -> Result<(), String> {
        roots(self.ca.as_deref()).map(drop)
    }

    /// Returns the configuration that answers TLS-ALPN-01 for a name. Returns `None` if no try
    /// runs, in this process or in another one with the folder.
    pub(crate) fn answer(&self, name: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
        let name = self.names.iter().find(|known| known.eq_ignore_ascii_case(name))?;
        let hash = self.folder.challenge(name).ok()??;
        challenge::answer(name, &hash, provider)
    }
}

/// Returns the authorities of a file, or those of the system.
pub(super) fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(file) = ca else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err("the system has no certificates of authorities: install the package ca-certificates".into());
        }
        return Ok(roots);
    };
    let bad = |error: &dyn Display| format!("cannot use acme_ca {}: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| bad(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&fault(&error)))?;
    }
    if roots.is_empty() {
        return Err(bad(&"it has no certificate"));
    }
    Ok(roots)
}
