//! What all commands share: one conversation with the program, and its error on stderr.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::monitor::admin::client::NoAnswer;

/// Runs a conversation with the program. If it fails, prints the reason and returns the exit code.
pub(super) fn answered<T>(conversation: impl Future<Output = Result<T, NoAnswer>>) -> Result<T, ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(conversation)) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(&error)),
        Err(error) => Err(failed(&error)),
    }
}

/// Prints why a command has failed.
pub(super) fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    crate::log::announce(&format_args!("spliceway: {error}"));
    ExitCode::FAILURE
}

/// Prints the answer. The code is 0 if that worked.
pub(super) fn printed(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
