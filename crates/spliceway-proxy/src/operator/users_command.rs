//! The command `spliceway users`: shows what the users of a running program have used, and empties
//! it for one of them.

use std::path::PathBuf;
use std::process::ExitCode;

use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::conversation::{answered, printed};
use crate::monitor::admin::client::{self, NoAnswer, PATIENCE};
use crate::monitor::admin::view::{Said, UserPage};
use crate::operator::status;

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsersCommand {
    pub(crate) socket: PathBuf,
    /// The user to reset. Otherwise, all users are shown.
    pub(crate) reset: Option<String>,
}

/// Prints the users, or resets one. The code is 0 if the program has answered.
pub(crate) fn run(command: &UsersCommand) -> ExitCode {
    let text = answered(async {
        match &command.reset {
            Some(user) => reset(command, user).await,
            None => list(command).await,
        }
    });
    text.map_or_else(|code| code, |text| printed(&text))
}

async fn list(command: &UsersCommand) -> Result<String, NoAnswer> {
    let (mut users, mut path) = (Vec::new(), "/v1/users?limit=1000".to_owned());
    loop {
        let page: UserPage = client::get(&command.socket, &path).await?;
        users.extend(page.users);
        let Some(next) = page.next else { break };
        path = format!("/v1/users?limit=1000&after={}", encoded(&next));
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = status::users(&mut text, &users);
    Ok(text)
}

async fn reset(command: &UsersCommand, user: &str) -> Result<String, NoAnswer> {
    let path = format!("/v1/users/{}/reset", encoded(user));
    let body = client::request(&command.socket, Method::POST, &path, PATIENCE).await?;
    let said = client::parse(&body).map_err(|error| NoAnswer::unexpected(&command.socket, &error))?;
    let (Said::Done(text) | Said::Error(text)) = said;
    Ok(text + "\n")
}

fn encoded(user: &str) -> String {
    utf8_percent_encode(user, NON_ALPHANUMERIC).to_string()
}
