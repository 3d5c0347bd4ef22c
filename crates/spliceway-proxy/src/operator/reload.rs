//! The command `spliceway reload`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;

use super::conversation::{answered, failed, printed};
use crate::monitor::admin::client::{self, NoAnswer};
use crate::monitor::admin::view::Said;

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
    let path = if command.end_sessions {
        "/v1/reload?end-sessions"
    } else {
        "/v1/reload"
    };
    let said = answered(async {
        let body = client::request(&command.socket, Method::POST, path, PATIENCE).await?;
        client::parse(&body).map_err(|error| NoAnswer::unexpected(&command.socket, &error))
    });
    match said {
        Ok(Said::Done(done)) => printed(&format!("{done}\n")),
        Ok(Said::Error(error)) => failed(&error),
        Err(code) => code,
    }
}
