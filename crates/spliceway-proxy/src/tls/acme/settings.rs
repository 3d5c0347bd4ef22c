//! How the certificates of a service are issued.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;

use super::challenge;
use super::folder::StateFolder;
use crate::tls::certificate::PairFiles;
use crate::tls::client::{ClientSettings, OfferedProtocols, Originator};

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

    /// Reads the authorities that the directory's own certificate needs.
    ///
    /// # Errors
    /// Returns what is wrong with the file, and the remedy.
    pub(crate) fn originator(&self) -> Result<Originator, String> {
        let settings = ClientSettings {
            authorities: self.ca.clone(),
            name: None,
            alpn: OfferedProtocols::Listed(Vec::new()),
            pair: None,
            verifies: true,
        };
        Originator::new(settings).map_err(|why| with_own_key(&why))
    }

    /// Returns the configuration that answers TLS-ALPN-01 for a name. Returns `None` if no try
    /// runs, in this process or in another one with the folder.
    pub(crate) fn answer(&self, name: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
        let name = self.names.iter().find(|known| known.eq_ignore_ascii_case(name))?;
        let authorization = self.folder.challenge(name).ok()??;
        challenge::answer(name, &authorization, provider)
    }
}

/// Returns the text of an error about the certificate of a server. The remedy has the key for the
/// authorities of the directory instead of the one for targets.
pub(super) fn with_own_key(error: &dyn Display) -> String {
    error.to_string().replace("target_tls_ca", "acme_ca")
}
