//! What a reload changed.

use std::fmt;
use std::sync::Arc;

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::run) struct Changes {
    /// The names of services.
    pub(super) added: Vec<Arc<str>>,
    pub(super) changed: Vec<Arc<str>>,
    pub(super) removed: Vec<Arc<str>>,
    /// The addresses of listeners.
    pub(super) opened: Vec<String>,
    pub(super) closed: Vec<String>,
    /// The users that a service no longer has: the service, and the user as in records. Their
    /// sessions continue, unless the operator asks to end them.
    pub(super) removed_users: Vec<(Arc<str>, Box<str>)>,
    /// Whether the limits of users differ.
    pub(super) has_other_users_limits: bool,
    /// Whether the tokens of the admin socket differ.
    pub(super) has_other_tokens: bool,
    /// The settings that differ from those that the process runs with, and need a restart.
    pub(super) needs_restart: Vec<&'static str>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.removed_users.iter();
        let users: Vec<_> = users.map(|(service, user)| format!("{user} of {service}")).collect();
        let limits = self.has_other_users_limits.then_some("the limits of users");
        let tokens = self.has_other_tokens.then_some("the admin tokens");
        let others: Vec<_> = limits.into_iter().chain(tokens).collect();
        let parts = [
            ("added", self.added.join(", ")),
            ("changed", self.changed.join(", ")),
            ("removed", self.removed.join(", ")),
            ("listens on", self.opened.join(", ")),
            ("no longer listens on", self.closed.join(", ")),
            ("removed users", users.join(", ")),
            ("changed", others.join(", ")),
            ("needs an upgrade or a restart for", self.needs_restart.join(", ")),
        ];
        let mut separator = "";
        for (what, names) in parts.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "{separator}{what} {names}")?;
            separator = "; ";
        }
        match separator {
            "" => f.write_str("nothing has changed"),
            _ => Ok(()),
        }
    }
}
