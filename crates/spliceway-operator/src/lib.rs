//! The commands that talk to a running `spliceway`: `status`, `top`, `users`, `service`,
//! `backend`, `reload`, `reopen` and `upgrade`. They speak HTTP and JSON with its admin socket.
//!
//! The crate knows nothing of the server. Its caller parses the command line, and prints errors.
#![forbid(unsafe_code)]

pub mod api;
mod client;
mod health;
mod orders;
mod services;
mod status;
pub mod text;
mod tls;
mod top;
mod users;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

pub use client::Error;
pub use services::{Change, Edit};

/// A command for a running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Print the state of the program.
    Status {
        /// Print JSON.
        json: bool,
    },
    /// Print what users have used of their quotas.
    Users {
        /// The user to reset. Otherwise, all users are shown.
        reset: Option<String>,
    },
    /// Print all services, and where each one comes from.
    Services {
        /// Print JSON.
        json: bool,
    },
    /// Change a service.
    Change(Change),
    /// Let the program read its configuration and its users again.
    Reload {
        /// End the sessions of users that are removed.
        end_sessions: bool,
    },
    /// Let the program open the file of its access log again.
    Reopen,
    /// Let the program hand over to a new process.
    Upgrade,
    /// Show a live view until the operator quits.
    Top,
}

/// Sends a command to the program behind this admin socket, with this token if the socket needs
/// one, and prints the answer. The code is 0 if the program has done what the command asks for. For
/// `status`, it must also be ready.
///
/// # Errors
/// Returns a sentence if there is no answer, or if the program refuses the command.
pub fn run(socket: &Path, token: Option<&str>, command: &Command) -> Result<ExitCode, Error> {
    token.map_or(Ok(()), client::authorize)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        Command::Status { json } => {
            let (text, is_ready) = runtime.block_on(status::text(socket, *json))?;
            let code = print(&text);
            Ok(if is_ready { code } else { ExitCode::FAILURE })
        }
        Command::Users { reset: None } => Ok(print(&runtime.block_on(users::list(socket))?)),
        Command::Users { reset: Some(user) } => Ok(print(&runtime.block_on(users::reset(socket, user))?)),
        Command::Services { json } => Ok(print(&runtime.block_on(services::list(socket, *json))?)),
        Command::Change(change) => Ok(print(&runtime.block_on(services::change(socket, change))?)),
        Command::Reload { end_sessions } => Ok(print(&runtime.block_on(orders::reload(socket, *end_sessions))?)),
        Command::Reopen => Ok(print(&runtime.block_on(orders::reopen(socket))?)),
        Command::Upgrade => runtime.block_on(orders::upgrade(socket)).map(|()| ExitCode::SUCCESS),
        Command::Top => top::run(runtime, socket).map(|()| ExitCode::SUCCESS),
    }
}

/// Prints the answer. The code is 0 if that worked.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
