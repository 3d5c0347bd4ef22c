//! `cargo xtask api [--bless]`: compares the public items of the libraries with those in xtask/api.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::checks;

/// A fixed version, so that a new release does not change the results.
const VERSION: &str = "cargo-public-api 0.52.0";
const INSTALL: &str =
    "rustup toolchain install nightly --profile minimal\n    cargo install cargo-public-api --locked --version 0.52.0";

/// The format of rustdoc JSON that this version reads. Nightly changes the format every few months,
/// and the version must follow.
const FORMAT: u32 = 57;

const LIBRARIES: [&str; 2] = ["spliceway-core", "spliceway"];

pub(crate) const USAGE: &str = "  api [--bless]
              compares the libraries' public items with xtask/api, or writes them there; needs nightly and cargo-public-api
";

pub(crate) fn run(words: &[String], root: &Path) -> Result<(), String> {
    let bless = match words {
        [] => false,
        [word] if word == "--bless" => true,
        _ => return Err(format!("usage: cargo xtask <task>\n\n{USAGE}")),
    };
    let probe = format!("test \"$(cargo +nightly public-api --version)\" = '{VERSION}'");
    checks::require(&format!("{VERSION} or the nightly toolchain"), &probe, INSTALL)?;
    let mut changes = String::new();
    for library in LIBRARIES {
        let json = document(library, root)?;
        match format_of(&json)? {
            FORMAT => {}
            other if bless => return Err(format!("xtask: api: {}", other_format(other))),
            // The installed nightly depends on the machine, so a different format is not the fault
            // of the code.
            other => {
                eprintln!("skipped: cargo xtask api: {}", other_format(other));
                return Ok(());
            }
        }
        let (listed, path) = (list(&json)?, format!("xtask/api/{library}.txt"));
        let failed = |error| format!("xtask: api: {path}: {error}");
        if bless {
            fs::write(root.join(&path), listed).map_err(failed)?;
            continue;
        }
        let change = difference(&fs::read_to_string(root.join(&path)).map_err(failed)?, &listed);
        if !change.is_empty() {
            changes += &format!("{path}\n{change}\n");
        }
    }
    if !changes.is_empty() {
        return Err(format!(
            "xtask: api: the public items have changed; a removed line breaks some users:\n\n{changes}\
             If this is intended, run `cargo xtask api --bless` and add a line to CHANGELOG.md.\n\
             If only names of the standard library differ, another nightly has moved them: run the same command, in a commit of its own."
        ));
    }
    let outcome = if bless { "now has" } else { "agrees with" };
    eprintln!("xtask: api: xtask/api {outcome} the public items of {LIBRARIES:?}");
    Ok(())
}

/// Runs nightly rustdoc for the library, with all its features. Returns the path of the JSON file.
fn document(library: &str, root: &Path) -> Result<PathBuf, String> {
    let line = format!(
        "+nightly rustdoc --quiet --lib --all-features --package {library} --target-dir target/api \
         -- -Zunstable-options --output-format json"
    );
    let documented = Command::new("cargo")
        .args(line.split_whitespace())
        .current_dir(root)
        .status();
    match documented {
        Ok(status) if status.success() => {
            let name = library.replace('-', "_");
            Ok(root.join(format!("target/api/doc/{name}.json")))
        }
        _ => Err(format!("xtask: api: nightly cannot document {library}")),
    }
}

/// Returns the number of the JSON format, which the file itself contains.
fn format_of(json: &Path) -> Result<u32, String> {
    let text = fs::read_to_string(json).map_err(|error| format!("xtask: api: {}: {error}", json.display()))?;
    let number = text.rsplit_once("\"format_version\":").and_then(|(_, rest)| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    });
    number.ok_or_else(|| format!("xtask: api: {} does not have its format", json.display()))
}

fn other_format(found: u32) -> String {
    format!("nightly writes rustdoc JSON {found}, and {VERSION} reads {FORMAT}")
}

/// Returns the public items, one per line. The list omits the blanket implementations of std,
/// because they change with std. It also omits implementations of auto traits such as `Send`,
/// because some of these traits are unstable.
fn list(json: &Path) -> Result<String, String> {
    let listed = Command::new("cargo")
        .args(["+nightly", "public-api", "-ss", "--color", "never", "--rustdoc-json"])
        .arg(json)
        .stderr(Stdio::inherit())
        .output();
    match listed {
        Ok(listed) if listed.status.success() => Ok(String::from_utf8_lossy(&listed.stdout).into_owned()),
        _ => Err(format!("xtask: api: {VERSION} cannot read {}", json.display())),
    }
}

/// Returns the removed and the added lines. Their order does not matter.
fn difference(written: &str, listed: &str) -> String {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (written.lines().collect(), listed.lines().collect());
    let went = old.difference(&new).map(|line| format!("- {line}\n"));
    let came = new.difference(&old).map(|line| format!("+ {line}\n"));
    went.chain(came).collect()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn only_removed_and_added_items_are_shown() {
        assert_eq!(difference("a\nb\nc\n", "c\nd\na\n"), "- b\n+ d\n");
        assert_eq!(difference("a\nb\n", "b\na\n"), "");
    }
}
