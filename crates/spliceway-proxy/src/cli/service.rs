//! The commands `spliceway service` and `spliceway backend`, which change the services of a running
//! program. Their values are those of a configuration file.

use std::io::Read;
use std::path::Path;

use clap::error::ContextKind;
use clap::{Args, Subcommand};
use serde_json::{Map, Value as Json};
use spliceway_operator::{Change, Command, Edit};

use super::action::{Action, Refused, SocketArgs};
use crate::settings::config::schema::Schema;
use crate::settings::config::{Key, KindArg, Service, Table};

/// The longest file. The program accepts no longer table.
const FILE_MAX_BYTES: u64 = 1 << 20;
const VALUES: &str = "KEY=VALUE|FILE";
const EXPECTED: &str = "expected KEY=VALUE as in [[service]] of a configuration file, such as listen=:8080";

pub(super) const SERVICE_EXAMPLES: &str = "\
Examples:
  spliceway service add web kind=forward listen=:8080 to=10.0.0.1:80
  spliceway service set web rate_out=10MB deny=192.0.2.0/24 deny=198.51.100.7
  spliceway service set web deny=              removes the key
  spliceway service add web web.json --persist
  spliceway service rm web
  spliceway service list --json | jq .services";

pub(super) const BACKEND_EXAMPLES: &str = "\
Examples:
  spliceway backend add web 10.0.0.2:80,weight=2
  spliceway backend rm web 10.0.0.2:80";

#[derive(Subcommand, Debug)]
pub(super) enum ServiceCommand {
    /// Print all services, and where each one comes from
    List {
        #[command(flatten)]
        socket: SocketArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a service
    Add(TableArgs),
    /// Change some keys of a service. The other keys stay
    Set(TableArgs),
    /// Remove a service. Its sessions may finish
    Rm {
        #[command(flatten)]
        service: ServiceName,
        #[command(flatten)]
        change: ChangeArgs,
        /// Also remove the file of the service. This always happens, so the option changes nothing
        #[arg(long)]
        persist: bool,
    },
}

#[derive(Subcommand, Debug)]
pub(super) enum BackendCommand {
    /// Add a target to a service, or change the options of a target
    Add(BackendArgs),
    /// Remove a target from a service. Its sessions may finish
    Rm(BackendArgs),
}

#[derive(Args, Debug)]
pub(super) struct ServiceName {
    /// Name of the service
    #[arg(value_name = "SERVICE")]
    service: String,
}

#[derive(Args, Debug)]
pub(super) struct TableArgs {
    #[command(flatten)]
    service: ServiceName,
    /// Key of a configuration file and its value. A repeated key is a list. `set` replaces the
    /// whole list, and `set` with `KEY=` removes the key. A relative path starts at the folder of
    /// the program's configuration. One file with a JSON object may be given
    /// instead, or `-` for standard input
    #[arg(value_name = VALUES, required = true)]
    values: Vec<String>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    persist: PersistArgs,
}

#[derive(Args, Debug)]
pub(super) struct BackendArgs {
    #[command(flatten)]
    service: ServiceName,
    /// Target, as `to` in a configuration file: `,weight=N`, `,max-conns=N` and `,backup` may
    /// follow
    #[arg(value_name = "HOST:PORT")]
    backend: String,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    persist: PersistArgs,
}

#[derive(Args, Debug)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
pub(super) struct PersistArgs {
    /// Also write the service to the configuration folder, so that it outlives a restart. Needs
    /// `run FOLDER`
    #[arg(long)]
    persist: bool,
}

impl ServiceCommand {
    pub(super) fn action(self) -> Result<Action, Refused> {
        match self {
            Self::List { socket, json } => socket.operate(Command::Services { json }),
            Self::Add(table) => table.change(Edit::Add),
            Self::Set(table) => table.change(Edit::Set),
            Self::Rm {
                service,
                change,
                persist,
            } => change.make(service, Edit::Remove, persist),
        }
    }
}

impl BackendCommand {
    pub(super) fn action(self) -> Result<Action, Refused> {
        let (args, edit): (_, fn(String) -> Edit) = match self {
            Self::Add(args) => (args, Edit::AddBackend),
            Self::Rm(args) => (args, Edit::RemoveBackend),
        };
        args.change.make(args.service, edit(args.backend), args.persist.persist)
    }
}

impl TableArgs {
    fn change(self, edit: fn(Map<String, Json>) -> Edit) -> Result<Action, Refused> {
        let table = match &self.values[..] {
            [file] if pair(file).is_none() => in_file(Path::new(file)).map_err(Refused::Files)?,
            values => in_words(values).map_err(Refused::Usage)?,
        };
        self.change.make(self.service, edit(table), self.persist.persist)
    }
}

impl ChangeArgs {
    fn make(self, service: ServiceName, edit: Edit, persists: bool) -> Result<Action, Refused> {
        self.socket.operate(Command::Change(Change {
            service: service.service,
            edit,
            is_dry_run: self.dry_run,
            persists,
        }))
    }
}

/// Returns a tip for the flag of a service in the place of a key.
pub(super) fn tip(wrong: &clap::Error, argument: &str) -> Option<String> {
    let usage = wrong.get(ContextKind::Usage)?.to_string();
    if !usage.contains(VALUES) {
        return None;
    }
    let flag = argument.trim_start_matches('-');
    let short = |key: &Key| key.arg(KindArg::Forward)?.get_short().map(String::from);
    let is_it = |key: &&Key| {
        key.long() == Some(flag) || key.name.replace('_', "-") == flag || short(key).as_deref() == Some(flag)
    };
    let key = <Service as Table>::KEYS.iter().find(is_it);
    Some(key.map_or_else(
        || EXPECTED.to_owned(),
        |key| format!("to set this key, type {}=VALUE", key.name),
    ))
}

/// Returns the key and the value of `KEY=VALUE`.
fn pair(word: &str) -> Option<(&str, &str)> {
    let of_key = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    word.split_once('=')
        .filter(|(key, _)| !key.is_empty() && key.chars().all(of_key))
}

/// Returns the table that these words `KEY=VALUE` mean.
fn in_words(words: &[String]) -> Result<Map<String, Json>, String> {
    let (schema, mut table) = (Schema::new(), Map::new());
    for word in words {
        let (key, value) = pair(word).ok_or_else(|| format!("`{}`: {EXPECTED}", word.escape_debug()))?;
        let value = typed(&schema, key, value);
        match table.get_mut(key) {
            None => drop(table.insert(key.to_owned(), value)),
            Some(Json::Array(values)) => values.push(value),
            Some(one) => *one = vec![one.take(), value].into(),
        }
    }
    Ok(table)
}

/// Returns the value of a word. It has the type that the key has in a configuration file.
fn typed(schema: &Schema, key: &str, word: &str) -> Json {
    let type_of_key = format!("/properties/service/items/properties/{key}/anyOf/0/type");
    let is_number = schema
        .json()
        .pointer(&type_of_key)
        .is_some_and(|expected| expected == "integer");
    match word {
        "" => Json::Null,
        "true" | "false" => (word == "true").into(),
        _ => match word.parse::<u64>() {
            Ok(number) if is_number => number.into(),
            _ => word.into(),
        },
    }
}

/// Returns the table in a file, or on standard input.
fn in_file(path: &Path) -> Result<Map<String, Json>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        let opened = std::fs::File::open(path);
        Box::new(opened.map_err(|error| format!("{}; without a file, {EXPECTED}", named(&error)))?)
    };
    let mut text = Vec::new();
    let read = input.take(FILE_MAX_BYTES + 1).read_to_end(&mut text);
    read.map_err(|error| named(&error))?;
    if text.len() as u64 > FILE_MAX_BYTES {
        return Err(named(&"the file is too long: expected at most 1 MiB"));
    }
    let expected = r#"expected a JSON object such as {"kind": "forward", "listen": ":80", "to": "a:80"}"#;
    serde_json::from_slice(&text).map_err(|error| named(&format_args!("{error}: {expected}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_have_the_types_of_a_configuration_file() {
        let words = "kind=forward listen=:80 listen=[::1]:80 to=a:1 check_rise=3 udp=true check_expect=200 deny=";
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let expected = json!({
            "kind": "forward",
            "listen": [":80", "[::1]:80"],
            "to": "a:1",
            "check_rise": 3,
            "udp": true,
            "check_expect": "200",
            "deny": null,
        });
        assert_eq!(Json::Object(in_words(&words).unwrap()), expected);
    }
}
