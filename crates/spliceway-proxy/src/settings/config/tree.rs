//! The keys and texts of files: merges files, finds unknown keys, and replaces `${NAME}`.

use std::cell::Cell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::files::{ALL_MAX_BYTES, Sources};
use super::schema::{self, Schema};

/// Returns the value of an environment variable, or the end of a sentence about it.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Result<String, &'static str>;

/// The tables of all files. Their locations are offsets from the start of the first file.
pub(super) struct Tree<'i, 'a> {
    environment: Environment<'a>,
    /// The number of bytes that the values of further variables may have.
    room: Cell<usize>,
    schema: Schema,
    table: DeTable<'i>,
}

/// What is wrong at an offset, and a second offset that it contradicts.
#[derive(Debug)]
pub(super) struct TreeFault {
    at: usize,
    problem: String,
    other: Option<usize>,
}

impl TreeFault {
    fn new(at: usize, problem: String) -> Self {
        Self {
            at,
            problem,
            other: None,
        }
    }

    pub(super) fn show(&self, sources: &Sources) -> String {
        let Self { at, problem, other } = self;
        let other = other.map(|at| sources.location(Some(at))).unwrap_or_default();
        format!("{}: {problem}{other}", sources.location(Some(*at)))
    }
}

impl<'i, 'a> Tree<'i, 'a> {
    /// The values of all variables have at most `room` bytes.
    pub(super) fn new(environment: Environment<'a>, room: usize) -> Self {
        Self {
            environment,
            room: Cell::new(room),
            schema: Schema::new(),
            table: DeTable::new(),
        }
    }

    /// Adds the table of a file that begins at offset `start`.
    ///
    /// # Errors
    /// Returns an error for an unknown key, for a key that another file has, for an empty list, for a
    /// variable that is not defined, and for variables that are too long.
    pub(super) fn add(&mut self, table: DeTable<'i>, start: usize) -> Result<(), TreeFault> {
        let step = Step {
            environment: self.environment,
            room: &self.room,
            schema: &self.schema,
            start,
        };
        let table = step.table(table, &mut Vec::new())?;
        merge(&mut self.table, table)
    }

    pub(super) fn into_table(self) -> DeTable<'i> {
        self.table
    }
}

/// Adds `new` to `table`. Arrays are joined, and other values must not occur twice.
fn merge<'i>(table: &mut DeTable<'i>, new: DeTable<'i>) -> Result<(), TreeFault> {
    for (key, value) in new {
        let Some((known, old)) = table.remove_entry(&key) else {
            table.insert(key, value);
            continue;
        };
        let span = old.span();
        let merged = match (old.into_inner(), value.into_inner()) {
            (DeValue::Table(mut old), DeValue::Table(new)) => {
                merge(&mut old, new)?;
                DeValue::Table(old)
            }
            (DeValue::Array(mut old), DeValue::Array(new)) if matches!(&**known.get_ref(), "service" | "user") => {
                new.into_iter().for_each(|table| old.push(table));
                DeValue::Array(old)
            }
            _ => {
                let mut fault = TreeFault::new(
                    key.span().start,
                    format!(
                        "`{}` is given twice: remove it here or at ",
                        key.get_ref().escape_debug()
                    ),
                );
                fault.other = Some(known.span().start);
                return Err(fault);
            }
        };
        table.insert(known, Spanned::new(span, merged));
    }
    Ok(())
}

/// Takes the values of one file over.
struct Step<'a> {
    environment: Environment<'a>,
    room: &'a Cell<usize>,
    schema: &'a Schema,
    start: usize,
}

impl Step<'_> {
    /// `path` has the names of the tables around this one.
    fn table<'i>(&self, table: DeTable<'i>, path: &mut Vec<String>) -> Result<DeTable<'i>, TreeFault> {
        // The first fault is the one that is first in the file.
        let mut entries: Vec<_> = table.into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut taken = DeTable::new();
        for (key, value) in entries {
            let span = self.moved(key.span());
            let name = key.get_ref().to_string();
            self.schema
                .check(path, &name)
                .map_err(|problem| TreeFault::new(span.start, problem))?;
            let several = match (path.is_empty(), &*name) {
                (true, "service") => Some("a service is one of several tables: write [[service]] with two brackets"),
                (true, "user") => Some("a user is one of several tables: write [[user]] with two brackets"),
                (false, "backend") => {
                    Some("a backend is one of several tables: write [[service.backend]] with two brackets")
                }
                _ => None,
            };
            if let Some(problem) = several.filter(|_| value.get_ref().is_table()) {
                return Err(TreeFault::new(span.start, problem.to_owned()));
            }
            path.push(name);
            let value = self.value(value, path)?;
            if is_empty(value.get_ref()) {
                let checked = self.schema.check_empty(path);
                checked.map_err(|problem| TreeFault::new(value.span().start, problem))?;
            }
            path.pop();
            taken.insert(Spanned::new(span, key.into_inner()), value);
        }
        Ok(taken)
    }

    fn moved(&self, span: Range<usize>) -> Range<usize> {
        self.start + span.start..self.start + span.end
    }

    fn value<'i>(
        &self,
        value: Spanned<DeValue<'i>>,
        path: &mut Vec<String>,
    ) -> Result<Spanned<DeValue<'i>>, TreeFault> {
        let span = self.moved(value.span());
        let taken = match value.into_inner() {
            DeValue::Table(table) => DeValue::Table(self.table(table, path)?),
            DeValue::Array(array) => {
                let mut taken = DeArray::new();
                for value in array {
                    taken.push(self.value(value, path)?);
                }
                DeValue::Array(taken)
            }
            DeValue::String(text) => {
                let key = path.last().map(String::as_str).unwrap_or_default();
                let expanded = schema::check_secret(key, &text)
                    .map_err(str::to_owned)
                    .and_then(|()| expanded(text, self.environment, self.room));
                DeValue::String(expanded.map_err(|problem| TreeFault::new(span.start, format!("{key}: {problem}")))?)
            }
            other => other,
        };
        Ok(Spanned::new(span, taken))
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

/// Returns the path of the key whose value is at offset `at`, such as `timeouts.idle`.
pub(super) fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref();
        let below = match value.get_ref() {
            DeValue::Table(table) => key_at(table, at),
            DeValue::Array(array) => array.iter().find_map(|value| match value.get_ref() {
                DeValue::Table(table) => key_at(table, at),
                _ => None,
            }),
            _ => None,
        };
        match below {
            // The number of a service or a user would not help: the location has its line.
            Some(below) if name == "service" || (name == "user" && value.get_ref().is_array()) => Some(below),
            Some(below) => Some(format!("{name}.{below}")),
            None => value.span().contains(&at).then(|| name.to_string()),
        }
    })
}

/// Replaces `${NAME}` by the value of the variable, and `$${` by `${`.
///
/// # Errors
/// Returns a message if a variable is not defined, if its name is not valid, or if its value has
/// more than `room` bytes.
fn expanded<'i>(text: DeString<'i>, environment: Environment<'_>, room: &Cell<usize>) -> Result<DeString<'i>, String> {
    let mut rest = &*text;
    let mut done = String::new();
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
        done.push_str(&value);
        rest = &after[name.len() + 1..];
    }
    if rest.len() == text.len() {
        return Ok(text);
    }
    done.push_str(rest);
    Ok(done.into())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
