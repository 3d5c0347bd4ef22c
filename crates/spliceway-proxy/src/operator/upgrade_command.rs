//! The command `spliceway upgrade`: lets a running program hand over to a new process, and prints
//! what it says.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;

use super::conversation::answered;
use crate::monitor::admin::client::{self, NoAnswer};
use crate::monitor::admin::view::{Said, Status};

/// The longest time until the answer. A new process starts meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the program behind `socket`. The code is 0 if the new process serves.
pub(crate) fn run(socket: &Path) -> ExitCode {
    match answered(ask(socket)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(code) => code,
    }
}

async fn ask(socket: &Path) -> Result<(), NoAnswer> {
    let before: Status = client::get(socket, "/v1/status").await?;
    let (pid, active) = (before.pid.unwrap_or_default(), before.sessions.active);
    say(&format!("process {pid} hands over {active} sessions"));
    let answer = client::request(socket, Method::POST, "/v1/upgrade", PATIENCE).await?;
    match client::parse(&answer) {
        Ok(Said::Done(done)) => say(&done),
        _ => return Err(NoAnswer::unexpected(socket, &"no sentence")),
    }
    let after: Status = client::get(socket, "/v1/status").await?;
    let (pid, active) = (after.pid.unwrap_or_default(), after.sessions.active);
    say(&format!("process {pid} is {}, with {active} sessions", after.state));
    Ok(())
}

fn say(line: &str) {
    // A closed stdout only loses this line. The exit code tells the result.
    let _ = writeln!(io::stdout(), "{line}");
}
