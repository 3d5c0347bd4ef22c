//! What is wrong in a file that is not valid TOML, and what of it can be read nevertheless.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use super::files::{Source, Sources};
use crate::settings::faults::{Fault, Faults, Scope};

/// What the parser says of a key or a table that it has already.
const TWICE: &str = "duplicate key";
/// What begins a comment in other formats.
const COMMENTS: [&str; 4] = ["//", ";", "--", "/*"];
/// Quotes that text editors write instead of straight ones.
const CURLY: [char; 6] = ['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}', '\u{201a}'];

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
    let starts = errors.iter().map(|error| error.span().map_or(0, |span| span.start));
    let starts: Vec<_> = starts.collect();
    if is_of_other_format(source, &starts) {
        let problem = "this is not TOML: expected tables such as [[service]], with lines such as kind = \"socks5\"; \
                       `spliceway print-config` writes such a file";
        faults.add(Fault::new(Some(source.start + starts[0]), "", problem));
        faults.lose(source.start..source.start + source.text.len() + 1);
        return;
    }
    let mut last = None;
    // The end of a table that is given twice, whose keys may be given twice too, and the end of an
    // array that has swallowed the lines behind it.
    let (mut again, mut swallowed) = (0, 0);
    for (error, at) in errors.iter().zip(starts) {
        let line = source.line(at);
        let is_twice = error.message() == TWICE;
        if last.replace(line.start) == Some(line.start) || (is_twice && at < again) || at < swallowed {
            continue;
        }
        let text = &source.text[line.clone()];
        let fault = sources.fault(error, source.start, "");
        let is_head = text.trim_start().starts_with('[');
        let enclosing = enclosing(table, at).filter(|(_, range)| !is_head && range.start < line.start);
        let problem = match &enclosing {
            Some((key, range)) if key_of(text).is_some_and(|(_, value)| value.is_some()) => {
                swallowed = range.end;
                faults.lose(source.start + at..source.start + range.end);
                Some(format!("the array of {key} has no end: expected `]` before this line"))
            }
            _ if is_twice => several_of(text).map(str::to_owned),
            _ => remedy(text),
        };
        let several = several_of(text).filter(|_| is_twice);
        if let Some(several) = several {
            let lines = source.text.split_inclusive('\n');
            let first = lines.take_while(|line| line.trim() != text.trim());
            let before: usize = first.map(str::len).sum();
            faults.add(Fault::new(Some(source.start + before), "", several));
        }
        let problem = problem.unwrap_or_else(|| fault.problem.into_owned());
        // The first such table already has the fault and the remedy.
        if several.is_none() {
            faults.add(Fault::new(fault.at, "", format!("this is not valid TOML: {problem}")));
        }
        let end = if is_head {
            next_head(&source.text, line.end)
        } else {
            source.text.len()
        };
        if is_twice && is_head {
            again = end;
        }
        let lost = source.start + at..source.start + end;
        if is_twice && !is_head {
            continue;
        }
        // A line that begins or ends something else may take other lines with it.
        let found = key_of(text).map(|(key, value)| (key, value, line.start + text.find(key).unwrap_or(0)));
        let found = match enclosing {
            Some((key, range)) => remove(table, range.start).map(|scope| (key, scope)),
            None => found.and_then(|(key, _, offset)| Some((key.to_owned(), remove(table, offset)?))),
        };
        match (found, key_of(text)) {
            (Some((key, scope)), _) => {
                faults.enter(scope.map(|at| source.start + at));
                faults.spoil(&key, true);
                faults.enter(None);
            }
            (None, Some((key, None))) => faults.spoil(key, true),
            (None, _) => faults.lose(lost),
        }
    }
}

/// Returns whether no line of the file is one of TOML: it may be YAML, JSON, or that of another
/// program.
fn is_of_other_format(source: &Source, errors: &[usize]) -> bool {
    let lines = source.text.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    !errors.is_empty() && !lines.any(|line| line.starts_with("[") || line.contains('='))
}

/// Returns the offset of the next line that begins a table.
fn next_head(text: &str, after: usize) -> usize {
    text[after..].find("\n[").map_or(text.len(), |found| after + found)
}

/// Returns the remedy for a second table of a name of which there may be several.
fn several_of(line: &str) -> Option<&'static str> {
    Some(match line.trim() {
        "[service]" => "there are several services: write [[service]] with two brackets",
        "[user]" => "there are several users: write [[user]] with two brackets",
        "[client]" => "there are several clients: write [[client]] with two brackets",
        "[service.backend]" => "there are several backends: write [[service.backend]] with two brackets",
        _ => return None,
    })
}

/// Returns the key whose value is an array with this offset in it, and the range of both.
fn enclosing(table: &DeTable<'_>, at: usize) -> Option<(String, Range<usize>)> {
    table.iter().find_map(|(key, value)| match value.get_ref() {
        DeValue::Table(table) => enclosing(table, at),
        DeValue::Array(array) => {
            let mut tables = array.iter().filter_map(|value| value.get_ref().as_table()).peekable();
            if tables.peek().is_some() {
                return tables.find_map(|table| enclosing(table, at));
            }
            let is_inside = value.span().contains(&at);
            let range = key.span().start..value.span().end;
            is_inside.then(|| (key.get_ref().to_string(), range))
        }
        _ => None,
    })
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
    let trimmed = line.trim();
    if COMMENTS.iter().any(|start| trimmed.starts_with(start)) {
        return Some("a comment begins with #".to_owned());
    }
    if line.contains(CURLY) {
        return Some("write straight quotes (\") instead of curly ones".to_owned());
    }
    if let Some(end) = trimmed
        .strip_suffix([';', ','])
        .filter(|line| line.ends_with(['"', '\'', ']']))
    {
        return Some(format!(
            "nothing may follow a value: remove `{}`",
            &trimmed[end.len()..]
        ));
    }
    let (key, value) = key_of(line)?;
    let Some(value) = value else {
        let value = trimmed[key.len()..].trim_start().strip_prefix(':')?;
        return Some(format!(
            "`=` separates a key from its value: write {key} = {}",
            value.trim()
        ));
    };
    if value.starts_with('"') && value.contains('\\') {
        return Some(format!(
            "a backslash begins an escape: write \\\\ for one, or the text in single quotes: {key} = '{}'",
            value.trim_matches('"')
        ));
    }
    if value.starts_with('"') && value.matches('"').count() == 1 {
        return Some(format!("the text has no end: write {key} = {value}\""));
    }
    if let Some(values) = value.strip_prefix('[').and_then(|values| values.strip_suffix(']'))
        && !values.contains(['"', '\'', '['])
    {
        let values: Vec<_> = values
            .split(',')
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .collect();
        return Some(format!("put text in quotes: {key} = {values:?}"));
    }
    let value = value.split('#').next()?.trim();
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
