//! Clients with certificates.

mod authority;
mod chains;
mod changed;
mod doubts;
mod header;
mod revoked;
mod routes;
mod users;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};

use super::client::{Client, Config, Pair, TLS12, TLS13};
use crate::admin::Socket;
use crate::harness::{Program, TextFile, accept, echo, listen, refused_to_start, refusing, was_reached};
pub(crate) use authority::{Authority, dns};
use authority::{Issued, email, uri};

const VERSIONS: [&[&rustls::SupportedProtocolVersion]; 2] = [TLS12, TLS13];

/// A CA in a file, and the certificate of a server.
struct Setting {
    authority: Authority,
    file: TextFile,
    pair: Pair,
}

impl Setting {
    fn new() -> Self {
        let authority = Authority::new("CA");
        let file = TextFile::new(&authority.pem);
        Self {
            authority,
            file,
            pair: Pair::new(&["a.test"]),
        }
    }

    /// Returns the arguments of a service that asks for certificates.
    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let own = self.pair.arguments();
        [&own[..], &["--tls-client-ca", self.file.path()], more].concat()
    }

    fn config(&self, issued: &Issued) -> Config {
        Config::new(&self.pair).client_cert(&issued.chain, &issued.key)
    }
}

/// Connects, and exchanges bytes with an echo. A client of TLS 1.3 learns only after its handshake
/// that it is refused.
fn attempt(program: &Program, config: &Config) -> Result<(), String> {
    let mut client = Client::connect(program, config).map_err(|error| error.to_string())?;
    match client.exchange(b"abc") {
        Ok(echoed) => assert_eq!(echoed, b"abc"),
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
}

/// Returns a record without its quotes.
fn record(program: &mut Program) -> String {
    program.line("end=").replace('"', "")
}

#[test]
fn a_client_with_a_certificate_is_served_and_recorded_with_each_version() {
    let setting = Setting::new();
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
    let issued = setting.authority.host("Client.test", 7);
    for versions in VERSIONS {
        attempt(&program, &setting.config(&issued).versions(versions)).unwrap();
        let record = record(&mut program);
        for field in [
            " user=client.test ",
            &format!(" client_cert=client.test client_cert_sha256={} ", issued.fingerprint),
        ] {
            assert!(record.contains(field), "{field}: {record}");
        }
    }
    let metrics = program.get("/metrics");
    assert!(!metrics.contains("client.test") && !metrics.contains(&issued.fingerprint));
}

/// A certificate, the alert that its client gets, the reason, and a part of the cause.
type Wrong = (Option<Issued>, &'static str, &'static str, &'static str);

/// Returns certificates for `a.good.test` of which each is wrong in one way, and one for another
/// name. The CA has revoked number 7.
fn wrong_certificates(authority: &Authority) -> [Wrong; 9] {
    let changed = |change: fn(&mut CertificateParams)| Some(authority.issue("cn", &[dns("a.good.test")], change));
    let expired = changed(|params| params.not_after = date_time_ymd(2001, 2, 3));
    let early = changed(|params| params.not_before = date_time_ymd(2900, 2, 3));
    let of_server = changed(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let of_authority = changed(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let revoked = Some(authority.host("a.good.test", 7));
    let unknown = Some(Authority::new("other").host("a.good.test", 8));
    let without_chain = Some(authority.intermediate("between").host("a.good.test", 5));
    let other_name = Some(authority.host("bad.test", 9));
    let invalid = "tls_client_cert";
    [
        (None, "CertificateRequired", "tls_client_none", "has no certificate"),
        (
            expired,
            "CertificateExpired",
            invalid,
            "expired at 2001-02-03T00:00:00Z",
        ),
        (
            early,
            "CertificateExpired",
            invalid,
            "not valid before 2900-02-03T00:00:00Z",
        ),
        (of_authority, "CertificateUnknown", invalid, "is that of a CA"),
        (
            of_server,
            "UnsupportedCertificate",
            invalid,
            "extended key usage clientAuth",
        ),
        (revoked, "CertificateRevoked", "tls_client_revoked", "is revoked"),
        (unknown, "UnknownCA", invalid, "no CA in tls_client_ca has issued"),
        (
            without_chain,
            "UnknownCA",
            invalid,
            "does not send the certificates between",
        ),
        (
            other_name,
            "AccessDenied",
            "tls_client_rule",
            "no rule of tls_client_allow",
        ),
    ]
}

#[test]
fn each_wrong_certificate_has_its_alert_its_reason_and_its_cause() {
    let setting = Setting::new();
    let authority = &setting.authority;
    let (listener, target) = listen();
    let crl = TextFile::new(&authority.revoke(&[7], 2900));
    let arguments = setting.arguments(&["--tls-client-crl", crl.path(), "--tls-client-allow", "DNS:*.good.test"]);
    let mut program = Program::forward(target, &arguments);
    let good = authority.host("a.good.test", 10);
    drop(Client::connect(&program, &setting.config(&good)).unwrap());
    drop(accept(&listener));
    record(&mut program);
    for (issued, alert, reason, cause) in wrong_certificates(authority) {
        for versions in VERSIONS {
            let config = match &issued {
                Some(issued) => setting.config(issued),
                None => Config::new(&setting.pair),
            };
            let error = attempt(&program, &config.versions(versions)).unwrap_err();
            assert!(error.contains(alert), "{alert}: {error}");
            let record = record(&mut program);
            assert!(record.contains(&format!("denied:{reason}")), "{reason}: {record}");
            assert!(record.contains(cause), "{cause}: {record}");
            if let Some(issued) = &issued {
                assert!(record.contains(&issued.fingerprint), "{record}");
            }
            assert!(!record.contains(" user="), "{record}");
        }
        assert!(program.sum("spliceway_refused_total", &[&format!("\"{reason}\"")]) >= 2);
    }
    assert!(!was_reached(&listener));
}

#[test]
fn a_chain_with_an_intermediate_is_verified_whole() {
    let setting = Setting::new();
    let between = setting.authority.intermediate("between");
    let mut issued = between.host("a.test", 5);
    issued.chain.push_str(&between.pem);
    let program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
    attempt(&program, &setting.config(&issued)).unwrap();
    // With a list of the root only, it is unknown whether the intermediate has revoked it.
    let root = TextFile::new(&setting.authority.revoke(&[], 2900));
    let mut program = Program::forward(
        echo("127.0.0.1:0"),
        &setting.arguments(&["--tls-client-crl", root.path()]),
    );
    attempt(&program, &setting.config(&issued)).unwrap_err();
    assert!(record(&mut program).contains("expected a CRL of each CA"));
    // Both lists may be in one file.
    root.write(&(setting.authority.revoke(&[], 2900) + &between.revoke(&[], 2901)));
    let program = Program::forward(
        echo("127.0.0.1:0"),
        &setting.arguments(&["--tls-client-crl", root.path()]),
    );
    attempt(&program, &setting.config(&issued)).unwrap();
    let expires = program.sum("spliceway_tls_crl_expires_seconds", &[root.path()]);
    assert_eq!(expires, 29_348_006_400);
}

#[test]
fn an_expired_list_of_revoked_certificates_refuses_clients_and_says_so() {
    let setting = Setting::new();
    let crl = TextFile::new(&setting.authority.revoke(&[], 2002));
    let socket = Socket::new();
    let arguments = ["--tls-client-crl", crl.path(), "--admin", &socket.address()];
    let mut program = Program::forward(refusing(), &setting.arguments(&arguments));
    let (_, status) = socket.ask("GET", "/v1/status");
    let shown = &status["services"][0]["tls"]["crl"];
    assert_eq!(
        (&shown["file"], &shown["expires"]),
        (&crl.path().into(), &"2002-01-01T00:00:00Z".into())
    );
    assert!(shown["expires_in_seconds"].as_i64().unwrap() < 0, "{shown}");
    let text = String::from_utf8(socket.command(&["status"]).stdout).unwrap();
    assert!(
        text.contains(&format!("\n  TLS: the CRL {} has expired ", crl.path())),
        "{text}"
    );
    for versions in VERSIONS {
        attempt(
            &program,
            &setting.config(&setting.authority.host("a.test", 1)).versions(versions),
        )
        .unwrap_err();
        let record = record(&mut program);
        assert!(
            record.contains("denied:tls_client_cert") && record.contains("expired at 2002-01-01T00:00:00Z"),
            "{record}"
        );
    }
}

#[test]
fn an_optional_certificate_may_be_missing_but_not_wrong() {
    let setting = Setting::new();
    let arguments = setting.arguments(&["--tls-client-verify", "optional"]);
    let mut program = Program::forward(echo("127.0.0.1:0"), &arguments);
    for versions in VERSIONS {
        attempt(&program, &Config::new(&setting.pair).versions(versions)).unwrap();
        let without = record(&mut program);
        assert!(
            !without.contains("client_cert") && !without.contains("user="),
            "{without}"
        );
        let issued = setting.authority.host("b.test", 1);
        attempt(&program, &setting.config(&issued).versions(versions)).unwrap();
        assert!(record(&mut program).contains(" user=b.test "));
        let wrong = Authority::new("other").host("b.test", 1);
        attempt(&program, &setting.config(&wrong).versions(versions)).unwrap_err();
        assert!(record(&mut program).contains("denied:tls_client_cert"));
    }
}

#[test]
fn rules_for_optional_certificates_come_with_a_warning() {
    let setting = Setting::new();
    for (when, warnings) in [("optional", 1), ("required", 0)] {
        let rules = ["--tls-client-verify", when, "--tls-client-allow", "CN:Ann"];
        let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&rules));
        let without = attempt(&program, &Config::new(&setting.pair));
        assert_eq!(without.is_ok(), when == "optional", "{without:?}");
        let warning = "--tls-client-allow: does not apply to clients without a certificate";
        assert_eq!(program.lines_with(warning), warnings);
    }
}

#[test]
fn rules_permit_names_and_fingerprints() {
    let setting = Setting::new();
    let issue = |name| setting.authority.issue("Ann", &[name], |_| {});
    let exact = issue(uri("urn://x"));
    let fingerprint = format!("SHA256:{}", exact.fingerprint.to_uppercase());
    let rules = ["EMAIL:*@b.test", "URI:spiffe://b.test/*", &fingerprint];
    let rules: Vec<_> = rules.iter().flat_map(|rule| ["--tls-client-allow", rule]).collect();
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&rules));
    for (issued, is_permitted) in [
        (issue(email("x@b.test")), true),
        (issue(email("x@c.test")), false),
        (issue(uri("spiffe://b.test/a")), true),
        (issue(uri("spiffe://c.test/a")), false),
        (exact, true),
        (issue(uri("urn://x")), false),
    ] {
        let result = attempt(&program, &setting.config(&issued));
        assert_eq!(result.is_ok(), is_permitted, "{result:?}");
        assert_eq!(record(&mut program).contains("denied:tls_client_rule"), !is_permitted);
    }
}

#[test]
fn names_that_could_forge_a_record_are_replaced_by_the_fingerprint() {
    let setting = Setting::new();
    let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
    let long = "x".repeat(4000);
    for name in ["a\nend=ok", "a\0b", "\u{1b}[31m", "a\" user=\"root", &long, ""] {
        let issued = setting.authority.issue("", &[], |params| {
            params.distinguished_name.push(DnType::CommonName, name);
        });
        attempt(&program, &setting.config(&issued)).unwrap();
        let record = record(&mut program);
        let known = format!("SHA256:{}", issued.fingerprint);
        assert!(record.contains(&format!(" user={known} ")), "{name:?}: {record}");
        assert!(record.len() < 1000 && record.is_ascii(), "{name:?}: {record}");
    }
}

#[test]
fn wrong_settings_are_refused_at_the_start_with_their_place() {
    let setting = Setting::new();
    let broken = TextFile::new("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let damaged = TextFile::new("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    let target = refusing().to_string();
    let arguments = ["forward", "-l", "127.0.0.1:0", "-r", &target];
    for (more, parts) in [
        (
            vec!["--tls-client-allow", "DNS:a..b"],
            ["--tls-client-allow", "character 7: expected a name"],
        ),
        (
            vec!["--tls-client-crl", setting.file.path()],
            ["--tls-client-crl: ", "BEGIN X509 CRL"],
        ),
        (
            vec!["--tls-client-crl", damaged.path()],
            [
                "--tls-client-crl: ",
                ":1: the list of revoked certificates is damaged (trailing data): copy the file again",
            ],
        ),
        (
            vec!["--tls-client-ca", broken.path()],
            ["--tls-client-ca: ", "the certificate is damaged"],
        ),
        (
            vec!["--tls-client-ca", setting.pair.key.path()],
            ["--tls-client-ca: ", "there is a private key"],
        ),
    ] {
        let stderr = refused_to_start(&[&arguments[..], &setting.arguments(&more)].concat());
        // The file or the rule is named.
        for part in parts.iter().chain(&more[1..]) {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
    }
    let own = setting.pair.arguments();
    let stderr = refused_to_start(&[&arguments[..], &own, &["--tls-client-allow", "CN:a"]].concat());
    assert!(stderr.contains("--tls-client-ca <FILE>"), "{stderr}");
}
