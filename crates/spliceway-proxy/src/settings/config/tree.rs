//! The keys and texts of files: merges files, finds unknown keys, and replaces `${NAME}`.

use std::cell::Cell;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue, Deserializer, Error};

use super::Config;
use super::files::{ALL_MAX_BYTES, Sources};
use super::schema::{self, Schema, Unknown};
use crate::settings::faults::{FAULTS_MAX, Fault, Faults};

/// Returns the value of an environment variable, or the end of a sentence about it.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Result<String, &'static str>;

/// The tables of all files. Their locations are offsets from the start of the first file.
pub(super) struct Tree<'i, 'a> {
    environment: Environment<'a>,
    /// The number of bytes that the values of further variables may have.
    room: Cell<usize>,
    schema: Schema,
    sources: &'a Sources,
    faults: &'a mut Faults,
    table: DeTable<'i>,
}

impl<'i, 'a> Tree<'i, 'a> {
    pub(super) fn new(environment: Environment<'a>, sources: &'a Sources, faults: &'a mut Faults) -> Self {
        Self {
            environment,
            room: Cell::new(sources.room()),
            schema: Schema::new(),
            sources,
            faults,
            table: DeTable::new(),
        }
    }

    /// Adds the table of a file that begins at offset `start`, without what is wrong: unknown keys,
    /// keys that another file has, empty lists, and texts with variables that are not defined or
    /// too long.
    pub(super) fn add(&mut self, table: DeTable<'i>, start: usize) {
        let mut step = Step {
            environment: self.environment,
            room: &self.room,
            schema: &self.schema,
            sources: self.sources,
            start,
            faults: &mut *self.faults,
        };
        let table = step.table(table, &mut Vec::new());
        self.merge(table);
    }

    /// Adds `new`. Arrays are joined, and other values must not occur twice.
    fn merge(&mut self, new: DeTable<'i>) {
        let table = std::mem::take(&mut self.table);
        self.table = merged(table, new, self.sources, self.faults);
    }

    /// Returns the configuration without the values that are wrong.
    pub(super) fn typed(self) -> Config {
        if let Ok(config) = deserialized(self.table.clone()) {
            return config;
        }
        let mut right = DeTable::new();
        for (key, value) in self.table {
            let span = value.span();
            let value = match value.into_inner() {
                DeValue::Array(array) if is_of_several(key.get_ref()) => {
                    let tables = array.into_iter();
                    let tables = tables.filter_map(|table| right_part(&key, table, true, self.sources, self.faults));
                    Spanned::new(span, DeValue::Array(tables.collect()))
                }
                value => {
                    let value = Spanned::new(span, value);
                    match right_part(&key, value, false, self.sources, self.faults) {
                        Some(value) => value,
                        None => continue,
                    }
                }
            };
            right.insert(key, value);
        }
        deserialized(right).unwrap_or_else(|error| {
            self.faults.add(self.sources.fault(&error, 0, ""));
            Config::default()
        })
    }
}

/// Returns whether there may be several tables of this name.
fn is_of_several(name: &str) -> bool {
    matches!(name, "service" | "user" | "client")
}

fn deserialized(table: DeTable<'_>) -> Result<Config, Error> {
    Config::deserialize(Deserializer::from(Spanned::new(0..0, table)))
}

/// Returns a table of the file without the values that are wrong.
fn right_part<'i>(
    key: &Spanned<DeString<'i>>,
    mut value: Spanned<DeValue<'i>>,
    is_in_array: bool,
    sources: &Sources,
    faults: &mut Faults,
) -> Option<Spanned<DeValue<'i>>> {
    faults.enter(is_in_array.then(|| value.span().start));
    let (mut is_right, mut removals) = (false, 0);
    while !is_right {
        let mut alone = DeTable::new();
        let one = value.clone();
        let table = match is_in_array {
            true => Spanned::new(one.span(), DeValue::Array(DeArray::from_iter([one]))),
            false => one,
        };
        alone.insert(key.clone(), table);
        let Err(error) = deserialized(alone) else {
            is_right = true;
            continue;
        };
        removals += 1;
        // Each value costs another pass over the table. No more faults are shown.
        let removed = error.span().filter(|_| removals <= FAULTS_MAX);
        let removed = removed.and_then(|span| remove(value.get_mut(), span.start));
        let shown = removed.as_ref().map(|removed| match is_in_array {
            // The number of a service or a user would not help: the location has its line.
            true => removed.path.clone(),
            false => format!("{}.{}", key.get_ref(), removed.path),
        });
        let whole = (!is_in_array).then(|| key.get_ref().to_string());
        let fault = sources.fault(&error, 0, "");
        faults.add_of_value(Fault {
            key: shown.or(whole).unwrap_or_default().into(),
            ..fault
        });
        let Some(Removed { path, is_gone }) = removed else {
            faults.spoil(key.get_ref(), true);
            break;
        };
        faults.spoil(path.rsplit('.').next().unwrap_or_default(), is_gone);
    }
    faults.enter(None);
    is_right.then_some(value)
}

/// A value that was removed: the path of its key, and whether the key is gone too.
struct Removed {
    path: String,
    is_gone: bool,
}

/// Removes the smallest value that has this offset.
fn remove(value: &mut DeValue<'_>, at: usize) -> Option<Removed> {
    match value {
        DeValue::Table(table) => {
            let mut found = None;
            for (key, value) in table.iter_mut() {
                let name = key.get_ref();
                if let Some(Removed { path, is_gone }) = remove(value.get_mut(), at) {
                    let path = if path.is_empty() {
                        name.to_string()
                    } else {
                        format!("{name}.{path}")
                    };
                    // A list without values is none.
                    let is_empty = matches!(value.get_ref(), DeValue::Array(array) if array.is_empty());
                    found = Some((
                        key.clone(),
                        Removed {
                            path,
                            is_gone: is_gone || is_empty,
                        },
                        is_empty,
                    ));
                } else if value.span().contains(&at) {
                    let path = name.to_string();
                    found = Some((key.clone(), Removed { path, is_gone: true }, true));
                }
                if found.is_some() {
                    break;
                }
            }
            let (key, removed, with_key) = found?;
            if with_key {
                table.remove(&key);
            }
            Some(removed)
        }
        DeValue::Array(array) => {
            if let Some(removed) = array.iter_mut().find_map(|value| remove(value.get_mut(), at)) {
                return Some(removed);
            }
            let index = array.iter().position(|value| value.span().contains(&at))?;
            let values = std::mem::replace(array, DeArray::new()).into_iter().enumerate();
            *array = values
                .filter_map(|(at, value)| (at != index).then_some(value))
                .collect();
            let (path, is_gone) = (String::new(), false);
            Some(Removed { path, is_gone })
        }
        _ => None,
    }
}

/// Returns `table` with `new`.
fn merged<'i>(mut table: DeTable<'i>, new: DeTable<'i>, sources: &Sources, faults: &mut Faults) -> DeTable<'i> {
    for (key, value) in new {
        let Some((known, old)) = table.remove_entry(&key) else {
            table.insert(key, value);
            continue;
        };
        let span = old.span();
        let both = match (old.into_inner(), value.into_inner()) {
            (DeValue::Table(old), DeValue::Table(new)) => DeValue::Table(merged(old, new, sources, faults)),
            (DeValue::Array(mut old), DeValue::Array(new)) if is_of_several(known.get_ref()) => {
                new.into_iter().for_each(|table| old.push(table));
                DeValue::Array(old)
            }
            (old, _) => {
                let there = sources.location(Some(known.span().start));
                let name = key.get_ref().escape_debug();
                let problem = format!("`{name}` is given twice: remove it here or at {there}");
                faults.add(Fault::new(Some(key.span().start), "", problem));
                old
            }
        };
        table.insert(known, Spanned::new(span, both));
    }
    table
}

/// Inserts a value, or joins the array with another one of the same name.
fn insert<'i>(table: &mut DeTable<'i>, key: Spanned<DeString<'i>>, value: Spanned<DeValue<'i>>) {
    match (
        table.get_mut(&*key.get_ref().clone()).map(Spanned::get_mut),
        value.get_ref(),
    ) {
        (Some(DeValue::Array(before)), DeValue::Array(new)) => new.iter().for_each(|one| before.push(one.clone())),
        _ => drop(table.insert(key, value)),
    }
}

/// Takes the values of one file over.
struct Step<'a> {
    environment: Environment<'a>,
    room: &'a Cell<usize>,
    schema: &'a Schema,
    sources: &'a Sources,
    start: usize,
    faults: &'a mut Faults,
}

impl Step<'_> {
    /// `path` has the names of the tables around this one.
    fn table<'i>(&mut self, table: DeTable<'i>, path: &mut Vec<String>) -> DeTable<'i> {
        // The variables have their room in the order of the file.
        let mut entries: Vec<_> = table.into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let given: Vec<_> = entries.iter().map(|(key, _)| key.get_ref().to_string()).collect();
        let mut taken = DeTable::new();
        for (key, value) in entries {
            let span = self.moved(key.span());
            let mut name = key.into_inner();
            let (is_table, is_array) = match value.get_ref() {
                DeValue::Table(_) => (true, false),
                DeValue::Array(array) => (false, array.iter().any(|value| value.get_ref().is_table())),
                _ => (false, false),
            };
            if let Err(Unknown { problem, meant }) = self.schema.check(path, &name, is_table || is_array) {
                if self.faults.have_lost(span.start) {
                    continue;
                }
                self.faults.add(Fault::new(Some(span.start), "", problem));
                // What is wrong in a table with a misspelt name is shown too.
                match meant {
                    Some(meant) if is_array || (is_table && !given.contains(&meant)) => name = meant.into(),
                    meant => {
                        self.faults.spoil(&name, true);
                        meant.iter().for_each(|meant| self.faults.spoil(meant, true));
                        continue;
                    }
                }
            }
            let value = self.several(&name, value, &span, path);
            path.push(name.to_string());
            match self.value(value, path) {
                Some(value) => {
                    let at = value.span().start;
                    let checked = if is_empty(value.get_ref()) {
                        self.schema.check_empty(path)
                    } else {
                        Ok(())
                    };
                    match checked {
                        Ok(()) => insert(&mut taken, Spanned::new(span, name), value),
                        Err(problem) => {
                            self.faults.add(Fault::new(Some(at), name.to_string(), problem));
                            self.faults.spoil(&name, true);
                        }
                    }
                }
                None => self.faults.spoil(&name, true),
            }
            path.pop();
        }
        taken
    }

    /// Makes a table of which there are several an array, if it is none.
    fn several<'i>(
        &mut self,
        name: &str,
        value: Spanned<DeValue<'i>>,
        key: &Range<usize>,
        path: &[String],
    ) -> Spanned<DeValue<'i>> {
        let problem = match (path.is_empty(), name) {
            (true, "service") => "a service is one of several tables: write [[service]] with two brackets",
            (true, "user") => "a user is one of several tables: write [[user]] with two brackets",
            (true, "client") => "a client is one of several tables: write [[client]] with two brackets",
            (false, "backend") => "a backend is one of several tables: write [[service.backend]] with two brackets",
            _ => return value,
        };
        if !value.get_ref().is_table() {
            return value;
        }
        let is_of_names =
            |table: &DeTable<'_>| !table.is_empty() && table.iter().all(|(_, one)| one.get_ref().is_table());
        if value.get_ref().as_table().is_some_and(is_of_names) {
            return self.named(name, value, problem);
        }
        // The parser may have lost a bracket itself.
        if !self.faults.have_lost_before(key.start) {
            self.faults.add(Fault::new(Some(key.start), "", problem));
        }
        Spanned::new(value.span(), DeValue::Array(DeArray::from_iter([value])))
    }

    /// Makes tables with names, such as `[service.web]`, an array of tables.
    fn named<'i>(&mut self, name: &str, value: Spanned<DeValue<'i>>, problem: &'static str) -> Spanned<DeValue<'i>> {
        let span = value.span();
        let DeValue::Table(tables) = value.into_inner() else {
            return Spanned::new(span, DeValue::Array(DeArray::new()));
        };
        let mut all: Vec<_> = tables.into_iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        let mut array = DeArray::new();
        for (key, mut table) in all {
            let shown = key.get_ref().escape_debug().to_string();
            let at = Some(self.moved(key.span()).start);
            if name == "backend" {
                self.faults.add(Fault::new(at, "", problem));
            } else {
                let problem = format!("{problem}, and below it name = \"{shown}\"");
                self.faults.add(Fault::new(at, "", problem));
                let named = Spanned::new(key.span(), "name".into());
                if let DeValue::Table(table) = table.get_mut() {
                    table.insert(named, Spanned::new(key.span(), DeValue::String(key.into_inner())));
                }
            }
            array.push(table);
        }
        Spanned::new(span, DeValue::Array(array))
    }

    fn moved(&self, span: Range<usize>) -> Range<usize> {
        self.start + span.start..self.start + span.end
    }

    /// Returns `None` if nothing of the value is right.
    fn value<'i>(&mut self, value: Spanned<DeValue<'i>>, path: &mut Vec<String>) -> Option<Spanned<DeValue<'i>>> {
        let span = self.moved(value.span());
        let taken = match value.into_inner() {
            DeValue::Table(table) => DeValue::Table(self.table(table, path)),
            DeValue::Array(array) => {
                let (mut taken, is_empty) = (DeArray::new(), array.is_empty());
                let is_of_scope = matches!(path.as_slice(), [name] if is_of_several(name));
                for value in array {
                    if is_of_scope {
                        self.faults.enter(Some(self.moved(value.span()).start));
                    }
                    self.value(value, path).into_iter().for_each(|value| taken.push(value));
                }
                if is_of_scope {
                    self.faults.enter(None);
                }
                if taken.is_empty() && !is_empty {
                    return None;
                }
                DeValue::Array(taken)
            }
            DeValue::String(text) => {
                let key = path.last().map(String::as_str).unwrap_or_default();
                let written = text.clone();
                let fault = |problem: String| Fault::new(Some(span.start), key.to_owned(), problem);
                let expanded = expanded(text, self.environment, self.room).map_err(fault);
                let Expanded { text, variables } = self.faults.keep(expanded)?;
                if text != written {
                    self.sources.expanded(&text, &written);
                    for (name, range) in &variables {
                        self.faults.hidden.add(span.start, &written, name, &text[range.clone()]);
                    }
                }
                let ranges: Vec<_> = variables.into_iter().map(|(_, range)| range).collect();
                let checked = schema::check_secret(key, &text, &ranges);
                self.faults.keep(checked.map_err(|problem| fault(problem.to_owned())))?;
                DeValue::String(text)
            }
            other => other,
        };
        Some(Spanned::new(span, taken))
    }
}

/// Returns whether a value is a list without a value, if it is a list. A text has values between
/// spaces.
fn is_empty(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::Array(array) => array.is_empty(),
        DeValue::String(text) => text.trim().is_empty(),
        _ => false,
    }
}

/// A text with the values of its variables.
struct Expanded<'i> {
    text: DeString<'i>,
    /// The names of the variables, and where their values are.
    variables: Vec<(String, Range<usize>)>,
}

/// Replaces `${NAME}` by the value of the variable, and `$${` by `${`.
///
/// # Errors
/// Returns a message if a variable is not defined, if its name is not valid, or if its value has
/// more than `room` bytes.
fn expanded<'i>(text: DeString<'i>, environment: Environment<'_>, room: &Cell<usize>) -> Result<Expanded<'i>, String> {
    let mut rest = &*text;
    let (mut done, mut variables) = (String::new(), Vec::new());
    while let Some(start) = rest.find("${") {
        let (before, after) = (&rest[..start], &rest[start + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            done.push_str(before);
            done.push_str("${");
            rest = after;
            continue;
        }
        done.push_str(before);
        let name = after.find('}').map(|end| &after[..end]);
        let name = name.filter(|name| is_variable(name));
        let name = name.ok_or("expected ${NAME} with letters, digits and `_`; write $${ for the text ${ itself")?;
        let value = environment(name).map_err(|why| format!("the environment variable {name} {why}"))?;
        let left = room.get().checked_sub(value.len());
        room.set(left.ok_or_else(|| {
            format!(
                "with the environment variable {name}, the configuration has more than {} MiB: use it less often",
                ALL_MAX_BYTES >> 20
            )
        })?);
        variables.push((name.to_owned(), done.len()..done.len() + value.len()));
        done.push_str(&value);
        rest = &after[name.len() + 1..];
    }
    if rest.len() == text.len() {
        return Ok(Expanded { text, variables });
    }
    done.push_str(rest);
    let text = done.into();
    Ok(Expanded { text, variables })
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
