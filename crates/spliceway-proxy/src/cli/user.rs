//! The command `spliceway user`: lists and changes the users in a file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tracing::Level;

use super::hash_password;
use crate::access::auth::{self, Edit, FileKind, What};
use crate::log;

/// What to do with a user file.
#[derive(Subcommand, Debug)]
pub(crate) enum UserCommand {
    /// Add a user. The file is created if there is none
    Add(UserArgs),
    /// Remove a user
    Del(UserArgs),
    /// Print the names of all users
    List {
        /// File of users
        file: PathBuf,
    },
    /// Set the password of a user
    Passwd(UserArgs),
}

#[derive(Args, Debug)]
pub(crate) struct UserArgs {
    /// File of users, as given to --auth-file
    file: PathBuf,
    /// Name of the user
    #[arg(value_parser = name)]
    name: String,
}

/// Parses the name of a user.
pub(super) fn name(text: &str) -> Result<String, &'static str> {
    auth::check_name(text).map(|()| text.to_owned())
}

pub(super) fn run(command: UserCommand) -> ExitCode {
    match command {
        UserCommand::Add(user) => change(user, What::Add),
        UserCommand::Passwd(user) => change(user, What::SetPassword),
        UserCommand::Del(user) => change(user, What::Remove),
        UserCommand::List { file } => list(&file, FileKind::Users),
    }
}

/// Prints a line for each user or token of a file.
pub(super) fn list(file: &Path, kind: FileKind) -> ExitCode {
    match auth::listed(file, kind) {
        Ok((lines, warnings)) => {
            warn(&warnings);
            print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        }
        Err(error) => hash_password::failed(&io::Error::other(error.to_string())),
    }
}

fn change(UserArgs { file: path, name }: UserArgs, what: What) -> ExitCode {
    let kind = FileKind::Users;
    let edit = Edit { path, kind, name, what };
    let secret = || match what {
        What::Remove => Ok(String::new()),
        What::Add | What::SetPassword => hash_password::hash(),
    };
    match apply(&edit, secret) {
        Ok(()) => print(&done(&edit)),
        Err(error) => hash_password::failed(&error),
    }
}

/// Changes a file, and prints warnings about its lines. The change is checked before the secret of
/// a new line is asked for.
pub(super) fn apply(edit: &Edit, secret: impl FnOnce() -> io::Result<String>) -> io::Result<()> {
    let failed = |error: auth::EditError| io::Error::other(error.to_string());
    edit.check().map_err(failed)?;
    warn(&edit.apply(&secret()?).map_err(failed)?);
    Ok(())
}

/// Says what was done, and when a program knows it.
fn done(Edit { path, name, what, .. }: &Edit) -> String {
    let path = path.display();
    let (done, reload) = match what {
        What::Add => (format!("{name} was added"), "`spliceway reload` or SIGHUP"),
        What::SetPassword => (format!("{name} has a new password"), "`spliceway reload` or SIGHUP"),
        What::Remove => (
            format!("{name} was removed"),
            "`spliceway reload` or SIGHUP (`spliceway reload --end-sessions` also ends the user's sessions)",
        ),
    };
    format!("{path}: {done}. A running program reads the file at {reload}.\n")
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        log::announce(Level::WARN, &format_args!("warning: {warning}"));
    }
}

pub(super) fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => hash_password::failed(&error),
    }
}
