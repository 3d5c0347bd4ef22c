//! Reads a file, or the files of a directory, into one configuration.

use std::env::VarError;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

use super::files::{ALL_MAX_BYTES, Sources, plain};
use super::tree::{self, Tree, TreeFault};
use super::{Config, Service};

/// Reads the configuration at `path`, and its locations. `environment` returns the value of a
/// variable.
///
/// # Errors
/// Returns the first fault, with its location.
pub(crate) fn read(path: &Path, environment: tree::Environment<'_>) -> Result<(Config, Sources), String> {
    let sources = Sources::read(path)?;
    let mut tree = Tree::new(environment, sources.room());
    for source in &sources.files {
        let parsed = DeTable::parse(&source.text);
        let table = parsed.map_err(|error| sources.show(&error, source.start, "this is not valid TOML: "))?;
        tree.add(table.into_inner(), source.start)
            .map_err(|fault| fault.show(&sources))?;
    }
    let table = tree.into_table();
    let keys = table.clone();
    let whole = Spanned::new(0..0, table);
    let config = Config::deserialize(Deserializer::from(whole)).map_err(|error| {
        let key = error.span().and_then(|span| tree::key_at(&keys, span.start));
        sources.show(&error, 0, &key.map(|key| format!("{key}: ")).unwrap_or_default())
    })?;
    Ok((config, sources))
}

/// Reads the table `[[service]]` in a text that no file has. Its locations begin at `start`.
///
/// # Errors
/// Returns the first fault, with the path of its key.
pub(in crate::settings) fn service(
    text: &str,
    start: usize,
    environment: tree::Environment<'_>,
) -> Result<Spanned<Service>, String> {
    let mut tree = Tree::new(environment, ALL_MAX_BYTES);
    let table = DeTable::parse(text).map_err(|error| plain(&error))?;
    tree.add(table.into_inner(), start).map_err(TreeFault::into_problem)?;
    let table = tree.into_table();
    let keys = table.clone();
    let config = Config::deserialize(Deserializer::from(Spanned::new(0..0, table))).map_err(|error| {
        let key = error.span().and_then(|span| tree::key_at(&keys, span.start));
        let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
        key + &plain(&error)
    })?;
    let service = config.service.into_iter().next().map(Spanned::into_inner);
    let service = service.ok_or("expected the table of a service")?;
    Ok(Spanned::new(start..start + text.len(), service))
}

/// Returns the value of an environment variable.
///
/// # Errors
/// Returns the end of a sentence about the variable.
pub(crate) fn variable(name: &str) -> Result<String, &'static str> {
    std::env::var(name).map_err(|error| match error {
        VarError::NotPresent => "is not defined: set it, or write $${ for ${",
        VarError::NotUnicode(_) => "is not valid UTF-8: set it to text in UTF-8",
    })
}
