//! hosts(5) and nsswitch.conf(5).

use super::*;

#[test]
fn lines_of_hosts_mean_what_they_mean_to_glibc() {
    let Some(machine) = Machine::new("hosts") else { return };
    machine.write(
        "hosts",
        b"192.0.2.1 one Alias.One\r\n192.0.2.2\tone#c\n::ffff:192.0.2.1 mapped\n192.0.2.1 b\xffd good\n\
        \xff\xfe bad\nfe80::1%lo zoned\n  192.0.2.1 indented\n192.0.2 short\n0192.0.2.1 octal\n\
        192.0.2.1 dot.example.\n2001:db8::1 six\n192.0.2.1 six\n# 192.0.2.1 comment\n2001:DB8:0::1 only6\n",
    );
    machine.first.has("only6.", &["192.0.2.2"]);
    machine.first.has("one.", &["192.0.2.2"]);
    for (name, expected) in [
        ("one", &["192.0.2.1", "192.0.2.2"][..]),
        ("ONE", &["192.0.2.1", "192.0.2.2"]),
        ("alias.one", &["192.0.2.1"]),
        ("mapped", &["192.0.2.1"]),
        ("good", &["192.0.2.1"]),
        ("indented", &["192.0.2.1"]),
        ("six", &["2001:db8::1", "192.0.2.1"]),
        // A name with one family there has none in DNS.
        ("only6", &["2001:db8::1"]),
        // A name with a final dot is another one.
        ("one.", &["192.0.2.2"]),
        ("bad", &[]),
        ("zoned", &[]),
        ("short", &[]),
        ("octal", &[]),
        ("dot.example", &[]),
        ("comment", &[]),
    ] {
        machine.same_queries(name, expected);
    }
    let mut program = machine.socks5(&[]);
    assert!(machine.connected(&program, "good").is_some());
    let warning = program.line("ignored bad lines");
    assert!(
        warning.contains("hosts") && warning.contains("line=4") && warning.contains("lines=5"),
        "{warning}"
    );
}

#[test]
fn deliberate_differences_from_glibc_are_these() {
    let Some(machine) = Machine::new("differences") else {
        return;
    };
    machine.write("hosts", "192.0.2.1 one\n192.0.2.2 one\n");
    // All lines of a name count, whatever host.conf says.
    machine.write("host.conf", "multi off\n");
    assert_eq!(machine.glibc("one").addresses, ips(&["192.0.2.1"]));
    machine.is_one_of("one", &machine.ours("one"), &["192.0.2.1", "192.0.2.2"]);
    // localhost is loopback, and no server is asked about it.
    machine.first.has("localhost.", &["192.0.2.2"]);
    machine.differs("localhost", &["192.0.2.2"], &["::1", "127.0.0.1"]);
    assert_eq!(machine.ours("a.localhost").asked, [vec![], vec![]]);
    // Names of the Tor network leave this machine to no name server (RFC 7686).
    machine.first.has("a.onion.", &["192.0.2.2"]);
    machine.differs("a.onion", &["192.0.2.2"], &[]);
    // Numbers that only inet_aton(3) takes for addresses are no addresses.
    machine.differs("127.1", &["127.0.0.1"], &[]);
}

#[test]
fn files_that_are_missing_unreadable_or_no_files_mean_the_defaults() {
    let Some(machine) = Machine::new("missing") else { return };
    machine.first.has("a.example.", &["192.0.2.1"]);
    machine.write("hosts", "192.0.2.2 b\n");
    std::fs::remove_file(machine.etc.0.join("nsswitch.conf")).unwrap();
    machine.same_queries("a.example", &["192.0.2.1"]);
    machine.same_queries("b", &["192.0.2.2"]);
    std::fs::remove_file(machine.etc.0.join("hosts")).unwrap();
    std::fs::create_dir(machine.etc.0.join("hosts")).unwrap();
    machine.same_queries("a.example", &["192.0.2.1"]);
    // Without resolv.conf, the server is 127.0.0.1.
    std::fs::remove_file(machine.etc.0.join("resolv.conf")).unwrap();
    let local = machine.inside(|| NameServer::start("127.0.0.1"));
    local.has("a.example.", &["192.0.2.2"]);
    machine.same("a.example", &["192.0.2.2"]);
    // glibc would wait for a writer.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        machine.etc.0.join("resolv.conf"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    machine.is_one_of("a.example", &machine.ours("a.example"), &["192.0.2.2"]);
}

#[test]
fn the_sources_of_nsswitch_conf_are_used_in_their_order() {
    let Some(machine) = Machine::new("nsswitch") else {
        return;
    };
    machine.write("hosts", "192.0.2.1 both.example\n192.0.2.1 files.example\n");
    machine.first.has("both.example.", &["192.0.2.2"]);
    machine.first.has("dns.example.", &["192.0.2.2"]);
    let (hosts, dns) = (&["192.0.2.1"][..], &["192.0.2.2"][..]);
    for (line, both, only_files, only_dns) in [
        ("files dns", hosts, hosts, dns),
        ("dns files", dns, hosts, dns),
        ("files", hosts, hosts, &[][..]),
        ("dns", dns, &[], dns),
        ("files [NOTFOUND=return] dns", hosts, hosts, &[]),
        ("dns [!UNAVAIL=return] files", dns, &[], dns),
        ("dns [NOTFOUND=return]files", dns, &[], dns),
        ("dns [TRYAGAIN=return] files", dns, hosts, dns),
        (
            "files mdns4_minimal [NOTFOUND=return] dns myhostname mymachines",
            hosts,
            hosts,
            dns,
        ),
        ("files no_such_module dns", hosts, hosts, dns),
    ] {
        machine.write("nsswitch.conf", format!("passwd: files\nhosts:\t{line} # comment\n"));
        machine.same_queries("both.example", both);
        machine.same_queries("files.example", only_files);
        machine.same_queries("dns.example", only_dns);
    }
}

#[test]
fn an_unknown_source_leaves_the_names_to_the_c_library() {
    let Some(machine) = Machine::new("unknown") else { return };
    machine.write("nsswitch.conf", "hosts: files no_such_module dns\n");
    machine.first.has("a.example.", &["192.0.2.1"]);
    let mut program = machine.socks5(&[]);
    assert_eq!(
        machine.connected(&program, "a.example"),
        Some("192.0.2.1".parse().unwrap())
    );
    let line = program.line("the C library looks up names");
    assert!(line.contains("no_such_module"), "{line}");
}
