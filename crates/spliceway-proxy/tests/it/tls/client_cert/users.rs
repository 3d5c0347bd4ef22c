//! The name in a certificate is the user of a session.

use super::*;
use crate::tls::socks5;
use std::net::SocketAddr;

/// Asks for a target, and returns the code of the answer.
fn ask(client: &mut Client, target: SocketAddr) -> u8 {
    client.send(&socks5(target));
    client.receive(12)[3]
}

#[test]
fn a_proxy_that_requires_certificates_needs_no_passwords() {
    let setting = Setting::new();
    let everywhere = ["socks5", "-l", "0.0.0.0:0"];
    let optional = setting.arguments(&["--tls-client-verify", "optional"]);
    let stderr = refused_to_start(&[&everywhere[..], &optional].concat());
    assert!(stderr.contains("would serve everybody"), "{stderr}");
    let arguments = setting.arguments(&["--allow-private"]);
    let mut program = Program::public("socks5", &arguments);
    let (listener, target) = listen();
    for versions in VERSIONS {
        let issued = setting.authority.host("ann.test", 1);
        let mut client = Client::connect(&program, &setting.config(&issued).versions(versions)).unwrap();
        assert_eq!(ask(&mut client, target), 0);
        drop(accept(&listener));
        client.finish();
        let record = record(&mut program);
        assert!(record.contains(" user=ann.test protocol=socks5 "), "{record}");
    }
}

#[test]
fn limits_and_target_rules_of_a_user_apply_to_the_name_in_the_certificate() {
    let setting = Setting::new();
    let (listener, target) = listen();
    let [_, certificate, _, key] = setting.pair.arguments();
    let file = TextFile::new(&format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n\
         tls_cert = \"{certificate}\"\ntls_key = \"{key}\"\ntls_client_ca = \"{}\"\n\
         [[user]]\nname = \"Ann.test\"\nmax_conns = 1\n[[user]]\nname = \"bob.test\"\nto_deny = \"*\"\n\
         [[user]]\nname = \"Zoe.test\"\nto_deny = \"*\"\n",
        setting.file.path()
    ));
    let mut program = Program::run(&file);
    let connect = |name| Client::connect(&program, &setting.config(&setting.authority.host(name, 1))).unwrap();
    let (mut first, mut second, mut other) = (connect("ANN.test"), connect("ann.test"), connect("bob.test"));
    let (mut zoe, mut free) = (connect("zoe.test"), connect("eve.test"));
    let common_name = setting.authority.issue("zoe.test", &[], |_| {});
    let mut common_name = Client::connect(&program, &setting.config(&common_name)).unwrap();
    assert_eq!(ask(&mut first, target), 0);
    let _first_target = accept(&listener);
    assert_eq!(ask(&mut second, target), 1);
    let refused = program.line("end=denied");
    assert!(
        refused.contains("user_max_conns") && refused.contains("user=\"Ann.test\""),
        "{refused}"
    );
    assert_eq!(ask(&mut other, target), 2);
    assert!(program.line("end=denied").contains("target_rule"));
    assert_eq!(ask(&mut zoe, target), 2);
    let refused = program.line("end=denied");
    assert!(
        refused.contains("target_rule") && refused.contains("user=\"Zoe.test\""),
        "{refused}"
    );
    assert_eq!(ask(&mut free, target), 0);
    // A common name is no name of a host, so its case has a meaning.
    assert_eq!(ask(&mut common_name, target), 0);
}

#[test]
fn with_passwords_the_user_is_the_one_with_the_password() {
    let setting = Setting::new();
    let arguments = setting.arguments(&["--auth", "ann:secret"]);
    let mut program = Program::proxy("socks5", &arguments);
    let (listener, target) = listen();
    let issued = setting.authority.host("cert.test", 1);
    // A certificate does not replace the password.
    let mut client = Client::connect(&program, &setting.config(&issued)).unwrap();
    client.send(&[5, 1, 0]);
    assert_eq!(client.receive(2), [5, 0xff]);
    let refused = record(&mut program);
    assert!(
        refused.contains("client_cert=cert.test") && !refused.contains("user="),
        "{refused}"
    );
    let mut client = Client::connect(&program, &setting.config(&issued)).unwrap();
    client.send(b"\x05\x01\x02\x01\x03ann\x06secret");
    assert_eq!(client.receive(4), [5, 2, 1, 0]);
    client.send(&socks5(target)[3..]);
    assert_eq!(client.receive(10)[..2], [5, 0]);
    drop(accept(&listener));
    client.finish();
    let record = record(&mut program);
    assert!(
        record.contains(" user=ann ") && record.contains(" client_cert=cert.test "),
        "{record}"
    );
    // A password does not replace the certificate either.
    attempt(&program, &Config::new(&setting.pair)).unwrap_err();
}

#[test]
fn users_who_differ_only_in_capitals_are_refused_with_certificates() {
    let setting = Setting::new();
    let [_, certificate, _, key] = setting.pair.arguments();
    let text = format!(
        "[[service]]\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\ntls_cert = \"{certificate}\"\n\
         tls_key = \"{key}\"\ntls_client_ca = \"{}\"\n\
         [[user]]\nname = \"a.test\"\n[[user]]\nname = \"A.test\"\n",
        setting.file.path()
    );
    let file = TextFile::new(&text);
    let path = file.path();
    let stderr = refused_to_start(&["run", "-c", path]);
    let expected = format!("{path}:10:8: name: differs from the one at {path}:8:8 only in capitals");
    assert!(stderr.contains(&expected), "{stderr}");
}
