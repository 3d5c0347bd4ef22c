//! The users of a service, from its file or from the environment.

use super::origin::{Fault, Origin};
use crate::access::auth::{self, Stored, Users};
use crate::settings::config::{AUTH_VARIABLE, Service};

/// Returns the users, and adds warnings about how their passwords are stored.
pub(super) fn users(service: &Service, origin: &Origin, warnings: &mut Vec<Fault>) -> Result<Option<Users>, Fault> {
    let (users, fingerprint) = match (&service.auth, &service.auth_file) {
        (None, None) => return Ok(None),
        (Some(auth), Some(_)) => {
            let problem = "contradicts auth_file: expected one of them";
            return Err(Fault::new(auth.at(), "auth", problem));
        }
        (Some(auth), None) => {
            let fault = |problem: String| Fault::new(auth.at(), "auth", problem);
            let (name, stored) = auth::user(auth.text()).map_err(fault)?;
            if matches!(stored, Stored::Clear(_)) {
                warnings.push(fault(format!(
                    "the password is not hashed. Whoever can read the command line or the environment of this process \
                     ({AUTH_VARIABLE}) can read it; `spliceway hash-password` makes hashes"
                )));
            }
            (vec![(name.as_bytes().into(), stored)], auth::fingerprint(auth.text()))
        }
        (None, Some(value)) => {
            let fault = |problem: String| Fault::new(value.at(), "auth_file", problem);
            let path = value.path(origin.folder_of(value.at()).as_deref());
            let file = auth::read(&path).map_err(|error| fault(error.to_string()))?;
            warnings.extend(auth::clear_text(&path, &file.clear).into_iter().map(fault));
            let path = path.display();
            if let Some(mode) = file.exposed {
                let expected = format!("expected 0600 (chmod 600 {path})");
                if mode & 0o022 != 0 {
                    return Err(fault(format!(
                        "{path}: mode {mode:04o} lets others add users; {expected}"
                    )));
                }
                warnings.push(fault(format!(
                    "{path}: mode {mode:04o} lets others read it; {expected}"
                )));
            }
            (file.users, file.fingerprint)
        }
    };
    let no_random = |error| Fault::new(None, "auth", format!("the system provides no random numbers: {error}"));
    Users::new(users, fingerprint).map(Some).map_err(no_random)
}
