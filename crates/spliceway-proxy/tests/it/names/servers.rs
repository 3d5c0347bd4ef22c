//! resolv.conf(5): servers, search domains and options.

use super::*;

#[test]
fn the_order_of_the_servers_is_the_order_of_asking() {
    let Some(machine) = Machine::new("order") else { return };
    let (first, second) = (&machine.first, &machine.second);
    first.has("inner.example.", &["192.0.2.1"]);
    second.has("inner.example.", &["192.0.2.2"]);
    machine.same_queries("inner.example", &["192.0.2.1"]);
    // "No such name" is final, and the second server does not learn the name.
    second.has("unknown.example.", &["192.0.2.2"]);
    machine.same_queries("unknown.example", &[]);
    assert!(second.take().is_empty());
    first.says("fails.example.", Says::Code(ResponseCode::ServFail));
    second.has("fails.example.", &["192.0.2.2", "2001:db8::2"]);
    machine.same("fails.example", &["192.0.2.2", "2001:db8::2"]);
    for code in [ResponseCode::Refused, ResponseCode::NotImp] {
        first.says("refuses.example.", Says::Code(code));
        second.has("refuses.example.", &["192.0.2.2"]);
        machine.same("refuses.example", &["192.0.2.2"]);
    }
    first.says("silent.example.", Says::Nothing);
    second.has("silent.example.", &["192.0.2.2"]);
    machine.same("silent.example", &["192.0.2.2"]);
    // Ten of ten connections work.
    let program = machine.socks5(&[]);
    for _ in 0..10 {
        assert_eq!(
            machine.connected(&program, "inner.example"),
            Some("192.0.2.1".parse().unwrap())
        );
    }
}

#[test]
fn a_server_that_refuses_every_request_is_passed_over() {
    let Some(machine) = Machine::new("passed") else { return };
    machine.write("resolv.conf", "nameserver 127.0.0.9\nnameserver 127.0.0.2\n");
    machine.first.has("a.example.", &["192.0.2.1"]);
    machine.same_queries("a.example", &["192.0.2.1"]);
    // The fourth server does not exist for glibc.
    machine.write(
        "resolv.conf",
        "nameserver 127.0.0.9\n".repeat(3) + "nameserver 127.0.0.2\n",
    );
    machine.same_queries("a.example", &[]);
}

#[test]
fn short_names_are_searched_in_the_domains() {
    let Some(machine) = Machine::new("search") else { return };
    let (first, servers) = (&machine.first, "nameserver 127.0.0.2\n");
    for name in [
        "db.one.example.",
        "db.two.example.",
        "a.b.one.example.",
        "host.",
        "top.one.example.",
    ] {
        first.has(name, &["192.0.2.1"]);
    }
    for (lines, name, expected) in [
        ("search one.example two.example", "db", &["192.0.2.1"][..]),
        ("search none.example two.example.", "DB", &["192.0.2.1"]),
        ("search one.example", "a.b", &["192.0.2.1"]),
        ("search one.example\noptions ndots:2", "a.b", &["192.0.2.1"]),
        ("search one.example", "host", &["192.0.2.1"]),
        ("search one.example", "host.", &["192.0.2.1"]),
        ("search one.example", "db.", &[]),
        ("domain one.example", "db", &["192.0.2.1"]),
        ("search two.example\ndomain none.example", "db", &[]),
        ("domain none.example\nsearch\tone.example", "db", &["192.0.2.1"]),
        ("search .", "host", &["192.0.2.1"]),
        ("search one.example\noptions ndots:0", "host", &["192.0.2.1"]),
        ("search none.example\noptions no-tld-query", "host", &[]),
    ] {
        machine.write("resolv.conf", format!("{servers}{lines}\n"));
        machine.same_queries(name, expected);
    }
    let many: String = (0..8).map(|number| format!(" d{number}.example")).collect();
    machine.write("resolv.conf", format!("{servers}search{many} one.example\n"));
    machine.same_queries("top", &["192.0.2.1"]);
}

#[test]
fn a_search_goes_on_after_a_failure_and_ends_at_silence() {
    let Some(machine) = Machine::new("ends") else { return };
    machine.write(
        "resolv.conf",
        "nameserver 127.0.0.2\nsearch one.example\noptions timeout:1 attempts:1\n",
    );
    let first = &machine.first;
    for (name, answer, expected) in [
        ("fails", Says::Code(ResponseCode::ServFail), &["192.0.2.1"][..]),
        ("empty", Says::Has(Vec::new()), &["192.0.2.1"]),
        // The other search domain may have another host of this name.
        ("silent", Says::Nothing, &["192.0.2.1"]),
    ] {
        first.says(&format!("{name}.one.example."), answer);
        first.has(&format!("{name}."), &["192.0.2.1"]);
        let is_silent = name == "silent";
        first.has(
            &format!("{name}.two.example."),
            if is_silent { &["192.0.2.2"] } else { &[] },
        );
        machine.same_queries(name, expected);
    }
}

#[test]
fn options_of_the_servers_have_their_effect() {
    let Some(machine) = Machine::new("options") else { return };
    let first = &machine.first;
    // A connection to an IPv6 address would not wait for the other query.
    first.has("a.example.", &["192.0.2.1"]);
    for option in [
        "use-vc",
        "edns0",
        "single-request",
        "single-request-reopen",
        "trust-ad",
        "no-such-option",
    ] {
        machine.write("resolv.conf", format!("nameserver 127.0.0.2\noptions {option}\n"));
        machine.same_queries("a.example", &["192.0.2.1"]);
    }
    machine.write("resolv.conf", "nameserver 127.0.0.2\noptions no-aaaa\n");
    machine.same_queries("a.example", &["192.0.2.1"]);
    // A silent server is asked `attempts` times for each family.
    first.says("silent.example.", Says::Nothing);
    machine.write("resolv.conf", "nameserver 127.0.0.2\noptions timeout:1 attempts:3\n");
    machine.same_queries("silent.example", &[]);
    // With rotate, the servers take turns.
    machine.write("resolv.conf", format!("{BOTH}options rotate\n"));
    machine.second.has("a.example.", &["192.0.2.1"]);
    let program = machine.socks5(&[]);
    machine.take();
    for _ in 0..4 {
        machine.connected(&program, "a.example").unwrap();
    }
    assert_eq!(machine.take().map(|asked| asked.len()), [4, 4]);
}

#[test]
fn a_bad_line_of_resolv_conf_costs_that_line() {
    let Some(machine) = Machine::new("bad") else { return };
    machine.first.has("a.one.example.", &["192.0.2.1"]);
    let text = b"\xff\xfe broken\nnamserver 127.0.0.9\nnameserver 127.0.0\n nameserver 127.0.0.9\n\
        nameserver fe80::1%no-such\nnameserver 127.0.0.2 # inner\n; comment\nsearch one.example";
    machine.write("resolv.conf", text);
    machine.same_queries("a", &["192.0.2.1"]);
    let mut program = machine.socks5(&[]);
    assert_eq!(machine.connected(&program, "a"), Some("192.0.2.1".parse().unwrap()));
    let warning = program.line("ignored bad lines");
    assert!(
        warning.contains("resolv.conf") && warning.contains("line=1") && warning.contains("lines=5"),
        "{warning}"
    );
    // glibc takes the carriage return for a part of the address.
    machine.write("resolv.conf", "nameserver 127.0.0.2\r\nsearch one.example\r\n");
    machine.differs("a", &[], &["192.0.2.1"]);
}

/// An answer longer than a datagram comes by TCP.
#[test]
fn a_long_answer_is_complete() {
    let Some(machine) = Machine::new("long") else { return };
    // The script's server never truncates, so the option that uses TCP stands for it.
    machine.write("resolv.conf", "nameserver 127.0.0.2\noptions use-vc\n");
    let many: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([127, 0, 1, last])).collect();
    machine.first.says("many.example.", Says::Has(many.clone()));
    let theirs = machine.glibc("many.example").addresses;
    assert_eq!(theirs, many.iter().copied().collect());
    let ours = machine.ours("many.example").addresses;
    assert!(ours.len() == 1 && ours.is_subset(&theirs));
}

/// The search domain may also be that of the machine's name, and the environment may have others.
#[test]
fn the_environment_changes_search_and_options() {
    let Some(machine) = Machine::new("environment") else {
        return;
    };
    machine.write("resolv.conf", "nameserver 127.0.0.2\nsearch none.example\n");
    machine.first.has("a.env.example.", &["192.0.2.1"]);
    machine.first.has("a.b.env.example.", &["192.0.2.1"]);
    let env = [("LOCALDOMAIN", "env.example"), ("RES_OPTIONS", "ndots:2 no-aaaa")];
    for name in ["a", "a.b"] {
        machine.take();
        let mut getent = machine.command("getent", &["ahosts", name]);
        let output = machine.inside(|| getent.envs(env).output().unwrap());
        let theirs = machine.take();
        assert!(output.status.success(), "{name}");
        let arguments = ["socks5", "-l", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        let mut command = machine.command(env!("CARGO_BIN_EXE_spliceway"), &arguments);
        command.envs(env);
        let program = machine.inside(|| Program::spawn(command, true));
        machine.take();
        assert!(machine.connected(&program, name).is_some());
        assert_eq!(machine.take(), theirs, "{name}");
    }
}
