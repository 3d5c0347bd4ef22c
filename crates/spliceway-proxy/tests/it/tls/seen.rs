//! What operators see of TLS.

use crate::admin::Socket;
use crate::harness::{Program, TextFile, connect, echo, refusing};
use std::io::Write;
use std::process::Command;

use super::client::{Client, Config, Pair, TLS12, TLS13};
use super::renewed::config;

const HANDSHAKES: &str = "spliceway_tls_handshakes_total";
const FAILURES: &str = "spliceway_tls_handshake_failures_total";

#[test]
fn handshakes_are_counted_by_what_they_agree_on_and_by_failure() {
    let pair = Pair::new(&["a.test"]);
    let arguments = [&["--tls-unknown-name", "refuse"], &pair.arguments()[..]].concat();
    let program = Program::forward(echo("127.0.0.1:0"), &arguments);
    let answer = program.get("/metrics");
    for series in [
        "spliceway_tls_handshakes_total{service=\"forward\",version=\"1.3\",resumed=\"no\",client_cert=\"no\"} 0\n",
        "spliceway_tls_handshake_failures_total{service=\"forward\",reason=\"timeout\"} 0\n",
        "spliceway_tls_handshake_seconds_count 0\n",
        "spliceway_tls_certificates{service=\"forward\"} 1\n",
        "spliceway_tls_certificates_stale{service=\"forward\"} 0\n",
    ] {
        assert!(answer.contains(series), "{series}{answer}");
    }
    for versions in [TLS12, TLS13] {
        let config = Config::new(&pair).versions(versions);
        for _ in 0..2 {
            let mut client = Client::connect(&program, &config).unwrap();
            assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
        }
    }
    for labels in [
        ["version=\"1.2\"", "resumed=\"no\""],
        ["version=\"1.2\"", "resumed=\"yes\""],
        ["version=\"1.3\"", "resumed=\"no\""],
        ["version=\"1.3\"", "resumed=\"yes\""],
    ] {
        assert_eq!(program.sum(HANDSHAKES, &labels), 1, "{labels:?}");
    }
    assert_eq!(program.sum("spliceway_tls_handshake_seconds_count", &[]), 4);
    assert_eq!(program.sum(FAILURES, &[]), 0);
    // The client expects another name, states an unknown one, speaks no TLS, or leaves.
    let other = Config::new(&pair).name(Some("c.test")).name(None);
    let unknown = Config::anything().name(Some("b.test"));
    assert!(Client::connect(&program, &other).is_err());
    assert!(Client::connect(&program, &unknown).is_err());
    connect(program.address).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(connect(program.address));
    for reason in ["certificate_refused", "unknown_name", "malformed", "closed"] {
        program.await_sum(FAILURES, &[&format!("reason=\"{reason}\"")], 1);
    }
    assert_eq!(program.sum(FAILURES, &[]), 4);
    assert_eq!(program.sum(HANDSHAKES, &[]), 4);
}

#[test]
fn a_client_that_is_silent_is_counted_as_a_timeout() {
    let pair = Pair::new(&["a.test"]);
    let arguments = [&["--handshake-timeout", "1s"], &pair.arguments()[..]].concat();
    let program = Program::socks5(&arguments);
    let silent = connect(program.address);
    program.await_sum(FAILURES, &["reason=\"timeout\""], 1);
    drop(silent);
}

#[test]
fn metrics_show_the_certificates_that_end_first() {
    let pairs: Vec<_> = (0..40).map(|_| Pair::new(&["a.test"])).collect();
    let arguments: Vec<_> = pairs.iter().flat_map(Pair::arguments).collect();
    let program = Program::forward(echo("127.0.0.1:0"), &arguments);
    let answer = program.get("/metrics");
    let series = "\nspliceway_tls_certificate_expires_seconds{service=\"forward\",file=\"";
    assert_eq!(answer.matches(series).count(), 32, "{answer}");
    assert_eq!(program.sum("spliceway_tls_certificates", &[]), 40);
}

#[test]
fn a_program_without_tls_has_no_series_about_it() {
    let answer = Program::forward(echo("127.0.0.1:0"), &[]).get("/metrics");
    assert!(!answer.contains("tls"), "{answer}");
}

#[test]
fn the_status_shows_certificates_and_the_sessions_their_version() {
    let (pair, socket) = (Pair::new(&["a.test"]), Socket::new());
    let address = socket.address();
    let arguments = [&["--admin", &address], &pair.arguments()[..]].concat();
    let program = Program::forward(echo("127.0.0.1:0"), &arguments);
    let mut client = Client::connect(&program, &Config::new(&pair).versions(TLS12)).unwrap();
    client.send(b"abc");
    assert_eq!(client.receive(3), b"abc");
    let (_, status) = socket.ask("GET", "/v1/status");
    let tls = &status["services"][0]["tls"];
    assert_eq!(
        (&tls["certificates"], &tls["file"]),
        (&1.into(), &pair.certificate.path().into())
    );
    // The certificates of the tests end in the year 4096.
    assert_eq!(tls["expires"], "4096-01-01T00:00:00Z");
    assert!(
        tls["expires_in_seconds"].as_i64().unwrap() > 0 && tls["stale"].is_null(),
        "{tls}"
    );
    let (_, page) = socket.ask("GET", "/v1/sessions");
    assert_eq!(page["sessions"][0]["tls"], "1.2");
    let text = String::from_utf8(socket.command(&["status"]).stdout).unwrap();
    assert!(text.contains("\n  TLS: 1 certificate, it expires in "), "{text}");
}

/// Makes a certificate that has ended.
fn expire(pair: &Pair) {
    let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    pair.certificate.write(&params.self_signed(&key).unwrap().pem());
    pair.key.write(&key.serialize_pem());
}

/// Returns what `spliceway check` says about a file without a fault.
fn checked(file: &TextFile) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(["check", "-c", file.path()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn check_says_what_guards_each_service() {
    let (pair, users) = (
        Pair::new(&["a.test", "b.test", "c.test"]),
        TextFile::new("ann:x\nbob:y\n"),
    );
    let [_, certificate, _, key] = pair.arguments();
    let user = |name: &str, quota: &str| format!("[[user]]\nname = \"{name}\"\nquota = \"{quota}\"\n");
    let text = checked(&TextFile::new(&format!(
        "[limits]\nquota_file = \"/tmp/quotas\"\n{}{}{}\
         [[service]]\nname = \"shop\"\nkind = \"forward\"\nlisten = \":443\"\nto = [\"a:80\", \"b:80\"]\n\
         check = \"http:/\"\ntls_cert = \"{certificate}\"\ntls_key = \"{key}\"\n\
         [[service]]\nname = \"home\"\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         [[service]]\nname = \"lan\"\nkind = \"mixed\"\nlisten = \":2\"\nopen = true\nallow = \"10.0.0.0/8\"\n\
         [[service]]\nkind = \"socks5\"\nlisten = \":1080\"\nauth_file = \"{}\"\n",
        user("ann", "1MB/day"),
        user("bob", "none"),
        user("anne", "none"),
        users.path()
    )));
    for line in [
        "  shop: forward on :443 to a:80, b:80 (least-conn), TLS (a.test and 2 more names), check http:/ every 2s\n",
        "  home: http on 127.0.0.1:0, no users: every client\n",
        "  lan: mixed on :2, no users: every client that allow permits\n",
        "  socks5: socks5 on :1080, 2 users, 1 user with a quota\n",
        ": no service has the user anne, so this table has no effect: did you mean `ann`?\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn check_warns_of_certificates_that_peers_refuse() {
    let pair = Pair::new(&["a.test"]);
    expire(&pair);
    let ended = format!(
        "{}:1: the certificate has expired at 2001-01-01T00:00:00Z",
        pair.certificate.path()
    );
    let text = checked(&config(refusing(), &pair));
    assert!(text.contains(&format!(": tls_cert: {ended}")), "{text}");
    let text = checked(&TextFile::new(&format!(
        "[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"tls://a.test:443\"\n\
         target_tls_cert = \"{}\"\ntarget_tls_key = \"{}\"\n",
        pair.certificate.path(),
        pair.key.path()
    )));
    assert!(text.contains(&format!(": target_tls_cert: {ended}")), "{text}");
}

#[test]
fn check_warns_of_a_route_whose_name_no_certificate_has() {
    let pair = Pair::new(&["a.test", "*.b.test"]);
    let text = checked(&TextFile::new(&format!(
        "[[service]]\nkind = \"sni\"\nlisten = \"127.0.0.1:0\"\ntls_cert = \"{}\"\ntls_key = \"{}\"\nroute = [\n\
         \"A.test=back.test:80,tls=terminate\",\n\"*.b.test=back.test:80,tls=terminate\",\n\"c.test=back.test:80\",\n\
         \"b.test=back.test:80,tls=terminate\",\n\"*.a.test=back.test:80,tls=terminate\"]\n",
        pair.certificate.path(),
        pair.key.path()
    )));
    let why = "terminates TLS, and no certificate has this name";
    assert_eq!(text.matches(why).count(), 2, "{text}");
    for place in [":10:1: route: b.test=", ":11:1: route: *.a.test="] {
        assert!(text.contains(place), "{place}: {text}");
    }
}

#[test]
fn doctor_says_what_is_wrong_with_each_certificate() {
    let (good, bad) = (Pair::new(&["a.test"]), Pair::new(&["b.test"]));
    bad.key.write("nothing");
    let doctor = |pair: &Pair, arguments: &[&str]| {
        let file = config(refusing(), pair);
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let output = command
            .args(["doctor", "-v", "--tls", file.path()])
            .args(arguments)
            .output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = doctor(&good, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("The files of TLS have no fault. See the warnings.\n"),
        "{text}"
    );
    for part in [
        "\nService a\n",
        "\nok           ",
        " [pair]\n             a.test; it expires at 4096-01-01T00:00:00Z\n",
        "\nwarning      ",
        " [roots]\n             clients that use the system's CAs refuse it: \"CN=rcgen",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = doctor(&bad, &[]);
    assert!(code == Some(1) && text.contains("\nfault        "), "{text}");
    assert!(text.contains("there is no private"), "{text}");
    let (code, text) = doctor(&bad, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["tls"]), (Some(1), &false.into()));
    assert_eq!(json["checks"][0]["check"], "pair");
}

#[test]
fn doctor_checks_the_files_for_targets() {
    let pair = Pair::new(&["a.test"]);
    let [_, certificate, _, key] = pair.arguments();
    let file = TextFile::new(&format!(
        "[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"tls://a.test:443\"\n\
         target_tls_ca = \"{certificate}\"\ntarget_tls_cert = \"{certificate}\"\ntarget_tls_key = \"{key}\"\n"
    ));
    let doctor = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        let output = command.args(["doctor", "-v", "--tls", file.path()]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = doctor();
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "\nService forward\n",
        " [target-ca]\n             0 CAs and the certificate of 1 server for targets\n",
        " [pair]\n             for targets; it expires at ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    pair.certificate.write("nothing");
    let (code, text) = doctor();
    assert_eq!((code, text.matches("\nfault        ").count()), (Some(1), 2), "{text}");
}
