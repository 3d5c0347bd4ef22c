//! Defines the command line: its options, their values and their help texts.

mod action;
mod args;
mod doctor;
mod generated;
mod hash_password;
mod print;
mod service;
#[cfg(test)]
mod tests;
mod tips;
mod token;
mod user;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use spliceway_lab::bench::{BenchCommand, RelayCommand};
use spliceway_operator as operator;

use crate::settings::config::{Config, KindArg};
use crate::settings::{Given, Origin, Source, check, settle};
use action::{Action, Refused, SocketArgs};
use args::ServiceArgs;
use doctor::DoctorArgs;
use service::{BACKEND_EXAMPLES, BackendCommand, SERVICE_EXAMPLES, ServiceCommand};
use token::TokenCommand;
use user::UserCommand;

#[cfg(test)]
pub(crate) use tests::typed;

/// Reads the command line.
pub(crate) fn parse() -> Action {
    let typed: Vec<_> = std::env::args_os().collect();
    let mut matches = match matches(&typed) {
        Ok(matches) => matches,
        Err(wrong) => return Action::Usage(wrong),
    };
    let names = names(&matches);
    let cli = match Cli::from_arg_matches_mut(&mut matches) {
        Ok(cli) => cli,
        Err(wrong) => return Action::Usage(wrong.format(&mut Cli::command())),
    };
    let wrong = match cli.action() {
        Ok(action) => return action,
        Err(Refused::Files(problem)) => return Action::Refuse(problem),
        Err(Refused::Usage(problem)) => problem,
    };
    let mut command = Cli::command();
    command.build();
    // The error shows the usage of the subcommand that was typed.
    for name in names {
        command = command.find_subcommand(name).cloned().unwrap_or(command);
    }
    Action::Usage(command.error(ErrorKind::ValueValidation, wrong))
}

/// Returns the names of the subcommand that was typed: `service`, `add`.
fn names(mut matches: &ArgMatches) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((name, of_subcommand)) = matches.subcommand() {
        names.push(name.to_owned());
        matches = of_subcommand;
    }
    names
}

/// Reads these words, of which the first one is the name of the program. An error has a tip if the
/// mistake is a usual one.
fn matches(typed: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let command = Cli::command();
    let matches = command.clone().try_get_matches_from(typed);
    matches.map_err(|wrong| tips::with_tip(wrong, typed.get(1..).unwrap_or_default(), &command))
}

const EXAMPLES: &str = "\
Examples:
  spliceway -l :8080 -r example.com:80         forward a port
  spliceway socks5                             SOCKS5 proxy for this machine
  spliceway http                               HTTP proxy for this machine
  spliceway mixed -l :1080 --auth-file users   SOCKS and HTTP proxy for users
  spliceway sni -l :443 --route NAME=HOST:PORT forward TLS clients by name
  spliceway run -c spliceway.toml              serve what a file describes
  spliceway user add users ann                 add a user to the file

`spliceway COMMAND --help` shows all options.";

const FORWARD_EXAMPLES: &str = "\
Examples:
  forward -l 127.0.0.1:8080 -r example.com:80
  forward -l :8000-8009 -r backend:9000-9009   ten ports to ten ports
  forward -l unix:/run/app.sock -r 10.0.0.7:80
  forward --udp -l :53 -r 10.0.0.7:53
  forward -l :80 -r 10.0.0.7:80 -r 10.0.0.8:80 --check http:/healthz
  forward -l :443 -r 10.0.0.7:443 --send-proxy v2
  forward -l :5432 -r db:5432 --allow 10.0.0.0/8 --metrics 127.0.0.1:9100";

const SOCKS5_EXAMPLES: &str = "\
Examples:
  socks5                                       on 127.0.0.1:1080
  socks5 -l :1080 --auth-file users            for users with passwords
  socks5 -l :1080 --allow 192.168.0.0/16       for a network
  socks5 -x socks5h://10.0.0.1:1080            through another proxy
  socks5 -l :1080 --open --rate-out 1MB:client for everybody, rate-limited";

const HTTP_EXAMPLES: &str = "\
Examples:
  http                                         on 127.0.0.1:8080
  http -l :3128 --auth-file users              for users with passwords
  http -l :3128 --allow 192.168.0.0/16         for a network
  http -x http://proxy.example.com:3128        through another proxy
  http -l :3128 --open --max-conns-per-ip 100  for everybody";

const MIXED_EXAMPLES: &str = "\
Examples:
  mixed                                            on 127.0.0.1:1080
  mixed -l :1080 --auth-file users                 for users; refuses SOCKS4
  mixed -l :1080 --allow 192.168.0.0/16            for a network
  mixed -l unix:/run/proxy.sock,mode=0660 --open   for a group on this machine
  mixed -l :1080 --open --metrics 127.0.0.1:9100   for everybody, with metrics";

const TRANSPARENT_EXAMPLES: &str = "\
Examples:
  transparent -l :9040 --allow 192.168.0.0/16  behind a rule with REDIRECT
  transparent -l :9040 --allow 192.168.0.0/16 --tproxy
  transparent -l 127.0.0.1:9040 -l [::1]:9040  for this machine
  transparent -l :9040 --open --names --to-allow '*.example.com:443'
  transparent -l :9040 --open -x socks5://10.0.0.1:1080

docs/transparent.md has the rules for nft and ip.";

const SNI_EXAMPLES: &str = "\
Examples:
  sni -l :443 --route a.example=10.0.0.7:443 --route '*.b.example=10.0.0.8:443'
  sni -l :443 --route a.example=10.0.0.7:443 --default-target 10.0.0.9:443
  sni -l :443 --route a.example/h2=10.0.0.7:8443 --route a.example=10.0.0.7:443
  sni -l :443 --route a.example=10.0.0.7:443 --send-proxy v2";

const RUN_EXAMPLES: &str = "\
Examples:
  spliceway run -c /etc/spliceway/spliceway.toml
  spliceway run -c /etc/spliceway              every file *.toml of a folder";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  spliceway completions bash > /etc/bash_completion.d/spliceway
  spliceway completions zsh > /usr/local/share/zsh/site-functions/_spliceway
  spliceway completions fish > ~/.config/fish/completions/spliceway.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  spliceway man | man -l -                     read the page of the program
  spliceway man /usr/local/share/man           install all pages";

const HASH_EXAMPLES: &str = "\
Examples:
  spliceway hash-password                      asks for the password twice
  spliceway hash-password ann                  prints a line of a user file
  pass show proxy | spliceway hash-password    reads it from a pipe

`spliceway user add FILE NAME` adds the line to a file.";

const USER_EXAMPLES: &str = "\
Examples:
  spliceway user add users ann                 asks for the password twice
  pass show proxy | spliceway user add users ann
  spliceway user passwd users ann
  spliceway user del users ann && spliceway reload --end-sessions
  spliceway user list users

The other lines of the file stay as they are. A running program reads the file
again at `spliceway reload` or SIGHUP.";

const TOKEN_EXAMPLES: &str = "\
Examples:
  spliceway token add tokens panel --scope read,sessions
  spliceway token del tokens panel && spliceway reload
  spliceway token list tokens

The scopes are `read` (the state), `sessions` (end sessions), `drain` (drain
services, set weights) and `write` (everything else). The file has only hashes.
--admin-remote and --admin-tokens open a socket for the holders of tokens.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  spliceway doctor                             does zero copy work here?
  spliceway doctor -v                          every check with its details
  spliceway doctor -c main.toml                will this configuration work?
  spliceway doctor --json | jq '.checks[] | select(.verdict != \"ok\")'";

const BENCH_EXAMPLES: &str = "\
Examples:
  spliceway bench --quick                      in 20 seconds
  spliceway bench --svg bench.svg              in 3 minutes, with charts
  spliceway bench --only bulk,pool --json
  spliceway bench --tls                        whether --ktls helps here
  spliceway bench --listen 0.0.0.0:9000 --against 10.0.0.7:8000
                                               through a relay elsewhere that
                                               forwards to port 9000 here";

const TOP_EXAMPLES: &str = "\
Examples:
  spliceway top                                of the service of this machine
  spliceway top --admin unix:/tmp/a.sock";

const REOPEN_EXAMPLES: &str = "Examples:
  spliceway reopen                             in `postrotate` of logrotate
  spliceway reopen --admin unix:/tmp/a.sock";

const STATUS_EXAMPLES: &str = "\
Examples:
  spliceway status                             of the service of this machine
  spliceway status --admin unix:/tmp/a.sock
  spliceway status --json | jq .services";

/// The end of the long help for every command that starts a service.
macro_rules! long_help {
    ($examples:expr) => {
        [
            $examples,
            "\n\n\
Signals:
  TERM, INT   stop accepting, and give transfers --drain-timeout to finish.
              A second TERM or INT stops immediately
  HUP         read the files again: the configuration, the users and the
              rules. Without a configuration file, HUP stops the program if
              its terminal is gone, and is ignored if it was ignored at the
              start (nohup)
  USR1        open the file of --access-log again, after a rename, as
              `spliceway reopen` does
  USR2        start the program again, and hand listeners and sessions over

Exit codes:
  0  stopped by a signal, and no session was cut
  1  failed at run time
  2  bad usage, or a bad configuration file
  3  stopped by a signal, and sessions were cut

Times have the units ms, s, m, h or d: 500ms, 1h30m. Rates are bytes per
second: 10MB, 500KiB. A CIDR option also accepts a single address.",
        ]
        .concat()
    };
}

/// Forwards and proxies TCP, and forwards UDP.
///
/// Bulk data of TCP stays in the kernel.
/// `spliceway -l ADDR -r HOST:PORT` is short for `spliceway forward -l ADDR -r HOST:PORT`.
#[derive(Parser, Debug)]
#[command(
    name = "spliceway",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    max_term_width = 80,
    after_help = EXAMPLES,
    after_long_help = long_help!(EXAMPLES)
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    forward: ServiceArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Forward a port to one target, or to several backends
    #[command(after_help = FORWARD_EXAMPLES, after_long_help = long_help!(FORWARD_EXAMPLES))]
    Forward(ServiceArgs),
    /// Serve SOCKS5: CONNECT, BIND and UDP ASSOCIATE
    #[command(after_help = SOCKS5_EXAMPLES, after_long_help = long_help!(SOCKS5_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.required(false).default_value("127.0.0.1:1080")))]
    Socks5(ServiceArgs),
    /// Serve HTTP: CONNECT, and requests with an absolute URI
    #[command(after_help = HTTP_EXAMPLES, after_long_help = long_help!(HTTP_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.required(false).default_value("127.0.0.1:8080")))]
    Http(ServiceArgs),
    /// Serve SOCKS4, SOCKS4a, SOCKS5 and HTTP on one port
    #[command(after_help = MIXED_EXAMPLES, after_long_help = long_help!(MIXED_EXAMPLES))]
    #[command(mut_arg("listen", |listen| listen.required(false).default_value("127.0.0.1:1080")))]
    Mixed(ServiceArgs),
    /// Serve clients whose connections a firewall rule has redirected here
    #[command(after_help = TRANSPARENT_EXAMPLES, after_long_help = long_help!(TRANSPARENT_EXAMPLES))]
    Transparent(ServiceArgs),
    /// Forward TLS clients by the name that they state, without decryption
    #[command(after_help = SNI_EXAMPLES, after_long_help = long_help!(SNI_EXAMPLES))]
    Sni(ServiceArgs),
    /// Serve what a configuration file describes
    #[command(after_help = RUN_EXAMPLES, after_long_help = long_help!(RUN_EXAMPLES))]
    Run(ConfigArgs),
    /// Check a configuration file, and print what it means
    Check(ConfigArgs),
    /// Print the configuration file that a command line means
    PrintConfig {
        /// Command line of a service, such as `socks5 -l :1080 --auth-file users`
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            required = true,
            value_name = "FLAGS"
        )]
        flags: Vec<OsString>,
    },
    /// Print the JSON schema of configuration files, for editors
    Schema {
        /// Print the OpenAPI document of the admin socket, for client generators
        #[arg(long)]
        openapi: bool,
    },
    /// Add, remove and list the users in the file of --auth-file, and set passwords
    #[command(after_help = USER_EXAMPLES)]
    User {
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Add, remove and list the tokens in the file of --admin-tokens
    #[command(after_help = TOKEN_EXAMPLES)]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Read a password and print its hash for --auth-file
    #[command(after_help = HASH_EXAMPLES)]
    HashPassword {
        /// Name of the user, to print the line NAME:HASH
        #[arg(value_parser = user::name)]
        name: Option<String>,
    },
    /// Try on this machine what zero copy needs, or what a configuration needs
    ///
    /// The exit code is 0 if zero copy works, or if the configuration has no fault.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Compare splice with copies on this machine: rate, CPU time and latency
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchCommand),
    #[command(hide = true)]
    BenchRelay(RelayCommand),
    /// Show the state of a running program. The exit code is 0 if it is ready
    #[command(after_help = STATUS_EXAMPLES)]
    Status {
        #[command(flatten)]
        socket: SocketArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what the users of a running program have used of their quotas
    Users {
        #[command(flatten)]
        socket: SocketArgs,
        /// Set what this user has used to 0
        #[arg(long, value_name = "USER")]
        reset: Option<String>,
    },
    /// Add, change, remove and list the services of a running program
    #[command(after_help = SERVICE_EXAMPLES)]
    Service {
        #[command(subcommand)]
        command: ServiceCommand,
    },
    /// Add targets to a service of a running program, and remove them
    #[command(after_help = BACKEND_EXAMPLES)]
    Backend {
        #[command(subcommand)]
        command: BackendCommand,
    },
    /// Let a running program open the file of its access log again, after a rename
    #[command(after_help = REOPEN_EXAMPLES)]
    Reopen(SocketArgs),
    /// Let a running program hand over to a new process. The exit code is 0 if it has
    Upgrade(SocketArgs),
    /// Watch the sessions of a running program, and end them
    #[command(after_help = TOP_EXAMPLES)]
    Top(SocketArgs),
    /// Make a running program read its configuration and its users again
    Reload {
        #[command(flatten)]
        socket: SocketArgs,
        /// End the sessions of users that are removed
        #[arg(long)]
        end_sessions: bool,
    },
    /// Print completions for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// Shell that reads the completions
        #[arg(value_parser = generated::shell())]
        shell: Shell,
    },
    /// Print the manual page, or write all pages
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Folder for the pages: man1 has the commands, and man5 the configuration file
        folder: Option<PathBuf>,
    },
}

/// The configuration that a command reads, with or without a flag.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct ConfigArgs {
    /// File, or folder whose files `*.toml` are read in the order of their names
    #[arg(short, long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// The path, as for --config
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

impl ConfigArgs {
    fn path(self) -> PathBuf {
        self.config.or(self.path).expect("the command needs one of them")
    }
}

impl Cli {
    /// Returns the action, with checked settings.
    ///
    /// # Errors
    /// Returns an error for a fault that clap cannot detect.
    fn action(self) -> Result<Action, Refused> {
        match self.command {
            Some(Command::HashPassword { name }) => Ok(Action::HashPassword(name)),
            Some(Command::User { command }) => Ok(Action::User(command)),
            Some(Command::Service { command }) => command.action(),
            Some(Command::Backend { command }) => command.action(),
            Some(Command::Token { command }) => Ok(Action::Token(command)),
            Some(Command::Reload { socket, end_sessions }) => {
                socket.operate(operator::Command::Reload { end_sessions })
            }
            Some(Command::Users { socket, reset }) => socket.operate(operator::Command::Users { reset }),
            Some(Command::Reopen(socket)) => socket.operate(operator::Command::Reopen),
            Some(Command::Upgrade(socket)) => socket.operate(operator::Command::Upgrade),
            Some(Command::Top(socket)) => socket.operate(operator::Command::Top),
            Some(Command::Status { socket, json }) => socket.operate(operator::Command::Status { json }),
            Some(Command::Doctor(arguments)) => Ok(Action::Doctor(arguments)),
            Some(Command::Bench(command)) => Ok(Action::Bench(Box::new(command))),
            Some(Command::BenchRelay(command)) => Ok(Action::BenchRelay(command)),
            Some(Command::Completions { shell }) => Ok(Action::Print(generated::completions(Self::command(), shell))),
            Some(Command::Man { folder }) => Ok(match folder {
                Some(folder) => Action::Write(folder, generated::pages(&Self::command())),
                None => Action::Print(generated::page(&Self::command())),
            }),
            Some(Command::Run(config)) => {
                let source = Source::Files(config.path());
                let settings = source.settings(Given::default()).map_err(Refused::Files)?;
                Ok(Action::Serve(Box::new(settings), source))
            }
            Some(Command::Check(config)) => {
                let config = config.path();
                let settings = check(&config).map_err(Refused::Files)?;
                Ok(Action::Print(print::summary(&config, &settings)))
            }
            Some(Command::Schema { openapi: false }) => Ok(Action::Print(print::schema())),
            Some(Command::Schema { openapi: true }) => Ok(Action::Print(print::openapi())),
            Some(Command::PrintConfig { flags }) => {
                let program = OsString::from("spliceway");
                let typed: Vec<_> = std::iter::once(program).chain(flags).collect();
                let cli = matches(&typed).and_then(|matches| Self::from_arg_matches(&matches));
                let cli = cli.unwrap_or_else(|wrong| wrong.exit());
                let Some(config) = cli.config() else {
                    return Err(Refused::Usage(
                        "expected the flags of a service after print-config".to_owned(),
                    ));
                };
                settle(&config, Origin::CommandLine).map_err(Refused::Usage)?;
                Ok(Action::Print(print::toml(config)))
            }
            _ => {
                let config = self.config().expect("every other command serves");
                let source = Source::CommandLine(Box::new(config));
                let settings = source.settings(Given::default()).map_err(Refused::Usage)?;
                Ok(Action::Serve(Box::new(settings), source))
            }
        }
    }

    /// Returns the configuration that the flags mean, or `None` for a command that has none.
    fn config(self) -> Option<Config> {
        let (args, kind) = match self.command {
            None => (self.forward, KindArg::Forward),
            Some(Command::Forward(args)) => (args, KindArg::Forward),
            Some(Command::Socks5(args)) => (args, KindArg::Socks5),
            Some(Command::Http(args)) => (args, KindArg::Http),
            Some(Command::Mixed(args)) => (args, KindArg::Mixed),
            Some(Command::Transparent(args)) => (args, KindArg::Transparent),
            Some(Command::Sni(args)) => (args, KindArg::Sni),
            _ => return None,
        };
        Some(args.config(kind))
    }
}
