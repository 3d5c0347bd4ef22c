//! The command `spliceway token`: lists and changes the tokens in a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tracing::Level;

use super::hash_password;
use super::user::{self, apply, list, print};
use crate::access::auth::tokens::{Scopes, create};
use crate::access::auth::{Edit, FileKind, What};
use crate::log;

/// What to do with a file of tokens.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Add a token and print it. The file is created if there is none
    Add {
        #[command(flatten)]
        token: TokenArgs,
        /// What the token permits: `read`, `sessions`, `drain` and `write`, separated by commas
        #[arg(long, value_name = "SCOPES", value_parser = Scopes::parse, required = true)]
        scope: Scopes,
    },
    /// Remove a token
    #[command(visible_alias = "rm")]
    Del(TokenArgs),
    /// Print the names and the scopes of all tokens
    List {
        /// File of tokens
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// File of tokens, as given to --admin-tokens
    file: PathBuf,
    /// Name for the token. The log has it in each line about a change
    #[arg(value_parser = user::name)]
    name: String,
}

impl TokenArgs {
    fn edit(self, what: What) -> Edit {
        let Self { file: path, name } = self;
        let kind = FileKind::Tokens;
        Edit { path, kind, name, what }
    }
}

pub(super) fn run(command: TokenCommand) -> ExitCode {
    const READ: &str = "A running program reads the file at `spliceway reload` or SIGHUP.";
    match command {
        TokenCommand::Add { token, scope } => {
            let (edit, (text, line)) = (token.edit(What::Add), create(&scope));
            match apply(&edit, || Ok(line)) {
                // Only the token is on standard output, for scripts.
                Ok(()) => {
                    let (path, name) = (edit.path.display(), &edit.name);
                    log::announce(
                        Level::INFO,
                        &format_args!("{path}: {name} was added. {READ} The token is shown only now:"),
                    );
                    print(&(text + "\n"))
                }
                Err(error) => hash_password::failed(&error),
            }
        }
        TokenCommand::Del(token) => {
            let edit = token.edit(What::Remove);
            match apply(&edit, || Ok(String::new())) {
                Ok(()) => print(&format!("{}: {} was removed. {READ}\n", edit.path.display(), edit.name)),
                Err(error) => hash_password::failed(&error),
            }
        }
        TokenCommand::List { file } => list(&file, FileKind::Tokens),
    }
}
