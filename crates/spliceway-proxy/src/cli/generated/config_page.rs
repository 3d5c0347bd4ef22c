//! The manual page of the configuration file, from the declarations of its keys.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::settings::config::{Key, KindArg, declared, keys};

/// The tables in the order of the page. The text of the second column follows the heading.
const TABLES: [(&str, &str); 13] = [
    (
        "[[service]]",
        "One of the services. Every service needs kind and listen.",
    ),
    (
        "[[service.backend]]",
        "One of several targets of a forwarder, instead of the key to of the service.",
    ),
    ("[[user]]", "The limits and the targets of one user."),
    (
        "[[client]]",
        "The clients of some networks, which are a user of the services with the key clients. A missing key is as in a table [[user]].",
    ),
    (
        "[defaults.listen]",
        "The clients of every service that does not have the key itself.",
    ),
    (
        "[defaults.dial]",
        "The connections of every service that does not have the key itself.",
    ),
    ("[defaults.user]", "The limits of every user who does not have the key."),
    ("[timeouts]", ""),
    ("[limits]", ""),
    ("[engine]", ""),
    ("[acme]", "How certificates are issued for the services with acme."),
    ("[admin]", ""),
    ("[log]", ""),
];

/// The texts of keys without a flag, and of those whose flag has a text about command lines.
const TEXTS: [(&str, &str, &str, &str); 11] = [
    (
        "service",
        "name",
        "NAME",
        "Name in metrics and records; each service has its own [default: the kind]",
    ),
    (
        "service",
        "kind",
        "KIND",
        "What the service is: `forward`, `socks5`, `http`, `mixed`, `transparent` or `sni`",
    ),
    (
        "service",
        "auth",
        "TEXT",
        "Name and password of a single user. They must come from a variable: `\"${SPLICEWAY_AUTH}\"`",
    ),
    (
        "service.backend",
        "to",
        "HOST:PORT",
        "Target, as in the service, or `srv:NAME`",
    ),
    (
        "service.backend",
        "weight",
        "N",
        "Share of the sessions, from 1 to 256 [default: 1]",
    ),
    (
        "service.backend",
        "backup",
        "true",
        "Get clients only if no other backend is available",
    ),
    (
        "service.backend",
        "max_conns",
        "N",
        "Maximum number of sessions at the same time. Further clients get another backend, or wait",
    ),
    ("user", "name", "NAME", "Name of the user, as in the user file"),
    ("client", "name", "NAME", "Name of the user in metrics and records"),
    (
        "client",
        "from",
        "CIDR",
        "Networks of the clients. The smallest network with an address counts. May be a list",
    ),
    (
        "service",
        "clients",
        "WHEN",
        "Know users by network, from the tables [[client]]: `optional` also serves clients of other networks, with the \
         settings of the service, and `required` refuses them",
    ),
];

const RULES: [&str; 6] = [
    "This file says what spliceway serves. It is a TOML file, or a folder whose files *.toml are read in the order \
     of their names, as if they were one. `spliceway check FILE` checks it, and `spliceway schema` prints a schema for \
     editors.",
    "Text is in quotes; numbers, true and false are not. A list is an array, or one text with spaces between the \
     values. A time has the units ms, s, m, h or d, such as \"1h30m\".",
    "An unknown key is an error, and so is a value that does not fit. The message has the line, and what was expected.",
    "${NAME} in a text is the value of an environment variable, and $${ means ${. A relative path starts at the folder \
     of its file.",
    "A file has no passwords. They come from variables, or from the file that auth_file names.",
    "SIGHUP and `spliceway reload` apply a changed file. If it has a fault, the previous settings stay in force.",
];

const EXAMPLE: &str = "\
[admin]
socket = \"unix:/run/spliceway/admin.sock\"

[defaults.listen]
allow = \"192.168.0.0/16\"

[[service]]
kind = \"socks5\"
listen = \":1080\"
auth_file = \"users\"

[[service]]
name = \"web\"
kind = \"forward\"
listen = [\":8080\", \"unix:/run/web.sock\"]
to = \"backend.example.com:80\"";

/// Returns the page. `file` is the file of the service, and what it is.
pub(super) fn page(file: (&str, &str)) -> String {
    let mut roff = Roff::new();
    let source = concat!("spliceway ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["spliceway.toml", "5", " ", source, "File Formats"])
        .control("SH", ["NAME"])
        .text([roman("spliceway.toml - configuration of spliceway(1)")])
        .control("SH", ["DESCRIPTION"]);
    for (index, rule) in RULES.into_iter().enumerate() {
        if index > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(rule)]);
    }
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("SH", ["TABLES"]);
    for (heading, text) in TABLES {
        roff.control("SS", [heading]);
        if !text.is_empty() {
            roff.text([roman(text)]);
        }
        let table = heading.trim_matches(['[', ']']);
        for key in keys().filter(|key| key.table == table && key.name != "backend") {
            item(&mut roff, key);
        }
    }
    roff.control("SH", ["FILES"])
        .control("TP", [])
        .text([roman(file.0)])
        .text([roman(file.1)])
        .control("SH", ["SEE ALSO"])
        .text([roman("spliceway(1), spliceway-run(1), spliceway-check(1)")]);
    roff.to_roff()
}

/// Writes a key, its value and its meaning.
fn item(roff: &mut Roff, key: &Key) {
    let own = TEXTS
        .iter()
        .find(|(table, name, ..)| (*table, *name) == (key.table, key.name));
    let (value, mut text) = match (own, declared(key.table, key.name)) {
        (Some((_, _, value, text)), _) => ((*value).to_owned(), (*text).to_owned()),
        (None, Some(flag)) => of_flag(flag),
        (None, None) => Default::default(),
    };
    if key.table == "service" && !key.kinds().is_empty() {
        let kinds: Vec<_> = key.kinds().iter().filter_map(KindArg::to_possible_value).collect();
        text = format!("{text} [only for: {}]", joined(&kinds));
    }
    roff.control("TP", [])
        .text([bold(key.name), roman(" = "), italic(value)])
        .text([roman(text)]);
}

/// Returns the name of the value, and the text.
fn of_flag(flag: &Key) -> (String, String) {
    let text = in_a_file(flag.help());
    let kind = flag.kinds().first().copied().unwrap_or(KindArg::Forward);
    let arg = flag.arg(kind).filter(|arg| arg.get_action().takes_values());
    let Some(arg) = arg else {
        return ("true".to_owned(), text);
    };
    let value = arg.get_value_names().and_then(|names| names.first());
    let value = value.map(ToString::to_string).unwrap_or_default();
    match &arg.get_possible_values()[..] {
        [] => (value, text),
        choices => (value, format!("{text} [possible values: {}]", joined(choices))),
    }
}

fn joined(values: &[PossibleValue]) -> String {
    let names: Vec<_> = values.iter().map(PossibleValue::get_name).collect();
    names.join(", ")
}

/// Returns the help of a flag in the words of a file: keys instead of flags, and lists instead of
/// flags that are repeated.
fn in_a_file(help: &str) -> String {
    let word = |word: &str| {
        let name = word
            .strip_prefix("--")?
            .trim_end_matches(|c: char| !c.is_alphanumeric());
        let key = keys().find(|key| key.long() == Some(name))?;
        Some(word.replace(&format!("--{name}"), key.name))
    };
    let words = help
        .split(' ')
        .map(|text| word(text).unwrap_or_else(|| text.to_owned()));
    let text = words.collect::<Vec<_>>().join(" ");
    text.replace("May be repeated", "May be a list")
        .replace(". In the variable, spaces separate the proxies", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::schema::Schema;

    #[test]
    fn every_key_of_every_table_has_a_text() {
        let page = page(("FILE", "MEANING"));
        let tables: Vec<_> = page.split("\n.SS ").collect();
        for (path, key) in Schema::new().all() {
            let heading = TABLES.iter().find(|(table, _)| table.trim_matches(['[', ']']) == path);
            let heading = heading.unwrap_or_else(|| panic!("no heading for {path}")).0;
            let table = tables.iter().find(|text| text.starts_with(heading)).unwrap();
            let (_, item) = table
                .split_once(&format!("\\fB{key}\\fR = "))
                .unwrap_or_else(|| panic!("{path}.{key}"));
            let text = item.lines().nth(1).unwrap_or_default();
            assert!(!text.is_empty() && !text.starts_with('.'), "{path}.{key}: {text}");
        }
    }

    #[test]
    fn the_texts_speak_of_keys_and_not_of_flags() {
        let page = page(("FILE", "MEANING")).replace("\\-", "-");
        assert!(page.contains("Needs quota_file."), "{page}");
        let about_flags: Vec<_> = page
            .lines()
            .filter(|line| line.contains(" --") || line.contains("repeated"))
            .collect();
        assert!(about_flags.is_empty(), "{about_flags:#?}");
    }
}
