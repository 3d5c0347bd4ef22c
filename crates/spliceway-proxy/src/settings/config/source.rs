//! Reads a file, or the files of a directory, into one configuration.

use std::env::VarError;
use std::path::Path;

use toml::Spanned;
use toml::de::DeTable;

use super::files::Sources;
use super::syntax;
use super::tree::{self, Tree};
use super::{Config, Service};
use crate::settings::faults::Faults;

/// Reads the configuration at `path`, and its locations. `environment` returns the value of a
/// variable. The configuration is without what is wrong in it.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(in crate::settings) fn read(
    path: &Path,
    environment: tree::Environment<'_>,
    faults: &mut Faults,
) -> Result<(Config, Sources), String> {
    let sources = Sources::read(path)?;
    let mut tables = Vec::new();
    for source in &sources.files {
        let (table, errors) = DeTable::parse_recoverable(&source.text);
        let mut table = table.into_inner();
        syntax::check(&sources, source, errors, &mut table, faults);
        tables.push((table, source.start));
    }
    let mut tree = Tree::new(environment, &sources, faults);
    for (table, start) in tables {
        tree.add(table, start);
    }
    let config = tree.typed();
    Ok((config, sources))
}

/// Reads the tables `[[service]]` in a text that no file has. Its locations begin at `start`. The
/// tables are without what is wrong in them.
pub(in crate::settings) fn tables(
    text: &str,
    start: usize,
    environment: tree::Environment<'_>,
    faults: &mut Faults,
) -> Vec<Spanned<Service>> {
    let sources = Sources::none();
    match DeTable::parse(text) {
        Ok(table) => {
            let mut tree = Tree::new(environment, &sources, faults);
            tree.add(table.into_inner(), start);
            tree.typed().service
        }
        Err(error) => {
            faults.add(sources.fault(&error, start, ""));
            Vec::new()
        }
    }
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
