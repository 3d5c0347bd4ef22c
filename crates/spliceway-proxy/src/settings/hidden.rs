//! The values of variables in messages. They may be secrets, and a message goes to a log, and to
//! clients of the admin socket.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// A shorter part of a value may be in a message by chance, and tells little.
const PART_MIN_BYTES: usize = 4;

/// The values that messages show as `${NAME}`.
#[derive(Clone, Default)]
pub(crate) struct Hidden {
    /// The names of variables by their values. The environment limits them.
    names: BTreeMap<String, String>,
    /// The texts that have variables, by their offsets: as written, and the values.
    places: HashMap<usize, (String, Vec<String>)>,
}

impl Hidden {
    /// Adds the value of a variable in a text at this offset.
    pub(super) fn add(&mut self, at: usize, written: &str, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let (_, values) = self
            .places
            .entry(at)
            .or_insert_with(|| (written.to_owned(), Vec::new()));
        values.push(value.to_owned());
        self.names.insert(value.to_owned(), name.to_owned());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the values without their places, for later settings.
    pub(super) fn without_places(&self) -> Self {
        let (names, places) = (self.names.clone(), HashMap::new());
        Self { names, places }
    }

    /// Returns a text with the names of variables instead of their values.
    pub(crate) fn in_text(&self, text: &str) -> String {
        let names = self.names.iter().filter(|(value, _)| value.len() >= PART_MIN_BYTES);
        replaced(text, names.map(|(value, name)| (&**value, &**name)).collect())
    }

    /// Does the same for a problem with the text at this offset. The problem may be about a part of
    /// the value.
    pub(super) fn in_problem(&self, at: Option<usize>, problem: &str) -> String {
        let Some((written, values)) = at.and_then(|at| self.places.get(&at)) else {
            return self.in_text(problem);
        };
        let name = |value: &str| self.names.get(value).map_or("NAME", String::as_str);
        let words = values.iter().flat_map(|value| {
            let words = value.split_whitespace().filter(|word| word.len() >= PART_MIN_BYTES);
            words.chain([&**value]).map(|word| (word, name(value)))
        });
        let text = replaced(problem, words.collect());
        let rest = text
            .split("${")
            .map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
        let rest = rest.collect::<Vec<_>>().join(" ").to_lowercase();
        let parts = values
            .iter()
            .flat_map(|value| value.split(|letter: char| !letter.is_alphanumeric()));
        let mut parts = parts.filter(|part| part.len() >= PART_MIN_BYTES);
        if parts.any(|part| rest.contains(&part.to_lowercase())) {
            return format!("{written} is not valid: correct the value of the variable");
        }
        self.in_text(&text)
    }
}

impl fmt::Debug for Hidden {
    /// Shows no value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hidden").finish_non_exhaustive()
    }
}

/// Replaces values by names, the longest values first. A short value is a word of its own.
fn replaced(text: &str, mut names: Vec<(&str, &str)>) -> String {
    names.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
    let mut text = text.to_owned();
    for (value, name) in names {
        let escaped = value.escape_debug().to_string();
        for value in [value, &escaped] {
            text = replaced_one(&text, value, name);
        }
    }
    text
}

fn replaced_one(text: &str, value: &str, name: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(value) {
        let (before, after) = (&rest[..at], &rest[at + value.len()..]);
        done.push_str(before);
        let is_word = !done.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric);
        if is_word || value.len() >= PART_MIN_BYTES {
            done = done + "${" + name + "}";
        } else {
            done.push_str(value);
        }
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_shows_the_value_of_a_variable_or_a_part_of_it() {
        let mut hidden = Hidden::default();
        hidden.add(7, "x${SECRET}", "SECRET", "hunter2 a:Wonderland/\n");
        hidden.add(9, "${PORT}", "PORT", "80");
        for (at, problem, expected) in [
            (
                7,
                "expected a host, found `xhunter2`",
                "expected a host, found `x${SECRET}`",
            ),
            (7, "found \"xhunter2 a:Wonderland/\\n\"", "found \"x${SECRET}\""),
            (
                7,
                "no host wonderland",
                "x${SECRET} is not valid: correct the value of the variable",
            ),
            (7, "expected 80", "expected 80"),
            (9, "expected 1 to 8080, found 80", "expected 1 to 8080, found ${PORT}"),
            (1, "as hunter2 a:Wonderland/\n at 80", "as ${SECRET} at 80"),
        ] {
            assert_eq!(hidden.in_problem(Some(at), problem), expected);
        }
        let later = hidden.without_places();
        assert_eq!(later.in_problem(Some(7), "hunter2 a:Wonderland/\n!"), "${SECRET}!");
    }
}
