//! CAs, lists of revoked certificates and rules that change while the program runs.

use super::*;

/// Returns a configuration of a forwarder with these files.
pub(super) fn config(setting: &Setting, more: &str) -> String {
    let [_, certificate, _, key] = setting.pair.arguments();
    format!(
        "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nname = \"a\"\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nto = \"{}\"\ntls_cert = \"{certificate}\"\ntls_key = \"{key}\"\n{more}\n",
        echo("127.0.0.1:0"),
    )
}

#[test]
fn a_revoked_client_cannot_resume_the_session_that_it_had() {
    let setting = Setting::new();
    let crl = TextFile::new(&setting.authority.revoke(&[], 2900));
    let more = format!(
        "tls_client_ca = \"{}\"\ntls_client_crl = \"{}\"",
        setting.file.path(),
        crl.path()
    );
    let file = TextFile::new(&config(&setting, &more));
    let mut program = Program::run(&file);
    let issued = setting.authority.host("b.test", 7);
    let configs = VERSIONS.map(|versions| setting.config(&issued).versions(versions));
    for config in &configs {
        for _ in 0..2 {
            let mut client = Client::connect(&program, config).unwrap();
            assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
            assert!(!client.is_resumed());
        }
    }
    crl.write(&setting.authority.revoke(&[7], 2900));
    let line = program.reload();
    assert!(line.contains("changed a"), "{line}");
    for config in &configs {
        attempt(&program, config).unwrap_err();
        assert!(program.line("end=denied").contains("tls_client_revoked"));
    }
}

#[test]
fn a_session_from_before_certificates_were_required_is_not_resumed() {
    let setting = Setting::new();
    let plain = config(&setting, "");
    let file = TextFile::new(&plain);
    let mut program = Program::run(&file);
    let configs = VERSIONS.map(|versions| Config::new(&setting.pair).versions(versions));
    let is_resumed = |program: &Program, config| {
        let mut client = Client::connect(program, config).unwrap();
        assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
        client.is_resumed()
    };
    for config in &configs {
        assert_eq!([0; 2].map(|_| is_resumed(&program, config)), [false, true]);
    }
    file.write(&format!("{plain}tls_client_ca = \"{}\"\n", setting.file.path()));
    program.reload();
    for config in &configs {
        attempt(&program, config).unwrap_err();
        assert!(program.line("end=denied").contains("tls_client_none"));
    }
    file.write(&plain);
    program.reload();
    for config in &configs {
        attempt(&program, config).unwrap();
        assert!(is_resumed(&program, config));
    }
}

#[test]
fn a_broken_file_of_a_ca_or_of_a_list_leaves_the_old_ones_in_force() {
    let setting = Setting::new();
    let crl = TextFile::new(&setting.authority.revoke(&[7], 2900));
    let more = format!(
        "tls_client_ca = \"{}\"\ntls_client_crl = \"{}\"",
        setting.file.path(),
        crl.path()
    );
    let file = TextFile::new(&config(&setting, &more));
    let mut program = Program::run(&file);
    for broken in [&setting.file, &crl] {
        let good = std::fs::read_to_string(broken.path()).unwrap();
        broken.write("broken");
        let line = program.reload();
        assert!(
            line.contains("the previous settings stay in force") && line.contains(broken.path()),
            "{line}"
        );
        attempt(&program, &setting.config(&setting.authority.host("b.test", 8))).unwrap();
        attempt(&program, &setting.config(&setting.authority.host("b.test", 7))).unwrap_err();
        broken.write(&good);
    }
    // Another CA replaces the first one.
    let other = Authority::new("other");
    setting.file.write(&other.pem);
    crl.write(&other.revoke(&[], 2900));
    program.reload();
    attempt(&program, &setting.config(&other.host("b.test", 7))).unwrap();
    attempt(&program, &setting.config(&setting.authority.host("b.test", 8))).unwrap_err();
}
