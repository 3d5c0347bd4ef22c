//! Tests of the rules as decisions, without sockets.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::kit::refusal::Refusal;
use spliceway_protocol::rule::TargetRule;

fn list(rules: &[&str]) -> Arc<RuleList> {
    let mut list = RuleList::default();
    for rule in rules {
        list.add(rule.parse().unwrap()).unwrap();
    }
    Arc::new(list.complete(crate::access::auth::fingerprint(&rules.join("\n"))))
}

fn rules(allow: &[&str], deny: &[&str]) -> TargetRules {
    let lists = |rules: &[&str]| (!rules.is_empty()).then(|| RuleLists::new(vec![list(rules)]));
    TargetRules {
        allow: lists(allow),
        deny: lists(deny),
        allows_unlisted: false,
    }
}

/// Returns the same rules, each in a list of its own.
fn apart(allow: &[&str], deny: &[&str]) -> TargetRules {
    let lists = |rules: &[&str]| {
        let lists = rules.iter().map(|rule| list(&[rule]));
        (!rules.is_empty()).then(|| RuleLists::new(lists.collect()))
    };
    TargetRules {
        allow: lists(allow),
        deny: lists(deny),
        allows_unlisted: false,
    }
}

/// Checks a target that is written `ADDRESS:PORT`, or `NAME=ADDRESS:PORT` if a name led to it.
fn passes(rules: &TargetRules, target: &str) -> bool {
    let (name, address) = target
        .rsplit_once('=')
        .map_or((None, target), |(name, address)| (Some(name), address));
    let address: SocketAddr = address.parse().unwrap_or_else(|_| panic!("{target}"));
    let before_lookup = name.map_or(Ok(()), |name| rules.check_name(name, address.port()));
    let checked = rules.check(name, address);
    // What is refused before the lookup is refused after it, too.
    assert!(checked.is_err() || before_lookup.is_ok(), "{target}: {before_lookup:?}");
    checked.is_ok()
}

/// Checks each line of a table: the allow list, the deny list, the target, and whether it passes.
fn decides(passes: impl Fn(&TargetRules, &str) -> bool, table: &str) {
    let lines = table.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [allow, deny, target, expected] = columns[..] else {
            panic!("{line}")
        };
        let [mut allow, mut deny] = [allow, deny].map(|list| list.split_whitespace().collect::<Vec<_>>());
        assert!(matches!(expected, "yes" | "no"), "{line}");
        assert_eq!(passes(&rules(&allow, &deny), target), expected == "yes", "{line}");
        // Rules of several files have no order either.
        for _ in 0..2 {
            assert_eq!(
                passes(&apart(&allow, &deny), target),
                expected == "yes",
                "apart: {line}"
            );
            allow.reverse();
            deny.reverse();
        }
    }
}

#[test]
fn a_deny_rule_wins_unless_an_allow_rule_is_more_specific() {
    decides(
        passes,
        "
                               |                         | 192.0.2.1:80                 | yes
        # Without an allow list, everything else is allowed.
                               | 192.0.2.0/24            | 192.0.2.1:80                 | no
                               | 192.0.2.0/24            | 192.0.3.1:80                 | yes
        192.0.2.0/24           |                         | 192.0.2.1:80                 | yes
        192.0.2.0/24           |                         | 192.0.3.1:80                 | no
        # The smaller network.
        10.1.0.0/16            | 10.0.0.0/8              | 10.1.2.3:80                  | yes
        10.1.0.0/16            | 10.0.0.0/8              | 10.2.2.3:80                  | no
        10.0.0.0/8             | 10.1.0.0/16             | 10.1.2.3:80                  | no
        10.0.0.0/8             | 10.1.0.0/16             | 10.2.2.3:80                  | yes
        10.0.0.0/8             | 10.0.0.0/8              | 10.2.2.3:80                  | no
        10.0.0.0/8 10.1.1.0/24 | 10.1.0.0/16             | 10.1.1.1:80                  | yes
        10.0.0.0/8             | 10.1.0.0/16 10.1.1.0/24 | 10.1.2.1:80                  | no
        2001:db8:1::/48        | 2001:db8::/32           | [2001:db8:1::1]:80           | yes
        2001:db8:1::/48        | 2001:db8::/32           | [2001:db8:2::1]:80           | no
        # The longer name.
        a.example.com          | *.example.com           | a.example.com=192.0.2.1:80   | yes
        *.example.com          | a.example.com           | a.example.com=192.0.2.1:80   | no
        *.example.com          | *.b.example.com         | a.b.example.com=192.0.2.1:80 | no
        *.b.example.com        | *.example.com           | a.b.example.com=192.0.2.1:80 | yes
        *.example.com          |                         | example.com=192.0.2.1:80     | no
        *.example.com          |                         | badexample.com=192.0.2.1:80  | no
        ",
    );
}

#[test]
fn a_rule_with_ports_is_more_specific_than_one_without() {
    decides(
        passes,
        "
        192.0.2.0/24:443              |                     | 192.0.2.1:443               | yes
        192.0.2.0/24:443              |                     | 192.0.2.1:80                | no
        192.0.2.0/24:80,443,8000-8999 |                     | 192.0.2.1:8500              | yes
        192.0.2.0/24                  | 192.0.2.0/24:22     | 192.0.2.1:22                | no
        192.0.2.0/24                  | 192.0.2.0/24:22     | 192.0.2.1:80                | yes
        192.0.2.0/24:22               | 192.0.2.0/24        | 192.0.2.1:22                | yes
        192.0.2.0/24:22               | 192.0.2.0/24:1-1023 | 192.0.2.1:22                | no
        10.1.0.0/16                   | 10.0.0.0/8:22       | 10.1.0.1:22                 | no
        10.1.0.0/16:22                | 10.0.0.0/8:22       | 10.1.0.1:22                 | yes
        10.0.0.0/8:22                 | 10.1.0.0/16         | 10.1.0.1:22                 | no
        *.example.com:443             |                     | a.example.com=192.0.2.1:443 | yes
        *.example.com:443             |                     | a.example.com=192.0.2.1:80  | no
        # Rules for all hosts.
        :80,443                       |                     | 192.0.2.1:443               | yes
        :80,443                       |                     | a.example.com=192.0.2.1:443 | yes
        :80,443                       |                     | 192.0.2.1:22                | no
        :80,443                       | 192.0.2.0/24        | 192.0.2.1:443               | no
                                      | :25                 | 192.0.2.1:25                | no
        192.0.2.0/24                  | :25                 | 192.0.2.1:25                | no
        192.0.2.1:25                  | :25                 | 192.0.2.1:25                | yes
        mx.example.com:25             | :25                 | mx.example.com=192.0.2.1:25 | yes
        mx.example.com                | :25                 | mx.example.com=192.0.2.1:25 | no
        mx.example.com                | *                   | mx.example.com=192.0.2.1:25 | yes
        mx.example.com                | *                   | 192.0.2.1:25                | no
        :25                           | *                   | 192.0.2.1:25                | yes
        ",
    );
}

#[test]
fn a_name_and_its_address_must_both_pass() {
    decides(
        passes,
        "
        a.example              | 192.0.2.0/24 | a.example=192.0.2.1:80 | no
        a.example              | 192.0.2.0/24 | a.example=192.0.3.1:80 | yes
        192.0.2.0/24           | a.example    | a.example=192.0.2.1:80 | no
        192.0.2.0/24           | a.example    | b.example=192.0.2.1:80 | yes
        192.0.2.0/24           |              | b.example=192.0.3.1:80 | no
        a.example 192.0.2.0/24 |              | a.example=192.0.3.1:80 | yes
        a.example 192.0.2.0/24 |              | b.example=192.0.3.1:80 | no
        # An address that a client writes as such has no name.
        a.example              |              | 192.0.2.1:80           | no
                               | a.example    | 192.0.2.1:80           | yes
        ",
    );
}

/// Each line is what a client may try to reach a refused target.
#[test]
fn no_spelling_of_a_target_bypasses_a_rule() {
    let deny = rules(
        &[],
        &[
            "bad.example",
            "*.bad.example",
            "bücher.example",
            "198.51.100.0/24",
            "127.0.0.0/8",
            "10.0.0.1:22",
        ],
    );
    for target in [
        "bad.example=192.0.2.1:80",
        "BAD.Example=192.0.2.1:80",
        "bad.example.=192.0.2.1:80",
        "BAD.EXAMPLE..=192.0.2.1:80",
        "a.b.c.BAD.example.=192.0.2.1:80",
        &("a.".repeat(121) + "bad.example=192.0.2.1:80"),
        "bad..example=192.0.2.1:80",
        ".bad.example=192.0.2.1:80",
        "a..bad.example=192.0.2.1:80",
        ".=192.0.2.1:80",
        "XN--BCHER-KVA.example.=192.0.2.1:80",
        "198.51.100.7:80",
        "[::ffff:198.51.100.7]:80",
        "[::ffff:c633:6407]:80",
        "[64:ff9b::198.51.100.7]:80",
        "[2002:c633:6407::1]:80",
        "[::198.51.100.7]:80",
        "good.example=198.51.100.7:80",
        "good.example=[::ffff:198.51.100.7]:80",
        // The kernel connects to loopback.
        "0.0.0.0:80",
        "[::ffff:0.0.0.0]:80",
        "[::ffff:10.0.0.1]:22",
    ] {
        assert!(!passes(&deny, target), "{target}");
    }
    for target in [
        "notbad.example=192.0.2.1:80",
        "bad.example.com=192.0.2.1:80",
        "198.51.101.7:80",
        "[64:ff9b::198.51.101.7]:80",
        "[::1]:80",
        "10.0.0.1:2222",
    ] {
        assert!(passes(&deny, target), "{target}");
    }
    let allow = rules(&["good.example", "192.0.2.0/24"], &[]);
    for target in ["GOOD.example.=198.51.100.7:80", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
        assert!(passes(&allow, target), "{target}");
    }
    for target in [
        "good.example.evil.example=198.51.100.7:80",
        "evilgood.example=198.51.100.7:80",
        "good..example=198.51.100.7:80",
        // It may lead to another network than the IPv4 address does.
        "[64:ff9b::192.0.2.1]:80",
        "198.51.100.7:80",
    ] {
        assert!(!passes(&allow, target), "{target}");
    }
}

#[test]
fn the_unspecified_ipv6_address_reaches_loopback() {
    assert!(!passes(&rules(&[], &["::1"]), "[::]:80"));
}

#[test]
fn a_name_that_cannot_be_allowed_is_not_looked_up() {
    let passes = |rules: &TargetRules, target: &str| {
        let (name, port) = target.split_once(':').unwrap();
        rules.check_name(name, port.parse().unwrap()).is_ok()
    };
    decides(
        passes,
        "
        a.example                  |              | b.example:80 | no
        a.example:443              |              | a.example:80 | no
        a.example 192.0.2.0/24     |              | b.example:80 | yes
        a.example 192.0.2.0/24:443 |              | b.example:80 | no
        a.example :80              |              | b.example:80 | yes
                                   | a.example    | a.example:80 | no
                                   | 192.0.2.0/24 | a.example:80 | yes
                                   | :25          | a.example:25 | no
        ",
    );
}

#[test]
fn a_name_that_another_program_looks_up_needs_rules_without_addresses() {
    let passes = |rules: &TargetRules, target: &str| {
        let (name, port) = target.split_once(':').unwrap();
        rules.check_unresolved(name, port.parse().unwrap()).is_ok()
    };
    decides(
        passes,
        "
                         |                  | a.example:80 | yes
                         | b.example        | a.example:80 | yes
                         | a.example        | a.example:80 | no
        a.example        |                  | a.example:80 | yes
        a.example        |                  | b.example:80 | no
        # A name could lead to the refused network.
                         | 192.0.2.0/24     | a.example:80 | no
        a.example        | 192.0.2.0/24     | a.example:80 | no
        a.example        | 192.0.2.0/24:443 | a.example:80 | yes
        # A name that might lead to the allowed network is not allowed.
        192.0.2.0/24     |                  | a.example:80 | no
        192.0.2.0/24 :80 |                  | a.example:80 | yes
                         | :25              | a.example:25 | no
        ",
    );
}

#[test]
fn a_refusal_names_the_rule() {
    let refusing = rules(
        &["192.0.2.0/24"],
        &["192.0.2.7", "*.bad.example:80-90", "[2001:db8::/32]:80", ":22"],
    );
    for (name, address, rule) in [
        (None, "192.0.2.7:80", "refused by --to-deny 192.0.2.7/32"),
        (
            Some("a.bad.example"),
            "192.0.2.1:80",
            "refused by --to-deny *.bad.example:80",
        ),
        (None, "[2001:db8::1]:80", "refused by --to-deny [2001:db8::/32]:80"),
        (None, "192.0.2.1:22", "refused by --to-deny :22"),
        (None, "198.51.100.1:80", "refused by --to-allow, where no rule matches"),
    ] {
        let denied = refusing.check(name, address.parse().unwrap()).unwrap_err();
        assert_eq!(
            (denied.to_string(), Refusal::from(&denied)),
            (rule.to_owned(), Refusal::TargetRule)
        );
    }
}

#[test]
fn each_of_several_lists_counts() {
    assert!(apart(&["10.0.0.0/8", "a.test"], &[]).have_names());
    assert!(apart(&[], &["a.test", "10.0.0.0/8"]).refuse_networks());
    let ports: Vec<_> = apart(&["b.test:80", "a.test:443"], &[])
        .ports_of_name("a.test", None)
        .collect();
    assert_eq!(ports, [443]);
}

#[test]
fn rules_for_one_host_add_up() {
    let allow = rules(&["192.0.2.1:80", "192.0.2.1:443-450", "192.0.2.1:445-500"], &[]);
    for (port, expected) in [
        (79, false),
        (80, true),
        (81, false),
        (443, true),
        (451, true),
        (500, true),
        (501, false),
    ] {
        assert_eq!(passes(&allow, &format!("192.0.2.1:{port}")), expected, "{port}");
    }
    let every = rules(&["a.example:80", "a.example"], &["a.example"]);
    assert!(passes(&every, "a.example=192.0.2.1:80"), "it has ports");
    assert!(!passes(&every, "a.example=192.0.2.1:81"));
    assert_eq!(every.allow.unwrap().len(), 2);
}

/// Compares the indexes with a search through all rules, which needs no index.
#[test]
fn an_index_finds_what_a_search_finds() {
    let hosts = [
        "*",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "::/0",
        "2001:db8::/32",
        "*.b.c",
        "a.b.c",
        "*.c",
    ];
    let ports = ["", ":80", ":22-90", ":443"];
    let all: Vec<String> = hosts
        .iter()
        .flat_map(|host| {
            ports.map(|ports| {
                if host.contains("::") && !ports.is_empty() {
                    format!("[{host}]{ports}")
                } else {
                    format!("{host}{ports}")
                }
            })
        })
        .collect();
    let matches = |rule: &TargetRule, name: &str, ip: IpAddr, port: u16| {
        use spliceway_protocol::rule::Hosts;
        let host = match &rule.hosts {
            Hosts::All => true,
            Hosts::Network(net) => net.contains(&ip),
            Hosts::Name(whole) => **whole == *name,
            Hosts::Below(end) => name.strip_suffix(&**end).is_some_and(|start| start.ends_with('.')),
        };
        host && (rule.ports.0.is_empty()
            || rule
                .ports
                .0
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&port)))
    };
    for rule in &all {
        let (deny, parsed) = (rules(&[], &[rule]), rule.parse::<TargetRule>().unwrap());
        let allow = rules(&[rule], &[]);
        for name in ["a.b.c", "b.c", "x.a.b.c", "c", "d"] {
            for ip in [
                "10.1.2.3",
                "10.1.2.4",
                "10.2.0.0",
                "11.0.0.0",
                "2001:db8::1",
                "2001:db9::1",
            ] {
                for port in [21, 22, 80, 90, 91, 443] {
                    let ip: IpAddr = ip.parse().unwrap();
                    let expected = matches(&parsed, name, ip, port);
                    let address = SocketAddr::new(ip, port);
                    assert_eq!(
                        deny.check(Some(name), address).is_err(),
                        expected,
                        "{rule} {name} {address}"
                    );
                    assert_eq!(
                        allow.check(Some(name), address).is_ok(),
                        expected,
                        "{rule} {name} {address}"
                    );
                }
            }
        }
    }
}

/// With `--nocapture`, this test prints the time of a lookup. docs/target-rules.md has the command.
#[test]
fn long_lists_find_each_rule_and_nothing_else() {
    const RULES: u32 = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
    let ip = |index: u32| Ipv4Addr::from_bits(0x0b00_0000 + index * 0x0301);
    let wildcard = |index: u32| ["", "*."][usize::from(index.is_multiple_of(2))];
    let name = |index: u32| format!("host{index}.zone{}.example.com", index % 1000);
    let mut list = RuleList::default();
    for index in 0..RULES {
        for rule in [ip(index).to_string(), format!("{}{}", wildcard(index), name(index))] {
            list.add(rule.parse().unwrap()).unwrap();
        }
    }
    let list = list.complete(crate::access::auth::fingerprint(""));
    let ips: Vec<IpAddr> = (0..RULES).map(|index| ip(index).into()).collect();
    let names: Vec<_> = (0..RULES)
        .map(|index| wildcard(index).replace('*', "www") + &name(index))
        .collect();
    let others: Vec<_> = names.iter().map(|name| name.replace("com", "org")).collect();
    let timed = |finds: &dyn Fn(usize) -> bool| {
        let started = Instant::now();
        let found = (0..ips.len()).filter(|index| finds(*index)).count();
        (found, started.elapsed() / RULES)
    };
    let (found, by_address) = timed(&|index| !list.by_address(ips[index], 80).is_nothing());
    let (named, by_name) = timed(&|index| !list.by_name(&names[index], 80).is_nothing());
    let (none, by_other) = timed(&|index| list.by_name(&others[index], 80).is_nothing());
    assert_eq!([found, named, none], [ips.len(); 3]);
    println!("{RULES} networks and names: {by_address:?} by address, {by_name:?} by name, {by_other:?} without a rule");
    let mut between = (0..RULES).map(|index| Ipv4Addr::from_bits(ip(index).to_bits() + 1));
    assert!(between.all(|ip| list.by_address(ip.into(), 80).is_nothing()));
}
