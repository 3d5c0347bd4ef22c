//! The users of a service, from its file or from the environment.

use std::path::Path;

use super::faults::{Fault, Faults};
use super::origin::Origin;
use crate::access::auth::{self, Stored, Users};
use crate::settings::config::{AUTH_VARIABLE, Service};

/// Returns the users, and adds warnings about how their passwords are stored.
pub(super) fn users(service: &Service, origin: &Origin, faults: &mut Faults) -> Option<Users> {
    let (users, fingerprint) = match (&service.auth, &service.auth_file) {
        (None, None) => return None,
        (Some(auth), Some(_)) => {
            let problem = "contradicts auth_file: expected one of them";
            faults.add(Fault::new(auth.at(), "auth", problem));
            return None;
        }
        (Some(auth), None) => {
            let fault = |problem: String| Fault::new(auth.at(), "auth", problem);
            let (name, stored) = faults.keep(auth::user(auth.text()).map_err(fault))?;
            if matches!(stored, Stored::Clear(_)) {
                faults.warnings.push(fault(format!(
                    "the password is not hashed. Whoever can read the command line or the environment of this process \
                     ({AUTH_VARIABLE}) can read it; `spliceway hash-password` makes hashes"
                )));
            }
            (vec![(name.as_bytes().into(), stored)], auth::fingerprint(auth.text()))
        }
        (None, Some(value)) => {
            let fault = |problem: String| Fault::new(value.at(), "auth_file", problem);
            let path = value.path(origin.folder_of(value.at()).as_deref());
            let file = match auth::read(&path) {
                Ok(file) => file,
                Err(errors) => {
                    errors.iter().for_each(|error| faults.add(fault(error.to_string())));
                    return None;
                }
            };
            let doubts = auth::clear_text(&path, &file.clear).into_iter();
            faults.warnings.extend(doubts.map(fault));
            check_mode(&path, file.exposed, "users", fault, faults);
            (file.users, file.fingerprint)
        }
    };
    let no_random = |error| Fault::new(None, "auth", format!("the system provides no random numbers: {error}"));
    faults.keep(Users::new(users, fingerprint).map_err(no_random))
}

/// Adds a fault if others may write to a file, or a warning if they may read it. `exposed` is the
/// mode of such a file.
pub(super) fn check_mode(
    path: &Path,
    exposed: Option<u32>,
    what: &str,
    fault: impl Fn(String) -> Fault,
    faults: &mut Faults,
) {
    let Some(mode) = exposed else { return };
    let path = path.display();
    let expected = format!("expected 0600 (chmod 600 {path})");
    if mode & 0o022 != 0 {
        faults.add(fault(format!(
            "{path}: mode {mode:04o} lets others add {what}; {expected}"
        )));
    } else {
        let problem = format!("{path}: mode {mode:04o} lets others read it; {expected}");
        faults.warnings.push(fault(problem));
    }
}
