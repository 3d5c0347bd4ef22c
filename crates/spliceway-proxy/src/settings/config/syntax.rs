//! What is wrong in a file that is not valid TOML, and what of it can be read nevertheless.

use toml::de::{DeTable, DeValue, Error};

use super::files::{Source, Sources};
use crate::settings::faults::{Fault, Faults, Scope};

/// Adds the first fault of each line, and removes its value from the table. If a fault is not in a
/// value, tables may be missing.
pub(super) fn check(
    sources: &Sources,
    source: &Source,
    mut errors: Vec<Error>,
    table: &mut DeTable<'_>,
    faults: &mut Faults,
) {
    errors.sort_by_key(|error| error.span().map(|span| span.start));
    let mut last = None;
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        let line = source.line(at);
        if last.replace(line.start) == Some(line.start) {
            continue;
        }
        let text = &source.text[line.clone()];
        let fault = sources.fault(&error, source.start, "");
        // The other value is right.
        let is_twice = error.message() == "duplicate key";
        let problem = remedy(text).filter(|_| !is_twice);
        let problem = problem.unwrap_or_else(|| fault.problem.into_owned());
        faults.add(Fault::new(fault.at, "", format!("this is not valid TOML: {problem}")));
        let lost = source.start + at..source.start + source.text.len();
        // A line that begins or ends something else may take other lines with it.
        let Some((key, value)) = key_of(text) else {
            faults.lose(lost);
            continue;
        };
        if is_twice {
            continue;
        }
        let offset = line.start + text.find(key).unwrap_or(0);
        match remove(table, offset) {
            Some(scope) => {
                faults.enter(scope.map(|at| source.start + at));
                faults.spoil(key, true);
                faults.enter(None);
            }
            None if value.is_none() => faults.spoil(key, true),
            None => faults.lose(lost),
        }
    }
}

/// Returns the key of a line, and what follows `=`.
fn key_of(line: &str) -> Option<(&str, Option<&str>)> {
    let is_of_key = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    let line = line.trim();
    let (key, rest) = line.split_at(line.find(|letter| !is_of_key(letter)).unwrap_or(line.len()));
    let value = rest.trim_start().strip_prefix('=').map(str::trim);
    (!key.is_empty()).then_some((key, value))
}

/// Removes the value of the key at this offset. Returns the place of its service or user.
fn remove(table: &mut DeTable<'_>, at: usize) -> Option<Scope> {
    if let Some(key) = table.keys().find(|key| key.span().start == at).cloned() {
        table.remove(&key);
        return Some(None);
    }
    table.iter_mut().find_map(|(_, value)| match value.get_mut() {
        DeValue::Table(table) => remove(table, at),
        DeValue::Array(array) => array.iter_mut().find_map(|value| {
            let place = value.span().start;
            match value.get_mut() {
                DeValue::Table(table) => remove(table, at).map(|_| Some(place)),
                _ => None,
            }
        }),
        _ => None,
    })
}

/// Returns what to write instead of a text without quotes.
fn remedy(line: &str) -> Option<String> {
    let (key, value) = key_of(line)?;
    let value = value?.split('#').next()?.trim();
    let is_text = value.starts_with(|first: char| first.is_alphanumeric() || "/:.*@-_$+~".contains(first));
    if !is_text || value.contains(['"', '\'', '\\']) {
        return value
            .is_empty()
            .then(|| format!("{key} has no value: expected one after `=`, or no such line"));
    }
    Some(match value.to_ascii_lowercase().as_str() {
        "yes" | "on" | "true" => format!("write {key} = true, or put text in quotes: {key} = \"{value}\""),
        "no" | "off" | "false" => format!("write {key} = false, or put text in quotes: {key} = \"{value}\""),
        _ => format!("put text in quotes: {key} = \"{value}\""),
    })
}
