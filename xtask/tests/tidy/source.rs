//! The repository's files as the rules see them: text, and Rust code without its comments and strings.

use std::fs;
use std::path::Path;
use std::process::Command;

/// All text files of the repository, by path from its root.
pub(crate) struct Repository {
    pub(crate) files: Vec<File>,
}

/// One file and the views of it. All views have the same lines, so that a line number holds in each.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
    /// Rust only: comments and the insides of strings are blanks.
    pub(crate) code: String,
    /// Rust only: comments are blanks, strings are kept.
    pub(crate) code_with_strings: String,
}

impl Repository {
    /// What git tracks or would track; without git, what lies in the folder outside `target`.
    pub(crate) fn open(root: &Path) -> Self {
        let paths = git_files(root).unwrap_or_else(|| walk(root, ""));
        // A file may be deleted and not yet committed, or not be text: neither is read.
        let read = |path: String| {
            fs::read_to_string(root.join(&path))
                .ok()
                .map(|text| File::new(path, text))
        };
        Self {
            files: paths.into_iter().filter_map(read).collect(),
        }
    }

    /// A repository of these files, for the tests of the rules.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files
                .iter()
                .map(|(path, text)| File::new((*path).into(), (*text).into()))
                .collect(),
        }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// Whether it is a file or the folder of one.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.is_empty()
            || self.files.iter().any(|file| {
                file.path
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }
}

impl File {
    fn new(path: String, text: String) -> Self {
        let (code, code_with_strings) = if path.ends_with(".rs") {
            blank(&text)
        } else {
            Default::default()
        };
        Self {
            path,
            text,
            code,
            code_with_strings,
        }
    }

    /// `path:line`, lines counted from 1.
    pub(crate) fn at(&self, index: usize) -> String {
        format!("{}:{}", self.path, index + 1)
    }

    /// For each line of code, whether it is test code: in a file of tests or in a `#[cfg(test)]` module.
    pub(crate) fn test_lines(&self) -> Vec<bool> {
        let whole = self.path.split('/').any(|part| part == "tests" || part == "tests.rs");
        let mut lines = vec![whole; self.code.lines().count()];
        for (start, _) in self
            .code
            .match_indices("#[cfg(")
            .filter(|(at, _)| gates_tests(&self.code[*at..]))
        {
            if let Some(end) = end_of_item(&self.code, start) {
                lines[line_of(&self.code, start)..=line_of(&self.code, end)].fill(true);
            }
        }
        lines
    }

    /// Every function with a body: the index of its first line, and how many lines it has.
    pub(crate) fn functions(&self) -> Vec<(usize, usize)> {
        let starts = words(&self.code)
            .filter(|(_, word)| *word == "fn")
            .map(|(start, _)| start);
        let function = |start| {
            let first = line_of(&self.code, start);
            end_of_item(&self.code, start).map(|end| (first, line_of(&self.code, end) - first + 1))
        };
        starts.filter_map(function).collect()
    }
}

/// Identifiers and keywords with where they start.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    code.split(move |c| !letter(c))
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

fn gates_tests(attribute: &str) -> bool {
    let end = attribute.find(']').unwrap_or(attribute.len());
    let names: Vec<&str> = words(&attribute[..end]).map(|(_, word)| word).collect();
    names.windows(2).any(|pair| pair[1] == "test" && pair[0] != "not")
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count()
}

/// Where the body of the item that starts at `start` closes; `None` if it has none. Brackets alone decide, which holds for code
/// that rustfmt accepts, except for a const block in a signature.
fn end_of_item(code: &str, start: usize) -> Option<usize> {
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (offset, c) in code[start..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.checked_sub(1)?,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 {
                    return Some(start + offset);
                }
            }
            _ => {}
        }
    }
    None
}

/// The code without comments and strings, and without comments alone. Blanks stand for what is left out.
fn blank(text: &str) -> (String, String) {
    let (mut code, mut with_strings) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (kind, len) = token(rest, code.chars().next_back());
        let piece = &rest[..len];
        let blanks: String = piece.chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        code.push_str(if kind == Kind::Code { piece } else { &blanks });
        with_strings.push_str(if kind == Kind::Comment { &blanks } else { piece });
        at += len;
    }
    (code, with_strings)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// The kind and the length of what `rest` starts with; of code, one character. `before` tells the r of `r"` from that of `for`.
fn token(rest: &str, before: Option<char>) -> (Kind, usize) {
    let first = rest.chars().next().expect("not at the end");
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let literal = match first {
        '/' if rest.starts_with("//") => return (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
        '/' if rest.starts_with("/*") => return (Kind::Comment, block_comment(rest)),
        '"' => Some(1 + quoted(&rest[1..], '"')),
        '\'' => character(rest),
        'r' | 'b' | 'c' if !in_word => raw_string(rest),
        _ => None,
    };
    literal.map_or((Kind::Code, first.len_utf8()), |len| (Kind::Literal, len))
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let step = match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (1, 2),
            [b'*', b'/', ..] => (-1, 2),
            _ => (0, 1),
        };
        depth += step.0;
        at += step.1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length up to and with the closing quote.
fn quoted(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    inside.len()
}

/// `'a'` and `'\n'`, but not the lifetime `'a`.
fn character(rest: &str) -> Option<usize> {
    let mut inside = rest[1..].chars();
    let (first, second) = (inside.next()?, inside.next()?);
    (first == '\\' || second == '\'').then(|| 1 + quoted(&rest[1..], '\''))
}

/// `r"…"`, `r#"…"#` and their `br` and `cr` forms. (`b"…"` is a `b` and a string.)
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(rest.len() - inside.len() + end)
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root);
    let listed = git.output().ok().filter(|listed| listed.status.success())?;
    let paths: Vec<String> = String::from_utf8(listed.stdout)
        .ok()?
        .split_terminator('\0')
        .map(str::to_owned)
        .collect();
    // An archive unpacked inside someone else's repository: that one ignores or does not know us.
    paths.iter().any(|path| path == "Cargo.toml").then_some(paths)
}

fn walk(root: &Path, folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !matches!(name.as_str(), "target" | ".git") => {
                paths.append(&mut walk(root, &path));
            }
            Ok(kind) if kind.is_file() => paths.push(path),
            _ => {}
        }
    }
    paths
}
