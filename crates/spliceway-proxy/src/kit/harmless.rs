//! Text from other processes and from clients, made harmless for terminals and logs.

use std::borrow::Cow;

/// The longest reason that is shown, in characters.
const REASON_MAX_CHARS: usize = 4096;

/// Returns whether a terminal obeys this character instead of showing it: a control character, or
/// one that changes the direction of the text around it.
pub(crate) fn is_harmful(char: char) -> bool {
    const DIRECTIONS: [char; 12] = [
        '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}',
        '\u{2067}', '\u{2068}', '\u{2069}',
    ];
    char.is_control() || DIRECTIONS.contains(&char)
}

/// Returns the text with a replacement for each harmful character.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if text.contains(is_harmful) {
        text.replace(is_harmful, "\u{fffd}").into()
    } else {
        text.into()
    }
}

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
