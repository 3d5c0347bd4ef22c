//! The targets that the clients of a service may reach, from flags, keys and files of rules.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spliceway_protocol::rule::canonical_network;
use toml::Spanned;

use super::clients::UserTables;
use super::faults::{Fault, Faults};
use super::origin::Origin;
use super::service::UserTargets;
use crate::access::auth::fingerprint;
use crate::access::policy::{Networks, PrivateTargets, RuleList, RuleLists, TargetAccess, TargetRules};
use crate::kit::named_file;
use crate::settings::config::{KindArg, List, Private, PrivateArg, Rule, RuleArg, Service, Value};

/// The maximum size of a file, which is enough for a million rules of 32 bytes.
const FILE_MAX_BYTES: usize = 32 << 20;

/// The lists so far. Services and users with the same list, such as that of the defaults, share its
/// memory. Lists with the same file share the rules of the file.
pub(super) struct Lists<'a> {
    /// By the rules and the paths in the list.
    known: HashMap<String, RuleLists>,
    /// The rules of files.
    files: HashMap<PathBuf, Arc<RuleList>>,
    tables: &'a UserTables,
}

impl<'a> Lists<'a> {
    pub(super) fn new(tables: &'a UserTables) -> Self {
        Self {
            known: HashMap::new(),
            files: HashMap::new(),
            tables,
        }
    }

    /// Returns the users by network.
    pub(super) fn networks(&self) -> &'a Arc<Networks> {
        &self.tables.networks
    }

    /// Returns what the clients of a service may reach, and what those of its users may reach who
    /// have targets of their own. Reads the files of rules. `is_user` tells who is a user.
    pub(super) fn targets(
        &mut self,
        service: &Service,
        is_user: impl Fn(&[u8]) -> bool,
        origin: &Origin,
        faults: &mut Faults,
    ) -> (TargetAccess, Vec<UserTargets>) {
        let has_fixed_targets = service
            .kind
            .as_ref()
            .is_some_and(|kind| matches!(kind.parsed(), KindArg::Forward | KindArg::Sni));
        let lists = [service.to_allow.as_ref(), service.to_deny.as_ref()];
        let mut access = self.access(service.allow_private.as_ref(), lists, origin, faults);
        if has_fixed_targets {
            // The operator has chosen the targets, and clients cannot choose others.
            access.private = PrivateTargets::All;
            return (access, Vec::new());
        }
        let mut own = Vec::new();
        for table in self.tables.all.iter().map(Spanned::get_ref) {
            let has_own = table.allow_private.is_some() || table.to_allow.is_some() || table.to_deny.is_some();
            let name = table.name.as_ref().map(|name| name.text().as_bytes());
            let Some(name) = name.filter(|name| has_own && is_user(name)) else {
                continue;
            };
            // What the table does not say comes from the service.
            let private = table.allow_private.as_ref().or(service.allow_private.as_ref());
            let allow = table.to_allow.as_ref().or(service.to_allow.as_ref());
            let deny = table.to_deny.as_ref().or(service.to_deny.as_ref());
            let targets = self.access(private, [allow, deny], origin, faults);
            own.push(UserTargets {
                name: name.into(),
                targets,
            });
        }
        (access, own)
    }

    fn access(
        &mut self,
        allow_private: Option<&List<Private>>,
        [allow, deny]: [Option<&List<Rule>>; 2],
        origin: &Origin,
        faults: &mut Faults,
    ) -> TargetAccess {
        TargetAccess {
            private: faults.keep(private(allow_private)).unwrap_or(PrivateTargets::All),
            rules: TargetRules {
                allow: self.list("to_allow", allow, origin, faults),
                deny: self.list("to_deny", deny, origin, faults),
                allows_unlisted: false,
            },
        }
    }

    fn list(
        &mut self,
        key: &'static str,
        list: Option<&List<Rule>>,
        origin: &Origin,
        faults: &mut Faults,
    ) -> Option<RuleLists> {
        let list = list.filter(|list| !list.is_empty())?;
        let folder = list.at().and_then(|at| origin.folder_of(Some(at)));
        let texts: Vec<_> = list.iter().map(Value::text).collect();
        let known_as = format!("{folder:?}\0{}", texts.join("\0"));
        if let Some(known) = self.known.get(&known_as) {
            return Some(known.clone());
        }
        let (mut own, mut written, mut lists) = (RuleList::default(), String::new(), Vec::new());
        for value in list.iter() {
            let fault = |problem| Fault::new(value.at(), key, problem);
            match value.parsed() {
                RuleArg::Rule(rule) => {
                    let _ = writeln!(written, "{rule}");
                    faults.keep(own.add(rule).map_err(fault));
                }
                RuleArg::File(path) => {
                    let path = folder
                        .as_ref()
                        .map_or_else(|| path.clone(), |folder| folder.join(&path));
                    lists.push(self.file(path, fault, faults));
                }
            }
        }
        if own.len() > 0 {
            lists.push(Arc::new(own.complete(fingerprint(&written))));
        }
        let lists = RuleLists::new(lists);
        let checked = lists.check_length();
        faults.keep(checked.map_err(|problem| Fault::new(list.at(), key, problem)));
        self.known.insert(known_as, lists.clone());
        Some(lists)
    }

    /// Returns the rules of a file, which is read once.
    fn file(&mut self, path: PathBuf, fault: impl Fn(String) -> Fault, faults: &mut Faults) -> Arc<RuleList> {
        if let Some(known) = self.files.get(&path) {
            return Arc::clone(known);
        }
        let mut rules = RuleList::default();
        let (text, problems) = read(&path, &mut rules);
        let problems = problems.into_iter();
        problems.for_each(|problem| faults.add(fault(format!("{}{problem}", path.display()))));
        let rules = Arc::new(rules.complete(fingerprint(&text)));
        self.files.insert(path, Arc::clone(&rules));
        rules
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
/// The second value has the ends of messages that begin with the path. They do not repeat the text
/// of a line, because the file may be another one than the operator meant, with secrets.
fn read(path: &Path, rules: &mut RuleList) -> (String, Vec<String>) {
    let text = match named_file::read(path, FILE_MAX_BYTES) {
        Ok(file) => file.text,
        Err(why) => return (String::new(), vec![format!(": {why}; {EXPECTED}")]),
    };
    let (before, mut problems) = (rules.len(), Vec::new());
    // Some editors write a byte order mark, which is no part of the first rule.
    let lines = text.trim_start_matches('\u{feff}').lines();
    for (index, line) in lines.enumerate() {
        let rule = line.split('#').next().unwrap_or_default().trim();
        if !rule.is_empty() {
            let added = rule.parse().map_err(str::to_owned).and_then(|rule| rules.add(rule));
            problems.extend(added.err().map(|problem| format!(", line {}: {problem}", index + 1)));
        }
    }
    // A file that a failed update has emptied must not open or close everything.
    if rules.len() == before && problems.is_empty() {
        problems.push(format!(": the file has no rules; {EXPECTED}"));
    }
    (text, problems)
}

const EXPECTED: &str = "expected a file with one rule on each line";
