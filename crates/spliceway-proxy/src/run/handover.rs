//! Hands the running program over to a new process: listeners, then sessions, one by one.
//!
//! ```text
//!   old process                                  new process
//!   starts it, with a socket as stdin ─────────▶ reads its own configuration
//!   Hello, Listener …, Given, Prepare ─────────▶ builds everything
//!                  ◀──────────────────────────── Ready, or Refused: the old one serves on
//!   Serve, with the counters ──────────────────▶ starts its services
//!                  ◀──────────────────────────── Serving
//!   Service …: penalties, rate limits ─────────▶ adds them to its own
//!   suspends a relay, Session ─────────────────▶ holds the session
//!                  ◀──────────────────────────── Taken: it owns the session, and resumes the relay
//!   pauses its accept tasks, Service …, Accept ▶ may accept
//!                  ◀──────────────────────────── Accepting, and then the commit: it owns the listeners
//!   closes its listeners and drains; sessions
//!   that begin to relay follow; Totals, end ───▶ serves alone
//! ```
//!
//! `owner.rs` says who owns a session at each moment. `docs/design/009-live-hand-over.md` says what
//! is handed over and what is not.

mod give;
mod give_up;
mod link;
mod message;
mod new_process;
mod owner;
mod sessions;
mod state;
mod take;
mod tls;
mod trouble;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

pub(super) use give::{Handover, Upgrade, Upgraded};
pub(super) use give_up::GiveUp;
pub(super) use take::{OldProcess, Successor};

/// The environment variable that tells a new process that its standard input is the socket of the
/// old one.
const VARIABLE: &str = "SPLICEWAY_HANDOVER";

/// The most data of a message, which may take several frames. The metrics of 40 services with 256
/// backends each have about 10 MiB.
const LONG_MAX_BYTES: usize = 64 << 20;

/// The program that takes over: the file and the arguments that this process was started with.
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program of this process.
    ///
    /// If it was started with a path, this is the path, so that a link can be moved to another
    /// version. If the shell found it by its name, it is the file that was found, or the file that
    /// has replaced it.
    ///
    /// # Errors
    /// Returns an error if the path is relative and the working directory is gone.
    pub(super) fn of_this_process() -> std::io::Result<Self> {
        let mut arguments = std::env::args_os();
        let typed = arguments.next().unwrap_or_default();
        let path = if typed.as_bytes().contains(&b'/') {
            std::env::current_dir()?.join(typed)
        } else {
            // Without /proc, an upgrade searches the directories of `PATH`, as the shell did.
            std::env::current_exe().map_or_else(|_| typed.into(), without_suffix)
        };
        Ok(Self {
            path,
            arguments: arguments.collect(),
        })
    }
}

/// Removes what the kernel appends to the name of a file that was removed.
fn without_suffix(path: PathBuf) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    OsString::from_vec(bytes.to_vec()).into()
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_has_the_name_of_the_one_that_replaced_it() {
        for (name, expected) in [("/a/b (deleted)", "/a/b"), ("/a/b", "/a/b"), (" (deleted)", "")] {
            assert_eq!(without_suffix(name.into()), PathBuf::from(expected));
        }
    }
}
