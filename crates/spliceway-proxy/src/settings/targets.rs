//! The targets that the clients of a service may reach, from flags, keys and files of rules.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use spliceway_protocol::rule::canonical_network;
use toml::Spanned;

use super::origin::{Fault, Origin};
use super::service::UserTargets;
use crate::access::auth::fingerprint;
use crate::access::policy::{PrivateTargets, RuleList, TargetAccess, TargetRules};
use crate::kit::named_file;
use crate::settings::config::{KindArg, List, Private, PrivateArg, Rule, RuleArg, Service, User, Value};

/// The maximum size of a file, which is enough for a million rules of 32 bytes.
const FILE_MAX_BYTES: usize = 32 << 20;

/// The lists so far. Services with the same list, such as that of the defaults, share its memory.
pub(super) struct Lists<'a> {
    /// By the rules and the paths in the list.
    known: HashMap<String, Arc<RuleList>>,
    users: &'a [Spanned<User>],
}

impl<'a> Lists<'a> {
    /// `users` are the tables of users.
    pub(super) fn new(users: &'a [Spanned<User>]) -> Self {
        Self {
            known: HashMap::new(),
            users,
        }
    }

    /// Returns what the clients of a service may reach, and what those of its users may reach who
    /// have targets of their own. Reads the files of rules. `is_user` tells who is a user.
    pub(super) fn targets(
        &mut self,
        service: &Service,
        is_user: impl Fn(&[u8]) -> bool,
        origin: &Origin,
    ) -> Result<(TargetAccess, Vec<UserTargets>), Fault> {
        let has_fixed_targets = service
            .kind
            .as_ref()
            .is_some_and(|kind| matches!(kind.parsed(), KindArg::Forward | KindArg::Sni));
        let lists = [service.to_allow.as_ref(), service.to_deny.as_ref()];
        let mut access = self.access(service.allow_private.as_ref(), lists, origin)?;
        if has_fixed_targets {
            // The operator has chosen the targets, and clients cannot choose others.
            access.private = PrivateTargets::All;
        }
        let mut own = Vec::new();
        for table in self.users.iter().map(Spanned::get_ref) {
            let has_own = table.allow_private.is_some() || table.to_allow.is_some() || table.to_deny.is_some();
            let name = table.name.as_ref().map(|name| name.text().as_bytes());
            let Some(name) = name.filter(|name| has_own && is_user(name)) else {
                continue;
            };
            // What the table does not say comes from the service.
            let private = table.allow_private.as_ref().or(service.allow_private.as_ref());
            let allow = table.to_allow.as_ref().or(service.to_allow.as_ref());
            let deny = table.to_deny.as_ref().or(service.to_deny.as_ref());
            let targets = self.access(private, [allow, deny], origin)?;
            own.push(UserTargets {
                name: name.into(),
                targets,
            });
        }
        Ok((access, own))
    }

    fn access(
        &mut self,
        allow_private: Option<&List<Private>>,
        [allow, deny]: [Option<&List<Rule>>; 2],
        origin: &Origin,
    ) -> Result<TargetAccess, Fault> {
        Ok(TargetAccess {
            private: private(allow_private)?,
            rules: TargetRules {
                allow: self.list("to_allow", allow, origin)?,
                deny: self.list("to_deny", deny, origin)?,
            },
        })
    }

    fn list(
        &mut self,
        key: &'static str,
        list: Option<&List<Rule>>,
        origin: &Origin,
    ) -> Result<Option<Arc<RuleList>>, Fault> {
        let Some(list) = list.filter(|list| !list.is_empty()) else {
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

fn private(list: Option<&List<Private>>) -> Result<PrivateTargets, Fault> {
    let args = list.map(List::parsed).unwrap_or_default();
    let is_net = |arg: &PrivateArg| matches!(arg, PrivateArg::Network(_));
    if args.iter().any(is_net) && !args.iter().all(is_net) {
        let problem = "opens all private targets or none, and names networks, too: expected one of them";
        return Err(Fault::new(list.and_then(List::at), "allow_private", problem));
    }
    let nets = args.iter().filter_map(|arg| match arg {
        PrivateArg::Network(net) => Some(canonical_network(*net)),
        _ => None,
    });
    Ok(if args.contains(&PrivateArg::All) {
        PrivateTargets::All
    } else {
        PrivateTargets::Only(nets.collect())
    })
}

/// Adds the rules of a file, which has one on each line, and returns the text. Empty lines and
/// comments from `#` to the end of the line are skipped.
///
/// # Errors
/// Returns the end of a message that begins with the path. It does not repeat the text of a line,
/// because the file may be another one than the operator meant, with secrets.
fn read(path: &Path, rules: &mut RuleList) -> Result<String, String> {
    let file = named_file::read(path, FILE_MAX_BYTES).map_err(|why| format!(": {why}; {EXPECTED}"))?;
    let text = file.text;
    let before = rules.len();
    // Some editors write a byte order mark, which is no part of the first rule.
    let lines = text.trim_start_matches('\u{feff}').lines();
    for (index, line) in lines.enumerate() {
        let rule = line.split('#').next().unwrap_or_default().trim();
        if !rule.is_empty() {
            let wrong = |problem: String| format!(", line {}: {problem}", index + 1);
            let rule = rule.parse().map_err(|expected: &str| wrong(expected.to_owned()))?;
            rules.add(rule).map_err(wrong)?;
        }
    }
    // A file that a failed update has emptied must not open or close everything.
    if rules.len() == before {
        return Err(format!(": the file has no rules; {EXPECTED}"));
    }
    Ok(text)
}

const EXPECTED: &str = "expected a file with one rule on each line";
