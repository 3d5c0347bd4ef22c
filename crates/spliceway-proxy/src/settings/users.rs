//! The users of a service, from its file or from the environment.

use std::path::Path;

use rustix::process::geteuid;

use super::faults::{Fault, Faults};
use super::origin::Origin;
use crate::access::auth::{self, Stored, Users};
use crate::kit::named_file::Rights;
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
            check_rights(&path, file.rights, "users", fault, faults);
            (file.users, file.fingerprint)
        }
    };
    let no_random = |error| Fault::new(None, "auth", format!("the system provides no random numbers: {error}"));
    faults.keep(Users::new(users, fingerprint).map_err(no_random))
}

/// The permission bits that let the group or other users read or write a file.
const EXPOSED: u32 = 0o066;

/// Adds a fault if others may write to a file, or a warning if they may read it. Its owner may
/// write to it whatever its mode is, so another owner than root or this user causes a warning. This
/// is no fault, because a container often sees the owner of the machine's files as another number.
pub(super) fn check_rights(
    path: &Path,
    Rights { mode, owner }: Rights,
    what: &str,
    fault: impl Fn(String) -> Fault,
    faults: &mut Faults,
) {
    let (path, user) = (path.display(), geteuid().as_raw());
    if let Some(owner) = owner.filter(|owner| ![0, user].contains(owner)) {
        faults.warnings.push(fault(format!(
            "{path}: belongs to user {owner}, who can add {what}; expected a file of root, or of user {user} that the \
             program runs as (chown {user} {path})"
        )));
    }
    let expected = format!("expected 0600 (chmod 600 {path})");
    if mode & 0o022 != 0 {
        faults.add(fault(format!(
            "{path}: mode {mode:04o} lets others add {what}; {expected}"
        )));
    } else if mode & EXPOSED != 0 {
        let problem = format!("{path}: mode {mode:04o} lets others read it; {expected}");
        faults.warnings.push(fault(problem));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_root_or_to_the_user_of_the_program() {
        let user = geteuid().as_raw();
        for (owner, warnings) in [(Some(0), 0), (Some(user), 0), (None, 0), (Some(user + 1), 1)] {
            let mut faults = Faults::default();
            let fault = |problem| Fault::new(None, "auth_file", problem);
            let rights = Rights { mode: 0o600, owner };
            check_rights(Path::new("users"), rights, "users", fault, &mut faults);
            assert_eq!(faults.warnings.len(), warnings, "{owner:?}");
            assert!(faults.sorted().is_empty());
        }
    }
}
