//! The files of a configuration, and the locations in them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use toml::de::Error;

use crate::kit::named_file::{self, Unreadable};
use crate::settings::faults::Fault;

/// The limit on all files together, before and after variables are replaced. A service needs about
/// 200 bytes.
pub(super) const ALL_MAX_BYTES: usize = 16 << 20;

/// The files that were read. An offset counts from the start of the first file.
#[derive(Debug)]
pub(crate) struct Sources {
    /// The path that the operator gave.
    path: PathBuf,
    pub(super) files: Vec<Source>,
    /// The values that have variables in them, as `Value` prints them, and as the files have them.
    variables: Mutex<HashMap<String, String>>,
}

#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    pub(super) text: String,
    /// The offset of the text. The next text begins one byte after the end of this one, so that the
    /// end belongs to this text too.
    pub(super) start: usize,
    /// The offsets at which the lines begin, from the start of the text.
    lines: Vec<usize>,
    /// Whether [`Sources::parsed_if_right`] returns something. Empty before the first call.
    is_right: OnceLock<bool>,
}

impl Source {
    /// Returns the range of the line with this offset in the text.
    pub(super) fn line(&self, at: usize) -> Range<usize> {
        let line = self.lines.partition_point(|start| *start <= at);
        let end = self.lines.get(line).map_or(self.text.len(), |next| next - 1);
        self.lines[line - 1]..end
    }
}

impl Sources {
    /// Returns the sources of a configuration that is in no file.
    pub(super) fn none() -> Self {
        Self {
            path: PathBuf::new(),
            files: Vec::new(),
            variables: Mutex::default(),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let named = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let is_directory = fs::metadata(path).is_ok_and(|metadata| metadata.is_dir());
        let paths = if is_directory {
            files_in(path).map_err(|error| named(path, &error))?
        } else {
            vec![path.to_owned()]
        };
        let (mut files, mut start, mut room) = (Vec::new(), 0, ALL_MAX_BYTES);
        for path in paths {
            let text = text_of(&path, is_directory, room).map_err(|error| named(&path, &error))?;
            let length = text.len();
            let ends = text.match_indices('\n').map(|(at, _)| at + 1);
            files.push(Source {
                lines: std::iter::once(0).chain(ends).collect(),
                path,
                text,
                start,
                is_right: OnceLock::new(),
            });
            start += length + 1;
            room -= length;
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            variables: Mutex::default(),
        })
    }

    /// Remembers a value with a variable in it, and each of its words, because a text may be a
    /// list.
    pub(super) fn expanded(&self, value: &str, written: &str) {
        let (words, written_words) = (value.split_whitespace(), written.split_whitespace());
        let pairs = if words.clone().count() == written_words.clone().count() {
            words.zip(written_words).collect()
        } else {
            Vec::new()
        };
        let mut variables = self.variables.lock();
        for (value, written) in pairs.into_iter().chain([(value, written)]) {
            if value != written {
                variables.insert(value.replace("${", "$${"), written.to_owned());
            }
        }
    }

    /// Returns a value as the files have it, if it has a variable in it. The value of a variable
    /// may be a secret.
    pub(in crate::settings) fn written(&self, printed: &str) -> Option<String> {
        self.variables.lock().get(printed).cloned()
    }

    /// Returns the number of bytes that the values of variables may add.
    pub(super) fn room(&self) -> usize {
        let read: usize = self.files.iter().map(|source| source.text.len()).sum();
        ALL_MAX_BYTES - read
    }

    /// Returns `FILE:LINE:COLUMN` of an offset. Without an offset, returns the path that the
    /// operator gave.
    pub(crate) fn location(&self, at: Option<usize>) -> String {
        let Some((at, source)) = at.and_then(|at| Some((at, self.source(at)?))) else {
            return self.path.display().to_string();
        };
        // The end of the text is shown as the end of its last line that is not blank.
        let before = match source.text.get(..at - source.start) {
            Some(before) if before.len() < source.text.len() => before,
            _ => source.text.trim_end(),
        };
        let line = source.lines.partition_point(|start| *start <= before.len());
        let column = before[source.lines[line - 1]..].chars().count() + 1;
        format!("{}:{line}:{column}", source.path.display())
    }

    pub(in crate::settings) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|source| &*source.path)
    }

    /// Returns the directory of the file at this offset.
    pub(in crate::settings) fn folder_of(&self, at: usize) -> Option<PathBuf> {
        self.source(at)?.path.parent().map(Path::to_owned)
    }

    /// Returns the path and the text of the file at this offset.
    pub(in crate::settings) fn file(&self, at: usize) -> Option<(&Path, &str)> {
        let source = self.source(at)?;
        Some((&source.path, &source.text))
    }

    /// Parses the file at this offset. `parse` returns `None` for a file of another form. Such a
    /// file is not parsed again, because 10,000 services may be in it.
    pub(in crate::settings) fn parsed_if_right<T>(
        &self,
        at: usize,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let source = self.source(at)?;
        if source.is_right.get() == Some(&false) {
            return None;
        }
        let parsed = parse(&source.text);
        source.is_right.get_or_init(|| parsed.is_some());
        parsed
    }

    /// Returns the folder of the files.
    pub(in crate::settings) fn folder(&self) -> Option<&Path> {
        self.files.first()?.path.parent()
    }

    /// Returns the path that the operator gave.
    pub(in crate::settings) fn path(&self) -> &Path {
        &self.path
    }

    fn source(&self, at: usize) -> Option<&Source> {
        let after = self.files.partition_point(|source| source.start <= at);
        self.files.get(after.checked_sub(1)?)
    }

    /// Returns what an error says about a text that begins at offset `start`.
    pub(super) fn fault(&self, error: &Error, start: usize, what: &str) -> Fault {
        let at = error.span().map(|span| start + span.start);
        Fault::new(at, "", format!("{what}{}", plain(error)))
    }
}

/// Returns the message of the parser in words that TOML has.
pub(super) fn plain(error: &Error) -> String {
    match error.message() {
        "duplicate key" => "the key is given twice: remove one of them".to_owned(),
        // A message may have several lines.
        message => message
            .trim()
            .replace('\n', ", ")
            .replace(": sequence,", ": array,")
            .replace(": map,", ": table,"),
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
    if files.is_empty() {
        return Err(io::Error::other(
            "the folder has no configuration: expected files *.toml",
        ));
    }
    Ok(files)
}

/// Returns the text of a file with at most `room` bytes. The files of a directory must be regular,
/// so that nothing in it lets the program wait. The operator may still name a pipe alone, such as
/// `<(generate)` of a shell.
fn text_of(path: &Path, is_in_directory: bool, room: usize) -> Result<String, String> {
    if is_in_directory && named_file::is_regular(path).is_ok_and(|is_regular| !is_regular) {
        let problem = "this is not a regular file: remove it, or rename it so that it does not end in .toml";
        return Err(problem.to_owned());
    }
    match named_file::read(path, room) {
        Ok(file) => Ok(file.text),
        Err(Unreadable::TooLong(_)) => Err(format!(
            "too long: expected at most {} MiB in all files",
            ALL_MAX_BYTES >> 20
        )),
        Err(why) => Err(why.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_several_services_is_parsed_once() {
        let path = std::env::temp_dir().join(format!("spliceway-several-{}.toml", std::process::id()));
        fs::write(&path, "# several\n").unwrap();
        let sources = Sources::read(&path).unwrap();
        let parses = std::cell::Cell::new(0);
        let parse = |result: Option<()>| {
            let parse = |_: &str| {
                parses.set(parses.get() + 1);
                result
            };
            sources.parsed_if_right(5, parse)
        };
        assert_eq!(
            (parse(None), parse(None), parse(Some(())), parses.get()),
            (None, None, None, 1)
        );
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_word_of_a_list_is_shown_with_its_variable() {
        let sources = Sources::none();
        sources.expanded("a:1 secret:2", "a:1 ${B}");
        assert_eq!(sources.written("secret:2").as_deref(), Some("${B}"));
        assert_eq!(sources.written("a:1"), None);
        assert_eq!(sources.written("a:1 secret:2").as_deref(), Some("a:1 ${B}"));
    }
}
