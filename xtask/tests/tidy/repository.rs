//! The files of the repository.

use std::fs;
use std::path::Path;
use std::process::Command;

/// All files that git tracks or would track.
pub(crate) struct Repository {
    pub(crate) files: Vec<File>,
}

pub(crate) struct File {
    /// The path from the root of the repository.
    pub(crate) path: String,
    /// Empty if the file is not text.
    pub(crate) text: String,
}

/// A line of a file. Line numbers start at 1.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) path: &'a str,
    pub(crate) number: usize,
    pub(crate) text: &'a str,
}

impl Repository {
    pub(crate) fn open() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask is in the root");
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .expect("git runs");
        let paths = String::from_utf8(listed.stdout).expect("paths are text");
        let read = |path: &str| {
            let bytes = fs::read(root.join(path)).ok()?;
            Some(File {
                path: path.into(),
                text: String::from_utf8(bytes).unwrap_or_default(),
            })
        };
        let files: Vec<File> = paths.split_terminator('\0').filter_map(read).collect();
        assert!(!files.is_empty(), "expected a git work tree");
        Self { files }
    }

    /// Returns a repository of these files, for tests of the rules.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether this is the path of a file or a folder.
    pub(crate) fn has(&self, path: &str) -> bool {
        let is_below = |file: &File| {
            let rest = file.path.strip_prefix(path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        path.is_empty() || self.files.iter().any(is_below)
    }

    pub(crate) fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| {
            Path::new(&file.path)
                .extension()
                .is_some_and(|found| found == extension)
        })
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.with_extension("rs")
    }

    pub(crate) fn markdown(&self) -> impl Iterator<Item = &File> {
        self.with_extension("md")
    }
}

impl File {
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.text.lines().zip(1..).map(|(text, number)| Line {
            path: &self.path,
            number,
            text,
        })
    }

    /// Returns the lines of test code: the whole file, or all lines after its first `#[cfg(test)]
    /// mod`.
    pub(crate) fn test_lines(&self) -> impl Iterator<Item = Line<'_>> {
        let is_test = |part: &str| part == "tests" || part == "tests.rs" || part == "loom_tests.rs";
        let mut tests = self.path.split('/').any(is_test);
        let mut after_attribute = false;
        self.lines().filter(move |line| {
            tests |= after_attribute && line.text.starts_with("mod ") && line.text.ends_with('{');
            after_attribute = line.text == "#[cfg(test)]";
            tests
        })
    }
}

impl Line<'_> {
    /// Returns `path:line: message`.
    pub(crate) fn finding(&self, message: &str) -> String {
        format!("{}:{}: {message}", self.path, self.number)
    }

    pub(crate) fn is_comment(&self) -> bool {
        self.text.trim_start().starts_with("//")
    }
}
