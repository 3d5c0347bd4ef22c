//! What a command line asks for, and how the program does it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use spliceway_lab::bench::{self, BenchCommand, RelayCommand};
use tracing::Level;

use super::doctor::{self, DoctorArgs};
use super::hash_password;
use super::token::{self, TokenCommand};
use super::user::{self, UserCommand};
use crate::kit::{limits, named_file};
use crate::log;
use crate::run::lifetime;
use crate::settings::config::admin_path;
use crate::settings::{Settings, Source};

/// The variable for the token of the operator.
const TOKEN_VARIABLE: &str = "SPLICEWAY_TOKEN";
/// The maximum size of a file with one token.
const TOKEN_MAX_BYTES: usize = 4 << 10;

/// The action that the command line requests.
#[derive(Debug)]
pub(crate) enum Action {
    /// Serve with settings from this source.
    Serve(Box<Settings>, Source),
    /// Print a text that the command has made.
    Print(String),
    /// Write these files, each with its path, below this folder.
    Write(PathBuf, Vec<(String, String)>),
    /// Print the help, or say what is wrong with the command line, and end with code 2.
    Usage(clap::Error),
    /// Say what is wrong with a file, and end with code 2.
    Refuse(String),
    /// Print the hash of a password, or the line of this user.
    HashPassword(Option<String>),
    /// List or change the users in a file.
    User(UserCommand),
    /// List or change the tokens in a file.
    Token(TokenCommand),
    /// Send a command to the program behind this admin socket, with the token in this file.
    Operate(PathBuf, Option<PathBuf>, spliceway_operator::Command),
    Doctor(DoctorArgs),
    Bench(Box<BenchCommand>),
    /// Be one of the relays that `bench` compares.
    BenchRelay(RelayCommand),
}

/// Why a command line does not lead to an action.
#[derive(Debug)]
pub(super) enum Refused {
    /// The flags are at fault. The usage may help.
    Usage(String),
    /// The files are at fault.
    Files(String),
}

/// The running program that a command asks.
#[derive(Args, Debug)]
pub(super) struct SocketArgs {
    /// Admin socket of the running program, as given to its --admin
    #[arg(
        long,
        value_name = "unix:PATH",
        env = "SPLICEWAY_ADMIN",
        default_value = "unix:/run/spliceway/admin.sock",
        value_parser = admin_path
    )]
    admin: PathBuf,
    /// File with the token for a socket of --admin-remote [default: the token in SPLICEWAY_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl SocketArgs {
    pub(super) fn operate(self, command: spliceway_operator::Command) -> Result<Action, Refused> {
        Ok(Action::Operate(self.admin, self.token_file, command))
    }
}

impl Action {
    pub(crate) fn carry_out(self) -> ExitCode {
        match self {
            Self::Serve(settings, source) => lifetime::serve(*settings, source),
            Self::Print(text) => ended(io::stdout().write_all(text.as_bytes()).map(success)),
            Self::Write(folder, files) => ended(write_files(&folder, &files).map(success)),
            Self::Usage(wrong) if wrong.use_stderr() && lifetime::refuse_upgrade(&wrong.to_string()) => {
                ExitCode::from(lifetime::USAGE)
            }
            Self::Usage(wrong) => wrong.exit(),
            Self::Refuse(problem) => lifetime::refuse(&problem),
            Self::HashPassword(name) => hash_password::run(name.as_deref()),
            Self::User(command) => user::run(command),
            Self::Token(command) => token::run(command),
            Self::Operate(socket, token, command) => operate(&socket, token.as_deref(), &command),
            Self::Doctor(arguments) => ended(doctor::run(arguments)),
            Self::Bench(command) => ended(limits::raise_descriptors(None).and_then(|_| bench::run(&command))),
            Self::BenchRelay(command) => {
                let served = limits::raise_descriptors(None).and_then(|_| bench::serve(&command));
                ended(served.map(success))
            }
        }
    }
}

fn operate(socket: &Path, token_file: Option<&Path>, command: &spliceway_operator::Command) -> ExitCode {
    let token = match token(token_file) {
        Ok(token) => token,
        Err(why) => {
            log::announce(Level::ERROR, &format_args!("spliceway: {why}"));
            return ExitCode::FAILURE;
        }
    };
    spliceway_operator::run(socket, token.as_deref(), command).unwrap_or_else(|error| {
        log::announce(Level::ERROR, &format_args!("spliceway: {error}"));
        if error.is_fault() {
            ExitCode::from(lifetime::USAGE)
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Returns the token of the operator, if there is one.
fn token(file: Option<&Path>) -> Result<Option<String>, String> {
    let text = match file {
        Some(file) => {
            let read = named_file::read(file, TOKEN_MAX_BYTES);
            Some(read.map_err(|why| format!("{}: {why}", file.display()))?.text)
        }
        None => std::env::var(TOKEN_VARIABLE).ok(),
    };
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
}

/// Writes these files, each with its path. The folder of a file need not exist.
fn write_files(folder: &Path, files: &[(String, String)]) -> io::Result<()> {
    for (name, text) in files {
        let path = folder.join(name);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if let Some(below) = path.parent().filter(|below| !below.exists()) {
            std::fs::create_dir(below).map_err(named)?;
        }
        std::fs::write(&path, text).map_err(named)?;
    }
    Ok(())
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

fn ended(result: io::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| lifetime::failed(&error.into()))
}
