//! What a reload changed.

use std::fmt;

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::run) struct Changes {
    /// The names of services.
    pub(super) added: Vec<&'static str>,
    pub(super) changed: Vec<&'static str>,
    pub(super) removed: Vec<&'static str>,
    /// The addresses of listeners.
    pub(super) opened: Vec<String>,
    pub(super) closed: Vec<String>,
    /// The users that a service no longer has: the service, and the user as in records. Their
    /// sessions continue, unless the operator asks to end them.
    pub(super) removed_users: Vec<(&'static str, Box<str>)>,
    /// Whether the limits of users differ.
    pub(super) has_other_users_limits: bool,
    /// Whether the tokens of the admin socket differ.
    pub(super) has_other_tokens: bool,
    /// The settings that differ from those that the process runs with, and need a restart.
    pub(super) needs_restart: Vec<&'static str>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened: Vec<_> = self.opened.iter().map(String::as_str).collect();
        let closed: Vec<_> = self.closed.iter().map(String::as_str).collect();
        let users: Vec<_> = self
            .removed_users
            .iter()
            .map(|(service, user)| format!("{user} of {service}"))
            .collect();
        let users: Vec<_> = users.iter().map(String::as_str).collect();
        let limits = self.has_other_users_limits.then_some("the limits of users");
        let tokens = self.has_other_tokens.then_some("the admin tokens");
        let others: Vec<_> = limits.into_iter().chain(tokens).collect();
        let parts = [
            ("added", &self.added),
            ("changed", &self.changed),
            ("removed", &self.removed),
            ("listens on", &opened),
            ("no longer listens on", &closed),
            ("removed users", &users),
            ("changed", &others),
            ("needs a restart for", &self.needs_restart),
        ];
        let mut separator = "";
        for (what, names) in parts.into_iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{separator}{what} {}", names.join(", "))?;
            separator = "; ";
        }
        match separator {
            "" => f.write_str("nothing has changed"),
            _ => Ok(()),
        }
    }
}
