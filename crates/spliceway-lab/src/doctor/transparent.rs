//! What transparent proxying needs from this machine: a capability, rules of nft, and a route.

use std::io;
use std::process::Command;

use clap::ValueEnum;
use serde_json::Value as Json;
use socket2::{Domain, Socket, Type};

use super::finding::{Check, Finding};

/// A way to take connections, or to keep their source.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Rules with REDIRECT or DNAT
    Redirect,
    /// Rules with TPROXY, for --tproxy
    Tproxy,
    /// Answers to connections with --transparent-source
    Source,
}

/// A family of addresses, as the arguments and the tables of the tools name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

/// What the rules of nft do in one family.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    /// Whether a rule does what the way needs.
    exist: bool,
    /// The marks that such rules set, as far as nft shows them.
    marks: Vec<u64>,
}

/// A rule of routing that a mark selects.
#[derive(Debug, PartialEq, Eq)]
struct Marked {
    mark: u64,
    mask: u64,
    table: String,
}

pub(super) fn checks(way: Way) -> Vec<Check> {
    let rules = Check::new("rule", "rules of the firewall", move || rules(way)).decisive();
    if way == Way::Redirect {
        return vec![rules];
    }
    vec![
        Check::new("foreign-addresses", "the capability for foreign addresses", capability).decisive(),
        rules,
        Check::new("route-v4", "the route of marked packets, IPv4", move || {
            route(way, Family::V4)
        })
        .decisive(),
        Check::new("route-v6", "the route of marked packets, IPv6", move || {
            route(way, Family::V6)
        })
        .decisive(),
    ]
}

fn capability() -> io::Result<Finding> {
    let tried = Socket::new(Domain::IPV4, Type::STREAM, None)?.set_ip_transparent_v4(true);
    let observed = match &tried {
        Ok(()) => "allowed",
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => "CAP_NET_ADMIN is missing",
        Err(_) => "the kernel refuses IP_TRANSPARENT",
    };
    Ok(Finding::compared("allowed", observed)
        .so(
            "This holds for the user of this command. A service may have another one.",
            "The program does not start with --tproxy or --transparent-source.",
        )
        .advise("AmbientCapabilities=CAP_NET_ADMIN and CapabilityBoundingSet=CAP_NET_ADMIN in the unit"))
}

fn rules(way: Way) -> io::Result<Finding> {
    let ruleset = nft()?;
    let families = [(Family::V4, "IPv4"), (Family::V6, "IPv6")];
    let found = families
        .into_iter()
        .filter(|(family, _)| find_rules(&ruleset, way, *family).exist);
    let found: Vec<_> = found.map(|(_, name)| name).collect();
    if found.is_empty() && has_legacy_tables() {
        return Ok(Finding::unknown(
            "iptables-legacy has rules, which nft does not show: see iptables-legacy-save",
        ));
    }
    let (what, lost, advice) = match way {
        Way::Redirect => (
            "redirect",
            "No packet reaches the program.",
            "nft add rule inet TABLE CHAIN tcp dport 80 redirect to :PORT, in a chain of type nat",
        ),
        Way::Tproxy => (
            "tproxy",
            "No packet reaches the program.",
            "nft add rule inet TABLE CHAIN tcp dport 80 tproxy to :PORT meta mark set 1, in a chain of type filter with hook prerouting",
        ),
        Way::Source => (
            "socket transparent",
            "No answer of a target reaches the program.",
            "nft add rule inet TABLE CHAIN meta l4proto tcp socket transparent 1 socket wildcard 0 meta mark set 1, in a chain of type filter with hook prerouting",
        ),
    };
    let observed = match found.is_empty() {
        true => format!("no rule with `{what}`"),
        false => format!("`{what}` for {}", found.join(" and ")),
    };
    Ok(
        Finding::judged(!found.is_empty(), format!("a rule with `{what}`"), observed)
            .so("The check does not know the port of the service.", lost)
            .advise(advice),
    )
}

fn route(way: Way, family: Family) -> io::Result<Finding> {
    let rules = find_rules(&nft()?, way, family);
    if !rules.exist && family == Family::V6 {
        return Ok(Finding::info("no rule of the firewall", "IPv6 is not needed."));
    }
    let marked = marked(&json("ip", &["-j", family.flag(), "rule", "show"])?);
    let mut local = Vec::new();
    for rule in marked {
        // A table without a route does not exist.
        let routes = json("ip", &["-j", family.flag(), "route", "show", "table", &rule.table]).unwrap_or_default();
        let is_local = has_local_default(&routes);
        local.push((rule, is_local));
    }
    Ok(judge_route(family, &rules.marks, &local))
}

/// Judges the rules that marks select. Each of them comes with whether its table delivers
/// everything to this machine.
fn judge_route(family: Family, marks: &[u64], rules: &[(Marked, bool)]) -> Finding {
    let flag = family.flag();
    let of_mark = |mark: u64| rules.iter().find(|(rule, _)| mark & rule.mask == rule.mark & rule.mask);
    // Without a mark in a rule of nft, any mark may be meant.
    let found = match marks {
        [] => rules.iter().find(|(_, is_local)| *is_local).or_else(|| rules.first()),
        marks => marks.iter().find_map(|mark| of_mark(*mark)),
    };
    let mark = marks.first().copied().unwrap_or(1);
    let expected = "a rule for the mark, and a local default route in its table";
    let (observed, advice) = match found {
        Some((rule, true)) => {
            return Finding::judged(true, expected, format!("mark {:#x}, table {}", rule.mark, rule.table));
        }
        Some((rule, false)) => (
            format!("no local default route in table {}", rule.table),
            format!("ip {flag} route add local default dev lo table {}", rule.table),
        ),
        None => (
            format!("no rule for the mark {mark:#x}"),
            format!(
                "ip {flag} rule add fwmark {mark:#x} lookup 100 && ip {flag} route add local default dev lo table 100"
            ),
        ),
    };
    Finding::judged(false, expected, observed)
        .so("", "Marked packets leave this machine, and never reach the program.")
        .advise(advice)
}

impl Family {
    fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// Returns whether rules in a table of nft apply to the family.
    fn is_in(self, table: &str) -> bool {
        match table {
            "inet" => true,
            "ip" => self == Self::V4,
            "ip6" => self == Self::V6,
            _ => false,
        }
    }
}

fn nft() -> io::Result<Json> {
    json("nft", &["-j", "list", "ruleset"])
}

/// Returns what a tool prints as JSON.
fn json(program: &str, arguments: &[&str]) -> io::Result<Json> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other(format!("{program} is not installed")),
            _ => error,
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it failed").to_owned();
        return Err(io::Error::other(format!("{program}: {said}")));
    }
    match output.stdout.is_empty() {
        true => Ok(Json::Null),
        false => Ok(serde_json::from_slice(&output.stdout)?),
    }
}

/// Returns whether there are tables of iptables-legacy that redirect or mark packets.
fn has_legacy_tables() -> bool {
    ["ip_tables_names", "ip6_tables_names"].iter().any(|names| {
        let names = std::fs::read_to_string(format!("/proc/net/{names}")).unwrap_or_default();
        names.lines().any(|table| matches!(table, "nat" | "mangle"))
    })
}

fn find_rules(ruleset: &Json, way: Way, family: Family) -> Rules {
    let mut found = Rules::default();
    for entry in ruleset["nftables"].as_array().into_iter().flatten() {
        let rule = &entry["rule"];
        let is_in_family = rule["family"].as_str().is_some_and(|table| family.is_in(table));
        let statements = rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default();
        if is_in_family && statements.iter().any(|statement| way.is_met_by(statement)) {
            found.exist = true;
            let marks = statements
                .iter()
                .filter(|one| one["mangle"]["key"]["meta"]["key"] == "mark");
            found
                .marks
                .extend(marks.filter_map(|one| one["mangle"]["value"].as_u64()));
        }
    }
    found
}

impl Way {
    fn is_met_by(self, statement: &Json) -> bool {
        // iptables-nft names its target, and nothing else.
        let target = statement["xt"]["name"].as_str();
        match self {
            Self::Redirect => {
                statement.get("redirect").is_some()
                    || statement.get("dnat").is_some()
                    || matches!(target, Some("REDIRECT" | "DNAT"))
            }
            Self::Tproxy => statement.get("tproxy").is_some() || target == Some("TPROXY"),
            Self::Source => statement["match"]["left"]["socket"]["key"] == "transparent" || target == Some("socket"),
        }
    }
}

/// Returns the rules of routing that a mark selects.
fn marked(rules: &Json) -> Vec<Marked> {
    let number = |value: &Json| u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok();
    let rules = rules.as_array().into_iter().flatten();
    let marked = rules.filter_map(|rule| {
        Some(Marked {
            mark: number(&rule["fwmark"])?,
            mask: number(&rule["fwmask"]).unwrap_or(u64::from(u32::MAX)),
            table: rule["table"].as_str()?.to_owned(),
        })
    });
    marked.collect()
}

fn has_local_default(routes: &Json) -> bool {
    let mut routes = routes.as_array().into_iter().flatten();
    routes.any(|route| route["type"] == "local" && route["dst"] == "default")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_found_in_the_tables_of_their_family() {
        let rule = |family: &str, statements: Json| json!({"rule": {"family": family, "expr": statements}});
        let mark = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}});
        let ruleset = json!({"nftables": [
            {"table": {"family": "inet", "name": "tproxy"}},
            rule("ip", json!([{"tproxy": {"port": 9040}}, mark])),
            rule("inet", json!([{"match": {"left": {"socket": {"key": "transparent"}}, "right": 1}}])),
            rule("ip6", json!([{"xt": {"type": "target", "name": "REDIRECT"}}])),
            rule("bridge", json!([{"redirect": null}])),
        ]});
        let found = |way, family| find_rules(&ruleset, way, family);
        let (exists, none) = (
            Rules {
                exist: true,
                marks: vec![],
            },
            Rules::default(),
        );
        assert_eq!(found(Way::Tproxy, Family::V4).marks, [7]);
        assert_eq!(found(Way::Tproxy, Family::V6), none);
        assert_eq!(found(Way::Source, Family::V4), exists);
        assert_eq!(found(Way::Source, Family::V6), exists);
        assert_eq!(found(Way::Redirect, Family::V4), none);
        assert_eq!(found(Way::Redirect, Family::V6), exists);
        assert_eq!(find_rules(&Json::Null, Way::Redirect, Family::V4), none);
    }

    #[test]
    fn the_mark_of_the_firewall_must_lead_to_a_local_route() {
        let rules = json!([
            {"priority": 0, "src": "all", "table": "local"},
            {"priority": 9, "src": "all", "fwmark": "0x10", "fwmask": "0xf0", "table": "101"},
            {"priority": 10, "src": "all", "fwmark": "0x1", "table": "100"},
        ]);
        let [masked, plain] = marked(&rules).try_into().unwrap();
        assert_eq!((masked.mark, masked.mask, plain.mask), (0x10, 0xf0, 0xffff_ffff));
        let rules = [(masked, false), (plain, true)];
        for (marks, observed, advice) in [
            (&[1][..], "mark 0x1, table 100", None),
            (&[], "mark 0x1, table 100", None),
            (
                &[0x13],
                "no local default route in table 101",
                Some("ip -4 route add local default dev lo table 101"),
            ),
            (
                &[2],
                "no rule for the mark 0x2",
                Some("ip -4 rule add fwmark 0x2 lookup 100"),
            ),
        ] {
            let finding = judge_route(Family::V4, marks, &rules);
            assert_eq!(finding.observed, observed);
            let have = finding.advice.unwrap_or_default();
            assert!(
                have.starts_with(advice.unwrap_or_default()) && have.is_empty() == advice.is_none(),
                "{have}"
            );
        }
    }
}
