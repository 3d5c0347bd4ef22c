//! The JSON schema of the tables, and help for a key that does not exist.

use std::cell::Cell;
use std::ops::Range;

use schemars::generate::SchemaSettings;
use serde_json::Value as Json;

use super::{Config, declared};
use crate::settings::faults::FAULTS_MAX;

/// Two texts that differ more than this are no spelling mistakes of each other.
const SIMILAR: f64 = 0.75;
/// The unknown keys for which the right key is searched. More faults are not shown at once.
const SEARCHES_MAX: usize = FAULTS_MAX;
/// A longer key is no spelling mistake.
const KEY_MAX_BYTES: usize = 64;

/// Keys of other programs, and those of this program that do the same.
const FOREIGN: [(&str, &str); 25] = [
    ("accept", "listen"),
    ("addr", "listen"),
    ("addr", "to"),
    ("address", "listen"),
    ("address", "to"),
    ("bind", "listen"),
    ("ca", "tls_client_ca"),
    ("cert", "tls_cert"),
    ("certificate", "tls_cert"),
    ("connect", "to"),
    ("crt", "tls_cert"),
    ("endpoints", "service"),
    ("file", "access"),
    ("host", "to"),
    ("key", "tls_key"),
    ("mode", "kind"),
    ("port", "listen"),
    ("protocol", "kind"),
    ("remote", "to"),
    ("server", "to"),
    ("ssl", "tls_cert"),
    ("target", "to"),
    ("tls", "tls_cert"),
    ("type", "kind"),
    ("users", "auth_file"),
];

/// A key that does not exist.
pub(super) struct Unknown {
    pub(super) problem: String,
    /// The key that the operator may have meant.
    pub(super) meant: Option<String>,
}

/// The schema of all tables.
pub(crate) struct Schema {
    json: Json,
    /// The number of unknown keys so far.
    searches: Cell<usize>,
}

impl Schema {
    pub(crate) fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.inline_subschemas = true;
        let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
        without_null(&mut schema);
        demand_values("", &mut schema);
        Self {
            json: schema,
            searches: Cell::new(0),
        }
    }

    pub(crate) fn json(&self) -> &Json {
        &self.json
    }

    /// Returns every key that has a value, with the path of its table. The path of a service is
    /// `service`.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        collect(&self.json, "", &mut all);
        all
    }

    /// Checks that the table at `path` has this key. `is_table` tells whether its value is a table.
    /// The search for the right key takes about 0.3 ms, so it has a limit.
    ///
    /// # Errors
    /// Returns a message that says which key is right, for the first unknown keys.
    pub(super) fn check(&self, path: &[String], key: &str, is_table: bool) -> Result<(), Unknown> {
        let known = path
            .iter()
            .try_fold(&self.json, |table, name| properties(table)?.get(name));
        let Some(keys) = known.and_then(properties) else {
            // A table where a value is expected. The parser of the value says so.
            return Ok(());
        };
        if keys.contains_key(key) {
            return Ok(());
        }
        let table = match path.join(".") {
            path if path.is_empty() => "the file".to_owned(),
            path => shown(&path),
        };
        let searched = self.searches.get() + 1;
        self.searches.set(searched);
        if searched > SEARCHES_MAX || key.len() > KEY_MAX_BYTES {
            return Err(Unknown {
                problem: format!("unknown key `{}` in {table}", key.escape_debug()),
                meant: None,
            });
        }
        let foreign = FOREIGN
            .iter()
            .find(|(foreign, own)| *foreign == key && keys.contains_key(*own));
        let closest = foreign.map(|(_, own)| *own).or_else(|| {
            closest(
                &key.replace('-', "_").to_ascii_lowercase(),
                keys.keys().map(String::as_str),
            )
        });
        let elsewhere = match self.table(key).filter(|_| is_table) {
            Some(path) => Err(shown(&path)),
            None => Ok(self.elsewhere(key)),
        };
        let (help, meant) = match (elsewhere, closest) {
            (Err(table), None) => (format!("expected {table}"), None),
            (_, Some(closest)) => (format!("did you mean `{closest}`?"), Some(closest.to_owned())),
            (Ok(Some((path, key))), None) => {
                let there = match &*path {
                    "defaults.user" => "[[user]] (one user) or [defaults.user] (every user)".to_owned(),
                    path => shown(path),
                };
                (format!("expected `{key}` in {there}"), Some(key))
            }
            (Ok(None), None) => {
                let keys: Vec<_> = keys.keys().map(String::as_str).collect();
                (format!("expected one of {}", keys.join(", ")), None)
            }
        };
        let key = key.escape_debug();
        Err(Unknown {
            problem: format!("unknown key `{key}` in {table}: {help}"),
            meant,
        })
    }

    /// Checks that the key at the end of `path` may have an empty value, if it is a list. An empty
    /// list would be the same as none, which is not what somebody means who writes it.
    ///
    /// # Errors
    /// Returns a message that says what to write.
    pub(super) fn check_empty(&self, path: &[String]) -> Result<(), String> {
        let found = path
            .iter()
            .try_fold(&self.json, |table, name| properties(table)?.get(name));
        let (Some(key), true) = (path.last(), found.is_some_and(is_list)) else {
            return Ok(());
        };
        let expected = match &**key {
            key if may_be_empty(key) => return Ok(()),
            "allow" => "a network, or [\"0.0.0.0/0\", \"::/0\"] for everybody",
            "to_allow" => "a target, or \"*\" for every host",
            "allow_private" => "a network, true or false",
            "quota" => "a quota, or \"none\"",
            "from" => "a network, such as \"10.1.0.0/16\"",
            "listen" => "an address, such as \":8080\"",
            "to" => "a target, such as \"10.0.0.1:80\"",
            "route" => "a route, such as \"example.com=10.0.0.7:443\"",
            _ => "a value, or no such key",
        };
        Err(format!("the list is empty: expected {expected}"))
    }

    /// Returns the path of the table with this name, the shortest one if there are several.
    fn table(&self, name: &str) -> Option<String> {
        let all = self.all();
        let paths = all.iter().map(|(path, _)| path);
        let paths = paths.filter(|path| path.rsplit('.').next() == Some(name));
        paths.min_by_key(|path| path.len()).cloned()
    }

    /// Returns the key in any table that is named like this key, or whose flag is.
    fn elsewhere(&self, key: &str) -> Option<(String, String)> {
        let flag = key.replace('_', "-");
        let mut all = self.all();
        // Its keys are mostly those of users.
        all.sort_by_key(|(path, _)| path == "client");
        // A flag belongs to one table, and a name such as `max_conns` to several.
        let by_flag = all
            .iter()
            .find(|(path, name)| declared(path, name).is_some_and(|key| key.long() == Some(&flag)));
        by_flag.or_else(|| all.iter().find(|(_, name)| name == key)).cloned()
    }
}

fn shown(path: &str) -> String {
    match path {
        "service" | "service.backend" | "user" | "client" => format!("[[{path}]]"),
        path => format!("[{path}]"),
    }
}

/// Removes the null of optional values, because TOML has none.
fn without_null(schema: &mut Json) {
    match schema {
        Json::Object(object) => {
            // The defaults of tables are empty, and say nothing.
            object.remove("default");
            if let Some(Json::Array(types)) = object.get_mut("type") {
                types.retain(|one| one != "null");
            }
            if let Some(Json::Array(options)) = object.get_mut("anyOf") {
                options.retain(|one| one.get("type").is_none_or(|one| one != "null"));
            }
            object.values_mut().for_each(without_null);
            // An option that is left alone, or has options itself, needs no level of its own.
            while let Some(Json::Array(options)) = object.get_mut("anyOf")
                && let [Json::Object(one)] = &mut options[..]
            {
                let one = std::mem::take(one);
                object.remove("anyOf");
                object.extend(one);
            }
        }
        Json::Array(array) => array.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Returns whether the value of a key may be an array of texts.
fn is_list(key: &Json) -> bool {
    let options = key.get("anyOf").and_then(Json::as_array);
    options.is_some_and(|options| options.iter().any(|option| option["type"] == "array"))
}

/// Returns whether an empty list of this name replaces the value of the defaults.
fn may_be_empty(key: &str) -> bool {
    ["deny", "to_deny", "upstream_proxy", "bind_source"].contains(&key)
}

/// Says of each list that must have a value that it must.
fn demand_values(key: &str, schema: &mut Json) {
    if is_list(schema) && !may_be_empty(key) {
        for option in schema["anyOf"].as_array_mut().into_iter().flatten() {
            match option["type"].as_str() {
                Some("array") => option["minItems"] = 1.into(),
                Some("string") => option["pattern"] = r"\S".into(),
                _ => {}
            }
        }
    }
    let table = match schema {
        Json::Object(object) if object.contains_key("items") => object.get_mut("items"),
        schema => Some(schema),
    };
    let keys = table.and_then(|table| table.get_mut("properties")?.as_object_mut());
    for (key, schema) in keys.into_iter().flatten() {
        demand_values(key, schema);
    }
}

/// Returns the keys of a table, or of the tables in an array.
fn properties(schema: &Json) -> Option<&serde_json::Map<String, Json>> {
    let table = schema.get("items").unwrap_or(schema);
    table.get("properties").and_then(Json::as_object)
}

fn collect(schema: &Json, path: &str, all: &mut Vec<(String, String)>) {
    for (key, schema) in properties(schema).into_iter().flatten() {
        let below = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        match properties(schema) {
            Some(_) => collect(schema, &below, all),
            None => all.push((path.to_owned(), key.clone())),
        }
    }
}

/// Returns the key that is nearest to this one, if one is near.
pub(in crate::settings) fn closest<'a>(key: &str, keys: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let rated = keys.map(|have| (strsim::normalized_damerau_levenshtein(have, key), have));
    let best = rated.filter(|(likeness, _)| *likeness >= SIMILAR);
    best.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
}

/// Checks that a password in a text comes from variables, whose values are at these ranges.
///
/// # Errors
/// Returns a message that says where a password may be.
pub(super) fn check_secret(key: &str, text: &str, variables: &[Range<usize>]) -> Result<(), &'static str> {
    let is_safe = |secret: Range<usize>| {
        let (mut at, end) = (secret.start, secret.end);
        for variable in variables {
            if variable.contains(&at) {
                at = variable.end;
            }
        }
        at >= end
    };
    match key {
        // A text without a name may be a password alone.
        "auth" if !is_safe(text.find(':').map_or(0, |colon| colon + 1)..text.len()) => {
            Err("a file must not contain a password: use auth_file, or auth = \"${SPLICEWAY_AUTH}\"")
        }
        "upstream_proxy" if !passwords(text).all(is_safe) => {
            Err("a file must not contain a password: write ${NAME} instead of it, and set the variable NAME")
        }
        _ => Ok(()),
    }
}

/// Returns where the URLs in a list have their passwords.
fn passwords(list: &str) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    let words = list.split_inclusive(char::is_whitespace).map(move |word| {
        let start = end;
        end += word.len();
        (start, word)
    });
    words.filter_map(|(start, url)| {
        let user = url.find("://").map_or(0, |scheme| scheme + "://".len());
        let at = user + url[user..].rfind('@')?;
        let colon = user + url[user..at].find(':')?;
        Some(start + colon + 1..start + at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_key_is_searched_for_the_first_unknown_keys_only() {
        let (schema, path) = (Schema::new(), ["service".to_owned()]);
        let problem = |key: &str| schema.check(&path, key, false).err().map(|unknown| unknown.problem);
        let long = "listen".repeat(20);
        assert_eq!(problem(&long), Some(format!("unknown key `{long}` in [[service]]")));
        let helped = (0..2 * SEARCHES_MAX).filter(|_| problem("lisen").unwrap().ends_with(": did you mean `listen`?"));
        assert_eq!(helped.count(), SEARCHES_MAX - 1);
        assert_eq!(problem("lisen").unwrap(), "unknown key `lisen` in [[service]]");
        assert_eq!(problem("listen"), None);
    }

    #[test]
    fn a_password_comes_from_variables_as_a_whole() {
        // The brackets are around the values of variables.
        for (key, text, is_right) in [
            ("auth", "[ann:secret]", true),
            ("auth", "ann:[secret]", true),
            ("auth", "[ann]:[sec][ret]", true),
            ("auth", "ann:secret", false),
            ("auth", "ann:secret[]", false),
            ("auth", "[ann]:secret", false),
            ("auth", "ann:[sec]ret", false),
            ("auth", "ann:sec[ret]", false),
            ("auth", "ann[:secret]", true),
            ("auth", "secret", false),
            ("upstream_proxy", "http://ann:[secret]@a:80", true),
            ("upstream_proxy", "[http://ann:secret@a:80]", true),
            ("upstream_proxy", "http://[ann:secret]@[a]:80 http://b", true),
            ("upstream_proxy", "http://ann@[a:80]", true),
            ("upstream_proxy", "http://[a]:80 http://ann:secret@b:80", false),
            ("upstream_proxy", "http://ann:sec[ret]@a:80", false),
            ("upstream_proxy", "http://[ann]:secret@a:80", false),
            ("upstream_proxy", "[http://]ann:secret@a:80", false),
            ("upstream_proxy", "http://ann:secret[@]a:80", false),
            ("to", "ann:secret@a:80", true),
        ] {
            let (mut plain, mut ranges, mut start) = (String::new(), Vec::new(), 0);
            for letter in text.chars() {
                match letter {
                    '[' => start = plain.len(),
                    ']' => ranges.push(start..plain.len()),
                    letter => plain.push(letter),
                }
            }
            assert_eq!(check_secret(key, &plain, &ranges).is_ok(), is_right, "{text}");
        }
    }
}
