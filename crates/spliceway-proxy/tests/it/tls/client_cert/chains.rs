//! The certificates of CAs, what clients send after their own certificates, and CRLs.

use rcgen::{GeneralSubtree, KeyUsagePurpose, NameConstraints};

use super::*;

#[test]
fn a_certificate_of_no_ca_is_no_authority() {
    let setting = Setting::new();
    let target = refusing().to_string();
    let own = setting.pair.arguments();
    let issued = setting.authority.host("b.test", 1);
    let other_use = Authority::changed("CA", |params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
    for (pem, why) in [
        (&issued.chain, "its basicConstraints do not have CA:TRUE"),
        (&other_use.pem, "its keyUsage does not have keyCertSign"),
    ] {
        // The first certificate of the file is that of a CA.
        let file = TextFile::new(&format!("{}{pem}", setting.authority.pem));
        let arguments = [
            "forward",
            "-l",
            "127.0.0.1:0",
            "-r",
            &target,
            "--tls-client-ca",
            file.path(),
        ];
        let stderr = refused_to_start(&[&arguments[..], &own].concat());
        let line = setting.authority.pem.lines().count() + 1;
        for part in [&format!("{}:{line}: ", file.path()), why, "expected that of the CA"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    }
}

#[test]
fn an_expired_ca_is_a_warning() {
    let setting = Setting::new();
    let old = Authority::changed("CA", |params| params.not_after = date_time_ymd(2001, 2, 3));
    setting.file.write(&old.pem);
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
    let warning = format!(
        "--tls-client-ca: {}:1: the certificate of the CA has expired at 2001-02-03T00:00:00Z",
        setting.file.path()
    );
    assert_eq!(program.lines_with(&warning), 1);
    let issued = setting.authority.host("b.test", 1);
    attempt(&program, &setting.config(&issued)).unwrap_err();
    attempt(&program, &setting.config(&old.host("b.test", 1))).unwrap();
}

#[test]
fn the_newest_list_of_a_ca_is_in_force() {
    let setting = Setting::new();
    let of = |number, serials: &[u64]| setting.authority.revoke_again(number, serials, 2900);
    let [old, new] = [(1, &[][..]), (2, &[7])].map(|(number, serials)| TextFile::new(&of(number, serials)));
    let both = TextFile::new(&(of(1, &[]) + &of(2, &[7])));
    for files in [&[&old, &new][..], &[&new, &old], &[&both]] {
        let crls = files.iter().flat_map(|file| ["--tls-client-crl", file.path()]);
        let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&crls.collect::<Vec<_>>()));
        attempt(&program, &setting.config(&setting.authority.host("b.test", 7))).unwrap_err();
        assert!(record(&mut program).contains("tls_client_revoked"));
        attempt(&program, &setting.config(&setting.authority.host("b.test", 8))).unwrap();
    }
}

#[test]
fn a_client_may_repeat_its_chain_but_not_send_many_cas_with_one_name() {
    let setting = Setting::new();
    let between = setting.authority.intermediate("between");
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
    let mut issued = between.host("b.test", 1);
    issued.chain += &between.pem.repeat(20);
    issued.chain += &setting.authority.pem;
    attempt(&program, &setting.config(&issued)).unwrap();
    record(&mut program);
    for _ in 0..3 {
        issued.chain += &Authority::new("between").pem;
    }
    for versions in VERSIONS {
        attempt(&program, &setting.config(&issued).versions(versions)).unwrap_err();
        let record = record(&mut program);
        assert!(
            record.contains("denied:tls_client_cert") && record.contains("repeat the subject of another"),
            "{record}"
        );
    }
}

#[test]
fn a_ca_for_some_names_chooses_no_common_name() {
    let setting = Setting::new();
    let between = setting.authority.intermediate_changed("between", |params| {
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("b.test".to_owned())],
            excluded_subtrees: vec![],
        });
    });
    let rules = ["--tls-client-allow", "CN:root", "--tls-client-allow", "DNS:*.b.test"];
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&rules));
    let of = |names: &[_]| {
        let mut issued = between.issue("root", names, |_| {});
        issued.chain += &between.pem;
        issued
    };
    attempt(&program, &setting.config(&of(&[]))).unwrap_err();
    assert!(record(&mut program).contains("denied:tls_client_rule"));
    attempt(&program, &setting.config(&of(&[dns("a.b.test")]))).unwrap();
    assert!(record(&mut program).contains(" user=a.b.test "));
    attempt(&program, &setting.config(&of(&[dns("a.c.test")]))).unwrap_err();
    record(&mut program);
    // Without the restriction, the common name may be used.
    attempt(&program, &setting.config(&setting.authority.issue("root", &[], |_| {}))).unwrap();
    assert!(record(&mut program).contains(" user=root "));
}
