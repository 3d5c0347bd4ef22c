//! How the certificates of a service are issued.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;

use super::challenge;
use super::folder::StateFolder;
use crate::tls::certificate::PairFiles;

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

    /// Returns the configuration that answers TLS-ALPN-01 for a name. Returns `None` if no try
    /// runs, in this process or in another one with the folder.
    pub(crate) fn answer(&self, name: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
        let name = self.names.iter().find(|known| known.eq_ignore_ascii_case(name))?;
        let hash = self.folder.challenge(name).ok()??;
        challenge::answer(name, &hash, provider)
    }
}
