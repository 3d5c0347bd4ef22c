//! How certificates are issued by ACME.

use spliceway_protocol::address::ListenAddress;

use super::config::{Acme, AcmeName, File, List, Value, parsed};
use super::faults::Fault;
use super::origin::Origin;
use crate::tls::acme::{AcmeSettings, StateFolder};

/// The directory if the operator names none.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Returns how the certificates for these names are issued.
pub(super) fn settings(names: &List<AcmeName>, acme: &Acme, origin: &Origin) -> Result<AcmeSettings, Fault> {
    if !acme.accept_terms() {
        let why = "needs accept_terms = true in the table [acme], or --acme-accept-terms: read the terms of service of \
                   the ACME server first";
        return Err(Fault::new(names.at(), "acme", why));
    }
    let path = |file: &Value<File>| file.path(origin.folder_of(file.at()).as_deref());
    Ok(AcmeSettings {
        names: names.parsed(),
        directory: directory(acme),
        folder: folder(acme, names.at(), origin)?,
        email: parsed(&acme.email),
        ca: acme.ca.as_ref().map(path),
        uses_http: acme.http.is_some(),
    })
}

/// Returns the address at which servers validate names by HTTP, with the folder of the answers.
pub(super) fn listener(acme: &Acme, origin: &Origin) -> Result<Option<(ListenAddress, StateFolder)>, Fault> {
    let Some(address) = &acme.http else {
        return Ok(None);
    };
    Ok(Some((address.parsed(), folder(acme, address.at(), origin)?)))
}

fn directory(acme: &Acme) -> String {
    parsed(&acme.directory).map_or_else(|| LETS_ENCRYPT.to_owned(), Into::into)
}

/// Checks that the certificate of the server can be verified.
pub(super) fn check_authorities(settings: &AcmeSettings, acme: &Acme, at: Option<usize>) -> Result<(), Fault> {
    let (key, at) = match &acme.ca {
        Some(ca) => ("acme_ca", ca.at()),
        None => ("acme", at),
    };
    settings.originator().map(drop).map_err(|why| Fault::new(at, key, why))
}

/// Returns the folder with the state. `at` is the place of the key that needs it.
fn folder(acme: &Acme, at: Option<usize>, origin: &Origin) -> Result<StateFolder, Fault> {
    let Some(state) = &acme.state else {
        let why = "needs a folder for the account and the certificates: expected state = \"/var/lib/spliceway/acme\" \
                   in the table [acme], or --acme-state";
        return Err(Fault::new(at, "acme", why));
    };
    let path = state.path(origin.folder_of(state.at()).as_deref());
    StateFolder::new(path, &directory(acme)).map_err(|why| Fault::new(state.at(), "acme_state", why.to_string()))
}
