//! Collects what is wrong with a configuration, so that the operator gets all of it at once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::hidden::Hidden;

/// The most faults that are shown. A file of another program has one on each line.
pub(super) const FAULTS_MAX: usize = 50;

/// The most keys of a table that are remembered because of a fault. Each further fault is compared
/// with all of them.
const SPOILT_MAX: usize = 2 * FAULTS_MAX;

/// What is wrong with a value, or with the absence of one.
#[derive(Debug, PartialEq)]
pub(super) struct Fault {
    /// The offset in the files.
    pub(super) at: Option<usize>,
    /// The key of the value. It is empty if the fault is not in one value.
    pub(super) key: Cow<'static, str>,
    pub(super) problem: Cow<'static, str>,
}

impl Fault {
    pub(super) fn new(
        at: Option<usize>,
        key: impl Into<Cow<'static, str>>,
        problem: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            at,
            key: key.into(),
            problem: problem.into(),
        }
    }

    /// Returns the same fault of another key.
    pub(super) fn of_key(self, key: &'static str) -> Self {
        Self {
            key: key.into(),
            ..self
        }
    }
}

/// The location of the table of a service or a user. None means every table.
pub(super) type Scope = Option<usize>;

/// The faults so far. A key with a fault causes others, such as that of a key that needs it. They
/// would mislead the operator, so they are left out.
#[derive(Debug, Default)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    pub(super) warnings: Vec<Fault>,
    /// The keys with a fault, and whether the key is gone.
    spoilt: HashMap<Scope, Vec<(String, bool)>>,
    scope: Scope,
    /// Where tables may be missing, because a file is not valid TOML.
    lost: Vec<Range<usize>>,
    pub(super) hidden: Hidden,
}

impl Faults {
    /// The faults and warnings that follow are about this service or this user.
    pub(super) fn enter(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Remembers that this key in the current scope has a fault. `is_gone` tells whether the
    /// configuration is without the key.
    pub(super) fn spoil(&mut self, key: &str, is_gone: bool) {
        let keys = self.spoilt.entry(self.scope).or_default();
        let is_known = keys
            .iter()
            .any(|(known, was_gone)| known == key && *was_gone == is_gone);
        if keys.len() < SPOILT_MAX && !is_known {
            keys.push((key.to_owned(), is_gone));
        }
    }

    /// Returns whether one of these keys has a fault.
    pub(super) fn have_one_of(&self, keys: &[&str]) -> bool {
        self.spoilt().any(|(key, _)| keys.contains(&&**key))
    }

    /// Remembers that tables may be missing here, because of a fault.
    pub(super) fn lose(&mut self, offsets: Range<usize>) {
        self.lost.push(offsets);
    }

    /// Returns whether the table of a key at this offset may be missing.
    pub(super) fn have_lost(&self, at: usize) -> bool {
        self.lost.iter().any(|offsets| offsets.contains(&at))
    }

    /// Returns whether a table before this offset may be missing.
    pub(super) fn have_lost_before(&self, at: usize) -> bool {
        self.lost.iter().any(|offsets| offsets.start < at)
    }

    /// Returns whether no table is missing.
    pub(super) fn have_all_tables(&self) -> bool {
        self.lost.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Adds a fault of a value that is in the files. It follows from no other one.
    pub(super) fn add_of_value(&mut self, fault: Fault) {
        self.spoil(&fault.key, false);
        self.faults.push(fault);
    }

    /// Adds a fault, unless it follows from another one. A fault without a key, such as an unknown
    /// key, follows from none.
    pub(super) fn add(&mut self, fault: Fault) {
        let has_key = !fault.key.is_empty();
        let follows = has_key
            && self.spoilt().any(|(key, is_gone)| {
                let is_of_key = *fault.key == **key;
                (is_of_key && *is_gone) || (!is_of_key && asks_for(&fault.problem, key))
            });
        if !follows {
            self.add_of_value(fault);
        }
    }

    /// Returns the value, or adds the fault.
    pub(super) fn keep<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.add(fault)).ok()
    }

    /// Returns the faults in the order of their places. The last ones have no place.
    pub(super) fn sorted(mut self) -> Vec<Fault> {
        let order = |fault: &Fault| fault.at.unwrap_or(usize::MAX);
        self.faults
            .sort_by(|a, b| (order(a), &a.key, &a.problem).cmp(&(order(b), &b.key, &b.problem)));
        self.faults.dedup();
        hide(&self.hidden, &mut self.faults);
        self.faults
    }

    /// Returns the warnings in the order in which they were found.
    pub(super) fn shown_warnings(&mut self) -> &[Fault] {
        hide(&self.hidden, &mut self.warnings);
        &self.warnings
    }

    fn spoilt(&self) -> impl Iterator<Item = &(String, bool)> {
        let of_scope = self.scope.and_then(|_| self.spoilt.get(&self.scope));
        of_scope.into_iter().chain(self.spoilt.get(&None)).flatten()
    }
}

/// Replaces the values of variables by their names.
fn hide(hidden: &Hidden, faults: &mut [Fault]) {
    for fault in faults.iter_mut().filter(|_| !hidden.is_empty()) {
        fault.problem = hidden.in_problem(fault.at, &fault.problem).into();
    }
}

/// Returns whether a text asks for a value of this key: `needs metrics`, `expected to = "…"`. A key
/// with `_` is no other word.
fn asks_for(problem: &str, key: &str) -> bool {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let flag = key.replace('_', "-");
    [key, &*flag].into_iter().any(|key| {
        let mut found = problem.match_indices(key).map(|(at, _)| problem.split_at(at));
        found.any(|(before, from)| {
            let after = &from[key.len()..];
            let is_word = !before.ends_with(is_of_word) && !after.starts_with(is_of_word);
            let is_value = after.starts_with(" = ") || before.ends_with("needs ");
            !key.is_empty() && is_word && (is_value || key.contains(['_', '-']) || before.ends_with("--"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(faults: Faults) -> Vec<String> {
        let faults = faults.sorted().into_iter();
        faults
            .map(|fault| format!("{}: {}", fault.key, fault.problem))
            .collect()
    }

    #[test]
    fn a_fault_that_follows_from_another_is_left_out_in_its_service_only() {
        let needs = |at| Fault::new(Some(at), "accept_proxy", "needs proxy_from: expected networks");
        let mut faults = Faults::default();
        faults.enter(Some(10));
        faults.add(Fault::new(Some(12), "proxy_from", "not a network"));
        faults.spoil("proxy_from", true);
        faults.add(needs(11));
        faults.enter(Some(1));
        faults.add(needs(2));
        faults.add(needs(2));
        // An unknown key lists those that exist.
        faults.enter(Some(10));
        faults.add(Fault::new(
            Some(13),
            "",
            "unknown key: expected one of allow, proxy_from",
        ));
        assert_eq!(
            problems(faults),
            [
                "accept_proxy: needs proxy_from: expected networks",
                "proxy_from: not a network",
                ": unknown key: expected one of allow, proxy_from"
            ]
        );
    }

    #[test]
    fn only_so_many_keys_are_compared_with_each_fault() {
        let mut faults = Faults::default();
        for index in 0..10 * SPOILT_MAX {
            faults.spoil("same", true);
            faults.spoil(&format!("key{index}"), true);
        }
        assert_eq!(faults.spoilt().count(), SPOILT_MAX);
    }

    #[test]
    fn only_a_key_that_is_asked_for_is_found_in_a_text() {
        for (problem, key, expected) in [
            ("needs check, such as connect", "check", true),
            ("the checks of a backend", "check", false),
            ("check it", "check", false),
            ("expected to = \"a:1\"", "to", true),
            ("expected the target to be one", "to", false),
            ("expected --tls-key FILE", "tls_key", true),
            ("expected --tls-keys", "tls_key", false),
            ("restrict access (--allow)", "allow", true),
            ("anything", "", false),
        ] {
            assert_eq!(asks_for(problem, key), expected, "{problem}: {key}");
        }
    }
}
