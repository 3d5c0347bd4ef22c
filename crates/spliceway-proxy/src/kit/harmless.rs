//! Reasons that other processes give, made harmless for logs.

use spliceway_operator::text::harmless;

/// The longest reason that is shown, in characters.
const REASON_MAX_CHARS: usize = 4096;

/// Returns a reason that another process gives, as one harmless line of bounded length.
pub(crate) fn reason(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join("; ");
    harmless(&line).chars().take(REASON_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_without_control_characters() {
        assert_eq!(reason("a: wrong\n  b: wrong\n\n"), "a: wrong; b: wrong");
        assert_eq!(reason("\u{1b}[2Jname\u{202e}\r"), "\u{fffd}[2Jname\u{fffd}");
        assert_eq!(reason(&"x".repeat(1 << 20)).len(), REASON_MAX_CHARS);
        assert_eq!(reason("\n \n"), "");
    }
}
