//! Where a configuration comes from, and how a fault in it is shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::faults::{FAULTS_MAX, Fault};
use super::given::Given;
use crate::settings::config::AUTH_VARIABLE;
use crate::settings::config::{Service, Sources, Table};

/// The command line, or files, and what was given at run time.
#[derive(Debug)]
pub(crate) enum Origin {
    CommandLine,
    Files(Sources),
    /// Services that were given at run time, and where the rest comes from.
    Given(Arc<Origin>, Given),
}

/// Replaces flags by their keys, such as `--auth-file` by `auth_file`.
fn as_keys(problem: &str) -> String {
    let mut text = String::new();
    let mut rest = problem;
    while let Some(at) = rest.find("--") {
        let (before, from) = rest.split_at(at);
        let name = from.trim_start_matches('-');
        let dashes = from.len() - name.len();
        let end = name.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-');
        let (name, after) = name.split_at(end.unwrap_or(name.len()));
        // A path may contain dashes, and PEM has lines of them.
        let is_flag = dashes == 2 && !name.is_empty() && !before.ends_with(|letter: char| letter.is_alphanumeric());
        text.push_str(before);
        if is_flag {
            text.push_str(&name.replace('-', "_"));
        } else {
            text.push_str(&from[..dashes + name.len()]);
        }
        rest = after;
    }
    text + rest
}

/// Returns the flag of a key.
fn flag_of(key: &str) -> String {
    match key {
        "to" => "--remote".to_owned(),
        "access" | "access_format" => format!("--{}", key.replace("access", "access-log").replace('_', "-")),
        "socket" => "--admin".to_owned(),
        "remote" | "tokens" => format!("--admin-{key}"),
        key => format!("--{}", key.replace('_', "-")),
    }
}

/// Replaces the keys of a service by their flags, such as `check = "tls"` by `--check tls`, and
/// `target_tls_name` by `--target-tls-name`.
fn as_flags(problem: &str) -> String {
    let of_names = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != '-' && letter != '.';
    let (mut text, mut rest) = (String::new(), problem);
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(of_names).unwrap_or(rest.len()));
        let is_key = <Service as Table>::KEYS.iter().any(|key| key.name == word);
        let value = after.strip_prefix(" = \"").and_then(|after| after.split_once('"'));
        rest = match value {
            Some((value, after)) if is_key => {
                if word != "kind" {
                    text.push_str(&flag_of(word));
                    text.push(' ');
                }
                text.push_str(value);
                after
            }
            _ if is_key && word.contains('_') => {
                text.push_str(&flag_of(word));
                after
            }
            _ => {
                text.push_str(word);
                after
            }
        };
        let end = rest.find(|letter| !of_names(letter)).unwrap_or(rest.len());
        text.push_str(&rest[..end]);
        rest = &rest[end..];
    }
    text
}

impl Origin {
    /// Returns the text for the operator, which has a line for each fault.
    pub(super) fn show_all(&self, faults: &[Fault]) -> String {
        let shown = faults.iter().take(FAULTS_MAX).map(|fault| self.show(fault));
        let mut lines: Vec<_> = shown.collect();
        if faults.len() > FAULTS_MAX {
            lines.push(format!("and {} more: correct these first", faults.len() - FAULTS_MAX));
        }
        lines.join("\n")
    }

    /// Returns the text for the operator, which names the flag or the location in a file.
    pub(super) fn show(&self, fault: &Fault) -> String {
        let Fault { at, key, problem } = fault;
        match self {
            Self::CommandLine => {
                let problem = as_flags(problem);
                match &**key {
                    "" => problem,
                    "auth" => format!("--auth or {AUTH_VARIABLE}: {problem}"),
                    key => format!("{}: {problem}", flag_of(key)),
                }
            }
            Self::Given(base, _) if !at.is_some_and(Given::has) => base.show(fault),
            Self::Given(_, given) => {
                let location = format!("service {}", given.location(at.unwrap_or_default()));
                let problem = as_keys(problem);
                match &**key {
                    "" => format!("{location}: {problem}"),
                    key => format!("{location}: {key}: {problem}"),
                }
            }
            Self::Files(sources) => {
                let location = sources.location(*at);
                let problem = as_keys(problem);
                match &**key {
                    "" => format!("{location}: {problem}"),
                    key => format!("{location}: {key}: {problem}"),
                }
            }
        }
    }

    /// Returns the location of a value.
    pub(super) fn location(&self, at: Option<usize>) -> String {
        match self {
            Self::CommandLine => "the command line".to_owned(),
            Self::Files(sources) => sources.location(at),
            Self::Given(base, given) => match at.filter(|at| Given::has(*at)) {
                Some(at) => format!("{} (given at run time)", given.location(at)),
                None => base.location(at),
            },
        }
    }

    /// Returns what was given at run time.
    pub(crate) fn given(&self) -> &Given {
        const NONE: &Given = &Given::NONE;
        match self {
            Self::CommandLine | Self::Files(_) => NONE,
            Self::Given(_, given) => given,
        }
    }

    /// Returns the origin with these services, and no others, given at run time.
    pub(super) fn with(self: &Arc<Self>, given: Given) -> Arc<Self> {
        let base = match &**self {
            Self::CommandLine | Self::Files(_) => self,
            Self::Given(base, _) => base,
        };
        if given.is_empty() {
            return Arc::clone(base);
        }
        Arc::new(Self::Given(Arc::clone(base), given))
    }

    /// Returns the files, if the configuration has some.
    pub(super) fn files(&self) -> Option<&Sources> {
        match self {
            Self::CommandLine => None,
            Self::Files(sources) => Some(sources),
            Self::Given(base, _) => base.files(),
        }
    }

    /// Returns the folder in which relative paths at this location begin. `None` means the working
    /// directory.
    pub(super) fn folder_of(&self, at: Option<usize>) -> Option<PathBuf> {
        match self {
            Self::CommandLine => None,
            Self::Files(sources) => sources.folder_of(at?),
            // Paths begin where they would begin in a file of the folder.
            Self::Given(base, _) if at.is_some_and(Given::has) => base.files()?.folder().map(Path::to_owned),
            Self::Given(base, _) => base.folder_of(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::as_keys;

    #[test]
    fn only_flags_become_keys() {
        for (problem, expected) in [
            ("needs --tls-key too", "needs tls_key too"),
            ("`--a-b` and --c", "`a_b` and c"),
            (
                "a line `-----BEGIN PRIVATE KEY-----`",
                "a line `-----BEGIN PRIVATE KEY-----`",
            ),
            ("/etc/a--b.pem -- 1", "/etc/a--b.pem -- 1"),
        ] {
            assert_eq!(as_keys(problem), expected);
        }
    }
}

#[cfg(test)]
mod flags {
    use super::as_flags;

    #[test]
    fn keys_are_flags_on_the_command_line() {
        for (problem, expected) in [
            (
                "expected tls://example.com:443, check = \"tls\", or upstream_proxy = \"https://…\"",
                "expected tls://example.com:443, --check tls, or --upstream-proxy https://…",
            ),
            (
                "here and in to_allow: needs check",
                "here and in --to-allow: needs check",
            ),
            ("is not for kind = \"transparent\": no", "is not for transparent: no"),
            (
                "such as to = \"a:1\" at a-to_deny.b:1",
                "such as --remote a:1 at a-to_deny.b:1",
            ),
        ] {
            assert_eq!(as_flags(problem), expected);
        }
    }
}
