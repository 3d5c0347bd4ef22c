//! Says what to type instead of a wrong command line. Many operators know the options of another
//! program.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use spliceway_protocol::address::{ListenRange, Target};

/// The options of other programs, and what to type here.
const OPTIONS: [(&[&str], &str); 16] = [
    (
        &["-c", "-f", "-C", "--config", "--conf", "--file"],
        "to serve what a file describes, type spliceway run FILE",
    ),
    (
        &["-t", "-T", "--test"],
        "to check a file, type spliceway check FILE. A target is -r HOST:PORT",
    ),
    (
        &[
            "-p",
            "-i",
            "-b",
            "--port",
            "--bind",
            "--host",
            "--address",
            "--addr",
            "--ip",
        ],
        "to listen somewhere, type -l IP:PORT, or -l :PORT for all addresses",
    ),
    (
        &["-L", "--local"],
        "to listen somewhere, type the kind and the address, such as spliceway socks5 -l 127.0.0.1:1080",
    ),
    (
        &["-F", "--forward", "--proxy", "--parent", "--upstream"],
        "for an upstream proxy, type -x socks5://HOST:PORT or another URL",
    ),
    (
        &[
            "--target",
            "--server",
            "--backend",
            "--connect",
            "--dest",
            "--destination",
            "--dst",
        ],
        "for the target, type -r HOST:PORT",
    ),
    (
        &["-u", "-P", "-U", "--user", "--username", "--pass", "--password"],
        "for users with passwords, type --auth-file FILE: spliceway user add FILE NAME writes it",
    ),
    (
        &["-d", "-D", "-W", "-Ws", "--daemon", "--daemonize", "--background"],
        "the program stays in the foreground: start it by systemd, or type & after the command",
    ),
    (
        &["-s", "-sf", "-st", "--signal"],
        "for a running program, type spliceway reload or spliceway upgrade. SIGTERM stops it",
    ),
    (
        &["--timeout"],
        "each time limit has its own option: --connect-timeout, --handshake-timeout or --idle-timeout",
    ),
    (
        &["--cert", "--crt", "--certificate"],
        "for a certificate, type --tls-cert FILE",
    ),
    (&["--key"], "for the key of a certificate, type --tls-key FILE"),
    (
        &["--tls", "--ssl"],
        "for TLS, give a certificate: --tls-cert FILE. A target with TLS is -r tls://HOST:PORT",
    ),
    (
        &["-v", "-vv", "--verbose", "--debug"],
        "for more lines in the log, type --log-level debug. -V shows the version",
    ),
    (
        &["-q", "--quiet", "--silent"],
        "for fewer lines in the log, type --log-level warn",
    ),
    (
        &["--send-proxy-v2", "--send-proxy-v1"],
        "the version is a value: type --send-proxy v1 or --send-proxy v2",
    ),
];

/// The commands of other programs, and what to type here.
const COMMANDS: [(&[&str], &str); 10] = [
    (
        &["start", "serve", "server", "daemon"],
        "to serve what a file describes, type spliceway run FILE",
    ),
    (&["stop", "quit", "kill"], "to stop a running program, send it SIGTERM"),
    (
        &["restart"],
        "to replace a running program without a cut session, type spliceway upgrade",
    ),
    (
        &["drain", "weight", "log-level"],
        "this is a request to the admin socket: docs/admin.md has its curl command",
    ),
    (&["version"], "for the version, type spliceway --version"),
    (
        &["test", "configtest", "validate"],
        "to check a file, type spliceway check FILE",
    ),
    (
        &["adduser", "useradd", "passwd", "htpasswd"],
        "to add a user, type spliceway user add FILE NAME",
    ),
    (
        &["remove", "rm", "delete", "deluser"],
        "to remove a user, type spliceway user del FILE NAME",
    ),
    (
        &["edit", "set", "change", "mod"],
        "to set a password, type spliceway user passwd FILE NAME",
    ),
    (
        &["proxy", "socks", "tcp", "udp", "relay", "tunnel"],
        "the kinds of services are forward, socks5, http, mixed, transparent and sni",
    ),
];

/// Adds a tip to an error, if the mistake is a usual one. `typed` is the command line without the
/// name of the program.
pub(super) fn with_tip(mut wrong: Error, typed: &[OsString], command: &Command) -> Error {
    let typed: Vec<_> = typed.iter().map(|argument| argument.to_string_lossy()).collect();
    let typed = Typed {
        arguments: typed.iter().map(AsRef::as_ref).collect(),
        command,
    };
    if let Some(tip) = typed.tip(&wrong) {
        // A flag that only looks alike would mislead.
        wrong.remove(ContextKind::SuggestedArg);
        wrong.remove(ContextKind::SuggestedSubcommand);
        wrong.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    wrong
}

/// A command line that was refused.
struct Typed<'a> {
    arguments: Vec<&'a str>,
    command: &'a Command,
}

impl Typed<'_> {
    fn tip(&self, wrong: &Error) -> Option<String> {
        let text = |kind| match wrong.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let argument = text(ContextKind::InvalidArg).unwrap_or_default();
        match wrong.kind() {
            ErrorKind::UnknownArgument => super::service::tip(wrong, argument)
                .or_else(|| self.of_hyphens())
                .or_else(|| self.of_reload(argument))
                .or_else(|| of_option(argument))
                .or_else(|| self.of_other_command(argument))
                .or_else(|| self.of_positional(argument)),
            ErrorKind::InvalidSubcommand => {
                let name = text(ContextKind::InvalidSubcommand)?;
                let has_similar = wrong.get(ContextKind::SuggestedSubcommand).is_some();
                let tip = || (!has_similar).then(|| self.of_positional(name)).flatten();
                let is_file = name.ends_with(".toml");
                let of_file = || is_file.then(|| format!("to serve what a file describes, type spliceway run {name}"));
                // The other groups of commands have names of their own.
                let has_commands = matches!(self.arguments.first(), Some(first) if [name, "user"].contains(first));
                let command = of(&COMMANDS, name).filter(|_| has_commands);
                command.or_else(of_file).or_else(tip)
            }
            // A value that follows the flags is taken for a command.
            ErrorKind::ArgumentConflict => match text(ContextKind::InvalidSubcommand) {
                Some(name) => self.of_positional(name),
                None => self.of_files(),
            },
            ErrorKind::InvalidValue if text(ContextKind::InvalidValue).is_none_or(str::is_empty) => {
                self.of_missing_value(argument)
            }
            ErrorKind::ValueValidation => self.of_hyphens(),
            ErrorKind::TooManyValues => {
                let flag = argument.split([' ', '=']).next()?;
                Some(format!(
                    "this option takes no value: type {flag} alone, or leave it out"
                ))
            }
            _ => None,
        }
    }

    /// Returns the subcommand that was typed, and its name.
    fn subcommand(&self) -> Option<&Command> {
        self.command.find_subcommand(self.arguments.first()?)
    }

    /// A long flag has two hyphens, and no dash of a text editor.
    fn of_hyphens(&self) -> Option<String> {
        let commands = [Some(self.command), self.subcommand()];
        let is_long = |name: &str| {
            let mut flags = commands.iter().flatten().flat_map(|command| command.get_arguments());
            flags.any(|flag| flag.get_long() == Some(name))
        };
        self.arguments.iter().find_map(|argument| {
            let name = argument.split('=').next()?;
            if let Some(name) = name.strip_prefix(['–', '—', '−']) {
                let hyphens = if name.chars().count() == 1 { "-" } else { "--" };
                return Some(format!("this is a dash, not a hyphen: type {hyphens}{name}"));
            }
            let name = name.strip_prefix('-').filter(|name| !name.starts_with('-'))?;
            (name.len() > 1 && is_long(name)).then(|| format!("a long option has two hyphens: type --{name}"))
        })
    }

    /// A running program knows its files.
    fn of_reload(&self, flag: &str) -> Option<String> {
        let name = self
            .arguments
            .first()
            .filter(|name| matches!(**name, "reload" | "upgrade"))?;
        let is_of_files = OPTIONS[0].0.contains(&flag.split('=').next()?);
        is_of_files.then(|| format!("{name} reads the file with which the program was started: type it without a file"))
    }

    /// Another command may have the flag.
    fn of_other_command(&self, flag: &str) -> Option<String> {
        let long = flag.strip_prefix("--")?;
        let has_flag = |command: &&Command| command.get_arguments().any(|flag| flag.get_long() == Some(long));
        let mut names: Vec<_> = self.command.get_subcommands().filter(has_flag).collect();
        names.retain(|command| !command.is_hide_set());
        if !names.is_empty() && matches!(self.arguments.first(), Some(&("run" | "check"))) {
            return Some(format!(
                "with a file, set this in the file: spliceway print-config shows {flag} as a key"
            ));
        }
        let names: Vec<_> = names.into_iter().map(Command::get_name).collect();
        (!names.is_empty()).then(|| format!("{flag} is only for spliceway {}", names.join(", ")))
    }

    fn of_positional(&self, text: &str) -> Option<String> {
        let name = self.arguments.first().copied().unwrap_or_default();
        if matches!(name, "run" | "check") {
            return self.of_files();
        }
        let serves = |command: &Command| command.get_arguments().any(|flag| flag.get_long() == Some("listen"));
        if self.subcommand().is_some_and(serves) && self.command.find_subcommand(text).is_some() {
            return Some(
                "this command starts one service. For several, describe them in a file: spliceway run FILE".to_owned(),
            );
        }
        if name == "user" {
            return Some("the command comes before the file: spliceway user add, del, list or passwd".to_owned());
        }
        if matches!(name, "reload" | "status" | "top" | "reopen" | "upgrade") {
            return Some(
                "this command takes no file or name: give the socket of the program as --admin unix:PATH".to_owned(),
            );
        }
        if name == "hash-password" {
            return Some("type no password here, because others can see it: the command asks for it".to_owned());
        }
        if let Some(port) = text.split_once("LISTEN:").map(|(_, rest)| rest) {
            let port = port.split(',').next()?;
            return Some(format!("to forward a port, type spliceway -l :{port} -r HOST:PORT"));
        }
        if let Some(number) = text.strip_prefix('-') {
            let is_number = number.starts_with(|digit: char| digit.is_ascii_digit());
            return is_number.then(|| "a time or a number cannot be negative".to_owned());
        }
        let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let address = if is_port { format!(":{text}") } else { text.to_owned() };
        let is_target = text.parse::<Target>().is_ok();
        if is_target && name == "sni" {
            return Some(format!("for a target of TLS clients, type --route NAME={text}"));
        }
        let listens = self
            .arguments
            .iter()
            .any(|flag| flag.starts_with("-l") || flag.starts_with("--listen"));
        if is_target && listens {
            return Some(format!("for the target, type -r {text}"));
        }
        if address.contains(':') && address.parse::<ListenRange>().is_ok() {
            return Some(format!("to listen there, type -l {address}"));
        }
        Some(format!(
            "{text:?} belongs to no option: an option takes one value. Put a value with spaces in quotes"
        ))
    }

    /// `run` and `check` take one path.
    fn of_files(&self) -> Option<String> {
        let is_of_files = matches!(self.arguments.first(), Some(&("run" | "check")));
        is_of_files.then(|| "for several files, put them into a folder and type its path".to_owned())
    }

    /// The help of the flag says what it takes.
    fn of_missing_value(&self, flag: &str) -> Option<String> {
        let long = flag.strip_prefix("--")?.split([' ', '=']).next()?;
        let commands = [self.subcommand(), Some(self.command)];
        let mut flags = commands.into_iter().flatten().flat_map(Command::get_arguments);
        let help = flags
            .find(|flag| flag.get_long() == Some(long))?
            .get_help()?
            .to_string();
        let first = help.split(". ").next().unwrap_or_default();
        Some(format!("--{long}: {first}"))
    }
}

fn of_option(argument: &str) -> Option<String> {
    of(&OPTIONS, argument.split('=').next().unwrap_or(argument))
}

fn of(tips: &[(&[&str], &str)], name: &str) -> Option<String> {
    let found = tips.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, tip)| (*tip).to_owned())
}
