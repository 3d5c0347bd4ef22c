//! The command `spliceway reload`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;

use crate::monitor::admin::client;
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
