//! What the reports of `doctor` and `bench` have in common.

use std::io;

use rustix::io::Errno;

const COLUMNS: usize = 80;

/// What a report says about the system first.
pub(crate) struct System {
    pub(crate) kernel: String,
    pub(crate) machine: String,
    pub(crate) user: u32,
}

impl System {
    pub(crate) fn here() -> Self {
        let name = rustix::system::uname();
        Self {
            kernel: name.release().to_string_lossy().into_owned(),
            machine: name.machine().to_string_lossy().into_owned(),
            user: rustix::process::geteuid().as_raw(),
        }
    }
}

/// Breaks a text into lines of at most [`COLUMNS`] columns, of which the first `indent` are empty.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let (mut lines, mut column) = (String::new(), indent);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > COLUMNS {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

/// Returns the C name of an error, such as `EPERM`.
pub(crate) fn errno_name(errno: Errno) -> String {
    format!("{:?}", nix::errno::Errno::from_raw(errno.raw_os_error()))
}

/// Returns the C name of an error of a system call, or its text.
pub(crate) fn error_name(error: &io::Error) -> String {
    Errno::from_io_error(error).map_or_else(|| error.to_string(), errno_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDENT: usize = 13;

    #[test]
    fn a_text_is_at_most_80_columns_wide_and_loses_no_word() {
        let text = "words and → arrows ".repeat(30);
        let shown = wrapped(text.trim_end(), INDENT);
        let mut lines = shown.lines();
        let first = lines.next().unwrap();
        assert!(first.chars().count() <= COLUMNS - INDENT);
        for line in lines {
            assert!(
                line.chars().count() <= COLUMNS && line.starts_with(&" ".repeat(INDENT)),
                "{line}"
            );
        }
        assert_eq!(
            shown.split_whitespace().collect::<Vec<_>>(),
            text.split_whitespace().collect::<Vec<_>>()
        );
    }
}
