//! Settles the sockets and pages of the operator.

use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;

use super::config::{self, Value, all};
use super::faults::{Fault, Faults};
use super::origin::Origin;
use super::users::check_rights;
use crate::access::auth::tokens::{self, TokenFile, Tokens};

/// Returns the socket for the holders of tokens, and the tokens.
pub(super) fn remote_admin(
    admin: &config::Admin,
    origin: &Origin,
    faults: &mut Faults,
) -> Option<(ListenAddress, Arc<Tokens>)> {
    let (remote, file) = match (&admin.remote, &admin.tokens) {
        (None, None) => return None,
        (Some(remote), Some(file)) => (remote, file),
        (Some(remote), None) => {
            let needed = "needs tokens: expected a file, which `spliceway token add` creates";
            faults.add(Fault::new(remote.at(), "remote", needed));
            return None;
        }
        (None, Some(file)) => {
            let needed = "needs remote: expected a socket, such as remote = \"unix:/run/spliceway/remote.sock\"";
            faults.add(Fault::new(file.at(), "tokens", needed));
            return None;
        }
    };
    let fault = |problem: String| Fault::new(file.at(), "tokens", problem);
    let path = file.path(origin.folder_of(file.at()).as_deref());
    let TokenFile { tokens, rights } = match tokens::read(&path) {
        Ok(read) => read,
        Err(errors) => {
            errors.iter().for_each(|error| faults.add(fault(error.to_string())));
            return None;
        }
    };
    check_rights(&path, rights, "tokens", fault, faults);
    if tokens.is_empty() {
        let problem = format!("{}: has no tokens, so each request is refused", path.display());
        faults.warnings.push(fault(problem));
    }
    Some((remote.parsed(), Arc::new(tokens)))
}

/// Returns the names of the status page, or `None` if there is no such page.
pub(super) fn status_page(admin: &config::Admin) -> Result<Option<Vec<Box<str>>>, Fault> {
    let is_on = admin.status_page();
    if is_on && admin.metrics.is_none() {
        let at = admin.status_page.as_ref().and_then(Value::at);
        return Err(Fault::new(
            at,
            "status_page",
            "needs metrics: expected an address, such as metrics = \"127.0.0.1:9100\"",
        ));
    }
    if !is_on && let Some(hosts) = &admin.status_host {
        return Err(Fault::new(hosts.at(), "status_host", "needs status_page = true"));
    }
    Ok(is_on.then(|| all(&admin.status_host)))
}
