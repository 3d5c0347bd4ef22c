//! Reads the line `hosts` of `/etc/nsswitch.conf` (nsswitch.conf(5)). This module does no I/O.

/// Where names are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    Own(OwnPlan),
    /// The C library looks up all names, for this reason.
    System(String),
}

/// A plan that this program carries out. It gives to the C library only those names that one of its
/// modules may know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnPlan {
    pub(super) sources: Vec<Source>,
    /// Whether the C library looks up names below `.local` (nss-mdns).
    pub(super) mdns: bool,
    /// Whether the C library looks up the name of this machine (nss-myhostname).
    pub(super) myhostname: bool,
    /// Whether the C library looks up the names of containers (nss-mymachines).
    pub(super) mymachines: bool,
    /// Whether systemd-resolved is a source (nss-resolve).
    pub(super) resolved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Files,
    Dns,
}

impl Default for OwnPlan {
    fn default() -> Self {
        Self {
            sources: vec![Source::Files, Source::Dns],
            mdns: false,
            myhostname: false,
            mymachines: false,
            resolved: false,
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self::Own(OwnPlan::default())
    }
}

impl Plan {
    /// Reads the text of the file.
    pub(super) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut lines = text.lines().filter_map(|line| {
            let line = line.split('#').next().unwrap_or_default();
            line.trim_start().strip_prefix("hosts")?.trim_start().strip_prefix(':')
        });
        match lines.next_back() {
            Some(line) => Self::parse_line(line),
            None => Self::default(),
        }
    }

    fn parse_line(line: &str) -> Self {
        let mut plan = OwnPlan {
            sources: Vec::new(),
            ..OwnPlan::default()
        };
        let (mut rest, mut ends) = (line.trim(), false);
        while !rest.is_empty() && !ends {
            let end = rest
                .find(|next: char| next.is_whitespace() || next == '[')
                .unwrap_or(rest.len());
            let (service, after) = rest.split_at(end);
            let mut after = after.trim_start();
            while let Some(action) = after.strip_prefix('[') {
                let Some((action, next)) = action.split_once(']') else {
                    return Self::System("an action of the line hosts has no end".to_owned());
                };
                match ends_the_search(action) {
                    // Names below .local are the C library's in any case.
                    Some(here) => ends |= here && !service.starts_with("mdns"),
                    None => return Self::System(format!("the action [{action}]")),
                }
                after = next.trim_start();
            }
            rest = after;
            if !plan.add(service) {
                return Self::System(format!("the source {service:?}"));
            }
            // Modules that know few names end the search only for those names.
            ends &= matches!(service, "files" | "dns" | "resolve");
        }
        Self::Own(plan)
    }
}

impl OwnPlan {
    /// Adds a source. Returns `false` if it is unknown.
    fn add(&mut self, service: &str) -> bool {
        let source = match service {
            "files" => Source::Files,
            "dns" => Source::Dns,
            "resolve" => {
                self.resolved = true;
                Source::Dns
            }
            "myhostname" => {
                self.myhostname = true;
                return true;
            }
            "mymachines" => {
                self.mymachines = true;
                return true;
            }
            "mdns" | "mdns4" | "mdns6" | "mdns_minimal" | "mdns4_minimal" | "mdns6_minimal" => {
                self.mdns = true;
                return true;
            }
            _ => return false,
        };
        if !self.sources.contains(&source) {
            self.sources.push(source);
        }
        true
    }
}

/// Returns whether the search ends if the source does not have the name. Returns `None` for
/// an action that changes what a success means.
fn ends_the_search(action: &str) -> Option<bool> {
    let mut ends = false;
    for action in action.split_whitespace() {
        let (status, action) = action.split_once('=')?;
        let (is_not, status) = match status.strip_prefix('!') {
            Some(status) => (true, status),
            None => (false, status),
        };
        let is = |word: &str| status.eq_ignore_ascii_case(word) != is_not;
        let returns = action.eq_ignore_ascii_case("return");
        if is("SUCCESS") && !returns {
            return None;
        }
        ends |= is("NOTFOUND") && returns;
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> OwnPlan {
        match Plan::parse(text.as_bytes()) {
            Plan::Own(plan) => plan,
            Plan::System(why) => panic!("{text}: {why}"),
        }
    }

    #[test]
    fn the_lines_of_distributions_are_understood() {
        use Source::{Dns, Files};
        for (line, sources, mdns) in [
            ("files dns", &[Files, Dns][..], false),
            ("dns files", &[Dns, Files], false),
            ("files", &[Files], false),
            ("files mdns4_minimal [NOTFOUND=return] dns", &[Files, Dns], true),
            (
                "mymachines resolve [!UNAVAIL=return] files myhostname dns",
                &[Dns],
                false,
            ),
            (
                "files myhostname mymachines resolve [!UNAVAIL=return] dns",
                &[Files, Dns],
                false,
            ),
            ("files [NOTFOUND=return] dns", &[Files], false),
            ("dns [!UNAVAIL=return] files", &[Dns], false),
            ("dns [TRYAGAIN=return]files # ldap", &[Dns, Files], false),
            ("files[SUCCESS=return] dns", &[Files, Dns], false),
        ] {
            let plan = own(&format!("passwd: files nis\n hosts :\t{line}\n"));
            assert_eq!((&plan.sources[..], plan.mdns), (sources, mdns), "{line}");
        }
        assert_eq!(own(""), OwnPlan::default());
        assert_eq!(own("#hosts: nis\nnetworks: nis\n\u{ff}"), OwnPlan::default());
    }

    #[test]
    fn an_unknown_source_or_action_is_the_c_library_s() {
        for (line, why) in [
            ("files nis dns", "\"nis\""),
            ("files libvirt dns", "\"libvirt\""),
            ("files [SUCCESS=merge] dns", "[SUCCESS=merge]"),
            ("files [!NOTFOUND=continue] dns", "[!NOTFOUND=continue]"),
            ("files [NOTFOUND=return", "no end"),
        ] {
            let Plan::System(reason) = Plan::parse(format!("hosts: {line}").as_bytes()) else {
                panic!("{line}")
            };
            assert!(reason.contains(why), "{reason}");
        }
    }
}
