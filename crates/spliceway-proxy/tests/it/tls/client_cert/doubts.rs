//! What is doubtful about CRLs: what the operator is told, and what becomes of clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use spliceway_net::has_tool;

use super::changed::config;
use super::*;

/// The names of the CAs whose clients are tried.
const CAS: [&str; 2] = ["CA", "other"];

/// Files with CAs and with CRLs, and what is expected of them.
struct Case<'a> {
    cas: String,
    crls: String,
    /// The key, the line, and words of each warning. The check and the verdict of `doctor`.
    warnings: &'a [(&'static str, usize, &'static str, &'static str)],
    /// Whether clients of each CA are accepted.
    accepted: [bool; 2],
}

fn cases(ca: &Authority, other: &Authority) -> [Case<'static>; 6] {
    let (valid, line) = (ca.revoke(&[7], 2900), ca.pem.lines().count() + 1);
    assert_eq!(line, 11, "the lines below depend on it");
    let both = ca.pem.clone() + &other.pem;
    let case = |cas: &str, crls: &str, warnings, accepted| Case {
        cas: cas.to_owned(),
        crls: crls.to_owned(),
        warnings,
        accepted,
    };
    [
        case(&ca.pem, &valid, &[], [true, false]),
        case(&both, &(other.revoke(&[], 2901) + &valid), &[], [true, true]),
        case(
            &ca.pem,
            &ca.revoke(&[], 2002),
            &[(
                "tls_client_crl",
                1,
                "the CRL has expired at 2002-01-01T00:00:00Z",
                "fault",
            )],
            [false, false],
        ),
        case(
            &ca.pem,
            &Authority::new("CA").revoke(&[], 2900),
            &[(
                "tls_client_crl",
                1,
                "the key of the CA \"CN=CA\" in tls_client_ca does not verify",
                "fault",
            )],
            [false, false],
        ),
        case(
            &both,
            &valid,
            &[(
                "tls_client_ca",
                11,
                "the CA \"CN=other\" has no CRL, and the clients of this CA",
                "warning",
            )],
            [true, false],
        ),
        case(
            &ca.pem,
            &other.revoke(&[], 2900),
            &[
                (
                    "tls_client_crl",
                    1,
                    "the CRL is of \"CN=other\", which is not in tls_client_ca",
                    "warning",
                ),
                (
                    "tls_client_ca",
                    1,
                    "the CA \"CN=CA\" has no CRL, and the clients of this CA",
                    "warning",
                ),
            ],
            [false, false],
        ),
    ]
}

/// Returns cases with a CRL for a later time. The client has number 8.
fn early_cases(ca: &Authority) -> [Case<'static>; 2] {
    const EARLY: &str = "the CRL is for a time from 2800-01-01T00:00:00Z on, and does not count before";
    const MISSING: &str = "the CA \"CN=CA\" has no CRL, and the clients of this CA";
    let early = ca.revoke_between(&[8], [2800, 2900]);
    let both = early.clone() + &ca.revoke(&[7], 2900);
    [
        Case {
            cas: ca.pem.clone(),
            crls: early,
            warnings: &[
                ("tls_client_crl", 1, EARLY, "warning"),
                ("tls_client_ca", 1, MISSING, "warning"),
            ],
            accepted: [false, false],
        },
        Case {
            cas: ca.pem.clone(),
            crls: both,
            warnings: &[("tls_client_crl", 1, EARLY, "warning")],
            accepted: [true, false],
        },
    ]
}

/// Returns what a command of the program prints about a configuration.
fn said(arguments: &[&str], file: &TextFile) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(arguments).arg(file.path()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_crl_that_refuses_clients_is_named_by_check_start_and_doctor() {
    let setting = Setting::new();
    let other = Authority::new("other");
    let crl = TextFile::new("");
    let more = format!(
        "tls_client_ca = \"{}\"\ntls_client_crl = \"{}\"",
        setting.file.path(),
        crl.path()
    );
    let file = TextFile::new(&config(&setting, &more));
    let early = early_cases(&setting.authority);
    for case in cases(&setting.authority, &other).into_iter().chain(early) {
        setting.file.write(&case.cas);
        crl.write(&case.crls);
        let (code, checked) = said(&["check", "-c"], &file);
        assert_eq!(code, Some(0), "{checked}");
        assert_eq!(
            checked.matches(": tls_client_c").count(),
            case.warnings.len(),
            "{checked}"
        );
        let mut program = Program::run(&file);
        for (key, line, words, _) in case.warnings {
            let path = if *key == "tls_client_ca" {
                setting.file.path()
            } else {
                crl.path()
            };
            let warning = format!(": {key}: {path}:{line}: {words}");
            assert!(checked.contains(&warning), "{warning}: {checked}");
            assert_eq!(program.lines_with(&warning), 1, "{warning}");
        }
        for (of, is_accepted) in [&setting.authority, &other].into_iter().zip(case.accepted) {
            let attempted = attempt(&program, &setting.config(&of.host("b.test", 8)));
            assert_eq!(attempted.is_ok(), is_accepted, "{:?}: {attempted:?}", case.warnings);
        }
        drop(program);
        let (code, found) = said(&["doctor", "--json", "--tls"], &file);
        let is_faulty = case.warnings.iter().any(|warning| warning.3 == "fault");
        assert_eq!(code, Some(is_faulty.into()), "{found}");
        let found: Value = serde_json::from_str(&found).unwrap();
        for (key, line, words, verdict) in case.warnings {
            let check = if *key == "tls_client_ca" { "client-ca" } else { "crl" };
            let named =
                |one: &&Value| one["check"] == check && one["observed"].to_string().contains(&format!(":{line}: "));
            let one = found["checks"].as_array().unwrap().iter().find(named);
            let one = one.unwrap_or_else(|| panic!("{words}: {found}"));
            let text = one["observed"].as_str().unwrap();
            assert!(text.contains(words), "{words}: {text}");
            assert_eq!(one["decides"], *verdict == "fault", "{one}");
        }
    }
}

#[test]
fn openssl_accepts_the_same_clients_with_the_same_crls() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let (ca, other) = (Authority::new("CA"), Authority::new("other"));
    for case in cases(&ca, &other).into_iter().chain(early_cases(&ca)) {
        let (cas, crls) = (TextFile::new(&case.cas), TextFile::new(&case.crls));
        for ((of, name), is_accepted) in [&ca, &other].into_iter().zip(CAS).zip(case.accepted) {
            let client = TextFile::new(&of.host("b.test", 8).chain);
            let mut openssl = Command::new("openssl");
            openssl.args([
                "verify",
                "-crl_check_all",
                "-CAfile",
                cas.path(),
                "-CRLfile",
                crls.path(),
            ]);
            let output = openssl.arg(client.path()).output().unwrap();
            assert_eq!(
                output.status.success(),
                is_accepted,
                "{name}, {:?}: {output:?}",
                case.warnings
            );
        }
    }
}

#[test]
fn a_reload_and_a_changed_file_warn_of_an_expired_crl() {
    let setting = Setting::new();
    let crl = TextFile::new(&setting.authority.revoke(&[], 2900));
    let more = format!(
        "tls_client_ca = \"{}\"\ntls_client_crl = \"{}\"",
        setting.file.path(),
        crl.path()
    );
    let file = TextFile::new(&config(&setting, &more));
    let mut program = Program::run(&file);
    crl.write(&setting.authority.revoke(&[], 2002));
    program.reload();
    let warning = format!("{}:1: the CRL has expired at 2002-01-01", crl.path());
    assert_eq!(program.lines_with(&warning), 1);
    // The program looks at the files by itself, too.
    crl.write(&setting.authority.revoke(&[], 2003));
    program.line(&format!("{}:1: the CRL has expired at 2003-01-01", crl.path()));
}

#[test]
fn the_crl_of_a_ca_between_is_no_mistake() {
    let setting = Setting::new();
    let between = setting.authority.intermediate("between");
    let crl = TextFile::new(&(setting.authority.revoke(&[], 2900) + &between.revoke(&[], 2900)));
    let mut program = Program::forward(
        echo("127.0.0.1:0"),
        &setting.arguments(&["--tls-client-crl", crl.path()]),
    );
    let mut issued = between.host("a.test", 5);
    issued.chain.push_str(&between.pem);
    attempt(&program, &setting.config(&issued)).unwrap();
    assert_eq!(program.lines_with("tls-client-c"), 0);
}

#[test]
fn doctor_names_each_file_for_clients() {
    let setting = Setting::new();
    let [crl, old, keys] = [(); 3].map(|()| TextFile::new(""));
    crl.write(&setting.authority.revoke_again(2, &[7], 2900));
    old.write(&setting.authority.revoke_again(1, &[], 2900));
    let more = format!(
        "tls_client_ca = \"{}\"\ntls_client_crl = [\"{}\", \"{}\"]",
        setting.file.path(),
        crl.path(),
        old.path()
    );
    let file = TextFile::new(&config(&setting, &more));
    let (code, text) = said(&["doctor", "-v", "--tls"], &file);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "[client-ca] line 1: the CA \"CN=CA\"; its certificate expires at 4096-01-01T00:00:00Z",
        "[crl] line 1: \"CN=CA\" has revoked 1 certificate; the CRL expires at 2900-01-01T00:00:00Z",
        "[crl] the file has only CRLs that newer ones in other files replace: remove it",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Each file that cannot be used is named, and not only the first one.
    setting.file.write("nothing");
    old.write("nothing");
    let (code, text) = said(&["doctor", "-v", "--tls"], &file);
    assert_eq!((code, text.matches("\nfault ").count()), (Some(1), 2), "{text}");
    fs::set_permissions(&keys.0, PermissionsExt::from_mode(0o600)).unwrap();
    let file = TextFile::new(&config(&setting, &format!("tls_ticket_key = \"{}\"", keys.path())));
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n";
    for (text, expected) in [
        (key.to_owned(), "[ticket-keys] 1 key, which encrypts"),
        (key.repeat(2), "[ticket-keys] 2 keys: the first one encrypts"),
        (format!("{key}abc\n"), ":2: the line is no ticket key"),
    ] {
        keys.write(&text);
        let (_, found) = said(&["doctor", "-v", "--tls"], &file);
        let found = found.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(found.contains(expected), "{expected}: {found}");
    }
}
