//! What a reload changed, and the command `spliceway reload`.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;

use crate::monitor::admin::client;
use crate::monitor::admin::view::Said;

/// What a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The names of services.
    pub(crate) added: Vec<&'static str>,
    pub(crate) changed: Vec<&'static str>,
    pub(crate) removed: Vec<&'static str>,
    /// The addresses of listeners.
    pub(crate) opened: Vec<String>,
    pub(crate) closed: Vec<String>,
    /// The users that a service no longer has: the service, and the user as in records. Their
    /// sessions continue, unless the operator asks to end them.
    pub(crate) removed_users: Vec<(&'static str, Box<str>)>,
    /// Whether the limits of users differ.
    pub(crate) has_other_users_limits: bool,
    /// The settings that differ from those in force, and need a restart.
    pub(crate) needs_restart: Vec<&'static str>,
}

/// What the command line `spliceway reload` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReloadCommand {
    pub(crate) socket: PathBuf,
    pub(crate) end_sessions: bool,
}

/// The time limit for an answer. A name to listen on may have to be looked up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a running program to reload, and prints what changed. The code is 0 if it did.
pub(crate) fn run(command: &ReloadCommand) -> ExitCode {
    let path = match command.end_sessions {
        true => "/v1/reload?end-sessions",
        false => "/v1/reload",
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = runtime.map_err(|error| error.to_string()).and_then(|runtime| {
        let answer = runtime.block_on(client::request(&command.socket, Method::POST, path, PATIENCE));
        answer.map_err(|error| error.to_string())
    });
    let said = answer.and_then(|body| client::parse(&body).map_err(|error| error.to_string()));
    match said {
        Ok(Said::Done(done)) if writeln!(std::io::stdout(), "{done}").is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            crate::log::announce(&format_args!("spliceway: {error}"));
            ExitCode::FAILURE
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened: Vec<_> = self.opened.iter().map(String::as_str).collect();
        let closed: Vec<_> = self.closed.iter().map(String::as_str).collect();
        let users: Vec<_> = self
            .removed_users
            .iter()
            .map(|(service, user)| format!("{user} of {service}"))
            .collect();
        let users: Vec<_> = users.iter().map(String::as_str).collect();
        let limits = Vec::from_iter(self.has_other_users_limits.then_some("the limits of users"));
        let parts = [
            ("added", &self.added),
            ("changed", &self.changed),
            ("removed", &self.removed),
            ("listens on", &opened),
            ("no longer listens on", &closed),
            ("removed users", &users),
            ("changed", &limits),
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
