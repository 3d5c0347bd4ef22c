//! How the certificates of a service are issued.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;

use super::challenge;
use super::folder::{Revocation, StateFolder};
use super::schedule::{Known, Task};
use crate::tls::certificate::{Pair, PairFiles, Validity};
use crate::tls::client::{ClientSettings, OfferedProtocols, Originator};
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

/// What the schedule says about a name.
pub(super) struct Due {
    pub(super) known: Known,
    /// When the certificate is valid, unless it is to be replaced at once.
    valid: Option<Validity>,
    pub(super) task: Task,
    pub(super) at: SystemTime,
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
            uses_kernel: false,
        };
        Originator::new(settings).map_err(|why| with_own_key(&why))
    }

    /// Returns when the certificate of a name is ordered next, and why the last try failed.
    pub(crate) fn next_try(&self, name: &str, provider: &CryptoProvider, now: SystemTime) -> io::Result<NextTry> {
        let Due { known, valid, .. } = self.next(name, provider, now)?;
        Ok(NextTry {
            at: known.order.next(valid, now),
            why: known.why(),
        })
    }

    /// Returns what the schedule says about a name.
    pub(super) fn next(&self, name: &str, provider: &CryptoProvider, now: SystemTime) -> io::Result<Due> {
        let pair = self.in_force(name, provider)?;
        let revocation = self.revocation(name, pair.as_ref())?;
        // A certificate that is to be revoked is replaced at once.
        let pair = pair.filter(|_| revocation != Some(Revocation::Wanted));
        let valid = pair.map(|pair| pair.valid);
        let revokes = matches!(revocation, Some(Revocation::Replaced(..)));
        let known = self.folder.known(name)?;
        let (task, at) = known.next(valid, revokes, now);
        Ok(Due { known, valid, task, at })
    }

    /// Returns the certificate of a name that is in force. One that cannot be used is replaced, as
    /// a missing one.
    pub(super) fn in_force(&self, name: &str, provider: &CryptoProvider) -> io::Result<Option<Pair>> {
        let files = self.pair(name);
        match File::open(&files.certificate) {
            Ok(_) => Ok(Pair::read(&files, provider).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn revocation(&self, name: &str, current: Option<&Pair>) -> io::Result<Option<Revocation>> {
        self.folder.revocation(name, current.map(|pair| &pair.key.cert[0]))
    }

    /// Returns the configuration that answers TLS-ALPN-01 for a name. Returns `None` if no try
    /// runs, in this process or in another one with the folder.
    pub(crate) fn answer(&self, name: &str, provider: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
        let name = self.names.iter().find(|known| known.eq_ignore_ascii_case(name))?;
        let authorization = self.folder.challenge(name).ok()??;
        challenge::answer(name, &authorization, provider)
    }
}

impl Due {
    /// Returns what the operator sees: what is next, and why the last try failed, maybe in another
    /// process.
    pub(super) fn shown(self, now: SystemTime) -> NextTry {
        NextTry {
            at: self.at.max(now),
            why: self.known.why(),
        }
    }
}

/// Returns the text of an error about the certificate of a server. The remedy has the key for the
/// authorities of the directory instead of the one for targets.
pub(super) fn with_own_key(error: &dyn Display) -> String {
    error.to_string().replace("target_tls_ca", "acme_ca")
}
