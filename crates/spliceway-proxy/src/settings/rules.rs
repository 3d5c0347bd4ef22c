//! The target rules of a service, from its flags or keys and from files.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::origin::{Fault, Origin};
use crate::auth::fingerprint;
use crate::config::{List, Rule, RuleArg, Service, Value};
use crate::policy::{RuleList, TargetRules};

/// The maximum size of a file, which is enough for a million rules of 32 bytes.
const FILE_MAX_BYTES: u64 = 32 << 20;

/// The lists so far. Services with the same list, such as that of the defaults, share its memory.
#[derive(Default)]
pub(super) struct Lists {
    /// By the rules and the paths in the list.
    known: HashMap<String, Arc<RuleList>>,
}

impl Lists {
    /// Returns the rules of a service, and reads the files that they name.
    pub(super) fn rules(&mut self, service: &Service, origin: &Origin) -> Result<TargetRules, Fault> {
        Ok(TargetRules {
            allow: self.list("to_allow", &service.to_allow, origin)?,
            deny: self.list("to_deny", &service.to_deny, origin)?,
        })
    }

    fn list(
        &mut self,
        key: &'static str,
        list: &Option<List<Rule>>,
        origin: &Origin,
    ) -> Result<Option<Arc<RuleList>>, Fault> {
        let Some(list) = list.as_ref().filter(|list| !list.is_empty()) else {
            return Ok(None);
        };
        let folder = list.at().and_then(|at| origin.folder_of(Some(at)));
        let texts: Vec<_> = list.iter().map(Value::text).collect();
        let known_as = format!("{folder:?}\0{}", texts.join("\0"));
        if let Some(known) = self.known.get(&known_as) {
            return Ok(Some(Arc::clone(known)));
        }
        let (mut rules, mut digests) = (RuleList::default(), String::new());
        for value in list.iter() {
            let fault = |problem| Fault::new(value.at(), key, problem);
            match value.parsed() {
                RuleArg::Rule(rule) => {
                    let _ = writeln!(digests, "{rule}");
                    rules.add(rule).map_err(fault)?;
                }
                RuleArg::File(path) => {
                    let path = folder
                        .as_ref()
                        .map_or_else(|| path.clone(), |folder| folder.join(&path));
                    let text = read(&path, &mut rules);
                    let text = text.map_err(|problem| fault(format!("{}{problem}", path.display())))?;
                    let _ = writeln!(digests, "{:?}", fingerprint(&text));
                }
            }
        }
        let rules = Arc::new(rules.complete(fingerprint(&digests)));
        self.known.insert(known_as, Arc::clone(&rules));
        Ok(Some(rules))
    }
}

/// Adds the rules of a file, which has one on each line, and returns the text. Empty lines and
/// comments from `#` to the end of the line are skipped.
///
/// # Errors
/// Returns the end of a message that begins with the path. It does not repeat the text of a line,
/// because the file may be another one than the operator meant, with secrets.
fn read(path: &Path, rules: &mut RuleList) -> Result<String, String> {
    let text = read_bounded(path).map_err(|error| format!(": {error}; {EXPECTED}"))?;
    let before = rules.len();
    for (index, line) in text.lines().enumerate() {
        let rule = line.split('#').next().unwrap_or_default().trim();
        if !rule.is_empty() {
            let wrong = |problem: String| format!(", line {}: {problem}", index + 1);
            let rule = rule.parse().map_err(|expected: &str| wrong(expected.to_owned()))?;
            rules.add(rule).map_err(wrong)?;
        }
    }
    // A file that a failed update has emptied must not open or close everything.
    match rules.len() == before {
        true => Err(format!(": the file has no rules; {EXPECTED}")),
        false => Ok(text),
    }
}

const EXPECTED: &str = "expected a file with one rule on each line";

/// Returns the text of a file. The limit applies to the bytes that are read, because a pipe or a
/// device has no length.
fn read_bounded(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(io::Error::other("larger than 32 MiB, which is the limit"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("expected text in UTF-8"))
}
