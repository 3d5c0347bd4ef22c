//! Rules about prose, in Markdown and in comments.

use super::documents::prose_lines;
use super::repository::{File, Line, Repository};
use super::{Finding, regex};

const COLUMNS: usize = 100;
/// The style guide asks for 25 words. A sentence with more words than this limit must be split.
const WORDS_MAX: usize = 35;

/// Words that have a plain equivalent, and names that only the authors understand.
const BANNED: &str =
    r"(?i)\b(whom|likewise|thereof|therein|hitherto|dear|appetite|the same again|rhythm|regret)\b|\bours\b";
/// If a sentence begins like this, the reader must guess its noun.
const BANNED_STARTS: &str = r"(^|[.:] )(Of|Whom|Who|That it|That they|As if) [a-z]";

/// Names that the vocabulary has replaced.
const OLD_NAMES: &str = r"\b(Asked|Appetite|Mover|Shelf|Door|Farewell|FAREWELL|LAST_WORDS|give_way|Rests|Rhythm|Meter|Crossover|Middling|Lookout|Silence|Train)\b";

/// Markdown prose and comments have at most 100 columns. Tables, links, code and text that a
/// command generates may be longer.
pub(crate) fn wrapping(repository: &Repository) -> Vec<Finding> {
    let prose = repository.markdown().flat_map(prose_lines).filter(|line| {
        let text = line.text.trim_start();
        !text.starts_with('|') && !text.starts_with('[') && !text.starts_with('!')
    });
    prose
        .chain(comments(repository))
        .filter(|line| line.text.chars().count() > COLUMNS && !line.text.contains("://"))
        .map(|line| line.finding(&format!("expected at most {COLUMNS} columns")))
        .collect()
}

pub(crate) fn long_sentences(repository: &Repository) -> Vec<Finding> {
    let end = regex(r"[.!?:;](\s|$)");
    let mut findings = Vec::new();
    for file in repository.markdown() {
        for (line, paragraph) in paragraphs(file) {
            let words = |sentence: &str| {
                sentence
                    .split_whitespace()
                    .filter(|word| word.chars().any(char::is_alphanumeric))
                    .count()
            };
            let long = end.split(&paragraph).find(|sentence| words(sentence) > WORDS_MAX);
            findings.extend(long.map(|sentence| {
                let start: String = sentence.trim().chars().take(40).collect();
                line.finding(&format!("a sentence of more than {WORDS_MAX} words: \"{start}…\""))
            }));
        }
    }
    findings
}

/// Returns paragraphs and list items, each with its first line. The result omits tables, headings
/// and code.
fn paragraphs(file: &File) -> Vec<(Line<'_>, String)> {
    let starts = regex(r"^\s*([-*+]|\d+\.)\s");
    let mut paragraphs: Vec<(Line<'_>, String)> = Vec::new();
    let mut is_open = false;
    for line in prose_lines(file) {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with(['|', '#', '<', '!', '>']) || line.text.starts_with("    ") {
            is_open = false;
            continue;
        }
        match paragraphs.last_mut() {
            Some((_, paragraph)) if is_open && !starts.is_match(line.text) => {
                paragraph.push(' ');
                paragraph.push_str(text);
            }
            _ => paragraphs.push((line, text.to_owned())),
        }
        is_open = true;
    }
    paragraphs
}

pub(crate) fn banned_words(repository: &Repository) -> Vec<Finding> {
    let (word, start) = (regex(BANNED), regex(BANNED_STARTS));
    let prose = repository
        .markdown()
        .flat_map(prose_lines)
        .map(|line| (line, line.text));
    let comments = comments(repository).map(|line| (line, line.text.trim_start().trim_start_matches(['/', '!', ' '])));
    prose
        .chain(comments)
        .filter_map(|(line, text)| {
            let found = word.find(text).or_else(|| start.find(text))?;
            Some(line.finding(&format!(
                "\"{}\"; use a plain word; xtask/tests/tidy/prose.rs has the list",
                found.as_str().trim()
            )))
        })
        .collect()
}

pub(crate) fn old_names(repository: &Repository) -> Vec<Finding> {
    let name = regex(OLD_NAMES);
    let code = repository
        .rust()
        .filter(|file| !file.path.starts_with("xtask/tests/tidy/"));
    code.flat_map(File::lines)
        .filter_map(|line| {
            Some(line.finding(&format!(
                "`{}` is not in the vocabulary; CONTRIBUTING.md names some words, and the code around it the others",
                name.find(line.text)?.as_str()
            )))
        })
        .collect()
}

/// Returns the comments in Rust code that are on their own lines, without the examples in them. It
/// omits the files of these rules, because the rules contain banned words.
fn comments(repository: &Repository) -> impl Iterator<Item = Line<'_>> {
    let code = repository
        .rust()
        .filter(|file| !file.path.starts_with("xtask/tests/tidy/"));
    code.flat_map(|file| {
        let mut in_example = false;
        file.lines().filter(Line::is_comment).filter(move |line| {
            let fence = line.text.contains("```");
            in_example ^= fence;
            !in_example && !fence
        })
    })
}
