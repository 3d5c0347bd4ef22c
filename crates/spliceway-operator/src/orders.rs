//! The commands `spliceway reload`, `spliceway reopen` and `spliceway upgrade`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use hyper::Method;

use crate::api::Status;
use crate::client::{self, Error};
use crate::text::count;

/// The time limit for a reload, or for a change of services. A name to listen on may have to be
/// looked up.
pub(crate) const RELOAD_PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for an upgrade without sessions. A new process starts meanwhile.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(60);
/// The time limit for each session that moves, ten times what it takes on a busy machine.
const MOVE_PATIENCE: Duration = Duration::from_millis(2);

/// Lets the program reload, and returns what changed.
pub(crate) async fn reload(socket: &Path, end_sessions: bool) -> Result<String, Error> {
    let path = if end_sessions {
        "/v1/reload?end-sessions"
    } else {
        "/v1/reload"
    };
    let done = client::order(socket, Method::POST, path, RELOAD_PATIENCE).await?;
    Ok(done + "\n")
}

/// Lets the program open the file of its access log again, and returns which one that is.
pub(crate) async fn reopen(socket: &Path) -> Result<String, Error> {
    let done = client::order(socket, Method::POST, "/v1/reopen", client::PATIENCE).await?;
    Ok(done
        + "
")
}

/// Lets the program hand over to a new process, and prints each step.
pub(crate) async fn upgrade(socket: &Path) -> Result<(), Error> {
    let before: Status = client::get(socket, "/v1/status").await?;
    let (pid, active) = (before.pid.unwrap_or_default(), before.sessions.active);
    say(&format!("process {pid} hands over {}", count(active, "session")));
    let patience = upgrade_patience(active);
    say(&client::order(socket, Method::POST, "/v1/upgrade", patience).await?);
    let after: Status = client::get(socket, "/v1/status").await?;
    let (pid, active) = (after.pid.unwrap_or_default(), after.sessions.active);
    say(&format!(
        "process {pid} is {}, with {}",
        after.state,
        count(active, "session")
    ));
    Ok(())
}

/// Returns how long to wait for an upgrade with this number of sessions.
fn upgrade_patience(sessions: u64) -> Duration {
    let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
    UPGRADE_PATIENCE + MOVE_PATIENCE * sessions
}

fn say(line: &str) {
    // A closed stdout only loses this line. The exit code tells the result.
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_with_more_sessions_may_take_longer() {
        assert_eq!(upgrade_patience(0), UPGRADE_PATIENCE);
        assert_eq!(upgrade_patience(100_000), UPGRADE_PATIENCE + Duration::from_secs(200));
        assert!(upgrade_patience(u64::MAX) > UPGRADE_PATIENCE);
    }
}
