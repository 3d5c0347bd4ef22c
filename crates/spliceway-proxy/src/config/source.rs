//! Reads a file, or the files of a directory, into one configuration.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer, Error};

use super::Config;
use super::tree::{self, Tree};

/// The limit on all files together. A service needs about 200 bytes.
const ALL_MAX_BYTES: usize = 16 << 20;

/// The files that were read. An offset counts from the start of the first file.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The path that the operator gave.
    path: PathBuf,
    files: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    text: String,
    /// The offset of the text.
    start: usize,
}

/// Reads the configuration at `path`, and its places. `environment` returns the value of a
/// variable.
///
/// # Errors
/// Returns the first fault, with its place.
pub(crate) fn read(path: &Path, environment: tree::Environment<'_>) -> Result<(Config, Sources), String> {
    let sources = Sources::read(path)?;
    let mut tree = Tree::new(environment);
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

impl Sources {
    fn read(path: &Path) -> Result<Self, String> {
        let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let is_directory = fs::metadata(path).map_err(|error| named(path, &error))?.is_dir();
        let paths = match is_directory {
            true => files_in(path).map_err(|error| named(path, &error))?,
            false => vec![path.to_owned()],
        };
        let (mut files, mut start) = (Vec::new(), 0);
        for path in paths {
            let text = read_bounded(&path, ALL_MAX_BYTES - start).map_err(|error| named(&path, &error))?;
            let length = text.len();
            files.push(Source { path, text, start });
            start += length;
        }
        Ok(Self {
            path: path.to_owned(),
            files,
        })
    }

    /// Returns `FILE:LINE:COLUMN` of an offset. Without an offset, returns the path that the
    /// operator gave.
    pub(crate) fn place(&self, at: Option<usize>) -> String {
        let Some((at, source)) = at.and_then(|at| Some((at, self.source(at)?))) else {
            return self.path.display().to_string();
        };
        let before = source.text.get(..at - source.start).unwrap_or(&source.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |text| text.chars().count()) + 1;
        format!("{}:{line}:{column}", source.path.display())
    }

    /// Returns the directory of the file at this offset.
    pub(crate) fn folder_of(&self, at: usize) -> Option<PathBuf> {
        self.source(at)?.path.parent().map(Path::to_owned)
    }

    fn source(&self, at: usize) -> Option<&Source> {
        self.files.iter().rfind(|source| source.start <= at)
    }

    fn show(&self, error: &Error, start: usize, what: &str) -> String {
        let at = error.span().map(|span| start + span.start);
        let problem = match error.message() {
            "duplicate key" => "the key is given twice: remove one of them".to_owned(),
            // A message of the parser may have several lines, and words that TOML does not have.
            message => message
                .trim()
                .replace('\n', ", ")
                .replace(": sequence,", ": array,")
                .replace(": map,", ": table,"),
        };
        format!("{}: {what}{problem}", self.place(at))
    }
}

/// Returns the files of a configuration in a directory, in the order of their names.
fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(io::Error::other(
            "the directory has no configuration: expected files *.toml",
        )),
        false => Ok(files),
    }
}

/// Returns the text of the file at `path`. The limit applies to the bytes that are read, because a
/// pipe or a device has no length.
fn read_bounded(path: &Path, max: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let expected = format!("too long: expected at most {} MiB in all files", ALL_MAX_BYTES >> 20);
        return Err(io::Error::other(expected));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        io::Error::other(format!("line {line} is not valid UTF-8: expected text in UTF-8"))
    })
}
